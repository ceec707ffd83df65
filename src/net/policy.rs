//! Network policies: what is allowed to and from the pods of this node, held by the kernel.
//!
//! [`model`] reads objects, [`decide`] makes elements of them, [`nft`] holds the rules; here is the task between the API's
//! watches, the CNI plugin and the kernel. Pods of the cluster are watched only while there is a policy.

mod decide;
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
use tokio::sync::{Notify, watch};

use crate::config::{Config, Error};
use crate::netlink::Socket;
pub(crate) use decide::Local;
use decide::{Decider, Decision, Sets};
use gate::{Covered, Gate, Leases};
use nft::Layout;
use settings::addr::Family;

/// Changes that come within this time are applied together.
const GATHER: Duration = Duration::from_millis(5);
/// Where it is told that the kernel refuses rules.
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

/// What stands in the kernel.
#[derive(Debug)]
enum Stands {
    /// Something of an earlier run, or nothing.
    Unknown,
    Nothing,
    These(Sets, BTreeSet<IpAddr>),
}

#[derive(Debug)]
struct Table {
    layout: Layout,
    stands: Stands,
}

#[derive(Debug)]
struct Kernel {
    socket: Socket,
    tables: Vec<Table>,
    frames: Frames,
}

/// The table that sees the frames of pods.
#[derive(Debug)]
struct Frames {
    table: String,
    bridge: String,
    stands: FramesStand,
    /// That the kernel refuses it was told.
    said: bool,
}

#[derive(Debug)]
enum FramesStand {
    Unknown,
    Nothing,
    These(frames::Held),
}

impl Frames {
    fn new(config: &Config) -> Self {
        let (table, bridge) = (nft::table(&config.table), config.bridge.clone());
        Self { table, bridge, stands: FramesStand::Unknown, said: false }
    }

    fn set(&mut self, socket: &mut Socket, wanted: Option<frames::Held>) {
        let before = std::mem::replace(&mut self.stands, FramesStand::Unknown);
        let done = match (before, wanted) {
            (FramesStand::Nothing, None) => Ok(FramesStand::Nothing),
            (_, None) => frames::remove(socket, &self.table)
                .map_err(Error::from)
                .map(|()| FramesStand::Nothing),
            (FramesStand::These(old), Some(now)) => frames::apply(socket, &self.table, &old, &now)
                .map_err(Error::from)
                .map(|()| FramesStand::These(now)),
            (_, Some(now)) => self.replace(socket, &now).map(|()| FramesStand::These(now)),
        };
        match done {
            Ok(stands) => self.stands = stands,
            // Only who makes frames itself gets around the rules without it; a kernel may have no tables for bridges.
            Err(error) => {
                if !std::mem::replace(&mut self.said, true) {
                    tracing::warn!(%error, "pods that make frames themselves get past network policies");
                }
            }
        }
    }

    fn replace(&self, socket: &mut Socket, held: &frames::Held) -> Result<(), Error> {
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
            let before = std::mem::replace(&mut table.stands, Stands::Unknown);
            if idle && layout.guard.is_none() {
                if !matches!(before, Stands::Nothing) {
                    layout.remove(&mut self.socket)?;
                }
                table.stands = Stands::Nothing;
                continue;
            }
            let sets = decision.sets.remove(&layout.family).unwrap_or_default();
            match &before {
                Stands::These(old, nodes_before) => {
                    let count =
                        layout.apply(&mut self.socket, (old, nodes_before), (&sets, nodes))?;
                    tracing::debug!(
                        family = layout.family.name(),
                        count,
                        "elements of policies changed"
                    );
                }
                Stands::Unknown | Stands::Nothing => {
                    layout.replace(&mut self.socket, &sets, nodes)?
                }
            }
            table.stands = Stands::These(sets, nodes.clone());
        }
        Ok(())
    }
}

/// The watch of all pods, with the tasks that end with it.
struct Watching {
    tasks: Tasks,
    scope: Scope,
    pods: Informer<Pod>,
    namespaces: Informer<Namespace>,
}

impl Watching {
    fn is_synced(&self) -> bool {
        self.pods.is_synced() && self.namespaces.is_synced()
    }
}

