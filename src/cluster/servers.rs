//! The servers of an agent: their addresses, their health, and a dialer that connects to a
//! reachable one.
//!
//! Addresses come from `--server`, from servers, and from a file that survives restarts. While
//! tunnels run (see [`crate::tunnel`]), their state determines the health of servers; so do failed
//! dials.

mod file;
mod follow;
mod order;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use base::io::{BoxIo, Dial};
use base::metrics::{Family, exponential};
use parking_lot::Mutex;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

pub use follow::follow;

use crate::guarded::Guarded;

/// Default port of servers.
pub const DEFAULT_PORT: u16 = 6443;
/// Timeout of a dial before the next server is tried. It allows for one retransmitted SYN, which
/// the kernel sends after 1 s.
const DIAL_MAX: Duration = Duration::from_secs(3);
/// Maximum number of addresses; further ones are ignored. A cluster has three to seven servers.
const SERVERS_MAX: usize = 32;

/// Errors of addresses and of their file.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Not `https://HOST:PORT`, `HOST:PORT` or `HOST`.
    #[error("{0:?} is no address of a server: give https://HOST:PORT")]
    Address(String),
    /// No server is known.
    #[error("no server is known: give --server=https://HOST:PORT")]
    None,
    /// The file cannot be read.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Health of a server as the agent observes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Health {
    /// Its tunnel is up.
    Connected,
    /// It accepted a connection.
    Reached,
    /// No connection was tried yet.
    Untried,
    /// It does not answer.
    Unreachable,
}

impl Health {
    /// The name of the state in `kube-lite status`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Connected => "connected",
            Self::Reached => "reached",
            Self::Untried => "untried",
            Self::Unreachable => "unreachable",
        }
    }
}

/// One server as `kube-lite status` shows it.
#[derive(Debug, Clone)]
pub struct ServerState {
    /// `host:port`.
    pub address: String,
    /// Its health.
    pub state: Health,
    /// Seconds since the last change of `state`.
    pub since_seconds: u64,
    /// The last error; empty when the server is reached.
    pub error: String,
    /// Open connections of clients; those of tunnels do not count.
    pub connections: usize,
    /// Whether the last connection was made to it.
    pub is_current: bool,
}

/// Upper bounds of [`DIALS`] in seconds.
const DIAL_BOUNDS: [f64; 15] = exponential(0.001, 2.0);

/// Durations of dials, with k3s's name and buckets. [`Servers`] is the counterpart of k3s's load
/// balancer.
pub static DIALS: Family = Family::histogram(
    "k3s_loadbalancer_dial_duration_seconds",
    "Time in seconds taken to dial a connection to a backend server, labeled by loadbalancer name \
     and success/failure status.",
    &["name", "status"],
    &DIAL_BOUNDS,
);
/// The name of k3s's load balancer on an agent, a label of its metrics.
pub const LOAD_BALANCER: &str = "k3s-agent-load-balancer";

#[derive(Debug)]
struct ServerEntry {
    address: String,
    health: Health,
    since: Instant,
    error: String,
    /// Ends the connections made to it.
    cut: CancellationToken,
    /// Held by each open connection.
    open: Arc<()>,
}

impl ServerEntry {
    fn new(address: String) -> Self {
        let (since, cut) = (base::clock::now(), CancellationToken::new());
        let open = Arc::default();
        Self { address, health: Health::Untried, since, error: String::new(), cut, open }
    }

    fn set(&mut self, health: Health, error: &str) {
        if self.health != health {
            self.health = health;
            self.since = base::clock::now();
        }
        error.clone_into(&mut self.error);
    }
}

#[derive(Debug, Default)]
struct State {
    entries: Vec<ServerEntry>,
    /// The server of the last connection.
    current: Option<String>,
    /// Whether tunnels run and determine the health of servers.
    has_tunnels: bool,
}

#[derive(Debug)]
struct Inner {
    state: Mutex<State>,
    flag: Option<String>,
    path: PathBuf,
    addresses: watch::Sender<Vec<String>>,
    /// Counts changes from no reachable server to at least one.
    returns: watch::Sender<u64>,
    /// Whether at least one server is reachable.
    answering: watch::Sender<bool>,
}

/// The list of servers, cheap to clone.
#[derive(Debug, Clone)]
pub struct Servers(Arc<Inner>);

