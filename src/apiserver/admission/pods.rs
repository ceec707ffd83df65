//! Small plugins for pods and nodes: Priority, DefaultTolerationSeconds, RuntimeClass,
//! TaintNodesByCondition, PodTopologyLabels.

use std::sync::Arc;

use api::Status;
use api::object::BadObject;
use api::value::{ensure_object, entries, get, has, int_at, is_empty, items, set, str_at, str_in};
use async_trait::async_trait;
use serde_json::{Value, json};

use super::service_account::push;
use super::{Operation, Plugin, Request, tolerations};
use crate::response::status::unmapped;
use lookup::Lookup;

/// Objects cannot be listed.
#[derive(Debug, thiserror::Error)]
enum ListError {
    #[error("{}", .0.message)]
    Read(Box<Status>),
    #[error(transparent)]
    Decode(#[from] BadObject),
}

async fn values(lookup: &dyn Lookup, gvr: &api::Gvr) -> Result<Vec<Value>, ListError> {
    let objects = lookup.list(gvr, "").await.map_err(|e| ListError::Read(Box::new(e)))?;
    objects.iter().map(|object| Ok(object.value()?)).collect()
}

/// The reason why a pod is not admitted.
enum Rejection {
    /// A rule rejects it: 403.
    Forbidden(String),
    /// An object that the rule depends on cannot be read: 500, as for plain errors of upstream's
    /// plugins.
    Failed(String),
}

impl From<ClassConflict> for Rejection {
    fn from(conflict: ClassConflict) -> Self {
        Self::Forbidden(conflict.to_string())
    }
}

impl Rejection {
    fn status(self, request: &Request<'_>, object: Option<&Value>) -> Status {
        match self {
            Self::Forbidden(why) => request.forbidden(object, &why),
            Self::Failed(why) => unmapped(500, why),
        }
    }
}

/// Priority: resolves `priorityClassName` to `priority` and `preemptionPolicy`.
pub struct Priority(pub Arc<dyn Lookup>);

impl Priority {
    async fn default_class(&self) -> Result<Option<Value>, ListError> {
        let mut classes = values(&*self.0, &lookup::PRIORITY_CLASSES).await?;
        classes.retain(|class| get(class, "globalDefault") == &json!(true));
        Ok(classes.into_iter().min_by_key(|class| int_at(class, "value").unwrap_or_default()))
    }

    async fn class(&self, name: &str) -> Result<Option<Value>, Rejection> {
        if name.is_empty() {
            return self.default_class().await.map_err(|why| {
                let what = "error occurred while retrieving default priority class";
                Rejection::Failed(format!("{what}: {why}"))
            });
        }
        let found = self.0.get(&lookup::PRIORITY_CLASSES, "", name).await;
        let class = found.and_then(lookup::value).map_err(|error| {
            Rejection::Failed(format!(
                "failed to resolve PriorityClass with name {name}: {}",
                error.message
            ))
        })?;
        match class {
            Some(class) => Ok(Some(class)),
            None => {
                Err(Rejection::Forbidden(format!("no PriorityClass with name {name} was found")))
            }
        }
    }

    async fn resolve(&self, spec: &mut Value) -> Result<(), Rejection> {
        let class = self.class(str_at(spec, "priorityClassName")).await?;
        let (priority, policy) = match &class {
            Some(class) => {
                (int_at(class, "value").unwrap_or_default(), str_at(class, "preemptionPolicy"))
            }
            None => (0, "PreemptLowerPriority"),
        };
        if let Some(class) = class.as_ref().filter(|_| is_empty(spec, "priorityClassName")) {
            let name = str_in(class, &["metadata", "name"]);
            set(spec, "priorityClassName", name);
        }
        if let Some(given) = int_at(spec, "priority").filter(|given| *given != priority) {
            return Err(Rejection::Forbidden(format!(
                "the integer value of priority ({given}) must not be provided in pod spec; priority admission controller computed {priority} from the given PriorityClass name"
            )));
        }
        set(spec, "priority", priority);
        if !policy.is_empty() {
            if let Some(given) =
                get(spec, "preemptionPolicy").as_str().filter(|given| *given != policy)
            {
                return Err(Rejection::Forbidden(format!(
                    "the string value of PreemptionPolicy ({given}) must not be provided in pod spec; priority admission controller computed {policy} from the given PriorityClass name"
                )));
            }
            set(spec, "preemptionPolicy", policy);
        }
        Ok(())
    }
}

#[async_trait]
impl Plugin for Priority {
    fn name(&self) -> &'static str {
        "Priority"
    }

