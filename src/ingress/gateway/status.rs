//! The status of each object. A status that is the same but for times is not written.

use std::collections::BTreeSet;

use api::k8s::api::core::v1::Service;
use serde_json::{Value, json};
use sorting::CollectOrdered as _;

use super::features::FEATURES;
use super::listeners::Listener;
use super::model::{Gateway, Model, Parent, Route, Set};
use super::objects::{CONTROLLER, Objects, Problem, RouteKind};
use super::rules::Compiled;
use super::types::{ClassSpec, GROUP, GatewaySpec, Metadata, Resource};

/// The newest release whose definitions are known; the ones before it have the same objects.
const VERSIONS: [&str; 2] = ["v1.6.", "v1.7."];
/// Ancestors of a policy (`PolicyStatus.ancestors`).
const ANCESTORS_MAX: usize = 16;

/// A status to write.
#[derive(Debug, Clone, PartialEq)]
pub struct Update {
    /// The resource.
    pub resource: &'static str,
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// The version that the status was made for.
    pub resource_version: String,
    /// The status.
    pub status: Value,
}

/// Makes statuses.
#[derive(Debug)]
pub struct Reporter<'a> {
    /// The objects.
    pub objects: &'a Objects,
    /// What they mean.
    pub model: &'a Model,
    /// The time for conditions that change (RFC 3339).
    pub now: &'a str,
    /// The version of the definitions in the cluster.
    pub bundle: &'a str,
}

/// A condition without its time.
fn condition(kind: &str, outcome: Result<&str, &Problem>, generation: i64) -> Value {
    let (status, reason, message) = match outcome {
        Ok(reason) => ("True", reason, ""),
        Err(problem) => ("False", problem.reason, problem.message.as_str()),
    };
    json!({"type": kind, "status": status, "reason": reason, "message": message,
        "observedGeneration": generation})
}

/// A condition that is true although there is something to say.
fn noted(kind: &str, problem: &Problem, generation: i64) -> Value {
    let mut condition = condition(kind, Err(problem), generation);
    if let Some(status) = condition.get_mut("status") {
        *status = "True".into();
    }
    condition
}

fn list<'a>(value: &'a Value, field: &str) -> &'a [Value] {
    value.get(field).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

/// New conditions with the times of old ones that say the same, and old ones of types in no list,
/// which others have set.
fn merged(old: &[Value], new: Vec<Value>, own: &[&str], now: &str) -> Value {
    let kind = |value: &Value| value.get("type").and_then(Value::as_str).map(str::to_owned);
    let mut all: Vec<Value> = Vec::new();
    for mut condition in new {
        let before = old.iter().find(|old| kind(old) == kind(&condition));
        let same = before.filter(|before| before.get("status") == condition.get("status"));
        let time = same.and_then(|before| before.get("lastTransitionTime")).cloned();
        if let Some(map) = condition.as_object_mut() {
            map.insert("lastTransitionTime".into(), time.unwrap_or_else(|| now.into()));
        }
        all.push(condition);
    }
    let known: BTreeSet<Option<String>> = all.iter().map(kind).collect_set();
    let is_foreign = |old: &&Value| {
        let kind = kind(old);
        !known.contains(&kind) && !kind.is_some_and(|kind| own.contains(&kind.as_str()))
    };
    all.extend(old.iter().filter(is_foreign).cloned());
    Value::Array(all)
}

/// Types that are absent when they do not hold.
const OPTIONAL: &[&str] =
    &["Conflicted", "InsecureFrontendValidationMode", "PartiallyInvalid", "Scheduled", "Ready"];

