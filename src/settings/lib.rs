//! The cluster settings that every node receives from its servers: one type for the server's
//! configuration, the join response, the network and the kubelet.

pub mod addr;
mod address_pool;
mod backend;
mod overlay;
mod trusted_proxies;

use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};

pub use addr::{BadCidr, Cidr, Family};
pub use address_pool::{AddressPool, AddressRange, POOL_MAX, PoolError};
pub use backend::{Backend, BadBackend};
pub use overlay::{OverlaySettings, vxlan_link_prefix};
pub use trusted_proxies::TrustedProxies;

/// The settings of a cluster. A server has them from its flags; an agent receives them when it
/// joins and stores them for starts without a server.
///
/// The JSON is part of the join protocol: a new field needs `#[serde(default)]` with the value of a
/// cluster that does not send it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ClusterSettings {
    /// Ranges of pod addresses (`--cluster-cidr`), one per family.
    pub cluster_cidrs: Vec<Cidr>,
    /// Ranges of Service addresses (`--service-cidr`), one per family.
    pub service_cidrs: Vec<Cidr>,
    /// Addresses of the cluster DNS, one per family; empty if it is disabled.
    pub cluster_dns: Vec<IpAddr>,
    /// DNS domain of the cluster, such as `cluster.local`.
    pub cluster_domain: String,
    /// Whether nodes run the service proxy.
    pub proxy: bool,
    /// Whether nodes enforce network policies.
    #[serde(default)]
    pub network_policies: bool,
    /// The overlay backend, unless a node's own flag overrides it.
    #[serde(default)]
    pub backend: Backend,
    /// The overlay's links, unless a node's own `--flannel-conf` overrides them.
    #[serde(default, skip_serializing_if = "OverlaySettings::is_default")]
    pub overlay: OverlaySettings,
    /// Whether nodes reach each other in the overlay by their external addresses
    /// (`--flannel-external-ip`).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub external_overlay: bool,
    /// Whether an external cloud controller initializes the nodes (`--disable-cloud-controller`).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub external_cloud: bool,
    /// Whether `--disable=servicelb` leaves Services of type LoadBalancer to others. It concerns
    /// servers alone.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub no_service_lb: bool,
    /// Addresses that Services of type LoadBalancer get (`--lb-pool`); one node holds each.
    #[serde(default, skip_serializing_if = "AddressPool::is_empty")]
    pub lb_pool: AddressPool,
    /// MTU of pods in bytes; if absent, each node derives it from the MTU of its own link.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_mtu: Option<u32>,
    /// Whether nodes pull images from each other.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub embedded_registry: bool,
    /// Whether nodes also serve their metrics at the port of the servers (`--supervisor-metrics`).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub supervisor_metrics: bool,
    /// Whether nodes serve Ingresses.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub ingress: bool,
    /// The proxies in front of the ingress.
    #[serde(default, skip_serializing_if = "TrustedProxies::is_empty")]
    pub ingress_proxies: TrustedProxies,
    /// The registry for the pause image and for the names of imported images, if one is set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub system_default_registry: Option<String>,
    /// Addresses of the servers' API, `host:port`.
    #[serde(default)]
    pub servers: Vec<String>,
    /// The port on which servers listen, if it is not the advertised one in `servers`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub listen_port: Option<u16>,
}

/// Settings without ranges, DNS and servers, in which all components are enabled. The default of a
/// field that is missing in the JSON is at the field and may differ.
impl Default for ClusterSettings {
    fn default() -> Self {
        Self {
            cluster_cidrs: Vec::new(),
            service_cidrs: Vec::new(),
            cluster_dns: Vec::new(),
            cluster_domain: "cluster.local".into(),
            proxy: true,
            network_policies: true,
            backend: Backend::default(),
            overlay: OverlaySettings::default(),
            external_overlay: false,
            external_cloud: false,
            no_service_lb: false,
            lb_pool: AddressPool::default(),
            pod_mtu: None,
            embedded_registry: false,
            supervisor_metrics: false,
            ingress: true,
            ingress_proxies: TrustedProxies::default(),
            system_default_registry: None,
            servers: Vec::new(),
            listen_port: None,
        }
    }
}

impl ClusterSettings {
    /// What is reached without a proxy, in the form of `NO_PROXY`: pods, Services and names of the
    /// cluster, as in k3s.
    pub fn no_proxy(&self) -> Vec<String> {
        let ranges = self.cluster_cidrs.iter().chain(&self.service_cidrs);
        let mut all: Vec<String> = ranges.map(ToString::to_string).collect();
        all.extend([".svc".to_owned(), format!(".{}", self.cluster_domain)]);
        all
    }

