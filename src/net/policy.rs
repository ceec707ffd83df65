//! Network policies: enforces in the kernel what is allowed to and from the pods of this node.
//!
//! [`model`] parses API objects, [`decide`] computes set elements from them and [`nft`] holds the
//! rules; this module runs the task between the API watches, the CNI plugin and the kernel. Pods of
//! the whole cluster are watched only while a policy exists.

mod decide;
mod drops;
mod frames;
pub(crate) mod gate;
pub(crate) mod model;
mod nft;
mod ports;
#[cfg(test)]
mod run_tests;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod traffic_tests;

use std::collections::BTreeSet;
use std::future::pending;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use api::k8s::api::core::v1::{Namespace, Node, Pod};
use api::{Gvr, ObjectKey};
use base::{Backoff, Problems, Shutdown, Tasks};
use client::{Change, Client, Informer, Informers, Scope, gvr_of};
use parking_lot::Mutex;
use sorting::CollectOrdered as _;
use tokio::sync::{Notify, watch};

use crate::config::{Config, Error};
use crate::netlink::Socket;
pub(crate) use decide::Local;
use decide::{Decider, Decision, Sets};
pub use drops::DroppedPackets;
use drops::Drops;
use gate::{Covered, Gate, Leases};
use nft::Layout;
use settings::addr::Family;

/// Changes that arrive within this time are applied together.
const GATHER: Duration = Duration::from_millis(5);
/// Key of the problem that reports rules refused by the kernel.
const PROBLEM: &str = "policies/rules";

#[derive(Debug, Default)]
struct Keys {
    policies: BTreeSet<ObjectKey>,
    namespaces: BTreeSet<ObjectKey>,
    pods: BTreeSet<ObjectKey>,
    nodes: bool,
}

#[derive(Debug, Default)]
struct Dirty {
    keys: Mutex<Keys>,
    wake: Notify,
}

impl Dirty {
    fn note(
        self: &Arc<Self>,
        set: fn(&mut Keys, ObjectKey) -> bool,
    ) -> impl Fn(&Change) + Send + Sync + 'static {
        let this = Arc::clone(self);
        move |change| {
            if set(&mut this.keys.lock(), change.object().key.clone()) {
                this.wake.notify_one();
            }
        }
    }
}

/// The state of a table in the kernel.
#[derive(Debug)]
enum TableState {
    /// A table of an earlier run, or none.
    Unknown,
    Nothing,
    These(Sets, Drops, BTreeSet<IpAddr>),
}

#[derive(Debug)]
struct Table {
    layout: Layout,
    state: TableState,
}

#[derive(Debug)]
struct Kernel {
    socket: Socket,
    tables: Vec<Table>,
    frames: Frames,
    dropped: DroppedPackets,
}

/// The bridge table that filters the frames of pods.
#[derive(Debug)]
struct Frames {
    table: String,
    bridge: String,
    state: FramesState,
    /// The kernel's refusal has been logged.
    refusal_logged: bool,
}

#[derive(Debug)]
enum FramesState {
    Unknown,
    Nothing,
    These(frames::FrameSets),
}

impl Frames {
    fn new(config: &Config) -> Self {
        let (table, bridge) = (nft::table(&config.table), config.bridge.clone());
        Self { table, bridge, state: FramesState::Unknown, refusal_logged: false }
    }

    fn set(&mut self, socket: &mut Socket, wanted: Option<frames::FrameSets>) {
        let before = std::mem::replace(&mut self.state, FramesState::Unknown);
        let done = match (before, wanted) {
            (FramesState::Nothing, None) => Ok(FramesState::Nothing),
            (_, None) => frames::remove(socket, &self.table)
                .map_err(Error::from)
                .map(|()| FramesState::Nothing),
            (FramesState::These(old), Some(now)) => frames::apply(socket, &self.table, &old, &now)
                .map_err(Error::from)
                .map(|()| FramesState::These(now)),
            (_, Some(now)) => self.replace(socket, &now).map(|()| FramesState::These(now)),
        };
        match done {
            Ok(state) => self.state = state,
            // Without this table only pods that craft their own frames bypass the rules; a kernel
            // may lack bridge tables.
            Err(error) => {
                if !std::mem::replace(&mut self.refusal_logged, true) {
                    tracing::warn!(%error, "policy: no bridge tables, pods that craft frames bypass network policies");
                }
            }
        }
    }

