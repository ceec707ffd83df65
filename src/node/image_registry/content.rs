//! Manifests and blobs of containerd's content store.

use std::path::Path;

use bytes::Bytes;
use futures::{Stream, TryStreamExt};
use proto::containerd::services::content::v1 as content;
use proto::containerd::services::content::v1::content_client::ContentClient;
use proto::containerd::services::images::v1 as images;
use proto::containerd::services::images::v1::images_client::ImagesClient;
use serde::Deserialize;
use tonic::transport::Channel;

use super::request::ByteRange;
use crate::runtime::containerd::{CALL_TIMEOUT, SOURCE_LABEL, request};
use crate::runtime::cri::channel;

/// Time limit for reading one blob, such as a gigabyte over a slow link.
const READ_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(1800);
/// Maximum size of a manifest (distribution-spec: registries should enforce four megabytes).
const MANIFEST_MAX: u64 = 4 << 20;

/// The content store of one containerd.
#[derive(Debug, Clone)]
pub(super) struct ContentStore {
    content: ContentClient<Channel>,
    images: ImagesClient<Channel>,
}

/// The fields that tell the kinds of manifests apart.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Manifest {
    #[serde(default)]
    media_type: String,
    manifests: Option<serde::de::IgnoredAny>,
    layers: Option<serde::de::IgnoredAny>,
}

/// The media type of a manifest; `None` for other content.
fn media_type(text: &[u8]) -> Option<String> {
    let manifest: Manifest = serde_json::from_slice(text).ok()?;
    let by_content = match (manifest.manifests, manifest.layers) {
        (Some(_), _) => "application/vnd.oci.image.index.v1+json",
        (None, Some(_)) => "application/vnd.oci.image.manifest.v1+json",
        (None, None) => return None,
    };
    let stated = Some(manifest.media_type).filter(|t| http::HeaderValue::from_str(t).is_ok());
    Some(stated.filter(|t| !t.is_empty()).unwrap_or_else(|| by_content.to_owned()))
}

fn none_if_not_found<T>(result: Result<T, tonic::Status>) -> Result<Option<T>, tonic::Status> {
    match result {
        Ok(found) => Ok(Some(found)),
        Err(status) if status.code() == tonic::Code::NotFound => Ok(None),
        Err(status) => Err(status),
    }
}

impl ContentStore {
    pub(super) fn new(socket: &Path) -> Self {
        let channel = channel(socket);
        Self { content: ContentClient::new(channel.clone()), images: ImagesClient::new(channel) }
    }

    /// The digest of a named image; `None` if there is none.
    pub(super) async fn resolve(&self, name: &str) -> Result<Option<String>, tonic::Status> {
        let get = images::GetImageRequest { name: name.to_owned() };
        let found = self.images.clone().get(request(get, CALL_TIMEOUT)).await;
        let found = none_if_not_found(found)?.and_then(|answer| answer.into_inner().image);
        Ok(found.and_then(|image| image.target).map(|target| target.digest))
    }

    /// The size of content that belongs to a repository of `registry`; `None` if there is none.
    pub(super) async fn size(
        &self,
        digest: &str,
        registry: &str,
    ) -> Result<Option<u64>, tonic::Status> {
        let get = content::InfoRequest { digest: digest.to_owned() };
        let found = self.content.clone().info(request(get, CALL_TIMEOUT)).await;
        let info = none_if_not_found(found)?.and_then(|answer| answer.into_inner().info);
        let source = format!("{SOURCE_LABEL}{registry}");
        let info = info.filter(|info| info.labels.contains_key(&source));
        Ok(info.and_then(|info| u64::try_from(info.size).ok()))
    }

    /// Reads content, or a part of it.
    pub(super) async fn read(
        &self,
        digest: &str,
        part: Option<ByteRange>,
    ) -> Result<impl Stream<Item = Result<Bytes, tonic::Status>> + Send + 'static, tonic::Status>
    {
        let (offset, size) = part.map_or((0, 0), |p| (p.start, p.end - p.start + 1));
        let message = content::ReadContentRequest {
            digest: digest.to_owned(),
            offset: i64::try_from(offset).unwrap_or(i64::MAX),
            size: i64::try_from(size).unwrap_or(i64::MAX),
        };
        let answers = self.content.clone().read(request(message, READ_TIMEOUT)).await?;
        Ok(answers.into_inner().map_ok(|answer| answer.data))
    }

    /// Reads a manifest with its media type; `None` for content that is none.
    pub(super) async fn manifest(
        &self,
        digest: &str,
        size: u64,
    ) -> Result<Option<(Bytes, String)>, tonic::Status> {
        if size > MANIFEST_MAX {
            return Ok(None);
        }
        let mut parts = std::pin::pin!(self.read(digest, None).await?);
        let mut text = bytes::BytesMut::new();
        while let Some(part) = parts.try_next().await? {
            text.extend_from_slice(&part);
        }
        Ok(media_type(&text).map(|kind| (text.freeze(), kind)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_media_type_is_the_stated_one_or_follows_from_the_content() {
        let docker = br#"{"mediaType": "application/vnd.docker.distribution.manifest.v2+json",
            "layers": []}"#;
        let stated = "application/vnd.docker.distribution.manifest.v2+json";
        assert_eq!(media_type(docker).as_deref(), Some(stated));
        let index = "application/vnd.oci.image.index.v1+json";
        assert_eq!(media_type(br#"{"manifests": []}"#).as_deref(), Some(index));
        let manifest = "application/vnd.oci.image.manifest.v1+json";
        assert_eq!(media_type(br#"{"layers": []}"#).as_deref(), Some(manifest));
        let split = br#"{"mediaType": "a\nb", "layers": []}"#;
        assert_eq!(media_type(split).as_deref(), Some(manifest), "not a header's value");
        assert_eq!(media_type(br#"{"rootfs": {}}"#), None, "the configuration of an image");
        assert_eq!(media_type(b"\x1f\x8b"), None);
    }
}
