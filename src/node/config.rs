//! Settings of the node agent: everything host-global is a path or a name, so that several nodes live on one machine.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use api::k8s::api::core::v1::Taint;
use tokio::sync::watch;

use crate::runtime::registries::Registries;
use crate::status::not_ready::Unready;

/// Settings of one node agent.
#[derive(Debug, Clone)]
pub struct Config {
    /// Name of the Node object.
    pub node_name: String,
    /// Value of the `kubernetes.io/hostname` label and the Hostname address.
    pub hostname: String,
    /// Addresses of the node, preferred family first. They may change while it runs; node and pods follow.
    pub addresses: watch::Receiver<Vec<IpAddr>>,
    /// Where it is told which pods are not ready.
    pub unready: Unready,
    /// External addresses, reported as `ExternalIP`.
    pub external_ips: Vec<IpAddr>,
    /// Labels set at registration.
    pub labels: BTreeMap<String, String>,
    /// Taints set at registration.
    pub taints: Vec<Taint>,
    /// `spec.providerID`; empty for none.
    pub provider_id: String,
    /// What `status.nodeInfo.kubeletVersion` says.
    pub version: String,
    /// Pod directories; `/var/lib/kubelet` unless the data directory is moved.
    pub root_dir: PathBuf,
    /// Where the directories of local-path volumes are made.
    pub local_storage_dir: PathBuf,
    /// Served at `/logs/` of the kubelet API: `/var/log`.
    pub system_logs_dir: PathBuf,
    /// `/var/log/pods`.
    pub pod_logs_dir: PathBuf,
    /// `/var/log/containers`.
    pub container_logs_dir: PathBuf,
    /// Folders with manifests of static pods.
    pub manifest_dirs: Vec<PathBuf>,
    /// Cgroup under which `kubepods` is made; `/` is the root of each hierarchy.
    pub cgroup_root: String,
    /// The runtime.
    pub runtime: RuntimeConfig,
    /// Addresses of the cluster DNS.
    pub cluster_dns: Vec<IpAddr>,
    /// Cluster domain, such as `cluster.local`.
    pub cluster_domain: String,
    /// The node's own resolver file.
    pub resolv_conf: PathBuf,
    /// Most pods on this node.
    pub max_pods: u32,
    /// Resources kept from pods, by name, such as `cpu: 100m`.
    pub reserved: BTreeMap<String, String>,
    /// A container log is rotated at this size, in bytes.
    pub log_max_size: u64,
    /// Files kept of one container's log, the current one included.
    pub log_max_files: usize,
    /// Image collection starts above this use of the image file system, in percent.
    pub image_gc_high: u8,
    /// Image collection stops below this use, in percent.
    pub image_gc_low: u8,
    /// How often an unchanged node status is written.
    pub status_interval: Duration,
    /// The stricter defaults of `--profile=hardened`: the runtime's seccomp profile and no raw packets for containers that
    /// say nothing, a bound of processes for each pod.
    pub hardened: bool,
    /// The kubelet API; `None` serves none.
    pub http: Option<HttpConfig>,
    /// How the pods end when the machine is switched off.
    pub power: crate::Power,
    /// The time they get then.
    pub shutdown_grace: crate::Grace,
    /// Filled once the runtime answers: its name and version, and what starts containers: `containerd 1.6.20 with crun`.
    pub runtime_shown: Arc<OnceLock<String>>,
}

