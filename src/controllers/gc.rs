//! Garbage collection by owner: background, foreground and orphan.
//!
//! `graph.rs` holds who owns whom as the watches tell it; this file decides about one object from its live state.

mod graph;

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::Arc;

use api::k8s::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use api::{Gvr, Typed};
use base::{Kind, clock};
use client::{
    Action, Change, Client, DeleteOptions, Error, Patch, Propagation, Queue, meta, run_workers,
};
use parking_lot::RwLock;
use serde_json::{Value, json};

use crate::context::Context;
use crate::keyed::settled;
use crate::resources::{self, Served};
use graph::Graph;

const FOREGROUND: &str = "foregroundDeletion";
const ORPHAN: &str = "orphan";
/// Discovery is asked again after this time (`ResyncPeriod` of the collector's monitors).
const RESYNC: std::time::Duration = std::time::Duration::from_secs(30);
const WORKERS: usize = 20;

struct Collector {
    client: Client,
    graph: RwLock<Graph>,
    queue: Queue<String>,
    /// Resource and scope by group and kind.
    kinds: RwLock<HashMap<(String, String), (Gvr, bool)>>,
    /// Definitions of custom resources changed, so that discovery has to be asked.
    defined: tokio::sync::Notify,
}

/// Starts the collector: one watch per resource that can be listed, watched and deleted.
pub(crate) fn start(context: &Context) {
    let client = context.client("generic-garbage-collector");
    let collector = Arc::new(Collector {
        client,
        graph: RwLock::default(),
        queue: Queue::new(),
        kinds: RwLock::default(),
        defined: tokio::sync::Notify::new(),
    });
    let (this, run) = (Arc::clone(&collector), context.clone());
    context.tasks.spawn(Kind::Critical, "garbage-collector-discovery", async move {
        this.watch_all(&run).await;
        Ok::<(), Infallible>(())
    });
    let queue = collector.queue.clone();
    run_workers(
        &context.tasks,
        "garbage-collector-controller",
        WORKERS,
        &queue,
        move |uid: String| {
            let collector = Arc::clone(&collector);
            async move { collector.attend(&uid).await }
        },
    );
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
            match resources::preferred(&self.client).await {
                Ok(all) => {
                    *self.kinds.write() = resources::by_kind(&all);
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
                        let there = all.iter().any(|s| name(&s.gvr) == *known);
                        if !there {
                            context.informers.forget(gvr, true);
                        }
                        there
                    });
                }
                Err(error) => tracing::debug!(%error, "discovery failed, asking again"),
            }
            tokio::select! {
                () = clock::sleep(RESYNC) => {}
                () = self.defined.notified() => {}
                () = shutdown.requested() => {}
            }
        }
    }

    fn watch(self: &Arc<Self>, context: &Context, served: &Served) {
        let informer = context.informers.of_gvr(served.gvr.clone());
        let (this, gvr) = (Arc::clone(self), served.gvr.clone());
        let defines = &*served.gvr.resource == "customresourcedefinitions";
        informer.on_change(move |change| {
            if defines {
                this.defined.notify_one();
            }
            let object = change.object();
            let touched = match (change, meta(object)) {
                (Change::Deleted(_), _) => this.graph.write().remove(&object.uid),
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
                // The watch has not told yet, or never will: the graph forgets it, and its dependents are looked at.
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
        let (solid, dangling, waiting) = self.classify(&owners, &node.namespace).await?;
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
            // The watch tells of the change, and then it is decided anew.
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
            // Changed meanwhile: decide anew.
            Err(error) if error.is_conflict() => Err(error),
            other => settled(other).map(|()| Action::Done),
        }
    }

    /// Which owners are there, which are not, and which only wait for their dependents to go.
    async fn classify(
        &self,
        owners: &[OwnerReference],
        namespace: &str,
    ) -> Result<(Vec<OwnerReference>, Vec<OwnerReference>, Vec<OwnerReference>), Error> {
        let (mut solid, mut dangling, mut waiting) = (Vec::new(), Vec::new(), Vec::new());
        for owner in owners {
            let group = owner.api_version.split_once('/').map_or("", |(group, _)| group).to_owned();
            let found = self.kinds.read().get(&(group, owner.kind.clone())).cloned();
            let Some((gvr, namespaced)) = found else {
                // A kind that is not served (yet): nothing is known of the owner, so it counts as there.
                solid.push(owner.clone());
                continue;
            };
            if namespaced && namespace.is_empty() {
                // A cluster-scoped object cannot have a namespaced owner: nobody can tell where to look.
                solid.push(owner.clone());
                continue;
            }
            let known = self.graph.read().get(&owner.uid).is_some_and(|n| !n.deleting);
            if known {
                solid.push(owner.clone());
                continue;
            }
            let place = if namespaced { namespace } else { "" };
            match self.live(&gvr, place, &owner.name).await? {
                Some(live) if live.uid.as_deref() == Some(&owner.uid) => {
                    let foreground = live.deletion_timestamp.is_some()
                        && live.finalizers.iter().flatten().any(|f| f == FOREGROUND);
                    if foreground { waiting.push(owner.clone()) } else { solid.push(owner.clone()) }
                }
                Some(_) | None => dangling.push(owner.clone()),
            }
        }
        Ok((solid, dangling, waiting))
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
        let patch = json!({"metadata": {"uid": live.uid, "resourceVersion": live.resource_version, "ownerReferences": kept}});
        self.patch(node, &patch).await
    }

    /// Lets owners go before this object, which may itself wait for one of them; whether any was blocked.
    async fn unblock_owners(&self, node: &graph::Node, live: &ObjectMeta) -> Result<bool, Error> {
        let mut owners = live.owner_references.clone().unwrap_or_default();
        let mut blocked = false;
        for owner in &mut owners {
            blocked |= owner.block_owner_deletion == Some(true);
            owner.block_owner_deletion = Some(false);
        }
        if blocked {
            let patch = json!({"metadata": {"uid": live.uid, "resourceVersion": live.resource_version, "ownerReferences": owners}});
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
        let patch = json!({"metadata": {"uid": live.uid, "resourceVersion": live.resource_version, "finalizers": kept}});
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
