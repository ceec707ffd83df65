//! Configuration of the node agent. Everything that is global to the host is a path or a name, so
//! that several nodes can run on one machine.

pub(crate) mod enforcement;
pub(crate) mod memory;
pub(crate) mod thresholds;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use api::Quantity;
use api::k8s::api::core::v1::Taint;
use async_trait::async_trait;
use client::Informers;
use tokio::sync::watch;

use self::enforcement::NodeAllocatableEnforcement;
use self::memory::MemoryConfig;
use self::thresholds::EvictionThresholds;
use crate::generic_devices::selector::DeviceSelection;
use crate::image_access::policy::ImageVerification;
use crate::image_credentials::provider_config::CredentialProviders;
use crate::resource_managers::config::ResourceManagersConfig;
use crate::runtime::containerd::snapshotter::Snapshotter;
use crate::runtime::registries::Registries;
use crate::static_pods::url_config::StaticPodUrl;
use crate::status::not_ready::NotReadyPods;
use crate::user_namespaces::id_range::IDS_PER_POD;

/// The default and upper limit of [`Config::restart_delay_max`]; the kubelet's
/// `MaxContainerBackOff`.
pub const RESTART_DELAY_MAX: Duration = Duration::from_secs(300);

/// Configuration of one node agent.
#[derive(Debug, Clone)]
pub struct Config {
    /// Name of the Node object.
    pub node_name: String,
    /// Value of the `kubernetes.io/hostname` label and the Hostname address.
    pub hostname: String,
    /// Addresses of the node, preferred family first. They may change while the agent runs; node
    /// and pods follow.
    pub addresses: watch::Receiver<Vec<IpAddr>>,
    /// Where the agent publishes the pods that are not ready.
    pub not_ready_pods: NotReadyPods,
    /// External addresses, reported as `ExternalIP`.
    pub external_ips: Vec<IpAddr>,
    /// Names reported as `InternalDNS`.
    pub internal_dns: Vec<String>,
    /// Names reported as `ExternalDNS`.
    pub external_dns: Vec<String>,
    /// Whether an external cloud controller initializes the node (the kubelet's
    /// `--cloud-provider=external`).
    pub external_cloud: bool,
    /// Whether a flag sets the addresses of the node.
    pub addresses_are_set: bool,
    /// Value of the label `node.kubernetes.io/instance-type`; empty for none.
    pub instance_type: String,
    /// Labels set at registration.
    pub labels: BTreeMap<String, String>,
    /// Taints set at registration.
    pub taints: Vec<Taint>,
    /// `spec.providerID`; empty for none.
    pub provider_id: String,
    /// `status.nodeInfo.kubeletVersion`.
    pub version: String,
    /// Pod directories; `/var/lib/kubelet` unless the data directory is set.
    pub root_dir: PathBuf,
    /// Where the directories of local-path volumes are created, unless the ConfigMap
    /// `local-path-config` lists other paths for this node.
    pub local_storage_dir: PathBuf,
    /// Whether flags of this agent set that directory: then it overrides the ConfigMap's path of
    /// nodes that are not listed.
    pub local_storage_is_set: bool,
    /// Directory with one record per local-path volume of this node.
    pub local_volume_records: PathBuf,
    /// Served at `/logs/` of the kubelet API: `/var/log`.
    pub system_logs_dir: PathBuf,
    /// What is served at `/logs/` of the kubelet API.
    pub system_logs: SystemLogsConfig,
    /// `/var/log/pods`.
    pub pod_logs_dir: PathBuf,
    /// `/var/log/containers`.
    pub container_logs_dir: PathBuf,
    /// Directories with manifests of static pods.
    pub manifest_dirs: Vec<PathBuf>,
    /// The URL of a document with static pods; `None` for none.
    pub static_pod_url: Option<StaticPodUrl>,
    /// Cgroup under which `kubepods` is created; `/` is the root of each hierarchy.
    pub cgroup_root: String,
    /// The runtime.
    pub runtime: RuntimeConfig,
    /// Addresses of the cluster DNS.
    pub cluster_dns: Vec<IpAddr>,
    /// Cluster domain, such as `cluster.local`.
    pub cluster_domain: String,
    /// The node's own resolver file.
    pub resolv_conf: PathBuf,
    /// Maximum number of pods on this node.
    pub max_pods: u32,
    /// Maximum number of pods for each CPU; zero for no such limit.
    pub pods_per_core: u32,
    /// Maximum number of processes and threads of each pod; `None` for no limit.
    pub pod_pids_max: Option<i64>,
    /// Number of ids in the range of a pod with a user namespace of its own: a multiple of 65536.
    pub ids_per_pod: u32,
    /// Whether containers without a seccomp profile get the runtime's.
    pub seccomp_default: bool,
    /// Sysctls that pods may set in addition to the safe ones; a trailing `*` matches any rest.
    pub allowed_sysctls: Vec<String>,
    /// Resources reserved for the system, by name, such as `cpu: 100m`.
    pub reserved: BTreeMap<String, String>,
    /// Resources reserved for Kubernetes itself, in the same form.
    pub kube_reserved: BTreeMap<String, String>,
    /// Which groups are limited to what is allocatable or reserved.
    pub enforcement: NodeAllocatableEnforcement,
    /// Swap, protected requests and throttling of memory.
    pub memory: MemoryConfig,
    /// The CPU, memory and topology managers.
    pub resource_managers: ResourceManagersConfig,
    /// When pods are evicted.
    pub eviction: EvictionThresholds,
    /// A condition of pressure lasts this long after a threshold was last met.
    pub pressure_transition: Duration,
    /// The longest grace period of a pod that a soft threshold evicts, in seconds.
    pub eviction_max_pod_grace: i64,
    /// Image pulls at one time.
    pub image_pulls_max: usize,
    /// Plugins that provide credentials for image pulls; `None` for none.
    pub credential_providers: Option<CredentialProviders>,
    /// Devices of the machine that are extended resources.
    pub devices: Vec<DeviceSelection>,
    /// Which images that are present a pod needs credentials for.
    pub image_verification: ImageVerification,
    /// Unused images are removed after this time; zero for no such limit.
    pub image_age_max: Duration,
    /// An image is kept for this long after it was first listed.
    pub image_age_min: Duration,
    /// How often the status of the node is computed.
    pub status_check_interval: Duration,
    /// The longest delay before a container that exited is restarted.
    pub restart_delay_max: Duration,
    /// A container log is rotated at this size, in bytes.
    pub log_max_size: u64,
    /// Number of files kept of one container's log, the current one included.
    pub log_max_files: usize,
    /// Image garbage collection starts above this use of the image file system, in percent.
    pub image_gc_high: u8,
    /// Image garbage collection stops below this use, in percent.
    pub image_gc_low: u8,
    /// How often an unchanged node status is sent.
    pub status_interval: Duration,
    /// The stricter defaults of `--profile=hardened`: the runtime's seccomp profile and no raw
    /// packets for containers that do not set these, and a limit on the processes of each pod
    /// unless another one is set.
    pub hardened: bool,
    /// The kubelet API; `None` disables it.
    pub kubelet_api: Option<KubeletApiConfig>,
    /// The informers of the network, whose Services the kubelet shares, and whose client may list
    /// all Nodes, from which this node pulls images; a node's own client may not. `None`: the
    /// kubelet follows Services itself and pulls from registries only.
    pub network: Option<Informers>,
    /// The signal that ends the pods before the machine is switched off.
    pub machine_shutdown: crate::MachineShutdown,
    /// The grace period of the pods at a shutdown of the machine.
    pub shutdown_grace: crate::ShutdownGracePeriod,
    /// Set once the runtime answers: its name and version, and the OCI runtime, such as `containerd
    /// 1.6.20 with crun`.
    pub runtime_description: Arc<OnceLock<String>>,
    /// Measures the node for a server in the same process.
    pub resource_usage: crate::ResourceUsage,
    /// The fields of KubeletConfiguration that files and arguments give, shown at `/configz` also
    /// if they have no effect.
    pub given_fields: Arc<serde_json::Map<String, serde_json::Value>>,
    /// The flags in effect without secrets, shown at `/flagz`.
    pub flags: Arc<BTreeMap<String, String>>,
    /// Where the kubelet's `/healthz` is served without TLS, if at all.
    pub healthz: Option<std::net::SocketAddr>,
}

