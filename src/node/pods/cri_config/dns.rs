//! The resolver configuration of a pod.

use proto::runtime::v1::DnsConfig;

use crate::config::Config;
use crate::pods::pod::Pod;

/// Maximum number of name servers (`validation.MaxDNSNameservers`).
const SERVERS_MAX: usize = 3;
/// Maximum number of search domains and of their characters (`MaxDNSSearchPaths`,
/// `MaxDNSSearchListChars`).
const SEARCHES_MAX: usize = 32;
const SEARCH_CHARS_MAX: usize = 2048;

/// Maximum length of a search domain (`DNS1123SubdomainMaxLength`): some resolvers abort on a
/// longer one.
const SEARCH_LENGTH_MAX: usize = 253;

/// The resolver configuration of a pod, and its differences from the specification.
#[derive(Debug, Default)]
pub(crate) struct PodDns {
    pub(crate) dns: DnsConfig,
    /// One message for each kind of omission.
    pub(crate) omissions: Vec<String>,
    /// Whether the pod uses the cluster's DNS, and the node has no address of it.
    pub(crate) lacks_cluster_dns: bool,
}

/// Returns the configuration by `dnsPolicy` and `dnsConfig`, within the limits of resolvers.
pub(crate) fn pod_dns(pod: &Pod, config: &Config) -> PodDns {
    let spec = pod.spec();
    let host = || parse(&std::fs::read_to_string(&config.resolv_conf).unwrap_or_default());
    let policy = match spec.dns_policy.as_deref() {
        Some("None") => "None",
        Some("Default") => "Default",
        Some("ClusterFirstWithHostNet") => "ClusterFirst",
        _ if pod.host_network() => "Default",
        _ => "ClusterFirst",
    };
    let mut dns = match policy {
        "None" => DnsConfig::default(),
        "ClusterFirst" if !config.cluster_dns.is_empty() => {
            let domain = &config.cluster_domain;
            let mut searches = vec![
                format!("{}.svc.{domain}", pod.namespace()),
                format!("svc.{domain}"),
                domain.clone(),
            ];
            searches.extend(host().searches);
            DnsConfig {
                servers: config.cluster_dns.iter().map(ToString::to_string).collect(),
                searches,
                options: vec!["ndots:5".to_owned()],
            }
        }
        _ => host(),
    };
    if let Some(own) = &spec.dns_config {
        dns.servers.extend(own.nameservers.iter().flatten().cloned());
        dns.searches.extend(own.searches.iter().flatten().cloned());
        for option in own.options.iter().flatten() {
            let name = option.name.as_deref().unwrap_or_default();
            dns.options.retain(|o| o.split(':').next() != Some(name));
            dns.options.push(match option.value.as_deref().filter(|v| !v.is_empty()) {
                Some(value) => format!("{name}:{value}"),
                None => name.to_owned(),
            });
        }
    }
    unique(&mut dns.servers);
    unique(&mut dns.searches);
    let mut omissions = Vec::new();
    if dns.servers.len() > SERVERS_MAX {
        dns.servers.truncate(SERVERS_MAX);
        omissions.push(format!(
            "Nameserver limits were exceeded, some nameservers have been omitted, \
             the applied nameserver line is: {}",
            dns.servers.join(" ")
        ));
    }
    let specified = dns.searches.len();
    dns.searches.truncate(SEARCHES_MAX);
    dns.searches.retain(|search| search.len() <= SEARCH_LENGTH_MAX);
    while dns.searches.join(" ").len() > SEARCH_CHARS_MAX {
        dns.searches.pop();
    }
    if dns.searches.len() < specified {
        omissions.push(format!(
            "Search Line limits were exceeded, some search paths have been omitted, \
             the applied search line is: {}",
            dns.searches.join(" ")
        ));
    }
    let lacks_cluster_dns = policy == "ClusterFirst" && config.cluster_dns.is_empty();
    PodDns { dns, omissions, lacks_cluster_dns }
}

