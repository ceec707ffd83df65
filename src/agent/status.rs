//! The answer of an agent to `kube-lite status`.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use api::k8s::api::core::v1::Node;
use async_trait::async_trait;
use base::Tasks;
use client::Client;
use cluster::tunnel::agent::PROBLEMS;
use tokio::sync::watch;

use crate::error_catalogue::CommandError;
use crate::machine::Machine;
use crate::server::status::node_line;
use crate::status::{
    self, NodeLine, Problem, Role, ServerLine, Source, Status, VirtualAddressLine, certificates,
};

/// Timeout of the request for the node.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Lists the known servers.
pub(super) type Servers = Box<dyn Fn() -> Vec<ServerLine> + Send + Sync>;

/// Serves the status socket until shutdown. `backend` is the cluster's, `client` the node's,
/// `held` are the virtual addresses of this machine.
///
/// # Errors
/// The socket cannot be created.
pub(super) fn serve(
    machine: &Machine,
    backend: settings::Backend,
    client: Client,
    (servers, held): (Servers, watch::Receiver<BTreeSet<IpAddr>>),
    runtime: Arc<OnceLock<String>>,
    tasks: &Tasks,
) -> Result<(), CommandError> {
    let source = Agent {
        node: machine.node_name.clone(),
        kubelet_root: machine.args.kubelet_root_dir.clone(),
        plugin_socket: machine.plugin_socket(backend),
        directory: machine.directory(),
        client,
        servers,
        runtime,
        held,
        without_effect: machine.without_effect.clone(),
        dns: machine.dns.clone(),
        tasks: tasks.clone(),
    };
    status::serve(&machine.data_dir, Role::Agent, source, tasks)
}

/// The source of an agent's status.
struct Agent {
    node: String,
    kubelet_root: PathBuf,
    plugin_socket: Option<PathBuf>,
    directory: PathBuf,
    client: Client,
    servers: Servers,
    runtime: Arc<OnceLock<String>>,
    held: watch::Receiver<BTreeSet<IpAddr>>,
    without_effect: Vec<String>,
    dns: net::DnsState,
    tasks: Tasks,
}

/// The answer of the server to a request for this node.
enum NodeReply {
    Found(Box<NodeLine>),
    /// The server answers with an error.
    Rejected(String),
    /// No server answers.
    Unreachable(String),
}

impl Agent {
    async fn query_node(&self) -> NodeReply {
        let reply = tokio::time::timeout(TIMEOUT, self.client.get::<Node>("", &self.node)).await;
        match reply {
            Ok(Ok(node)) => {
                let value = serde_json::to_value(&node).unwrap_or_default();
                NodeReply::Found(Box::new(node_line(&self.node, &value)))
            }
            Ok(Err(client::Error::Api(status))) => NodeReply::Rejected(status.message.clone()),
            Ok(Err(error)) => NodeReply::Unreachable(error.to_string()),
            Err(_) => NodeReply::Unreachable(format!("no answer within {} s", TIMEOUT.as_secs())),
        }
    }
}

#[async_trait]
impl Source for Agent {
    async fn status(&self) -> Status {
        let mut status = Status::new(Role::Agent);
        status.runtime = self.runtime.get().cloned();
        status.without_effect.clone_from(&self.without_effect);
        status.without_effect.extend(self.dns.without_effect());
        let reply = self.query_node().await;
        status.servers = (self.servers)();
        let line =
            |address: &IpAddr| VirtualAddressLine { address: *address, holder: self.node.clone() };
        status.virtual_addresses = self.held.borrow().iter().map(line).collect();
        let name = &self.node;
        let mut reported = status::component_problems(&self.tasks);
        let (ready, problem) = check_reply(name, &reply, &status.servers, &mut reported);
        status.ready = ready;
        status.problems.extend(problem);
        status.problems.extend(reported.into_iter().map(|(_, problem)| problem));
        status.from_last_known_state = matches!(reply, NodeReply::Unreachable(_));
        if let NodeReply::Found(line) = reply {
            status.nodes.push(*line);
            if let Some(pods) = status::pods::of_node(&self.client, name).await {
                status.not_ready_pods = pods.not_ready;
                status.problems.extend(pods.problems);
            }
        }
        if let Some(socket) = &self.plugin_socket {
            status.problems.extend(status::node::plugin_socket(socket).await);
        }
        let (root, directory) = (self.kubelet_root.clone(), self.directory.clone());
        let files = base::tasks::blocking(move || {
            let now = base::pki::now();
            (status::pods_in(&root), certificates::list(&[&directory], now))
        })
        .await;
        if let Ok((pods, certificates)) = files {
            (status.pods, status.certificates) = (Some(pods), certificates);
        }
        status.with_verdict()
    }
}

