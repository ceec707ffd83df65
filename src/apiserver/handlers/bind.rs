//! POST of a pod's `binding`: the scheduler's decision, made once.

use api::Status;
use http::{Response, StatusCode};
use serde_json::{Value, json};

use super::options::WriteOptions;
use super::write::{Write, url_name};
use super::{Exchange, input, output};
use crate::body::Body;
use crate::context::Context;
use crate::registry::metadata;
use crate::status;

/// Answers a binding.
///
/// # Errors
/// 409 when the pod has a node, is being deleted or still gated.
pub(super) async fn bind(context: &Context, exchange: Exchange) -> Result<Response<Body>, Status> {
    let name = url_name(context)?;
    let options = WriteOptions::read(&context.query, "CreateOptions", false)?;
    let kind = api::Gvk::new("", "v1", "Binding");
    let binding = input::object(context, exchange.body, &kind, options.validation).await?;
    bind_pod(context, name, binding, &options).await?;
    output::value(context, StatusCode::CREATED, &output::done(201))
}

/// Binds one pod.
///
/// # Errors
/// As [`bind`].
pub(super) async fn bind_pod(
    context: &Context,
    name: &str,
    binding: Value,
    options: &WriteOptions,
) -> Result<(), Status> {
    let write = Write {
        context,
        options,
        row: &context.row,
        subresource: "binding",
        applies: false,
        delete_options: None,
    };
    let binding = &write.admit_create(name, binding).await?;
    let given = metadata::text(binding, "name");
    if given != name && !given.is_empty() {
        return Err(Status::bad_request("name in URL does not match name in Binding object"));
    }
    let text = |path: &str| binding.pointer(path).and_then(Value::as_str).unwrap_or_default();
    let kind = text("/target/kind");
    let mut errors = Vec::new();
    if !matches!(kind, "" | "Node") {
        errors.push(format!(
            "target.kind: Unsupported value: {}: supported values: \"Node\", \"<empty>\"",
            api::field::go_quote(kind)
        ));
    }
    if text("/target/name").is_empty() {
        errors.push("target.name: Required value".to_owned());
    }
    if !errors.is_empty() {
        let message = if let [one] = errors.as_slice() {
            one.clone()
        } else {
            format!("[{}]", errors.join(", "))
        };
        return Err(status::unmapped(500, message));
    }
    let uid = metadata::text(binding, "uid").to_owned();
    write.update(name, None, &mut |pod| bound(pod, name, binding, &uid)).await.map(|_| ())
}

/// The pod on its node.
fn bound(pod: &Value, name: &str, binding: &Value, uid: &str) -> Result<Value, Status> {
    let refuse = |why: String| Err(Status::conflict("", "pods/binding", name, &why));
    let node = binding.pointer("/target/name").and_then(Value::as_str).unwrap_or_default();
    if !uid.is_empty() && uid != metadata::text(pod, "uid") {
        let have = metadata::text(pod, "uid");
        return refuse(format!(
            "Precondition failed: UID in precondition: {uid}, UID in object meta: {have}"
        ));
    }
    if !metadata::text(pod, "deletionTimestamp").is_empty() {
        return refuse(format!("pod {name} is being deleted, cannot be assigned to a host"));
    }
    if let Some(there) =
        pod.pointer("/spec/nodeName").and_then(Value::as_str).filter(|n| !n.is_empty())
    {
        return refuse(format!(
            "pod {name} is already assigned to node {}",
            api::field::go_quote(there)
        ));
    }
    if pod
        .pointer("/spec/schedulingGates")
        .and_then(Value::as_array)
        .is_some_and(|gates| !gates.is_empty())
    {
        return refuse(format!("pod {name} has non-empty .spec.schedulingGates"));
    }
    let mut pod = pod.clone();
    // Labels of the node's place, which admission puts onto the binding.
    if let Some(labels) = binding.pointer("/metadata/labels").and_then(Value::as_object) {
        let slot = metadata::metadata_mut(&mut pod).entry("labels").or_insert_with(|| json!({}));
        if let Some(slot) = slot.as_object_mut() {
            slot.extend(labels.clone());
        }
    }
    if let Some(annotations) = binding.pointer("/metadata/annotations").and_then(Value::as_object) {
        let slot =
            metadata::metadata_mut(&mut pod).entry("annotations").or_insert_with(|| json!({}));
        if let Some(slot) = slot.as_object_mut() {
            slot.extend(annotations.clone());
        }
    }
    if let Some(spec) = pod.get_mut("spec").and_then(Value::as_object_mut) {
        spec.insert("nodeName".into(), node.into());
    }
    set_scheduled(&mut pod);
    Ok(pod)
}

/// Sets the condition `PodScheduled` to true.
fn set_scheduled(pod: &mut Value) {
    let condition = json!({"type": "PodScheduled", "status": "True", "lastProbeTime": null, "lastTransitionTime": metadata::now()});
    let Some(map) = pod.as_object_mut() else { return };
    let status = map.entry("status").or_insert_with(|| json!({}));
    let Some(status) = status.as_object_mut() else { return };
    let conditions = status.entry("conditions").or_insert_with(|| json!([]));
    let Some(conditions) = conditions.as_array_mut() else { return };
    match conditions
        .iter_mut()
        .find(|c| c.get("type").and_then(Value::as_str) == Some("PodScheduled"))
    {
        Some(there) => *there = condition,
        None => conditions.push(condition),
    }
}
