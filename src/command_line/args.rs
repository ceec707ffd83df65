//! Commands and flags, with the names and defaults of k3s.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use ::cluster::token::Secret;
use clap::{Arg, ArgAction, Args, CommandFactory, Parser, Subcommand, ValueEnum};

mod certificate;
mod cloud;
mod cluster;
mod completion;
mod components;
mod datastore;
mod encrypt;
mod flannel;
mod helm;
mod images;
mod ingress;
mod manifests;
mod metrics;
mod node;
mod s3;
mod snapshot;
mod token;
mod virtual_addresses;

pub(crate) use self::cluster::ClusterArgs;
pub(crate) use self::images::RegistryArgs;
pub(crate) use self::manifests::ManifestArgs;
pub(crate) use self::node::{SHUTDOWN_CRITICAL_DEFAULT, SHUTDOWN_DEFAULT};
pub use certificate::{
    CertificateArgs, CertificateCommand, CheckArgs, CheckOutput, RotateCaArgs, RotateLeavesArgs,
};
pub(super) use cloud::{CloudControllerArgs, NodeAddressArgs};
pub use completion::{CompletionArgs, CompletionShell};
pub use components::ComponentArgs;
pub(super) use components::NodeComponentArgs;
pub use datastore::{DatastoreArgs, DatastoreTlsArgs, MigrateArgs};
pub use encrypt::{EncryptArgs, EncryptCommand};
pub(super) use flannel::{AdvertiseArgs, FlannelArgs, FlannelClusterArgs};
pub(super) use helm::HelmArgs;
pub use images::ImageArgs;
pub(super) use ingress::IngressArgs;
pub use metrics::MetricsArgs;
pub use node::{GeneralArgs, NodeArgs};
pub use s3::{Lookup, S3Args};
pub use snapshot::{
    FolderArgs, SnapshotArgs, SnapshotCommand, SnapshotCommandArgs, SnapshotOutput,
};
pub use token::{CreateArgs, DeleteArgs, ListArgs, RotateArgs, TokenArgs, TokenCommand};
pub(crate) use virtual_addresses::VirtualAddressArgs;

/// Kubernetes as one small binary for the edge.
///
/// `kube-lite server` is a whole cluster: API server, store, scheduler, controllers and this
/// machine as its first node. `kube-lite agent` makes another machine a node of it.
#[derive(Debug, Parser)]
#[command(
    name = "kube-lite",
    version = version(),
    args_override_self = true,
    max_term_width = 110
)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The definition of the command line. Boolean flags of `server`, `agent` and `etcd-snapshot`
/// accept a value (`--debug=false`), as in k3s and as configuration files and variables need it.
pub fn command() -> clap::Command {
    Cli::command().mut_subcommands(|command| match command.get_name() {
        "server" | "agent" => accept_boolean_values(super::flags::add_foreign(command)),
        "etcd-snapshot" => accept_boolean_values(command),
        _ => command,
    })
}

fn accept_boolean_values(command: clap::Command) -> clap::Command {
    let accept = |arg: Arg| match arg.get_action() {
        ArgAction::SetTrue => arg.num_args(0..=1).require_equals(true),
        _ => arg,
    };
    command.mut_args(accept).mut_subcommands(accept_boolean_values)
}

