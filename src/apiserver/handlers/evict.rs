//! POST of a pod's `eviction`: a deletion that disruption budgets may refuse
//! (`pkg/registry/core/pod/storage/eviction.go`).

use std::sync::Arc;

use api::selector::LabelSelector;
use api::status::{Cause, Details};
use api::{Gvk, Gvr, Object, Status};
use http::{Response, StatusCode};
use serde_json::{Value, json};

use super::{delete, get};
use crate::registry::storage::Written;
use crate::registry::watch_cache::Filter;
use crate::registry::{Resource, metadata};
use crate::request::body::Body;
use crate::request::context::Context;
use crate::request::context::RequestParts;
use crate::request::input;
use crate::request::options::{DeleteOptions, WriteOptions};
use crate::response::encode;
use crate::response::status;
use crate::write::{Write, url_name};

/// Most disrupted pods that a budget records (upstream's `MaxDisruptedPodSize`).
const DISRUPTED_MAX: usize = 2000;
/// Attempts when the budget changes concurrently.
const RETRY_MAX: usize = 20;

/// Handles an eviction.
///
/// # Errors
/// 429 when a budget does not allow the eviction now.
pub(super) async fn evict(
    context: &Context,
    exchange: RequestParts,
) -> Result<Response<Body>, Status> {
    let name = url_name(context)?;
    let options = WriteOptions::read(&context.query, "CreateOptions", false)?;
    let kind = Gvk::new("policy", "v1", "Eviction");
    let mut eviction = input::object(context, exchange.body, &kind, options.validation).await?;
    input::name_kind(&mut eviction, &kind);
    let given = metadata::text(&eviction, "name");
    if given != name {
        return Err(Status::bad_request("name in URL does not match name in Eviction object"));
    }
    let eviction = Write::new(context, &options).admit_create(name, eviction).await?;
    let empty = json!({});
    let mut delete_options =
        DeleteOptions::of_value(eviction.get("deleteOptions").unwrap_or(&empty))?;
    delete_options.dry_run |= options.dry_run;
    delete_options.is_admitted = true;
    let given_version = delete_options.resource_version.is_some();
    let mut refused = Write::new(context, &options).conflict(name);
    for _ in 0..RETRY_MAX {
        let pod = get::current(context).await?;
        let value = pod.value().map_err(|e| Status::internal(&e.to_string()))?;
        let reason = match is_exempt(&value) {
            true => EvictionReason::Exempt,
            false => reserve(context, &pod, &value, delete_options.dry_run).await?,
        };
        let mut wanted = delete_options.clone();
        if !given_version && reason.requires_unchanged(&value) {
            wanted.resource_version = Some(pod.resource_version.to_string());
        }
        match (evict_pod(context, name, &options, &pod, wanted).await, reason) {
            // The pod may have become ready, so that a budget applies.
            (Err(refusal), EvictionReason::Exempt) if refusal.code == 409 && !given_version => {
                refused = refusal;
            }
            (Err(refusal), EvictionReason::Unready(budget))
                if refusal.code == 409 && !given_version =>
            {
                return Err(still_processed(&budget));
            }
            (outcome, _) => {
                outcome?;
                return encode::value(context, StatusCode::CREATED, &encode::done(201));
            }
        }
    }
    Err(refused)
}

/// Why a pod may be evicted.
enum EvictionReason {
    /// Budgets do not apply to the pod.
    Exempt,
    /// The pod is not ready, and the budget of this name allows the eviction of unready pods.
    Unready(String),
    /// The budget was decremented, or no budget selects the pod.
    Allowed,
}

impl EvictionReason {
    /// Whether the reason is valid only while the pod does not change, because it could become
    /// ready (upstream's `shouldEnforceResourceVersion`).
    fn requires_unchanged(&self, pod: &Value) -> bool {
        match self {
            Self::Exempt => {
                let phase = pod.pointer("/status/phase").and_then(Value::as_str);
                phase == Some("Pending") && metadata::text(pod, "deletionTimestamp").is_empty()
            }
            Self::Unready(_) => true,
            Self::Allowed => false,
        }
    }
}

