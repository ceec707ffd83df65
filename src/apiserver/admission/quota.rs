//! ResourceQuota: what a write would use is checked against the namespace's quotas and reserved in their status.

pub mod evaluate;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use api::value::{ensure_object, get, is_empty, items, set, str_in};
use api::{Object, Status};
use async_trait::async_trait;
use parking_lot::Mutex;
use serde_json::{Map, Value};
use tokio::sync::Semaphore;

use super::pod_resources::{Amounts, add, amounts};
use super::{Operation, Plugin, Request};
use crate::lookup::{self, Lookup};
use evaluate::{Evaluator, constraints, matching, scopes_match, usage};

/// Attempts to write a quota's status that others write too.
const ATTEMPTS: usize = 10;

/// Turns and the newest statuses of one namespace.
struct Slot {
    /// One write of the namespace at a time checks and reserves, or two would both take the last place.
    turn: Semaphore,
    /// Quotas as we last wrote them, for as long as the cache lags behind.
    written: Mutex<BTreeMap<String, Arc<Object>>>,
}

/// The plugin.
pub struct ResourceQuota {
    lookup: Arc<dyn Lookup>,
    slots: Mutex<HashMap<String, Arc<Slot>>>,
}

/// What one write adds to one quota.
struct Charge {
    quota: Value,
    used: Amounts,
}

impl ResourceQuota {
    /// Over these quotas.
    pub fn new(lookup: Arc<dyn Lookup>) -> Self {
        Self { lookup, slots: Mutex::default() }
    }

    fn slot(&self, namespace: &str) -> Arc<Slot> {
        let mut slots = self.slots.lock();
        if slots.len() > 256 {
            slots.retain(|_, slot| Arc::strong_count(slot) > 1);
        }
        let fresh = || Arc::new(Slot { turn: Semaphore::new(1), written: Mutex::default() });
        Arc::clone(slots.entry(namespace.to_owned()).or_insert_with(fresh))
    }

    /// The quotas of the namespace, each at the newest version known.
    async fn quotas(&self, namespace: &str, slot: &Slot) -> Result<Vec<Value>, Status> {
        let cached = self.lookup.list(&lookup::RESOURCE_QUOTAS, namespace).await?;
        let mut written = slot.written.lock();
        written.retain(|name, own| {
            cached
                .iter()
                .any(|c| *c.key.name == **name && c.resource_version < own.resource_version)
        });
        let newest = cached.iter().map(|c| written.get(&*c.key.name).unwrap_or(c));
        let values = newest.map(|quota| quota.value());
        values.map(|value| value.map_err(|e| Status::internal(&e.to_string()))).collect()
    }

    async fn reserve(
        &self,
        request: &Request<'_>,
        object: &Value,
        evaluator: Evaluator,
        slot: &Slot,
    ) -> Result<(), Status> {
        let mut done: Vec<String> = Vec::new();
        for _ in 0..ATTEMPTS {
            let quotas = self.quotas(request.namespace, slot).await?;
            let open = quotas.into_iter().filter(|quota| {
                !done.iter().any(|name| name == str_in(quota, &["metadata", "name"]))
            });
            let charges = check(request, object, evaluator, open.collect())?;
            if request.dry_run || charges.is_empty() {
                return Ok(());
            }
            let mut conflict = false;
            for Charge { mut quota, used } in charges {
                let name = str_in(&quota, &["metadata", "name"]).to_owned();
                write_used(&mut quota, &used);
                match self.lookup.update_status(&lookup::RESOURCE_QUOTAS, quota).await {
                    Ok(stored) => {
                        slot.written.lock().insert(name.clone(), stored);
                        done.push(name);
                    }
                    Err(error) if error.is("Conflict") => {
                        // Somebody else wrote it: the store has what to count from.
                        if let Some(fresh) = self
                            .lookup
                            .get_live(&lookup::RESOURCE_QUOTAS, request.namespace, &name)
                            .await
                        {
                            slot.written.lock().insert(name, fresh);
                        }
                        conflict = true;
                    }
                    // Deleted meanwhile: nothing is limited by it any more.
                    Err(error) if error.is("NotFound") => done.push(name),
                    Err(error) => return Err(error),
                }
            }
            if !conflict {
                return Ok(());
            }
        }
        Err(request.forbidden(
            Some(object),
            "unable to update the usage of a resource quota, please try again",
        ))
    }
}

fn write_used(quota: &mut Value, used: &Amounts) {
    let map: Map<String, Value> =
        used.iter().map(|(name, amount)| (name.clone(), Value::from(amount.to_string()))).collect();
    if let Some(status) = ensure_object(quota, "status") {
        set(status, "used", map);
    }
}

fn shown(amounts: &Amounts, names: &[&String]) -> String {
    let parts: Vec<String> =
        names.iter().filter_map(|name| Some(format!("{name}={}", amounts.get(*name)?))).collect();
    parts.join(",")
}

