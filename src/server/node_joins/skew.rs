//! Which versions of nodes a server takes: Kubernetes' version skew policy.

/// Minor versions that a kubelet may be behind its API server (kubernetes.io, Version Skew Policy).
const BEHIND_MAX: u32 = 3;

/// Major and minor of `v1.37.1+kubelite.0.1.0`.
fn parse(version: &str) -> Option<(u32, u32)> {
    let mut parts = version.strip_prefix('v')?.split(['.', '-', '+']);
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

/// Whether a node of version `node` may join a server of version `server`.
///
/// # Errors
/// Why not, with both versions.
pub(super) fn check(server: &str, node: &str) -> Result<(), String> {
    let unknown = |which: &str| format!("{which:?} is no version such as v1.37.1");
    let (major, minor) = parse(server).ok_or_else(|| unknown(server))?;
    let (node_major, node_minor) = parse(node).ok_or_else(|| unknown(node))?;
    if (node_major, node_minor) > (major, minor) {
        return Err(format!(
            "the agent has version {node}, which is newer than the server's, {server}"
        ));
    }
    if node_major != major || minor - node_minor > BEHIND_MAX {
        return Err(format!(
            "the agent has version {node}, which is more than {BEHIND_MAX} minor versions older than the server's, {server}"
        ));
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
            check(server, "v1.38.0").unwrap_err(),
            "the agent has version v1.38.0, which is newer than the server's, v1.37.1+kubelite.0.1.0"
        );
        assert!(check(server, "v1.33.9").unwrap_err().contains("more than 3 minor versions older"));
        assert!(check(server, "v2.0.0").unwrap_err().contains("newer"));
        assert!(check("v2.1.0", "v1.37.1").unwrap_err().contains("older"));
        for bad in ["", "1.37.1", "v1", "vx.y"] {
            assert!(check(server, bad).unwrap_err().contains("is no version"), "{bad}");
        }
    }
}