fn unique(list: &mut Vec<String>) {
    let mut seen = std::collections::HashSet::new();
    list.retain(|item| seen.insert(item.clone()));
}

/// Parses a `resolv.conf`.
fn parse(text: &str) -> DnsConfig {
    let mut out = DnsConfig::default();
    for line in text.lines() {
        let mut words = line.split_whitespace();
        match words.next() {
            Some("nameserver") => out.servers.extend(words.next().map(str::to_owned)),
            Some("search") => {
                out.searches = words
                    .map(|w| if w == "." { w } else { w.trim_end_matches('.') }.to_owned())
                    .collect();
            }
            Some("options") => out.options = words.map(str::to_owned).collect(),
            _ => {}
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pods::pod::tests::pod;
    use serde_json::json;

    #[test]
    fn dns_policies_select_cluster_or_host() {
        let directory = tempfile::tempdir().unwrap();
        let mut c = Config::new("n", [127, 0, 0, 1].into(), "/d".into(), "/r".into());
        c.resolv_conf = directory.path().join("resolv.conf");
        std::fs::write(
            &c.resolv_conf,
            "nameserver 9.9.9.9\nsearch example.org.\noptions ndots:2\n",
        )
        .unwrap();
        c.cluster_dns = vec![[10, 43, 0, 10].into()];
        let of = |spec| pod_dns(&pod(spec), &c).dns;
        let first = of(
            json!({"containers": [], "dnsConfig": {"options": [{"name": "ndots", "value": "1"}]}}),
        );
        assert_eq!(first.servers, ["10.43.0.10"]);
        assert_eq!(
            first.searches,
            ["d.svc.cluster.local", "svc.cluster.local", "cluster.local", "example.org"]
        );
        assert_eq!(first.options, ["ndots:1"]);
        assert_eq!(
            of(json!({"containers": [], "hostNetwork": true, "dnsPolicy": "ClusterFirst"})).servers,
            ["9.9.9.9"]
        );
        assert!(of(json!({"containers": [], "dnsPolicy": "None"})).servers.is_empty());
    }

    /// The limits and messages of upstream's `formDNSConfigFitsLimits`.
    #[test]
    fn values_above_resolver_limits_are_omitted_with_messages() {
        let directory = tempfile::tempdir().unwrap();
        let mut c = Config::new("n", [127, 0, 0, 1].into(), "/d".into(), "/r".into());
        c.resolv_conf = directory.path().join("resolv.conf");
        std::fs::write(&c.resolv_conf, "nameserver 9.9.9.9\n").unwrap();
        let of = |dns_config| {
            pod_dns(
                &pod(json!({"containers": [], "dnsPolicy": "None", "dnsConfig": dns_config})),
                &c,
            )
        };
        let fits = of(json!({"nameservers": ["1.1.1.1"], "searches": ["a", "b"]}));
        assert!(fits.omissions.is_empty() && !fits.lacks_cluster_dns);
        let many = of(json!({"nameservers": ["1.1.1.1", "2.2.2.2", "3.3.3.3", "4.4.4.4"]}));
        assert_eq!(
            many.omissions,
            ["Nameserver limits were exceeded, some nameservers have been omitted, \
              the applied nameserver line is: 1.1.1.1 2.2.2.2 3.3.3.3"]
        );
        let long = "x".repeat(254);
        let searches = of(json!({"nameservers": ["1.1.1.1"], "searches": ["a", long, "b"]}));
        assert_eq!(searches.dns.searches, ["a", "b"]);
        assert_eq!(
            searches.omissions,
            ["Search Line limits were exceeded, some search paths have been omitted, \
              the applied search line is: a b"]
        );
        let first = pod_dns(&pod(json!({"containers": [], "dnsPolicy": "ClusterFirst"})), &c);
        assert!(first.lacks_cluster_dns);
        assert_eq!(first.dns.servers, ["9.9.9.9"], "falls back to the node's");
    }
}