/// What is served at `/logs/` of the kubelet API.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SystemLogsConfig {
    /// Whether the directory is served (`enableSystemLogHandler`).
    pub handler: bool,
    /// Whether logs of services can be queried (`enableSystemLogQuery`).
    pub query: bool,
}

impl Default for SystemLogsConfig {
    /// The defaults of the kubelet.
    fn default() -> Self {
        Self { handler: true, query: false }
    }
}

/// Configuration of the container runtime.
#[derive(Debug, Clone)]
pub struct RuntimeConfig {
    /// An existing CRI socket; `None` starts and supervises containerd.
    pub endpoint: Option<PathBuf>,
    /// Directory of the supervised containerd's images, snapshots, metadata and configuration.
    pub data_dir: PathBuf,
    /// Directory of the supervised containerd's socket and volatile state.
    pub run_dir: PathBuf,
    /// Directories searched for `containerd`, `runc` and `crun` before `PATH`.
    pub bin_dirs: Vec<PathBuf>,
    /// Value of `PATH`.
    pub path: String,
    /// Directory of the administrator's templates and drop-in files of containerd's configuration.
    pub templates_dir: PathBuf,
    /// Directory of CNI network configurations.
    pub cni_conf_dir: PathBuf,
    /// Directory of CNI plugins.
    pub cni_bin_dir: PathBuf,
    /// The registries at the start.
    pub registries: Registries,
    /// The file that `registries` was read from and that is read again when it changes; `None` for
    /// none.
    pub registries_file: Option<PathBuf>,
    /// Directory of archives and lists of images, imported at the start and while the node runs.
    pub images_dir: PathBuf,
    /// The image of sandboxes; `None` for the built-in one.
    pub pause_image: Option<String>,
    /// Registries whose names images of the directory also get.
    pub extra_registries: Vec<String>,
    /// How layers are mounted; `None` for overlayfs where the kernel allows it, else copies.
    pub snapshotter: Option<Snapshotter>,
    /// The CRI socket for images; `None` for that of the runtime.
    pub image_endpoint: Option<PathBuf>,
    /// The runtime of pods without a RuntimeClass; `None` for runc.
    pub default_runtime: Option<String>,
    /// Whether devices belong to the user and group of a container's security context.
    pub nonroot_devices: bool,
    /// Whether containers get SELinux labels, if the kernel has SELinux.
    pub selinux: bool,
    /// Ranges and domains that containerd reaches without a proxy.
    pub no_proxy: Vec<String>,
    /// Whether the embedded registry shares the tag `latest`.
    pub share_latest: bool,
    /// Whether several pods share one shim process (containerd ≥ 2.2): less memory, one fault
    /// domain.
    pub grouped_shims: bool,
    /// Whether an idle exec, attach or port-forward ends after five minutes instead of upstream's
    /// four hours.
    pub short_streams: bool,
}