impl Reporter<'_> {
    /// All statuses that differ from those that are stored. `service` is the Service of a Gateway.
    pub fn updates(&self, service: impl Fn(&Metadata) -> Option<Service>) -> Vec<Update> {
        let mut updates = Vec::new();
        let mut add = |resource, metadata: &Metadata, old: &Value, new: Value| {
            if *old != new {
                updates.push(Update {
                    resource,
                    namespace: metadata.namespace.clone(),
                    name: metadata.name.clone(),
                    resource_version: metadata.resource_version.clone(),
                    status: new,
                });
            }
        };
        for class in &self.objects.classes {
            if class.spec.controller_name == CONTROLLER {
                add("gatewayclasses", &class.metadata, &class.status, self.class(class));
            }
        }
        for gateway in &self.model.gateways {
            let Some(object) = self.objects.gateways.get(gateway.at) else { continue };
            let status = self.gateway(gateway, object, service(&object.metadata).as_ref());
            add("gateways", &object.metadata, &object.status, status);
        }
        for set in &self.model.sets {
            let Some(object) = self.objects.sets.get(set.at) else { continue };
            let status = self.set(set, &object.metadata, &object.status);
            add("listenersets", &object.metadata, &object.status, status);
        }
        let mut routes: Vec<Option<&Route>> = vec![None; self.objects.routes.len()];
        for route in &self.model.routes {
            if let Some(place) = routes.get_mut(route.at) {
                *place = Some(route);
            }
        }
        for ((kind, object), route) in self.objects.routes.iter().zip(routes) {
            let own =
                route.map(|route| self.parents(*kind, &object.metadata, &object.status, route));
            let status = with_own(&object.status, "parents", own.unwrap_or_default());
            add(kind.resource(), &object.metadata, &object.status, status);
        }
        for (object, policy) in self.objects.policies.iter().zip(&self.model.policies.all) {
            let generation = object.metadata.generation;
            let own = policy.gateways.iter().take(ANCESTORS_MAX).filter_map(|position| {
                let gateway = self.model.gateways.get(*position)?;
                let gateway = &self.objects.gateways.get(gateway.at)?.metadata;
                let reference = json!({"group": GROUP, "kind": "Gateway",
                    "namespace": gateway.namespace, "name": gateway.name});
                let conditions = vec![
                    condition(
                        "Accepted",
                        policy.accepted.as_ref().map(|()| "Accepted"),
                        generation,
                    ),
                    condition(
                        "ResolvedRefs",
                        policy.resolved.as_ref().map(|()| "ResolvedRefs"),
                        generation,
                    ),
                ];
                let old = own_entry(&object.status, "ancestors", "ancestorRef", &reference);
                let conditions = merged(old, conditions, OPTIONAL, self.now);
                Some(json!({"ancestorRef": reference, "controllerName": CONTROLLER,
                    "conditions": conditions}))
            });
            let status = with_own(&object.status, "ancestors", own.collect());
            add("backendtlspolicies", &object.metadata, &object.status, status);
        }
        updates
    }

    fn class(&self, class: &Resource<ClassSpec>) -> Value {
        let generation = class.metadata.generation;
        let parameters = class.spec.parameters_ref.as_ref().map(|_| {
            Problem::new("InvalidParameters", "parametersRef is not supported; remove it")
        });
        let is_known = VERSIONS.iter().any(|version| self.bundle.starts_with(version));
        let version = (!is_known).then(|| {
            let message = format!(
                "the definitions in the cluster are of version {:?}, v1.6 and v1.7 are supported",
                self.bundle
            );
            Problem::new("UnsupportedVersion", message)
        });
        let outcome = |problem: &Option<Problem>, reason| match problem {
            Some(problem) => condition(reason, Err(problem), generation),
            None => condition(reason, Ok(reason), generation),
        };
        let conditions =
            vec![outcome(&parameters, "Accepted"), outcome(&version, "SupportedVersion")];
        let features: Vec<Value> = FEATURES.iter().map(|name| json!({"name": name})).collect();
        let old = list(&class.status, "conditions");
        json!({"conditions": merged(old, conditions, OPTIONAL, self.now),
            "supportedFeatures": features})
    }

    fn gateway(
        &self,
        gateway: &Gateway,
        object: &Resource<GatewaySpec>,
        service: Option<&Service>,
    ) -> Value {
        let generation = object.metadata.generation;
        let own = || gateway.listeners.iter().filter(|listener| listener.set.is_none());
        let accepted = accepted(&gateway.accepted, own());
        let (addresses, programmed) = addresses(object, service);
        let accepted_condition = match &accepted {
            (Ok(()), None) => condition("Accepted", Ok("Accepted"), generation),
            (Ok(()), Some(problem)) => noted("Accepted", problem, generation),
            (Err(problem), _) => condition("Accepted", Err(problem), generation),
        };
        let invalid = accepted.0.err().map(|problem| Problem { reason: "Invalid", ..problem });
        let programmed = match invalid {
            Some(problem) => Err(problem),
            None => programmed,
        };
        let unresolved = gateway.certificate.as_ref().err().cloned().or_else(|| {
            let problem = own().find_map(|listener| listener.resolved.as_ref().err())?;
            Some(Problem { reason: "ListenersNotResolved", ..problem.clone() })
        });
        let mut conditions = vec![
            accepted_condition,
            condition("Programmed", programmed.as_ref().map(|()| "Programmed"), generation),
            match &unresolved {
                Some(problem) => condition("ResolvedRefs", Err(problem), generation),
                None => condition("ResolvedRefs", Ok("ResolvedRefs"), generation),
            },
        ];
        let is_insecure = |l: &Listener| l.validation.as_ref().is_some_and(|v| v.allows_invalid);
        if gateway.listeners.iter().any(is_insecure) {
            let kind = "InsecureFrontendValidationMode";
            conditions.push(condition(kind, Ok("ConfigurationChanged"), generation));
        }
        let is_served = programmed.is_ok() || programmed.is_err_and(|p| p.reason != "Invalid");
        let attached = self.attached_sets(gateway);
        let mut status = object.status.as_object().cloned().unwrap_or_default();
        let old = list(&object.status, "conditions");
        status.insert("conditions".into(), merged(old, conditions, OPTIONAL, self.now));
        status.insert("addresses".into(), Value::Array(addresses));
        status.insert(
            "listeners".into(),
            self.listeners(own(), &object.status, generation, is_served),
        );
        status.insert("attachedListenerSets".into(), attached.into());
        Value::Object(status)
    }

    /// The ListenerSets of a Gateway that have a listener which serves.
    fn attached_sets(&self, gateway: &Gateway) -> usize {
        let sets = gateway.listeners.iter().filter(|listener| listener.serves());
        sets.filter_map(|listener| listener.set).collect_set().len()
    }

    fn listeners<'a>(
        &self,
        listeners: impl Iterator<Item = &'a Listener>,
        status: &Value,
        generation: i64,
        is_served: bool,
    ) -> Value {
        let reports = listeners.map(|listener| {
            let name = Value::from(listener.spec.name.as_str());
            let old = list(status, "listeners").iter().find(|old| old.get("name") == Some(&name));
            let conditions = listener_conditions(listener, generation, is_served);
            let old = old.map(|old| list(old, "conditions")).unwrap_or_default();
            let kinds: Vec<Value> = listener
                .kinds
                .iter()
                .map(|kind| json!({"group": GROUP, "kind": kind.name()}))
                .collect();
            json!({"name": name, "supportedKinds": kinds, "attachedRoutes": listener.attached,
                "conditions": merged(old, conditions, OPTIONAL, self.now)})
        });
        Value::Array(reports.collect())
    }

    fn set(&self, set: &Set, metadata: &Metadata, status: &Value) -> Value {
        let generation = metadata.generation;
        let gateway = self.model.gateways.get(set.gateway);
        let own = || {
            let all = gateway.map(|gateway| gateway.listeners.as_slice()).unwrap_or_default();
            all.iter().filter(|listener| listener.set == Some(set.at))
        };
        let serves = own().filter(|listener| listener.serves()).count();
        let problem = if !set.is_allowed {
            let message = "allowedListeners of the Gateway excludes this ListenerSet";
            Some(Problem::new("NotAllowed", message))
        } else if gateway.is_none_or(|gateway| gateway.accepted.is_err()) {
            Some(Problem::new("ParentNotAccepted", "the Gateway is not accepted"))
        } else if serves < own().count() {
            let message = format!("{} of its listeners are not valid", own().count() - serves);
            Some(Problem::new("ListenersNotValid", message))
        } else {
            None
        };
        let is_partial =
            serves > 0 && problem.as_ref().is_some_and(|p| p.reason == "ListenersNotValid");
        let conditions = match &problem {
            Some(problem) if is_partial => vec![
                noted("Accepted", problem, generation),
                condition("Programmed", Ok("Programmed"), generation),
            ],
            Some(problem) => vec![
                condition("Accepted", Err(problem), generation),
                condition("Programmed", Err(problem), generation),
            ],
            None => vec![
                condition("Accepted", Ok("Accepted"), generation),
                condition("Programmed", Ok("Programmed"), generation),
            ],
        };
        let old = list(status, "conditions");
        json!({"conditions": merged(old, conditions, OPTIONAL, self.now),
            "listeners": self.listeners(own(), status, generation, true)})
    }

    fn parents(
        &self,
        kind: RouteKind,
        metadata: &Metadata,
        status: &Value,
        route: &Route,
    ) -> Vec<Value> {
        let mut entries: Vec<Value> = Vec::new();
        for parent in &route.parents {
            let Ok(reference) = serde_json::to_value(&parent.reference) else { continue };
            let compiled = route.compiled.get(&parent.gateway);
            let conditions = parent_conditions(kind, parent, compiled, metadata.generation);
            let old = own_entry(status, "parents", "parentRef", &reference);
            let conditions = merged(old, conditions, OPTIONAL, self.now);
            entries.push(json!({"parentRef": reference, "controllerName": CONTROLLER,
                "conditions": conditions}));
        }
        entries
    }
}

