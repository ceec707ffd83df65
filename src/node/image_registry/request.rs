//! Requests of the OCI distribution API (distribution-spec 1.1, "Pull").

use http::Uri;

/// What a path of `/v2/` names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ContentKind {
    Manifest,
    Blob,
}

/// A tag or a digest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Reference {
    Tag(String),
    Digest(String),
}

/// A request for a manifest or blob.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ContentRequest {
    /// The registry in names of images, such as `docker.io`.
    pub(super) registry: String,
    /// The name in the registry, such as `library/busybox`.
    pub(super) repository: String,
    pub(super) kind: ContentKind,
    pub(super) reference: Reference,
    /// The registry is that of the parameter `ns`, which containerd sends to mirrors.
    pub(super) as_mirror: bool,
}

/// The parts of a path `/v2/NAME/KIND/REFERENCE`, undecoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PathParts<'a> {
    pub(super) name: &'a str,
    pub(super) kind: &'a str,
    pub(super) reference: &'a str,
}

impl<'a> PathParts<'a> {
    /// Splits the path after `/v2/`. A repository may itself contain `manifests` or `blobs`, so
    /// that the last one counts.
    pub(super) fn split(path: &'a str) -> Option<Self> {
        let (rest, reference) = path.rsplit_once('/')?;
        let (name, kind) = rest.rsplit_once('/')?;
        let valid = !name.is_empty() && !reference.is_empty();
        valid.then_some(Self { name, kind, reference })
    }
}

/// Value of a query parameter.
pub(super) fn parameter(uri: &Uri, name: &str) -> Option<String> {
    let query = uri.query()?;
    let mut pairs = url::form_urlencoded::parse(query.as_bytes());
    pairs.find(|(key, _)| key == name).map(|(_, value)| value.into_owned())
}

/// Whether the text is a digest that containerd stores content under.
fn is_digest(text: &str) -> bool {
    text.strip_prefix("sha256:")
        .is_some_and(|hex| hex.len() == 64 && hex.bytes().all(|b| b"0123456789abcdef".contains(&b)))
}

/// The grammar of repositories and tags, loosely: containerd knows only names that it accepted.
fn is_name(text: &str) -> bool {
    let part = |p: &str| {
        !p.is_empty() && p.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b))
    };
    text.len() <= 255 && text.split('/').all(part)
}

impl ContentRequest {
    /// Parses the path after `/v2/` and the query. Without the parameter `ns`, the first part of
    /// the name is the registry, as in `/v2/docker.io/library/busybox/manifests/1`.
    pub(super) fn parse(path: &str, uri: &Uri) -> Option<Self> {
        let parts = PathParts::split(path)?;
        let kind = match parts.kind {
            "manifests" => ContentKind::Manifest,
            "blobs" => ContentKind::Blob,
            _ => return None,
        };
        let reference = if is_digest(parts.reference) {
            Reference::Digest(parts.reference.to_owned())
        } else if kind == ContentKind::Manifest && is_name(parts.reference) {
            Reference::Tag(parts.reference.to_owned())
        } else {
            return None;
        };
        let (registry, repository, as_mirror) = match parameter(uri, "ns") {
            Some(registry) => (registry, parts.name, true),
            None => {
                let (registry, repository) = parts.name.split_once('/')?;
                (registry.to_owned(), repository, false)
            }
        };
        let valid = is_name(repository) && !registry.is_empty() && !registry.contains('/');
        let repository = repository.to_owned();
        valid.then_some(Self { registry, repository, kind, reference, as_mirror })
    }

    /// The full name of the image without tag and digest.
    pub(super) fn image(&self) -> String {
        format!("{}/{}", self.registry, self.repository)
    }

    /// Path and query of the same request to a peer.
    pub(super) fn peer_path(&self) -> String {
        let kind = match self.kind {
            ContentKind::Manifest => "manifests",
            ContentKind::Blob => "blobs",
        };
        let (Reference::Tag(reference) | Reference::Digest(reference)) = &self.reference;
        let registry: String =
            url::form_urlencoded::byte_serialize(self.registry.as_bytes()).collect();
        format!("/v2/{}/{kind}/{reference}?ns={registry}", self.repository)
    }
}

