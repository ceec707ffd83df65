//! ResourceQuota: checks the usage of a write against the quotas of its namespace. The new quota
//! statuses are stored in one transaction with the object: a failed write consumes nothing, and a
//! recount of stored objects is consistent with a quota that did not change meanwhile.

mod device_claims;
pub mod evaluate;
mod pod_usage;
mod reservation;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use api::value::{ensure_object, entries, get, is_empty, items, set, str_in};
use api::{Gvr, Status};
use async_trait::async_trait;
use parking_lot::Mutex;
use serde_json::{Map, Value};
use tokio::sync::Semaphore;

use super::pod_resources::{Amounts, add, amounts};
use super::{Operation, Plugin, Request};
use device_claims::{ClaimContext, ClaimObjects};
use evaluate::{Evaluator, constraints, matching, scopes_match, usage};
use lookup::Lookup;
pub use reservation::Reservation;

/// The ResourceQuota plugin.
pub struct ResourceQuota {
    lookup: Arc<dyn Lookup>,
    /// A semaphore per namespace: one write at a time is checked and stored, so that two writes do
    /// not compete for the last capacity and need a retry.
    turns: Mutex<HashMap<String, Arc<Semaphore>>>,
}

/// The object under check.
#[derive(Clone, Copy)]
struct QuotaCheck<'a> {
    operation: Operation,
    gvr: &'a Gvr,
    subresource: &'a str,
    name: &'a str,
    old: Option<&'a Value>,
    object: &'a Value,
    evaluator: Evaluator,
    claims: &'a ClaimContext<'a>,
}

impl QuotaCheck<'_> {
    fn refuse(&self, why: &str) -> Status {
        super::forbidden(self.gvr, self.name, Some(self.object), why)
    }
}

impl ResourceQuota {
    /// Creates the plugin; `lookup` finds the quotas.
    pub fn new(lookup: Arc<dyn Lookup>) -> Self {
        Self { lookup, turns: Mutex::default() }
    }

    fn turn(&self, namespace: &str) -> Arc<Semaphore> {
        let mut turns = self.turns.lock();
        if turns.len() > 256 {
            turns.retain(|_, turn| Arc::strong_count(turn) > 1);
        }
        let free = || Arc::new(Semaphore::new(1));
        Arc::clone(turns.entry(namespace.to_owned()).or_insert_with(free))
    }
}

fn write_used(quota: &mut Value, used: &Amounts) {
    let map: Map<String, Value> =
        used.iter().map(|(name, amount)| (name.clone(), Value::from(amount.to_string()))).collect();
    if let Some(status) = ensure_object(quota, "status") {
        set(status, "used", map);
    }
}

fn format_amounts(amounts: &Amounts, names: &[&String]) -> String {
    let parts: Vec<String> =
        names.iter().filter_map(|name| Some(format!("{name}={}", amounts.get(*name)?))).collect();
    parts.join(",")
}

/// The objects on which the usage of the written ones depends.
async fn related(
    lookup: &dyn Lookup,
    namespace: &str,
    evaluator: Evaluator,
    written: [Option<&Value>; 2],
) -> Result<ClaimObjects, Status> {
    match evaluator {
        Evaluator::DeviceClaims => ClaimObjects::load(lookup, namespace, written).await,
        _ => Ok(ClaimObjects::default()),
    }
}

/// The quotas that the write changes, with their new usage.
fn check(subject: QuotaCheck<'_>, quotas: Vec<Value>) -> Result<Vec<Value>, Status> {
    let QuotaCheck { gvr, object, evaluator, claims, .. } = subject;
    let matches = |name: &&str| matching(evaluator, gvr, name, claims);
    let refuse = |why: String| subject.refuse(&why);
    let mut concerned: Vec<(Value, Amounts)> = Vec::new();
    for quota in quotas {
        let hard = amounts(get(&quota, "status"), "hard");
        let names: Vec<&str> = hard.keys().map(String::as_str).filter(matches).collect();
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
    let full = usage(evaluator, gvr, object, claims);
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
    for (mut quota, hard) in concerned {
        let mut delta = full.clone();
        if let Some(old) = subject.old.filter(|old| {
            subject.operation == Operation::Update
                && !is_empty(get(old, "metadata"), "resourceVersion")
        }) && scopes_match(evaluator, &quota, old)
        {
            subtract(&mut delta, &usage(evaluator, gvr, old, claims));
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
        if !exceeded.is_empty() && subject.subresource != "status" {
            return Err(refuse(format!(
                "exceeded quota: {}, requested: {}, used: {}, limited: {}",
                str_in(&quota, &["metadata", "name"]),
                format_amounts(&delta, &exceeded),
                format_amounts(&used, &exceeded),
                format_amounts(&hard, &exceeded)
            )));
        }
        write_used(&mut quota, &after);
        charges.push(quota);
    }
    Ok(charges)
}

/// Subtracts `less`, saturating at zero.
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
        // Events would update a quota on every write; upstream ignores them, too.
        let ignored = request.namespace.is_empty()
            || request.is("", "events")
            || request.is("events.k8s.io", "events");
        let Some(object) = object.filter(|_| !ignored) else { return Ok(()) };
        let Some(evaluator) = Evaluator::for_request(request, object) else { return Ok(()) };
        if self.lookup.list(&lookup::RESOURCE_QUOTAS, request.namespace).await?.is_empty() {
            return Ok(());
        }
        let turn = self.turn(request.namespace).acquire_owned().await;
        let turn = turn.map_err(|_| Status::internal("the resource quota queue is closed"))?;
        let written = [Some(object), request.old];
        let related = related(&*self.lookup, request.namespace, evaluator, written).await?;
        let subject = QuotaCheck {
            operation: request.operation,
            gvr: request.gvr,
            subresource: request.subresource,
            name: request.name,
            old: request.old,
            object,
            evaluator,
            claims: &related.context(),
        };
        let quotas = reservation::quotas(&*self.lookup, request.namespace).await?;
        let charges = check(subject, quotas)?;
        if !request.dry_run && !charges.is_empty() {
            let lookup = Arc::clone(&self.lookup);
            let reserved = Reservation::new(lookup, turn, request.namespace, subject, charges);
            *request.reservation.lock() = Some(reserved);
        }
        Ok(())
    }
}

/// The total usage of the objects of one resource within a quota's scopes, for the quota
/// controller; nothing if the quota limits no resource of theirs. `related` has the objects on
/// which their usage depends, which are the device classes, and the pods of the namespace, for
/// ResourceClaims.
pub fn total_usage(
    gvr: &Gvr,
    quota: &Value,
    objects: &[Value],
    related: &BTreeMap<Gvr, Vec<Value>>,
) -> Amounts {
    let evaluator = Evaluator::of(gvr);
    let of = |gvr: &Gvr| related.get(gvr).map(Vec::as_slice).unwrap_or_default();
    let claims = match evaluator {
        Evaluator::DeviceClaims => {
            ClaimContext::new(of(&lookup::DEVICE_CLASSES), of(&lookup::PODS), objects)
        }
        _ => ClaimContext::default(),
    };
    let mut sum = Amounts::new();
    let mut limited = entries(get(quota, "spec"), "hard");
    if !limited.any(|(name, _)| matching(evaluator, gvr, name, &claims)) {
        return sum;
    }
    for object in objects.iter().filter(|object| scopes_match(evaluator, quota, object)) {
        add(&mut sum, &usage(evaluator, gvr, object, &claims));
    }
    sum
}

/// The scopes of a quota, from `scopes` and `scopeSelector`: name, operator, values.
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
