//! This machine as a node: what its flags say, and how the pod network and the node agent are started from them.

mod excluded_endpoints;
mod flags;
mod name;

use std::collections::BTreeMap;
use std::fs::{File, TryLockError};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use api::k8s::api::core::v1::Taint;
use base::{Kind, Tasks};
use client::Client;
use settings::ClusterSettings;
use tokio::sync::watch;

use crate::command_line::{GeneralArgs, Locations, NodeArgs};
use crate::error_catalogue::{
    BAD_VALUE, DATA_DIR, DATA_DIR_LOCKED, Entry, NO_WIREGUARD, NODE_RUNS, PORT_IN_USE, Refusal,
};
use crate::preflight::{self, Finding, Programs, Verdict};

/// Where the store is served where it is, and where servers hear each other, unless flags say otherwise.
const STORE_PORT: u16 = 2379;
const PEER_PORT: u16 = 2380;

/// The version of this program, as nodes report it.
pub(crate) const VERSION: &str = concat!("v1.37.1+kubelite.", env!("CARGO_PKG_VERSION"));

/// Takes the lock that lets one process work on a directory, for as long as the file is kept.
///
/// # Errors
/// Another one has it, or the file cannot be made.
pub(crate) fn lock(path: &Path) -> Result<File, Refusal> {
    let named = |e: std::io::Error| DATA_DIR.refuse(format!("{}: {e}", path.display()));
    let file = File::options().create(true).append(true).open(path).map_err(named)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => {
            Err(DATA_DIR_LOCKED.refuse(format!("{} is in use", path.display())))
        }
        Err(TryLockError::Error(error)) => Err(named(error)),
    }
}

/// What flags say about this machine, checked.
#[derive(Debug, Clone)]
pub struct Machine {
    /// Root of all data.
    pub data_dir: PathBuf,
    /// Node name.
    pub node_name: String,
    /// Node addresses, at least one.
    pub node_ips: Vec<IpAddr>,
    /// How pods of other nodes are reached, where the flags say it.
    pub backend: Option<settings::Backend>,
    /// Where the API and the node listen.
    pub listen: IpAddr,
    /// Labels of the node.
    pub labels: BTreeMap<String, String>,
    /// Taints of the node.
    pub taints: Vec<Taint>,
    /// Paths, names and ports as given.
    pub args: NodeArgs,
    /// How the node's pods end when the machine is switched off.
    pub power: node::MachineShutdown,
    /// The time they get then.
    pub shutdown_grace: node::ShutdownGracePeriod,
    /// What is known of registries at the start.
    registries: node::runtime::registries::Registries,
    /// `PATH`.
    pub path: String,
    /// Settings that were given and change nothing, with the reason.
    pub without_effect: Vec<String>,
}

/// Clients of the two parts.
pub(crate) struct Clients {
    /// Acts as `system:node:<name>`.
    pub(crate) node: Client,
    /// Acts as `system:kube-proxy`.
    pub(crate) network: Client,
    /// Whether a server answers; nobody tells any more where it is this process.
    pub(crate) answering: watch::Receiver<bool>,
}

/// What one node alone has on a machine: the run directory, until this is dropped, and the port of
/// the kubelet API.
#[derive(Debug)]
pub(crate) struct NodeClaim {
    kubelet: Arc<std::net::TcpListener>,
    _run_dir: File,
}

fn bad(flag: &str, value: impl std::fmt::Display, why: impl std::fmt::Display) -> Refusal {
    BAD_VALUE.refuse_usage(format!("--{flag}={value}: {why}"))
}

/// Why a text cannot be the name of a Node: that is a DNS-1123 subdomain which is also the value of the
/// label `kubernetes.io/hostname`, so it has at most 63 characters.
pub(crate) fn node_name_fault(name: &str) -> Option<&'static str> {
    let is_edge = |c: Option<char>| c.is_some_and(|c| c.is_ascii_lowercase() || c.is_ascii_digit());
    let label = |l: &str| is_edge(l.chars().next()) && is_edge(l.chars().next_back());
    let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '.');
    if name.is_empty() {
        Some("must not be empty")
    } else if !name.chars().all(inner) {
        Some("must be lower-case letters, digits, '-' and '.'")
    } else if name.len() > 63 {
        Some("must be no more than 63 characters")
    } else if !name.split('.').all(label) {
        Some("each part between dots must start and end with a letter or digit")
    } else {
        None
    }
}

