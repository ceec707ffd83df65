//! Known vulnerabilities of runc versions: a container can escape to the host.

/// Packages of older versions with a backported fix, as `runc --version` prints them: the text
/// before the package revision, and the first fixed revision (DSA-5615-1, USN-6619-1).
const FIXED_PACKAGES: [(&str, u32); 5] = [
    ("1.0.0~rc93+ds1-5+deb11u", 3),
    ("1.1.5+ds1-1+deb12u", 1),
    ("1.1.7-0ubuntu1~20.04.", 2),
    ("1.1.7-0ubuntu1~22.04.", 2),
    ("1.1.7-0ubuntu2.", 2),
];
/// The first fixed release.
const FIRST_FIXED_RELEASE: [u32; 3] = [1, 1, 12];

fn leading_number(text: &str) -> Option<u32> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    text.get(..end)?.parse().ok()
}

/// Returns the vulnerability of the runc that printed this for `--version`: CVE-2024-21626, unless
/// its release or its distribution's package has the fix. `None` for other OCI runtimes.
pub fn runc_vulnerability(printed: &str) -> Option<String> {
    let version = printed.lines().find_map(|l| l.strip_prefix("runc version "))?.trim();
    let mut numbers = version.split('.').map(leading_number);
    let mut number = || numbers.next().flatten().unwrap_or(0);
    if [number(), number(), number()] >= FIRST_FIXED_RELEASE {
        return None;
    }
    let fixed = |(name, first): &(&str, u32)| {
        printed.split(*name).skip(1).filter_map(leading_number).any(|package| package >= *first)
    };
    (!FIXED_PACKAGES.iter().any(fixed)).then(|| {
        format!(
            "runc {version} is older than 1.1.12 and is affected by CVE-2024-21626: a \
            container can escape to the node"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Releases and distribution packages with and without the fix.
    #[test]
    fn an_old_runc_is_reported_unless_its_package_is_fixed() {
        let vulnerability = |version: &str, commit: &str| {
            runc_vulnerability(&format!(
                "runc version {version}\ncommit: {commit}\nspec: 1.0.2-dev\ngo: go1.19.8\n"
            ))
        };
        assert_eq!(
            vulnerability("1.1.5", "v1.1.5-0-gf19387a6").unwrap(),
            "runc 1.1.5 is older than 1.1.12 and is affected by CVE-2024-21626: a container can \
             escape to the node"
        );
        for (version, commit, old) in [
            ("1.1.11", "v1.1.11-0-g4bccb38c", true),
            ("1.1.12", "v1.1.12-0-g51d5e946", false),
            ("1.2.0-rc.1", "v1.2.0-rc.1-0-g275e6d85", false),
            ("1.0.0-rc10", "x", true),
            // Debian 12 at its release, and with its security update.
            ("1.1.5+ds1", "1.1.5+ds1-1+b1", true),
            ("1.1.5+ds1", "1.1.5+ds1-1+deb12u1", false),
            ("1.0.0~rc93+ds1", "1.0.0~rc93+ds1-5+deb11u2", true),
            ("1.0.0~rc93+ds1", "1.0.0~rc93+ds1-5+deb11u3", false),
            ("1.1.7-0ubuntu1~22.04.1", "", true),
            ("1.1.7-0ubuntu1~22.04.7", "", false),
        ] {
            assert_eq!(vulnerability(version, commit).is_some(), old, "{version} {commit}");
        }
        assert_eq!(runc_vulnerability("crun version 1.8.1\n"), None);
    }
}
