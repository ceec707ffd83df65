//! The usage of ResourceClaims: their number, their devices by class, and the extended resources
//! that these devices serve (upstream's `evaluator/core/resource_claims.go`).

use std::collections::{BTreeMap, HashMap};

use api::quantity::Quantity;
use api::value::{at, bool_at, get, has, int_at, items, str_at, str_in};
use api::{Object, Status};
use serde_json::Value;

use super::super::pod_resources::{Amounts, add};
use super::pod_usage::pod_usage;
use lookup::Lookup;

/// Ends the quota resource that limits the devices of a class: `<class>` precedes it.
const PER_CLASS: &str = ".deviceclass.resource.k8s.io/devices";
/// Begins a quota resource that limits requests.
const REQUESTS: &str = "requests.";
/// Begins the extended resource that every device class serves; the name of the class follows.
const IMPLICIT: &str = "deviceclass.resource.kubernetes.io/";
/// Marks a claim that the scheduler made for the extended resources of a pod.
const EXTENDED_CLAIM: &str = "resource.kubernetes.io/extended-resource-claim";
/// The devices that a request for all devices may get: `AllocationResultsMaxSize`.
const ALL_DEVICES: i64 = 32;

/// The pod that owns a claim for extended resources.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct PodOwner<'a> {
    name: &'a str,
    uid: &'a str,
}

/// The pod for whose extended resources the scheduler made the claim, if it is such a claim.
fn pod_owner(claim: &Value) -> Option<PodOwner<'_>> {
    if str_in(claim, &["metadata", "annotations", EXTENDED_CLAIM]) != "true" {
        return None;
    }
    let owners = items(get(claim, "metadata"), "ownerReferences");
    let owner = owners.iter().find(|owner| bool_at(owner, "controller"))?;
    (str_at(owner, "kind") == "Pod" && str_at(owner, "apiVersion") == "v1")
        .then(|| PodOwner { name: str_at(owner, "name"), uid: str_at(owner, "uid") })
}

/// Sorts claims by their creation, then by name. Timestamps of objects have one format, so that
/// they sort as text.
fn age(claim: &Value) -> (&str, &str) {
    let metadata = get(claim, "metadata");
    (str_at(metadata, "creationTimestamp"), str_at(metadata, "name"))
}

/// The objects on which the usage of claims depends besides the claims themselves.
#[derive(Debug, Default)]
pub(super) struct ClaimObjects {
    classes: Vec<Value>,
    pods: Vec<Value>,
    claims: Vec<Value>,
}

impl ClaimObjects {
    /// Reads what the usage of these claims depends on: the device classes, and for claims for
    /// extended resources their pods and the other such claims of the namespace.
    ///
    /// # Errors
    /// If an object cannot be read.
    pub(super) async fn load(
        lookup: &dyn Lookup,
        namespace: &str,
        claims: [Option<&Value>; 2],
    ) -> Result<Self, Status> {
        let mut loaded = Self::default();
        let classes = lookup.list(&lookup::DEVICE_CLASSES, "").await?;
        loaded.classes = classes.iter().map(|class| read(class)).collect::<Result<_, _>>()?;
        for owner in claims.into_iter().flatten().filter_map(pod_owner) {
            let pod = lookup.find(&lookup::PODS, namespace, owner.name).await?;
            loaded.pods.extend(lookup::value(pod)?);
        }
        if !loaded.pods.is_empty() {
            for claim in lookup.list(&lookup::RESOURCE_CLAIMS, namespace).await? {
                loaded.claims.extend(Some(read(&claim)?).filter(|c| pod_owner(c).is_some()));
            }
        }
        Ok(loaded)
    }

    /// These objects, indexed.
    pub(super) fn context(&self) -> ClaimContext<'_> {
        ClaimContext::new(&self.classes, &self.pods, &self.claims)
    }
}

fn read(object: &Object) -> Result<Value, Status> {
    object.value().map_err(|error| Status::internal(&error.to_string()))
}

/// What the usage of the claims of a namespace depends on besides the claim.
#[derive(Debug, Default)]
pub(super) struct ClaimContext<'a> {
    /// The device classes, with the extended resource that each serves; empty if it serves none.
    classes: BTreeMap<&'a str, &'a str>,
    /// Pods of the namespace by name.
    pods: HashMap<&'a str, &'a Value>,
    /// Claims for extended resources of the namespace, by the UID of their pod.
    owned: HashMap<&'a str, Vec<&'a Value>>,
}