/// The task; see the module.
pub(crate) struct Policies {
    client: Client,
    informers: Informers,
    tasks: Tasks,
    /// `None` where only [`crate::Guard`] is wanted.
    policies: Option<Informer<()>>,
    namespaces: Option<Informer<Namespace>>,
    nodes: Informer<Node>,
    watching: Option<Watching>,
    dirty: Arc<Dirty>,
    leases: watch::Receiver<Leases>,
    covered: watch::Sender<Covered>,
    /// Both go to a worker thread while they work.
    engine: Option<(Decider, Kernel)>,
    node_addresses: BTreeSet<IpAddr>,
    /// Something has changed since the rules were made.
    stale: bool,
    board: Problems,
}

fn lost() -> Error {
    Error::Config("the worker that holds the rules panicked".into())
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

/// Takes the tables away: those of an earlier run where policies are not enforced, and all for uninstallation.
pub(crate) fn remove(config: &Config, socket: &mut Socket) -> Vec<Error> {
    let each = Family::ALL.into_iter().map(|family| Layout {
        family,
        table: nft::table(&config.table),
        bridge: config.bridge.clone(),
        guard: None,
    });
    let faults = each.filter_map(|layout| layout.remove(socket).err().map(Error::from)).collect();
    if let Err(error) = frames::remove(socket, &nft::table(&config.table)) {
        tracing::debug!(%error, "no table of frames to remove");
    }
    faults
}

impl Policies {
    /// Where pods wait for their rules comes back beside the task.
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
            .map(|layout| Table { layout, stands: Stands::Unknown })
            .collect();
        let (covered, seen) = watch::channel(Covered::default());
        let kernel = Kernel { socket, tables, frames: Frames::new(config) };
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

    /// Runs until shutdown; what the kernel refuses is tried again as a whole. A table of an earlier run stays until all is
    /// known that makes a new one, and the last one stays behind.
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
                        format!("the kernel refuses the rules of network policies: {error}"),
                        "see `kube-lite check-config`; pods that start meanwhile wait",
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

    /// Begins the watch of pods with the first policy and ends it with the last; whether all that decides is known.
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
                    "no network policy any more, pods of the cluster are watched no longer"
                );
            }
            return true;
        }
        if self.watching.is_none() {
            tracing::debug!("a network policy, pods of the cluster are watched");
            let namespaces = self.namespaces.get_or_insert_with(|| {
                let namespaces = self.informers.of::<Namespace>();
                namespaces.on_change(self.dirty.note(|keys, key| keys.namespaces.insert(key)));
                namespaces
            });
            // The watch before may have told of them already, and they were forgotten.
            let known = namespaces.cache().list("").into_iter().map(|o| o.key.clone());
            self.dirty.keys.lock().namespaces.extend(known);
            let tasks = self.tasks.child();
            // Pods in their node's network are subject to no policy, and what is over has no address any more.
            let scope = Scope::all(gvr_of::<Pod>())
                .fields("spec.hostNetwork=false,status.phase!=Failed,status.phase!=Succeeded");
            let pods = Informers::new(self.client.clone(), tasks.clone()).scoped(scope.clone());
            pods.on_change(self.dirty.note(|keys, key| keys.pods.insert(key)));
            let namespaces = namespaces.clone();
            self.watching = Some(Watching { tasks, scope, pods, namespaces });
        }
        self.watching.as_ref().is_some_and(Watching::is_synced)
    }

    /// Makes the rules as everything known says; `false` when not all that decides is known.
    async fn sync(&mut self) -> Result<bool, Error> {
        let Some((decider, _)) = &mut self.engine else { return Err(lost()) };
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
        self.take_notes();
        let leases = self.leases.borrow_and_update().clone();
        let Some((mut decider, mut kernel)) = self.engine.take() else { return Err(lost()) };
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

    /// Tells the decider what has changed of pods, namespaces and nodes.
    fn take_notes(&mut self) {
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
                told.flatten().filter_map(|a| a.address.parse().ok()).collect();
            self.stale |= now != self.node_addresses;
            self.node_addresses = now;
        }
    }
}
