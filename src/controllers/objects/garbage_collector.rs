//! Garbage collection by owner: background, foreground and orphan.
//!
//! `graph.rs` holds owners and dependents from the watches; this file decides about one object from
//! its live state.

mod absent;
mod graph;
mod owners;

use std::collections::{HashMap, HashSet};
use std::convert::Infallible;
use std::sync::Arc;

use api::k8s::api::core::v1::ObjectReference;
use api::k8s::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use api::{Gvr, Typed};
use base::metrics::Family;
use base::{Kind, clock};
use client::events::EventType;
use client::{
    Action, Change, Client, DeleteOptions, Error, EventRecorder, Patch, Propagation, Queue, meta,
    run_workers,
};
use parking_lot::{Mutex, RwLock};
use serde_json::{Value, json};

use crate::framework::context::Context;
use crate::framework::keyed::settled;
use crate::framework::served_resources;
use crate::framework::served_resources::{ResourcesByKind, Served};
use absent::{AbsentOwner, AbsentOwners};
use graph::Graph;
use owners::{Classified, OwnerLocation, invalid_namespace, owner_location};

const FOREGROUND: &str = "foregroundDeletion";
const ORPHAN: &str = "orphan";
/// Interval of discovery (`ResyncPeriod` of the collector's monitors).
const RESYNC: std::time::Duration = std::time::Duration::from_secs(30);
const WORKERS: usize = 20;
const CONTROLLER: &str = "garbage-collector-controller";

static SYNC_ERRORS: Family = Family::counter(
    "garbagecollector_controller_resources_sync_error_total",
    "[ALPHA] Number of garbage collector resources sync errors",
    &[],
);

/// The families of the collector.
pub(crate) static METRICS: [&Family; 1] = [&SYNC_ERRORS];

struct Collector {
    client: Client,
    recorder: EventRecorder,
    graph: RwLock<Graph>,
    queue: Queue<String>,
    /// Resource and scope by group and kind.
    kinds: RwLock<ResourcesByKind>,
    /// Uids of objects with an owner of a kind that is not served; a new kind queues them again.
    unmapped: Mutex<HashSet<String>>,
    absent: Mutex<AbsentOwners>,
    /// Definitions of custom resources changed, so that discovery is due.
    defined: tokio::sync::Notify,
}

/// Starts the collector: one watch per resource that can be listed, watched and deleted.
pub(crate) fn start(context: &Context) {
    let client = context.client("generic-garbage-collector");
    let recorder = context.recorder(&client, CONTROLLER);
    let collector = Arc::new(Collector {
        client,
        recorder,
        graph: RwLock::default(),
        queue: Queue::new(),
        kinds: RwLock::default(),
        unmapped: Mutex::default(),
        absent: Mutex::default(),
        defined: tokio::sync::Notify::new(),
    });
    let (this, run) = (Arc::clone(&collector), context.clone());
    context.tasks.spawn(Kind::Critical, "garbage-collector-discovery", async move {
        this.watch_all(&run).await;
        Ok::<(), Infallible>(())
    });
    let queue = collector.queue.clone();
    queue.set_name(crate::framework::queue_names::of(CONTROLLER));
    run_workers(&context.tasks, CONTROLLER, WORKERS, &queue, move |uid: String| {
        let collector = Arc::clone(&collector);
        async move { collector.attend(&uid).await }
    });
}

/// Events refer to objects but own nothing and are never owned.
fn is_watched(served: &Served) -> bool {
    served.can(&["list", "watch", "delete"]) && &*served.gvr.resource != "events"
}

