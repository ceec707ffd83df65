//! Versions of charts and of Kubernetes, and ranges of them.

pub use go_template::{Constraints, Version};

/// Whether a version is in a range; texts that cannot be read are not (`IsCompatibleRange`).
pub fn is_compatible(range: &str, version: &str) -> bool {
    // Masterminds' semver takes an empty constraint for `*`.
    let range = if range.trim().is_empty() { "*" } else { range };
    match (Constraints::parse(range), Version::parse(version)) {
        (Ok(constraints), Ok(version)) => constraints.matches(&version),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn constraints_match_as_masterminds_semver() {
        // From constraints_test.go and version ranges of public charts.
        for (range, version, want) in [
            ("=2.0.0", "1.2.3", false),
            ("=2.0", "2.0.7", true),
            ("4.1", "4.1.0", true),
            ("!=4.1.x", "4.1.3", false),
            (">1.1", "1.1.4", false),
            (">1.1", "1.2.0", true),
            ("<1.1", "0.1.0", true),
            ("<=11", "11.1.0", true),
            (">=11.1.3", "11.1.2", false),
            ("1.2 - 2.0.0", "2.0.0", true),
            ("1.2.0 - 1.4.5", "1.4.6", false),
            ("^1.2.3", "1.9.0", true),
            ("^0.2.3", "0.3.0", false),
            ("~1.2.3", "1.3.0", false),
            ("~1", "1.9.0", true),
            ("*", "7.1.0", true),
            ("", "7.1.0", true),
            ("", "1.2.3-alpha.1", false),
            (">= 1.16.0-0", "1.37.1+kube-lite", true),
            (">= 1.16.0", "1.37.1-rc.1", false),
            (">= 1.16.0-0 < 2.0.0-0", "1.37.1", true),
            ("1.x.x || ^3", "3.2.0", true),
            ("~17.x.x", "17.9.1", true),
            ("nonsense", "1.0.0", false),
        ] {
            assert_eq!(is_compatible(range, version), want, "{range:?} {version}");
        }
    }
}
