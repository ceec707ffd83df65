//! `kube-lite status`: what runs on this machine and what is wrong, over a local socket that needs
//! no API.

pub(crate) mod certificates;
pub(crate) mod node;
pub(crate) mod pods;
mod render;

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use base::Tasks;
use serde::{Deserialize, Serialize};
use tokio::io::AsyncReadExt;
use tokio::net::UnixStream;

pub use pods::PodLine;
pub use render::render;

use crate::control_socket;
use crate::error_catalogue::CommandError;

/// Version of the schema; increases when a field is removed or changes its meaning.
pub(crate) const SCHEMA: u32 = 2;
/// Largest answer in bytes; enough for ten thousand nodes.
const RESPONSE_BYTES_MAX: u64 = 8 << 20;
/// The socket of a server, and that of an agent, in the data directory.
const SOCKETS: [&str; 2] = ["server/status.sock", "agent/status.sock"];

/// The overall state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// All is well.
    Ok,
    /// There are problems.
    Degraded,
    /// No process answers.
    Down,
}

/// What this machine is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// It has the control plane.
    Server,
    /// It has joined one.
    Agent,
}

/// One problem.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    /// Its description.
    pub what: String,
    /// How to fix it.
    pub fix: String,
}

impl Problem {
    pub(crate) fn new(what: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { what: what.into(), fix: fix.into() }
    }
}

/// The state of a connection.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Link {
    /// `up`, `closed` or `silent` for a node's tunnel; the link state for an agent's server.
    pub state: String,
    /// Seconds in this state, if known.
    #[serde(default)]
    pub since_seconds: Option<u64>,
}

/// One node.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeLine {
    /// Name.
    pub name: String,
    /// `Ready`, `NotReady` or `Unknown`.
    pub state: String,
    /// Whether the node is unschedulable.
    #[serde(default)]
    pub cordoned: bool,
    /// Its kubelet version, such as `v1.37.1+kubelite.0.1.0`.
    #[serde(default)]
    pub version: String,
    /// Its first internal address.
    #[serde(default)]
    pub address: String,
    /// Backend of its pod network, such as `vxlan`.
    #[serde(default)]
    pub overlay: Option<String>,
    /// Its tunnel to this server; `None` when it has none.
    #[serde(default)]
    pub tunnel: Option<Link>,
    /// Seconds since its lease was renewed.
    #[serde(default)]
    pub lease_age_seconds: Option<u64>,
    /// Why it is not ready.
    #[serde(default)]
    pub reason: Option<String>,
}

/// One server as an agent knows it.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ServerLine {
    /// `host:port`.
    pub address: String,
    /// The state of the connection.
    #[serde(flatten)]
    pub link: Link,
    /// Why it does not answer.
    #[serde(default)]
    pub error: Option<String>,
}

/// One member of the store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MemberLine {
    /// Its id, 16 hex characters.
    pub id: String,
    /// Where other members reach it.
    pub address: String,
    /// `leader`, `voter` or `learner`.
    pub role: String,
    /// Whether it is this server.
    pub own: bool,
    /// Whether it responds to the leader; `None` where that is not known, on followers.
    #[serde(default)]
    pub heard: Option<bool>,
}

/// One certificate on this machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CertificateLine {
    /// Its file.
    pub file: String,
    /// When it ends, as RFC 3339.
    pub ends: String,
    /// In how many days; negative when it has ended.
    pub days_left: i64,
}

/// A virtual address and the machine that holds it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VirtualAddressLine {
    /// The address.
    pub address: IpAddr,
    /// Name of the machine.
    pub holder: String,
}

/// Stored objects without effect.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct UnusedLine {
    /// Resource, or resource and field.
    pub what: String,
    /// How many objects.
    pub count: usize,
    /// Why they have no effect.
    pub why: String,
}

/// A deprecated API that was used since the server started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DeprecatedLine {
    /// `resource.version.group`, or `resource.version` of the core; a subresource behind a `/`.
    pub api: String,
    /// Number of requests.
    pub count: u64,
    /// How many seconds ago the first and the last time were.
    pub first_seconds: u64,
    /// See above.
    pub last_seconds: u64,
    /// User of the last request.
    pub user: String,
    /// User agent of the last request.
    #[serde(default)]
    pub client: String,
}

/// The store of a server.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Store {
    /// Keys in the store.
    pub store_keys: usize,
    /// Bytes of the store in memory.
    pub store_memory_bytes: usize,
    /// Bytes of the store on disk.
    pub store_disk_bytes: u64,
    /// Revision of the store.
    pub revision: i64,
    /// The database that keeps it, without a password; `None` is the embedded store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub datastore: Option<String>,
    /// Where clients of etcd reach it, as it tells the other members.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub etcd: Vec<String>,
}