/// Whether the node is ready, and its problem. If no server answers, this replaces the problems of
/// each server in `reported`.
fn check_reply(
    name: &str,
    reply: &NodeReply,
    servers: &[ServerLine],
    reported: &mut Vec<(String, Problem)>,
) -> (bool, Option<Problem>) {
    match reply {
        NodeReply::Found(line) if line.state == "Ready" => (true, None),
        NodeReply::Found(line) => {
            let reason = line.reason.as_ref().map(|r| format!(": {r}")).unwrap_or_default();
            let what = format!("node {name} is {}{reason}", line.state);
            (false, Some(Problem::new(what, "check the log of kube-lite on this machine")))
        }
        NodeReply::Rejected(why) => {
            let what = format!("the server rejects the request: {why}");
            (false, Some(Problem::new(what, "check the log of kube-lite on this machine")))
        }
        NodeReply::Unreachable(why) => {
            let addresses: Vec<&str> = servers.iter().map(|s| s.address.as_str()).collect();
            let addresses_text = addresses.join(", ");
            let mut fixes = Vec::new();
            reported.retain(|(key, problem)| {
                let of_server = key.starts_with(PROBLEMS);
                if of_server {
                    fixes.push(problem.fix.clone());
                }
                !of_server
            });
            let errors: Vec<String> = (servers.iter())
                .filter_map(|s| Some(format!("{}: {}", s.address, s.error.as_ref()?)))
                .collect();
            let why = if errors.is_empty() { why.clone() } else { errors.join("; ") };
            let what =
                format!("no server answers ({why}); pods keep running in their last known state");
            let fix = match fixes.as_slice() {
                [one] => one.clone(),
                _ => format!(
                    "check that kube-lite runs on {addresses_text} and that this machine can reach it"
                ),
            };
            (false, Some(Problem::new(what, fix)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::Link;

    #[test]
    fn unreachable_servers_are_one_problem_with_their_addresses() {
        let server = |address: &str, error: Option<&str>| ServerLine {
            address: address.into(),
            link: Link { state: "unreachable".into(), since_seconds: None },
            error: error.map(str::to_owned),
        };
        let problems_of = |keys: &[&str]| -> Vec<(String, Problem)> {
            keys.iter()
                .map(|key| ((*key).to_owned(), Problem::new(*key, format!("fix {key}"))))
                .collect()
        };
        let unreachable = NodeReply::Unreachable("refused".into());
        let (ready, problem) =
            check_reply("b", &unreachable, &[server("10.0.0.1:6443", None)], &mut Vec::new());
        let problem = problem.unwrap();
        assert!(
            !ready && problem.what.starts_with("no server answers (refused); pods keep running")
        );
        assert!(problem.fix.contains("10.0.0.1:6443"));
        // The tunnel's fix for the only server is used, not reported as a second problem.
        let mut reported = problems_of(&["node", "servers/a:1"]);
        let (_, problem) =
            check_reply("b", &unreachable, &[server("a:1", Some("no such CA"))], &mut reported);
        let problem = problem.unwrap();
        assert!(problem.what.starts_with("no server answers (a:1: no such CA); "));
        assert_eq!((problem.fix.as_str(), reported), ("fix servers/a:1", problems_of(&["node"])));
        // One of two servers is unreachable.
        let line = NodeLine { state: "Ready".into(), ..NodeLine::default() };
        let mut reported = problems_of(&["servers/a:1"]);
        assert_eq!(
            check_reply("b", &NodeReply::Found(Box::new(line)), &[], &mut reported),
            (true, None)
        );
        assert_eq!(reported, problems_of(&["servers/a:1"]));
    }
}
