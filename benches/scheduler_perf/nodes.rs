//! Operations that create nodes and namespaces.

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt};
use http::Method;
use serde_json::{Value, json};

use crate::cluster::WORKERS;
use crate::executor::Executor;
use crate::operation::{CreateNamespaces, CreateNodes, NodeAllocatable};
use crate::template::{self, ObjectTemplate, set};

/// The label with a node's name.
const HOSTNAME: &str = "kubernetes.io/hostname";
/// The annotation of a CSINode with the volume plugins that are migrated.
const MIGRATED_PLUGINS: &str = "storage.alpha.kubernetes.io/migrated-plugins";
/// Digits and letters of generated names.
const ALPHABET: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";

/// Creates nodes with what the strategy of the operation adds to them. Upstream patches the nodes
/// after all are created; what the scheduler places pods on is the same.
pub(crate) async fn create(
    executor: &Executor<'_>,
    op_index: usize,
    op: &CreateNodes,
) -> anyhow::Result<()> {
    let count = executor.params.count(op.count, op.count_param.as_deref())?;
    let template = match &op.node_template_path {
        Some(path) => {
            let params = executor.params.resolve(&op.template_params)?;
            ObjectTemplate::read(&executor.file.resolve(path), &params)?
        }
        None => ObjectTemplate::Fixed(base_node(op_index)),
    };
    let features = declared_features(executor)?;
    let first = executor.reserve_nodes(count);
    let mut nodes = Vec::with_capacity(count);
    for index in 0..count {
        let mut node = template.object(index, count)?;
        prepare(&mut node, first + index, index, op)?;
        if let Some(features) = &features {
            set(&mut node, &["status", "declaredFeatures"], features.clone())?;
        }
        nodes.push(node);
    }
    futures::stream::iter(nodes)
        .map(Ok)
        .try_for_each_concurrent(WORKERS, |node| async move {
            let body = Bytes::from(serde_json::to_vec(&node)?);
            executor.cluster.create("/api/v1/nodes", body).await?;
            if let Some(allocatable) = &op.node_allocatable_strategy {
                create_csi_node(executor, template::name(&node), allocatable).await?;
            }
            Ok(())
        })
        .await
}

/// Upstream's `makeBaseNode`.
fn base_node(op_index: usize) -> Value {
    let resources = json!({"pods": "110", "cpu": "4", "memory": "32Gi"});
    json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"generateName": format!("node-{op_index}-")},
        "status": {
            "capacity": resources, "allocatable": resources, "phase": "Running",
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    })
}

/// Names a node, which upstream does itself, too, and sets its labels. `number` counts the nodes of
/// all operations, `index` those of this one.
fn prepare(node: &mut Value, number: usize, index: usize, op: &CreateNodes) -> anyhow::Result<()> {
    set(node, &["apiVersion"], "v1".into())?;
    set(node, &["kind"], "Node".into())?;
    if template::name(node).is_empty() {
        let prefix = node.pointer("/metadata/generateName").and_then(Value::as_str);
        let name = format!("{}{}", prefix.unwrap_or_default(), suffix(number));
        set(node, &["metadata", "name"], name.into())?;
    }
    let name = template::name(node).to_owned();
    set(node, &["metadata", "labels", HOSTNAME], name.clone().into())?;
    if let Some(labels) = &op.label_node_prepare_strategy {
        let at = index.checked_rem(labels.label_values.len());
        if let Some(value) = at.and_then(|at| labels.label_values.get(at)) {
            set(node, &["metadata", "labels", &labels.label_key], value.as_str().into())?;
        }
    } else if let Some(unique) = &op.unique_node_label_strategy {
        // A name is as unique as the UUID that upstream sets.
        set(node, &["metadata", "labels", &unique.label_key], name.into())?;
    }
    Ok(())
}

/// Five characters that differ for each number below 14 million.
fn suffix(index: usize) -> String {
    let mut rest = index;
    let mut text = String::new();
    for _ in 0..5 {
        let digit = ALPHABET.get(rest % ALPHABET.len()).copied().unwrap_or(b'b');
        text.insert(0, char::from(digit));
        rest /= ALPHABET.len();
    }
    text
}

