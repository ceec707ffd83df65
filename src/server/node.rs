//! This machine as a node: the pod network and the node agent, as user `system:node:<name>`.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};

use api::k8s::api::core::v1::Taint;
use base::pki::live::LiveCert;
use base::pki::tls;
use base::{Kind, Tasks};
use client::Client;

use crate::catalogue::{BAD_VALUE, DATA_DIR, Refusal};
use crate::preflight::{self, Verdict};
use crate::server::config::Config;
use crate::server::control_plane::ControlPlane;
use crate::server::renewal::NodeCert;

/// Checks that this machine can be a node; before anything is touched.
///
/// # Errors
/// The first thing that is missing.
pub(crate) fn check(config: &Config) -> Result<(), Refusal> {
    let findings =
        preflight::check(config.args.container_runtime_endpoint.as_deref(), &config.path);
    match findings.into_iter().find(|f| f.verdict == Verdict::Fail) {
        Some(found) => Err(found.entry.refuse(found.detail)),
        None => {
            labels(config)?;
            taints(config).map(drop)
        }
    }
}

fn labels(config: &Config) -> Result<BTreeMap<String, String>, Refusal> {
    let parse = |text: &String| {
        let pair = text.split_once('=').filter(|(key, _)| !key.is_empty());
        let (key, value) = pair.ok_or_else(|| {
            BAD_VALUE.refuse_usage(format!("--node-label={text}: must be KEY=VALUE"))
        })?;
        Ok((key.to_owned(), value.to_owned()))
    };
    config.args.node_label.iter().map(parse).collect()
}

fn taints(config: &Config) -> Result<Vec<Taint>, Refusal> {
    let parse = |text: &String| {
        let bad = || {
            BAD_VALUE.refuse_usage(format!("--node-taint={text}: must be KEY=VALUE:EFFECT with NoSchedule, PreferNoSchedule or NoExecute"))
        };
        let (left, effect) = text.rsplit_once(':').ok_or_else(bad)?;
        if !matches!(effect, "NoSchedule" | "PreferNoSchedule" | "NoExecute") {
            return Err(bad());
        }
        let (key, value) = left.split_once('=').unwrap_or((left, ""));
        let value = (!value.is_empty()).then(|| value.to_owned());
        Ok(Taint { key: key.to_owned(), value, effect: effect.to_owned(), time_added: None })
    };
    config.args.node_taint.iter().map(parse).collect()
}

/// Clients of the two parts.
pub(crate) struct Clients {
    /// Acts as `system:node:<name>`.
    pub(crate) node: Client,
    /// Acts as `system:kube-proxy`.
    pub(crate) network: Client,
}

/// Starts network and node agent, each under its own identity; the certificate that has to be renewed some day.
///
/// # Errors
/// A flag that does not make sense, or certificates that cannot be made.
pub(crate) fn start(
    config: &Config,
    plane: &ControlPlane,
    clients: Clients,
    runtime: Arc<OnceLock<String>>,
    tasks: &Tasks,
) -> Result<NodeCert, Refusal> {
    let network = network(config);
    tasks.spawn(Kind::Critical, "network", net::run(network, clients.network, tasks.clone()));
    let (mut agent, cert) = agent(config, plane)?;
    agent.runtime_shown = runtime;
    // The agent returns once the runtime answers; its tasks go on.
    tasks.spawn(Kind::Request, "node-start", {
        let tasks = tasks.clone();
        async move {
            let outcome = node::run(agent, clients.node, tasks.clone()).await;
            if let Err(error) = outcome {
                if !tasks.shutdown().is_requested() {
                    tasks.stop_with(&format!("node: {error}"));
                }
            }
            Ok::<(), std::convert::Infallible>(())
        }
    });
    Ok(cert)
}

fn network(config: &Config) -> net::Config {
    net::Config {
        node_name: config.node_name.clone(),
        node_ips: config.node_ips.clone(),
        table: config.args.nft_table.clone(),
        bridge: config.args.bridge_name.clone(),
        cluster_cidrs: config.cluster_cidrs.clone(),
        service_cidrs: config.service_cidrs.clone(),
        proxy: config.proxy,
        proxy_healthz: (config.args.proxy_healthz_port != 0)
            .then(|| SocketAddr::new(config.listen.ip(), config.args.proxy_healthz_port)),
        pod_cidrs: Vec::new(),
        cluster_dns: if config.dns { config.cluster_dns.clone() } else { Vec::new() },
        cluster_domain: config.cluster_domain.clone(),
        resolv_conf: config.args.resolv_conf.clone(),
        state_dir: config.data_dir.join("agent/net"),
        socket: config.args.run_dir.join("cni.sock"),
        cni_conf_dir: config.args.cni_conf_dir.clone(),
        cni_bin_dir: config.args.cni_bin_dir.clone(),
        mtu: None,
    }
}

fn agent(config: &Config, plane: &ControlPlane) -> Result<(node::Config, NodeCert), Refusal> {
    let directory = config.data_dir.join("agent");
    let ip = config.node_ips.first().copied().unwrap_or(config.advertise);
    let certs = plane
        .certs
        .ensure_node(&directory, &config.node_name, &config.node_ips, base::pki::now())
        .map_err(|e| DATA_DIR.refuse(e))?;
    let serving = LiveCert::new(&certs.serving).map_err(|e| DATA_DIR.refuse(e))?;
    let cert = NodeCert {
        live: Arc::clone(&serving),
        directory: directory.clone(),
        not_after: certs.serving.not_after.into(),
    };
    let client_ca = [plane.certs.client_ca().der().clone()];
    let tls = tls::verifying_server(serving, &client_ca, &["http/1.1"])
        .map_err(|e| DATA_DIR.refuse(e))?;
    let args = &config.args;
    let mut agent = node::Config::new(
        &config.node_name,
        ip,
        directory.join("containerd"),
        args.run_dir.join("containerd"),
    );
    agent.node_ips = config.node_ips.clone();
    agent.labels = labels(config)?;
    agent.taints = taints(config)?;
    agent.version = format!("v1.37.1+kubelite.{}", env!("CARGO_PKG_VERSION"));
    agent.root_dir = args.kubelet_root_dir.clone();
    agent.pod_logs_dir = args.log_dir.join("pods");
    agent.container_logs_dir = args.log_dir.join("containers");
    agent.manifest_dirs = vec!["/etc/kubernetes/manifests".into(), directory.join("pod-manifests")];
    agent.cgroup_root.clone_from(&args.cgroup_root);
    agent.cluster_dns = if config.dns { config.cluster_dns.clone() } else { Vec::new() };
    agent.cluster_domain = config.cluster_domain.clone();
    agent.resolv_conf = args.resolv_conf.clone();
    agent.runtime.endpoint =
        args.container_runtime_endpoint.as_deref().map(|e| e.trim_start_matches("unix://").into());
    agent.runtime.grouped_shims = args.grouped_shims;
    agent.runtime.images_dir = directory.join("images");
    agent.runtime.bin_dirs = vec![config.data_dir.join("bin")];
    agent.runtime.path.clone_from(&config.path);
    agent.runtime.cni_conf_dir = args.cni_conf_dir.clone();
    agent.runtime.cni_bin_dir = args.cni_bin_dir.clone();
    agent.http = Some(node::HttpConfig {
        address: config.listen.ip(),
        port: args.kubelet_port,
        tls: Arc::new(tls),
    });
    Ok((agent, cert))
}