/// The kubelet API.
#[derive(Clone)]
pub struct KubeletApiConfig {
    /// Bound and non-blocking; the default port is 10250.
    pub listener: Arc<std::net::TcpListener>,
    /// Its port.
    pub port: u16,
    /// Certificate, key and the CA that verifies client certificates.
    pub tls: Arc<rustls::ServerConfig>,
    /// TLS to the kubelet APIs of other nodes, with a client certificate of this machine.
    pub peers: Arc<rustls::ClientConfig>,
    /// The second page of metrics, if there is one.
    pub supervisor: Option<SupervisorMetrics>,
    /// Families of the pod network on the page of the node.
    pub network: Option<Arc<dyn ProcessFamilies>>,
}

/// The page `/metrics` at the port of the servers, as of an agent of k3s that runs with
/// `--supervisor-metrics`.
#[derive(Clone)]
pub struct SupervisorMetrics {
    /// Bound and non-blocking.
    pub listener: Arc<std::net::TcpListener>,
    /// Families that the process adds to those of the node.
    pub families: Arc<dyn ProcessFamilies>,
}

/// Families of metrics of the process beside those of its node.
#[async_trait]
pub trait ProcessFamilies: Send + Sync {
    /// The families in the text format.
    async fn render(&self) -> String;
}