impl<'a> ClaimContext<'a> {
    /// Indexes device classes, and pods and claims of one namespace.
    pub(super) fn new(classes: &'a [Value], pods: &'a [Value], claims: &'a [Value]) -> Self {
        let mut context = Self::default();
        for class in classes {
            let resource = str_in(class, &["spec", "extendedResourceName"]);
            context.classes.insert(str_in(class, &["metadata", "name"]), resource);
        }
        for pod in pods {
            context.pods.insert(str_in(pod, &["metadata", "name"]), pod);
        }
        for claim in claims {
            if let Some(owner) = pod_owner(claim) {
                context.owned.entry(owner.uid).or_default().push(claim);
            }
        }
        context
    }

    /// Whether claims use the quota resource `name`, which is not a number of objects: devices of a
    /// class, or an extended resource that a class serves.
    pub(super) fn matches(&self, name: &str) -> bool {
        if name.ends_with(PER_CLASS) {
            return true;
        }
        let Some(resource) = name.strip_prefix(REQUESTS) else { return false };
        match resource.strip_prefix(IMPLICIT) {
            Some(class) => self.classes.contains_key(class),
            None => {
                resource.contains('/')
                    && !resource.contains("kubernetes.io/")
                    && self.classes.values().any(|served| *served == resource)
            }
        }
    }

    /// The usage of the pod of a claim for extended resources, which covers that of the claim. A
    /// pod covers the claim that its status names, or else its oldest one.
    fn covered_by_pod(&self, claim: &Value) -> Amounts {
        let pod = pod_owner(claim).and_then(|owner| {
            let pod = self.pods.get(owner.name)?;
            (str_in(pod, &["metadata", "uid"]) == owner.uid).then_some(*pod)
        });
        let Some(pod) = pod else { return Amounts::new() };
        let status = at(pod, &["status", "extendedResourceClaimStatus"]);
        let is_covered = if status.is_null() {
            self.is_first_claim_of(pod, claim)
        } else {
            str_at(status, "resourceClaimName") == str_in(claim, &["metadata", "name"])
        };
        let mut used = Amounts::new();
        if is_covered {
            pod_usage(pod, &mut used);
        }
        used
    }

    fn is_first_claim_of(&self, pod: &Value, claim: &Value) -> bool {
        let owned = self.owned.get(str_in(pod, &["metadata", "uid"])).into_iter().flatten();
        owned.map(|other| age(other)).all(|other| other >= age(claim))
    }

    /// Adds the usage of a claim besides its number.
    pub(super) fn usage(&self, claim: &Value, used: &mut Amounts) {
        let mut devices = Amounts::new();
        for request in items(at(claim, &["spec", "devices"]), "requests") {
            request_devices(request, &mut devices);
        }
        let covered = self.covered_by_pod(claim);
        for (name, amount) in self.served(&devices) {
            let rest = covered.get(&name).map_or(amount, |covered| amount.minus(*covered));
            if rest.sign() > 0 {
                used.insert(name, rest);
            }
        }
        for (class, amount) in devices {
            used.insert(format!("{class}{PER_CLASS}"), amount);
        }
    }

    /// The extended resources that devices, counted by class, may serve, as quota resources. Of
    /// several classes that serve the same resource, the one with most devices counts.
    fn served(&self, devices: &Amounts) -> Amounts {
        let mut served = Amounts::new();
        for (class, amount) in devices.iter().filter(|(class, _)| !class.is_empty()) {
            served.insert(format!("{REQUESTS}{IMPLICIT}{class}"), *amount);
            let resource = self.classes.get(class.as_str()).filter(|served| !served.is_empty());
            if let Some(resource) = resource {
                raise(&mut served, format!("{REQUESTS}{resource}"), *amount);
            }
        }
        served
    }
}

fn raise(amounts: &mut Amounts, name: String, amount: Quantity) {
    amounts.entry(name).and_modify(|have| *have = amount.max(*have)).or_insert(amount);
}

/// Adds the devices of one request by class. Of alternatives, the one with most devices counts for
/// its class, because any of them may be chosen.
fn request_devices(request: &Value, devices: &mut Amounts) {
    let alternatives = items(request, "firstAvailable");
    let mut most = Amounts::new();
    for alternative in alternatives {
        let amount = device_count(alternative);
        if !amount.is_zero() {
            raise(&mut most, str_at(alternative, "deviceClassName").to_owned(), amount);
        }
    }
    if alternatives.is_empty() && has(request, "exactly") {
        let exactly = get(request, "exactly");
        most.insert(str_at(exactly, "deviceClassName").to_owned(), device_count(exactly));
    }
    add(devices, &most);
}

/// The devices that a request or an alternative may get; none in an unknown mode.
fn device_count(request: &Value) -> Quantity {
    Quantity::units(match str_at(request, "allocationMode") {
        "ExactCount" => int_at(request, "count").unwrap_or_default(),
        "All" => ALL_DEVICES,
        _ => 0,
    })
}

#[cfg(test)]
mod tests;
