//! Registration of plugins of the kubelet: programs that serve `pluginregistration.v1` at a socket
//! below `<root>/plugins_registry`, such as the registrars of CSI drivers.
//!
//! A plugin is registered when its socket appears, again when the socket is replaced, and
//! deregistered when it disappears. Nothing is deregistered when the agent stops.

mod handler;
pub(crate) mod metrics;
mod registration;
mod sockets;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use base::{Backoff, Shutdown};
use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use tokio::time::Instant;

use crate::file_watcher::FileWatcher;
pub(crate) use handler::{Plugin, PluginHandler, PluginRefused};
use registration::RegistrationError;
use sockets::{RegistryContent, SocketIdentity};

/// Delays between attempts to register a plugin (`exponentialbackoff` of `goroutinemap`).
const RETRY_FIRST: Duration = Duration::from_millis(500);
const RETRY_MAX: Duration = Duration::from_secs(122);
/// How often the directory is read after one change: once more after each new directory is watched,
/// but not forever. Whatever changes later is another change.
const READS_MAX: usize = 4;

/// The handlers of plugins, one for each type.
pub(crate) type PluginHandlers = Vec<Arc<dyn PluginHandler>>;

/// A plugin that was accepted by its handler.
#[derive(Debug, Clone)]
struct RegisteredPlugin {
    plugin: Plugin,
    handler: Arc<dyn PluginHandler>,
    /// The socket at which it was registered.
    socket: SocketIdentity,
}

/// The state of one socket path.
#[derive(Debug)]
struct PluginSocket {
    /// The socket that exists now.
    present: Option<SocketIdentity>,
    registered: Option<RegisteredPlugin>,
    /// An operation on this path is running.
    is_busy: bool,
    backoff: Backoff,
    retry_at: Option<Instant>,
}

impl PluginSocket {
    fn new() -> Self {
        Self {
            present: None,
            registered: None,
            is_busy: false,
            backoff: Backoff::new(RETRY_FIRST, RETRY_MAX),
            retry_at: None,
        }
    }

    /// Returns what to do at `now`. A replaced socket is deregistered first.
    fn next_step(&self, now: Instant) -> Step {
        if self.is_busy {
            return Step::Wait;
        }
        match (&self.registered, self.present) {
            (Some(known), present) if present != Some(known.socket) => Step::Deregister,
            (None, None) => Step::Forget,
            (None, Some(socket)) if self.retry_at.is_none_or(|at| at <= now) => {
                Step::Register(socket)
            }
            _ => Step::Wait,
        }
    }
}

/// The next operation on a socket path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Wait,
    Register(SocketIdentity),
    Deregister,
    Forget,
}

/// The outcome of an operation on a socket path.
enum Outcome {
    Registered(Result<RegisteredPlugin, RegistrationError>),
    Deregistered,
}

type Operations = FuturesUnordered<BoxFuture<'static, (PathBuf, Outcome)>>;

/// Registers and deregisters plugins until shutdown. `directory` must exist; it is read again at
/// each of its changes.
pub(crate) async fn run(
    directory: PathBuf,
    handlers: PluginHandlers,
    problems: base::Problems,
    shutdown: Shutdown,
) -> Result<(), std::convert::Infallible> {
    let mut watcher = match FileWatcher::new() {
        Ok(watcher) => Some(watcher),
        Err(error) => {
            let what = format!("plugins such as CSI drivers are not noticed: {error}");
            let fix = "raise the limit of watches (`sysctl -w fs.inotify.max_user_instances=1024`) \
                and restart this node";
            problems.put("plugins/watch", what, fix);
            None
        }
    };
    let mut manager = PluginManager { handlers: handlers.into(), sockets: BTreeMap::new() };
    let mut operations = Operations::new();
    let mut directories = manager.read(watcher.as_mut(), &directory).await;
    loop {
        let now = base::clock::now();
        manager.start_operations(&operations, now);
        metrics::set(manager.socket_states());
        let retry_at = manager.retry_at(now);
        tokio::select! {
            () = shutdown.requested() => return Ok(()),
            () = changed(watcher.as_mut(), &directories) => {
                directories = manager.read(watcher.as_mut(), &directory).await;
            }
            Some((path, outcome)) = operations.next(), if !operations.is_empty() => {
                manager.finish(&path, outcome);
            }
            () = sleep_until(retry_at) => {}
        }
    }
}

/// Resolves at the next change in the directories; never without a watcher.
async fn changed(watcher: Option<&mut FileWatcher>, directories: &[PathBuf]) {
    match watcher {
        Some(watcher) => watcher.changed(directories).await,
        None => std::future::pending().await,
    }
}

