//! Imports images into containerd without a registry: the built-in pause image and archives from
//! disk.

mod archive;
mod contents;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use futures::{StreamExt, stream};
use proto::containerd::services::content::v1 as content;
use proto::containerd::services::content::v1::content_client::ContentClient;
use proto::containerd::services::images::v1 as images;
use proto::containerd::services::images::v1::images_client::ImagesClient;
use proto::containerd::services::leases::v1 as leases;
use proto::containerd::services::leases::v1::leases_client::LeasesClient;
use tokio::io::{AsyncReadExt, AsyncSeekExt};
use tonic::transport::Channel;

use super::NAMESPACE;
use crate::runtime::cri::channel;
use crate::runtime::images::pause;
use contents::{ArchiveContents, ArchiveImage, Blob, BlobSource, descriptor};

/// Size of an upload message; far below containerd's limit of 16 MiB.
const CHUNK: usize = 1 << 20;
/// Time limit for small calls.
const CALL_TIMEOUT: Duration = Duration::from_secs(30);
/// Time limit for one blob, such as a gigabyte on a slow SD card.
const BLOB_TIMEOUT: Duration = Duration::from_secs(600);

/// Why an image could not be imported.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ImportError {
    /// The runtime returned an error; the import can be retried.
    #[error("cannot import image content: {0}")]
    Runtime(#[from] tonic::Status),
    /// The archive cannot be read.
    #[error("cannot import {path}: {source}")]
    Archive {
        /// The archive.
        path: PathBuf,
        /// The error.
        source: std::io::Error,
    },
}

/// Imports the built-in pause image; cheap if it is present already.
pub(crate) async fn pause_image(socket: &Path) -> Result<(), ImportError> {
    let [layer, config, manifest] = pause::image();
    let children = vec![config.digest.clone(), layer.digest.clone()];
    let blob = |b: pause::ImageBlob, children| Blob {
        descriptor: descriptor(b.media_type, &b.digest, b.bytes.len() as u64),
        source: BlobSource::Bytes(b.bytes),
        children,
    };
    let manifest = blob(manifest, children);
    let image =
        ArchiveImage { names: vec![pause::IMAGE.to_owned()], target: manifest.descriptor.clone() };
    let blobs = vec![blob(layer, Vec::new()), blob(config, Vec::new()), manifest];
    store(socket, ArchiveContents { blobs, images: vec![image] }).await
}

/// Name suffixes of archives. An archive compressed with zstd is rejected with its own message.
const ARCHIVES: [&str; 4] = [".tar", ".tar.gz", ".tgz", ".tar.zst"];

/// Returns the archives of a directory, sorted, and the files that cannot be archives, each with
/// its reason. Only regular files are archives: opening a FIFO would block forever.
pub(crate) fn archives(folder: &Path) -> (Vec<PathBuf>, Vec<(PathBuf, String)>) {
    let (mut archives, mut refused) = (Vec::new(), Vec::new());
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let (name, path) = (entry.file_name(), entry.path());
        let name = name.to_string_lossy();
        // Hidden files and directories are ignored.
        if name.starts_with('.') || path.is_dir() {
            continue;
        }
        if !ARCHIVES.iter().any(|end| name.ends_with(end)) {
            refused.push((path, "the name does not end with .tar, .tar.gz or .tgz".to_owned()));
        } else if path.is_file() {
            archives.push(path);
        } else {
            refused.push((path, "not a regular file".to_owned()));
        }
    }
    archives.sort();
    refused.sort();
    (archives, refused)
}

/// Imports an OCI layout or `docker save` archive (plain or gzip); returns the names of its images.
pub(crate) async fn archive(socket: &Path, path: &Path) -> Result<Vec<String>, ImportError> {
    let failed = |source| ImportError::Archive { path: path.to_owned(), source };
    let owned = path.to_owned();
    let (contents, temporary) = base::tasks::blocking(move || archive::open(&owned))
        .await
        .map_err(|e| failed(std::io::Error::other(e)))?
        .map_err(failed)?;
    let names = contents.images.iter().flat_map(|i| i.names.clone()).collect();
    let stored = store(socket, contents).await;
    drop(temporary);
    stored.map(|()| names)
}

