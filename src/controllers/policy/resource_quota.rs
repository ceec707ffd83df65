//! What a namespace uses of its ResourceQuotas: counted when something goes, changes or a quota is
//! new.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use api::k8s::api::core::v1::{PersistentVolumeClaim, Pod, ResourceQuota, Service};
use api::quantity::Quantity;
use api::{Gvr, Object};
use client::{Action, Change, Client, Error, Informer, Informers, ListOptions, gvr_of};
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::{Value, json};
use sorting::CollectOrdered as _;

use crate::framework::context::{Context, QuotaUsage};
use crate::framework::keyed::{Key, Keyed};
use crate::framework::{edit, served_resources};

/// How often a quota is counted although nothing has changed (`--resource-quota-sync-period`).
const RESYNC: Duration = Duration::from_secs(300);
/// Counts of a quota that others change, too, before it waits in the queue.
const ATTEMPTS: usize = 5;
/// Kinds that quotas count by their plain name.
const PLAIN: [&str; 4] = ["configmaps", "secrets", "resourcequotas", "replicationcontrollers"];
const CLASS: &str = ".storageclass.storage.k8s.io/";

struct Controller {
    client: Client,
    informers: Informers,
    quotas: Informer<ResourceQuota>,
    usage: QuotaUsage,
    queue: client::Queue<Key>,
    /// Kinds whose objects wake quotas when they come and go.
    watched: Mutex<BTreeSet<Gvr>>,
}

/// Starts the controller.
pub(crate) fn start(context: &Context) {
    let client = context.client("resourcequota-controller");
    let informers = context.informers.clone();
    let quotas = informers.of::<ResourceQuota>();
    let mut keyed = Keyed::new();
    keyed.watches(&quotas, |change| match change {
        // What a write has used is in the status already.
        Change::Updated { old, new } if limits(old) == limits(new) => Vec::new(),
        Change::Added(o) | Change::Updated { new: o, .. } => vec![key(o)],
        Change::Deleted(_) => Vec::new(),
    });
    let known = quotas.clone();
    keyed.watches(&informers.of::<Pod>(), move |change| {
        // One that was created while the server did not know of a new quota has not been counted.
        let counts = match change {
            Change::Added(_) | Change::Deleted(_) => true,
            Change::Updated { old, new } => has_ended(old) != has_ended(new),
        };
        if counts { quotas_of(&known, change.object()) } else { Vec::new() }
    });
    let known = quotas.clone();
    keyed.watches(&informers.of::<Service>(), move |change| quotas_of(&known, change.object()));
    let known = quotas.clone();
    keyed.watches(&informers.of::<PersistentVolumeClaim>(), move |change| {
        quotas_of(&known, change.object())
    });
    let controller = Arc::new(Controller {
        client,
        informers,
        quotas,
        usage: context.config.quota_usage,
        queue: keyed.queue.clone(),
        watched: Mutex::default(),
    });
    keyed.run(&context.tasks, "resourcequota-controller", 2, move |key| {
        let controller = Arc::clone(&controller);
        async move { controller.reconcile(&key).await }
    });
}

fn key(object: &Object) -> Key {
    (object.key.namespace.to_string(), object.key.name.to_string())
}

fn quotas_of(quotas: &Informer<ResourceQuota>, object: &Object) -> Vec<Key> {
    quotas.cache().list(&object.key.namespace).iter().map(|q| key(q)).collect()
}

#[derive(Deserialize, Default, PartialEq)]
#[serde(default)]
struct Limits {
    spec: Value,
}

