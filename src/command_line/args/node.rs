//! Flags that servers and agents share: where everything is kept, and this machine as a node.

use std::net::IpAddr;
use std::path::PathBuf;

use clap::{Args, ValueEnum};

/// Flags of every process.
#[derive(Debug, Args, Clone)]
pub struct GeneralArgs {
    /// Configuration file; keys are flag names, drop-ins beside it in <FILE>.d/*.yaml [env: KUBE_LITE_CONFIG_FILE]
    #[arg(
        long,
        short = 'c',
        value_name = "FILE",
        default_value = "/etc/kube-lite/config.yaml",
        help_heading = "General"
    )]
    pub config: PathBuf,
    /// Where everything is kept; as an ordinary user the XDG data directory [default: /var/lib/kube-lite] [env: KUBE_LITE_DATA_DIR]
    #[arg(long, short = 'd', value_name = "DIR", help_heading = "General")]
    pub data_dir: Option<PathBuf>,
    /// Log why things happen, too [env: KUBE_LITE_DEBUG]
    #[arg(long, help_heading = "General", num_args = 0..=1, default_missing_value = "true", default_value = "false", require_equals = true)]
    pub debug: bool,
    /// Log verbosity, 0 to 10; from 4 on debug, there is nothing finer
    #[arg(short = 'v', value_name = "N", default_value_t = 0, help_heading = "General")]
    pub verbosity: u8,
    /// Settings that were given and change nothing, with the reason; `kube-lite status` shows them.
    #[arg(skip)]
    pub without_effect: Vec<String>,
}

