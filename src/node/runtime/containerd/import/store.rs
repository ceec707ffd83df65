//! Stores blobs and image names in containerd.

use std::collections::HashMap;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::{StreamExt, stream};
use proto::containerd::services::content::v1 as content;
use proto::containerd::services::content::v1::content_client::ContentClient;
use proto::containerd::services::images::v1 as images;
use proto::containerd::services::images::v1::images_client::ImagesClient;
use proto::containerd::services::leases::v1 as leases;
use proto::containerd::services::leases::v1::leases_client::LeasesClient;
use tonic::transport::Channel;

use super::ImportError;
use super::contents::{ArchiveContents, ArchiveImage, Blob, BlobSource};
use crate::runtime::containerd::{CALL_TIMEOUT, Labels, request as plain_request};
use crate::runtime::cri::channel;

/// Size of an upload message; far below containerd's limit of 16 MiB.
const CHUNK: usize = 1 << 20;
/// Time limit for one blob, such as a gigabyte on a slow SD card.
const BLOB_TIMEOUT: Duration = Duration::from_secs(600);

fn request<T>(message: T, lease: &str, timeout: Duration) -> tonic::Request<T> {
    let mut request = plain_request(message, timeout);
    if let Ok(lease) = lease.parse() {
        request.metadata_mut().insert("containerd-lease", lease);
    }
    request
}

/// Stores blobs and names under a lease, so that containerd's garbage collection removes nothing in
/// between. `sources` are further labels of blobs, by digest; `labels` are those of the images.
pub(super) async fn store(
    socket: &Path,
    contents: ArchiveContents,
    sources: &HashMap<String, Labels>,
    labels: &Labels,
) -> Result<(), ImportError> {
    let channel = channel(socket);
    let mut leases = LeasesClient::new(channel.clone());
    let create = leases::CreateRequest {
        id: format!("kube-lite-import-{}", base::clock::random_suffix(10)),
        labels: [("containerd.io/gc.expire".to_owned(), expiry())].into(),
    };
    let created = leases.create(request(create, "", CALL_TIMEOUT)).await?.into_inner();
    let lease = created.lease.map(|l| l.id).unwrap_or_default();
    let stored = store_all(&channel, &lease, contents, sources, labels).await;
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
    sources: &HashMap<String, Labels>,
    labels: &Labels,
) -> Result<(), ImportError> {
    for blob in contents.blobs {
        let mut all = references(&blob.children);
        all.extend(sources.get(&blob.descriptor.digest).cloned().unwrap_or_default());
        put_blob(channel, lease, blob, all).await?;
    }
    let mut client = ImagesClient::new(channel.clone());
    for image in contents.images {
        put_image(&mut client, lease, image, labels).await?;
    }
    Ok(())
}

/// Creates the names of an image or moves them to it; other labels of an existing name stay.
async fn put_image(
    client: &mut ImagesClient<Channel>,
    lease: &str,
    image: ArchiveImage,
    labels: &Labels,
) -> Result<(), ImportError> {
    for name in image.names {
        let image = images::Image {
            name,
            labels: labels.clone(),
            target: Some(image.target.clone()),
            ..images::Image::default()
        };
        let create =
            images::CreateImageRequest { image: Some(image.clone()), ..Default::default() };
        match client.create(request(create, lease, CALL_TIMEOUT)).await {
            Err(status) if status.code() == tonic::Code::AlreadyExists => {
                let mut paths = vec!["target".to_owned()];
                paths.extend(labels.keys().map(|key| format!("labels.{key}")));
                let update = images::UpdateImageRequest {
                    image: Some(image),
                    update_mask: Some(prost_types::FieldMask { paths }),
                    ..Default::default()
                };
                client.update(request(update, lease, CALL_TIMEOUT)).await?;
            }
            other => drop(other?),
        }
    }
    Ok(())
}

/// Labels that protect the references of a manifest or index from garbage collection.
fn references(children: &[String]) -> Labels {
    children
        .iter()
        .enumerate()
        .map(|(i, digest)| (format!("containerd.io/gc.ref.content.{i}"), digest.clone()))
        .collect()
}

async fn put_blob(
    channel: &Channel,
    lease: &str,
    blob: Blob,
    labels: Labels,
) -> Result<(), ImportError> {
    let mut client = ContentClient::new(channel.clone());
    let digest = blob.descriptor.digest.clone();
    let info = content::InfoRequest { digest: digest.clone() };
    if client.info(request(info, lease, CALL_TIMEOUT)).await.is_ok() {
        return label(&mut client, lease, digest, labels).await;
    }
    let upload = upload(blob, labels.clone(), lease);
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
    labels: Labels,
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

/// Reads a blob of an archive in chunks. A file that becomes shorter ends the stream early, and the
/// commit fails because of the size.
fn chunks(
    archive: Arc<std::fs::File>,
    offset: u64,
    size: u64,
) -> impl futures::Stream<Item = Bytes> + Send + 'static {
    let end = offset.saturating_add(size);
    stream::unfold(offset, move |at| {
        let archive = Arc::clone(&archive);
        let length = usize::try_from(end.saturating_sub(at)).unwrap_or(CHUNK).min(CHUNK);
        let read = move || {
            let mut chunk = vec![0; length];
            archive.read_exact_at(&mut chunk, at).map(|()| chunk)
        };
        async move {
            if length == 0 {
                return None;
            }
            let chunk = base::tasks::blocking(read).await.ok()?.ok()?;
            Some((Bytes::from(chunk), at.saturating_add(u64::try_from(length).ok()?)))
        }
    })
}

/// Returns the messages of one upload: chunks, then the commit that verifies size and digest.
fn upload(
    blob: Blob,
    labels: Labels,
    lease: &str,
) -> impl futures::Stream<Item = content::WriteContentRequest> + Send + 'static {
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
        BlobSource::File { archive, offset } => {
            chunks(archive, offset, u64::try_from(total).unwrap_or_default()).boxed()
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
    writes.chain(stream::iter([commit]))
}