fn limits(quota: &Object) -> Limits {
    serde_json::from_slice(quota.raw()).unwrap_or_default()
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Phase {
    status: PhaseStatus,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct PhaseStatus {
    phase: String,
}

/// A finished pod uses nothing.
fn has_ended(pod: &Object) -> bool {
    let shape: Phase = serde_json::from_slice(pod.raw()).unwrap_or_default();
    matches!(shape.status.phase.as_str(), "Succeeded" | "Failed")
}

/// The kind whose objects use this quota resource.
#[derive(Debug, PartialEq, Eq)]
enum Measured {
    Core(&'static str),
    /// `count/<resource>.<group>`: resource and group.
    Count(String, String),
    Nothing,
}

fn measured(name: &str) -> Measured {
    if let Some(counted) = name.strip_prefix("count/") {
        let (resource, group) = counted.split_once('.').unwrap_or((counted, ""));
        return Measured::Count(resource.to_owned(), group.to_owned());
    }
    if let Some(plain) = PLAIN.iter().find(|p| **p == name) {
        return Measured::Core(plain);
    }
    let compute = |n: &str| matches!(n, "cpu" | "memory" | "ephemeral-storage");
    let bare = name.strip_prefix("requests.");
    match name {
        "services" | "services.nodeports" | "services.loadbalancers" => Measured::Core("services"),
        "persistentvolumeclaims" | "requests.storage" => Measured::Core("persistentvolumeclaims"),
        _ if name.contains(CLASS) => Measured::Core("persistentvolumeclaims"),
        "pods" => Measured::Core("pods"),
        _ if compute(name) || name.strip_prefix("limits.").is_some_and(compute) => {
            Measured::Core("pods")
        }
        _ if name.starts_with("hugepages-") => Measured::Core("pods"),
        // Extended resources and devices.
        _ if bare.is_some_and(|b| compute(b) || b.starts_with("hugepages-") || b.contains('/')) => {
            Measured::Core("pods")
        }
        _ => Measured::Nothing,
    }
}

fn quantities(list: Option<&Value>) -> BTreeMap<String, Quantity> {
    let entries = list.and_then(Value::as_object).into_iter().flatten();
    entries.filter_map(|(n, q)| Some((n.clone(), Quantity::from_value(q).ok()?))).collect_map()
}

/// The quota's status with these counts; `None` when it says so already. What we cannot count keeps
/// its old figure.
fn status(quota: &Value, counted: &BTreeMap<String, Quantity>) -> Option<Value> {
    let hard = quota.pointer("/spec/hard").cloned().unwrap_or_else(|| json!({}));
    let limits = quantities(Some(&hard));
    let old = quantities(quota.pointer("/status/used"));
    let mut used = old.clone();
    used.extend(counted.iter().map(|(n, q)| (n.clone(), *q)));
    used.retain(|name, _| limits.contains_key(name));
    let known = quota.pointer("/status/hard").is_some() && quota.pointer("/status/used").is_some();
    if known && used == old && quantities(quota.pointer("/status/hard")) == limits {
        return None;
    }
    let used: BTreeMap<String, String> =
        used.into_iter().map(|(name, amount)| (name, amount.to_string())).collect_map();
    Some(json!({"hard": hard, "used": used}))
}

impl Controller {
    /// Counts until no write comes in between, so that writes one after another do not lengthen the
    /// queue's backoff.
    async fn reconcile(&self, key: &Key) -> Result<Action, Error> {
        for _ in 1..ATTEMPTS {
            match self.count(key).await {
                Err(error) if error.is_conflict() => {}
                done => return done,
            }
        }
        self.count(key).await
    }

    async fn count(&self, (namespace, name): &Key) -> Result<Action, Error> {
        if self.quotas.cache().get(namespace, name).is_none() {
            return Ok(Action::Done);
        }
        let gvr = gvr_of::<ResourceQuota>();
        // From the store, as the objects below: a change since then would only end in a conflict.
        let named = ListOptions { fields: &format!("metadata.name={name}"), ..Default::default() };
        let found = self.client.list_values(&gvr, namespace, &named).await?;
        let Some(mut quota) = found.into_iter().next() else { return Ok(Action::Done) };
        let names: Vec<String> = quantities(quota.pointer("/spec/hard")).into_keys().collect();
        let mut counted: BTreeMap<String, Quantity> = BTreeMap::new();
        let mut kinds: BTreeSet<Gvr> = BTreeSet::new();
        for name in names {
            if let Some(gvr) = self.kind(measured(&name)).await? {
                kinds.insert(gvr);
                counted.insert(name, Quantity::ZERO);
            }
        }
        for gvr in kinds {
            self.watch(&gvr);
            // An object is stored together with what it uses of the quota. So a list from the
            // store, which is at least as new as the quota, has all that the quota has counted;
            // what came later has changed the quota, whose update fails then.
            let objects = self.client.list_values(&gvr, namespace, &ListOptions::default()).await?;
            for (name, amount) in (self.usage)(&gvr, &quota, &objects) {
                counted.entry(name).and_modify(|sum| *sum = amount);
            }
        }
        if let Some(status) = status(&quota, &counted) {
            quota["status"] = status;
            match edit::put(&self.client, &gvr, "status", &quota).await {
                Err(error) if error.is_not_found() => {}
                // A concurrent write used more of the quota: its event reconciles it again.
                other => drop(other?),
            }
        }
        Ok(Action::After(RESYNC))
    }

    async fn kind(&self, measured: Measured) -> Result<Option<Gvr>, Error> {
        match measured {
            Measured::Core(resource) => Ok(Some(Gvr::new("", "v1", resource))),
            Measured::Nothing => Ok(None),
            Measured::Count(resource, group) => {
                let all = served_resources::discover(&self.client).await?;
                // Until its group can be discovered again, the quota keeps its last count of the
                // kind: see `status`.
                let found = all.resources.into_iter().find(|s| {
                    s.namespaced
                        && *s.gvr.resource == *resource
                        && *s.gvr.group == *group
                        && s.can(&["create", "delete", "list", "watch"])
                });
                Ok(found.map(|s| s.gvr))
            }
        }
    }

    /// Watches a kind, so that its objects that come and go wake quotas.
    fn watch(&self, gvr: &Gvr) {
        let own = ["pods", "services", "persistentvolumeclaims"];
        let core = gvr.group.is_empty() && own.contains(&&*gvr.resource);
        if !core && self.watched.lock().insert(gvr.clone()) {
            let informer = self.informers.of_gvr(gvr.clone());
            let (quotas, queue) = (self.quotas.clone(), self.queue.clone());
            informer.on_change(move |change| {
                if !matches!(change, Change::Updated { .. }) {
                    for key in quotas_of(&quotas, change.object()) {
                        queue.add(key);
                    }
                }
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_quota_resource_has_its_kind() {
        for (name, kind) in [
            ("pods", "pods"),
            ("requests.cpu", "pods"),
            ("limits.memory", "pods"),
            ("requests.nvidia.com/gpu", "pods"),
            ("services.nodeports", "services"),
            ("requests.storage", "persistentvolumeclaims"),
            ("gold.storageclass.storage.k8s.io/requests.storage", "persistentvolumeclaims"),
            ("secrets", "secrets"),
        ] {
            assert_eq!(measured(name), Measured::Core(kind), "{name}");
        }
        assert_eq!(
            measured("count/deployments.apps"),
            Measured::Count("deployments".into(), "apps".into())
        );
        assert_eq!(measured("count/pods"), Measured::Count("pods".into(), String::new()));
        assert_eq!(measured("limits.example.com/x"), Measured::Nothing);
    }

    #[test]
    fn the_status_is_written_when_it_says_something_else() {
        let new = json!({"spec": {"hard": {"pods": "2", "cpu": "1"}}});
        let counted = BTreeMap::from([
            ("pods".to_owned(), Quantity::units(1)),
            ("cpu".to_owned(), Quantity::millis(500)),
        ]);
        let status_of = status(&new, &counted).unwrap();
        assert_eq!(
            status_of,
            json!({"hard": {"pods": "2", "cpu": "1"}, "used": {"cpu": "500m", "pods": "1"}})
        );
        let told = json!({"spec": {"hard": {"pods": "2", "cpu": "1000m"}}, "status": status_of});
        assert_eq!(status(&told, &counted), None);
        let fewer = json!({"spec": {"hard": {"pods": "2"}}, "status": told["status"]});
        assert_eq!(status(&fewer, &counted).unwrap()["used"], json!({"pods": "1"}));
    }

    #[test]
    fn a_reservation_in_the_status_is_no_change_of_the_limits() {
        let quota = |pods: &str, used: &str| {
            let value = json!({"metadata": {"name": "q"}, "spec": {"hard": {"pods": pods}},
                "status": {"used": {"pods": used}}});
            limits(&Object::from_value(value).unwrap())
        };
        assert!(quota("2", "0") == quota("2", "1"));
        assert!(quota("2", "0") != quota("3", "0"));
    }
}