async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

struct PluginManager {
    handlers: Arc<[Arc<dyn PluginHandler>]>,
    sockets: BTreeMap<PathBuf, PluginSocket>,
}

impl PluginManager {
    /// Reads the directory and watches it with all directories below; returns those.
    async fn read(
        &mut self,
        mut watcher: Option<&mut FileWatcher>,
        directory: &Path,
    ) -> Vec<PathBuf> {
        let mut watched = vec![directory.to_owned()];
        for last in [false; READS_MAX - 1].into_iter().chain([true]) {
            if let Some(watcher) = &mut watcher {
                watcher.watch(&watched);
            }
            let root = directory.to_path_buf();
            let content = base::tasks::blocking(move || sockets::read(&root)).await;
            let RegistryContent { sockets, directories } = content.unwrap_or_default();
            // Sockets may have appeared in a directory before it was watched.
            if directories == watched || directories.is_empty() || last {
                self.set_present(&sockets);
                break;
            }
            watched = directories;
        }
        watched
    }

    /// Records which sockets exist.
    fn set_present(&mut self, present: &BTreeMap<PathBuf, SocketIdentity>) {
        for path in present.keys() {
            self.sockets.entry(path.clone()).or_insert_with(PluginSocket::new);
        }
        for (path, socket) in &mut self.sockets {
            let found = present.get(path).copied();
            if socket.present != found {
                socket.present = found;
                socket.backoff.reset();
                socket.retry_at = None;
            }
        }
    }

    /// Starts the operations that are due.
    fn start_operations(&mut self, operations: &Operations, now: Instant) {
        let mut forgotten = Vec::new();
        for (path, socket) in &mut self.sockets {
            match socket.next_step(now) {
                Step::Wait => {}
                Step::Forget => forgotten.push(path.clone()),
                Step::Register(identity) => {
                    socket.is_busy = true;
                    let (path, handlers) = (path.clone(), Arc::clone(&self.handlers));
                    operations.push(Box::pin(async move {
                        let outcome = registration::register(&path, &handlers).await;
                        let registered = outcome.map(|(plugin, handler)| RegisteredPlugin {
                            plugin,
                            handler,
                            socket: identity,
                        });
                        (path, Outcome::Registered(registered))
                    }));
                }
                Step::Deregister => {
                    let Some(known) = socket.registered.take() else { continue };
                    socket.is_busy = true;
                    let path = path.clone();
                    tracing::info!(plugin = known.plugin.name, "plugin is gone");
                    operations.push(Box::pin(async move {
                        known.handler.deregister(&known.plugin).await;
                        (path, Outcome::Deregistered)
                    }));
                }
            }
        }
        for path in forgotten {
            self.sockets.remove(&path);
        }
    }

    /// The states of all sockets, for the metrics.
    fn socket_states(&self) -> Vec<metrics::SocketStates> {
        let states = |(path, socket): (&PathBuf, &PluginSocket)| {
            let registered = socket.registered.is_some().then_some(metrics::REGISTERED);
            let present = socket.present.is_some().then_some(metrics::PRESENT);
            (path.display().to_string(), [registered, present])
        };
        self.sockets.iter().map(states).collect()
    }

    /// Records the outcome of an operation.
    fn finish(&mut self, path: &Path, outcome: Outcome) {
        let Some(socket) = self.sockets.get_mut(path) else { return };
        socket.is_busy = false;
        match outcome {
            Outcome::Deregistered => {}
            Outcome::Registered(Ok(plugin)) => {
                tracing::info!(
                    plugin = plugin.plugin.name,
                    endpoint = %plugin.plugin.endpoint.display(),
                    "plugin registered"
                );
                socket.registered = Some(plugin);
                socket.backoff.reset();
                socket.retry_at = None;
            }
            Outcome::Registered(Err(error)) => {
                let path = path.display();
                if socket.backoff.failures() == 0 {
                    tracing::warn!(socket = %path, %error, "cannot register plugin, retrying");
                } else {
                    tracing::debug!(socket = %path, %error, "cannot register plugin, retrying");
                }
                socket.retry_at = Some(base::clock::now() + socket.backoff.next_delay());
            }
        }
    }

    /// Returns when the next failed registration is retried.
    fn retry_at(&self, now: Instant) -> Option<Instant> {
        let waiting = self.sockets.values().filter(|s| !s.is_busy && s.registered.is_none());
        waiting.filter_map(|s| s.retry_at).filter(|at| *at > now).min()
    }
}

#[cfg(test)]
mod tests;
