//! Which images that are present need a check of credentials: the kubelet's
//! `imagePullCredentialsVerificationPolicy`.

use std::collections::BTreeSet;

use crate::runtime::images::name;

/// The policy.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum ImageVerification {
    /// Every pod may use the images of its node.
    NeverVerify,
    /// Every pod may use images that the node did not pull.
    #[default]
    NeverVerifyPreloadedImages,
    /// Every pod may use the listed images.
    NeverVerifyAllowlistedImages(ImageAllowlist),
    /// A pod may use images that it has credentials for.
    AlwaysVerify,
}

/// Names of images without tag and digest, and prefixes of such names that end with a slash.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ImageAllowlist {
    names: BTreeSet<String>,
    prefixes: Vec<String>,
}

/// Why a policy is invalid; the texts are those of upstream.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ImageVerificationError {
    /// There is no such policy.
    #[error(
        "must be NeverVerify, NeverVerifyPreloadedImages, NeverVerifyAllowlistedImages or \
         AlwaysVerify"
    )]
    Unknown,
    /// An entry has spaces around it.
    #[error("leading/trailing spaces are not allowed: {0}")]
    Spaces(String),
    /// An entry is empty.
    #[error("the supplied pattern is too short: {0}")]
    Short(String),
    /// A star is not the last segment.
    #[error("not a valid wildcard pattern, only patterns ending with '/*' are allowed: {0}")]
    Wildcard(String),
    /// Only a wildcard.
    #[error("at least registry hostname is required")]
    Host,
    /// No name of an image.
    #[error("failed to parse as an image name: invalid reference format")]
    Name,
    /// An entry has a tag or a digest.
    #[error("neither tag nor digest is accepted in an image reference: {0}")]
    Suffix(String),
}

impl ImageVerification {
    /// Parses the policy; `allowlist` is that of the third one.
    ///
    /// # Errors
    /// There is no such policy, or an entry is invalid.
    pub fn parse(policy: &str, allowlist: &[String]) -> Result<Self, ImageVerificationError> {
        Ok(match policy {
            "NeverVerify" => Self::NeverVerify,
            "" | "NeverVerifyPreloadedImages" => Self::NeverVerifyPreloadedImages,
            "NeverVerifyAllowlistedImages" => {
                Self::NeverVerifyAllowlistedImages(ImageAllowlist::parse(allowlist)?)
            }
            "AlwaysVerify" => Self::AlwaysVerify,
            _ => return Err(ImageVerificationError::Unknown),
        })
    }

    /// The name of the policy.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::NeverVerify => "NeverVerify",
            Self::NeverVerifyPreloadedImages => "NeverVerifyPreloadedImages",
            Self::NeverVerifyAllowlistedImages(_) => "NeverVerifyAllowlistedImages",
            Self::AlwaysVerify => "AlwaysVerify",
        }
    }

    /// Whether the credentials of a pod have to be checked.
    pub(super) fn requires_check(&self, image: &str, is_pulled: bool) -> bool {
        match self {
            Self::NeverVerify => false,
            Self::NeverVerifyPreloadedImages => is_pulled,
            Self::NeverVerifyAllowlistedImages(list) => !list.contains(image),
            Self::AlwaysVerify => true,
        }
    }
}

impl ImageAllowlist {
    fn parse(entries: &[String]) -> Result<Self, ImageVerificationError> {
        let mut list = Self::default();
        for entry in entries {
            let error = |of: fn(String) -> ImageVerificationError| of(entry.clone());
            if entry.trim() != entry {
                return Err(error(ImageVerificationError::Spaces));
            }
            let prefix = entry.strip_suffix('*').filter(|prefix| prefix.ends_with('/'));
            let text = prefix.unwrap_or(entry);
            if text.is_empty() {
                return Err(error(ImageVerificationError::Short));
            }
            if text.contains('*') {
                return Err(error(ImageVerificationError::Wildcard));
            }
            match prefix {
                Some("/") => return Err(ImageVerificationError::Host),
                Some(prefix) => list.prefixes.push(prefix.to_owned()),
                None => match trim(entry) {
                    None => return Err(ImageVerificationError::Name),
                    Some(name) if name != entry => {
                        return Err(error(ImageVerificationError::Suffix));
                    }
                    Some(name) => {
                        list.names.insert(name.to_owned());
                    }
                },
            }
        }
        Ok(list)
    }