/// What the write adds to each quota that concerns it.
fn check(
    request: &Request<'_>,
    object: &Value,
    evaluator: Evaluator,
    quotas: Vec<Value>,
) -> Result<Vec<Charge>, Status> {
    let refuse = |why: String| request.forbidden(Some(object), &why);
    let mut concerned: Vec<(Value, Amounts)> = Vec::new();
    for quota in quotas {
        let hard = amounts(get(&quota, "status"), "hard");
        let names: Vec<&str> = hard
            .keys()
            .map(String::as_str)
            .filter(|name| matching(evaluator, request.gvr, name))
            .collect();
        if names.is_empty() || !scopes_match(evaluator, &quota, object) {
            continue;
        }
        let quota_name = str_in(&quota, &["metadata", "name"]);
        constraints(evaluator, &names, object)
            .map_err(|why| refuse(format!("failed quota: {quota_name}: {why}")))?;
        let used = amounts(get(&quota, "status"), "used");
        if names.iter().any(|name| !used.contains_key(*name)) {
            return Err(refuse(format!(
                "status unknown for quota: {quota_name}, resources: {}",
                names.join(",")
            )));
        }
        concerned.push((quota, hard));
    }
    if concerned.is_empty() {
        return Ok(Vec::new());
    }
    let full = usage(evaluator, request.gvr, object);
    let negative: Vec<&str> = full
        .iter()
        .filter(|(_, amount)| amount.sign() < 0)
        .map(|(name, _)| name.as_str())
        .collect();
    if !negative.is_empty() {
        return Err(refuse(format!(
            "quota usage is negative for resource(s): {}",
            negative.join(",")
        )));
    }
    let mut charges = Vec::new();
    for (quota, hard) in concerned {
        let mut delta = full.clone();
        if let Some(old) = request.old.filter(|old| {
            request.operation == Operation::Update
                && !is_empty(get(old, "metadata"), "resourceVersion")
        }) && scopes_match(evaluator, &quota, old)
        {
            subtract(&mut delta, &usage(evaluator, request.gvr, old));
        }
        delta.retain(|name, amount| !amount.is_zero() && hard.contains_key(name));
        if delta.is_empty() {
            continue;
        }
        let used = amounts(get(&quota, "status"), "used");
        let mut after = used.clone();
        add(&mut after, &delta);
        let exceeded: Vec<&String> =
            delta.keys().filter(|name| after.get(*name) > hard.get(*name)).collect();
        if !exceeded.is_empty() && request.subresource != "status" {
            return Err(refuse(format!(
                "exceeded quota: {}, requested: {}, used: {}, limited: {}",
                str_in(&quota, &["metadata", "name"]),
                shown(&delta, &exceeded),
                shown(&used, &exceeded),
                shown(&hard, &exceeded)
            )));
        }
        charges.push(Charge { quota, used: after });
    }
    Ok(charges)
}

/// Takes `less` away; nothing becomes negative.
fn subtract(from: &mut Amounts, less: &Amounts) {
    for (name, amount) in from.iter_mut() {
        if let Some(other) = less.get(name) {
            let rest = amount.minus(*other);
            *amount = if rest.sign() < 0 { api::quantity::Quantity::ZERO } else { rest };
        }
    }
}

#[async_trait]
impl Plugin for ResourceQuota {
    fn name(&self) -> &'static str {
        "ResourceQuota"
    }

    async fn validate(&self, request: &Request<'_>, object: Option<&Value>) -> Result<(), Status> {
        // Events would write a quota's status every time; upstream leaves them out too.
        let ignored = request.namespace.is_empty()
            || request.is("", "events")
            || request.is("events.k8s.io", "events");
        let Some(object) = object.filter(|_| !ignored) else { return Ok(()) };
        let Some(evaluator) = Evaluator::for_request(request, object) else { return Ok(()) };
        if self.lookup.list(&lookup::RESOURCE_QUOTAS, request.namespace).await?.is_empty() {
            return Ok(());
        }
        let slot = self.slot(request.namespace);
        let Ok(_turn) = slot.turn.acquire().await else {
            return Err(Status::internal("the resource quota queue is closed"));
        };
        self.reserve(request, object, evaluator, &slot).await
    }
}

/// Total usage of the objects of one kind under a quota's scopes; for the quota controller.
pub fn total_usage(gvr: &api::Gvr, quota: &Value, objects: &[Value]) -> Amounts {
    let evaluator = Evaluator::of(gvr);
    let mut sum = Amounts::new();
    for object in objects.iter().filter(|object| scopes_match(evaluator, quota, object)) {
        add(&mut sum, &usage(evaluator, gvr, object));
    }
    sum.retain(|name, _| matching(evaluator, gvr, name));
    sum
}

/// Scopes of a quota, old and new form together: name, operator, values.
fn selectors(quota: &Value) -> impl Iterator<Item = (&str, &str, &[Value])> {
    let spec = get(quota, "spec");
    let plain = items(spec, "scopes")
        .iter()
        .filter_map(Value::as_str)
        .map(|name| (name, "Exists", &[][..]));
    let full = items(get(spec, "scopeSelector"), "matchExpressions");
    let text = |v, key| api::value::str_at(v, key);
    plain.chain(
        full.iter().map(move |e| (text(e, "scopeName"), text(e, "operator"), items(e, "values"))),
    )
}

#[cfg(test)]
mod tests;
