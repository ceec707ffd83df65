//! The blobs and images of an archive, in the order in which containerd must store them.

use std::fs::File;
use std::sync::Arc;

use bytes::Bytes;
use proto::containerd::types::Descriptor;

/// The source of a blob's bytes.
#[derive(Debug, Clone)]
pub(crate) enum BlobSource {
    Bytes(Bytes),
    /// The archive, which stays the same file if another one gets its name meanwhile.
    File {
        archive: Arc<File>,
        offset: u64,
    },
}

/// One blob to store, with the digests of its references.
#[derive(Debug, Clone)]
pub(crate) struct Blob {
    pub(crate) descriptor: Descriptor,
    pub(crate) source: BlobSource,
    pub(crate) children: Vec<String>,
}

/// A named image; its blobs precede those that refer to them.
#[derive(Debug, Clone)]
pub(crate) struct ArchiveImage {
    pub(crate) names: Vec<String>,
    pub(crate) target: Descriptor,
}

/// The contents of an archive.
#[derive(Debug, Default)]
pub(crate) struct ArchiveContents {
    pub(crate) blobs: Vec<Blob>,
    pub(crate) images: Vec<ArchiveImage>,
}

pub(crate) fn descriptor(media_type: &str, digest: &str, size: u64) -> Descriptor {
    Descriptor {
        media_type: media_type.to_owned(),
        digest: digest.to_owned(),
        size: i64::try_from(size).unwrap_or(i64::MAX),
        ..Descriptor::default()
    }
}
