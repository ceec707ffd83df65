//! `kube-lite status`: what runs here and what is wrong, over a local socket that needs no API.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use base::{Kind, Tasks};
use serde::{Deserialize, Serialize};
use store::Backend;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};

use crate::catalogue::{DATA_DIR, Refusal};
use crate::server::config::Config;
use crate::server::control_plane::ControlPlane;

/// Largest answer.
const ANSWER_MAX: u64 = 1 << 20;

/// How the whole stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// All is well.
    Ok,
    /// Something needs attention.
    Degraded,
    /// The server does not answer.
    Down,
}

/// One thing that is wrong.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Problem {
    /// What.
    pub what: String,
    /// What to do.
    pub fix: String,
}

/// One node as `status` shows it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct NodeLine {
    /// Name.
    pub name: String,
    /// `Ready`, `NotReady` or `Unknown`.
    pub state: String,
}

/// Stored objects that nothing acts on yet.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct UnusedLine {
    /// Resource, or resource and field.
    pub what: String,
    /// How many objects.
    pub count: usize,
    /// What does not happen.
    pub why: String,
}

/// The answer; `schema` changes when a field changes its meaning.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    /// Version of this schema.
    pub schema: u32,
    /// Verdict.
    pub verdict: Verdict,
    /// Version of kube-lite.
    pub version: String,
    /// Version of Kubernetes served.
    pub kubernetes: String,
    /// URL of the API.
    pub api: String,
    /// Keys in the store.
    pub store_keys: usize,
    /// Bytes of the store in memory.
    pub store_memory_bytes: usize,
    /// Bytes of the store on disk.
    pub store_disk_bytes: u64,
    /// Revision of the store.
    pub revision: i64,
    /// What runs containers here: `containerd 1.6.20 with crun`; `None` before it answers and without an agent.
    #[serde(default)]
    pub runtime: Option<String>,
    /// Nodes.
    pub nodes: Vec<NodeLine>,
    /// Kinds and fields that are stored here, but not acted on yet.
    #[serde(default)]
    pub unused: Vec<UnusedLine>,
    /// What is wrong, worst last.
    pub problems: Vec<Problem>,
}

fn socket(data_dir: &Path) -> PathBuf {
    data_dir.join("server/status.sock")
}

/// Answers on the socket until shutdown.
///
/// # Errors
/// When the socket cannot be made.
pub(crate) fn serve(
    config: &Config,
    plane: &ControlPlane,
    runtime: Arc<OnceLock<String>>,
    tasks: &Tasks,
) -> Result<(), Refusal> {
    let path = socket(&config.machine.data_dir);
    // Of a predecessor that was killed: the data directory's lock says that nobody uses it.
    let _ = std::fs::remove_file(&path);
    let listener = UnixListener::bind(&path)
        .map_err(|e| DATA_DIR.refuse(format!("cannot make {}: {e}", path.display())))?;
    let source = Arc::new(Source {
        store: Arc::clone(&plane.store),
        server: plane.server.clone(),
        api: format!("https://{}:{}", config.advertise, plane.address.port()),
        agent: config.agent.then(|| config.machine.node_name.clone()),
        runtime,
    });
    let (shutdown, own) = (tasks.shutdown().clone(), tasks.clone());
    tasks.spawn(Kind::Critical, "status", async move {
        loop {
            let stream = tokio::select! {
                accepted = listener.accept() => accepted?.0,
                () = shutdown.requested() => return Ok::<(), std::io::Error>(()),
            };
            let source = Arc::clone(&source);
            own.spawn(Kind::Request, "status-answer", async move { answer(&source, stream).await });
        }
    });
    Ok(())
}

struct Source {
    store: Arc<dyn Backend>,
    server: apiserver::ApiServer,
    api: String,
    agent: Option<String>,
    runtime: Arc<OnceLock<String>>,
}

async fn answer(source: &Source, mut stream: UnixStream) -> std::io::Result<()> {
    let status = source.status().await;
    stream.write_all(&serde_json::to_vec(&status).unwrap_or_default()).await?;
    stream.shutdown().await
}