impl Servers {
    /// Loads the servers from the file in `directory` and adds the one in the flag.
    ///
    /// # Errors
    /// When the flag is not an address, no server is known, or the file cannot be read. A file that
    /// cannot be parsed counts as absent.
    pub fn open(directory: &Path, flag: Option<&str>) -> Result<Self, Error> {
        let flag = flag.map(parse).transpose()?;
        let path = directory.join("servers.json");
        let mut addresses = file::read(&path)?;
        addresses
            .extend(flag.iter().filter(|f| !addresses.contains(f)).cloned().collect::<Vec<_>>());
        if addresses.is_empty() {
            return Err(Error::None);
        }
        let entries = addresses.iter().cloned().map(ServerEntry::new).collect();
        Ok(Self(Arc::new(Inner {
            state: Mutex::new(State { entries, ..State::default() }),
            flag,
            path,
            addresses: watch::Sender::new(addresses),
            returns: watch::Sender::new(0),
            answering: watch::Sender::new(false),
        })))
    }

    /// Replaces the list by these addresses; the one in the flag stays as the last resort. Invalid
    /// addresses are skipped; a list without valid ones is ignored. [`Servers::persist`] writes the
    /// file.
    pub fn set_addresses(&self, addresses: &[String]) {
        let mut all: Vec<String> = Vec::new();
        for address in addresses.iter().filter_map(|a| parse(a).ok()) {
            if !all.contains(&address) && all.len() < SERVERS_MAX {
                all.push(address);
            }
        }
        if all.is_empty() {
            return;
        }
        all.extend(self.0.flag.iter().filter(|f| !all.contains(f)).cloned().collect::<Vec<_>>());
        {
            let mut state = self.0.state.lock();
            let mut before = std::mem::take(&mut state.entries);
            for address in &all {
                let known = before.iter().position(|e| e.address == *address);
                let entry = known.map(|at| before.swap_remove(at));
                state.entries.push(entry.unwrap_or_else(|| ServerEntry::new(address.clone())));
            }
            before.iter().for_each(|gone| gone.cut.cancel());
            self.publish_answering(&state);
        }
        self.0.addresses.send_if_modified(|known| {
            let changed = *known != all;
            *known = all;
            changed
        });
    }

    /// Writes the file after each change of the list, until shutdown.
    ///
    /// # Errors
    /// Never: a failed write is logged and repeated with the next change.
    pub async fn persist(self, shutdown: base::Shutdown) -> Result<(), std::convert::Infallible> {
        let mut addresses = self.0.addresses.subscribe();
        loop {
            let now = addresses.borrow_and_update().clone();
            let path = self.0.path.clone();
            let written = base::tasks::blocking(move || file::write_changed(&path, &now)).await;
            if let Ok(Err(error)) = written {
                tracing::warn!(%error, "cannot write the file of server addresses");
            }
            tokio::select! {
                changed = addresses.changed() => if changed.is_err() { return Ok(()) },
                () = shutdown.requested() => return Ok(()),
            }
        }
    }

    /// The addresses, `host:port`; notifies of each change.
    pub fn addresses(&self) -> watch::Receiver<Vec<String>> {
        self.0.addresses.subscribe()
    }

    /// The state of each server.
    pub fn states(&self) -> Vec<ServerState> {
        let state = self.0.state.lock();
        let to_state = |e: &ServerEntry| ServerState {
            address: e.address.clone(),
            state: e.health,
            since_seconds: e.since.elapsed().as_secs(),
            error: e.error.clone(),
            connections: Arc::strong_count(&e.open).saturating_sub(1),
            is_current: state.current.as_deref() == Some(&e.address),
        };
        state.entries.iter().map(to_state).collect()
    }

    /// Whether at least one server is reachable; notifies of each change.
    pub fn answering(&self) -> watch::Receiver<bool> {
        self.0.answering.subscribe()
    }

    /// From now on tunnels determine the health of servers.
    pub(crate) fn tunnels_run(&self) {
        self.0.state.lock().has_tunnels = true;
    }

    /// Records that the tunnel to a server is up.
    pub(crate) fn connected(&self, address: &str) {
        self.change(address, |entry| entry.set(Health::Connected, ""));
    }

    /// Records that a server is unreachable and cuts all connections to it.
    pub(crate) fn lost(&self, address: &str, error: &str) {
        self.change(address, |entry| {
            entry.set(Health::Unreachable, error);
            std::mem::take(&mut entry.cut).cancel();
        });
    }

    /// Records the result of a dial. The state of a tunnel takes precedence.
    fn dialled(&self, address: &str, error: Option<&io::Error>) {
        let has_tunnels = self.0.state.lock().has_tunnels;
        self.change(address, |entry| match (error, entry.health) {
            (_, Health::Connected) => {}
            (None, Health::Unreachable) if has_tunnels => {}
            (None, _) => entry.set(Health::Reached, ""),
            (Some(error), _) => entry.set(Health::Unreachable, &error.to_string()),
        });
        if error.is_none() {
            self.0.state.lock().current = Some(address.to_owned());
        }
    }