/// The runtime that containers run in.
#[derive(Debug, Clone)]
pub struct RuntimeConfig {
    /// An existing CRI socket; `None` starts and supervises an own containerd.
    pub endpoint: Option<PathBuf>,
    /// Folder of images, snapshots and metadata of the own containerd, and of its configuration.
    pub data_dir: PathBuf,
    /// Folder of its socket and volatile state.
    pub run_dir: PathBuf,
    /// Folders searched for `containerd`, `runc` and `crun` before `PATH`.
    pub bin_dirs: Vec<PathBuf>,
    /// Value of `PATH`.
    pub path: String,
    /// CNI network configurations.
    pub cni_conf_dir: PathBuf,
    /// CNI plugins.
    pub cni_bin_dir: PathBuf,
    /// What is known of registries at the start.
    pub registries: Registries,
    /// The file that says so, which may change; `None` for none.
    pub registries_file: Option<PathBuf>,
    /// Archives imported at start.
    pub images_dir: PathBuf,
    /// Several pods share one shim process (containerd ≥ 2.2): less memory, one fault domain.
    pub grouped_shims: bool,
    /// An exec, attach or port-forward that nobody uses ends after five minutes, not after upstream's four hours.
    pub short_streams: bool,
}

/// The kubelet API.
#[derive(Clone)]
pub struct HttpConfig {
    /// Bound and non-blocking; the port is 10250 unless flags say otherwise.
    pub listener: Arc<std::net::TcpListener>,
    /// Its port.
    pub port: u16,
    /// Certificate, key and the CA that client certificates are checked with.
    pub tls: Arc<rustls::ServerConfig>,
}

impl std::fmt::Debug for HttpConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "HttpConfig({})", self.port)
    }
}

impl Config {
    /// Addresses of the node as they are now, preferred family first.
    pub(crate) fn node_ips(&self) -> Vec<IpAddr> {
        self.addresses.borrow().clone()
    }

    /// Defaults for a node of this name and address; paths are those that log agents and CSI drivers expect, the
    /// runtime's own live under `data_dir` and `run_dir`.
    pub fn new(node_name: &str, node_ip: IpAddr, data_dir: PathBuf, run_dir: PathBuf) -> Self {
        let path = |p: &str| PathBuf::from(p);
        Self {
            node_name: node_name.to_owned(),
            hostname: node_name.to_owned(),
            addresses: watch::channel(vec![node_ip]).1,
            unready: Unready::default(),
            external_ips: Vec::new(),
            labels: BTreeMap::new(),
            taints: Vec::new(),
            provider_id: String::new(),
            version: "v1.37.1".to_owned(),
            root_dir: path("/var/lib/kubelet"),
            local_storage_dir: data_dir.join("storage"),
            system_logs_dir: path("/var/log"),
            pod_logs_dir: path("/var/log/pods"),
            container_logs_dir: path("/var/log/containers"),
            manifest_dirs: vec![path("/etc/kubernetes/manifests"), data_dir.join("pod-manifests")],
            cgroup_root: "/".to_owned(),
            runtime: RuntimeConfig {
                endpoint: None,
                images_dir: data_dir.join("images"),
                bin_dirs: vec![data_dir.join("bin")],
                data_dir,
                run_dir,
                path: "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".to_owned(),
                cni_conf_dir: path("/etc/cni/net.d"),
                cni_bin_dir: path("/opt/cni/bin"),
                registries: Registries::default(),
                registries_file: None,
                grouped_shims: false,
                short_streams: false,
            },
            cluster_dns: Vec::new(),
            cluster_domain: "cluster.local".to_owned(),
            resolv_conf: path("/etc/resolv.conf"),
            // The defaults of `KubeletConfiguration` v1beta1.
            max_pods: 110,
            reserved: BTreeMap::new(),
            log_max_size: 10 << 20,
            log_max_files: 5,
            image_gc_high: 85,
            image_gc_low: 80,
            status_interval: Duration::from_secs(300),
            hardened: false,
            http: None,
            power: crate::Power::default(),
            shutdown_grace: crate::Grace { total: Duration::ZERO, critical: Duration::ZERO },
            runtime_shown: Arc::default(),
        }
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

/// Resolves when the node's addresses changed; never, once nobody tells of them any more.
pub(crate) async fn moved(addresses: &mut watch::Receiver<Vec<IpAddr>>) {
    if addresses.changed().await.is_err() {
        std::future::pending().await
    }
}
