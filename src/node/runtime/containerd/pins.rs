//! Pinned images: labels of image names that protect them from garbage collection, as k3s sets them
//! on imported images.

use std::path::Path;

use proto::containerd::services::images::v1 as images;
use proto::containerd::services::images::v1::images_client::ImagesClient;

use super::{CALL_TIMEOUT, Labels, request};
use crate::runtime::cri::channel;

/// The label by which containerd's CRI plugin reports an image as pinned.
const CRI_LABEL: &str = "io.cri-containerd.pinned";
/// The label of images that an import has pinned, so that only these are unpinned again.
const IMPORT_LABEL: &str = "io.cattle.k3s.pinned";
/// Value of both labels.
const PINNED: &str = "pinned";
/// Limit of the answer with all images.
const MESSAGE_MAX: usize = 16 << 20;

/// Both labels.
pub(crate) fn labels() -> Labels {
    [CRI_LABEL, IMPORT_LABEL].map(|label| (label.to_owned(), PINNED.to_owned())).into()
}

/// A name of an image in containerd.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct StoredImage(images::Image);

impl StoredImage {
    /// The name, such as `docker.io/library/busybox:1`.
    pub(crate) fn name(&self) -> &str {
        &self.0.name
    }

    /// The digest of its manifest or index.
    pub(crate) fn digest(&self) -> &str {
        self.0.target.as_ref().map_or("", |target| target.digest.as_str())
    }

    /// Whether an import has pinned it, and nothing has unpinned it since.
    pub(crate) fn is_pinned(&self) -> bool {
        labels().iter().all(|(label, value)| self.0.labels.get(label) == Some(value))
    }

    /// Whether an import has pinned it.
    pub(crate) fn has_import_pin(&self) -> bool {
        self.0.labels.contains_key(IMPORT_LABEL)
    }
}

/// Returns all names of images.
///
/// # Errors
///
/// containerd does not answer.
pub(crate) async fn list(socket: &Path) -> Result<Vec<StoredImage>, tonic::Status> {
    let mut client = ImagesClient::new(channel(socket)).max_decoding_message_size(MESSAGE_MAX);
    let message = images::ListImagesRequest::default();
    let answer = client.list(request(message, CALL_TIMEOUT)).await?.into_inner();
    Ok(answer.images.into_iter().map(StoredImage).collect())
}

/// Pins or unpins a name; its other labels stay.
///
/// # Errors
///
/// containerd does not answer, or the name was removed.
pub(crate) async fn set(
    socket: &Path,
    image: &StoredImage,
    pinned: bool,
) -> Result<(), tonic::Status> {
    let mut changed = image.0.clone();
    for (label, value) in labels() {
        if pinned {
            changed.labels.insert(label, value);
        } else {
            changed.labels.remove(&label);
        }
    }
    let update = images::UpdateImageRequest {
        image: Some(changed),
        update_mask: Some(prost_types::FieldMask { paths: vec!["labels".to_owned()] }),
        ..Default::default()
    };
    ImagesClient::new(channel(socket)).update(request(update, CALL_TIMEOUT)).await.map(drop)
}