/// `0.1.0 (Kubernetes v1.37.1, commit 0123456789ab, 2026-01-31)`.
pub(crate) fn version() -> &'static str {
    concat!(env!("CARGO_PKG_VERSION"), " (Kubernetes v1.37.1", env!("KUBE_LITE_BUILD"), ")")
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a server: the control plane and, without --disable-agent, a node
    Server(Box<ServerArgs>),
    /// Run an agent: join this machine to a cluster as a node
    Agent(Box<AgentArgs>),
    /// Manage join tokens
    Token(TokenArgs),
    /// Take, list, delete and prune snapshots of the store
    EtcdSnapshot(Box<SnapshotCommandArgs>),
    /// Manage the encryption of Secrets at rest
    SecretsEncrypt(EncryptArgs),
    /// List and replace certificates and the cluster's CAs
    Certificate(CertificateArgs),
    /// Copy the data of k3s, an external datastore or etcd into the embedded store of a new server
    Migrate(MigrateArgs),
    /// Show the state and problems of this machine; exit status 0: ok, 1: degraded, 2: down
    Status(StatusArgs),
    /// Print the environment variables of etcdctl for this server's store: eval "$(kube-lite
    /// etcd-env)"
    EtcdEnv(EtcdEnvArgs),
    /// Explain an error id such as KL0101
    Explain {
        /// The id [default: list all]
        id: Option<String>,
    },
    /// Check that this machine meets the requirements of a node
    CheckConfig,
    /// Print a script that completes commands and flags: eval "$(kube-lite completion bash)"
    Completion(CompletionArgs),
}

impl Command {
    /// The general flags of `server` and `agent`.
    pub(super) fn general_mut(&mut self) -> Option<&mut GeneralArgs> {
        match self {
            Self::Server(args) => Some(&mut args.general),
            Self::Agent(args) => Some(&mut args.general),
            _ => None,
        }
    }
}

/// Flags of `kube-lite server`.
#[derive(Debug, Args, Clone)]
#[command(args_override_self = true)]
pub struct ServerArgs {
    #[command(flatten)]
    pub general: GeneralArgs,
    #[command(flatten)]
    pub node: NodeArgs,
    #[command(flatten)]
    pub snapshots: SnapshotArgs,
    #[command(flatten)]
    pub datastore: DatastoreArgs,

    /// Port of the API
    #[arg(long, value_name = "PORT", default_value_t = 6443, help_heading = "Listener")]
    pub https_listen_port: u16,
    /// Address at which pods and nodes reach the API [default: the first of --node-external-ip, or
    /// else the node's address]
    #[arg(long, value_name = "IP", help_heading = "Listener")]
    pub advertise_address: Option<IpAddr>,
    #[command(flatten)]
    pub advertise: AdvertiseArgs,
    /// Addresses of the etcd-compatible API of the store, such as 127.0.0.1:2379; clients need a
    /// certificate of server/tls/etcd
    #[arg(long, value_name = "ADDRESS", value_delimiter = ',', help_heading = "Listener")]
    pub etcd_listen: Vec<SocketAddr>,
    /// The etcd-compatible API without TLS and authentication, on a loopback address only: every
    /// local process can read and change the whole cluster
    #[arg(long, value_name = "ADDRESS", help_heading = "Listener")]
    pub etcd_listen_plain: Option<SocketAddr>,
    #[command(flatten)]
    pub metrics: MetricsArgs,
    /// Maximum size of the store's keys and values in bytes; beyond it the store raises the alarm
    /// NOSPACE and accepts deletions only, like etcd's --quota-backend-bytes [default: 2 GiB]
    #[arg(long, value_name = "BYTES", help_heading = "Listener")]
    pub etcd_quota_backend_bytes: Option<std::num::NonZeroU64>,
    /// Additional names or addresses in the serving certificate
    #[arg(long, value_name = "NAME", value_delimiter = ',', help_heading = "Listener")]
    pub tls_san: Vec<String>,