    fn change(&self, address: &str, change: impl FnOnce(&mut ServerEntry)) {
        let returned = {
            let mut state = self.0.state.lock();
            let before = state.answers();
            if let Some(entry) = state.entries.iter_mut().find(|e| e.address == address) {
                change(entry);
            }
            self.publish_answering(&state);
            !before && state.answers()
        };
        if returned {
            self.0.returns.send_modify(|n| *n += 1);
        }
    }

    /// Publishes whether a server is reachable. Called under the lock, so that the last published
    /// value is the current one.
    fn publish_answering(&self, state: &State) {
        let answers = state.answers();
        self.0.answering.send_if_modified(|known| std::mem::replace(known, answers) != answers);
    }

    /// The servers in the order of dialling, each with the token that cuts its connections and the
    /// count of the open ones.
    fn candidates(&self) -> Vec<(String, CancellationToken, Arc<()>)> {
        let state = self.0.state.lock();
        let entries: Vec<(&str, Health)> =
            state.entries.iter().map(|e| (e.address.as_str(), e.health)).collect();
        let order = order::order(&entries, state.current.as_deref(), base::clock::random_u64());
        let entry = |at: &usize| {
            state.entries.get(*at).map(|e| (e.address.clone(), e.cut.clone(), Arc::clone(&e.open)))
        };
        order.iter().filter_map(entry).collect()
    }
}

impl State {
    fn answers(&self) -> bool {
        self.entries.iter().any(|e| matches!(e.health, Health::Connected | Health::Reached))
    }
}

/// Opens a TCP connection to `host:port` with a timeout and `TCP_NODELAY`.
pub(crate) async fn connect(address: &str, limit: Duration) -> io::Result<TcpStream> {
    let stream = tokio::time::timeout(limit, TcpStream::connect(address)).await;
    let stream =
        stream.map_err(|_| io::Error::new(io::ErrorKind::TimedOut, "no answer in time"))??;
    stream.set_nodelay(true)?;
    Ok(stream)
}

#[async_trait]
impl Dial for Servers {
    /// Connects to a reachable server; ignores host and port of the caller.
    async fn dial(&self, _: &str, _: u16) -> io::Result<BoxIo> {
        let mut failures = Vec::new();
        for (address, cut, open) in self.candidates() {
            let started = base::clock::now();
            let connected = connect(&address, DIAL_MAX).await;
            let status = if connected.is_ok() { "success" } else { "error" };
            DIALS.took(&[LOAD_BALANCER, status], started.elapsed());
            match connected {
                Ok(stream) => {
                    self.dialled(&address, None);
                    return Ok(Box::new(Guarded::counted(stream, cut, open)));
                }
                Err(error) => {
                    self.dialled(&address, Some(&error));
                    failures.push(format!("{address}: {error}"));
                }
            }
        }
        let all = failures.join("; ");
        Err(io::Error::new(io::ErrorKind::NotConnected, format!("no server answers ({all})")))
    }

    async fn back(&self) {
        let mut returns = self.0.returns.subscribe();
        // The sender lives as long as `self`.
        let _ = returns.changed().await;
    }
}

/// Parses `https://HOST:PORT`, `HOST:PORT` or `HOST`; returns `host:port`, IPv6 in brackets.
///
/// # Errors
/// When the text has another form.
pub fn parse(text: &str) -> Result<String, Error> {
    let wrong = || Error::Address(text.to_owned());
    let rest = text.trim();
    let rest = rest.strip_prefix("https://").unwrap_or(rest).trim_end_matches('/');
    if let Ok(ip) = rest.parse::<std::net::IpAddr>() {
        return Ok(std::net::SocketAddr::new(ip, DEFAULT_PORT).to_string());
    }
    let (host, port) = match rest.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => {
            (host, port.parse::<u16>().ok().filter(|p| *p != 0).ok_or_else(wrong)?)
        }
        _ => (rest, DEFAULT_PORT),
    };
    let bracketed = host.strip_prefix('[').and_then(|h| h.strip_suffix(']'));
    let good = match bracketed {
        Some(inner) => inner.parse::<std::net::Ipv6Addr>().is_ok(),
        None => {
            !host.is_empty()
                && host.len() <= 253
                && host.bytes().all(|b| b.is_ascii_alphanumeric() || b"-.".contains(&b))
        }
    };
    if good { Ok(format!("{host}:{port}")) } else { Err(wrong()) }
}

#[cfg(test)]
mod tests;