impl std::fmt::Debug for dyn ProcessFamilies {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ProcessFamilies")
    }
}

impl std::fmt::Debug for KubeletApiConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "HttpConfig({})", self.port)
    }
}

impl RuntimeConfig {
    /// Defaults with the runtime's own paths under `data_dir` and `run_dir`.
    fn new(data_dir: PathBuf, run_dir: PathBuf) -> Self {
        Self {
            endpoint: None,
            images_dir: data_dir.join("images"),
            templates_dir: data_dir.join("etc/containerd"),
            pause_image: None,
            extra_registries: Vec::new(),
            snapshotter: None,
            image_endpoint: None,
            default_runtime: None,
            nonroot_devices: false,
            selinux: false,
            no_proxy: Vec::new(),
            share_latest: false,
            bin_dirs: vec![data_dir.join("bin")],
            data_dir,
            run_dir,
            path: "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".to_owned(),
            cni_conf_dir: PathBuf::from("/etc/cni/net.d"),
            cni_bin_dir: PathBuf::from("/opt/cni/bin"),
            registries: Registries::default(),
            registries_file: None,
            grouped_shims: false,
            short_streams: false,
        }
    }

    /// The CRI socket: that of the flag, or of the supervised containerd.
    pub(crate) fn socket(&self) -> PathBuf {
        self.endpoint.clone().unwrap_or_else(|| self.supervised_socket())
    }

    /// The socket of the supervised containerd.
    pub(crate) fn supervised_socket(&self) -> PathBuf {
        self.run_dir.join("containerd.sock")
    }

    /// The directory of the supervised containerd's images and snapshots.
    pub(crate) fn containerd_root(&self) -> PathBuf {
        self.data_dir.join("containerd")
    }

    /// The directory of the supervised containerd's volatile state.
    pub(crate) fn containerd_state(&self) -> PathBuf {
        self.run_dir.join("containerd")
    }
}

impl Config {
    /// Current addresses of the node, preferred family first.
    pub(crate) fn node_ips(&self) -> Vec<IpAddr> {
        self.addresses.borrow().clone()
    }