impl Collector {
    /// Watches every resource, those that come later, too.
    async fn watch_all(self: &Arc<Self>, context: &Context) {
        let shutdown = context.tasks.shutdown();
        // The watched version of each resource, by group and name.
        let mut watched: HashMap<(String, String), Gvr> = HashMap::new();
        while !shutdown.is_requested() {
            match served_resources::discover(&self.client).await {
                Ok(discovery) => {
                    let all = &discovery.resources;
                    self.set_kinds(served_resources::by_kind(all), |group| {
                        discovery.group_failed(group)
                    });
                    let name = |gvr: &Gvr| (gvr.group.to_string(), gvr.resource.to_string());
                    for served in all.iter().filter(|s| is_watched(s)) {
                        let before = watched.insert(name(&served.gvr), served.gvr.clone());
                        if before.as_ref() != Some(&served.gvr) {
                            self.watch(context, served);
                            if let Some(other) = before {
                                // The same objects in another version.
                                context.informers.forget(&other, false);
                            }
                        }
                    }
                    watched.retain(|known, gvr| {
                        // Resources of a group whose discovery failed may still exist: their
                        // watches continue.
                        let there = all.iter().any(|s| name(&s.gvr) == *known)
                            || discovery.group_failed(&known.0);
                        if !there {
                            context.informers.forget(gvr, true);
                        }
                        there
                    });
                }
                Err(error) => {
                    SYNC_ERRORS.inc(&[]);
                    tracing::debug!(%error, "discovery failed, asking again");
                }
            }
            tokio::select! {
                () = clock::sleep(RESYNC) => {}
                () = self.defined.notified() => {}
                () = shutdown.requested() => {}
            }
        }
    }

    /// Takes the kinds of a discovery, keeps those of failed groups, and queues what waited for a
    /// new one.
    fn set_kinds(&self, mut new: ResourcesByKind, failed: impl Fn(&str) -> bool) {
        let mut kinds = self.kinds.write();
        for (kind, resource) in kinds.iter().filter(|((group, _), _)| failed(group)) {
            new.entry(kind.clone()).or_insert_with(|| resource.clone());
        }
        let grown = new.keys().any(|kind| !kinds.contains_key(kind));
        *kinds = new;
        drop(kinds);
        if grown {
            for uid in std::mem::take(&mut *self.unmapped.lock()) {
                self.queue.add(uid);
            }
        }
    }

    /// An object was deleted while its kind is served: its dependents can go after the kind has
    /// gone, too.
    fn note_absent(&self, kind: &api::Gvk, object: &api::Object) {
        let key = (kind.group.to_string(), kind.kind.to_string());
        if self.graph.read().has_dependents(&object.uid) && self.kinds.read().contains_key(&key) {
            self.absent.lock().add(AbsentOwner {
                group: key.0,
                kind: key.1,
                namespace: object.key.namespace.to_string(),
                name: object.key.name.to_string(),
                uid: object.uid.to_string(),
            });
        }
    }

    fn watch(self: &Arc<Self>, context: &Context, served: &Served) {
        let informer = context.informers.of_gvr(served.gvr.clone());
        let (this, gvr, kind) = (Arc::clone(self), served.gvr.clone(), served.kind.clone());
        let defines = &*served.gvr.resource == "customresourcedefinitions";
        informer.on_change(move |change| {
            if defines {
                this.defined.notify_one();
            }
            let object = change.object();
            let touched = match (change, meta(object)) {
                (Change::Deleted(_), _) => {
                    this.unmapped.lock().remove(&*object.uid);
                    this.note_absent(&kind, object);
                    this.graph.write().remove(&object.uid)
                }
                (_, Some(meta)) => this.graph.write().put(&gvr, &meta),
                (_, None) => Vec::new(),
            };
            for uid in touched {
                this.queue.add(uid);
            }
        });
    }