    async fn mutate(
        &self,
        request: &Request<'_>,
        object: &mut Option<Value>,
    ) -> Result<(), Status> {
        if !request.is_pod() {
            return Ok(());
        }
        let Some(spec) = object.as_mut().and_then(|pod| pod.get_mut("spec")) else { return Ok(()) };
        match request.operation {
            Operation::Create => {
                let outcome = self.resolve(spec).await;
                outcome.map_err(|rejection| rejection.status(request, object.as_ref()))
            }
            Operation::Update => {
                let old = request.old.map_or(&Value::Null, |old| get(old, "spec"));
                for field in ["priority", "preemptionPolicy"] {
                    if !has(spec, field) && has(old, field) {
                        set(spec, field, get(old, field).clone());
                    }
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    async fn validate(&self, request: &Request<'_>, object: Option<&Value>) -> Result<(), Status> {
        if !request.is("scheduling.k8s.io", "priorityclasses") || !request.subresource.is_empty() {
            return Ok(());
        }
        let Some(class) = object.filter(|class| get(class, "globalDefault") == &json!(true)) else {
            return Ok(());
        };
        let default = self.default_class().await;
        let default = default
            .map_err(|why| unmapped(500, format!("failed to get default priority class: {why}")))?;
        let Some(default) = default else { return Ok(()) };
        let name = str_in(&default, &["metadata", "name"]);
        let another = name != str_in(class, &["metadata", "name"]);
        if request.operation == Operation::Create
            || request.operation == Operation::Update && another
        {
            let why = format!(
                "PriorityClass {name} is already marked as default. Only one default can exist"
            );
            return Err(request.forbidden(object, &why));
        }
        Ok(())
    }
}

/// DefaultTolerationSeconds: tolerates unready and unreachable nodes for a while unless the pod has
/// its own tolerations.
#[derive(Debug, Clone, Copy)]
pub struct DefaultTolerationSeconds {
    /// The seconds on a node that is not ready.
    pub not_ready: i64,
    /// The seconds on an unreachable node.
    pub unreachable: i64,
}

impl Default for DefaultTolerationSeconds {
    /// Upstream's five minutes.
    fn default() -> Self {
        Self { not_ready: 300, unreachable: 300 }
    }
}

#[async_trait]
impl Plugin for DefaultTolerationSeconds {
    fn name(&self) -> &'static str {
        "DefaultTolerationSeconds"
    }

    async fn mutate(
        &self,
        request: &Request<'_>,
        object: &mut Option<Value>,
    ) -> Result<(), Status> {
        if !request.is_pod() || !matches!(request.operation, Operation::Create | Operation::Update)
        {
            return Ok(());
        }
        let Some(spec) = object.as_mut().and_then(|pod| pod.get_mut("spec")) else { return Ok(()) };
        for (key, seconds) in [
            ("node.kubernetes.io/not-ready", self.not_ready),
            ("node.kubernetes.io/unreachable", self.unreachable),
        ] {
            let tolerated = items(spec, "tolerations").iter().any(|t| {
                (str_at(t, "key") == key || is_empty(t, "key"))
                    && matches!(str_at(t, "effect"), "" | "NoExecute")
            });
            if !tolerated {
                push(
                    spec,
                    "tolerations",
                    json!({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": seconds}),
                );
            }
        }
        Ok(())
    }
}

/// TaintNodesByCondition: taints a new node until its condition is known.
pub struct TaintNodesByCondition;

#[async_trait]
impl Plugin for TaintNodesByCondition {
    fn name(&self) -> &'static str {
        "TaintNodesByCondition"
    }

    async fn mutate(
        &self,
        request: &Request<'_>,
        object: &mut Option<Value>,
    ) -> Result<(), Status> {
        let applies = request.is("", "nodes")
            && request.subresource.is_empty()
            && request.operation == Operation::Create;
        let Some(node) = object.as_mut().filter(|_| applies) else { return Ok(()) };
        let Some(spec) = ensure_object(node, "spec") else { return Ok(()) };
        let key = "node.kubernetes.io/not-ready";
        if !items(spec, "taints")
            .iter()
            .any(|t| str_at(t, "key") == key && str_at(t, "effect") == "NoSchedule")
        {
            push(spec, "taints", json!({"key": key, "effect": "NoSchedule"}));
        }
        Ok(())
    }
}

/// RuntimeClass: sets overhead, node selector and tolerations from the pod's runtime class.
pub struct RuntimeClass(pub Arc<dyn Lookup>);

impl RuntimeClass {
    async fn class(&self, pod: &Value) -> Result<Option<Value>, Rejection> {
        let Some(name) = get(get(pod, "spec"), "runtimeClassName").as_str() else {
            return Ok(None);
        };
        let found = self.0.find(&lookup::RUNTIME_CLASSES, "", name).await;
        let class = found.and_then(lookup::value).map_err(|error| {
            Rejection::Failed(format!("cannot read RuntimeClass {name}: {}", error.message))
        })?;
        match class {
            Some(class) => Ok(Some(class)),
            None => Err(Rejection::Forbidden(format!(
                "pod rejected: RuntimeClass {} not found",
                api::field::go_quote(name)
            ))),
        }
    }
}

/// A pod contradicts its RuntimeClass. The messages are upstream's.
#[derive(Debug, thiserror::Error)]
enum ClassConflict {
    #[error("pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead")]
    Overhead,
    #[error(
        "conflict: runtimeClass.scheduling.nodeSelector[{key}] = {class_value}; \
         pod.spec.nodeSelector[{key}] = {pod_value}"
    )]
    NodeSelector { key: String, class_value: String, pod_value: String },
}

fn same_quantities(a: &Value, b: &Value) -> bool {
    let parsed =
        |v: &Value| -> Option<std::collections::BTreeMap<String, api::quantity::Quantity>> {
            v.as_object()?
                .iter()
                .map(|(k, q)| Some((k.clone(), api::quantity::Quantity::from_value(q).ok()?)))
                .collect()
        };
    parsed(a).unwrap_or_default() == parsed(b).unwrap_or_default()
}

fn apply_class(spec: &mut Value, class: &Value) -> Result<(), ClassConflict> {
    let overhead = get(get(class, "overhead"), "podFixed");
    if !overhead.is_null() {
        if !is_empty(spec, "overhead") && !same_quantities(overhead, get(spec, "overhead")) {
            return Err(ClassConflict::Overhead);
        }
        set(spec, "overhead", overhead.clone());
    }
    let scheduling = get(class, "scheduling");
    if scheduling.is_null() {
        return Ok(());
    }
    for (key, class_value) in entries(scheduling, "nodeSelector") {
        let own = get(get(spec, "nodeSelector"), key);
        if !own.is_null() && own != class_value {
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            return Err(ClassConflict::NodeSelector {
                key: key.clone(),
                class_value: text(class_value),
                pod_value: text(own),
            });
        }
        if let Some(selector) = ensure_object(spec, "nodeSelector") {
            set(selector, key, class_value.clone());
        }
    }
    if !is_empty(scheduling, "tolerations") {
        let merged =
            tolerations::merge(items(spec, "tolerations"), items(scheduling, "tolerations"));
        set(spec, "tolerations", merged);
    }
    Ok(())
}

#[async_trait]
impl Plugin for RuntimeClass {
    fn name(&self) -> &'static str {
        "RuntimeClass"
    }

    async fn mutate(
        &self,
        request: &Request<'_>,
        object: &mut Option<Value>,
    ) -> Result<(), Status> {
        let Some(pod) =
            object.as_mut().filter(|_| request.is_pod() && request.operation == Operation::Create)
        else {
            return Ok(());
        };
        let outcome = match self.class(pod).await {
            Ok(Some(class)) => {
                let applied = pod.get_mut("spec").map_or(Ok(()), |spec| apply_class(spec, &class));
                applied.map_err(Rejection::from)
            }
            Ok(None) => Ok(()),
            Err(rejection) => Err(rejection),
        };
        outcome.map_err(|rejection| rejection.status(request, object.as_ref()))
    }

    async fn validate(&self, request: &Request<'_>, object: Option<&Value>) -> Result<(), Status> {
        let Some(pod) =
            object.filter(|_| request.is_pod() && request.operation == Operation::Create)
        else {
            return Ok(());
        };
        let class = self.class(pod).await.map_err(|rejection| rejection.status(request, object))?;
        let defined = class.as_ref().map_or(&Value::Null, |class| get(class, "overhead"));
        let own = get(get(pod, "spec"), "overhead");
        if defined.is_null() {
            if own.is_null() {
                return Ok(());
            }
            return Err(request.forbidden(object, "pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead"));
        }
        if same_quantities(get(defined, "podFixed"), own) {
            Ok(())
        } else {
            Err(request.forbidden(object, &ClassConflict::Overhead.to_string()))
        }
    }
}

/// PodTopologyLabels: copies zone and region of the node to the labels of a pod at binding.
pub struct PodTopologyLabels(pub Arc<dyn Lookup>);

#[async_trait]
impl Plugin for PodTopologyLabels {
    fn name(&self) -> &'static str {
        "PodTopologyLabels"
    }

