//! This machine as a node: its checked flags, and how they start the pod network and the node
//! agent.

mod component_configs;
mod enforcement_args;
mod eviction_args;
mod excluded_endpoints;
mod flags;
mod flannel;
mod flannel_conf;
mod images;
mod kubelet_args;
mod kubelet_config;
mod kubelet_fields;
mod memory_args;
mod name;
mod network_metrics;
mod node_id;
mod proxy_args;
mod resource_manager_args;
mod shutdown_args;
mod static_pod_args;

use std::collections::BTreeMap;
use std::fs::{File, TryLockError};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use api::k8s::api::core::v1::Taint;
use base::{Kind, Tasks};
use client::{Client, Informers};
use cluster::certs::AdditionalNames;
use settings::ClusterSettings;
use tokio::sync::watch;

use self::flannel::FlannelSettings;
use self::images::ImageConfig;
use self::network_metrics::NetworkMetrics;
use crate::command_line::{GeneralArgs, Locations, NodeArgs};
use crate::error_catalogue::{
    BAD_VALUE, CatalogueEntry, CommandError, DATA_DIR, DATA_DIR_LOCKED, NO_WIREGUARD, NODE_RUNS,
    PORT_IN_USE, invalid_flag,
};
use crate::preflight::{self, Finding, Programs, Verdict};

/// Default ports of the etcd-compatible API and of connections between servers.
const STORE_PORT: u16 = 2379;
const PEER_PORT: u16 = 2380;

/// The folder with files of KubeletConfiguration in the data directory, as in that of k3s.
const KUBELET_DROP_INS: &str = "agent/etc/kubelet.conf.d";

/// The version of this program, as nodes report it.
pub(crate) const VERSION: &str = concat!("v1.37.1+kubelite.", env!("CARGO_PKG_VERSION"));

/// Takes the lock of a directory, until the file is dropped.
///
/// # Errors
/// Another process has the lock, or the file cannot be created.
pub(crate) fn lock(path: &Path) -> Result<File, CommandError> {
    let named = |e: std::io::Error| DATA_DIR.error(format!("{}: {e}", path.display()));
    let file = File::options().create(true).append(true).open(path).map_err(named)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => {
            Err(DATA_DIR_LOCKED.error(format!("{} is in use", path.display())))
        }
        Err(TryLockError::Error(error)) => Err(named(error)),
    }
}

/// The checked flags about this machine as a node.
#[derive(Debug, Clone)]
pub struct Machine {
    /// Root of all data.
    pub data_dir: PathBuf,
    /// Node name.
    pub node_name: String,
    /// Node addresses, at least one.
    pub node_ips: Vec<IpAddr>,
    /// The network between nodes, as far as flags set it.
    flannel: FlannelSettings,
    /// Whether this machine runs no server.
    pub is_agent: bool,
    /// Whether a flag sets the directory of local-path volumes, or the data directory above it.
    has_own_storage: bool,
    /// Address that the API and the node listen on.
    pub listen: IpAddr,
    /// Labels of the node.
    pub labels: BTreeMap<String, String>,
    /// Taints of the node.
    pub taints: Vec<Taint>,
    /// Further flags: paths, names and ports.
    pub args: NodeArgs,
    /// Terminates the pods of the node when the machine shuts down.
    pub power: node::MachineShutdown,
    /// Measures the node, for a server in the same process.
    pub resource_usage: node::ResourceUsage,
    /// How long pods may take to terminate then.
    pub shutdown_grace: node::ShutdownGracePeriod,
    /// Images, registries and runtimes.
    images: ImageConfig,
    /// The variable `PATH`.
    pub path: String,
    /// Devices of this machine that are extended resources.
    devices: Vec<node::DeviceSelection>,
    /// Programs that provide credentials for images.
    credential_providers: Option<node::CredentialProviders>,
    /// The settings of `--kubelet-arg`.
    kubelet: kubelet_args::KubeletSettings,
    /// Whether the service proxy serves node ports at loopback addresses.
    localhost_node_ports: bool,
    /// Address of the service proxy's `/healthz`.
    proxy_healthz: Option<SocketAddr>,
    /// Address of the service proxy's metrics.
    proxy_metrics: Option<SocketAddr>,
    /// Settings without effect, each with the reason.
    pub without_effect: Vec<String>,
    /// The flags in effect without secrets.
    pub(crate) flags: Arc<BTreeMap<String, String>>,
    /// The state of cluster DNS on this node.
    pub(crate) dns: net::DnsState,
}

