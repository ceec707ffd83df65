//! Imports images into containerd without a registry: the built-in pause image and archives from
//! disk.

pub(crate) mod archive;
mod contents;
mod decompress;
mod sources;
mod store;

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use super::pins;
use crate::runtime::images::{name, pause};
use contents::{ArchiveContents, ArchiveImage, Blob, BlobSource, descriptor};
use sorting::CompactSort as _;

/// Why an image could not be imported.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ImportError {
    /// The runtime returned an error; the import can be retried.
    #[error("cannot import image content: {0}")]
    Runtime(#[from] tonic::Status),
    /// The archive cannot be read.
    #[error("{source}")]
    Archive {
        /// The error.
        source: std::io::Error,
    },
}

impl ImportError {
    /// Whether another try with the same archive can succeed.
    pub(crate) fn is_temporary(&self) -> bool {
        match self {
            // containerd rejects content with another digest or size.
            Self::Runtime(status) => !matches!(
                status.code(),
                tonic::Code::FailedPrecondition | tonic::Code::InvalidArgument
            ),
            Self::Archive { source, .. } => source.kind() == std::io::ErrorKind::StorageFull,
        }
    }
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
    let contents = ArchiveContents { blobs, images: vec![image] };
    store::store(socket, contents, &HashMap::new(), &HashMap::new()).await
}

/// Imports an OCI layout or `docker save` archive, which may be compressed with gzip, zstd or lz4,
/// and pins its images; returns these, by name with digest. Each image also gets the name with its
/// digest, and for each of `registries` its names there, as k3s does for
/// `--airgap-extra-registry`. `scratch` is the directory of temporary data.
pub(crate) async fn archive(
    socket: &Path,
    path: &Path,
    scratch: &Path,
    registries: &[String],
) -> Result<BTreeMap<String, String>, ImportError> {
    let failed = |source| ImportError::Archive { source };
    let (owned, scratch) = (path.to_owned(), scratch.to_owned());
    let room = crate::machine::disk(&scratch).map_or(u64::MAX, |disk| disk.free);
    let opened = base::tasks::blocking(move || archive::open(&owned, &scratch, room)).await;
    let mut contents = opened.map_err(|e| failed(std::io::Error::other(e)))?.map_err(failed)?;
    let sources = sources::of(&contents, registries);
    for image in &mut contents.images {
        image.names = names(&image.names, &image.target.digest, registries);
    }
    let images = contents.images.iter();
    let images = images
        .flat_map(|i| i.names.iter().map(|name| (name.clone(), i.target.digest.clone())))
        .collect();
    store::store(socket, contents, &sources, &pins::labels()).await?;
    Ok(images)
}

/// All names of an image with these names (k3s's `retagImages`).
fn names(names: &[String], digest: &str, registries: &[String]) -> Vec<String> {
    let mut out = Vec::new();
    for full in names {
        let (repository, tag) = name::split(full);
        let path = repository.split_once('/').map_or(repository, |(_, path)| path);
        out.push(full.clone());
        out.push(format!("{repository}@{digest}"));
        for registry in registries {
            if tag.starts_with(':') {
                out.push(format!("{registry}/{path}{tag}"));
            }
            out.push(format!("{registry}/{path}@{digest}"));
        }
    }
    out.compact_sort();
    out.dedup();
    out
}

#[cfg(test)]
mod tests {
    #[test]
    fn images_get_their_digest_and_the_extra_registries_as_names() {
        let names = |own: &[&str], registries: &[&str]| {
            let own: Vec<String> = own.iter().map(|n| (*n).to_owned()).collect();
            let registries: Vec<String> = registries.iter().map(|n| (*n).to_owned()).collect();
            super::names(&own, "sha256:1", &registries)
        };
        assert_eq!(
            names(&["docker.io/library/a:1"], &["r.example:5000"]),
            [
                "docker.io/library/a:1",
                "docker.io/library/a@sha256:1",
                "r.example:5000/library/a:1",
                "r.example:5000/library/a@sha256:1",
            ]
        );
        let twice = names(&["r.io/a:1", "r.io/a:2"], &[]);
        assert_eq!(twice, ["r.io/a:1", "r.io/a:2", "r.io/a@sha256:1"]);
    }
}
