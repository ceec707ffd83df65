//! The servers that an agent may use: where they are, which of them answer, and connections to one
//! that does.
//!
//! Addresses come from `--server`, from what servers tell, and from a file that outlives both.
//! While tunnels run (see [`crate::tunnel`]) they are the evidence of who answers; a dial that
//! fails is evidence as well.

mod file;
mod follow;
mod order;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use base::io::{BoxIo, Dial};
use parking_lot::Mutex;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

pub use follow::follow;

use crate::guarded::Guarded;

/// Where servers listen when an address names no port.
pub const DEFAULT_PORT: u16 = 6443;
/// Time to reach one server before the next is tried. A lost SYN is sent again after 1 s, the limit
/// leaves room for that.
const DIAL_MAX: Duration = Duration::from_secs(3);
/// Addresses kept; further ones are not taken. A cluster has three to seven servers.
const SERVERS_MAX: usize = 32;

/// Why an address or the file of addresses is not taken.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Not `https://HOST:PORT`, `HOST:PORT` or `HOST`.
    #[error("{0:?} is no address of a server: give https://HOST:PORT")]
    Address(String),
    /// No server is known.
    #[error("no server is known: give --server=https://HOST:PORT")]
    None,
    /// The file.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// What is known of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Health {
    /// Its tunnel is up.
    Connected,
    /// It took a connection.
    Reached,
    /// Nobody has asked yet.
    Untried,
    /// It does not answer.
    Unreachable,
}

impl Health {
    /// In one word.
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
    /// What is known of it.
    pub state: Health,
    /// Seconds since that is so.
    pub since_seconds: u64,
    /// Why it is not reached; empty when it is.
    pub error: String,
}

#[derive(Debug)]
struct Entry {
    address: String,
    health: Health,
    since: Instant,
    error: String,
    /// Ends the connections made to it.
    cut: CancellationToken,
}

impl Entry {
    fn new(address: String) -> Self {
        let (since, cut) = (base::clock::now(), CancellationToken::new());
        Self { address, health: Health::Untried, since, error: String::new(), cut }
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
    entries: Vec<Entry>,
    /// The server of the last connection.
    current: Option<String>,
    /// Whether tunnels say who answers.
    tunnels: bool,
}

#[derive(Debug)]
struct Inner {
    state: Mutex<State>,
    flag: Option<String>,
    path: PathBuf,
    addresses: watch::Sender<Vec<String>>,
    /// How often some server answered after none did.
    returns: watch::Sender<u64>,
    /// Whether some server answers.
    answering: watch::Sender<bool>,
}

/// The list, cheap to clone.
#[derive(Debug, Clone)]
pub struct Servers(Arc<Inner>);

impl Servers {
    /// The servers remembered in `directory`, and the one that the flag names.
    ///
    /// # Errors
    /// A flag that is no address, no server at all, or a file that cannot be read. One that cannot
    /// be understood counts as absent.
    pub fn open(directory: &Path, flag: Option<&str>) -> Result<Self, Error> {
        let flag = flag.map(parse).transpose()?;
        let path = directory.join("servers.json");
        let mut addresses = file::read(&path)?;
        addresses
            .extend(flag.iter().filter(|f| !addresses.contains(f)).cloned().collect::<Vec<_>>());
        if addresses.is_empty() {
            return Err(Error::None);
        }
        let entries = addresses.iter().cloned().map(Entry::new).collect();
        Ok(Self(Arc::new(Inner {
            state: Mutex::new(State { entries, ..State::default() }),
            flag,
            path,
            addresses: watch::Sender::new(addresses),
            returns: watch::Sender::new(0),
            answering: watch::Sender::new(false),
        })))
    }