    /// Decides about one object.
    async fn attend(&self, uid: &str) -> Result<Action, Error> {
        let Some(node) = self.graph.read().get(uid) else { return Ok(Action::Done) };
        if node.orphans {
            self.orphan_dependents(uid, &node).await?;
            return Ok(Action::Done);
        }
        if node.deleting && !node.foreground {
            return Ok(Action::Done);
        }
        let live = match self.live(&node.gvr, &node.namespace, &node.name).await? {
            Some(live) if live.uid.as_deref() == Some(uid) => live,
            Some(_) | None => {
                // The watch is late or has missed the deletion: remove the object from the graph
                // and check its dependents.
                for touched in self.graph.write().remove(uid) {
                    self.queue.add(touched);
                }
                return Ok(Action::Done);
            }
        };
        if node.foreground {
            return self.finish_foreground(uid, &node, &live).await;
        }
        let owners = live.owner_references.clone().unwrap_or_default();
        if owners.is_empty() {
            return Ok(Action::Done);
        }
        let Some(Classified { solid, dangling, waiting }) =
            self.classify(&owners, uid, &node).await?
        else {
            return Ok(Action::Done);
        };
        if !solid.is_empty() {
            if !dangling.is_empty() || !waiting.is_empty() {
                let gone: Vec<&OwnerReference> = dangling.iter().chain(&waiting).collect();
                self.drop_owners(&node, &live, &gone).await?;
            }
            return Ok(Action::Done);
        }
        let has = |finalizer: &str| live.finalizers.iter().flatten().any(|f| f == finalizer);
        let waited_for = !waiting.is_empty() && self.graph.read().has_dependents(uid);
        let circle = waited_for && self.graph.read().has_foreground_dependent(uid);
        if circle && self.unblock_owners(&node, &live).await? {
            // The event of the change reconciles the object again.
            return Ok(Action::Done);
        }
        let policy = if waited_for {
            Propagation::Foreground
        } else if has(ORPHAN) {
            Propagation::Orphan
        } else if has(FOREGROUND) {
            Propagation::Foreground
        } else {
            Propagation::Background
        };
        let options = DeleteOptions {
            propagation: Some(policy),
            resource_version: live.resource_version.clone(),
            ..DeleteOptions::with_uid(uid)
        };
        match self.client.delete_gvr(&node.gvr, &node.namespace, &node.name, &options).await {
            // The object changed: retry.
            Err(error) if error.is_conflict() => Err(error),
            other => settled(other).map(|()| Action::Done),
        }
    }

    /// A reference to an object of the graph, as events name it.
    fn reference(&self, uid: &str, node: &graph::Node) -> ObjectReference {
        let kinds = self.kinds.read();
        let kind = kinds.iter().find(|(_, (gvr, _))| *gvr == node.gvr).map(|((_, kind), _)| kind);
        let Gvr { group, version, .. } = &node.gvr;
        let api_version =
            if group.is_empty() { version.to_string() } else { format!("{group}/{version}") };
        ObjectReference {
            api_version: Some(api_version),
            kind: kind.cloned(),
            namespace: Some(node.namespace.clone()).filter(|n| !n.is_empty()),
            name: Some(node.name.clone()),
            uid: Some(uid.to_owned()),
            ..ObjectReference::default()
        }
    }

    /// The owner of the object with this uid; a later discovery of an unserved kind queues that
    /// object again.
    fn locate(&self, owner: &OwnerReference, uid: &str, namespace: &str) -> OwnerLocation {
        // `set_kinds` cannot run between the lookup and the note.
        let kinds = self.kinds.read();
        let location = owner_location(&kinds, owner, namespace);
        if location == OwnerLocation::UnservedKind {
            self.unmapped.lock().insert(uid.to_owned());
        }
        location
    }

    /// Sorts the owners of an object. `None` when the state of one of them cannot be decided, so
    /// that the object stays.
    async fn classify(
        &self,
        owners: &[OwnerReference],
        uid: &str,
        dependent: &graph::Node,
    ) -> Result<Option<Classified>, Error> {
        let namespace = dependent.namespace.as_str();
        let mut classified = Classified::default();
        let outside = |owner: &&OwnerReference| {
            self.graph.read().get(&owner.uid).is_some_and(|n| n.is_outside(namespace))
        };
        if let Some(owner) = owners.iter().find(outside) {
            let text = invalid_namespace(owner, namespace);
            let (kind, reason) = (EventType::Warning, "OwnerRefInvalidNamespace");
            self.recorder.event_for(self.reference(uid, dependent), kind, reason, text);
        }
        for owner in owners {
            let (gvr, place) = match self.locate(owner, uid, namespace) {
                OwnerLocation::In(gvr, place) => (gvr, place),
                OwnerLocation::UnservedKind if self.absent.lock().contains(owner, namespace) => {
                    classified.dangling.push(owner.clone());
                    continue;
                }
                OwnerLocation::UnservedKind | OwnerLocation::NamespacedOwnerOfClusterScoped => {
                    return Ok(None);
                }
            };
            let node = self.graph.read().get(&owner.uid);
            if node.is_some_and(|n| !n.deleting && n.is_at(&gvr, &place, &owner.name)) {
                classified.solid.push(owner.clone());
                continue;
            }
            match self.live(&gvr, &place, &owner.name).await? {
                Some(live) if live.uid.as_deref() == Some(&*owner.uid) => {
                    let foreground = live.deletion_timestamp.is_some()
                        && live.finalizers.iter().flatten().any(|f| f == FOREGROUND);
                    let state =
                        if foreground { &mut classified.waiting } else { &mut classified.solid };
                    state.push(owner.clone());
                }
                Some(_) | None => classified.dangling.push(owner.clone()),
            }
        }
        Ok(Some(classified))
    }

