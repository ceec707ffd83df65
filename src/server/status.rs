//! The answer of a server to `kube-lite status`.

mod members;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use api::Gvr;
use api::k8s::jiff::Timestamp;
use async_trait::async_trait;
use base::Tasks;
use cluster::tunnel::Tunnels;
use lookup::Lookup;
use serde_json::Value;
use store::{Backend, Members};

use crate::error_catalogue::CommandError;
use crate::server::config::Config;
use crate::server::control_plane::ControlPlane;
use crate::server::virtual_addresses::AddressLeases;
use crate::status::{
    self, DeprecatedLine, Link, NodeLine, Problem, Role, Source, Status, Store, UnusedLine,
    VirtualAddressLine, certificates,
};

pub use crate::status::{Verdict, query, render, wait_ready};

/// Serves the status socket until shutdown.
///
/// # Errors
/// The socket cannot be created.
pub(crate) fn serve(
    config: &Config,
    plane: &ControlPlane,
    runtime: Arc<OnceLock<String>>,
    own: Option<client::Client>,
    tasks: &Tasks,
) -> Result<(), CommandError> {
    let machine = &config.machine;
    let source = Server {
        store: Arc::clone(&plane.store),
        members: Arc::clone(&plane.members),
        server: plane.server.clone(),
        api: format!(
            "https://{}:{}",
            config.advertise,
            config.advertised_port(plane.address.port())
        ),
        node: own.map(|client| OwnNode {
            name: machine.node_name.clone(),
            client,
            plugin_socket: machine.plugin_socket(settings::Backend::default()),
        }),
        data_dir: machine.data_dir.clone(),
        started: base::pki::now(),
        kubelet_root: machine.args.kubelet_root_dir.clone(),
        certificates: [machine.data_dir.join("server/tls"), machine.data_dir.join("agent")],
        runtime,
        tunnels: plane.tunnels.clone(),
        leases: Arc::clone(&plane.address_leases),
        tasks: tasks.clone(),
        datastore: config.datastore.as_ref().map(ToString::to_string),
        without_effect: machine.without_effect.clone(),
        dns: machine.dns.clone(),
    };
    status::serve(&machine.data_dir, Role::Server, source, tasks)
}

/// The node of this server.
struct OwnNode {
    name: String,
    client: client::Client,
    plugin_socket: Option<PathBuf>,
}

/// The source of a server's status.
struct Server {
    store: Arc<dyn Backend>,
    members: Arc<Members>,
    server: apiserver::ApiServer,
    api: String,
    node: Option<OwnNode>,
    data_dir: PathBuf,
    /// When this process started, in seconds since the epoch.
    started: u64,
    kubelet_root: PathBuf,
    certificates: [PathBuf; 2],
    runtime: Arc<OnceLock<String>>,
    tunnels: Tunnels,
    leases: Arc<AddressLeases>,
    tasks: Tasks,
    datastore: Option<String>,
    without_effect: Vec<String>,
    dns: net::DnsState,
}

impl Server {
    fn etcd_urls(&self) -> Vec<String> {
        self.members.profiles().remove(&self.members.id()).unwrap_or_default().client_urls
    }
}

#[async_trait]
impl Source for Server {
    async fn status(&self) -> Status {
        let mut status = Status::new(Role::Server);
        let size = self.store.size();
        status.api = Some(self.api.clone());
        status.store = Some(Store {
            store_keys: size.keys,
            store_memory_bytes: size.memory,
            store_disk_bytes: size.disk,
            revision: self.store.revision().0,
            datastore: self.datastore.clone(),
            etcd: self.etcd_urls(),
        });
        status.without_effect.clone_from(&self.without_effect);
        status.without_effect.extend(self.dns.without_effect());
        status.members = members::lines(&self.members).await;
        status.problems.extend(members::problems(&status.members));
        status.runtime = self.runtime.get().cloned();
        status.nodes = self.nodes().await;
        let holders = self.leases.holders().into_iter();
        let line = |(address, holder)| VirtualAddressLine { address, holder };
        status.virtual_addresses = holders.map(line).collect();
        self.check_store(&mut status).await;
        let own = self.node.as_ref().map(|node| node.name.as_str());
        if let Some(node) = &self.node {
            self.add_own_node(node, &mut status).await;
        }
        status.problems.extend(status.nodes.iter().filter_map(|node| node_problem(node, own)));
        if own.is_none() {
            // A server that is a node reports a problem of the overlay itself.
            status.problems.extend(mixed_encryption(&status.nodes));
        }
        self.add_files(&mut status).await;
        let unused = self.server.unused().await.into_iter();
        status.unused =
            unused.map(|u| UnusedLine { what: u.what, count: u.count, why: u.why }).collect();
        status.deprecated = self.server.deprecated().iter().map(deprecated).collect();
        status.problems.extend(
            status::component_problems(&self.tasks).into_iter().map(|(_, problem)| problem),
        );
        status.with_verdict()
    }
}

