//! The overlay between machines: pods of other nodes are reached over VXLAN or WireGuard, or
//! straight where nodes share a link.

pub(crate) mod address;
pub(crate) mod announce;
pub(crate) mod checksum;
pub(crate) mod engine;
pub(crate) mod guard;
pub(crate) mod kernel;
pub(crate) mod key;
pub(crate) mod peer;
pub(crate) mod plan;
pub(crate) mod probe;
#[cfg(test)]
mod run_tests;
#[cfg(test)]
mod traffic_tests;
pub(crate) mod wireguard;

pub use wireguard::WireGuardError;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use api::k8s::api::core::v1::{Node, ObjectReference};
use base::{Backoff, Kind, Problems, Shutdown, Tasks};
use client::events::EventType;
use client::{Change, Client, EventRecorder, Informer};
use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc, watch};

use crate::config::{Config, Error};
use crate::netlink::monitor::{KernelChange, Monitor, Notification};
use engine::{Engine, Outcome, View};
use peer::Peer;
use plan::Problem;
use probe::{Finding, Prober, Report, Target};
use settings::addr::{Cidr, Family};

/// Changes that come within this time are applied together.
const GATHER: Duration = Duration::from_millis(50);

/// The nodes as they were last seen.
#[derive(Debug, Default)]
struct PeerCache {
    peers: Mutex<BTreeMap<Arc<str>, Peer>>,
    wake: Notify,
}

impl PeerCache {
    /// `vni` is the network identifier of this node's VXLAN.
    fn note(&self, change: &Change, own: &str, vni: u32, annotations: &announce::OwnSender) {
        let node = change.object();
        let is_own = *node.key.name == *own;
        let mut peers = self.peers.lock();
        if let Change::Deleted(_) = change {
            if peers.remove(&node.key.name).is_some() {
                self.wake.notify_one();
            }
            if is_own {
                annotations.send_replace(None);
            }
            return;
        }
        let mut peer = Peer::read(node, vni);
        let written = std::mem::take(&mut peer.annotations);
        if is_own {
            annotations.send_if_modified(|old| {
                let changed = old.as_ref() != Some(&written);
                *old = Some(written);
                changed
            });
        }
        // A node's status changes all the time; most of it does not matter here.
        if peers.get(&node.key.name) != Some(&peer) {
            peers.insert(Arc::clone(&node.key.name), peer);
            self.wake.notify_one();
        }
    }
}

/// Keeps the ways to other nodes right, until shutdown.
pub(crate) struct Overlay {
    config: Config,
    nodes: Informer<Node>,
    seen: Arc<PeerCache>,
    blocks: watch::Receiver<Vec<Cidr>>,
    wanted: announce::DesiredSender,
    events: EventRecorder,
    told: BTreeSet<Problem>,
    board: Problems,
    prober: Prober,
    holes: BTreeMap<(String, IpAddr), Problem>,
    spoiled: BTreeMap<Family, String>,
    engine: Option<Engine>,
}

/// Starts the overlay. `nodes` are all nodes of the cluster, unless there is no overlay; `node`
/// acts as this node.
pub(crate) fn start(
    config: &Config,
    nodes: &Informer<Node>,
    network: Client,
    node: Client,
    blocks: watch::Receiver<Vec<Cidr>>,
    tasks: &Tasks,
) -> Result<(), Error> {
    let engine = Engine::open(config)?;
    let monitor = Monitor::open().map_err(Error::io("cannot listen to the kernel's links"))?;
    let seen = Arc::new(PeerCache::default());
    let (own, own_seen) = watch::channel(None);
    let (note, name) = (Arc::clone(&seen), config.node_name.clone());
    let vni = config.cluster.overlay.vni;
    nodes.on_change(move |change| note.note(change, &name, vni, &own));
    let (wanted, wanted_seen) = watch::channel(BTreeMap::new());
    let announce = announce::run(
        node,
        config.node_name.clone(),
        wanted_seen,
        own_seen,
        tasks.shutdown().clone(),
    );
    tasks.spawn(Kind::Critical, "overlay-annotations", announce);
    let (prober, probed) = Prober::new(tasks);
    let overlay = Overlay {
        config: config.clone(),
        nodes: nodes.clone(),
        seen,
        blocks,
        wanted,
        events: EventRecorder::new(network, "kube-lite-overlay", &config.node_name, tasks),
        told: BTreeSet::new(),
        board: tasks.problems().clone(),
        prober,
        holes: BTreeMap::new(),
        spoiled: BTreeMap::new(),
        engine: Some(engine),
    };
    tasks.spawn(Kind::Critical, "overlay", overlay.run(monitor, probed, tasks.shutdown().clone()));
    Ok(())
}

/// Whether a change of the kernel requires another pass.
fn matters(change: &KernelChange, outcome: &Outcome) -> bool {
    match change {
        KernelChange::Link(index) => outcome.links.contains(index),
        // Router advertisements announce addresses that are known again.
        KernelChange::AddressAdded(address) => !outcome.seen.contains(address),
        KernelChange::AddressRemoved(address) => outcome.seen.contains(address),
        KernelChange::RouteRemoved(route) => route.protocol == kernel::PROTOCOL,
    }
}