    fn replace(&self, socket: &mut Socket, held: &frames::FrameSets) -> Result<(), Error> {
        let named = || format!("cannot find bridge {}", self.bridge);
        let link = Socket::route().and_then(|mut s| s.link(&self.bridge));
        let missing = || std::io::Error::from(std::io::ErrorKind::NotFound);
        let link = link.and_then(|l| l.ok_or_else(missing)).map_err(Error::io(named()))?;
        Ok(frames::replace(socket, &self.table, &link.mac, held)?)
    }
}

impl Kernel {
    fn apply(
        &mut self,
        decision: &mut Decision,
        local: &[Local],
        nodes: &BTreeSet<IpAddr>,
    ) -> Result<(), Error> {
        let idle = decision.is_idle();
        self.frames.set(&mut self.socket, (!idle).then(|| frames::wanted(local)));
        for table in &mut self.tables {
            let layout = &table.layout;
            let before = std::mem::replace(&mut table.state, TableState::Unknown);
            if idle && layout.guard.is_none() {
                if !matches!(before, TableState::Nothing) {
                    layout.remove(&mut self.socket)?;
                }
                table.state = TableState::Nothing;
                continue;
            }
            let sets = decision.sets.remove(&layout.family).unwrap_or_default();
            match &before {
                TableState::These(old, drops, nodes_before) => {
                    let before = (old, drops, nodes_before);
                    let now = (&sets, &decision.drops, nodes);
                    let count = layout.apply(&mut self.socket, before, now)?;
                    tracing::debug!(
                        family = layout.family.name(),
                        count,
                        "policy: applied changed elements"
                    );
                }
                TableState::Unknown | TableState::Nothing => {
                    layout.replace(&mut self.socket, (&sets, &decision.drops), nodes)?
                }
            }
            table.state = TableState::These(sets, decision.drops.clone(), nodes.clone());
        }
        if let Some(table) = self.tables.first() {
            let families = self.tables.iter().map(|table| table.layout.family).collect();
            self.dropped.follow(&table.layout.table, families, &decision.drops);
        }
        Ok(())
    }
}

/// The watch of all pods, with the tasks that end with it.
struct PodWatch {
    tasks: Tasks,
    scope: Scope,
    pods: Informer<Pod>,
    namespaces: Informer<Namespace>,
}

impl PodWatch {
    fn is_synced(&self) -> bool {
        self.pods.is_synced() && self.namespaces.is_synced()
    }
}

/// The network policy task; see the module documentation.
pub(crate) struct Policies {
    client: Client,
    informers: Informers,
    tasks: Tasks,
    /// `None` where only [`crate::Guard`] is configured.
    policies: Option<Informer<()>>,
    namespaces: Option<Informer<Namespace>>,
    nodes: Informer<Node>,
    watching: Option<PodWatch>,
    dirty: Arc<Dirty>,
    leases: watch::Receiver<Leases>,
    covered: watch::Sender<Covered>,
    /// Both move to a worker thread while rules are computed and applied.
    engine: Option<(Decider, Kernel)>,
    node_addresses: BTreeSet<IpAddr>,
    /// Something has changed since the rules were last applied.
    stale: bool,
    board: Problems,
}

fn worker_panicked() -> Error {
    Error::PolicyWorker
}

fn layouts(config: &Config) -> Vec<Layout> {
    let layout = |family| Layout {
        family,
        table: nft::table(&config.table),
        bridge: config.bridge.clone(),
        guard: config.guard.clone(),
    };
    config.cluster.families().into_iter().map(layout).collect()
}

/// Removes the tables of an earlier run where policies are not enforced.
pub(crate) fn remove(config: &Config, socket: &mut Socket) -> Vec<Error> {
    let each = Family::ALL.into_iter().map(|family| Layout {
        family,
        table: nft::table(&config.table),
        bridge: config.bridge.clone(),
        guard: None,
    });
    let faults = each.filter_map(|layout| layout.remove(socket).err().map(Error::from)).collect();
    if let Err(error) = frames::remove(socket, &nft::table(&config.table)) {
        tracing::debug!(%error, "policy: no bridge table to remove");
    }
    faults
}

