//! What an agent answers to `kube-lite status`: which servers it knows, whether one answers, and what it runs from.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use api::k8s::api::core::v1::Node;
use async_trait::async_trait;
use base::Tasks;
use client::Client;

use crate::catalogue::Refusal;
use crate::machine::Machine;
use crate::server::status::node_line;
use crate::status::{self, NodeLine, Problem, Role, ServerLine, Source, Status, certificates};

/// A server that answers later than this does not answer.
const ANSWER_MAX: Duration = Duration::from_secs(2);

/// Tells of all servers that are known.
pub(super) type Servers = Box<dyn Fn() -> Vec<ServerLine> + Send + Sync>;

/// Answers on the socket until shutdown. `client` is the node's.
///
/// # Errors
/// When the socket cannot be made.
pub(super) fn serve(
    machine: &Machine,
    client: Client,
    servers: Servers,
    runtime: Arc<OnceLock<String>>,
    tasks: &Tasks,
) -> Result<(), Refusal> {
    let source = Agent {
        node: machine.node_name.clone(),
        kubelet_root: machine.args.kubelet_root_dir.clone(),
        directory: machine.directory(),
        client,
        servers,
        runtime,
        tasks: tasks.clone(),
    };
    status::serve(&machine.data_dir, Role::Agent, source, tasks)
}

struct Agent {
    node: String,
    kubelet_root: PathBuf,
    directory: PathBuf,
    client: Client,
    servers: Servers,
    runtime: Arc<OnceLock<String>>,
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
        let said = self.ask().await;
        status.servers = (self.servers)();
        let name = &self.node;
        let (ready, problem) = judge(name, &said, &status.servers);
        status.ready = ready;
        status.problems.extend(problem);
        status.from_last_known_state = matches!(said, Said::Nothing(_));
        if let Said::Is(line) = said {
            status.nodes.push(*line);
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
        status.judged(&self.tasks)
    }
}

/// Whether the node is ready, and what is wrong.
fn judge(name: &str, said: &Said, servers: &[ServerLine]) -> (bool, Option<Problem>) {
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
            let what = format!("no server answers ({why}); pods go on as they were last wanted");
            let fix =
                format!("see that kube-lite runs on {known} and that this machine reaches it");
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
        let server = ServerLine {
            address: "10.0.0.1:6443".into(),
            link: Link { state: "failed".into(), since_seconds: None },
            error: None,
        };
        let (ready, problem) = judge("b", &Said::Nothing("refused".into()), &[server]);
        let problem = problem.unwrap();
        assert!(!ready && problem.what.starts_with("no server answers (refused)"));
        assert!(problem.fix.contains("10.0.0.1:6443"));
        let line = NodeLine { state: "Ready".into(), ..NodeLine::default() };
        assert_eq!(judge("b", &Said::Is(Box::new(line)), &[]), (true, None));
    }
}