/// The features that nodes declare, as the hook `updateNodesWithDeclaredFeatures` of upstream's
/// test sets them.
fn declared_features(executor: &Executor<'_>) -> anyhow::Result<Option<Value>> {
    let Some(number) = executor.params.own("numNodeDeclaredFeatures").and_then(Value::as_u64)
    else {
        return Ok(None);
    };
    let mut names: Vec<String> = (1..=number).map(|n| format!("Feature{n}")).collect();
    names.sort();
    executor.note(
        "upstream's test replaces the features that its scheduler infers from pods by as many as \
         the nodes declare; the programs infer their own",
    );
    Ok(Some(serde_json::to_value(names)?))
}

/// Upstream's `NodeAllocatableStrategy.createCSINode`.
async fn create_csi_node(
    executor: &Executor<'_>,
    name: &str,
    op: &NodeAllocatable,
) -> anyhow::Result<()> {
    let drivers: Vec<Value> = op
        .csi_node_allocatable
        .iter()
        .map(|(driver, allocatable)| {
            json!({"name": driver, "nodeID": name, "allocatable": allocatable})
        })
        .collect();
    let node = json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "CSINode",
        "metadata": {
            "name": name, "annotations": {MIGRATED_PLUGINS: op.migrated_plugins.join(",")},
        },
        "spec": {"drivers": drivers},
    });
    let body = Bytes::from(serde_json::to_vec(&node)?);
    executor.cluster.create("/apis/storage.k8s.io/v1/csinodes", body).await?;
    Ok(())
}

/// Creates the namespaces `PREFIX-0` and so on.
pub(crate) async fn create_namespaces(
    executor: &Executor<'_>,
    op: &CreateNamespaces,
) -> anyhow::Result<()> {
    let count = executor.params.count(op.count, op.count_param.as_deref())?;
    let mut namespace = match &op.namespace_template_path {
        Some(path) => crate::config::read_yaml(&executor.file.resolve(path))?,
        None => json!({}),
    };
    set(&mut namespace, &["apiVersion"], "v1".into())?;
    set(&mut namespace, &["kind"], "Namespace".into())?;
    for index in 0..count {
        let name = format!("{}-{index}", op.prefix);
        set(&mut namespace, &["metadata", "name"], name.as_str().into())?;
        post_namespace(executor, &namespace).await?;
        executor.know_namespace(&name);
    }
    Ok(())
}

/// Creates a namespace that has not been created yet.
pub(crate) async fn ensure_namespace(executor: &Executor<'_>, name: &str) -> anyhow::Result<()> {
    if executor.know_namespace(name) {
        let object = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
        post_namespace(executor, &object).await?;
    }
    Ok(())
}

async fn post_namespace(executor: &Executor<'_>, namespace: &Value) -> anyhow::Result<()> {
    let (path, body) = ("/api/v1/namespaces", Bytes::from(serde_json::to_vec(namespace)?));
    let (status, answer) = executor.cluster.call(Method::POST, path, body).await?;
    match status {
        201 | 409 => Ok(()),
        _ => Err(crate::cluster::refused(&Method::POST, path, status, &answer)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operation::{Operation, parse};

    fn nodes(op: Value, count: usize) -> Vec<Value> {
        let parsed = parse(&[op]).unwrap();
        let Some(Operation::CreateNodes(op)) = parsed.first() else { panic!("no nodes") };
        (0..count)
            .map(|index| {
                let mut node = base_node(3);
                prepare(&mut node, 100 + index, index, op).unwrap();
                node
            })
            .collect()
    }

    #[test]
    fn nodes_have_distinct_names_and_their_label() {
        let nodes = nodes(json!({"opcode": "createNodes"}), 60);
        let mut names: Vec<&str> = nodes.iter().map(template::name).collect();
        assert!(names.iter().all(|name| name.starts_with("node-3-") && name.len() == 12));
        for node in &nodes {
            assert_eq!(node["metadata"]["labels"][HOSTNAME], template::name(node));
        }
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), 60);
    }

    #[test]
    fn labels_go_round_over_the_nodes() {
        let op = json!({"opcode": "createNodes", "labelNodePrepareStrategy":
            {"labelKey": "zone", "labelValues": ["a", "b"]}});
        let zones: Vec<_> =
            nodes(op, 3).iter().map(|node| node["metadata"]["labels"]["zone"].clone()).collect();
        assert_eq!(zones, ["a", "b", "a"]);
    }
}
