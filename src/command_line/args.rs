//! What may be typed: commands and flags with k3s's names and defaults.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

mod certificate;
mod datastore;
mod encrypt;
mod node;
mod s3;
mod snapshot;
mod token;

pub use certificate::{
    CertificateArgs, CertificateCommand, CheckArgs, CheckOutput, RotateCaArgs, RotateLeavesArgs,
};
use cluster::token::Secret;
pub use datastore::{DatastoreArgs, DatastoreTlsArgs, MigrateArgs};
pub use encrypt::{EncryptArgs, EncryptCommand};
pub use node::{GeneralArgs, NodeArgs};
pub use s3::{Lookup, S3Args};
pub use snapshot::{
    FolderArgs, SnapshotArgs, SnapshotCommand, SnapshotCommandArgs, SnapshotOutput,
};
pub use token::{CreateArgs, DeleteArgs, ListArgs, RotateArgs, TokenArgs, TokenCommand};

/// Kubernetes as one small binary for the edge.
///
/// `kube-lite server` is a whole cluster: API server, store, scheduler, controllers and this machine as its first node.
/// `kube-lite agent` makes another machine a node of it.
#[derive(Debug, Parser)]
#[command(name = "kube-lite", version = crate::command_line::args::version(), args_override_self = true, max_term_width = 110)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// `0.1.0 (Kubernetes v1.37.1)`.
pub(crate) fn version() -> &'static str {
    concat!(env!("CARGO_PKG_VERSION"), " (Kubernetes v1.37.1)")
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a server: the control plane and, unless --disable-agent, a node
    Server(Box<ServerArgs>),
    /// Run an agent: this machine as a node of the cluster of a server
    Agent(Box<AgentArgs>),
    /// Manage the tokens by which machines join
    Token(TokenArgs),
    /// Take, list, delete and prune snapshots of the store
    EtcdSnapshot(SnapshotCommandArgs),
    /// Show and change how Secrets are encrypted at rest
    SecretsEncrypt(EncryptArgs),
    /// Show certificates, have them made anew, and change the CAs of the cluster
    Certificate(CertificateArgs),
    /// Copy the data of a k3s, of an external datastore or of an etcd into the embedded store of a server that has none yet
    Migrate(MigrateArgs),
    /// Show what runs here and what is wrong; exit status 0 well, 1 degraded, 2 down
    Status(StatusArgs),
    /// Print the variables by which etcdctl reaches the store: eval "$(kube-lite etcd-env)"
    EtcdEnv(EtcdEnvArgs),
    /// Explain an error id such as KL0101, without a network
    Explain {
        /// The id; without one, all are listed
        id: Option<String>,
    },
    /// Check this machine for what a node needs and say how to mend what is missing
    CheckConfig,
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
    /// Address that the API is reached under by pods and nodes [default: the node's address]
    #[arg(long, value_name = "IP", help_heading = "Listener")]
    pub advertise_address: Option<IpAddr>,
    /// Address of the etcd-compatible interface of the store, such as 127.0.0.1:2379; clients need a certificate of server/tls/etcd
    #[arg(long, value_name = "ADDRESS", value_delimiter = ',', help_heading = "Listener")]
    pub etcd_listen: Vec<SocketAddr>,
    /// The same without TLS and certificates, on a loopback address only: whoever reaches it owns the cluster
    #[arg(long, value_name = "ADDRESS", help_heading = "Listener")]
    pub etcd_listen_plain: Option<SocketAddr>,
    /// Bytes of keys and values that the store takes before it refuses all but deletions and raises the alarm NOSPACE; etcd's
    /// --quota-backend-bytes [default: 2 GiB]
    #[arg(long, value_name = "BYTES", help_heading = "Listener")]
    pub etcd_quota_backend_bytes: Option<std::num::NonZeroU64>,
    /// Further names or addresses in the serving certificate
    #[arg(long, value_name = "NAME", value_delimiter = ',', help_heading = "Listener")]
    pub tls_san: Vec<String>,

    /// Addresses of pods, one range per family
    #[arg(
        long,
        value_name = "CIDR",
        value_delimiter = ',',
        default_value = "10.42.0.0/16",
        help_heading = "Networking"
    )]
    pub cluster_cidr: Vec<String>,
    /// Addresses of services, one range per family
    #[arg(
        long,
        value_name = "CIDR",
        value_delimiter = ',',
        default_value = "10.43.0.0/16",
        help_heading = "Networking"
    )]
    pub service_cidr: Vec<String>,
    /// Ports that NodePort services get
    #[arg(
        long,
        value_name = "FROM-TO",
        default_value = "30000-32767",
        help_heading = "Networking"
    )]
    pub service_node_port_range: String,
    /// Address of the cluster DNS, in the service range [default: its tenth address]
    #[arg(long, value_name = "IP", value_delimiter = ',', help_heading = "Networking")]
    pub cluster_dns: Vec<IpAddr>,
    /// Domain of services
    #[arg(
        long,
        value_name = "DOMAIN",
        default_value = "cluster.local",
        help_heading = "Networking"
    )]
    pub cluster_domain: String,

    /// Where to write the administrator's kubeconfig [default: /etc/kube-lite/kube-lite.yaml] [env: KUBE_LITE_KUBECONFIG_OUTPUT]
    #[arg(long, short = 'o', value_name = "FILE", help_heading = "Client")]
    pub write_kubeconfig: Option<PathBuf>,
    /// Its permission bits [env: KUBE_LITE_KUBECONFIG_MODE]
    #[arg(long, value_name = "OCTAL", default_value = "600", help_heading = "Client")]
    pub write_kubeconfig_mode: String,

    /// CSV of further tokens: token, user name, user uid and, quoted, the user's groups; read at start
    #[arg(long, value_name = "FILE", help_heading = "Client")]
    pub token_auth_file: Option<PathBuf>,

    /// A setting of the API server under upstream's name, such as audit-log-path=/var/log/kube-lite/audit.log; those that begin
    /// with audit-, oidc-, authorization- or authentication-token-webhook-, authentication-config, anonymous-auth,
    /// max-requests-inflight, max-mutating-requests-inflight, enable-priority-and-fairness, tracing-config-file and
    /// encryption-provider-config (with -automatic-reload) are known: audit-policy-file says what is recorded, authorization-config who is asked
    #[arg(long, value_name = "NAME=VALUE", help_heading = "API server")]
    pub kube_apiserver_arg: Vec<String>,

    /// What of requests is recorded in server/logs/audit.log of the data directory, never with bodies: metadata (all of them; files of
    /// 100 MB, ten old ones, 30 days), compact (changes, and reads of Secrets; three old files of 4 MB, compressed, written every half
    /// minute: for SD cards) or off; a policy in audit-policy-file says it in its place [default: compact, with
    /// --profile=hardened metadata]
    #[arg(long, value_name = "FORM", value_enum, help_heading = "API server")]
    pub audit: Option<AuditForm>,

    /// Components not to run: coredns, local-storage; servicelb, traefik, metrics-server and runtimes are accepted and change
    /// nothing, as kube-lite does not contain them
    #[arg(long, value_name = "NAME", value_delimiter = ',', help_heading = "Components")]
    pub disable: Vec<String>,
    /// Run no node on this machine; needs neither root nor a container runtime
    #[arg(long, help_heading = "Components", num_args = 0..=1, default_missing_value = "true", default_value = "false", require_equals = true)]
    pub disable_agent: bool,
    /// Run no controllers
    #[arg(long, help_heading = "Components", num_args = 0..=1, default_missing_value = "true", default_value = "false", require_equals = true)]
    pub disable_controller_manager: bool,
    /// Run no scheduler
    #[arg(long, help_heading = "Components", num_args = 0..=1, default_missing_value = "true", default_value = "false", require_equals = true)]
    pub disable_scheduler: bool,
    /// Run no service proxy
    #[arg(long, help_heading = "Components", num_args = 0..=1, default_missing_value = "true", default_value = "false", require_equals = true)]
    pub disable_kube_proxy: bool,
    /// Enforce no network policies; they are stored all the same
    #[arg(long, help_heading = "Components", num_args = 0..=1, default_missing_value = "true", default_value = "false", require_equals = true)]
    pub disable_network_policy: bool,

    /// Secret that machines join with, at least 16 characters; better in a file [default: a random one in server/token] [env: KUBE_LITE_TOKEN]
    #[arg(long, short = 't', value_name = "SECRET", help_heading = "Joining")]
    pub token: Option<Secret>,
    /// File that holds it [env: KUBE_LITE_TOKEN_FILE]
    #[arg(long, value_name = "FILE", help_heading = "Joining")]
    pub token_file: Option<PathBuf>,
    /// Secret that joins agents only [default: that of --token] [env: KUBE_LITE_AGENT_TOKEN]
    #[arg(long, value_name = "SECRET", help_heading = "Joining")]
    pub agent_token: Option<Secret>,
    /// File that holds it [env: KUBE_LITE_AGENT_TOKEN_FILE]
    #[arg(long, value_name = "FILE", help_heading = "Joining")]
    pub agent_token_file: Option<PathBuf>,

    /// Join the cluster of another server, https://HOST:PORT, as one more server; takes --token of that cluster's server/token.
    /// A server that has data of that cluster already goes on with it
    #[arg(long, short = 's', value_name = "URL", help_heading = "Several servers")]
    pub server: Option<String>,
    /// Begin a cluster of several servers: hear others from the start. A server without this flag hears them, too, once the
    /// first one joins
    #[arg(long, help_heading = "Several servers", num_args = 0..=1, default_missing_value = "true", default_value = "false", require_equals = true)]
    pub cluster_init: bool,
    /// Port at which servers hear each other, with certificates of the cluster on both sides
    #[arg(long, value_name = "PORT", default_value_t = 2380, help_heading = "Several servers")]
    pub peer_port: u16,

    /// Give a node up within seconds of the loss of its tunnel instead of after its lease; its pods that do not say how long
    /// they stay start elsewhere in less than ten seconds
    #[arg(long, help_heading = "Node loss", num_args = 0..=1, default_missing_value = "true", default_value = "false", require_equals = true)]
    pub fast_node_loss: bool,
    /// How long pods that do not say it stay on a node that is not ready
    #[arg(long, value_name = "SECONDS", default_value_t = 300, help_heading = "Node loss")]
    pub default_not_ready_toleration_seconds: i64,
    /// How long pods that do not say it stay on a node that is unreachable [default: 300, with --fast-node-loss 1]
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

    /// Server to join, https://HOST:PORT; remembered once joined [env: KUBE_LITE_URL]
    #[arg(long, short = 's', value_name = "URL", help_heading = "Joining")]
    pub server: Option<String>,
    /// Token to join with, from server/token of the server; better in a file; needed once [env: KUBE_LITE_TOKEN]
    #[arg(long, short = 't', value_name = "TOKEN", help_heading = "Joining")]
    pub token: Option<Secret>,
    /// File that holds it [env: KUBE_LITE_TOKEN_FILE]
    #[arg(long, value_name = "FILE", help_heading = "Joining")]
    pub token_file: Option<PathBuf>,
    /// Trust whatever server answers first: for a token without the hash of a CA
    #[arg(long, help_heading = "Joining", num_args = 0..=1, default_missing_value = "true", default_value = "false", require_equals = true)]
    pub insecure_join: bool,
}

/// Flags of `kube-lite status`.
#[derive(Debug, Args, Clone)]
pub struct StatusArgs {
    /// Data directory of the server
    #[arg(long, short = 'd', value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
    /// Form of the answer
    #[arg(long, short = 'o', value_enum, default_value_t = StatusOutput::Text)]
    pub output: StatusOutput,
    /// Wait until this holds
    #[arg(long, value_name = "CONDITION", value_parser = ["ready"])]
    pub wait: Option<String>,
    /// Wait at most so many seconds
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

/// What is recorded of requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum AuditForm {
    /// All requests.
    Metadata,
    /// What changes something.
    Compact,
    /// Nothing.
    Off,
}

impl AuditForm {
    /// As it is typed.
    pub fn name(self) -> &'static str {
        match self {
            Self::Metadata => "metadata",
            Self::Compact => "compact",
            Self::Off => "off",
        }
    }
}

/// Form of the answer of `status`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum StatusOutput {
    /// One screen for people.
    Text,
    /// JSON with a versioned schema.
    Json,
}