/// The address that a packet to the outside would carry: no packet is sent.
fn default_route_address() -> Option<IpAddr> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).ok()?;
    socket.connect((Ipv4Addr::new(192, 0, 2, 1), 9)).ok()?;
    socket.local_addr().ok().map(|a| a.ip()).filter(|ip| !ip.is_unspecified() && !ip.is_loopback())
}

/// The first address of an interface that is up, loopback last.
fn interface_address() -> IpAddr {
    let addresses = nix::ifaddrs::getifaddrs().into_iter().flatten();
    let v4 = addresses.filter_map(|a| {
        a.address.as_ref().and_then(|s| s.as_sockaddr_in().map(|s| IpAddr::V4(s.ip())))
    });
    v4.into_iter().find(|ip| !ip.is_loopback()).unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST))
}

/// All addresses means those of both families, as upstream's servers take it; a node without IPv6 is spared the mapped form.
fn listen_ip(given: IpAddr, node_ips: &[IpAddr]) -> IpAddr {
    let all = given.is_unspecified() && node_ips.iter().any(IpAddr::is_ipv6);
    if all { IpAddr::V6(Ipv6Addr::UNSPECIFIED) } else { given }
}

/// Name of this machine, as the name of its node.
pub fn host_name() -> String {
    let name = nix::unistd::gethostname().map(|name| name.to_string_lossy().to_lowercase());
    name.unwrap_or_else(|_| "localhost".into())
}

impl Machine {
    /// Checks the flags.
    ///
    /// # Errors
    /// The first flag that does not make sense, by name.
    pub fn new(
        general: &GeneralArgs,
        args: NodeArgs,
        locations: &Locations,
    ) -> Result<Self, Refusal> {
        let node_name = match &args.node_name {
            Some(name) => name.clone(),
            None => host_name(),
        };
        if let Some(why) = node_name_fault(&node_name) {
            return Err(match &args.node_name {
                Some(name) => bad("node-name", name, why),
                None => BAD_VALUE.refuse_usage(format!(
                    "the host name {node_name} cannot name a node: {why}; give --node-name=NAME"
                )),
            });
        }
        let node_ips = if args.node_ip.is_empty() {
            vec![default_route_address().unwrap_or_else(interface_address)]
        } else {
            args.node_ip.clone()
        };
        if args.grouped_shims && args.container_runtime_endpoint.is_some() {
            let why = "needs kube-lite's own containerd, but --container-runtime-endpoint names another runtime";
            return Err(bad("grouped-shims", "true", why));
        }
        let backend = match &args.flannel_backend {
            Some(text) => Some(text.parse().map_err(|e| bad("flannel-backend", text, e))?),
            None => None,
        };
        let data_dir = general.data_dir.clone().unwrap_or_else(|| locations.data.clone());
        if !data_dir.is_absolute() {
            return Err(bad("data-dir", data_dir.display(), "must be an absolute path"));
        }
        let registries = node::runtime::registries::load(&args.private_registry)
            .map_err(|e| bad("private-registry", args.private_registry.display(), e))?
            .without_default(args.disable_default_registry_endpoint);
        if args.container_runtime_endpoint.is_some()
            && registries != node::runtime::registries::Registries::default()
        {
            let why = "is about the own containerd, and --container-runtime-endpoint names another: configure that one";
            return Err(bad("private-registry", args.private_registry.display(), why));
        }
        Ok(Self {
            registries,
            listen: listen_ip(args.bind_address, &node_ips),
            labels: flags::labels(&args.node_label)?,
            taints: flags::taints(&args.node_taint)?,
            path: locations.path.clone(),
            without_effect: general.without_effect.clone(),
            power: node::MachineShutdown::default(),
            shutdown_grace: flags::shutdown_grace(&args)?,
            data_dir,
            node_name,
            node_ips,
            backend,
            args,
        })
    }

    /// Stricter defaults than upstream's hold.
    pub(crate) fn hardened(&self) -> bool {
        self.args.profile.is_some()
    }

