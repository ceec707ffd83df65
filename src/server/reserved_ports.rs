//! The ports on which kube-lite itself listens on nodes: a Service of type LoadBalancer on one of
//! them would redirect the cluster's own traffic to its pods.

use std::net::SocketAddr;

use controllers::{PortKey, Protocol, ReservedPort};

use crate::server::config::Config;

/// The store's client port; its address is configurable, so the usual port is reserved always.
const STORE_PORT: u16 = 2379;
/// Default of `--proxy-healthz-port`: other nodes may have another one than this server.
const PROXY_HEALTHZ_PORT: u16 = 10256;

/// The reserved ports of this configuration. A kubelet's port is in its Node object instead. The
/// ports of servers are reserved on agents as well: an agent may become a server.
pub(crate) fn reserved_ports(config: &Config) -> Vec<ReservedPort> {
    let mut all = Vec::new();
    let mut reserve = |protocol, number, purpose| {
        let port = PortKey { protocol, number };
        if number != 0 && !all.iter().any(|known: &ReservedPort| known.port == port) {
            all.push(ReservedPort { port, purpose });
        }
    };
    let mut tcp = |number, purpose| reserve(Protocol::Tcp, number, purpose);
    tcp(config.listen.port(), "the API server");
    if let Some(port) = config.advertise_port {
        tcp(port, "the API server");
    }
    tcp(config.peer_port, "the store");
    tcp(STORE_PORT, "the store");
    let outside = |address: &&SocketAddr| !address.ip().is_loopback();
    for address in config.etcd_listen.iter().chain(&config.etcd_metrics_listen).filter(outside) {
        tcp(address.port(), "the store");
    }
    tcp(PROXY_HEALTHZ_PORT, "the health check of the service proxy");
    if let Some(port) = config.machine.proxy_healthz_port() {
        tcp(port, "the health check of the service proxy");
    }
    if let Some(port) = config.machine.proxy_metrics_port() {
        tcp(port, "the metrics of the service proxy");
    }
    if config.cluster.ingress {
        tcp(ingress::HTTP_PORT, "the ingress");
        tcp(ingress::HTTPS_PORT, "the ingress");
    }
    let (backend, overlay) = (config.cluster.backend, &config.cluster.overlay);
    if backend.tunnels() {
        reserve(Protocol::Udp, overlay.vxlan_port, "the overlay network");
    }
    if backend.encrypts() {
        for port in [overlay.wireguard_port_v4, overlay.wireguard_port_v6] {
            reserve(Protocol::Udp, port, "the overlay network");
        }
    }
    all
}