fn request<T>(message: T, lease: &str, timeout: Duration) -> tonic::Request<T> {
    let mut request = tonic::Request::new(message);
    request.set_timeout(timeout);
    let metadata = request.metadata_mut();
    metadata.insert("containerd-namespace", tonic::metadata::MetadataValue::from_static(NAMESPACE));
    if let Ok(lease) = lease.parse() {
        metadata.insert("containerd-lease", lease);
    }
    request
}

/// Stores blobs and names under a lease, so that containerd's garbage collection removes nothing in
/// between.
async fn store(socket: &Path, contents: ArchiveContents) -> Result<(), ImportError> {
    let channel = channel(socket);
    let mut leases = LeasesClient::new(channel.clone());
    let labels = [("containerd.io/gc.expire".to_owned(), expiry())].into();
    let create = leases::CreateRequest {
        id: format!("kube-lite-import-{}", base::clock::random_suffix(10)),
        labels,
    };
    let created = leases.create(request(create, "", CALL_TIMEOUT)).await?.into_inner();
    let lease = created.lease.map(|l| l.id).unwrap_or_default();
    let stored = store_all(&channel, &lease, contents).await;
    let delete = leases::DeleteRequest { id: lease, sync: false };
    let _ = leases.delete(request(delete, "", CALL_TIMEOUT)).await;
    stored
}

/// An hour from now, when containerd removes a lease that could not be deleted.
fn expiry() -> String {
    let seconds = base::clock::unix_time().as_secs().saturating_add(3600);
    jiff::Timestamp::from_second(i64::try_from(seconds).unwrap_or_default())
        .map(|t| t.to_string())
        .unwrap_or_default()
}

async fn store_all(
    channel: &Channel,
    lease: &str,
    contents: ArchiveContents,
) -> Result<(), ImportError> {
    for blob in contents.blobs {
        put_blob(channel, lease, blob).await?;
    }
    let mut client = ImagesClient::new(channel.clone());
    for image in contents.images {
        for name in image.names {
            let image = images::Image {
                name,
                target: Some(image.target.clone()),
                ..images::Image::default()
            };
            let create =
                images::CreateImageRequest { image: Some(image.clone()), ..Default::default() };
            match client.create(request(create, lease, CALL_TIMEOUT)).await {
                Err(status) if status.code() == tonic::Code::AlreadyExists => {
                    let update = images::UpdateImageRequest {
                        image: Some(image),
                        update_mask: Some(prost_types::FieldMask {
                            paths: vec!["target".to_owned()],
                        }),
                        ..Default::default()
                    };
                    client.update(request(update, lease, CALL_TIMEOUT)).await?;
                }
                other => drop(other?),
            }
        }
    }
    Ok(())
}

/// Labels that protect the references of a manifest or index from garbage collection.
fn references(children: &[String]) -> HashMap<String, String> {
    children
        .iter()
        .enumerate()
        .map(|(i, digest)| (format!("containerd.io/gc.ref.content.{i}"), digest.clone()))
        .collect()
}

async fn put_blob(channel: &Channel, lease: &str, blob: Blob) -> Result<(), ImportError> {
    let mut client = ContentClient::new(channel.clone());
    let labels = references(&blob.children);
    let digest = blob.descriptor.digest.clone();
    let info = content::InfoRequest { digest: digest.clone() };
    if client.info(request(info, lease, CALL_TIMEOUT)).await.is_ok() {
        return label(&mut client, lease, digest, labels).await;
    }
    let upload = upload(blob, labels.clone(), lease.to_owned()).await?;
    let written = async {
        let mut answers = client.write(request(upload, lease, BLOB_TIMEOUT)).await?.into_inner();
        while answers.message().await?.is_some() {}
        Ok(())
    };
    match written.await {
        Err(status) if tonic::Status::code(&status) == tonic::Code::AlreadyExists => {
            label(&mut client, lease, digest, labels).await
        }
        other => Ok(other?),
    }
}