    async fn mutate(
        &self,
        request: &Request<'_>,
        object: &mut Option<Value>,
    ) -> Result<(), Status> {
        if request.operation != Operation::Create {
            return Ok(());
        }
        let binds = request.is("", "pods") && request.subresource == "binding"
            || request.is("", "bindings");
        let Some(object) = object.as_mut() else { return Ok(()) };
        let node = if binds && str_in(object, &["target", "kind"]) == "Node" {
            str_in(object, &["target", "name"])
        } else if request.is_pod() {
            str_in(object, &["spec", "nodeName"])
        } else {
            return Ok(());
        };
        if node.is_empty() {
            return Ok(());
        }
        let Some(node) = self.0.get(&lookup::NODES, "", node).await? else { return Ok(()) };
        for key in ["topology.kubernetes.io/zone", "topology.kubernetes.io/region"] {
            let (Some(value), Some(meta)) = (node.label(key), ensure_object(object, "metadata"))
            else {
                continue;
            };
            if let Some(labels) = ensure_object(meta, "labels") {
                set(labels, key, value);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{admit, creates};
    use super::*;
    use lookup::testing::Fixed;

    fn world() -> Arc<Fixed> {
        Fixed::new(&[
            (
                &lookup::PRIORITY_CLASSES,
                json!({"metadata": {"name": "high"}, "value": 1000, "preemptionPolicy": "Never"}),
            ),
            (
                &lookup::RUNTIME_CLASSES,
                json!({"metadata": {"name": "vm"}, "handler": "kata", "overhead": {"podFixed": {"memory": "64Mi"}},
                       "scheduling": {"nodeSelector": {"vm": "yes"}, "tolerations": [{"key": "vm", "operator": "Exists"}]}}),
            ),
        ])
    }

    #[tokio::test]
    async fn priority_is_resolved_from_the_class() {
        let plugin = Priority(world());
        let pod = |spec: Value| json!({"metadata": {"name": "p"}, "spec": spec});
        let run = |spec| admit(&plugin, creates(&lookup::PODS, "Pod"), pod(spec));
        let (plain, _) = run(json!({})).await.unwrap();
        assert_eq!(
            plain["spec"],
            json!({"priority": 0, "preemptionPolicy": "PreemptLowerPriority"})
        );
        let (high, _) = run(json!({"priorityClassName": "high"})).await.unwrap();
        assert_eq!(
            high["spec"],
            json!({"priorityClassName": "high", "priority": 1000, "preemptionPolicy": "Never"})
        );
        let message =
            |e: Result<_, Status>| e.map(|_: (Value, Vec<String>)| ()).unwrap_err().message;
        assert_eq!(
            message(run(json!({"priorityClassName": "none"})).await),
            "pods \"p\" is forbidden: no PriorityClass with name none was found"
        );
        assert_eq!(
            message(run(json!({"preemptionPolicy": ""})).await),
            "pods \"p\" is forbidden: the string value of PreemptionPolicy () must not be provided in pod spec; priority admission controller computed PreemptLowerPriority from the given PriorityClass name"
        );
        assert!(
            message(run(json!({"priority": 7})).await)
                .contains("the integer value of priority (7) must not be provided")
        );
    }

    #[tokio::test]
    async fn default_tolerations_are_added_unless_one_matches() {
        let pod = json!({"metadata": {"name": "p"}, "spec": {"tolerations": [{"key": "node.kubernetes.io/not-ready", "operator": "Exists"}]}});
        let plugin = DefaultTolerationSeconds { unreachable: 7, ..Default::default() };
        let (pod, _) = admit(&plugin, creates(&lookup::PODS, "Pod"), pod).await.unwrap();
        assert_eq!(
            pod["spec"]["tolerations"],
            json!([
                {"key": "node.kubernetes.io/not-ready", "operator": "Exists"},
                {"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 7}
            ])
        );
    }

    #[tokio::test]
    async fn a_runtime_class_sets_overhead_and_scheduling() {
        let plugin = RuntimeClass(world());
        let run = |spec: Value| {
            admit(
                &plugin,
                creates(&lookup::PODS, "Pod"),
                json!({"metadata": {"name": "p"}, "spec": spec}),
            )
        };
        let (pod, _) = run(json!({"runtimeClassName": "vm"})).await.unwrap();
        assert_eq!(pod["spec"]["overhead"], json!({"memory": "64Mi"}));
        assert_eq!(pod["spec"]["nodeSelector"], json!({"vm": "yes"}));
        let none = run(json!({"runtimeClassName": "x"})).await.unwrap_err();
        assert_eq!(
            none.message,
            "pods \"p\" is forbidden: pod rejected: RuntimeClass \"x\" not found"
        );
        let own = run(json!({"overhead": {"cpu": "1"}})).await.unwrap_err();
        assert_eq!(
            own.message,
            "pods \"p\" is forbidden: pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead"
        );
    }
}
