//! `/runningpods`: the pods whose sandbox or containers the runtime reports as running, with the
//! little that it says about them (upstream's `ToAPIPod`).

use std::collections::BTreeMap;

use http::{Response, StatusCode};
use proto::runtime::v1 as cri;
use serde_json::{Value, json};
use sorting::CompactSort as _;

use super::response::{Body, response, text_response};
use super::state::KubeletApi;
use crate::pods::observed::label;

/// A pod of the runtime.
#[derive(Debug, Default)]
struct RunningPod {
    name: String,
    namespace: String,
    /// When its oldest sandbox that is ready was created, in nanoseconds since the epoch.
    created_at: i64,
    /// Names and images of its containers, the newest first.
    containers: Vec<(String, String)>,
}

/// Serves the list.
pub(super) async fn serve(api: &KubeletApi) -> Response<Body> {
    let runtime = &api.node.runtime.cri;
    let listed = futures::try_join!(runtime.sandboxes(None), runtime.containers(None));
    match listed {
        Ok((sandboxes, containers)) => {
            let list = pod_list(sandboxes, containers);
            response(StatusCode::OK, "application/json", list.to_string())
        }
        Err(error) => text_response(StatusCode::INTERNAL_SERVER_ERROR, error.grpc_text()),
    }
}

/// The list of pods, the newest first.
fn pod_list(mut sandboxes: Vec<cri::PodSandbox>, mut containers: Vec<cri::Container>) -> Value {
    let mut pods: BTreeMap<String, RunningPod> = BTreeMap::new();
    sandboxes.retain(|s| s.state() == cri::PodSandboxState::SandboxReady);
    sandboxes.compact_sort_by(|a, b| b.created_at.cmp(&a.created_at).then_with(|| a.id.cmp(&b.id)));
    for sandbox in sandboxes {
        let Some(metadata) = sandbox.metadata else { continue };
        let pod = pods.entry(metadata.uid).or_default();
        (pod.name, pod.namespace) = (metadata.name, metadata.namespace);
        pod.created_at = sandbox.created_at;
    }
    containers.retain(|c| c.state() == cri::ContainerState::ContainerRunning);
    containers
        .compact_sort_by(|a, b| b.created_at.cmp(&a.created_at).then_with(|| a.id.cmp(&b.id)));
    for container in containers {
        let of = |name: &str| container.labels.get(name).cloned().unwrap_or_default();
        let pod = pods.entry(of(label::POD_UID)).or_insert_with(|| RunningPod {
            name: of(label::POD_NAME),
            namespace: of(label::POD_NAMESPACE),
            ..RunningPod::default()
        });
        let name = container.metadata.map(|metadata| metadata.name).unwrap_or_default();
        pod.containers.push((name, container.image.map(|image| image.image).unwrap_or_default()));
    }
    let mut pods: Vec<(String, RunningPod)> = pods.into_iter().collect();
    pods.compact_sort_by(|(_, a), (_, b)| b.created_at.cmp(&a.created_at));
    let items: Vec<Value> = pods.into_iter().map(|(uid, pod)| object(&uid, pod)).collect();
    json!({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": items})
}

fn object(uid: &str, pod: RunningPod) -> Value {
    let container = |(name, image)| json!({"name": name, "image": image, "resources": {}});
    let containers: Vec<Value> = pod.containers.into_iter().map(container).collect();
    // Go writes a list without elements that was never set as null.
    let containers = if containers.is_empty() { Value::Null } else { containers.into() };
    json!({
        "metadata": {"name": pod.name, "namespace": pod.namespace, "uid": uid},
        "spec": {"containers": containers},
        "status": {},
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_runs_is_listed() {
        let sandbox = |uid: &str, ready: bool, created_at| cri::PodSandbox {
            id: format!("s-{uid}"),
            metadata: Some(cri::PodSandboxMetadata {
                name: uid.to_uppercase(),
                uid: uid.to_owned(),
                namespace: "d".to_owned(),
                attempt: 0,
            }),
            state: if ready { 0 } else { 1 },
            created_at,
            ..cri::PodSandbox::default()
        };
        let container = |uid: &str, name: &str, state: cri::ContainerState, created_at| {
            let labels =
                [(label::POD_UID, uid), (label::POD_NAME, "N"), (label::POD_NAMESPACE, "d")];
            cri::Container {
                id: format!("c-{name}"),
                metadata: Some(cri::ContainerMetadata { name: name.to_owned(), attempt: 0 }),
                image: Some(cri::ImageSpec { image: "i:1".to_owned(), ..Default::default() }),
                state: state.into(),
                created_at,
                labels: labels.map(|(k, v)| (k.to_owned(), v.to_owned())).into(),
                ..cri::Container::default()
            }
        };
        let running = cri::ContainerState::ContainerRunning;
        let list = pod_list(
            vec![sandbox("a", true, 1), sandbox("b", false, 2), sandbox("c", true, 3)],
            vec![
                container("a", "one", running, 5),
                container("a", "two", running, 6),
                container("a", "done", cri::ContainerState::ContainerExited, 7),
                container("orphan", "three", running, 8),
            ],
        );
        let container = |name: &str| json!({"name": name, "image": "i:1", "resources": {}});
        let pod = |name: &str, uid: &str, containers: Value| {
            json!({"metadata": {"name": name, "namespace": "d", "uid": uid},
                "spec": {"containers": containers}, "status": {}})
        };
        assert_eq!(
            list,
            json!({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": [
                pod("C", "c", Value::Null),
                pod("A", "a", json!([container("two"), container("one")])),
                pod("N", "orphan", json!([container("three")])),
            ]})
        );
    }
}