/// Clients of the two parts of a node.
pub(crate) struct Clients {
    /// Acts as `system:node:<name>`.
    pub(crate) node: Client,
    /// Acts as `system:kube-proxy`.
    pub(crate) network: Client,
    /// Whether a server answers; always true on a server.
    pub(crate) answering: watch::Receiver<bool>,
    /// The servers that grant virtual addresses, and those that the node holds.
    pub(crate) virtual_addresses: net::VirtualAddresses,
    /// The virtual address of the API on a server.
    pub(crate) api_vip: Option<IpAddr>,
}

/// What only one node on a machine can have: the run directory, until this is dropped, and the port
/// of the kubelet API.
#[derive(Debug)]
pub(crate) struct NodeClaim {
    kubelet: Arc<std::net::TcpListener>,
    _run_dir: File,
}

/// Why a text is not a valid name of a Node: a DNS-1123 subdomain of at most 63 characters, since
/// it is also the value of the label `kubernetes.io/hostname`.
pub(crate) fn node_name_error(name: &str) -> Option<&'static str> {
    let is_edge = |c: Option<char>| c.is_some_and(|c| c.is_ascii_lowercase() || c.is_ascii_digit());
    let is_label = |l: &str| is_edge(l.chars().next()) && is_edge(l.chars().next_back());
    let is_inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '.');
    if name.is_empty() {
        Some("must not be empty")
    } else if !name.chars().all(is_inner) {
        Some("must be lower-case letters, digits, '-' and '.'")
    } else if name.len() > 63 {
        Some("must be no more than 63 characters")
    } else if !name.split('.').all(is_label) {
        Some("each part between dots must start and end with a letter or digit")
    } else {
        None
    }
}

/// The source address of packets to the Internet. No packet is sent.
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

/// The address to listen on. `0.0.0.0` means all addresses of both families, as for upstream's
/// servers; only a node with IPv6 listens on `::`, which represents IPv4 clients in mapped form.
fn listen_ip(given: IpAddr, node_ips: &[IpAddr]) -> IpAddr {
    let both_families = given.is_unspecified() && node_ips.iter().any(IpAddr::is_ipv6);
    if both_families { IpAddr::V6(Ipv6Addr::UNSPECIFIED) } else { given }
}

/// Host name of this machine in lower case, the default name of its node.
pub fn host_name() -> String {
    let name = nix::unistd::gethostname().map(|name| name.to_string_lossy().to_lowercase());
    name.unwrap_or_else(|_| "localhost".into())
}

/// The name of the node, with the id that `--with-node-id` appends.
///
/// # Errors
/// The name is invalid, or the id cannot be stored.
fn checked_node_name(args: &NodeArgs, data_dir: &Path) -> Result<String, CommandError> {
    let mut node_name = match &args.node_name {
        Some(name) => name.clone(),
        None => host_name(),
    };
    if args.addresses.with_node_id {
        node_name = format!("{node_name}-{}", node_id::ensure(&data_dir.join("agent"))?);
    }
    if let Some(why) = node_name_error(&node_name) {
        return Err(match &args.node_name {
            Some(name) => invalid_flag("node-name", name, why),
            None => BAD_VALUE.usage_error(format!(
                "the host name {node_name} cannot name a node: {why}; give --node-name=NAME"
            )),
        });
    }
    Ok(node_name)
}

/// The labels and taints of the flags and of the arguments of the kubelet; flags take precedence.
///
/// # Errors
/// The first invalid flag, by name.
fn labels_and_taints(
    args: &NodeArgs,
    kubelet: &kubelet_args::KubeletSettings,
) -> Result<(BTreeMap<String, String>, Vec<Taint>), CommandError> {
    let (mut labels, mut taints) = (kubelet.labels.clone(), kubelet.taints.clone());
    labels.extend(flags::labels(&args.node_label)?);
    let own = flags::taints(&args.node_taint)?;
    taints.retain(|t| !own.iter().any(|o| o.key == t.key && o.effect == t.effect));
    taints.extend(own);
    Ok((labels, taints))
}