/// Sets the condition `DisruptionTarget` on the pod and deletes it.
async fn evict_pod(
    context: &Context,
    name: &str,
    options: &WriteOptions,
    pod: &Object,
    mut wanted: DeleteOptions,
) -> Result<(), Status> {
    if !wanted.dry_run {
        delete::preconditions(&context.row, pod, &wanted)?;
        let is_unchanged = wanted.resource_version.is_some();
        let marked = mark_disrupted(context, name, options, is_unchanged).await?;
        // The condition changes the resource version, which the precondition follows.
        if is_unchanged {
            wanted.resource_version = Some(marked.resource_version.to_string());
        }
    }
    if wanted.uid.is_none() {
        wanted.uid = Some(pod.uid.to_string());
    }
    // A dry run reports unmet preconditions, too.
    delete::remove(context, &context.row, context.namespace(), name, &wanted).await.map(drop)
}

/// Whether budgets do not apply to a pod because it is pending, finished or being deleted
/// (upstream's `canIgnorePDB`).
fn is_exempt(pod: &Value) -> bool {
    let phase = pod.pointer("/status/phase").and_then(Value::as_str).unwrap_or_default();
    matches!(phase, "Succeeded" | "Failed" | "Pending")
        || !metadata::text(pod, "deletionTimestamp").is_empty()
}

fn budgets_row(context: &Context) -> Result<Arc<Resource>, Status> {
    context.server.objects.row(&Gvr::new("policy", "v1", "poddisruptionbudgets"))
}

/// Decrements the budget that selects the pod, unless the pod is unready and the budget allows its
/// eviction.
async fn reserve(
    context: &Context,
    pod: &Object,
    value: &Value,
    dry_run: bool,
) -> Result<EvictionReason, Status> {
    let row = budgets_row(context)?;
    let storage = context.server.objects.storage();
    for _ in 0..RETRY_MAX {
        let Some(budget) = budget_of(context, &row, pod).await? else {
            return Ok(EvictionReason::Allowed);
        };
        let mut budget_value = budget.value().map_err(|e| Status::internal(&e.to_string()))?;
        if !is_ready(value) && allows_unready(&budget_value) {
            return Ok(EvictionReason::Unready(budget.key.name.to_string()));
        }
        decrement(&mut budget_value, &pod.key.name)?;
        if dry_run {
            return Ok(EvictionReason::Allowed);
        }
        if let Written::Done(_) =
            storage.write(&row, &budget_value, budget.resource_version).await?
        {
            return Ok(EvictionReason::Allowed);
        }
    }
    let message = "couldn't update PodDisruptionBudget due to conflicts";
    let mut refusal = Status::failure(429, "TooManyRequests", message);
    refusal.details = Some(Details { retry_after_seconds: 10, ..Details::default() });
    Err(refusal)
}

async fn budget_of(
    context: &Context,
    row: &Arc<Resource>,
    pod: &Object,
) -> Result<Option<Arc<Object>>, Status> {
    let cache = context.server.objects.fresh_cache(row).await?;
    let all = cache.list(
        &Filter { namespace: pod.key.namespace.to_string(), ..Filter::default() },
        None,
        0,
    );
    let mut found = all.items.into_iter().filter(|budget| {
        let selector = budget
            .value()
            .ok()
            .and_then(|b| LabelSelector::from_value(b.pointer("/spec/selector")).ok());
        selector.is_some_and(|selector| selector.matches(pod))
    });
    let first = found.next();
    if found.next().is_some() {
        let text = "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.";
        return Err(Status::internal(text));
    }
    Ok(first)
}

fn is_ready(pod: &Value) -> bool {
    let conditions = pod.pointer("/status/conditions").and_then(Value::as_array);
    let ready = |c: &&Value| c.get("type").and_then(Value::as_str) == Some("Ready");
    conditions
        .and_then(|all| all.iter().find(ready))
        .is_some_and(|c| c.get("status").and_then(Value::as_str) == Some("True"))
}