/// Flags about this machine as a node.
#[derive(Debug, Args, Clone)]
pub struct NodeArgs {
    /// Address that the API and the node listen on
    #[arg(long, value_name = "IP", default_value = "0.0.0.0", help_heading = "Node")]
    pub bind_address: IpAddr,
    /// Name of this node [default: the host name] [env: KUBE_LITE_NODE_NAME]
    #[arg(long, value_name = "NAME", help_heading = "Node")]
    pub node_name: Option<String>,
    /// Addresses of this node, one per family [default: those of the default route]
    #[arg(long, short = 'i', value_name = "IP", value_delimiter = ',', help_heading = "Node")]
    pub node_ip: Vec<IpAddr>,
    /// Labels of this node
    #[arg(long, value_name = "KEY=VALUE", value_delimiter = ',', help_heading = "Node")]
    pub node_label: Vec<String>,
    /// Taints of this node
    #[arg(long, value_name = "KEY=VALUE:EFFECT", value_delimiter = ',', help_heading = "Node")]
    pub node_taint: Vec<String>,
    /// Where this node makes local-path volumes [default: storage in the data directory]
    #[arg(long, value_name = "DIR", help_heading = "Node")]
    pub default_local_storage_path: Option<PathBuf>,
    /// How pods of other nodes are reached: auto, vxlan, host-gw, wireguard-native (encrypts) or none (another CNI plugin connects pods and enforces network policies) [default: auto, or what the server says]
    #[arg(long, value_name = "BACKEND", help_heading = "Node")]
    pub flannel_backend: Option<String>,
    /// Interface to the other nodes [default: the one with the node's address]
    #[arg(long, value_name = "NAME", help_heading = "Node")]
    pub flannel_iface: Option<String>,
    /// Mirrors, credentials and certificates of registries, in k3s's form; read again when it changes
    #[arg(
        long,
        value_name = "FILE",
        default_value = "/etc/kube-lite/registries.yaml",
        help_heading = "Node"
    )]
    pub private_registry: PathBuf,
    /// Registries with mirrors in that file are not asked themselves
    #[arg(long, help_heading = "Node", num_args = 0..=1, default_missing_value = "true", default_value = "false", require_equals = true)]
    pub disable_default_registry_endpoint: bool,
    /// Time for pods to end when the machine is switched off; 0 leaves them to the service manager
    #[arg(long, value_name = "TIME", default_value = "30s", help_heading = "Node")]
    pub shutdown_grace_period: String,
    /// Of that for critical pods, which end last
    #[arg(long, value_name = "TIME", default_value = "10s", help_heading = "Node")]
    pub shutdown_grace_period_critical_pods: String,
    /// Use this CRI socket instead of an own containerd
    #[arg(long, value_name = "SOCKET", help_heading = "Node")]
    pub container_runtime_endpoint: Option<String>,
    /// Let pods share shim processes: less memory for each, but one that crashes takes its group; needs containerd 2.2
    #[arg(long, help_heading = "Node", num_args = 0..=1, default_missing_value = "true", default_value = "false", require_equals = true)]
    pub grouped_shims: bool,
    /// resolv.conf that pods and the DNS forwarder inherit [env: KUBE_LITE_RESOLV_CONF]
    #[arg(long, value_name = "FILE", default_value = "/etc/resolv.conf", help_heading = "Node")]
    pub resolv_conf: PathBuf,
    /// Defaults that are stricter than upstream's: hardened (who shows nothing asks for the server's health and version alone,
    /// pods without a label of their namespace are held to the level baseline, seccomp, no raw packets, bounds of processes,
    /// events and idle connections, no external addresses of Services; pods reach no kubelet, no store and no metadata of a
    /// cloud unless a NetworkPolicy opens them for egress, and the API through its Service alone)
    #[arg(long, value_name = "NAME", value_enum, help_heading = "Hardening")]
    pub profile: Option<Profile>,
    /// Do not start a node on a kernel whose settings are not those that the kubelet wants; they are never changed
    #[arg(long, help_heading = "Hardening", num_args = 0..=1, default_missing_value = "true", default_value = "false", require_equals = true)]
    pub protect_kernel_defaults: bool,
    /// Kubelet root directory
    #[arg(
        long,
        value_name = "DIR",
        default_value = "/var/lib/kubelet",
        help_heading = "Several nodes on one machine"
    )]
    pub kubelet_root_dir: PathBuf,
    /// Directory of logs: those of pods are written there, and `/logs/` of the kubelet API serves all of it
    #[arg(
        long,
        value_name = "DIR",
        default_value = "/var/log",
        help_heading = "Several nodes on one machine"
    )]
    pub log_dir: PathBuf,
    /// Run-time files: sockets and network state
    #[arg(
        long,
        value_name = "DIR",
        default_value = "/run/kube-lite",
        help_heading = "Several nodes on one machine"
    )]
    pub run_dir: PathBuf,
    /// cgroup under which all pods hang
    #[arg(
        long,
        value_name = "PATH",
        default_value = "/",
        help_heading = "Several nodes on one machine"
    )]
    pub cgroup_root: String,
    /// CNI configuration directory
    #[arg(
        long,
        value_name = "DIR",
        default_value = "/etc/cni/net.d",
        help_heading = "Several nodes on one machine"
    )]
    pub cni_conf_dir: PathBuf,
    /// CNI plugin directory
    #[arg(
        long,
        value_name = "DIR",
        default_value = "/opt/cni/bin",
        help_heading = "Several nodes on one machine"
    )]
    pub cni_bin_dir: PathBuf,
    /// Bridge of the pod network
    #[arg(
        long,
        value_name = "NAME",
        default_value = "cni0",
        help_heading = "Several nodes on one machine"
    )]
    pub bridge_name: String,
    /// nftables table of the service proxy
    #[arg(
        long,
        value_name = "NAME",
        default_value = "kube-lite",
        help_heading = "Several nodes on one machine"
    )]
    pub nft_table: String,
    /// Port of the kubelet API
    #[arg(
        long,
        value_name = "PORT",
        default_value_t = 10250,
        help_heading = "Several nodes on one machine"
    )]
    pub kubelet_port: u16,
    /// Port of the service proxy's /healthz, which load balancers ask; 0 for none
    #[arg(
        long,
        value_name = "PORT",
        default_value_t = 10256,
        help_heading = "Several nodes on one machine"
    )]
    pub proxy_healthz_port: u16,
}

/// Sets of defaults beside upstream's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Profile {
    /// The stricter ones of CIS and NSA/CISA.
    Hardened,
}
