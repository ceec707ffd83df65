//! The `/etc/hosts` of a pod.

use api::k8s::api::core::v1::HostAlias;

const HEADER: &str = "# Kubernetes-managed hosts file.\n";
const HEADER_HOST_NETWORK: &str = "# Kubernetes-managed hosts file (host network).\n";

/// Content for a pod with its own addresses.
pub(crate) fn managed(
    ips: &[String],
    hostname: &str,
    domain: &str,
    aliases: &[HostAlias],
) -> String {
    let mut out = format!(
        "{HEADER}127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n\
         fe00::0\tip6-localnet\n\
         fe00::0\tip6-mcastprefix\nfe00::1\tip6-allnodes\nfe00::2\tip6-allrouters\n"
    );
    for ip in ips {
        if domain.is_empty() {
            out.push_str(&format!("{ip}\t{hostname}\n"));
        } else {
            out.push_str(&format!("{ip}\t{hostname}.{domain}\t{hostname}\n"));
        }
    }
    out + &entries(aliases)
}

/// Content for a pod in the host network: the host's file and the aliases.
pub(crate) fn of_host(file: &str, aliases: &[HostAlias]) -> String {
    format!("{HEADER_HOST_NETWORK}{file}{}", entries(aliases))
}

fn entries(aliases: &[HostAlias]) -> String {
    if aliases.is_empty() {
        return String::new();
    }
    let mut out = "\n# Entries added by HostAliases.\n".to_owned();
    for alias in aliases {
        let names = alias.hostnames.clone().unwrap_or_default().join("\t");
        out.push_str(&format!("{}\t{names}\n", alias.ip));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hosts_file_is_that_of_the_kubelet() {
        let alias =
            HostAlias { ip: "1.2.3.4".into(), hostnames: Some(vec!["a".into(), "b".into()]) };
        let text = managed(&["10.0.0.1".into()], "web", "svc.ns.svc.cluster.local", &[alias]);
        assert!(text.starts_with("# Kubernetes-managed hosts file.\n127.0.0.1\tlocalhost\n"));
        assert!(text.ends_with(
            "10.0.0.1\tweb.svc.ns.svc.cluster.local\tweb\n\n# Entries added by \
            HostAliases.\n1.2.3.4\ta\tb\n"
        ));
    }
}
