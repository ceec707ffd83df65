//! What an agent answers to `kube-lite status`: which servers it knows, whether one answers, and what it runs from.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use api::k8s::api::core::v1::Node;
use async_trait::async_trait;
use base::Tasks;
use client::Client;
use cluster::tunnel::agent::PROBLEMS;

use crate::error_catalogue::Refusal;
use crate::machine::Machine;
use crate::server::status::node_line;
use crate::status::{self, NodeLine, Problem, Role, ServerLine, Source, Status, certificates};

/// A server that answers later than this does not answer.
const ANSWER_MAX: Duration = Duration::from_secs(2);

/// Tells of all servers that are known.
pub(super) type Servers = Box<dyn Fn() -> Vec<ServerLine> + Send + Sync>;

/// Answers on the socket until shutdown. `backend` is the cluster's, `client` the node's.
///
/// # Errors
/// When the socket cannot be made.
pub(super) fn serve(
    machine: &Machine,
    backend: settings::Backend,
    client: Client,
    servers: Servers,
    runtime: Arc<OnceLock<String>>,
    tasks: &Tasks,
) -> Result<(), Refusal> {
    let source = Agent {
        node: machine.node_name.clone(),
        kubelet_root: machine.args.kubelet_root_dir.clone(),
        plugin_socket: machine.plugin_socket(backend),
        directory: machine.directory(),
        client,
        servers,
        runtime,
        without_effect: machine.without_effect.clone(),
        tasks: tasks.clone(),
    };
    status::serve(&machine.data_dir, Role::Agent, source, tasks)
}

struct Agent {
    node: String,
    kubelet_root: PathBuf,
    plugin_socket: Option<PathBuf>,
    directory: PathBuf,
    client: Client,
    servers: Servers,
    runtime: Arc<OnceLock<String>>,
    without_effect: Vec<String>,
    tasks: Tasks,
}

/// What a server said about this node.
enum Said {
    Is(Box<NodeLine>),
    /// It answers, but not with the node.
    Refused(String),
    /// None answers.
    Nothing(String),
}

impl Agent {
    async fn ask(&self) -> Said {
        let asked = tokio::time::timeout(ANSWER_MAX, self.client.get::<Node>("", &self.node)).await;
        match asked {
            Ok(Ok(node)) => {
                let value = serde_json::to_value(&node).unwrap_or_default();
                Said::Is(Box::new(node_line(&self.node, &value)))
            }
            Ok(Err(client::Error::Api(status))) => Said::Refused(status.message.clone()),
            Ok(Err(error)) => Said::Nothing(error.to_string()),
            Err(_) => Said::Nothing(format!("no answer within {} s", ANSWER_MAX.as_secs())),
        }
    }
}

#[async_trait]
impl Source for Agent {
    async fn status(&self) -> Status {
        let mut status = Status::new(Role::Agent);
        status.runtime = self.runtime.get().cloned();
        status.without_effect.clone_from(&self.without_effect);
        let said = self.ask().await;
        status.servers = (self.servers)();
        let name = &self.node;
        let mut found = status::found(&self.tasks);
        let (ready, problem) = judge(name, &said, &status.servers, &mut found);
        status.ready = ready;
        status.problems.extend(problem);
        status.problems.extend(found.into_iter().map(|(_, problem)| problem));
        status.from_last_known_state = matches!(said, Said::Nothing(_));
        if let Said::Is(line) = said {
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
        let found = base::tasks::blocking(move || {
            let now = base::pki::now();
            (status::pods_in(&root), certificates::list(&[&directory], now))
        })
        .await;
        if let Ok((pods, certificates)) = found {
            (status.pods, status.certificates) = (Some(pods), certificates);
        }
        status.judged()
    }
}

/// Whether the node is ready, and what is wrong. Where no server answers that is one problem, not one of each server in `found` besides.
fn judge(
    name: &str,
    said: &Said,
    servers: &[ServerLine],
    found: &mut Vec<(String, Problem)>,
) -> (bool, Option<Problem>) {
    match said {
        Said::Is(line) if line.state == "Ready" => (true, None),
        Said::Is(line) => {
            let reason = line.reason.as_ref().map(|r| format!(": {r}")).unwrap_or_default();
            let what = format!("node {name} is {}{reason}", line.state);
            (false, Some(Problem::new(what, "look at the log of kube-lite on this machine")))
        }
        Said::Refused(why) => {
            let what = format!("a server answers, but refuses: {why}");
            (false, Some(Problem::new(what, "look at the log of kube-lite on this machine")))
        }
        Said::Nothing(why) => {
            let addresses: Vec<&str> = servers.iter().map(|s| s.address.as_str()).collect();
            let known = addresses.join(", ");
            let mut fixes = Vec::new();
            found.retain(|(key, problem)| {
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
            let what = format!("no server answers ({why}); pods go on as they were last wanted");
            let fix = match fixes.as_slice() {
                [one] => one.clone(),
                _ => format!("see that kube-lite runs on {known} and that this machine reaches it"),
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
    fn an_agent_without_servers_says_so_with_their_addresses() {
        let server = |address: &str, error: Option<&str>| ServerLine {
            address: address.into(),
            link: Link { state: "unreachable".into(), since_seconds: None },
            error: error.map(str::to_owned),
        };
        let board = |keys: &[&str]| -> Vec<(String, Problem)> {
            keys.iter()
                .map(|key| ((*key).to_owned(), Problem::new(*key, format!("mend {key}"))))
                .collect()
        };
        let nothing = Said::Nothing("refused".into());
        let (ready, problem) =
            judge("b", &nothing, &[server("10.0.0.1:6443", None)], &mut Vec::new());
        let problem = problem.unwrap();
        assert!(!ready && problem.what.starts_with("no server answers (refused); pods go on"));
        assert!(problem.fix.contains("10.0.0.1:6443"));
        // What the tunnel says of the one server is the remedy, and no second problem.
        let mut found = board(&["node", "servers/a:1"]);
        let (_, problem) = judge("b", &nothing, &[server("a:1", Some("no such CA"))], &mut found);
        let problem = problem.unwrap();
        assert!(problem.what.starts_with("no server answers (a:1: no such CA); "));
        assert_eq!((problem.fix.as_str(), found), ("mend servers/a:1", board(&["node"])));
        // One of two is away.
        let line = NodeLine { state: "Ready".into(), ..NodeLine::default() };
        let mut found = board(&["servers/a:1"]);
        assert_eq!(judge("b", &Said::Is(Box::new(line)), &[], &mut found), (true, None));
        assert_eq!(found, board(&["servers/a:1"]));
    }
}