/// The line of a deprecated API in use.
fn deprecated(of: &apiserver::Deprecated) -> DeprecatedLine {
    let now = base::clock::unix_time();
    let group = if of.group.is_empty() { String::new() } else { format!(".{}", of.group) };
    DeprecatedLine {
        api: format!("{}.{}{group}", of.resource, of.version),
        count: of.count,
        first_seconds: now.saturating_sub(of.times.0).as_secs(),
        last_seconds: now.saturating_sub(of.times.1).as_secs(),
        user: of.user.clone(),
        client: of.client.clone(),
    }
}

/// The problem of a node that is not ready.
fn node_problem(node: &NodeLine, own: Option<&str>) -> Option<Problem> {
    if node.state == "Ready" {
        return None;
    }
    let name = &node.name;
    let reason = node.reason.as_ref().map(|r| format!(": {r}")).unwrap_or_default();
    let fix = match node.state.as_str() {
        "NotReady" => format!(
            "run `kubectl describe node {name}` and check the log of kube-lite on that node"
        ),
        _ if own == Some(name) => "check the log of kube-lite".to_owned(),
        _ => format!(
            "check that the machine has power and network and that kube-lite runs on it; if it is permanently gone: kubectl delete node {name}"
        ),
    };
    Some(Problem::new(format!("node {name} is {}{reason}", node.state), fix))
}

/// flannel's name of the overlay that encrypts.
const ENCRYPTED: &str = "wireguard";

/// Pods of nodes that encrypt cannot reach pods of nodes that do not.
fn mixed_encryption(nodes: &[NodeLine]) -> Option<Problem> {
    let known = nodes.iter().filter_map(|n| Some((n.overlay.as_deref()?, n.name.as_str())));
    let (with, without): (Vec<_>, Vec<_>) = known.partition(|(overlay, _)| *overlay == ENCRYPTED);
    let ((_, one), (overlay, other)) = (with.first()?, without.first()?);
    Some(Problem::new(
        format!(
            "{} nodes encrypt pod traffic (wireguard-native), such as {one}, and {} do not, such as \
             {other} ({overlay}): their pods cannot reach each other",
            with.len(),
            without.len()
        ),
        "set --flannel-backend on the server only and restart every node: agents without the \
         flag use the server's",
    ))
}

impl Server {
    /// Reports a store that does not answer.
    async fn check_store(&self, status: &mut Status) {
        let Err(error) = self.store.read_index().await else { return };
        status.ready = false;
        let fix = if status.members.len() > 1 {
            "more than half of the voters must run and reach each other; check the other servers"
        } else {
            "check the log for disk errors"
        };
        status.problems.push(Problem::new(format!("the store does not answer: {error}"), fix));
    }

    /// Adds the state of this server's node and its pods.
    async fn add_own_node(&self, node: &OwnNode, status: &mut Status) {
        let name = &node.name;
        let line = status.nodes.iter().find(|line| &line.name == name);
        status.ready &= line.is_some_and(|line| line.state == "Ready");
        if line.is_none() {
            status.problems.push(Problem::new(
                format!("node {name} is not registered"),
                "wait a moment; if the problem persists, check the log of kube-lite",
            ));
        }
        let root = self.kubelet_root.clone();
        status.pods = base::tasks::blocking(move || status::pods_in(&root)).await.ok();
        if let Some(socket) = &node.plugin_socket {
            status.problems.extend(status::node::plugin_socket(socket).await);
        }
        if let Some(pods) = status::pods::of_node(&node.client, name).await {
            status.not_ready_pods = pods.not_ready;
            status.problems.extend(pods.problems);
        }
    }

    /// Adds the certificates of this machine and the problems of files in the data directory.
    async fn add_files(&self, status: &mut Status) {
        let (folders, data_dir, started) =
            (self.certificates.clone(), self.data_dir.clone(), self.started);
        let found = base::tasks::blocking(move || {
            let [server, agent] = &folders;
            let etcd = server.join("etcd");
            let folders = [server.as_path(), &etcd, agent];
            let rotated = status::node::rotated(&data_dir, started);
            (certificates::list(&folders, base::pki::now()), rotated)
        });
        if let Ok((certificates, problems)) = found.await {
            status.certificates = certificates;
            status.problems.extend(problems);
        }
    }