    /// Address ranges of pods, one per IP family
    #[arg(
        long,
        value_name = "CIDR",
        value_delimiter = ',',
        default_value = "10.42.0.0/16",
        help_heading = "Networking"
    )]
    pub cluster_cidr: Vec<String>,
    /// Address ranges of Services, one per IP family
    #[arg(
        long,
        value_name = "CIDR",
        value_delimiter = ',',
        default_value = "10.43.0.0/16",
        help_heading = "Networking"
    )]
    pub service_cidr: Vec<String>,
    /// Port range of NodePort Services
    #[arg(
        long,
        value_name = "FROM-TO",
        default_value = "30000-32767",
        help_heading = "Networking"
    )]
    pub service_node_port_range: String,
    /// Addresses of the cluster DNS, in the service range [default: its tenth address]
    #[arg(long, value_name = "IP", value_delimiter = ',', help_heading = "Networking")]
    pub cluster_dns: Vec<IpAddr>,
    /// Cluster DNS domain
    #[arg(
        long,
        value_name = "DOMAIN",
        default_value = "cluster.local",
        help_heading = "Networking"
    )]
    pub cluster_domain: String,

    /// Path of the administrator's kubeconfig [default: /etc/kube-lite/kube-lite.yaml]
    /// [env: KUBE_LITE_KUBECONFIG_OUTPUT]
    #[arg(long, short = 'o', value_name = "FILE", help_heading = "Client")]
    pub write_kubeconfig: Option<PathBuf>,
    /// File mode of the kubeconfig [env: KUBE_LITE_KUBECONFIG_MODE]
    #[arg(long, value_name = "OCTAL", default_value = "600", help_heading = "Client")]
    pub write_kubeconfig_mode: String,

    /// Group of the kubeconfig, by name or number [env: KUBE_LITE_KUBECONFIG_GROUP]
    #[arg(long, value_name = "GROUP", help_heading = "Client")]
    pub write_kubeconfig_group: Option<String>,

    /// CSV file of static tokens: token, user name, user uid and optional quoted groups; read at
    /// start only
    #[arg(long, value_name = "FILE", help_heading = "Client")]
    pub token_auth_file: Option<PathBuf>,

    /// Flag of kube-apiserver, such as oidc-issuer-url=https://issuer.example.com; an unsupported
    /// one is rejected with the list of supported flags
    #[arg(long, value_name = "NAME=VALUE", help_heading = "API server")]
    pub kube_apiserver_arg: Vec<String>,

    /// Audit log in server/logs/audit.log. metadata: every request. compact: changes and reads of
    /// Secrets; suits SD cards. off. An audit-policy-file takes precedence [default: compact, with
    /// --profile=hardened metadata]
    #[arg(long, value_name = "PRESET", value_enum, help_heading = "API server")]
    pub audit: Option<AuditPreset>,

    /// Components to disable: coredns, gateway-api-crd, ingress (or traefik, its name in k3s; with
    /// it the Gateways), local-storage, metrics-server, runtimes, servicelb
    #[arg(long, value_name = "NAME", value_delimiter = ',', help_heading = "Components")]
    pub disable: Vec<String>,
    /// Optional components to run: vertical-pod-autoscaler
    #[arg(long, value_name = "NAME", value_delimiter = ',', help_heading = "Components")]
    pub enable: Vec<String>,
    /// Run no node on this machine; then neither root nor a container runtime is needed
    #[arg(long, help_heading = "Components")]
    pub disable_agent: bool,
    /// Run no controllers
    #[arg(long, help_heading = "Components")]
    pub disable_controller_manager: bool,
    /// Run no scheduler
    #[arg(long, help_heading = "Components")]
    pub disable_scheduler: bool,
    #[command(flatten)]
    pub components: ComponentArgs,
    #[command(flatten)]
    pub manifests: ManifestArgs,
    #[command(flatten)]
    pub cloud: CloudControllerArgs,
    #[command(flatten)]
    pub helm: HelmArgs,
    #[command(flatten)]
    pub cluster: ClusterArgs,
    #[command(flatten)]
    pub virtual_addresses: VirtualAddressArgs,
    #[command(flatten)]
    pub ingress: IngressArgs,

    /// Secret with which machines join, at least 16 characters; prefer --token-file [default: a
    /// random one in server/token] [env: KUBE_LITE_TOKEN]
    #[arg(long, short = 't', value_name = "SECRET", help_heading = "Joining")]
    pub token: Option<Secret>,
    /// File with the token [env: KUBE_LITE_TOKEN_FILE]
    #[arg(long, value_name = "FILE", help_heading = "Joining")]
    pub token_file: Option<PathBuf>,
    /// Secret with which only agents can join [default: that of --token] [env:
    /// KUBE_LITE_AGENT_TOKEN]
    #[arg(long, value_name = "SECRET", help_heading = "Joining")]
    pub agent_token: Option<Secret>,
    /// File with the agent token [env: KUBE_LITE_AGENT_TOKEN_FILE]
    #[arg(long, value_name = "FILE", help_heading = "Joining")]
    pub agent_token_file: Option<PathBuf>,

    /// Join the cluster of this server, https://HOST:PORT, as another server; needs --token from
    /// its server/token. A server with data of that cluster continues as its member
    #[arg(long, short = 's', value_name = "URL", help_heading = "Several servers")]
    pub server: Option<String>,
    /// First server of an HA cluster. Optional: a server started without it can be joined later,
    /// too
    #[arg(long, help_heading = "Several servers")]
    pub cluster_init: bool,
    /// Port for replication between servers, with mutual TLS
    #[arg(long, value_name = "PORT", default_value_t = 2380, help_heading = "Several servers")]
    pub peer_port: u16,

    /// Mark a node unreachable within seconds of losing its tunnel instead of when its lease
    /// expires; pods without their own toleration restart elsewhere in less than ten seconds
    #[arg(long, help_heading = "Node loss")]
    pub fast_node_loss: bool,
    /// Seconds that pods without their own toleration stay on a node that is not ready [default:
    /// 300]
    #[arg(long, value_name = "SECONDS", help_heading = "Node loss")]
    pub default_not_ready_toleration_seconds: Option<i64>,
    /// Seconds that pods without their own toleration stay on an unreachable node [default: 300,
    /// with --fast-node-loss 1]
    #[arg(long, value_name = "SECONDS", help_heading = "Node loss")]
    pub default_unreachable_toleration_seconds: Option<i64>,
}