impl Source {
    async fn status(&self) -> Status {
        let size = self.store.size();
        let nodes = self.nodes().await;
        let mut problems = Vec::new();
        if let Err(error) = self.store.read_barrier().await {
            problems.push(Problem {
                what: format!("the store does not answer: {error}"),
                fix: "look at the log for what happened to its disk".into(),
            });
        }
        if let Some(name) = &self.agent {
            let state = nodes
                .iter()
                .find(|n| n.name == *name)
                .map_or("not registered", |n| n.state.as_str());
            if state != "Ready" {
                problems.push(Problem {
                    what: format!("node {name} is {state}"),
                    fix: format!("kubectl describe node {name}"),
                });
            }
        }
        Status {
            schema: 1,
            verdict: if problems.is_empty() { Verdict::Ok } else { Verdict::Degraded },
            version: env!("CARGO_PKG_VERSION").into(),
            kubernetes: "v1.37.1".into(),
            api: self.api.clone(),
            store_keys: size.keys,
            store_memory_bytes: size.memory,
            store_disk_bytes: size.disk,
            revision: self.store.revision().0,
            runtime: self.runtime.get().cloned(),
            nodes,
            unused: self.unused().await,
            problems,
        }
    }

    async fn unused(&self) -> Vec<UnusedLine> {
        let lines = self.server.unused().await.into_iter();
        lines.map(|u| UnusedLine { what: u.what, count: u.count, why: u.why }).collect()
    }

    async fn nodes(&self) -> Vec<NodeLine> {
        use apiserver::lookup::Lookup;
        let objects = self.server.objects().list(&api::Gvr::new("", "v1", "nodes"), "").await;
        let line = |object: &Arc<api::Object>| {
            let value = object.value().unwrap_or_default();
            let conditions = value
                .pointer("/status/conditions")
                .and_then(|c| c.as_array())
                .cloned()
                .unwrap_or_default();
            let ready = conditions
                .iter()
                .find(|c| c["type"] == "Ready")
                .and_then(|c| c["status"].as_str().map(str::to_owned));
            let state = match ready.as_deref() {
                Some("True") => "Ready",
                Some("False") => "NotReady",
                _ => "Unknown",
            };
            NodeLine { name: object.key.name.to_string(), state: state.into() }
        };
        objects.iter().map(line).collect()
    }
}

/// Asks the server of a data directory; `None` when it does not answer.
pub async fn ask(data_dir: &Path) -> Option<Status> {
    let stream = UnixStream::connect(socket(data_dir)).await.ok()?;
    let mut text = Vec::new();
    let read = stream.take(ANSWER_MAX).read_to_end(&mut text).await;
    read.ok().and_then(|_| serde_json::from_slice(&text).ok())
}

/// Asks again and again until the verdict is `ok` or the time is over; the last answer.
pub async fn wait_ready(data_dir: &Path, timeout: Duration) -> Option<Status> {
    let deadline = base::clock::now() + timeout;
    let mut backoff = base::Backoff::new(Duration::from_millis(20), Duration::from_millis(500));
    let never = base::Shutdown::new();
    loop {
        let status = ask(data_dir).await;
        let done = status.as_ref().is_some_and(|s| s.verdict == Verdict::Ok);
        if done || base::clock::now() >= deadline {
            return status;
        }
        backoff.wait(&never).await;
    }
}

/// One screen for people.
pub fn render(status: &Status) -> String {
    let mut out = format!(
        "kube-lite {} (Kubernetes {}): {}\n",
        status.version,
        status.kubernetes,
        format!("{:?}", status.verdict).to_lowercase()
    );
    out.push_str(&format!("api      {}\n", status.api));
    let mib = |bytes: u64| bytes as f64 / 1048576.0;
    out.push_str(&format!(
        "store    {} keys, {:.1} MiB in memory, {:.1} MiB on disk, revision {}\n",
        status.store_keys,
        mib(status.store_memory_bytes as u64),
        mib(status.store_disk_bytes),
        status.revision
    ));
    if let Some(runtime) = &status.runtime {
        out.push_str(&format!("runtime  {runtime}\n"));
    }
    for node in &status.nodes {
        out.push_str(&format!("node     {} {}\n", node.name, node.state));
    }
    for unused in &status.unused {
        out.push_str(&format!(
            "unused   {} {}: stored, but not acted on yet: {}\n",
            unused.count, unused.what, unused.why
        ));
    }
    for problem in &status.problems {
        out.push_str(&format!("problem  {}\n         fix: {}\n", problem.what, problem.fix));
    }
    out
}