    /// The first of the node's addresses.
    pub fn ip(&self) -> IpAddr {
        self.node_ips.first().copied().unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST))
    }

    /// Where the node keeps its things.
    pub(crate) fn directory(&self) -> PathBuf {
        self.data_dir.join("agent")
    }

    /// Checks that this machine can be a node; before anything is touched.
    ///
    /// # Errors
    /// The first thing that is missing.
    pub(crate) fn check(&self) -> Result<(), Refusal> {
        self.check_but(&[])
    }

    /// As [`Machine::check`], without these findings.
    ///
    /// # Errors
    /// The first thing that is missing.
    pub(crate) fn check_but(&self, spared: &[Entry]) -> Result<(), Refusal> {
        let pods = self.args.kubelet_root_dir.join("pods");
        name::check(&self.directory(), &pods, &self.node_name)?;
        let endpoint = self.args.container_runtime_endpoint.as_deref();
        let programs = Programs { bin_dir: self.data_dir.join("bin"), path: self.path.clone() };
        let findings = preflight::check(endpoint, &programs, self.args.protect_kernel_defaults);
        let bad = |f: &Finding| f.verdict == Verdict::Fail && !spared.contains(&f.entry);
        match findings.into_iter().find(bad) {
            Some(found) => Err(found.entry.refuse(found.detail)),
            None => self.check_backend(settings::Backend::default()),
        }
    }

    /// Takes what one node alone has on a machine; before anything outside the data directory changes.
    ///
    /// # Errors
    /// Another node runs here, or another program has the port.
    pub(crate) fn claim(&self) -> Result<NodeClaim, Refusal> {
        let run_dir = &self.args.run_dir;
        base::fs::create_dir(run_dir, 0o711).map_err(|e| DATA_DIR.refuse(e))?;
        let lock = lock(&run_dir.join("lock")).map_err(|refusal| {
            if refusal.entry != DATA_DIR_LOCKED {
                return refusal;
            }
            NODE_RUNS.refuse(format!("its run directory is {}", run_dir.display()))
        })?;
        let address = SocketAddr::new(self.listen, self.args.kubelet_port);
        let kubelet = std::net::TcpListener::bind(address).and_then(|listener| {
            listener.set_nonblocking(true)?;
            Ok(listener)
        });
        let kubelet = kubelet.map_err(|e| {
            PORT_IN_USE.refuse(format!("cannot listen on {address} for the kubelet API: {e}"))
        })?;
        Ok(NodeClaim { kubelet: Arc::new(kubelet), _run_dir: lock })
    }

    /// The socket on which the network plugin reaches this process; `None` where another plugin connects pods. `told` is
    /// the cluster's backend, which this node's own flag overrides.
    pub(crate) fn plugin_socket(&self, told: settings::Backend) -> Option<PathBuf> {
        (self.backend.unwrap_or(told) != settings::Backend::None).then(|| self.socket_path())
    }

    fn socket_path(&self) -> PathBuf {
        self.args.run_dir.join("cni.sock")
    }

    /// Checks that the kernel can do what the flags ask of the overlay, or else what the cluster says.
    ///
    /// # Errors
    /// What the kernel lacks.
    pub(crate) fn check_backend(&self, told: settings::Backend) -> Result<(), Refusal> {
        let backend = self.backend.unwrap_or(told);
        if backend == settings::Backend::None && self.hardened() {
            let why = "contradicts --profile=hardened, whose network rules hold in kube-lite's own pod network only";
            return Err(bad("flannel-backend", "none", why));
        }
        net::check_support(backend).map_err(|lacks| NO_WIREGUARD.refuse(lacks))
    }

    /// The kubelet API on the port that `claim` holds.
    pub(crate) fn kubelet_api(
        &self,
        claim: &NodeClaim,
        tls: Arc<rustls::ServerConfig>,
    ) -> node::KubeletApiConfig {
        let listener = Arc::clone(&claim.kubelet);
        node::KubeletApiConfig { listener, port: self.args.kubelet_port, tls }
    }

    /// Starts network and node agent, each under its own identity. `runtime` is filled once the container runtime
    /// answers. `addresses` come from [`Machine::addresses`], `kubelet_api` from [`Machine::kubelet_api`].
    pub(crate) fn start(
        &self,
        kubelet_api: node::KubeletApiConfig,
        cluster: &ClusterSettings,
        clients: Clients,
        runtime: Arc<OnceLock<String>>,
        addresses: watch::Sender<Vec<IpAddr>>,
        tasks: &Tasks,
    ) {
        let mut agent = self.agent(cluster);
        agent.kubelet_api = Some(kubelet_api);
        agent.addresses = addresses.subscribe();
        let network = self.network(cluster, addresses);
        if let Err(refusal) = name::remember(&self.directory(), &self.node_name) {
            tasks.stop_with(&refusal.to_string());
        }
        excluded_endpoints::follow(
            &agent.not_ready_pods,
            clients.answering,
            network.left_out.clone(),
            tasks,
        );
        let network = net::run(network, clients.network, clients.node.clone(), tasks.clone());
        tasks.spawn(Kind::Critical, "network", network);
        agent.runtime_description = runtime;
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
    }

    /// The addresses of the node: all parts read them here, and the network tells when the machine gets others.
    pub(crate) fn addresses(&self) -> watch::Sender<Vec<IpAddr>> {
        watch::Sender::new(self.node_ips.clone())
    }

    /// What pods do not reach under `--profile=hardened`: kubelets, the store and its other members; the API is reached
    /// through its Service.
    fn guard(&self, cluster: &ClusterSettings) -> net::Guard {
        net::Guard {
            closed: vec![self.args.kubelet_port, STORE_PORT, PEER_PORT],
            by_service: cluster.api_ports(),
        }
    }

    fn network(
        &self,
        cluster: &ClusterSettings,
        addresses: watch::Sender<Vec<IpAddr>>,
    ) -> net::Config {
        let args = &self.args;
        net::Config {
            node_name: self.node_name.clone(),
            cluster: ClusterSettings {
                backend: self.backend.unwrap_or(cluster.backend),
                ..cluster.clone()
            },
            addresses,
            left_out: watch::Sender::default(),
            addresses_held: !args.node_ip.is_empty(),
            interface: args.flannel_iface.clone(),
            table: args.nft_table.clone(),
            bridge: args.bridge_name.clone(),
            proxy_healthz: (args.proxy_healthz_port != 0)
                .then(|| SocketAddr::new(self.listen, args.proxy_healthz_port)),
            pod_cidrs: Vec::new(),
            resolv_conf: args.resolv_conf.clone(),
            state_dir: self.directory().join("net"),
            socket: self.socket_path(),
            cni_conf_dir: args.cni_conf_dir.clone(),
            cni_bin_dir: args.cni_bin_dir.clone(),
            mtu: None,
            guard: self.hardened().then(|| self.guard(cluster)),
        }
    }

    fn agent(&self, cluster: &ClusterSettings) -> node::Config {
        let (args, directory) = (&self.args, self.directory());
        let mut agent = node::Config::new(
            &self.node_name,
            self.ip(),
            directory.join("containerd"),
            args.run_dir.join("containerd"),
        );
        agent.labels.clone_from(&self.labels);
        agent.taints.clone_from(&self.taints);
        agent.machine_shutdown = self.power.clone();
        agent.shutdown_grace = self.shutdown_grace;
        agent.version = VERSION.to_owned();
        agent.root_dir.clone_from(&args.kubelet_root_dir);
        agent.local_storage_dir = args
            .default_local_storage_path
            .clone()
            .unwrap_or_else(|| self.data_dir.join("storage"));
        agent.system_logs_dir.clone_from(&args.log_dir);
        agent.pod_logs_dir = args.log_dir.join("pods");
        agent.container_logs_dir = args.log_dir.join("containers");
        agent.manifest_dirs =
            vec!["/etc/kubernetes/manifests".into(), directory.join("pod-manifests")];
        agent.cgroup_root.clone_from(&args.cgroup_root);
        agent.cluster_dns.clone_from(&cluster.cluster_dns);
        agent.cluster_domain.clone_from(&cluster.cluster_domain);
        agent.resolv_conf.clone_from(&args.resolv_conf);
        agent.runtime.endpoint = args
            .container_runtime_endpoint
            .as_deref()
            .map(|e| e.trim_start_matches("unix://").into());
        agent.runtime.grouped_shims = args.grouped_shims;
        agent.hardened = self.hardened();
        agent.runtime.short_streams = self.hardened();
        agent.runtime.registries.clone_from(&self.registries);
        agent.runtime.registries_file = Some(args.private_registry.clone());
        agent.runtime.images_dir = directory.join("images");
        agent.runtime.bin_dirs = vec![self.data_dir.join("bin")];
        agent.runtime.path.clone_from(&self.path);
        agent.runtime.cni_conf_dir.clone_from(&args.cni_conf_dir);
        agent.runtime.cni_bin_dir.clone_from(&args.cni_bin_dir);
        agent
    }
}
