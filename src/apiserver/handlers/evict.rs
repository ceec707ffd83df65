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

/// Pods that a budget may be waiting for (upstream's `MaxDisruptedPodSize`).
const DISRUPTED_MAX: usize = 2000;
/// Attempts when the budget changes concurrently.
const RETRY_MAX: usize = 20;

/// Answers an eviction.
///
/// # Errors
/// 429 when a budget does not allow it now.
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
        let ground = match is_exempt(&value) {
            true => Ground::Exempt,
            false => reserve(context, &pod, &value, delete_options.dry_run).await?,
        };
        let mut wanted = delete_options.clone();
        if !given_version && ground.holds_for_this_state(&value) {
            wanted.resource_version = Some(pod.resource_version.to_string());
        }
        match (go(context, name, &options, &pod, wanted).await, ground) {
            // It may be ready by now, and guarded.
            (Err(refusal), Ground::Exempt) if refusal.code == 409 && !given_version => {
                refused = refusal;
            }
            (Err(refusal), Ground::Unready(budget)) if refusal.code == 409 && !given_version => {
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

/// Why a pod may go.
enum Ground {
    /// No budget is checked.
    Exempt,
    /// It is not ready, and this budget lets such go.
    Unready(String),
    /// A budget was reduced, or there is none.
    Taken,
}

impl Ground {
    /// Whether it is one only as long as the pod does not change: it could become ready.
    fn holds_for_this_state(&self, pod: &Value) -> bool {
        match self {
            Self::Exempt => {
                let phase = pod.pointer("/status/phase").and_then(Value::as_str);
                phase == Some("Pending") && metadata::text(pod, "deletionTimestamp").is_empty()
            }
            Self::Unready(_) => true,
            Self::Taken => false,
        }
    }
}

/// Marks the pod and deletes it.
async fn go(
    context: &Context,
    name: &str,
    options: &WriteOptions,
    pod: &Object,
    mut wanted: DeleteOptions,
) -> Result<(), Status> {
    if !wanted.dry_run {
        delete::preconditions(&context.row, pod, &wanted)?;
        let as_it_is = wanted.resource_version.is_some();
        let marked = mark_disrupted(context, name, options, as_it_is).await?;
        // The mark is a change of its own: what was wanted held until then.
        if as_it_is {
            wanted.resource_version = Some(marked.resource_version.to_string());
        }
    }
    if wanted.uid.is_none() {
        wanted.uid = Some(pod.uid.to_string());
    }
    // A dry run reports unmet preconditions, too.
    delete::remove(context, &context.row, context.namespace(), name, &wanted).await.map(drop)
}

/// Pods that are pending or finished are evicted regardless of budgets.
fn is_exempt(pod: &Value) -> bool {
    let phase = pod.pointer("/status/phase").and_then(Value::as_str).unwrap_or_default();
    matches!(phase, "Succeeded" | "Failed" | "Pending")
        || !metadata::text(pod, "deletionTimestamp").is_empty()
}

fn budgets_row(context: &Context) -> Result<Arc<Resource>, Status> {
    context.server.objects.row(&Gvr::new("policy", "v1", "poddisruptionbudgets"))
}

/// Takes one disruption from the pod's budget, where there is one and it is needed.
async fn reserve(
    context: &Context,
    pod: &Object,
    value: &Value,
    dry_run: bool,
) -> Result<Ground, Status> {
    let row = budgets_row(context)?;
    let storage = context.server.objects.storage();
    for _ in 0..RETRY_MAX {
        let Some(budget) = budget_of(context, &row, pod).await? else { return Ok(Ground::Taken) };
        let mut budget_value = budget.value().map_err(|e| Status::internal(&e.to_string()))?;
        if !is_ready(value) && unhealthy_may_go(&budget_value) {
            return Ok(Ground::Unready(budget.key.name.to_string()));
        }
        decrement(&mut budget_value, &pod.key.name)?;
        if dry_run {
            return Ok(Ground::Taken);
        }
        if let Written::Done(_) =
            storage.write(&row, &budget_value, budget.resource_version).await?
        {
            return Ok(Ground::Taken);
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

/// An unready pod may go without counting: always, or while the others are healthy enough.
fn unhealthy_may_go(budget: &Value) -> bool {
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

/// Decrements the allowed disruptions and records the pod in the budget.
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

/// Notes on the pod why it goes; `as_it_is`: only if nobody changes it meanwhile.
async fn mark_disrupted(
    context: &Context,
    name: &str,
    options: &WriteOptions,
    as_it_is: bool,
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
            if !as_it_is {
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
