//! The metrics that k3s has of its own, and those of the controllers, for the pages of
//! `--supervisor-metrics`.

use std::collections::HashSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use async_trait::async_trait;
use base::metrics::Family;
use base::tasks::blocking;
use cluster::servers::{DIALS, Health, LOAD_BALANCER, ServerState, Servers};

use crate::{certificates, snapshots};

/// The families of k3s of this process.
pub(crate) struct K3sFamilies {
    data_dir: PathBuf,
    /// The servers of an agent.
    servers: Option<Servers>,
}

impl K3sFamilies {
    /// The families of a process with this data directory; `servers` are those of an agent.
    pub(crate) fn new(data_dir: &Path, servers: Option<Servers>) -> Self {
        Self { data_dir: data_dir.to_owned(), servers }
    }

    /// The families in the text format.
    pub(crate) async fn text(&self) -> String {
        let data_dir = self.data_dir.clone();
        let now = i64::try_from(base::pki::now()).unwrap_or(i64::MAX);
        let certificates = blocking(move || {
            let mut out = String::new();
            certificates::metrics::render(&data_dir, now, &mut out);
            out
        });
        // Reading files does not panic.
        let mut out = certificates.await.unwrap_or_default();
        match &self.servers {
            Some(servers) => load_balancer(&servers.states(), &mut out),
            None => {
                snapshots::metrics::ALL.iter().for_each(|family| family.render(&mut out));
                // Some gauges are counted in the caches.
                let controllers = blocking(|| {
                    let mut out = String::new();
                    controllers::metrics::families().for_each(|family| family.render(&mut out));
                    out
                });
                out += &controllers.await.unwrap_or_default();
                scheduler::render_metrics(&mut out);
                client::workqueue::render_metrics(&mut out);
            }
        }
        out
    }
}

#[async_trait]
impl node::ProcessFamilies for K3sFamilies {
    async fn render(&self) -> String {
        self.text().await
    }
}

/// Appends the metrics of the connections of an agent to its servers.
fn load_balancer(servers: &[ServerState], out: &mut String) {
    DIALS.render(out);
    let connections = Family::gauge(
        "k3s_loadbalancer_server_connections",
        "Count of current connections to loadbalancer server, labeled by loadbalancer name and \
         server address.",
        &["name", "server"],
    );
    let health = Family::gauge(
        "k3s_loadbalancer_server_health",
        "Current health state of loadbalancer backend servers, labeled by loadbalancer name and \
         server address. State is enum of 0=INVALID, 1=FAILED, 2=STANDBY, 3=UNCHECKED, \
         4=RECOVERING, 5=HEALTHY, 6=PREFERRED, 7=ACTIVE.",
        &["name", "server"],
    );
    for server in servers {
        let labels = [LOAD_BALANCER, server.address.as_str()];
        connections.set(&labels, server.connections as f64);
        health.set(&labels, f64::from(health_number(server)));
    }
    connections.render(out);
    health.render(out);
}

/// The state of a server as a number of k3s.
fn health_number(server: &ServerState) -> u8 {
    match server.state {
        Health::Unreachable => 1,
        Health::Untried => 3,
        Health::Connected | Health::Reached if server.is_current => 7,
        Health::Connected | Health::Reached => 5,
    }
}

/// Appends the families of another page that `page` lacks.
pub(crate) fn append_families(page: &mut String, other: &str) {
    let known: HashSet<String> = page.lines().filter_map(family_of).map(str::to_owned).collect();
    let mut is_new = true;
    for line in other.lines() {
        if let Some(family) = family_of(line) {
            is_new = !known.contains(family);
        }
        if is_new {
            // Writing to a string cannot fail.
            let _ = writeln!(page, "{line}");
        }
    }
}

/// The family that a HELP or TYPE line names.
fn family_of(line: &str) -> Option<&str> {
    let rest = line.strip_prefix("# HELP ").or_else(|| line.strip_prefix("# TYPE "))?;
    rest.split(' ').next()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(address: &str, state: Health, is_current: bool, connections: usize) -> ServerState {
        let (address, error) = (address.to_owned(), String::new());
        ServerState { address, state, since_seconds: 0, error, connections, is_current }
    }

    #[test]
    fn servers_of_an_agent_have_the_states_of_k3s() {
        let servers = [
            server("a:6443", Health::Connected, true, 2),
            server("b:6443", Health::Reached, false, 0),
            server("c:6443", Health::Untried, false, 0),
            server("d:6443", Health::Unreachable, true, 0),
        ];
        let mut page = String::new();
        load_balancer(&servers, &mut page);
        let label =
            |server: &str| format!("{{name=\"k3s-agent-load-balancer\",server=\"{server}:6443\"}}");
        for (server, state) in [("a", 7), ("b", 5), ("c", 3), ("d", 1)] {
            let line = format!("k3s_loadbalancer_server_health{} {state}\n", label(server));
            assert!(page.contains(&line), "{line} in {page}");
        }
        let line = format!("k3s_loadbalancer_server_connections{} 2\n", label("a"));
        assert!(page.contains(&line), "{page}");
    }

    #[test]
    fn a_family_of_two_pages_appears_once() {
        let mut page = "# HELP a A.\n# TYPE a gauge\na 1\n".to_owned();
        append_families(
            &mut page,
            "# TYPE b counter\nb{x=\"1\"} 2\nb{x=\"2\"} 3\n# HELP a Other.\n# TYPE a gauge\na 5\n\
             # TYPE c gauge\nc 4\n",
        );
        assert_eq!(
            page,
            "# HELP a A.\n# TYPE a gauge\na 1\n\
             # TYPE b counter\nb{x=\"1\"} 2\nb{x=\"2\"} 3\n# TYPE c gauge\nc 4\n"
        );
    }
}