/// The part of a blob that a `Range` header names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ByteRange {
    pub(super) start: u64,
    /// The last byte.
    pub(super) end: u64,
}

/// Why a range cannot be served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Unsatisfiable;

/// Parses a `Range` header (RFC 9110, section 14); `None` for other units and several ranges, which
/// are answered with the whole content.
pub(super) fn range(header: Option<&str>, size: u64) -> Result<Option<ByteRange>, Unsatisfiable> {
    let Some(spec) = header.and_then(|h| h.strip_prefix("bytes=")) else { return Ok(None) };
    let Some((start, end)) = spec.split_once('-') else { return Ok(None) };
    let last = size.checked_sub(1).ok_or(Unsatisfiable)?;
    let found = match (start.parse::<u64>(), end.parse::<u64>()) {
        (Ok(start), Ok(end)) => ByteRange { start, end: end.min(last) },
        (Ok(start), Err(_)) if end.is_empty() => ByteRange { start, end: last },
        (Err(_), Ok(length)) if start.is_empty() && length > 0 => {
            ByteRange { start: size.saturating_sub(length), end: last }
        }
        _ => return Ok(None),
    };
    if found.start > found.end { Err(Unsatisfiable) } else { Ok(Some(found)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIGEST: &str = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

    fn parse(path: &str) -> Option<ContentRequest> {
        let uri: Uri = path.parse().unwrap();
        ContentRequest::parse(uri.path().strip_prefix("/v2/").unwrap(), &uri)
    }

    #[test]
    fn requests_name_registry_repository_and_reference() {
        let tag = parse("/v2/library/busybox/manifests/1?ns=docker.io").unwrap();
        assert_eq!((tag.image().as_str(), tag.as_mirror), ("docker.io/library/busybox", true));
        assert_eq!(tag.reference, Reference::Tag("1".to_owned()));
        let direct = parse("/v2/r.io:5000/a/manifests/b/manifests/1").unwrap();
        assert_eq!((direct.registry.as_str(), direct.as_mirror), ("r.io:5000", false));
        assert_eq!(direct.repository, "a/manifests/b");
        let blob = parse(&format!("/v2/a/blobs/{DIGEST}?x=1&ns=r.io%3A5000")).unwrap();
        assert_eq!((blob.kind, blob.image().as_str()), (ContentKind::Blob, "r.io:5000/a"));
        assert_eq!(blob.peer_path(), format!("/v2/a/blobs/{DIGEST}?ns=r.io%3A5000"));
        for other in [
            "/v2/a/tags/list?ns=r.io",
            "/v2/a/blobs/1?ns=r.io",
            "/v2/a/blobs/sha256:0?ns=r.io",
            "/v2/manifests/1?ns=r.io",
            "/v2/a/manifests/?ns=r.io",
            "/v2/a/manifests/1",
            "/v2/a/../b/manifests/1?ns=a/b",
            "/v2/a//b/manifests/1?ns=r.io",
        ] {
            assert_eq!(parse(other), None, "{other}");
        }
    }

    #[test]
    fn one_range_is_served_and_others_are_answered_with_the_whole() {
        let found = |start, end| Ok(Some(ByteRange { start, end }));
        assert_eq!(range(None, 10), Ok(None));
        assert_eq!(range(Some("bytes=0-"), 10), found(0, 9));
        assert_eq!(range(Some("bytes=4-99"), 10), found(4, 9));
        assert_eq!(range(Some("bytes=-3"), 10), found(7, 9));
        assert_eq!(range(Some("bytes=0-1,3-4"), 10), Ok(None));
        assert_eq!(range(Some("lines=1-2"), 10), Ok(None));
        assert_eq!(range(Some("bytes=10-"), 10), Err(Unsatisfiable));
        assert_eq!(range(Some("bytes=0-"), 0), Err(Unsatisfiable));
    }
}
