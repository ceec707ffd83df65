//! Flags that servers and agents share: general flags and node flags.

use std::net::IpAddr;
use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::ImageArgs;

/// The default of `--shutdown-grace-period`.
pub(crate) const SHUTDOWN_DEFAULT: &str = "30s";
/// The default of `--shutdown-grace-period-critical-pods`.
pub(crate) const SHUTDOWN_CRITICAL_DEFAULT: &str = "10s";

/// Flags of servers and agents that do not concern the node.
#[derive(Debug, Args, Clone)]
pub struct GeneralArgs {
    /// Configuration file; keys are flag names, drop-ins are <FILE>.d/*.yaml [env:
    /// KUBE_LITE_CONFIG_FILE]
    #[arg(
        long,
        short = 'c',
        value_name = "FILE",
        default_value = "/etc/kube-lite/config.yaml",
        help_heading = "General"
    )]
    pub config: PathBuf,
    /// Data directory; for ordinary users the XDG data directory [default: /var/lib/kube-lite]
    /// [env: KUBE_LITE_DATA_DIR]
    #[arg(long, short = 'd', value_name = "DIR", help_heading = "General")]
    pub data_dir: Option<PathBuf>,
    /// Turn on debug logging [env: KUBE_LITE_DEBUG]
    #[arg(long, help_heading = "General")]
    pub debug: bool,
    /// Log level; 4 or more turns on debug logging
    #[arg(
        short = 'v',
        alias = "v",
        value_name = "N",
        default_value_t = 0,
        help_heading = "General"
    )]
    pub verbosity: u8,
    /// Settings without effect, each with the reason; `kube-lite status` lists them.
    #[arg(skip)]
    pub without_effect: Vec<String>,
    /// Old names, and settings that another one overrides; the log names them.
    #[arg(skip)]
    pub warnings: Vec<String>,
    /// The flags in effect, defaults included, without secrets; the pages `/flagz` show them.
    #[arg(skip)]
    pub in_effect: std::sync::Arc<std::collections::BTreeMap<String, String>>,
}

/// Flags of the node.
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
    #[command(flatten)]
    pub addresses: super::NodeAddressArgs,
    /// Labels of this node
    #[arg(long, value_name = "KEY=VALUE", value_delimiter = ',', help_heading = "Node")]
    pub node_label: Vec<String>,
    /// Taints of this node
    #[arg(long, value_name = "KEY=VALUE:EFFECT", value_delimiter = ',', help_heading = "Node")]
    pub node_taint: Vec<String>,
    /// Devices of this machine as an extended resource, such as usb:10c4:ea60=zigbee,
    /// serial:*ConBee*=zigbee or path:/dev/fuse=fuse,count=4; selectors are usb:VID:PID[:SERIAL],
    /// serial:PATTERN, video:PATTERN, gpio:LABEL and path:GLOB, count containers share each device
    #[arg(long, value_name = "SELECTOR=NAME[,count=N]", help_heading = "Node")]
    pub device: Vec<String>,
    /// Directory of local-path volumes, unless the ConfigMap local-path-config lists this node; a
    /// server's is that of all nodes without this flag or --data-dir [default: storage in the data
    /// directory]
    #[arg(long, value_name = "DIR", help_heading = "Node")]
    pub default_local_storage_path: Option<PathBuf>,
    /// Network between nodes: auto, vxlan, host-gw, wireguard-native (encrypts) or none (another
    /// CNI plugin connects pods and enforces network policies) [default: the server's, which is
    /// auto]
    #[arg(long, value_name = "BACKEND", help_heading = "Node")]
    pub flannel_backend: Option<String>,
    /// Network interface for traffic between nodes [default: the one with the node's address]
    #[arg(long, value_name = "NAME", help_heading = "Node")]
    pub flannel_iface: Option<String>,
    #[command(flatten)]
    pub flannel: super::FlannelArgs,
    /// Mirrors, credentials and certificates of registries, in the format of k3s; reloaded when it
    /// changes
    #[arg(
        long,
        value_name = "FILE",
        default_value = "/etc/kube-lite/registries.yaml",
        help_heading = "Node"
    )]
    pub private_registry: PathBuf,
    /// Pull only from the configured mirrors, never from the registry itself
    #[arg(long, help_heading = "Node")]
    pub disable_default_registry_endpoint: bool,
    #[command(flatten)]
    pub images: ImageArgs,
    /// Time for pods to terminate when the machine shuts down; 0 disables graceful shutdown
    #[arg(long, value_name = "TIME", default_value = SHUTDOWN_DEFAULT, help_heading = "Node")]
    pub shutdown_grace_period: String,
    /// Part of that time reserved for critical pods, which terminate last
    #[arg(
        long,
        value_name = "TIME",
        default_value = SHUTDOWN_CRITICAL_DEFAULT,
        help_heading = "Node"
    )]
    pub shutdown_grace_period_critical_pods: String,
    /// Use this CRI socket instead of kube-lite's own containerd
    #[arg(long, value_name = "SOCKET", help_heading = "Node")]
    pub container_runtime_endpoint: Option<String>,
    /// Share shim processes between pods: saves memory, but a crash ends every pod of the shim;
    /// needs containerd 2.2
    #[arg(long, help_heading = "Node")]
    pub grouped_shims: bool,
    #[command(flatten)]
    pub components: super::NodeComponentArgs,
    /// resolv.conf for pods and the DNS forwarder [env: KUBE_LITE_RESOLV_CONF]
    #[arg(long, value_name = "FILE", default_value = "/etc/resolv.conf", help_heading = "Node")]
    pub resolv_conf: PathBuf,
    /// Give containers their SELinux labels, if the kernel has SELinux [env: KUBE_LITE_SELINUX]
    #[arg(long, help_heading = "Hardening")]
    pub selinux: bool,
    /// Stricter defaults: anonymous requests see health and version only; namespaces without a Pod
    /// Security label enforce `baseline`; seccomp is RuntimeDefault; no CAP_NET_RAW; limits on
    /// processes per pod, events and idle connections; no external addresses of Services; pods
    /// reach the API through its Service only, and no kubelets, store or cloud metadata without a
    /// NetworkPolicy that allows it
    #[arg(long, value_name = "NAME", value_enum, help_heading = "Hardening")]
    pub profile: Option<Profile>,
    /// Do not start the node if kernel settings differ from the kubelet's defaults; kube-lite never
    /// changes them
    #[arg(long, help_heading = "Hardening")]
    pub protect_kernel_defaults: bool,
    /// Kubelet root directory
    #[arg(
        long,
        value_name = "DIR",
        default_value = "/var/lib/kubelet",
        help_heading = "Several nodes on one machine"
    )]
    pub kubelet_root_dir: PathBuf,
    /// Directory of pod logs; the kubelet API serves the whole directory at `/logs/`
    #[arg(
        long,
        value_name = "DIR",
        default_value = "/var/log",
        help_heading = "Several nodes on one machine"
    )]
    pub log_dir: PathBuf,
    /// Directory of sockets and network state
    #[arg(
        long,
        value_name = "DIR",
        default_value = "/run/kube-lite",
        help_heading = "Several nodes on one machine"
    )]
    pub run_dir: PathBuf,
    /// Parent cgroup of all pods
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
    /// Port of the service proxy's /healthz for load balancers; 0 disables it
    #[arg(
        long,
        value_name = "PORT",
        default_value_t = 10256,
        help_heading = "Several nodes on one machine"
    )]
    pub proxy_healthz_port: u16,
}

/// Sets of defaults other than upstream's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Profile {
    /// Follows the CIS benchmark and the NSA/CISA hardening guide.
    Hardened,
}