    /// The names of the fields that differ, in the words of log messages. `servers` is not
    /// compared: a running node applies its changes, while all other fields need a restart.
    /// `listen_port` concerns the rules of `--profile=hardened` only, and servers may differ in it.
    pub fn differences(&self, other: &Self) -> Vec<&'static str> {
        let all = [
            ("pod ranges", self.cluster_cidrs != other.cluster_cidrs),
            ("service ranges", self.service_cidrs != other.service_cidrs),
            ("addresses of cluster DNS", self.cluster_dns != other.cluster_dns),
            ("cluster domain", self.cluster_domain != other.cluster_domain),
            ("service proxy", self.proxy != other.proxy),
            ("network policies", self.network_policies != other.network_policies),
            ("overlay", self.backend != other.backend),
            ("links of the overlay", self.overlay != other.overlay),
            ("addresses of the overlay", self.external_overlay != other.external_overlay),
            ("cloud controller", self.external_cloud != other.external_cloud),
            ("pool of virtual addresses", self.lb_pool != other.lb_pool),
            ("MTU of pods", self.pod_mtu != other.pod_mtu),
            ("ingress", self.ingress != other.ingress),
            ("proxies in front of the ingress", self.ingress_proxies != other.ingress_proxies),
            ("embedded registry", self.embedded_registry != other.embedded_registry),
            ("supervisor metrics", self.supervisor_metrics != other.supervisor_metrics),
            (
                "system default registry",
                self.system_default_registry != other.system_default_registry,
            ),
        ];
        all.into_iter().filter(|(_, differs)| *differs).map(|(name, _)| name).collect()
    }

    /// As [`Self::differences`], with the settings that have to agree between servers alone.
    pub fn server_differences(&self, other: &Self) -> Vec<&'static str> {
        let mut all = self.differences(other);
        if self.no_service_lb != other.no_service_lb {
            all.push("ServiceLB");
        }
        all
    }

    /// The advertised ports of the servers whose address is an IP address, without those with a
    /// host name, and the port on which they listen.
    pub fn api_ports(&self) -> Vec<u16> {
        let addresses = self.servers.iter().filter_map(|server| server.parse::<SocketAddr>().ok());
        addresses.map(|address| address.port()).chain(self.listen_port).collect()
    }

    /// The address families of pods, IPv4 first.
    pub fn families(&self) -> Vec<Family> {
        let has = |family: &Family| self.cluster_cidrs.iter().any(|cidr| cidr.family() == *family);
        Family::ALL.into_iter().filter(has).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The JSON of a server of version 0.1.0, which sends an empty backend and no network policies.
    #[test]
    fn the_cluster_is_reached_without_a_proxy() {
        let cluster = ClusterSettings {
            cluster_cidrs: vec!["10.42.0.0/16".parse().unwrap()],
            service_cidrs: vec!["10.43.0.0/16".parse().unwrap()],
            ..ClusterSettings::default()
        };
        let direct = cluster.no_proxy();
        assert_eq!(direct, ["10.42.0.0/16", "10.43.0.0/16", ".svc", ".cluster.local"]);
    }

    #[test]
    fn fields_that_an_older_server_does_not_send_have_defaults() {
        let text = r#"{"clusterCidrs":["10.42.0.0/16"],"serviceCidrs":["10.43.0.0/16"],
            "clusterDns":["10.43.0.10"],"clusterDomain":"cluster.local","proxy":true,"backend":"",
            "servers":["192.0.2.1:6443","name:6443"]}"#;
        let settings: ClusterSettings = serde_json::from_str(text).unwrap();
        assert!(!settings.network_policies);
        assert_eq!(settings.backend, Backend::Auto);
        assert_eq!(settings.api_ports(), [6443]);
        assert_eq!(settings.families(), [Family::V4]);
    }

    #[test]
    fn settings_are_equal_after_json_and_differences_name_the_changed_fields() {
        let settings = ClusterSettings {
            cluster_cidrs: vec!["10.42.0.0/16".parse().unwrap()],
            service_cidrs: vec!["10.43.0.0/16".parse().unwrap()],
            cluster_dns: vec!["10.43.0.10".parse().unwrap()],
            backend: Backend::HostGateway,
            servers: vec!["192.0.2.1:6443".into()],
            ..ClusterSettings::default()
        };
        let text = serde_json::to_string(&settings).unwrap();
        assert_eq!(
            text,
            r#"{"clusterCidrs":["10.42.0.0/16"],"serviceCidrs":["10.43.0.0/16"],"clusterDns":["10.43.0.10"],"clusterDomain":"cluster.local","proxy":true,"networkPolicies":true,"backend":"host-gw","ingress":true,"servers":["192.0.2.1:6443"]}"#
        );
        assert_eq!(serde_json::from_str::<ClusterSettings>(&text).unwrap(), settings);
        let mut other = settings.clone();
        other.servers.clear();
        assert_eq!(settings.differences(&other), [""; 0]);
        other.proxy = false;
        assert_eq!(settings.differences(&other), ["service proxy"]);
        other.no_service_lb = true;
        assert_eq!(settings.differences(&other), ["service proxy"]);
        assert_eq!(settings.server_differences(&other), ["service proxy", "ServiceLB"]);
        let narrow = ClusterSettings { pod_mtu: Some(1400), ..settings.clone() };
        let text = serde_json::to_string(&narrow).unwrap();
        assert_eq!(serde_json::from_str::<ClusterSettings>(&text).unwrap(), narrow);
        assert_eq!(settings.differences(&narrow), ["MTU of pods"]);
        let vxlan = ClusterSettings {
            overlay: OverlaySettings { vxlan_port: 4789, ..OverlaySettings::default() },
            external_overlay: true,
            listen_port: Some(7443),
            ..settings.clone()
        };
        let text = serde_json::to_string(&vxlan).unwrap();
        assert_eq!(serde_json::from_str::<ClusterSettings>(&text).unwrap(), vxlan);
        let differences = settings.differences(&vxlan);
        assert_eq!(differences, ["links of the overlay", "addresses of the overlay"]);
        assert_eq!(vxlan.api_ports(), [6443, 7443]);
        let shared = ClusterSettings {
            embedded_registry: true,
            system_default_registry: Some("r.io:5000".into()),
            ..settings.clone()
        };
        let text = serde_json::to_string(&shared).unwrap();
        assert_eq!(serde_json::from_str::<ClusterSettings>(&text).unwrap(), shared);
        let differences = settings.differences(&shared);
        assert_eq!(differences, ["embedded registry", "system default registry"]);
    }
}