impl Overlay {
    async fn run(
        mut self,
        mut monitor: Monitor,
        mut probed: mpsc::Receiver<Report>,
        shutdown: Shutdown,
    ) -> Result<(), Error> {
        let mut backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(60));
        let nodes = self.nodes.clone();
        let ready = nodes.synced();
        tokio::pin!(ready);
        let mut complete = false;
        loop {
            let mut outcome = self.pass(complete).await?;
            self.prober.follow(&outcome.ways);
            outcome.problems.extend(self.known_holes(&outcome.ways));
            let failed = outcome.problems.iter().any(|p| matches!(p, Problem::Kernel { .. }));
            let retry = if failed { backoff.next_delay() } else { Duration::MAX };
            if !failed {
                backoff.reset();
            }
            self.publish(&outcome);
            tokio::select! {
                () = shutdown.requested() => return Ok(()),
                () = &mut ready, if !complete => complete = true,
                () = self.seen.wake.notified() => {}
                changed = self.blocks.changed() => if changed.is_err() {
                    return Ok(());
                },
                Some(report) = probed.recv() => self.record(report),
                news = news(&mut monitor, &outcome) => news?,
                () = base::clock::sleep(retry), if failed => {}
            }
            base::clock::sleep(GATHER).await;
        }
    }

    async fn pass(&mut self, complete: bool) -> Result<Outcome, Error> {
        let view = View {
            peers: self.seen.peers.lock().values().cloned().collect(),
            complete,
            blocks: self.blocks.borrow_and_update().clone(),
            spoiled: self.spoiled.clone(),
        };
        let Some(mut engine) = self.engine.take() else { return Ok(Outcome::default()) };
        let (engine, outcome) = base::tasks::blocking(move || {
            let outcome = engine.sync(&view);
            (engine, outcome)
        })
        .await?;
        self.engine = Some(engine);
        let outcome = outcome.map_err(Error::io("cannot read the node's links"))?;
        if outcome.changes > 0 {
            tracing::debug!(changes = outcome.changes, "ways to other nodes changed");
        }
        Ok(outcome)
    }

    /// Notes what a probe found; the next pass tells it.
    fn record(&mut self, (way, finding): Report) {
        let key = (way.node.clone(), way.address);
        match finding {
            Finding::Hole(arrives) => {
                let Target { node, address, size, .. } = way;
                self.holes.insert(key, Problem::Hole { node, address, size, arrives });
            }
            Finding::Well => {
                self.holes.remove(&key);
            }
            Finding::Spoiled => {
                self.spoiled.entry(Family::of(way.address)).or_insert(way.node);
            }
            Finding::Silent => {}
        }
    }

    /// The holes on ways that still are.
    fn known_holes(&mut self, ways: &[Target]) -> Vec<Problem> {
        self.holes.retain(|(_, address), problem| {
            let Problem::Hole { size, .. } = problem else { return false };
            ways.iter().any(|way| way.address == *address && way.size == *size)
        });
        self.holes.values().cloned().collect()
    }

    /// Passes on what a pass found.
    fn publish(&mut self, outcome: &Outcome) {
        self.config.addresses.send_if_modified(|old| {
            let changed = *old != outcome.addresses;
            if changed {
                let to = &outcome.addresses;
                tracing::info!(from = ?old, ?to, "the node's addresses changed");
                old.clone_from(&outcome.addresses);
            }
            changed
        });
        let ends = self.engine.as_ref().and_then(|engine| engine.ends(outcome));
        if let Some(ends) = ends.filter(|_| !outcome.published.is_empty()) {
            let external = &self.config.external_addresses;
            let backend = self.config.cluster.backend;
            let wanted = peer::annotations(backend, &outcome.published, external, &ends);
            self.wanted.send_if_modified(|old| {
                let changed = *old != wanted;
                *old = wanted;
                changed
            });
        }
        for problem in self.told.difference(&outcome.problems) {
            self.board.clear(&problem.key());
        }
        for problem in outcome.problems.difference(&self.told) {
            self.board.put(&problem.key(), problem.what(), problem.fix());
            let name = Some(self.config.node_name.clone());
            // An event of a node has its name as uid, as the kubelet's have.
            let object = ObjectReference {
                kind: Some("Node".into()),
                uid: name.clone(),
                name,
                ..ObjectReference::default()
            };
            let message = format!("{}; {}", problem.what(), problem.fix());
            self.events.event_for(object, EventType::Warning, problem.reason(), message);
        }
        self.told.clone_from(&outcome.problems);
    }
}

/// Resolves when the kernel changed something that matters.
async fn news(monitor: &mut Monitor, outcome: &Outcome) -> Result<(), Error> {
    loop {
        let next = monitor.next().await;
        match next.map_err(Error::io("cannot listen to the kernel's links"))? {
            Notification::Lost => return Ok(()),
            Notification::Changes(list) if list.iter().any(|c| matters(c, outcome)) => {
                return Ok(());
            }
            Notification::Changes(_) => {}
        }
    }
}

/// Whether this machine's kernel can run the backend.
///
/// # Errors
/// When it lacks WireGuard and the backend needs it.
pub fn check_support(backend: settings::Backend) -> Result<(), WireGuardError> {
    if backend.encrypts() { wireguard::supported() } else { Ok(()) }
}