    /// Defaults for a node of this name and address. Paths are those that log agents and CSI
    /// drivers expect; the runtime's own are under `data_dir` and `run_dir`.
    pub fn new(node_name: &str, node_ip: IpAddr, data_dir: PathBuf, run_dir: PathBuf) -> Self {
        let path = |p: &str| PathBuf::from(p);
        Self {
            node_name: node_name.to_owned(),
            hostname: node_name.to_owned(),
            addresses: watch::channel(vec![node_ip]).1,
            not_ready_pods: NotReadyPods::default(),
            external_ips: Vec::new(),
            internal_dns: Vec::new(),
            external_dns: Vec::new(),
            external_cloud: false,
            addresses_are_set: false,
            instance_type: String::new(),
            labels: BTreeMap::new(),
            taints: Vec::new(),
            provider_id: String::new(),
            version: "v1.37.1".to_owned(),
            root_dir: path("/var/lib/kubelet"),
            local_storage_dir: data_dir.join("storage"),
            local_storage_is_set: false,
            local_volume_records: data_dir.join("local-volumes"),
            system_logs_dir: path("/var/log"),
            system_logs: SystemLogsConfig::default(),
            pod_logs_dir: path("/var/log/pods"),
            container_logs_dir: path("/var/log/containers"),
            manifest_dirs: vec![path("/etc/kubernetes/manifests"), data_dir.join("pod-manifests")],
            static_pod_url: None,
            cgroup_root: "/".to_owned(),
            runtime: RuntimeConfig::new(data_dir, run_dir),
            cluster_dns: Vec::new(),
            cluster_domain: "cluster.local".to_owned(),
            resolv_conf: path("/etc/resolv.conf"),
            // The following are the defaults of `KubeletConfiguration` v1beta1.
            max_pods: 110,
            pods_per_core: 0,
            pod_pids_max: None,
            ids_per_pod: IDS_PER_POD,
            memory: MemoryConfig::default(),
            seccomp_default: false,
            allowed_sysctls: Vec::new(),
            reserved: BTreeMap::new(),
            kube_reserved: BTreeMap::new(),
            enforcement: NodeAllocatableEnforcement::default(),
            resource_managers: ResourceManagersConfig::default(),
            eviction: EvictionThresholds::default(),
            pressure_transition: Duration::from_secs(300),
            eviction_max_pod_grace: 0,
            // More pulls would share the same bandwidth.
            image_pulls_max: 4,
            credential_providers: None,
            devices: Vec::new(),
            image_verification: ImageVerification::default(),
            image_age_max: Duration::ZERO,
            image_age_min: Duration::from_secs(120),
            status_check_interval: Duration::from_secs(10),
            restart_delay_max: RESTART_DELAY_MAX,
            log_max_size: 10 << 20,
            log_max_files: 5,
            image_gc_high: 85,
            image_gc_low: 80,
            status_interval: Duration::from_secs(300),
            hardened: false,
            kubelet_api: None,
            network: None,
            machine_shutdown: crate::MachineShutdown::default(),
            shutdown_grace: crate::ShutdownGracePeriod::default(),
            runtime_description: Arc::default(),
            resource_usage: crate::ResourceUsage::default(),
            given_fields: Arc::default(),
            flags: Arc::default(),
            healthz: None,
        }
    }

    /// The amount of a resource that is reserved for the system and for Kubernetes; `None` if no
    /// amount is configured. The texts are valid quantities.
    pub(crate) fn reserved_quantity(&self, name: &str) -> Option<Quantity> {
        let amounts = [self.reserved.get(name), self.kube_reserved.get(name)];
        let amounts = amounts.into_iter().flatten();
        amounts.filter_map(|text| Quantity::parse(text).ok()).reduce(Quantity::plus)
    }

    /// Directory of one pod: `<root>/pods/<uid>`.
    pub fn pod_dir(&self, uid: &str) -> PathBuf {
        self.root_dir.join("pods").join(uid)
    }

    /// The link under which log agents look for the log of a container:
    /// `<container logs>/<pod>_<namespace>_<container>-<id>.log`.
    pub(crate) fn container_log_link(
        &self,
        namespace: &str,
        pod: &str,
        container: &str,
        id: &str,
    ) -> PathBuf {
        self.container_logs_dir.join(format!("{pod}_{namespace}_{container}-{id}.log"))
    }

    /// Log directory of one pod: `<pod logs>/<namespace>_<name>_<uid>`.
    pub fn pod_log_dir(&self, namespace: &str, name: &str, uid: &str) -> PathBuf {
        self.pod_logs_dir.join(format!("{namespace}_{name}_{uid}"))
    }
}

/// Resolves when the node's addresses change; never again once their sender is dropped.
pub(crate) async fn addresses_changed(addresses: &mut watch::Receiver<Vec<IpAddr>>) {
    if addresses.changed().await.is_err() {
        std::future::pending().await
    }
}