    async fn nodes(&self) -> Vec<NodeLine> {
        let objects = self.server.objects();
        let leases =
            objects.list(&Gvr::new("coordination.k8s.io", "v1", "leases"), "kube-node-lease").await;
        // Without leases the nodes are listed without an age.
        let leases = leases.unwrap_or_default();
        let now = base::clock::unix_time().as_secs();
        let renewed: BTreeMap<String, u64> = leases
            .iter()
            .filter_map(|lease| {
                let value = lease.value().ok()?;
                let time = value.pointer("/spec/renewTime")?.as_str()?.parse::<Timestamp>().ok()?;
                let age = now.saturating_sub(u64::try_from(time.as_second()).ok()?);
                Some((lease.key.name.to_string(), age))
            })
            .collect();
        let nodes = objects.list(&Gvr::new("", "v1", "nodes"), "").await.unwrap_or_default();
        let presences = self.tunnels.presences().borrow().clone();
        let line = |object: &Arc<api::Object>| {
            let mut line = node_line(&object.key.name, &object.value().unwrap_or_default());
            line.tunnel = presences.get(&*object.key.name).map(|presence| Link {
                state: presence.state.name().to_owned(),
                since_seconds: Some(presence.since.elapsed().as_secs()),
            });
            line.lease_age_seconds = renewed.get(&line.name).copied();
            line
        };
        nodes.iter().map(line).collect()
    }
}

/// The line of a Node object.
pub(crate) fn node_line(name: &str, node: &Value) -> NodeLine {
    let text = |pointer: &str| node.pointer(pointer).and_then(Value::as_str).map(str::to_owned);
    let list = |pointer: &str| node.pointer(pointer).and_then(Value::as_array);
    let ready =
        list("/status/conditions").and_then(|all| all.iter().find(|c| c["type"] == "Ready"));
    let state = match ready.and_then(|c| c["status"].as_str()) {
        Some("True") => "Ready",
        Some("False") => "NotReady",
        _ => "Unknown",
    };
    let internal =
        list("/status/addresses").and_then(|all| all.iter().find(|a| a["type"] == "InternalIP"));
    let message = ready.and_then(|c| c["message"].as_str()).map(str::to_owned);
    NodeLine {
        name: name.to_owned(),
        state: state.into(),
        cordoned: node.pointer("/spec/unschedulable") == Some(&Value::Bool(true)),
        version: text("/status/nodeInfo/kubeletVersion").unwrap_or_default(),
        address: internal.and_then(|a| a["address"].as_str()).unwrap_or_default().to_owned(),
        overlay: text("/metadata/annotations/flannel.alpha.coreos.com~1backend-type"),
        tunnel: None,
        lease_age_seconds: None,
        reason: message.filter(|_| state != "Ready"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn node_that_is_not_ready_is_a_problem_with_reason_and_fix() {
        let node = json!({
            "metadata": {"annotations": {"flannel.alpha.coreos.com/backend-type": "vxlan"}},
            "spec": {"unschedulable": true},
            "status": {
                "addresses": [{"type": "Hostname", "address": "b"}, {"type": "InternalIP", "address": "10.0.0.2"}],
                "conditions": [{"type": "Ready", "status": "Unknown", "message": "Kubelet stopped posting node status."}],
                "nodeInfo": {"kubeletVersion": "v1.37.1"},
            },
        });
        let line = node_line("b", &node);
        assert_eq!(
            (line.state.as_str(), line.cordoned, line.address.as_str(), line.overlay.as_deref()),
            ("Unknown", true, "10.0.0.2", Some("vxlan"))
        );
        let problem = node_problem(&line, Some("a")).unwrap();
        assert_eq!(problem.what, "node b is Unknown: Kubelet stopped posting node status.");
        assert!(problem.fix.ends_with("kubectl delete node b"));
        let ready = json!({"status": {"conditions": [{"type": "Ready", "status": "True", "message": "x"}]}});
        assert_eq!(node_problem(&node_line("b", &ready), None), None);
    }

    #[test]
    fn mixed_encryption_between_nodes_is_a_problem() {
        let line = |name: &str, overlay: Option<&str>| NodeLine {
            name: name.into(),
            overlay: overlay.map(str::to_owned),
            ..NodeLine::default()
        };
        let mut nodes = vec![line("a", Some("wireguard")), line("b", None)];
        assert_eq!(mixed_encryption(&nodes), None, "the overlay of b is not known yet");
        nodes.push(line("c", Some("host-gw")));
        let what = mixed_encryption(&nodes).unwrap().what;
        assert!(what.starts_with(
            "1 nodes encrypt pod traffic (wireguard-native), such as a, and 1 do not, such as c"
        ));
        nodes[0].overlay = Some("vxlan".into());
        assert_eq!(mixed_encryption(&nodes), None);
    }
}
