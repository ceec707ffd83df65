//! What a namespace uses of its ResourceQuotas: counted when something goes, changes or a quota is
//! new.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use api::k8s::api::core::v1::{PersistentVolumeClaim, Pod, ResourceQuota, Service};
use api::k8s::api::resource::v1::{DeviceClass, ResourceClaim};
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
const DEVICES: &str = ".deviceclass.resource.k8s.io/devices";

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

/// A kind whose objects use a quota resource.
#[derive(Debug, PartialEq, Eq)]
enum Measured {
    Core(&'static str),
    DeviceClaims,
    /// `count/<resource>.<group>`: resource and group.
    Count(String, String),
}

/// The kinds whose objects use this quota resource. Extended resources are those of pods and of
/// claims, whose devices may serve them.
fn measured(name: &str) -> Vec<Measured> {
    if let Some(counted) = name.strip_prefix("count/") {
        let (resource, group) = counted.split_once('.').unwrap_or((counted, ""));
        return vec![Measured::Count(resource.to_owned(), group.to_owned())];
    }
    if let Some(plain) = PLAIN.iter().find(|p| **p == name) {
        return vec![Measured::Core(plain)];
    }
    let compute = |n: &str| matches!(n, "cpu" | "memory" | "ephemeral-storage");
    let bare = name.strip_prefix("requests.");
    vec![match name {
        "services" | "services.nodeports" | "services.loadbalancers" => Measured::Core("services"),
        "persistentvolumeclaims" | "requests.storage" => Measured::Core("persistentvolumeclaims"),
        _ if name.contains(CLASS) => Measured::Core("persistentvolumeclaims"),
        "pods" => Measured::Core("pods"),
        _ if compute(name) || name.strip_prefix("limits.").is_some_and(compute) => {
            Measured::Core("pods")
        }
        _ if name.starts_with("hugepages-") => Measured::Core("pods"),
        _ if bare.is_some_and(|b| compute(b) || b.starts_with("hugepages-")) => {
            Measured::Core("pods")
        }
        _ if bare.is_some_and(|b| b.contains('/')) => {
            return vec![Measured::Core("pods"), Measured::DeviceClaims];
        }
        _ if name.ends_with(DEVICES) => Measured::DeviceClaims,
        _ => return Vec::new(),
    }]
}

/// Whether the scheduler made the claim for the extended resources of a pod, whose usage covers
/// that of the claim.
fn is_extended_claim(claim: &Value) -> bool {
    let path = "/metadata/annotations/resource.kubernetes.io~1extended-resource-claim";
    claim.pointer(path).is_some_and(|value| value == "true")
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
            for measured in measured(&name) {
                if let Some(gvr) = self.kind(measured).await? {
                    kinds.insert(gvr);
                    counted.insert(name.clone(), Quantity::ZERO);
                }
            }
        }
        for gvr in kinds {
            self.watch(&gvr);
            // An object is stored together with what it uses of the quota. So a list from the
            // store, which is at least as new as the quota, has all that the quota has counted;
            // what came later has changed the quota, whose update fails then.
            let objects = self.client.list_values(&gvr, namespace, &ListOptions::default()).await?;
            let related = self.related(&gvr, namespace, &objects).await?;
            for (name, amount) in (self.usage)(&gvr, &quota, &objects, &related) {
                counted.entry(name).and_modify(|sum| *sum = sum.plus(amount));
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

    /// The objects on which the usage of these objects depends.
    async fn related(
        &self,
        gvr: &Gvr,
        namespace: &str,
        objects: &[Value],
    ) -> Result<BTreeMap<Gvr, Vec<Value>>, Error> {
        let mut related = BTreeMap::new();
        if *gvr != gvr_of::<ResourceClaim>() || objects.is_empty() {
            return Ok(related);
        }
        let all = ListOptions::default();
        let classes = gvr_of::<DeviceClass>();
        related.insert(classes.clone(), self.client.list_values(&classes, "", &all).await?);
        if objects.iter().any(is_extended_claim) {
            let pods = gvr_of::<Pod>();
            related.insert(pods.clone(), self.client.list_values(&pods, namespace, &all).await?);
        }
        Ok(related)
    }

    async fn kind(&self, measured: Measured) -> Result<Option<Gvr>, Error> {
        match measured {
            Measured::Core(resource) => Ok(Some(Gvr::new("", "v1", resource))),
            Measured::DeviceClaims => Ok(Some(gvr_of::<ResourceClaim>())),
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
            ("requests.hugepages-2Mi", "pods"),
            ("services.nodeports", "services"),
            ("requests.storage", "persistentvolumeclaims"),
            ("gold.storageclass.storage.k8s.io/requests.storage", "persistentvolumeclaims"),
            ("secrets", "secrets"),
        ] {
            assert_eq!(measured(name), [Measured::Core(kind)], "{name}");
        }
        for name in ["requests.nvidia.com/gpu", "requests.deviceclass.resource.kubernetes.io/gpu"] {
            assert_eq!(measured(name), [Measured::Core("pods"), Measured::DeviceClaims], "{name}");
        }
        assert_eq!(measured("gpu.deviceclass.resource.k8s.io/devices"), [Measured::DeviceClaims]);
        assert_eq!(
            measured("count/deployments.apps"),
            [Measured::Count("deployments".into(), "apps".into())]
        );
        assert_eq!(
            measured("count/resourceclaims.resource.k8s.io"),
            [Measured::Count("resourceclaims".into(), "resource.k8s.io".into())]
        );
        assert_eq!(measured("count/pods"), [Measured::Count("pods".into(), String::new())]);
        for name in ["limits.example.com/x", "bronze.deviceclass.resource.k8s.io/storage"] {
            assert!(measured(name).is_empty(), "{name}");
        }
    }

    #[test]
    fn claims_for_extended_resources_are_known_by_their_annotation() {
        let claim = |value: &str| {
            json!({"metadata": {"annotations":
                {"resource.kubernetes.io/extended-resource-claim": value}}})
        };
        assert!(is_extended_claim(&claim("true")));
        assert!(!is_extended_claim(&claim("false")));
        assert!(!is_extended_claim(&json!({"metadata": {}})));
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