impl Machine {
    /// The default directory of local-path volumes.
    pub(crate) fn local_storage_path(&self) -> PathBuf {
        let configured = self.args.default_local_storage_path.clone();
        configured.unwrap_or_else(|| self.data_dir.join("storage"))
    }

    /// Checks the flags.
    ///
    /// # Errors
    /// The first invalid flag, by name.
    pub fn new(
        general: &GeneralArgs,
        mut args: NodeArgs,
        locations: &Locations,
    ) -> Result<Self, CommandError> {
        let data_dir = general.data_dir.clone().unwrap_or_else(|| locations.data.clone());
        if !data_dir.is_absolute() {
            return Err(invalid_flag("data-dir", data_dir.display(), "must be an absolute path"));
        }
        let drop_ins = data_dir.join(KUBELET_DROP_INS);
        let mut kubelet = kubelet_args::parse(&args.components.kubelet_arg, &drop_ins)?;
        args.protect_kernel_defaults |= kubelet.protect_kernel_defaults;
        if let Some(path) = kubelet.resolv_conf.take() {
            args.resolv_conf = path;
        }
        if let Some(path) = kubelet.root_dir.take() {
            args.kubelet_root_dir = path;
        }
        let node_name = checked_node_name(&args, &data_dir)?;
        let node_ips = if args.node_ip.is_empty() {
            vec![default_route_address().unwrap_or_else(interface_address)]
        } else {
            args.node_ip.clone()
        };
        let mut flannel = FlannelSettings::load(&args)?;
        flags::dns_names("node-internal-dns", &args.addresses.node_internal_dns)?;
        flags::dns_names("node-external-dns", &args.addresses.node_external_dns)?;
        let images = ImageConfig::new(&args)?;
        let credential_providers = images::credential_providers(
            &args.images,
            kubelet.credential_provider_dir.as_deref(),
            kubelet.credential_provider_config.as_deref(),
        )?;
        let listen = listen_ip(args.bind_address, &node_ips);
        let port = args.proxy_healthz_port;
        let mut proxy = proxy_args::parse(&args.components.kube_proxy_arg, port)?;
        let default = (port != 0).then(|| SocketAddr::new(listen, port));
        let mut without_effect = general.without_effect.clone();
        without_effect.append(&mut proxy.without_effect);
        without_effect.append(&mut kubelet.without_effect);
        without_effect.append(&mut flannel.without_effect);
        let (labels, taints) = labels_and_taints(&args, &kubelet)?;
        let kubelet_shutdown = kubelet.shutdown_grace.clone();
        Ok(Self {
            images,
            devices: flags::devices(&args.device)?,
            credential_providers,
            listen,
            localhost_node_ports: proxy.localhost_node_ports,
            proxy_healthz: proxy.healthz.unwrap_or(default),
            proxy_metrics: proxy.metrics,
            is_agent: false,
            has_own_storage: args.default_local_storage_path.is_some()
                || general.data_dir.is_some(),
            labels,
            taints,
            kubelet,
            path: locations.path.clone(),
            without_effect,
            flags: Arc::clone(&general.in_effect),
            dns: net::DnsState::default(),
            power: node::MachineShutdown::default(),
            resource_usage: node::ResourceUsage::default(),
            shutdown_grace: flags::shutdown_grace(&args, kubelet_shutdown)?,
            data_dir,
            node_name,
            node_ips,
            flannel,
            args,
        })
    }

    /// Whether stricter defaults than upstream's apply (`--profile=hardened`).
    pub(crate) fn is_hardened(&self) -> bool {
        self.args.profile.is_some()
    }