/// Whether a Gateway is accepted, and what there is to say although it is.
fn accepted<'a>(
    whole: &Result<(), Problem>,
    listeners: impl Iterator<Item = &'a Listener> + Clone,
) -> (Result<(), Problem>, Option<Problem>) {
    if let Err(problem) = whole {
        return (Err(problem.clone()), None);
    }
    let invalid = |listener: &&Listener| listener.accepted.is_err();
    let Some(first) = listeners.clone().find(invalid) else { return (Ok(()), None) };
    let message = first.accepted.as_ref().err().map(|p| p.message.as_str()).unwrap_or_default();
    let message = format!("listener {}: {message}", first.spec.name);
    let problem = Problem::new("ListenersNotValid", message);
    match listeners.clone().any(|listener| listener.accepted.is_ok()) {
        true => (Ok(()), Some(problem)),
        false => (Err(problem), None),
    }
}

/// The addresses of a Gateway, and whether it has those that it wants: the addresses of its
/// Service's load balancer, or its cluster IPs while there are none.
fn addresses(
    object: &Resource<GatewaySpec>,
    service: Option<&Service>,
) -> (Vec<Value>, Result<(), Problem>) {
    let none = || Err(Problem::new("AddressNotAssigned", "the Service has no address yet"));
    let Some(service) = service else { return (Vec::new(), none()) };
    let status = service.status.as_ref().and_then(|s| s.load_balancer.as_ref());
    let balanced = status.and_then(|s| s.ingress.as_deref()).unwrap_or_default();
    let address = |kind: &str, value: &str| json!({"type": kind, "value": value});
    let mut found: Vec<Value> = balanced
        .iter()
        .filter_map(|ingress| match (&ingress.ip, &ingress.hostname) {
            (Some(ip), _) => Some(address("IPAddress", ip)),
            (None, Some(name)) => Some(address("Hostname", name)),
            (None, None) => None,
        })
        .collect();
    if found.is_empty() {
        let own = service.spec.as_ref().and_then(|spec| spec.cluster_ips.as_deref());
        let own = own.unwrap_or_default().iter().filter(|ip| *ip != "None");
        found = own.map(|ip| address("IPAddress", ip)).collect();
    }
    let wanted: Vec<&str> = object
        .spec
        .addresses
        .iter()
        .map(|wanted| wanted.value.as_str())
        .filter(|value| !value.is_empty())
        .collect();
    if wanted.is_empty() {
        let programmed = if found.is_empty() { none() } else { Ok(()) };
        return (found, programmed);
    }
    let has =
        |value: &&str| found.iter().any(|known| known.get("value") == Some(&Value::from(*value)));
    if let Some(missing) = wanted.iter().find(|value| !has(value)) {
        let message = format!(
            "address {missing} is not one of the load balancer; it has: {}",
            found
                .iter()
                .filter_map(|known| known.get("value")?.as_str())
                .collect::<Vec<_>>()
                .join(", ")
        );
        return (Vec::new(), Err(Problem::new("AddressNotUsable", message)));
    }
    (wanted.iter().map(|value| address("IPAddress", value)).collect(), Ok(()))
}

