//! The configurations of the parts of a node, from the settings of the machine.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use settings::ClusterSettings;
use tokio::sync::watch;

use super::{Machine, PEER_PORT, STORE_PORT, VERSION, images};

impl Machine {
    /// What pods cannot reach under `--profile=hardened`: kubelets, the store and its members. They
    /// reach the API through its Service only.
    fn guard(&self, cluster: &ClusterSettings) -> net::Guard {
        net::Guard {
            closed: vec![self.args.kubelet_port, STORE_PORT, PEER_PORT],
            by_service: cluster.api_ports(),
        }
    }

    /// The configuration of the ingress.
    pub(super) fn ingress(&self, cluster: &ClusterSettings) -> ingress::Config {
        ingress::Config {
            http: SocketAddr::new(self.listen, ingress::HTTP_PORT),
            https: SocketAddr::new(self.listen, ingress::HTTPS_PORT),
            proxies: Arc::new(cluster.ingress_proxies.clone()),
            handover: self.data_dir.join("agent/ingress-sockets"),
        }
    }

    /// The configuration of the network.
    pub(super) fn network(
        &self,
        cluster: &ClusterSettings,
        addresses: watch::Sender<Vec<IpAddr>>,
    ) -> net::Config {
        let args = &self.args;
        let mut cluster = cluster.clone();
        self.apply_overlay(&mut cluster);
        let external = args.addresses.node_external_ip.clone();
        net::Config {
            node_name: self.node_name.clone(),
            external_addresses: if cluster.external_overlay { external } else { Vec::new() },
            cni_list: self.flannel.cni_list.clone(),
            guard: self.is_hardened().then(|| self.guard(&cluster)),
            cluster,
            addresses,
            left_out: watch::Sender::default(),
            virtual_addresses: None,
            api_vip: None,
            addresses_held: !args.node_ip.is_empty(),
            interface: args.flannel_iface.clone(),
            table: args.nft_table.clone(),
            bridge: args.bridge_name.clone(),
            localhost_node_ports: self.localhost_node_ports,
            proxy_healthz: self.proxy_healthz,
            proxy_metrics: self.proxy_metrics,
            pod_cidrs: Vec::new(),
            resolv_conf: args.resolv_conf.clone(),
            dns: self.dns.clone(),
            state_dir: self.directory().join("net"),
            socket: self.socket_path(),
            cni_conf_dir: args.cni_conf_dir.clone(),
            cni_bin_dir: args.cni_bin_dir.clone(),
            dropped_packets: net::DroppedPackets::default(),
        }
    }

    /// The configuration of the node agent.
    pub(super) fn agent(&self, cluster: &ClusterSettings) -> node::Config {
        let (args, directory) = (&self.args, self.directory());
        let mut agent = node::Config::new(
            &self.node_name,
            self.ip(),
            directory.join("containerd"),
            args.run_dir.join("containerd"),
        );
        agent.labels.clone_from(&self.labels);
        agent.taints.clone_from(&self.taints);
        agent.external_ips.clone_from(&args.addresses.node_external_ip);
        agent.internal_dns.clone_from(&args.addresses.node_internal_dns);
        agent.external_dns.clone_from(&args.addresses.node_external_dns);
        agent.addresses_are_set = !args.node_ip.is_empty();
        agent.external_cloud = cluster.external_cloud || self.kubelet.external_cloud;
        if !agent.external_cloud {
            agent.provider_id = format!("kube-lite://{}", self.node_name);
            agent.instance_type = "kube-lite".to_owned();
        }
        self.kubelet.apply(&mut agent);
        agent.devices.clone_from(&self.devices);
        agent.credential_providers.clone_from(&self.credential_providers);
        agent.machine_shutdown = self.power.clone();
        agent.resource_usage = self.resource_usage.clone();
        agent.shutdown_grace.clone_from(&self.shutdown_grace);
        agent.version = VERSION.to_owned();
        agent.flags = Arc::clone(&self.flags);
        agent.root_dir.clone_from(&args.kubelet_root_dir);
        agent.local_storage_dir = self.local_storage_path();
        agent.local_storage_is_set = self.is_agent && self.has_own_storage;
        agent.local_volume_records = directory.join("local-volumes");
        agent.system_logs_dir.clone_from(&args.log_dir);
        agent.pod_logs_dir = args.log_dir.join("pods");
        agent.container_logs_dir = args.log_dir.join("containers");
        agent.manifest_dirs =
            vec!["/etc/kubernetes/manifests".into(), directory.join("pod-manifests")];
        agent.cgroup_root.clone_from(&args.cgroup_root);
        agent.cluster_dns.clone_from(&cluster.cluster_dns);
        agent.cluster_domain.clone_from(&cluster.cluster_domain);
        agent.resolv_conf.clone_from(&args.resolv_conf);
        agent.runtime.endpoint = args.container_runtime_endpoint.as_deref().map(images::socket);
        agent.runtime.grouped_shims = args.grouped_shims;
        agent.hardened = self.is_hardened();
        agent.runtime.short_streams = self.is_hardened();
        self.images.apply(&mut agent.runtime, args, cluster);
        agent.runtime.images_dir = directory.join("images");
        agent.runtime.templates_dir = directory.join("etc/containerd");
        agent.runtime.bin_dirs = vec![self.data_dir.join("bin")];
        agent.runtime.path.clone_from(&self.path);
        agent.runtime.cni_conf_dir.clone_from(&args.cni_conf_dir);
        agent.runtime.cni_bin_dir.clone_from(&args.cni_bin_dir);
        agent
    }
}
