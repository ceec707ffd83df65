//! POST of a pod's `binding`: assigns a pod to a node, once.

use api::Status;
use api::field::{Error, Path};
use api::validation::names::name_is_subdomain;
use http::{Response, StatusCode};
use serde_json::{Value, json};

use crate::registry::metadata;
use crate::request::body::Body;
use crate::request::context::Context;
use crate::request::context::RequestParts;
use crate::request::input;
use crate::request::options::WriteOptions;
use crate::response::encode;
use crate::response::status;
use crate::write::{Write, url_name};

/// Handles a binding.
///
/// # Errors
/// 409 when the pod has a node, is being deleted or has scheduling gates.
pub(super) async fn bind(
    context: &Context,
    exchange: RequestParts,
) -> Result<Response<Body>, Status> {
    let name = url_name(context)?;
    let options = WriteOptions::read(&context.query, "CreateOptions", false)?;
    let kind = api::Gvk::new("", "v1", "Binding");
    let binding = input::object(context, exchange.body, &kind, options.validation).await?;
    bind_pod(context, name, binding, &options).await?;
    encode::value(context, StatusCode::CREATED, &encode::done(201))
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
    if given != name {
        return Err(Status::bad_request("name in URL does not match name in Binding object"));
    }
    let text = |path: &str| binding.pointer(path).and_then(Value::as_str).unwrap_or_default();
    let errors = target_errors(text("/target/kind"), text("/target/name"));
    if !errors.is_empty() {
        let message = if let [one] = errors.as_slice() {
            one.clone()
        } else {
            format!("[{}]", errors.join(", "))
        };
        return Err(status::unmapped(500, message));
    }
    write
        .update(name, None, &mut |pod| {
            preconditions(&write, pod, name, binding)?;
            bind_to_node(pod, name, binding)
        })
        .await
        .map(|_| ())
}

/// `ValidatePodBinding` (`pkg/apis/core/validation`).
fn target_errors(kind: &str, node: &str) -> Vec<String> {
    let mut errors = Vec::new();
    let is_node = matches!(kind, "" | "Node");
    if !is_node {
        errors.push(format!(
            "target.kind: Unsupported value: {}: supported values: \"Node\", \"<empty>\"",
            api::field::go_quote(kind)
        ));
    }
    if node.is_empty() {
        errors.push("target.name: Required value".to_owned());
    } else if is_node {
        let path = Path::new("target").child("name");
        errors.extend(
            name_is_subdomain(node, false)
                .into_iter()
                .map(|why| Error::invalid(&path, node, why).to_string()),
        );
    }
    errors
}

/// Checks that the pod has the uid and resource version of the binding.
fn preconditions(
    write: &Write<'_>,
    pod: &Value,
    name: &str,
    binding: &Value,
) -> Result<(), Status> {
    let fields = [("uid", "UID"), ("resourceVersion", "ResourceVersion")];
    for (field, title) in fields {
        let (wanted, current) = (metadata::text(binding, field), metadata::text(pod, field));
        if !wanted.is_empty() && wanted != current {
            return Err(write.unmet_precondition(name, title, wanted, current));
        }
    }
    Ok(())
}

/// Annotations of the former kind of init containers (`DropInitContainerAnnotations`).
const INIT_CONTAINER_ANNOTATIONS: [&str; 4] = [
    "pod.beta.kubernetes.io/init-containers",
    "pod.alpha.kubernetes.io/init-containers",
    "pod.beta.kubernetes.io/init-container-statuses",
    "pod.alpha.kubernetes.io/init-container-statuses",
];

/// The pod with its node set (`setPodNodeAndMetadata` of `pkg/registry/core/pod/storage`).
fn bind_to_node(pod: &Value, name: &str, binding: &Value) -> Result<Value, Status> {
    let refuse = |why: String| Err(Status::conflict("", "pods/binding", name, &why));
    let node = binding.pointer("/target/name").and_then(Value::as_str).unwrap_or_default();
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
    // Without the resource version, the binding is retried when the pod changes meanwhile.
    metadata::metadata_mut(&mut pod).remove("resourceVersion");
    // Topology labels of the node, which admission sets on the binding.
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
            INIT_CONTAINER_ANNOTATIONS.iter().for_each(|gone| drop(slot.remove(*gone)));
        }
    }
    if let Some(status) = pod.get_mut("status").and_then(Value::as_object_mut) {
        status.remove("nominatedNodeName");
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

#[cfg(test)]
mod tests {
    use super::*;

    /// `ValidatePodBinding` of `pkg/apis/core/validation`.
    #[test]
    fn a_target_is_a_node_with_a_valid_name() {
        const BAD_NAME: &str = "target.name: Invalid value: \"Bad_Node!\": a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
        const BAD_KIND: &str =
            "target.kind: Unsupported value: \"Pod\": supported values: \"Node\", \"<empty>\"";
        let rows: [(&str, &str, &[&str]); 6] = [
            ("", "node-1", &[]),
            ("Node", "node-1.example", &[]),
            ("Node", "", &["target.name: Required value"]),
            ("", "Bad_Node!", &[BAD_NAME]),
            ("Node", "Bad_Node!", &[BAD_NAME]),
            // The name of another kind is not validated.
            ("Pod", "Bad_Node!", &[BAD_KIND]),
        ];
        for (kind, name, expected) in rows {
            assert_eq!(target_errors(kind, name), expected, "{kind} {name}");
        }
    }

    /// `setPodNodeAndMetadata` of `pkg/registry/core/pod/storage`.
    #[test]
    fn only_a_pod_without_node_and_gates_is_bound() {
        let binding = json!({"metadata": {"name": "p"}, "target": {"kind": "Node", "name": "n"}});
        let rows = [
            (json!({"metadata": {}, "spec": {}}), None),
            (
                json!({"metadata": {}, "spec": {"nodeName": "m"}}),
                Some("pod p is already assigned to node \"m\""),
            ),
            (
                json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}, "spec": {}}),
                Some("pod p is being deleted, cannot be assigned to a host"),
            ),
            (
                json!({"metadata": {}, "spec": {"schedulingGates": [{"name": "g"}]}}),
                Some("pod p has non-empty .spec.schedulingGates"),
            ),
        ];
        for (pod, expected) in rows {
            let refused = bind_to_node(&pod, "p", &binding).err().map(|status| status.message);
            let expected = expected
                .map(|why| format!("Operation cannot be fulfilled on pods/binding \"p\": {why}"));
            assert_eq!(refused, expected, "{pod}");
        }
    }

    #[test]
    fn a_bound_pod_has_no_nominated_node_and_no_old_annotations() {
        let pod = json!({"metadata": {"name": "p"}, "spec": {},
            "status": {"nominatedNodeName": "other"}});
        let binding = json!({"metadata": {"name": "p", "labels": {"zone": "z"}, "annotations":
            {"a": "b", "pod.beta.kubernetes.io/init-containers": "[]"}},
            "target": {"kind": "Node", "name": "n"}});
        let pod = bind_to_node(&pod, "p", &binding).unwrap();
        assert_eq!(pod["spec"]["nodeName"], "n");
        assert_eq!(pod["status"].get("nominatedNodeName"), None);
        assert_eq!(
            pod["metadata"],
            json!({"name": "p", "labels": {"zone": "z"}, "annotations": {"a": "b"}})
        );
    }
}
