//! What changed since the last sync: Services, EndpointSlices and this node.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use api::Object;
use api::k8s::api::core::v1::{Node, Service};
use api::k8s::api::discovery::v1::EndpointSlice;
use client::{Informer, Informers};
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::metrics::{ENDPOINT_CHANGES, SERVICE_CHANGES};
use super::own_node::OwnNode;
use super::services::SERVICE_NAME_LABEL;

/// Index of EndpointSlices by `namespace/service`.
pub(crate) const BY_SERVICE: &str = "service";

/// What changed of a Service.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Changed {
    service: bool,
    endpoints: bool,
}

/// The Services to plan again, by (namespace, name).
pub(super) type ChangedServices = BTreeMap<(String, String), Changed>;

/// Changes that are not applied yet.
#[derive(Debug, Default)]
pub(super) struct Dirty {
    services: Mutex<ChangedServices>,
    all: AtomicBool,
    pub(super) wake: Notify,
}

impl Dirty {
    fn change(&self, namespace: &str, name: &str, how: Changed) {
        {
            let mut services = self.services.lock();
            let known = services.entry((namespace.to_owned(), name.to_owned())).or_default();
            known.service |= how.service;
            known.endpoints |= how.endpoints;
        }
        self.wake.notify_one();
    }

    /// The Service object changed.
    fn service(&self, namespace: &str, name: &str) {
        SERVICE_CHANGES.inc(&[]);
        self.change(namespace, name, Changed { service: true, ..Changed::default() });
    }

    /// An EndpointSlice of the Service changed.
    fn endpoints(&self, namespace: &str, name: &str) {
        self.change(namespace, name, Changed { endpoints: true, ..Changed::default() });
    }

    /// Something else that its rules depend on changed.
    pub(super) fn plan_again(&self, namespace: &str, name: &str) {
        self.change(namespace, name, Changed::default());
    }

    /// Something that the rules of all Services depend on changed.
    pub(super) fn everything(&self) {
        self.all.store(true, Ordering::Release);
        self.wake.notify_one();
    }

    /// Whether all Services must be planned again; resets it.
    pub(super) fn take_everything(&self) -> bool {
        self.all.swap(false, Ordering::AcqRel)
    }

    /// The changed Services; resets them.
    pub(super) fn take(&self) -> ChangedServices {
        std::mem::take(&mut *self.services.lock())
    }

    /// How many Services wait because of their object, and because of their endpoints.
    pub(super) fn pending(&self) -> (usize, usize) {
        let services = self.services.lock();
        let count = |of: fn(&Changed) -> bool| services.values().filter(|c| of(c)).count();
        (count(|c| c.service), count(|c| c.endpoints))
    }
}

pub(crate) fn slice_services(slice: &Object) -> Vec<String> {
    let name = slice.label(SERVICE_NAME_LABEL);
    name.map(|n| format!("{}/{n}", slice.key.namespace)).into_iter().collect()
}

/// Follows Services.
pub(super) fn watch_services(informers: &Informers, dirty: &Arc<Dirty>) -> Informer<Service> {
    let services = informers.of::<Service>();
    let dirty = Arc::clone(dirty);
    services.on_change(move |c| dirty.service(&c.object().key.namespace, &c.object().key.name));
    services
}

/// Follows EndpointSlices: a change marks their Services as changed.
pub(super) fn watch_slices(informers: &Informers, dirty: &Arc<Dirty>) -> Informer<EndpointSlice> {
    let slices = informers.of::<EndpointSlice>();
    slices.add_index(BY_SERVICE, slice_services);
    let dirty = Arc::clone(dirty);
    slices.on_change(move |change| {
        ENDPOINT_CHANGES.inc(&[]);
        let objects = match change {
            client::Change::Updated { old, new } => vec![old, new],
            other => vec![other.object()],
        };
        for object in objects {
            if let Some(name) = object.label(SERVICE_NAME_LABEL) {
                dirty.endpoints(&object.key.namespace, name);
            }
        }
    });
    slices
}

/// Follows zone and addresses of this node: a change marks all Services as changed. The rest of a
/// node's status changes frequently and does not matter here.
pub(super) fn watch_own_node(node: &Informer<Node>, name: &str, dirty: &Arc<Dirty>) {
    let (dirty, name) = (Arc::clone(dirty), name.to_owned());
    let before = Mutex::new(OwnNode::default());
    node.on_change(move |change| {
        if *change.object().key.name != *name {
            return;
        }
        let now = OwnNode::of(change.object());
        let mut before = before.lock();
        if *before != now {
            *before = now;
            dirty.everything();
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pending_changes_are_counted_by_cause_and_taken_once() {
        let dirty = Dirty::default();
        dirty.service("n", "a");
        dirty.endpoints("n", "a");
        dirty.endpoints("n", "b");
        dirty.plan_again("n", "c");
        assert_eq!(dirty.pending(), (1, 2));
        assert_eq!(dirty.take().len(), 3);
        assert_eq!(dirty.pending(), (0, 0));
        assert!(!dirty.take_everything());
        dirty.everything();
        assert!(dirty.take_everything() && !dirty.take_everything());
    }
}
