//! PodResizeValidator: refuses to resize a pod beyond what its node has for pods
//! (`plugin/pkg/admission/podresize`).

use std::sync::Arc;

use api::Status;
use api::field::go_quote;
use api::quantity::Quantity;
use api::status::Cause;
use api::value::{get, str_in};
use async_trait::async_trait;
use lookup::Lookup;
use serde_json::Value;

use super::pod_resources::{Amounts, Side, amounts, total_with_overhead};
use super::{Operation, Plugin, Request};

/// The plugin.
pub struct PodResizeValidator(pub Arc<dyn Lookup>);

/// Why a node cannot have the resized pod.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
enum ResizeError {
    #[error("pod resize is only supported on linux nodes, node {} is {}", go_quote(.0), go_quote(.1))]
    Platform(String, String),
    #[error("node didn't have enough allocatable resources: {}", .0.join("; "))]
    Capacity(Vec<String>),
}

impl ResizeError {
    /// The reason of the cause in the details of the Status.
    fn cause(&self) -> &'static str {
        match self {
            Self::Platform(..) => "UnsupportedPlatform",
            Self::Capacity(_) => "NodeCapacity",
        }
    }
}

#[async_trait]
impl Plugin for PodResizeValidator {
    fn name(&self) -> &'static str {
        "PodResizeValidator"
    }

    async fn validate(&self, request: &Request<'_>, object: Option<&Value>) -> Result<(), Status> {
        let is_resize = request.operation == Operation::Update
            && request.is("", "pods")
            && request.subresource == "resize";
        let Some((pod, old)) = object.zip(request.old).filter(|_| is_resize) else {
            return Ok(());
        };
        let (spec, name) = (get(pod, "spec"), str_in(pod, &["spec", "nodeName"]));
        if name.is_empty() || spec == get(old, "spec") {
            return Ok(());
        }
        let node = self.0.get(&lookup::NODES, "", name).await.and_then(lookup::value)?;
        let Some(node) = node else {
            let why = format!("node {} not found", go_quote(name));
            return Err(request.forbidden(object, &why));
        };
        check(spec, &node).map_err(|error| {
            let mut status = request.forbidden(object, &error.to_string());
            let cause = Cause { reason: error.cause().to_owned(), ..Cause::default() };
            status.details.get_or_insert_default().causes.push(cause);
            status
        })
    }
}

/// Compares the requests of a pod with the allocatable resources of its node.
fn check(spec: &Value, node: &Value) -> Result<(), ResizeError> {
    let system = str_in(node, &["metadata", "labels", "kubernetes.io/os"]);
    if !system.is_empty() && system != "linux" {
        let name = str_in(node, &["metadata", "name"]);
        return Err(ResizeError::Platform(name.to_owned(), system.to_owned()));
    }
    let requests = total_with_overhead(spec, Side::Requests);
    let allocatable = amounts(get(node, "status"), "allocatable");
    let compared = |name: &str| {
        let of = |amounts: &Amounts| amounts.get(name).copied().unwrap_or(Quantity::ZERO);
        let (requested, allocatable) = (of(&requests), of(&allocatable));
        (requested > allocatable).then_some((requested, allocatable))
    };
    let text = |name: &str, requested: i64, allocatable: i64| {
        format!("{name}, requested: {requested}, allocatable: {allocatable}")
    };
    let cpu = compared("cpu").map(|(r, a)| text("cpu", r.milli_value(), a.milli_value()));
    let memory = compared("memory").map(|(r, a)| text("memory", r.value(), a.value()));
    let short: Vec<String> = cpu.into_iter().chain(memory).collect();
    if short.is_empty() { Ok(()) } else { Err(ResizeError::Capacity(short)) }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Ask, admit, creates};
    use super::*;
    use lookup::testing::Fixed;
    use serde_json::json;

    fn pod(node: &str, cpu: &str, memory: &str) -> Value {
        json!({"metadata": {"name": "test-pod"}, "spec": {"nodeName": node, "containers": [
            {"name": "main", "resources": {"requests": {"cpu": cpu, "memory": memory}}}]}})
    }

    /// Two nodes with four CPUs and 8 GiB of memory.
    fn world() -> Arc<Fixed> {
        let node = |name: &str, os: &str| {
            json!({"metadata": {"name": name, "labels": {"kubernetes.io/os": os}},
                "status": {"allocatable": {"cpu": "4", "memory": "8Gi"}}})
        };
        Fixed::new(&[
            (&lookup::NODES, node("linux-node", "linux")),
            (&lookup::NODES, node("windows-node", "windows")),
        ])
    }

    /// The cases of upstream's `TestPodResizeValidator`.
    #[tokio::test]
    async fn a_pod_is_not_resized_beyond_what_its_node_has() {
        let plugin = PodResizeValidator(world());
        let low = "node didn't have enough allocatable resources: ";
        for (node, subresource, cpu, memory, want) in [
            ("linux-node", "resize", "2", "1Gi", None),
            ("linux-node", "resize", "1", "2Gi", None),
            ("linux-node", "", "10", "1Gi", None),
            ("", "resize", "10", "1Gi", None),
            (
                "linux-node",
                "resize",
                "10",
                "1Gi",
                Some(("NodeCapacity", format!("{low}cpu, requested: 10000, allocatable: 4000"))),
            ),
            (
                "linux-node",
                "resize",
                "10",
                "10Gi",
                Some((
                    "NodeCapacity",
                    format!(
                        "{low}cpu, requested: 10000, allocatable: 4000; memory, requested: \
                         10737418240, allocatable: 8589934592"
                    ),
                )),
            ),
            (
                "windows-node",
                "resize",
                "2",
                "1Gi",
                Some((
                    "UnsupportedPlatform",
                    "pod resize is only supported on linux nodes, node \"windows-node\" is \
                     \"windows\""
                        .to_owned(),
                )),
            ),
            ("missing", "resize", "2", "1Gi", Some(("", "node \"missing\" not found".to_owned()))),
        ] {
            let ask = Ask {
                operation: Operation::Update,
                subresource,
                old: Some(pod(node, "1", "1Gi")),
                ..creates(&lookup::PODS, "Pod")
            };
            let outcome = admit(&plugin, ask, pod(node, cpu, memory)).await.map(drop);
            let Some((reason, message)) = want else {
                assert_eq!(outcome, Ok(()));
                continue;
            };
            let status = outcome.unwrap_err();
            let full = format!("pods \"test-pod\" is forbidden: {message}");
            assert_eq!((status.code, status.message), (403, full));
            let causes = status.details.unwrap_or_default().causes;
            assert_eq!(causes.first().map_or("", |cause| cause.reason.as_str()), reason);
        }
    }

    #[tokio::test]
    async fn a_pod_whose_specification_does_not_change_is_not_compared() {
        let plugin = PodResizeValidator(world());
        let large = || pod("linux-node", "10", "1Gi");
        let resize = Ask {
            operation: Operation::Update,
            subresource: "resize",
            old: Some(large()),
            ..creates(&lookup::PODS, "Pod")
        };
        admit(&plugin, resize, large()).await.unwrap();
    }
}
