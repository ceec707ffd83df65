//! `metrics.k8s.io`: what nodes and pods use, as metrics-server's API serves it (its `pkg/api`).
//! Nothing is stored: each object is built from a Node or Pod and its last measurement.

use std::sync::Arc;

use api::codec::time::duration_text;
use api::{Object, Quantity, Status};
use http::{Response, StatusCode};
use jiff::Timestamp;
use resource_metrics::{PodKey, Store};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::registry::selection::Selection;
use crate::registry::watch_cache::{Cache, Filter};
use crate::request::body::Body;
use crate::request::context::Context;
use crate::response::encode;
use crate::response::encode::ListHead;

/// Handles a get or list.
///
/// # Errors
/// 400 for an invalid selector, 404 for what does not exist or has no measurements yet.
pub(super) async fn serve(context: &Context) -> Result<Response<Body>, Status> {
    context.accept()?;
    let Some(store) = context.server.resource_metrics.get() else {
        return Err(crate::response::status::no_resource());
    };
    let of_pods = context.row.spec.namespaced;
    let gvr = if of_pods { &*lookup::PODS } else { &*lookup::NODES };
    let objects = &context.server.objects;
    let cache = objects.loaded_cache(&objects.row(gvr)?).await?;
    let build = |object: &Arc<Object>| match of_pods {
        true => pod_metrics(store, object),
        false => node_metrics(store, object),
    };
    let name = context.info.path_name.as_str();
    if name.is_empty() {
        let items = list(context, &cache)?;
        let items: Result<Vec<_>, _> = items.iter().filter_map(build).map(typed).collect();
        return encode::list(context, &ListHead::default(), items?).await;
    }
    let source = cache.get(context.namespace(), name);
    let source = source.ok_or_else(|| Status::not_found("", &gvr.resource, name))?;
    let Some(value) = build(&source) else {
        return Err(match of_pods {
            true => {
                let name = format!("{}/{name}", context.namespace());
                Status::not_found("metrics.k8s.io", "podmetrics", &name)
            }
            false => Status::not_found("metrics.k8s.io", "nodemetrics", name),
        });
    };
    encode::object(context, StatusCode::OK, &typed(value)?)
}

/// The Nodes or Pods that the request selects.
fn list(context: &Context, cache: &Cache) -> Result<Vec<Arc<Object>>, Status> {
    let given = |name: &str| context.query.get(name).unwrap_or_default();
    let selection = Selection::parse(&context.row, given("labelSelector"), given("fieldSelector"))?;
    let name = selection.exact_name().unwrap_or_default();
    let filter = Filter { namespace: context.namespace().to_owned(), name, selection };
    Ok(cache.list(&filter, None, 0).items)
}

fn typed(value: Value) -> Result<Arc<Object>, Status> {
    Object::from_value(value).map(Arc::new).map_err(|e| Status::internal(&e.to_string()))
}

/// `NodeMetrics`; `None` before the second measurement.
fn node_metrics(store: &Store, node: &Arc<Object>) -> Option<Value> {
    let usage = store.node(&node.key.name)?;
    Some(json!({
        "kind": "NodeMetrics", "apiVersion": "metrics.k8s.io/v1beta1",
        "metadata": metadata(node),
        "timestamp": timestamp(usage.at),
        "window": duration_text(usage.window),
        "usage": resources(usage.cpu, usage.memory),
    }))
}

/// The node of a pod.
#[derive(Deserialize)]
struct Placed {
    spec: PlacedSpec,
}

#[derive(Deserialize)]
struct PlacedSpec {
    #[serde(rename = "nodeName", default)]
    node_name: String,
}

/// `PodMetrics`; `None` unless every running container was measured twice.
fn pod_metrics(store: &Store, pod: &Arc<Object>) -> Option<Value> {
    let placed: Placed = serde_json::from_slice(pod.raw()).ok()?;
    let key = PodKey { namespace: pod.key.namespace.to_string(), name: pod.key.name.to_string() };
    let usage = store.pod(&placed.spec.node_name, &key)?;
    let containers: Vec<Value> = usage
        .containers
        .iter()
        .map(|(name, usage)| json!({"name": name, "usage": resources(usage.cpu, usage.memory)}))
        .collect();
    Some(json!({
        "kind": "PodMetrics", "apiVersion": "metrics.k8s.io/v1beta1",
        "metadata": metadata(pod),
        "timestamp": timestamp(usage.at),
        "window": duration_text(usage.window),
        "containers": containers,
    }))
}