impl Policies {
    /// Also returns the gate at which pods wait for their rules.
    pub(crate) fn new(
        config: &Config,
        (client, informers, nodes): (&Client, &Informers, Informer<Node>),
        leases: watch::Receiver<Leases>,
        tasks: &Tasks,
    ) -> Result<(Self, Gate), Error> {
        let dirty = Arc::new(Dirty::default());
        let policies = config.cluster.network_policies.then(|| {
            let gvr = Gvr::new("networking.k8s.io", "v1", "networkpolicies");
            let policies: Informer<()> = informers.scoped(Scope::all(gvr));
            policies.on_change(dirty.note(|keys, key| keys.policies.insert(key)));
            policies
        });
        if config.guard.is_some() {
            nodes.on_change(dirty.note(|keys, _| !std::mem::replace(&mut keys.nodes, true)));
        }
        let socket = Socket::netfilter().map_err(Error::io("cannot open a netfilter socket"))?;
        let tables = layouts(config)
            .into_iter()
            .map(|layout| Table { layout, state: TableState::Unknown })
            .collect();
        let (covered, seen) = watch::channel(Covered::default());
        let (frames, dropped) = (Frames::new(config), config.dropped_packets.clone());
        let kernel = Kernel { socket, tables, frames, dropped };
        let engine = Some((Decider::new(&config.cluster.cluster_dns), kernel));
        let this = Self {
            client: client.clone(),
            informers: informers.clone(),
            tasks: tasks.clone(),
            policies,
            namespaces: None,
            nodes,
            watching: None,
            dirty,
            leases,
            covered,
            engine,
            node_addresses: BTreeSet::new(),
            stale: true,
            board: tasks.problems().clone(),
        };
        Ok((this, Gate(seen)))
    }