async fn label(
    client: &mut ContentClient<Channel>,
    lease: &str,
    digest: String,
    labels: HashMap<String, String>,
) -> Result<(), ImportError> {
    if labels.is_empty() {
        return Ok(());
    }
    let paths = labels.keys().map(|l| format!("labels.{l}")).collect();
    let update = content::UpdateRequest {
        info: Some(content::Info { digest, labels, ..content::Info::default() }),
        update_mask: Some(prost_types::FieldMask { paths }),
    };
    client.update(request(update, lease, CALL_TIMEOUT)).await?;
    Ok(())
}

/// Returns the messages of one upload: chunks, then the commit that verifies size and digest.
async fn upload(
    blob: Blob,
    labels: HashMap<String, String>,
    lease: String,
) -> Result<impl futures::Stream<Item = content::WriteContentRequest> + Send + 'static, ImportError>
{
    let total = blob.descriptor.size;
    let digest = blob.descriptor.digest;
    let reference = format!("kube-lite-import-{lease}-{digest}");
    let chunks = match blob.source {
        BlobSource::Bytes(bytes) => stream::iter(
            (0..bytes.len())
                .step_by(CHUNK)
                .map(move |at| bytes.slice(at..bytes.len().min(at + CHUNK))),
        )
        .boxed(),
        BlobSource::File { path, offset } => {
            let failed = |source| ImportError::Archive { path: path.clone(), source };
            let mut file = tokio::fs::File::open(&path).await.map_err(failed)?;
            file.seek(std::io::SeekFrom::Start(offset)).await.map_err(failed)?;
            let rest = file.take(u64::try_from(total).unwrap_or_default());
            // A truncated file ends the stream early, and the commit fails because of the size.
            stream::unfold(rest, |mut rest| async move {
                let mut chunk = bytes::BytesMut::with_capacity(CHUNK);
                while chunk.len() < CHUNK && rest.read_buf(&mut chunk).await.ok()? > 0 {}
                (!chunk.is_empty()).then(|| (chunk.freeze(), rest))
            })
            .boxed()
        }
    };
    let (first_reference, first_digest) = (reference.clone(), digest.clone());
    let mut offset = 0_i64;
    let writes = chunks.map(move |data| {
        let at = offset;
        offset += i64::try_from(data.len()).unwrap_or_default();
        content::WriteContentRequest {
            action: content::WriteAction::Write.into(),
            r#ref: first_reference.clone(),
            total,
            expected: first_digest.clone(),
            offset: at,
            data,
            labels: HashMap::new(),
        }
    });
    let commit = content::WriteContentRequest {
        action: content::WriteAction::Commit.into(),
        r#ref: reference,
        total,
        expected: digest,
        offset: total,
        data: Bytes::new(),
        labels,
    };
    Ok(writes.chain(stream::iter([commit])))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fifo_and_an_unknown_file_are_rejected_and_other_archives_imported() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        for name in ["b.tar", "c.tgz", "images.txt", ".hidden"] {
            std::fs::write(path(name), "x").unwrap();
        }
        nix::unistd::mkfifo(&path("a.tar"), nix::sys::stat::Mode::S_IRUSR).unwrap();
        std::fs::create_dir(path("folder.tar")).unwrap();
        let (archives, refused) = archives(folder.path());
        assert_eq!(archives, [path("b.tar"), path("c.tgz")]);
        let refused: Vec<_> = refused.iter().map(|(path, why)| (path, why.as_str())).collect();
        assert_eq!(
            refused,
            [
                (&path("a.tar"), "not a regular file"),
                (&path("images.txt"), "the name does not end with .tar, .tar.gz or .tgz"),
            ]
        );
    }
}