/// Flags of `kube-lite agent`.
#[derive(Debug, Args, Clone)]
#[command(args_override_self = true)]
pub struct AgentArgs {
    #[command(flatten)]
    pub general: GeneralArgs,
    #[command(flatten)]
    pub node: NodeArgs,

    /// Server to join, https://HOST:PORT; stored after joining [env: KUBE_LITE_URL]
    #[arg(long, short = 's', value_name = "URL", help_heading = "Joining")]
    pub server: Option<String>,
    /// Join token, from server/token of the server; needed only to join; prefer --token-file [env:
    /// KUBE_LITE_TOKEN]
    #[arg(long, short = 't', value_name = "TOKEN", help_heading = "Joining")]
    pub token: Option<Secret>,
    /// File with the token [env: KUBE_LITE_TOKEN_FILE]
    #[arg(long, value_name = "FILE", help_heading = "Joining")]
    pub token_file: Option<PathBuf>,
    /// Accept a token without a CA hash and trust the CA that the server presents
    #[arg(long, help_heading = "Joining")]
    pub insecure_join: bool,
}

/// Flags of `kube-lite status`.
#[derive(Debug, Args, Clone)]
pub struct StatusArgs {
    /// Data directory of the server
    #[arg(long, short = 'd', value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
    /// Output format
    #[arg(long, short = 'o', value_enum, default_value_t = StatusOutput::Text)]
    pub output: StatusOutput,
    /// Wait for this condition
    #[arg(long, value_name = "CONDITION", value_parser = ["ready"])]
    pub wait: Option<String>,
    /// Timeout of --wait in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 120)]
    pub timeout: u64,
}

/// Flags of `kube-lite etcd-env`.
#[derive(Debug, Args, Clone)]
pub struct EtcdEnvArgs {
    /// Data directory of the server
    #[arg(long, short = 'd', value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
}

/// Audit log preset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum AuditPreset {
    /// Records every request.
    Metadata,
    /// Records changes and reads of Secrets.
    Compact,
    /// Records nothing.
    Off,
}

impl AuditPreset {
    /// The value of `--audit`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Metadata => "metadata",
            Self::Compact => "compact",
            Self::Off => "off",
        }
    }
}

/// Output format of `status`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum StatusOutput {
    /// Text for a terminal.
    Text,
    /// JSON with a versioned schema.
    Json,
}