fn listener_conditions(listener: &Listener, generation: i64, is_served: bool) -> Vec<Value> {
    let invalid = || {
        let problem = listener.resolved.as_ref().err();
        let message = problem.map_or("the listener is not valid", |p| p.message.as_str());
        Problem::new("Invalid", message)
    };
    let programmed = match (&listener.conflict, &listener.accepted) {
        (Some(conflict), _) => Err(conflict.clone()),
        (None, Err(problem)) => Err(Problem { reason: "Invalid", ..problem.clone() }),
        (None, Ok(())) if !listener.serves() => Err(invalid()),
        (None, Ok(())) if !is_served => Err(Problem::new("Pending", "the Gateway is not accepted")),
        (None, Ok(())) => Ok(()),
    };
    let conflict = match &listener.conflict {
        Some(problem) => noted("Conflicted", problem, generation),
        None => condition("Conflicted", Err(&Problem::new("NoConflicts", "")), generation),
    };
    vec![
        condition("Accepted", listener.accepted.as_ref().map(|()| "Accepted"), generation),
        condition("Programmed", programmed.as_ref().map(|()| "Programmed"), generation),
        condition("ResolvedRefs", listener.resolved.as_ref().map(|()| "ResolvedRefs"), generation),
        conflict,
    ]
}