    /// These are all servers, says one of them; that of the flag is kept as the last resort. What
    /// cannot be understood is left out, and nothing happens when nothing is left. The file is
    /// written by [`Servers::remember`].
    pub fn told(&self, addresses: &[String]) {
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
                state.entries.push(entry.unwrap_or_else(|| Entry::new(address.clone())));
            }
            before.iter().for_each(|gone| gone.cut.cancel());
            self.tell(&state);
        }
        self.0.addresses.send_if_modified(|known| {
            let changed = *known != all;
            *known = all;
            changed
        });
    }

    /// Keeps the file equal to the list, until shutdown.
    ///
    /// # Errors
    /// Never: a file that cannot be written is logged, and tried again with the next change.
    pub async fn remember(self, shutdown: base::Shutdown) -> Result<(), std::convert::Infallible> {
        let mut addresses = self.0.addresses.subscribe();
        loop {
            let now = addresses.borrow_and_update().clone();
            let path = self.0.path.clone();
            let written = base::tasks::blocking(move || file::write_changed(&path, &now)).await;
            if let Ok(Err(error)) = written {
                tracing::warn!(%error, "the addresses of servers are not remembered");
            }
            tokio::select! {
                changed = addresses.changed() => if changed.is_err() { return Ok(()) },
                () = shutdown.requested() => return Ok(()),
            }
        }
    }

    /// The addresses, `host:port`, told anew with each change.
    pub fn addresses(&self) -> watch::Receiver<Vec<String>> {
        self.0.addresses.subscribe()
    }

    /// What is known of each.
    pub fn states(&self) -> Vec<ServerState> {
        let state = self.0.state.lock();
        let line = |e: &Entry| ServerState {
            address: e.address.clone(),
            state: e.health,
            since_seconds: e.since.elapsed().as_secs(),
            error: e.error.clone(),
        };
        state.entries.iter().map(line).collect()
    }

    /// Whether some server answers, as far as is known; told anew with each change.
    pub fn answering(&self) -> watch::Receiver<bool> {
        self.0.answering.subscribe()
    }

    /// From now on tunnels say who answers.
    pub(crate) fn tunnels_run(&self) {
        self.0.state.lock().tunnels = true;
    }

    /// The tunnel to a server is up.
    pub(crate) fn connected(&self, address: &str) {
        self.change(address, |entry| entry.set(Health::Connected, ""));
    }

    /// A server is lost or was not reached: connections made to it end now.
    pub(crate) fn lost(&self, address: &str, error: &str) {
        self.change(address, |entry| {
            entry.set(Health::Unreachable, error);
            std::mem::take(&mut entry.cut).cancel();
        });
    }

    /// How a dial ended. A success says less than a tunnel that is down, a failure less than one
    /// that is up.
    fn dialled(&self, address: &str, error: Option<&io::Error>) {
        let tunnels = self.0.state.lock().tunnels;
        self.change(address, |entry| match (error, entry.health) {
            (_, Health::Connected) => {}
            (None, Health::Unreachable) if tunnels => {}
            (None, _) => entry.set(Health::Reached, ""),
            (Some(error), _) => entry.set(Health::Unreachable, &error.to_string()),
        });
        if error.is_none() {
            self.0.state.lock().current = Some(address.to_owned());
        }
    }

    fn change(&self, address: &str, change: impl FnOnce(&mut Entry)) {
        let returned = {
            let mut state = self.0.state.lock();
            let before = state.answers();
            if let Some(entry) = state.entries.iter_mut().find(|e| e.address == address) {
                change(entry);
            }
            self.tell(&state);
            !before && state.answers()
        };
        if returned {
            self.0.returns.send_modify(|n| *n += 1);
        }
    }

    /// Tells whether some server answers, under the lock: what is told last is so.
    fn tell(&self, state: &State) {
        let answers = state.answers();
        self.0.answering.send_if_modified(|known| std::mem::replace(known, answers) != answers);
    }

    /// Whom to ask, in this order, each with the token that ends its connections.
    fn candidates(&self) -> Vec<(String, CancellationToken)> {
        let state = self.0.state.lock();
        let entries: Vec<(&str, Health)> =
            state.entries.iter().map(|e| (e.address.as_str(), e.health)).collect();
        let order = order::order(&entries, state.current.as_deref(), base::clock::random_u64());
        let entry = |at: &usize| state.entries.get(*at).map(|e| (e.address.clone(), e.cut.clone()));
        order.iter().filter_map(entry).collect()
    }
}

impl State {
    fn answers(&self) -> bool {
        self.entries.iter().any(|e| matches!(e.health, Health::Connected | Health::Reached))
    }
}

/// TCP to `host:port` with a limit, without delay of small writes.
pub(crate) async fn connect(address: &str, limit: Duration) -> io::Result<TcpStream> {
    let stream = tokio::time::timeout(limit, TcpStream::connect(address)).await;
    let stream =
        stream.map_err(|_| io::Error::new(io::ErrorKind::TimedOut, "no answer in time"))??;
    stream.set_nodelay(true)?;
    Ok(stream)
}

#[async_trait]
impl Dial for Servers {
    /// A connection to a server that answers; whatever host is asked for, it is one of the servers.
    async fn dial(&self, _: &str, _: u16) -> io::Result<BoxIo> {
        let mut failures = Vec::new();
        for (address, cut) in self.candidates() {
            match connect(&address, DIAL_MAX).await {
                Ok(stream) => {
                    self.dialled(&address, None);
                    return Ok(Box::new(Guarded::new(stream, cut)));
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

/// `https://HOST:PORT`, `HOST:PORT` or `HOST` as `host:port`, IPv6 in brackets.
///
/// # Errors
/// When it is none of these.
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
