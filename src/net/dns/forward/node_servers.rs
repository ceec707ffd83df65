//! The name servers in the node's resolver configuration.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use parking_lot::Mutex;

use super::Upstream;

/// As many as resolvers read.
const SERVERS_MAX: usize = 3;

#[derive(Debug, Default)]
struct ServerList {
    list: Vec<Arc<Upstream>>,
    read: Option<SystemTime>,
}

/// The servers of the file, read again when it changes.
#[derive(Debug)]
pub(crate) struct NodeServers {
    resolv_conf: PathBuf,
    /// Addresses of cluster DNS itself.
    own: Vec<IpAddr>,
    known: Mutex<ServerList>,
}

fn parse(text: &str, own: &[IpAddr]) -> Vec<SocketAddr> {
    text.lines()
        .filter_map(|line| line.trim().strip_prefix("nameserver"))
        .filter_map(|rest| rest.split_whitespace().next()?.parse::<IpAddr>().ok())
        // A node that uses cluster DNS itself must not be asked in a circle.
        .filter(|ip| !own.contains(ip))
        .map(|ip| SocketAddr::new(ip, 53))
        .take(SERVERS_MAX)
        .collect()
}

impl NodeServers {
    pub(crate) fn new(resolv_conf: PathBuf, own: Vec<IpAddr>) -> Self {
        Self { resolv_conf, own, known: Mutex::default() }
    }

    /// The servers; those that stay in the file keep their health.
    pub(super) fn servers(&self) -> Vec<Arc<Upstream>> {
        let changed = std::fs::metadata(&self.resolv_conf).and_then(|m| m.modified()).ok();
        let mut known = self.known.lock();
        if changed.is_none() || known.read != changed {
            let text = std::fs::read_to_string(&self.resolv_conf).unwrap_or_default();
            let of = |address: SocketAddr| {
                let same = known.list.iter().find(|server| server.address == address);
                same.cloned().unwrap_or_else(|| Arc::new(Upstream::new(address, None)))
            };
            let list = parse(&text, &self.own).into_iter().map(of).collect();
            known.list = list;
            known.read = changed;
        }
        known.list.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_come_from_the_nodes_file_without_ourselves() {
        let own = ["10.43.0.10".parse().unwrap()];
        let text = "# a\nsearch x\nnameserver 10.43.0.10\nnameserver 192.0.2.1 \n nameserver ::1\nnameserver bad\n";
        let got: Vec<String> = parse(text, &own).iter().map(ToString::to_string).collect();
        assert_eq!(got, ["192.0.2.1:53", "[::1]:53"]);
    }
}