fn parent_conditions(
    kind: RouteKind,
    parent: &Parent,
    compiled: Option<&Compiled>,
    generation: i64,
) -> Vec<Value> {
    let unresolved = compiled.and_then(|compiled| compiled.unresolved.as_ref());
    let mut conditions = vec![
        condition("Accepted", parent.accepted.as_ref().map(|()| "Accepted"), generation),
        match unresolved {
            Some(problem) => condition("ResolvedRefs", Err(problem), generation),
            None => condition("ResolvedRefs", Ok("ResolvedRefs"), generation),
        },
    ];
    let dropped = compiled.filter(|compiled| compiled.has_supported && parent.accepted.is_ok());
    if let Some(problem) = dropped.and_then(|compiled| compiled.unsupported.as_ref()) {
        let message = format!("Dropped Rule of this {}: {}", kind.name(), problem.message);
        let problem = Problem::new(problem.reason, message);
        conditions.push(noted("PartiallyInvalid", &problem, generation));
    }
    conditions
}

/// The conditions of our entry for a reference.
fn own_entry<'a>(status: &'a Value, field: &str, key: &str, reference: &Value) -> &'a [Value] {
    let found = list(status, field).iter().find(|entry| {
        entry.get("controllerName").and_then(Value::as_str) == Some(CONTROLLER)
            && entry.get(key) == Some(reference)
    });
    found.map(|entry| list(entry, "conditions")).unwrap_or_default()
}

/// A status in which our entries of a list are replaced; those of other controllers stay.
fn with_own(status: &Value, field: &str, own: Vec<Value>) -> Value {
    let is_foreign =
        |entry: &&Value| entry.get("controllerName").and_then(Value::as_str) != Some(CONTROLLER);
    let foreign = list(status, field).iter().filter(is_foreign);
    let all: Vec<Value> = foreign.cloned().chain(own).collect();
    if all.is_empty() && list(status, field).is_empty() {
        return status.clone();
    }
    let mut status = status.as_object().cloned().unwrap_or_default();
    status.insert(field.into(), Value::Array(all));
    Value::Object(status)
}

#[cfg(test)]
#[path = "status_tests.rs"]
mod tests;
