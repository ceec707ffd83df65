//! The versions of nodes that a server accepts: Kubernetes' version skew policy.

/// Minor versions that a kubelet may be behind its API server (kubernetes.io, Version Skew Policy).
const BEHIND_MAX: u32 = 3;

/// Major and minor of `v1.37.1+kubelite.0.1.0`.
fn parse(version: &str) -> Option<(u32, u32)> {
    let mut parts = version.strip_prefix('v')?.split(['.', '-', '+']);
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

/// Why a node may not join a server.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum SkewError {
    /// A text that is not a version.
    #[error("{0:?} is no version such as v1.37.1")]
    Malformed(String),
    /// The node is newer than the server.
    #[error("the agent has version {node}, which is newer than the server's, {server}")]
    Newer { node: String, server: String },
    /// The node is too old for the server.
    #[error(
        "the agent has version {node}, which is more than {BEHIND_MAX} minor versions older than \
         the server's, {server}"
    )]
    TooOld { node: String, server: String },
}

/// Whether a node of version `node` may join a server of version `server`.
///
/// # Errors
/// Why not, with both versions.
pub(super) fn check(server: &str, node: &str) -> Result<(), SkewError> {
    let parse = |text: &str| parse(text).ok_or_else(|| SkewError::Malformed(text.to_owned()));
    let (major, minor) = parse(server)?;
    let (node_major, node_minor) = parse(node)?;
    let (newer, too_old) = ((node_major, node_minor) > (major, minor), node_major != major);
    let (node, server) = (node.to_owned(), server.to_owned());
    if newer {
        return Err(SkewError::Newer { node, server });
    }
    if too_old || minor - node_minor > BEHIND_MAX {
        return Err(SkewError::TooOld { node, server });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_may_be_three_minor_versions_older_and_never_newer() {
        let server = "v1.37.1+kubelite.0.1.0";
        for node in
            ["v1.37.1", "v1.37.0", "v1.37.9", "v1.36.2", "v1.34.0", "v1.37.1+kubelite.0.2.0"]
        {
            assert_eq!(check(server, node), Ok(()), "{node}");
        }
        assert_eq!(
            check(server, "v1.38.0").unwrap_err().to_string(),
            "the agent has version v1.38.0, which is newer than the server's, v1.37.1+kubelite.0.1.0"
        );
        assert!(
            check(server, "v1.33.9")
                .unwrap_err()
                .to_string()
                .contains("more than 3 minor versions older")
        );
        assert!(matches!(check(server, "v2.0.0"), Err(SkewError::Newer { .. })));
        assert!(matches!(check("v2.1.0", "v1.37.1"), Err(SkewError::TooOld { .. })));
        for bad in ["", "1.37.1", "v1", "vx.y"] {
            assert_eq!(check(server, bad), Err(SkewError::Malformed(bad.to_owned())), "{bad}");
        }
    }
}