/// The answer.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    /// Version of this schema.
    pub schema: u32,
    /// What this machine is.
    pub role: Role,
    /// Verdict.
    pub verdict: Verdict,
    /// This machine's own parts work, whatever there is with others.
    pub ready: bool,
    /// Version of kube-lite.
    pub version: String,
    /// Version of Kubernetes.
    pub kubernetes: String,
    /// URL of the API; on agents `None`.
    #[serde(default)]
    pub api: Option<String>,
    /// The store; on agents `None`.
    #[serde(flatten)]
    pub store: Option<Store>,
    /// The members of the store, where there are several; empty on agents and on a server alone.
    #[serde(default)]
    pub members: Vec<MemberLine>,
    /// What runs containers here: `containerd 1.6.20 with crun`; `None` before it answers and
    /// without a node.
    #[serde(default)]
    pub runtime: Option<String>,
    /// Pods that this machine has.
    #[serde(default)]
    pub pods: Option<usize>,
    /// Pods of this node that are not ready; completed ones are left out.
    #[serde(default)]
    pub not_ready_pods: Vec<PodLine>,
    /// On agents: no server answers, so the node runs from what it knew last.
    #[serde(default)]
    pub from_last_known_state: bool,
    /// On agents: all servers that are known.
    #[serde(default)]
    pub servers: Vec<ServerLine>,
    /// Nodes; an agent knows itself alone.
    pub nodes: Vec<NodeLine>,
    /// Virtual addresses that a machine holds; an agent knows its own alone.
    #[serde(default)]
    pub virtual_addresses: Vec<VirtualAddressLine>,
    /// Certificates of this machine, the first to end first.
    #[serde(default)]
    pub certificates: Vec<CertificateLine>,
    /// Stored kinds and fields without effect.
    #[serde(default)]
    pub unused: Vec<UnusedLine>,
    /// Deprecated APIs used since the server started; empty on agents.
    #[serde(default)]
    pub deprecated: Vec<DeprecatedLine>,
    /// Settings without effect, each with the reason.
    #[serde(default)]
    pub without_effect: Vec<String>,
    /// The problems.
    pub problems: Vec<Problem>,
}

impl Status {
    /// An empty one of this program.
    pub(crate) fn new(role: Role) -> Self {
        Self {
            schema: SCHEMA,
            role,
            verdict: Verdict::Ok,
            ready: true,
            version: env!("CARGO_PKG_VERSION").into(),
            kubernetes: "v1.37.1".into(),
            api: None,
            store: None,
            members: Vec::new(),
            runtime: None,
            pods: None,
            not_ready_pods: Vec::new(),
            from_last_known_state: false,
            servers: Vec::new(),
            nodes: Vec::new(),
            virtual_addresses: Vec::new(),
            certificates: Vec::new(),
            unused: Vec::new(),
            deprecated: Vec::new(),
            without_effect: Vec::new(),
            problems: Vec::new(),
        }
    }

    /// Adds the problems of certificates and sets the verdict.
    pub(crate) fn with_verdict(mut self) -> Self {
        self.problems.extend(self.certificates.iter().filter_map(certificates::problem));
        if !self.problems.is_empty() {
            self.verdict = Verdict::Degraded;
        }
        self
    }
}

/// The problems that components of this process report, by key.
pub(crate) fn component_problems(tasks: &Tasks) -> Vec<(String, Problem)> {
    let problem = |(key, p): (String, base::Problem)| (key, Problem::new(p.what, p.fix));
    tasks.problems().list().into_iter().map(problem).collect()
}

/// Builds the answer.
#[async_trait]
pub(crate) trait Source: Send + Sync + 'static {
    async fn status(&self) -> Status;
}

/// `3 s`, `5 min`, `2 h`, `4 d`.
fn ago(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7200 => format!("{} min", seconds / 60),
        7200..172_800 => format!("{} h", seconds / 3600),
        _ => format!("{} d", seconds / 86_400),
    }
}

/// Pods that have a folder on this machine.
pub(crate) fn pods_in(kubelet_root: &Path) -> usize {
    std::fs::read_dir(kubelet_root.join("pods")).map_or(0, Iterator::count)
}

/// Serves the status socket of this role until shutdown.
///
/// # Errors
/// The socket cannot be created.
pub(crate) fn serve(
    data_dir: &Path,
    role: Role,
    source: impl Source,
    tasks: &Tasks,
) -> Result<(), CommandError> {
    let name = match role {
        Role::Server => SOCKETS[0],
        Role::Agent => SOCKETS[1],
    };
    let source = Arc::new(source);
    control_socket::serve(data_dir.join(name), ("status", "status-answer"), tasks, move |stream| {
        let source = Arc::clone(&source);
        async move { control_socket::write_response(stream, &source.status().await).await }
    })
}

/// Queries the process of this data directory; `None` if none answers.
pub async fn query(data_dir: &Path) -> Option<Status> {
    for name in SOCKETS {
        if let Some(status) = query_socket(&data_dir.join(name)).await {
            return Some(status);
        }
    }
    None
}

async fn query_socket(socket: &PathBuf) -> Option<Status> {
    let stream = UnixStream::connect(socket).await.ok()?;
    let mut text = Vec::new();
    let read = stream.take(RESPONSE_BYTES_MAX).read_to_end(&mut text).await;
    read.ok().and_then(|_| serde_json::from_slice(&text).ok())
}

/// Queries until this machine's components are ready or the timeout expires; the last answer.
pub async fn wait_ready(data_dir: &Path, timeout: Duration) -> Option<Status> {
    let deadline = base::clock::now() + timeout;
    let mut backoff = base::Backoff::new(Duration::from_millis(20), Duration::from_millis(500));
    let never = base::Shutdown::new();
    loop {
        let status = query(data_dir).await;
        let done = status.as_ref().is_some_and(|s| s.ready);
        if done || base::clock::now() >= deadline {
            return status;
        }
        backoff.wait(&never).await;
    }
}