/// Name, namespace and labels of the object; it is created by this request.
fn metadata(object: &Object) -> Value {
    let mut metadata = Map::new();
    metadata.insert("name".into(), (*object.key.name).into());
    if !object.key.namespace.is_empty() {
        metadata.insert("namespace".into(), (*object.key.namespace).into());
    }
    metadata.insert("creationTimestamp".into(), crate::registry::metadata::now().into());
    if !object.labels.is_empty() {
        let labels = object.labels.iter().map(|(k, v)| (k.to_string(), Value::from(&**v)));
        metadata.insert("labels".into(), Value::Object(labels.collect()));
    }
    Value::Object(metadata)
}

/// A time in nanoseconds since the epoch as a `metav1.Time`.
fn timestamp(nanoseconds: i64) -> String {
    let time = Timestamp::from_second(nanoseconds.div_euclid(1_000_000_000));
    time.unwrap_or(Timestamp::UNIX_EPOCH).to_string()
}

/// CPU in nanocores and memory in bytes as a `ResourceList`.
fn resources(cpu: u64, memory: u64) -> Value {
    let cpu = Quantity::parse(&format!("{cpu}n")).unwrap_or(Quantity::ZERO);
    let memory = Quantity::bytes(i64::try_from(memory).unwrap_or(i64::MAX));
    json!({"cpu": cpu.to_string(), "memory": memory.to_string()})
}

#[cfg(test)]
mod tests {
    use resource_metrics::{Point, Sample};

    use super::*;

    const SECOND: i64 = 1_000_000_000;

    fn store() -> Store {
        let store = Store::default();
        for (at, cpu_ns) in [(1_700_000_000, 1), (1_700_000_015, 1_500_000_001 + 15)] {
            let point = |started| Point { started, at: at * SECOND + 7, cpu_ns, memory: 20 << 20 };
            let key = PodKey { namespace: "d".into(), name: "p".into() };
            store.put("n", Sample::new(point(0), [(key, "c".into(), point(SECOND))]));
        }
        store
    }

    /// metrics-server's answers: CPU in `n`, memory in `Ki` where exact, Go's duration.
    #[test]
    fn objects_have_the_form_of_metrics_server() {
        let object = |value| Arc::new(Object::from_value(value).unwrap());
        let node = object(json!({"kind": "Node", "apiVersion": "v1",
            "metadata": {"name": "n", "labels": {"a": "b"}}}));
        let mut value = node_metrics(&store(), &node).unwrap();
        assert!(value["metadata"]["creationTimestamp"].take().is_string());
        assert_eq!(
            value,
            json!({"kind": "NodeMetrics", "apiVersion": "metrics.k8s.io/v1beta1",
                "metadata": {"name": "n", "creationTimestamp": null, "labels": {"a": "b"}},
                "timestamp": "2023-11-14T22:13:35Z", "window": "15s",
                "usage": {"cpu": "100000001n", "memory": "20Mi"}})
        );
        let pod = |node: &str| {
            object(json!({"kind": "Pod", "apiVersion": "v1",
                "metadata": {"name": "p", "namespace": "d"}, "spec": {"nodeName": node}}))
        };
        let value = pod_metrics(&store(), &pod("n")).unwrap();
        assert_eq!(
            value["containers"],
            json!([{"name": "c", "usage": {"cpu": "100000001n", "memory": "20Mi"}}])
        );
        assert_eq!(value["metadata"]["namespace"], "d");
        assert!(pod_metrics(&store(), &pod("m")).is_none(), "measured on another node");
    }

    #[test]
    fn quantities_are_canonical() {
        assert_eq!(resources(250_000_000, 1000), json!({"cpu": "250m", "memory": "1k"}));
        assert_eq!(resources(0, 1023), json!({"cpu": "0", "memory": "1023"}));
        assert_eq!(resources(1_234_000, 5 << 10), json!({"cpu": "1234u", "memory": "5Ki"}));
    }
}