    /// Runs until shutdown; after a refusal by the kernel the whole table is applied again. The
    /// table of an earlier run stays until everything needed for a new one has synced, and the last
    /// table stays after shutdown.
    pub(crate) async fn run(mut self, shutdown: Shutdown) -> Result<(), Error> {
        let mut backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(30));
        let mut complete = false;
        loop {
            let policies = self.policies.clone();
            let watched = self.watching.as_ref().map(|w| (w.pods.clone(), w.namespaces.clone()));
            let known = async {
                if let Some(policies) = &policies {
                    policies.synced().await;
                }
                match watched {
                    Some((pods, namespaces)) => {
                        tokio::join!(pods.synced(), namespaces.synced());
                    }
                    None if complete => pending().await,
                    None => {}
                }
            };
            tokio::select! {
                () = shutdown.requested() => return Ok(()),
                () = known, if !complete => {}
                () = self.dirty.wake.notified() => base::clock::sleep(GATHER).await,
                // A pod waits to start.
                changed = self.leases.changed() => if changed.is_err() { return Ok(()) },
            }
            loop {
                match self.sync().await {
                    Ok(done) => {
                        complete = done;
                        break;
                    }
                    Err(error) => self.board.put(
                        PROBLEM,
                        format!("the kernel refused the rules of network policies: {error}"),
                        "see `kube-lite check-config`; pods that start in the meantime wait",
                    ),
                }
                if !backoff.wait(&shutdown).await {
                    return Ok(());
                }
            }
            backoff.reset();
            self.board.clear(PROBLEM);
        }
    }

    /// Starts the watch of pods with the first policy and ends it with the last. Returns whether
    /// all inputs of the decision have synced.
    fn follow(&mut self, has_policies: bool) -> bool {
        if !has_policies {
            if let Some(watching) = self.watching.take() {
                watching.tasks.shutdown().request();
                self.client.transport().forget(&watching.scope);
                self.dirty.keys.lock().pods.clear();
                if let Some((decider, _)) = &mut self.engine {
                    decider.forget_pods();
                }
                self.stale = true;
                tracing::debug!(
                    "policy: last network policy removed, stopped the watch of all pods"
                );
            }
            return true;
        }
        if self.watching.is_none() {
            tracing::debug!("policy: first network policy, started the watch of all pods");
            let namespaces = self.namespaces.get_or_insert_with(|| {
                let namespaces = self.informers.of::<Namespace>();
                namespaces.on_change(self.dirty.note(|keys, key| keys.namespaces.insert(key)));
                namespaces
            });
            // An earlier watch may have reported these already; the decider has forgotten them
            // since.
            let known = namespaces.cache().list("").into_iter().map(|o| o.key.clone());
            self.dirty.keys.lock().namespaces.extend(known);
            let tasks = self.tasks.child();
            // Policies do not apply to host-network pods, and finished pods no longer have an
            // address.
            let scope = Scope::all(gvr_of::<Pod>())
                .fields("spec.hostNetwork=false,status.phase!=Failed,status.phase!=Succeeded");
            let pods = Informers::new(self.client.clone(), tasks.clone()).scoped(scope.clone());
            pods.on_change(self.dirty.note(|keys, key| keys.pods.insert(key)));
            let namespaces = namespaces.clone();
            self.watching = Some(PodWatch { tasks, scope, pods, namespaces });
        }
        self.watching.as_ref().is_some_and(PodWatch::is_synced)
    }

    /// Applies the rules for the current state; returns `false` while inputs have not synced.
    async fn sync(&mut self) -> Result<bool, Error> {
        let Some((decider, _)) = &mut self.engine else { return Err(worker_panicked()) };
        let keys = std::mem::take(&mut self.dirty.keys.lock().policies);
        for key in keys {
            let informer = self.policies.as_ref();
            let object = informer.and_then(|p| p.cache().get(&key.namespace, &key.name));
            self.stale |= decider.policy(&key, object.map(|o| model::Policy::read(&o)));
        }
        let has_policies = decider.has_policies();
        let synced = self.policies.as_ref().is_none_or(Informer::is_synced);
        if !synced || !self.follow(has_policies) {
            return Ok(false);
        }
        self.apply_changes();
        let leases = self.leases.borrow_and_update().clone();
        let Some((mut decider, mut kernel)) = self.engine.take() else {
            return Err(worker_panicked());
        };
        self.stale |= decider.local(leases.pods);
        if !self.stale {
            self.engine = Some((decider, kernel));
            self.covered.send_if_modified(|c| {
                std::mem::replace(&mut c.generation, leases.generation) != leases.generation
            });
            return Ok(true);
        }
        let nodes = self.node_addresses.clone();
        let work = base::tasks::blocking(move || {
            let mut decision = decider.decide();
            let result = kernel.apply(&mut decision, decider.locals(), &nodes);
            (decider, kernel, decision.unknown, result)
        });
        let (decider, kernel, unknown, result) = work.await?;
        self.engine = Some((decider, kernel));
        result?;
        self.stale = false;
        self.covered.send_replace(Covered { generation: leases.generation, unknown });
        Ok(true)
    }

    /// Passes changes of pods, namespaces and nodes to the decider.
    fn apply_changes(&mut self) {
        let Some((decider, _)) = &mut self.engine else { return };
        let (namespaces, pods, nodes) = {
            let mut keys = self.dirty.keys.lock();
            let nodes = std::mem::take(&mut keys.nodes);
            (std::mem::take(&mut keys.namespaces), std::mem::take(&mut keys.pods), nodes)
        };
        if let Some(watching) = &self.watching {
            for key in namespaces {
                let object = watching.namespaces.cache().get("", &key.name);
                self.stale |= decider.namespace(&key.name, object.map(|o| Arc::clone(&o.labels)));
            }
            for key in pods {
                let object = watching.pods.cache().get(&key.namespace, &key.name);
                self.stale |= decider.pod(&key, object.and_then(|o| model::Pod::read(&o)));
            }
        }
        if nodes {
            let told = self.nodes.list("").into_iter().filter_map(|n| n.status?.addresses);
            let now: BTreeSet<IpAddr> =
                told.flatten().filter_map(|a| a.address.parse().ok()).collect_set();
            self.stale |= now != self.node_addresses;
            self.node_addresses = now;
        }
    }
}
