//! Rewrites of repository names for mirrors, as k3s's containerd applies them.

use regex::{Regex, RegexBuilder};

/// Limit of the memory of one compiled pattern, in bytes.
const PATTERN_MAX: usize = 1 << 20;

/// One pattern of a mirror and its replacement, in the syntax of Go's `regexp`.
#[derive(Debug, Clone)]
pub(super) struct Rewrite {
    pattern: Regex,
    replacement: String,
}

impl PartialEq for Rewrite {
    fn eq(&self, other: &Self) -> bool {
        self.pattern.as_str() == other.pattern.as_str() && self.replacement == other.replacement
    }
}

impl Eq for Rewrite {}

impl Rewrite {
    /// Compiles a pattern.
    ///
    /// # Errors
    ///
    /// An invalid or too large pattern.
    pub(super) fn new(pattern: &str, replacement: &str) -> Result<Self, regex::Error> {
        let pattern = RegexBuilder::new(pattern).size_limit(PATTERN_MAX).build()?;
        Ok(Self { pattern, replacement: replacement.to_owned() })
    }
}

/// Returns the name after the first rewrite that changes it.
pub(super) fn apply(rewrites: &[Rewrite], name: &str) -> String {
    let mut changed = rewrites.iter().map(|rewrite| {
        rewrite.pattern.replace_all(name, rewrite.replacement.as_str()).into_owned()
    });
    changed.find(|new| new != name).unwrap_or_else(|| name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first three are those of k3s's documentation ("Rewrites").
    #[test]
    fn the_first_rewrite_that_changes_a_name_applies() {
        for (pattern, replacement, name, new) in [
            (
                "^rancher/(.*)",
                "mirrorproject/rancher-images/$1",
                "rancher/mirrored-pause",
                "mirrorproject/rancher-images/mirrored-pause",
            ),
            ("^rancher/(.*)", "mirrorproject/$1", "library/busybox", "library/busybox"),
            ("(.*)", "proxy/$1", "library/busybox", "proxy/library/busybox"),
            ("^library/(?P<name>.*)$", "${name}", "library/busybox", "busybox"),
            ("a", "b", "aa/ca", "bb/cb"),
        ] {
            let rewrites = [Rewrite::new(pattern, replacement).unwrap()];
            assert_eq!(apply(&rewrites, name), new, "{pattern}");
        }
        let both = [Rewrite::new("^x", "y").unwrap(), Rewrite::new("^a", "b").unwrap()];
        assert_eq!(apply(&both, "a/x"), "b/x");
        assert!(Rewrite::new("(", "").is_err());
        assert!(Rewrite::new("(a{1000}){1000}", "").is_err(), "too large");
    }
}