    fn contains(&self, image: &str) -> bool {
        let name = trim(image).unwrap_or(image);
        self.names.contains(name) || self.prefixes.iter().any(|prefix| name.starts_with(prefix))
    }
}

/// The name of an image as written without tag and digest; `None` if it is no name.
pub(super) fn trim(image: &str) -> Option<&str> {
    name::is_valid(image).then(|| name::split(image).0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allowlist(entry: &str) -> Result<ImageVerification, ImageVerificationError> {
        ImageVerification::parse("NeverVerifyAllowlistedImages", &[entry.to_owned()])
    }

    #[test]
    fn preloaded_images_are_those_that_the_node_did_not_pull() {
        let policy = ImageVerification::parse("", &[]).unwrap();
        assert!(policy.requires_check("a", true) && !policy.requires_check("a", false));
        let policy = ImageVerification::parse("AlwaysVerify", &[]).unwrap();
        assert!(policy.requires_check("a", false));
        let policy = ImageVerification::parse("NeverVerify", &[]).unwrap();
        assert!(!policy.requires_check("a", true));
        assert!(ImageVerification::parse("Never", &[]).is_err());
    }

    #[test]
    fn listed_images_need_no_check() {
        for (entry, image, listed) in [
            ("test.io/test/image", "test.io/test/image", true),
            ("test.io/test/image", "test.io/test/other", false),
            ("different.repo/test/*", "test.io/test/image", false),
            ("test.io/test/*", "test.io/test/image:1", true),
            ("test.io/*", "test.io/test/image", true),
            ("docker.io/library/ubuntu", "ubuntu", false),
            ("docker.io/library/*", "ubuntu", false),
            ("ubuntu", "ubuntu", true),
            ("ubuntu", "ubuntu:tagged", true),
            ("ubuntu", "ubuntu@sha256:00", true),
        ] {
            let policy = allowlist(entry).unwrap();
            assert_eq!(policy.requires_check(image, true), !listed, "{entry} {image}");
            assert_eq!(policy.requires_check(image, false), !listed, "{entry} {image}");
        }
    }

    #[test]
    fn invalid_entries_have_the_errors_of_upstream() {
        for (entry, want) in [
            ("image.repo/pokus*/imagename", "not a valid wildcard pattern, only patterns ending"),
            ("image.repo/pokus*", "not a valid wildcard pattern"),
            ("image.repo/*/imagename", "not a valid wildcard pattern"),
            ("/*", "at least registry hostname is required"),
            ("image.repo/", "failed to parse as an image name: "),
            ("", "the supplied pattern is too short: "),
            ("*", "not a valid wildcard pattern"),
            ("image.repo/a:tag", "neither tag nor digest is accepted in an image reference: image"),
            ("image.repo/a@sha256:00", "neither tag nor digest is accepted"),
            ("image.repo/a ", "leading/trailing spaces are not allowed: image.repo/a "),
        ] {
            let error = allowlist(entry).unwrap_err().to_string();
            assert!(error.starts_with(want), "{entry}: {error}");
        }
    }

    #[test]
    fn tag_and_digest_are_trimmed() {
        for name in ["myimage", "registry.io/a/myimage", "localhost:5000/myimage", "r.io/v1/a"] {
            for suffix in ["", ":latest", "@sha256:00", ":v1@sha256:00"] {
                assert_eq!(trim(&format!("{name}{suffix}")), Some(name), "{name}{suffix}");
            }
        }
        for image in ["registry.io/myorg/", "registry.io/myorg/:tag", "registry.io/a/@sha256:00"] {
            assert_eq!(trim(image), None, "{image}");
        }
    }
}
