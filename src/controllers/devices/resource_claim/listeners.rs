//! Which claims and pods a change of an object concerns.

use std::collections::BTreeSet;
use std::sync::Arc;

use api::Object;
use api::k8s::api::resource::v1::ResourceClaim;
use client::informer::decode;
use client::{Change, controller_of};

use super::claim_count::CountLabels;
use super::{Controller, WorkItem};
use crate::devices::pod_claims::ClaimPod;

/// Index of pods by `<namespace>/<claim>`; only names that are known.
const BY_CLAIM: &str = "resource claim";
/// Index of pods by `<namespace>/<template>`.
const BY_TEMPLATE: &str = "resource claim template";
/// Index of claims by `<namespace>/<UID>` of the pod that controls them.
pub(super) const BY_OWNER: &str = "owning pod";

impl Controller {
    /// Declares the indexes and adds the listeners.
    pub(super) fn listen(self: &Arc<Self>) {
        self.pods.add_index(BY_CLAIM, |object| {
            let Some(pod) = ClaimPod::with_claims(object) else { return Vec::new() };
            pod.claim_names().map(|claim| format!("{}/{}", pod.namespace, claim.name)).collect()
        });
        self.pods.add_index(BY_TEMPLATE, |object| {
            let Some(pod) = ClaimPod::with_claims(object) else { return Vec::new() };
            let templates =
                pod.claims.iter().filter_map(|c| c.resource_claim_template_name.as_ref());
            templates.map(|template| format!("{}/{template}", pod.namespace)).collect()
        });
        self.claims.add_index(BY_OWNER, |object| {
            let meta = client::meta(object);
            let owner = meta.as_deref().and_then(controller_of);
            let pod = owner.filter(|o| o.api_version == "v1" && o.kind == "Pod");
            pod.map(|pod| format!("{}/{}", object.key.namespace, pod.uid)).into_iter().collect()
        });
        // A listener lives as long as its cache, which the controller holds.
        let controller = Arc::downgrade(self);
        self.pods.on_change(move |change| {
            if let Some(controller) = controller.upgrade() {
                controller.pod_changed(change);
            }
        });
        let controller = Arc::downgrade(self);
        self.claims.on_change(move |change| {
            if let Some(controller) = controller.upgrade() {
                controller.claim_changed(change);
            }
        });
        let controller = Arc::downgrade(self);
        self.templates.on_change(move |change| {
            if let Some(controller) = controller.upgrade() {
                controller.template_changed(change);
            }
        });
    }

    fn pod_changed(&self, change: &Change) {
        match change {
            Change::Added(pod) => self.pod_seen(pod, false),
            Change::Updated { old, new } => {
                if old.uid != new.uid {
                    // Another pod of this name, after a relist.
                    self.pod_seen(old, true);
                }
                self.pod_seen(new, false);
            }
            Change::Deleted(pod) => self.pod_seen(pod, true),
        }
    }

    /// Queues the work for a pod; `is_gone` if it was removed.
    fn pod_seen(&self, object: &Object, is_gone: bool) {
        let Some(pod) = ClaimPod::with_claims(object) else { return };
        if is_gone {
            self.deleted_pods.lock().add(&pod.uid);
        }
        let claim = |name: &str| self.claims.get(&pod.namespace, name);
        for item in work_items(&pod, is_gone, claim) {
            self.queue.add(item);
        }
    }

    fn claim_changed(&self, change: &Change) {
        let object = change.object();
        let key = &object.key;
        self.created.lock().remove(&key.namespace, &key.name);
        let is_deleted = matches!(change, Change::Deleted(_));
        let labels = (!is_deleted).then(|| decode::<ResourceClaim>(object)).flatten();
        self.count.lock().replace(key, labels.as_ref().map(CountLabels::of));
        if !is_deleted {
            self.queue.add(WorkItem::Claim(Arc::clone(&key.namespace), Arc::clone(&key.name)));
        }
        // A lost claim is created again, an allocated one is reserved.
        for pod in self.pods.cache().by_index(BY_CLAIM, &key.to_string()) {
            self.pod_seen(&pod, false);
        }
    }

    fn template_changed(&self, change: &Change) {
        if matches!(change, Change::Deleted(_)) {
            return;
        }
        let template = change.object().key.to_string();
        for pod in self.pods.cache().by_index(BY_TEMPLATE, &template) {
            self.pod_seen(&pod, false);
        }
    }
}

/// The work that a pod causes: its claims if it does not need them any more, and the pod itself if
/// claims must be created or reserved. `claim` finds claims of its namespace.
fn work_items(
    pod: &ClaimPod,
    is_gone: bool,
    claim: impl Fn(&str) -> Option<ResourceClaim>,
) -> BTreeSet<WorkItem> {
    let mut items = BTreeSet::new();
    if is_gone || pod.is_done() {
        let names = pod.claim_names().map(|claim| claim.name);
        for name in names.chain(pod.extended_claim.as_deref()) {
            items.insert(WorkItem::Claim(Arc::clone(&pod.namespace), name.into()));
        }
    }
    if needs_work(pod, claim) {
        items.insert(WorkItem::Pod(Arc::clone(&pod.namespace), Arc::clone(&pod.name)));
    }
    items
}

/// Whether a claim of the pod must be created or reserved (upstream's `podNeedsWork`).
fn needs_work(pod: &ClaimPod, claim: impl Fn(&str) -> Option<ResourceClaim>) -> bool {
    if pod.is_deleted {
        return false;
    }
    pod.claims.iter().any(|entry| {
        let name = match pod.claim_name(entry) {
            Ok(Some(name)) => name,
            Ok(None) => return false,
            Err(_) => return true,
        };
        let Some(claim) = claim(name.name) else {
            // The user creates a claim that is named directly.
            return entry.resource_claim_template_name.is_some();
        };
        if name.is_generated && !client::is_controlled_by(&claim.metadata, &pod.uid) {
            // Nothing can be done until the other claim is gone.
            return false;
        }
        !pod.node_name.is_empty() && must_be_reserved(&claim, &pod.uid)
    })
}

/// The claim is allocated and not reserved for the pod with this UID.
pub(super) fn must_be_reserved(claim: &ResourceClaim, uid: &str) -> bool {
    let Some(status) = &claim.status else { return false };
    let mut reserved = status.reserved_for.iter().flatten();
    status.allocation.is_some() && !reserved.any(|consumer| consumer.uid == uid)
}

#[cfg(test)]
mod tests;