    /// An owner deleted in the foreground goes once no dependent blocks it.
    async fn finish_foreground(
        &self,
        uid: &str,
        node: &graph::Node,
        live: &ObjectMeta,
    ) -> Result<Action, Error> {
        let blocking = self.graph.read().blocking_dependents(uid);
        if blocking.is_empty() {
            self.remove_finalizer(node, live, FOREGROUND).await?;
            return Ok(Action::Done);
        }
        for dependent in blocking {
            self.queue.add(dependent);
        }
        Ok(Action::Done)
    }

    async fn orphan_dependents(&self, uid: &str, node: &graph::Node) -> Result<(), Error> {
        let dependents = self.graph.read().dependents(uid);
        for dependent in dependents {
            let Some(meta) =
                self.live(&dependent.gvr, &dependent.namespace, &dependent.name).await?
            else {
                continue;
            };
            let gone = OwnerReference { uid: uid.to_owned(), ..OwnerReference::default() };
            self.drop_owners(&dependent, &meta, &[&gone]).await?;
        }
        if let Some(live) = self
            .live(&node.gvr, &node.namespace, &node.name)
            .await?
            .filter(|m| m.uid.as_deref() == Some(uid))
        {
            self.remove_finalizer(node, &live, ORPHAN).await?;
        }
        Ok(())
    }

    /// Takes owner references away, by a merge patch bound to the version read.
    async fn drop_owners(
        &self,
        node: &graph::Node,
        live: &ObjectMeta,
        gone: &[&OwnerReference],
    ) -> Result<(), Error> {
        let kept: Vec<&OwnerReference> = live
            .owner_references
            .iter()
            .flatten()
            .filter(|o| !gone.iter().any(|g| g.uid == o.uid))
            .collect();
        let patch = json!({"metadata": {"uid": live.uid, "resourceVersion": live.resource_version,
            "ownerReferences": kept}});
        self.patch(node, &patch).await
    }

    /// Lets owners go before this object, which may itself wait for one of them; whether any was
    /// blocked.
    async fn unblock_owners(&self, node: &graph::Node, live: &ObjectMeta) -> Result<bool, Error> {
        let mut owners = live.owner_references.clone().unwrap_or_default();
        let mut blocked = false;
        for owner in &mut owners {
            blocked |= owner.block_owner_deletion == Some(true);
            owner.block_owner_deletion = Some(false);
        }
        if blocked {
            let patch = json!({"metadata": {"uid": live.uid,
                "resourceVersion": live.resource_version, "ownerReferences": owners}});
            self.patch(node, &patch).await?;
        }
        Ok(blocked)
    }

    async fn remove_finalizer(
        &self,
        node: &graph::Node,
        live: &ObjectMeta,
        finalizer: &str,
    ) -> Result<(), Error> {
        let kept: Vec<&String> =
            live.finalizers.iter().flatten().filter(|f| *f != finalizer).collect();
        let patch = json!({"metadata": {"uid": live.uid, "resourceVersion": live.resource_version,
            "finalizers": kept}});
        self.patch(node, &patch).await
    }

    /// Changes an object, unless it is gone.
    async fn patch(&self, node: &graph::Node, patch: &Value) -> Result<(), Error> {
        let patch = Patch::Merge(patch);
        match self.client.patch_value(&node.gvr, &node.namespace, &node.name, "", &patch).await {
            Err(error) if error.is_not_found() => Ok(()),
            other => other.map(drop),
        }
    }

    async fn live(
        &self,
        gvr: &Gvr,
        namespace: &str,
        name: &str,
    ) -> Result<Option<ObjectMeta>, Error> {
        match self.client.get_value(gvr, namespace, name).await {
            Ok(value) => Ok(Some(ObjectMeta::from_value(&value["metadata"])?)),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }
}