/// Whether a budget allows the eviction of unready pods: always, or while enough pods are healthy
/// (`unhealthyPodEvictionPolicy`).
fn allows_unready(budget: &Value) -> bool {
    let number = |field: &str| {
        budget.pointer(&format!("/status/{field}")).and_then(Value::as_i64).unwrap_or(0)
    };
    match budget.pointer("/spec/unhealthyPodEvictionPolicy").and_then(Value::as_str) {
        Some("AlwaysAllow") => true,
        _ => number("currentHealthy") >= number("desiredHealthy") && number("desiredHealthy") > 0,
    }
}

fn too_many(message: String) -> Status {
    let mut refusal = Status::failure(
        429,
        "TooManyRequests",
        "Cannot evict pod as it would violate the pod's disruption budget.",
    );
    let cause = Cause { reason: "DisruptionBudget".into(), message, field: String::new() };
    refusal.details =
        Some(Details { causes: vec![cause], retry_after_seconds: 0, ..Details::default() });
    refusal
}

fn still_processed(budget: &str) -> Status {
    let text = format!("The disruption budget {budget} is still being processed by the server.");
    let mut refusal = too_many(text);
    if let Some(details) = &mut refusal.details {
        details.retry_after_seconds = 10;
    }
    refusal
}

/// Decrements the allowed disruptions and records the pod in the budget (upstream's
/// `checkAndDecrement`).
fn decrement(budget: &mut Value, pod: &str) -> Result<(), Status> {
    let name = metadata::text(budget, "name").to_owned();
    let number = |field: &str| {
        budget.pointer(&format!("/status/{field}")).and_then(Value::as_i64).unwrap_or(0)
    };
    let forbidden = |why: &str| Status::forbidden("policy", "poddisruptionbudget", &name, why);
    if number("observedGeneration") < metadata::number(budget, "generation").unwrap_or(0) {
        return Err(still_processed(&name));
    }
    let allowed = number("disruptionsAllowed");
    if allowed < 0 {
        return Err(forbidden("pdb disruptions allowed is negative"));
    }
    let disrupted = budget
        .pointer("/status/disruptedPods")
        .and_then(Value::as_object)
        .map_or(0, serde_json::Map::len);
    if disrupted > DISRUPTED_MAX {
        return Err(forbidden(
            "DisruptedPods map too big - too many evictions not confirmed by PDB controller",
        ));
    }
    if allowed == 0 {
        let (desired, current) = (number("desiredHealthy"), number("currentHealthy"));
        return Err(too_many(format!(
            "The disruption budget {name} needs {desired} healthy pods and has {current} currently"
        )));
    }
    let Some(status) = budget.get_mut("status").and_then(Value::as_object_mut) else {
        return Err(status::unmapped(500, "no status"));
    };
    status.insert("disruptionsAllowed".into(), (allowed - 1).into());
    let pods = status.entry("disruptedPods").or_insert_with(|| json!({}));
    if let Some(pods) = pods.as_object_mut() {
        pods.insert(pod.to_owned(), metadata::now().into());
    }
    Ok(())
}