    /// The first of the node's addresses.
    pub fn ip(&self) -> IpAddr {
        self.node_ips.first().copied().unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST))
    }

    /// The directory of the node's files.
    pub(crate) fn directory(&self) -> PathBuf {
        self.data_dir.join("agent")
    }

    /// Checks that this machine meets the requirements of a node.
    ///
    /// # Errors
    /// The first requirement that is not met.
    pub(crate) fn check(&self) -> Result<(), CommandError> {
        self.check_except(&[])
    }

    /// As [`Machine::check`], without these requirements.
    ///
    /// # Errors
    /// The first requirement that is not met.
    pub(crate) fn check_except(&self, ignored: &[CatalogueEntry]) -> Result<(), CommandError> {
        let pods = self.args.kubelet_root_dir.join("pods");
        name::check(&self.directory(), &pods, &self.node_name)?;
        let endpoint = self.args.container_runtime_endpoint.as_deref();
        let programs = Programs { bin_dir: self.data_dir.join("bin"), path: self.path.clone() };
        let findings = preflight::check(endpoint, &programs, self.args.protect_kernel_defaults);
        let is_failure = |f: &Finding| f.verdict == Verdict::Fail && !ignored.contains(&f.entry);
        match findings.into_iter().find(is_failure) {
            Some(found) => Err(found.entry.error(found.detail)),
            None => self.check_backend(settings::Backend::default()),
        }
    }

    /// Claims the run directory and the port of the kubelet API, before anything outside the data
    /// directory changes.
    ///
    /// # Errors
    /// Another node runs on this machine, or another program uses the port.
    pub(crate) fn claim(&self) -> Result<NodeClaim, CommandError> {
        let run_dir = &self.args.run_dir;
        base::fs::create_dir(run_dir, 0o711).map_err(|e| DATA_DIR.error(e))?;
        let lock = lock(&run_dir.join("lock")).map_err(|error| {
            if error.entry != DATA_DIR_LOCKED {
                return error;
            }
            NODE_RUNS.error(format!("its run directory is {}", run_dir.display()))
        })?;
        let address = SocketAddr::new(self.listen, self.args.kubelet_port);
        let kubelet = std::net::TcpListener::bind(address).and_then(|listener| {
            listener.set_nonblocking(true)?;
            Ok(listener)
        });
        let kubelet = kubelet.map_err(|e| {
            PORT_IN_USE.error(format!("cannot listen on {address} for the kubelet API: {e}"))
        })?;
        Ok(NodeClaim { kubelet: Arc::new(kubelet), _run_dir: lock })
    }

    /// The socket on which the network plugin reaches this process; `None` if another plugin
    /// connects pods. The node's own flag overrides `cluster_backend`.
    pub(crate) fn plugin_socket(&self, cluster_backend: settings::Backend) -> Option<PathBuf> {
        (self.flannel.backend.unwrap_or(cluster_backend) != settings::Backend::None)
            .then(|| self.socket_path())
    }

    fn socket_path(&self) -> PathBuf {
        self.args.run_dir.join("cni.sock")
    }

    /// Checks that the kernel supports the backend of the pod network: the one of the flag, or else
    /// that of the cluster.
    ///
    /// # Errors
    /// What the kernel lacks.
    pub(crate) fn check_backend(
        &self,
        cluster_backend: settings::Backend,
    ) -> Result<(), CommandError> {
        let backend = self.flannel.backend.unwrap_or(cluster_backend);
        if backend == settings::Backend::None && self.is_hardened() {
            let why = "contradicts --profile=hardened, whose network rules need kube-lite's own pod network";
            return Err(invalid_flag("flannel-backend", "none", why));
        }
        net::check_support(backend).map_err(|lacks| NO_WIREGUARD.error(lacks))
    }

    /// The names of this node other than its own and its addresses.
    pub(crate) fn additional_names(&self) -> AdditionalNames {
        let addresses = &self.args.addresses;
        AdditionalNames {
            addresses: addresses.node_external_ip.clone(),
            dns: [&addresses.node_internal_dns[..], &addresses.node_external_dns].concat(),
        }
    }

    /// The kubelet API on the port that `claim` holds; `peers` is TLS to those of other nodes.
    pub(crate) fn kubelet_api(
        &self,
        claim: &NodeClaim,
        tls: Arc<rustls::ServerConfig>,
        peers: Arc<rustls::ClientConfig>,
    ) -> node::KubeletApiConfig {
        let listener = Arc::clone(&claim.kubelet);
        let port = self.args.kubelet_port;
        node::KubeletApiConfig { listener, port, tls, peers, supervisor: None, network: None }
    }

    /// Binds the port of the second page of metrics (`--supervisor-metrics` of the servers). A port
    /// that is in use is a problem of `kube-lite status` and stops nothing.
    pub(crate) fn supervisor_metrics(
        &self,
        port: u16,
        families: Arc<dyn node::ProcessFamilies>,
        tasks: &Tasks,
    ) -> Option<node::SupervisorMetrics> {
        let address = SocketAddr::new(self.listen, port);
        let bound = std::net::TcpListener::bind(address).and_then(|listener| {
            listener.set_nonblocking(true)?;
            Ok(listener)
        });
        match bound {
            Ok(listener) => {
                Some(node::SupervisorMetrics { listener: Arc::new(listener), families })
            }
            Err(error) => {
                tasks.problems().put(
                    "supervisor-metrics",
                    format!("cannot listen on {address} for the metrics of this node: {error}"),
                    "stop the program that uses the port, or run the servers without \
                     --supervisor-metrics; https://NODE:10250/metrics has the metrics of the node",
                );
                None
            }
        }
    }

    /// Starts the pod network and the node agent, each with its own client. `runtime` is set once
    /// the container runtime answers.
    pub(crate) fn start(
        &self,
        mut kubelet_api: node::KubeletApiConfig,
        cluster: &ClusterSettings,
        clients: Clients,
        runtime: Arc<OnceLock<String>>,
        addresses: watch::Sender<Vec<IpAddr>>,
        tasks: &Tasks,
    ) {
        let mut agent = self.agent(cluster);
        agent.addresses = addresses.subscribe();
        let mut network = self.network(cluster, addresses);
        network.virtual_addresses = Some(clients.virtual_addresses);
        network.api_vip = clients.api_vip;
        let dropped = NetworkMetrics(network.dropped_packets.clone());
        kubelet_api.network = Some(Arc::new(dropped));
        agent.kubelet_api = Some(kubelet_api);
        if let Err(error) = name::record(&self.directory(), &self.node_name) {
            tasks.stop_with(&error.to_string());
        }
        excluded_endpoints::follow(
            &agent.not_ready_pods,
            clients.answering,
            network.left_out.clone(),
            tasks,
        );
        // The network, the ingress and the kubelet share their caches of Services.
        let informers = Informers::new(clients.network.clone(), tasks.clone());
        agent.network = Some(informers.clone());
        if cluster.ingress {
            let (shared, node) = (informers.clone(), clients.node.clone());
            let at = (self.listen, Arc::new(cluster.ingress_proxies.clone()));
            let gateways = ingress::gateway::run(at, shared, node, tasks.clone());
            tasks.spawn(Kind::Critical, "gateways", gateways);
            let (informers, node) = (informers.clone(), clients.node.clone());
            let ingress = ingress::run(self.ingress(cluster), informers, node, tasks.clone());
            tasks.spawn(Kind::Critical, "ingress", ingress);
        }
        let shared = (clients.network, informers);
        let network = net::run(network, shared, clients.node.clone(), tasks.clone());
        tasks.spawn(Kind::Critical, "network", network);
        agent.runtime_description = runtime;
        // `node::run` returns once the runtime answers; the tasks of the node keep running.
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

    /// The port of the service proxy's `/healthz`, if it is served.
    pub(crate) fn proxy_healthz_port(&self) -> Option<u16> {
        self.proxy_healthz.map(|address| address.port())
    }

    /// The port of the service proxy's metrics, if other machines reach it.
    pub(crate) fn proxy_metrics_port(&self) -> Option<u16> {
        self.proxy_metrics.filter(|address| !address.ip().is_loopback()).map(|a| a.port())
    }

    /// A channel with the addresses of the node; the network updates it when they change.
    pub(crate) fn addresses(&self) -> watch::Sender<Vec<IpAddr>> {
        watch::Sender::new(self.node_ips.clone())
    }
}