/// Sets the condition `DisruptionTarget` on the pod; `is_unchanged`: only if the pod does not
/// change meanwhile.
async fn mark_disrupted(
    context: &Context,
    name: &str,
    options: &WriteOptions,
    is_unchanged: bool,
) -> Result<Arc<Object>, Status> {
    let write = Write {
        context,
        options,
        row: &context.row,
        subresource: "status",
        // The condition is set by the server and has no field manager.
        applies: true,
        delete_options: None,
    };
    write
        .update(name, None, &mut |pod| {
            let mut pod = pod.clone();
            if !is_unchanged {
                metadata::metadata_mut(&mut pod).remove("resourceVersion");
            }
            let condition = json!({"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI",
                "message": "Eviction API: evicting", "lastProbeTime": null,
                "lastTransitionTime": metadata::now()});
            let Some(map) = pod.as_object_mut() else { return Ok(pod) };
            let status = map.entry("status").or_insert_with(|| json!({}));
            if let Some(status) = status.as_object_mut()
                && let Some(conditions) = status.entry("conditions").or_insert_with(|| json!([])).as_array_mut()
            {
                conditions.retain(|c| c.get("type").and_then(Value::as_str) != Some("DisruptionTarget"));
                conditions.push(condition);
            }
            Ok(pod)
        })
        .await
        .map(|updated| updated.object)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `canIgnorePDB` and `shouldEnforceResourceVersion` of
    /// `pkg/registry/core/pod/storage/eviction.go`.
    #[test]
    fn finished_pending_and_terminating_pods_ignore_budgets() {
        let pod = |phase: &str, is_terminating: bool| {
            let mut pod = json!({"metadata": {}, "status": {"phase": phase}});
            if is_terminating {
                pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
            }
            pod
        };
        // Phase, terminating; exempt, the resource version is enforced.
        let rows = [
            ("Running", false, false, true),
            ("Running", true, true, false),
            ("Pending", false, true, true),
            ("Pending", true, true, false),
            ("Succeeded", false, true, false),
            ("Failed", false, true, false),
        ];
        for (phase, is_terminating, exempt, enforced) in rows {
            let pod = pod(phase, is_terminating);
            assert_eq!(is_exempt(&pod), exempt, "{pod}");
            let reason =
                if exempt { EvictionReason::Exempt } else { EvictionReason::Unready("b".into()) };
            assert_eq!(reason.requires_unchanged(&pod), enforced, "{pod}");
        }
    }

    /// The policies `IfHealthyBudget` (also the default) and `AlwaysAllow`.
    #[test]
    fn unready_pods_are_evicted_always_or_while_the_budget_is_healthy() {
        let rows = [
            (Some("AlwaysAllow"), 0, 2, true),
            (Some("IfHealthyBudget"), 2, 2, true),
            (Some("IfHealthyBudget"), 1, 2, false),
            (None, 3, 2, true),
            (None, 1, 2, false),
            (None, 0, 0, false),
        ];
        for (policy, current, desired, expected) in rows {
            let budget = json!({"spec": {"unhealthyPodEvictionPolicy": policy},
                "status": {"currentHealthy": current, "desiredHealthy": desired}});
            assert_eq!(allows_unready(&budget), expected, "{budget}");
        }
    }

    /// `checkAndDecrement` and `createTooManyRequestsError`.
    #[test]
    fn a_budget_is_decremented_while_it_allows_disruptions() {
        let budget =
            |status: Value| json!({"metadata": {"name": "b", "generation": 2}, "status": status});
        let full: serde_json::Map<String, Value> =
            (0..=DISRUPTED_MAX).map(|n| (n.to_string(), json!(""))).collect();
        let guarded = "Cannot evict pod as it would violate the pod's disruption budget.";
        let rows = [
            (
                json!({"observedGeneration": 1, "disruptionsAllowed": 1}),
                (
                    429,
                    guarded,
                    "The disruption budget b is still being processed by the server.",
                    10,
                ),
            ),
            (
                json!({"observedGeneration": 2, "disruptionsAllowed": 0, "desiredHealthy": 3, "currentHealthy": 2}),
                (
                    429,
                    guarded,
                    "The disruption budget b needs 3 healthy pods and has 2 currently",
                    0,
                ),
            ),
            (
                json!({"observedGeneration": 2, "disruptionsAllowed": -1}),
                (
                    403,
                    "poddisruptionbudget.policy \"b\" is forbidden: pdb disruptions allowed is negative",
                    "",
                    0,
                ),
            ),
            (
                json!({"observedGeneration": 2, "disruptionsAllowed": 1, "disruptedPods": full}),
                (
                    403,
                    "poddisruptionbudget.policy \"b\" is forbidden: DisruptedPods map too big - too many evictions not confirmed by PDB controller",
                    "",
                    0,
                ),
            ),
        ];
        for (status, (code, message, cause, retry)) in rows {
            let refused = decrement(&mut budget(status), "p").unwrap_err();
            assert_eq!((refused.code, refused.message.as_str()), (code, message));
            let details = refused.details.unwrap_or_default();
            let causes: String = details.causes.into_iter().map(|cause| cause.message).collect();
            assert_eq!((causes.as_str(), details.retry_after_seconds), (cause, retry));
        }
        let mut allowing = budget(json!({"observedGeneration": 2, "disruptionsAllowed": 2}));
        decrement(&mut allowing, "p").unwrap();
        assert_eq!(allowing["status"]["disruptionsAllowed"], 1);
        assert!(allowing["status"]["disruptedPods"]["p"].is_string());
    }
}
