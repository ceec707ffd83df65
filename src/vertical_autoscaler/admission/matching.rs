//! The autoscaler that controls a pod (`resource/vpa/matcher.go`, `GetControllingVPAForPod`).

use api::selector::LabelSelector;
use async_trait::async_trait;

use crate::policy::pod::{ControllerRef, PodView};
use crate::policy::{has_startup_boost, is_stronger, update_mode};
use crate::types::{UpdateMode, VerticalPodAutoscaler};

/// Why a controller or its selector cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct TargetError(pub String);

/// Reads the controllers of pods.
#[async_trait]
pub trait Targets: Send + Sync {
    /// The top-most well-known or scalable controller at or above `owner`
    /// (`FindTopMostWellKnownOrScalable`); `None` if there is none.
    ///
    /// # Errors
    /// A controller in the chain cannot be read.
    async fn top_most(
        &self,
        namespace: &str,
        owner: &ControllerRef,
    ) -> Result<Option<ControllerRef>, TargetError>;

    /// The selector of the pods of a controller.
    ///
    /// # Errors
    /// The controller cannot be read or has no selector.
    async fn selector(
        &self,
        namespace: &str,
        target: &ControllerRef,
    ) -> Result<LabelSelector, TargetError>;
}

/// The target of an autoscaler.
pub fn target_of(autoscaler: &VerticalPodAutoscaler) -> Option<ControllerRef> {
    let target = autoscaler.spec.target_ref.as_ref()?;
    Some(ControllerRef {
        api_version: target.api_version.clone().unwrap_or_default(),
        kind: target.kind.clone(),
        name: target.name.clone(),
    })
}

/// Whether the target of an autoscaler in the pod's namespace is `controller`. As upstream, the
/// group is not compared.
pub(crate) fn targets(autoscaler: &VerticalPodAutoscaler, controller: &ControllerRef) -> bool {
    let target = autoscaler.spec.target_ref.as_ref();
    target.is_some_and(|target| target.kind == controller.kind && target.name == controller.name)
}

/// The autoscaler whose recommendation a new pod with this top-most controller receives.
/// `autoscalers` are those of the namespace.
pub async fn matching(
    namespace: &str,
    pod: &PodView,
    controller: &ControllerRef,
    autoscalers: Vec<VerticalPodAutoscaler>,
    controllers: &dyn Targets,
) -> Option<VerticalPodAutoscaler> {
    let mut strongest: Option<VerticalPodAutoscaler> = None;
    for autoscaler in autoscalers {
        let is_off = update_mode(&autoscaler) == UpdateMode::Off && !has_startup_boost(&autoscaler);
        if is_off
            || !targets(&autoscaler, controller)
            || strongest.as_ref().is_some_and(|other| !is_stronger(&autoscaler, other))
        {
            continue;
        }
        let Some(target) = target_of(&autoscaler) else { continue };
        match controllers.selector(namespace, &target).await {
            Ok(selector) if selector.matches(&pod.labels) => strongest = Some(autoscaler),
            Ok(_) => {}
            Err(error) => {
                let name = autoscaler.metadata.name.as_deref().unwrap_or_default();
                tracing::debug!(namespace, name, %error, "vertical-autoscaler: no selector");
            }
        }
    }
    strongest
}

#[cfg(test)]
pub(crate) mod testing {
    //! Controllers for tests.

    use super::*;

    /// Each owner is its own top-most controller; all have this selector, or none.
    pub(crate) struct Direct(pub(crate) &'static str);

    #[async_trait]
    impl Targets for Direct {
        async fn top_most(
            &self,
            _: &str,
            owner: &ControllerRef,
        ) -> Result<Option<ControllerRef>, TargetError> {
            Ok(Some(owner.clone()))
        }

        async fn selector(&self, _: &str, _: &ControllerRef) -> Result<LabelSelector, TargetError> {
            match self.0 {
                "" => Err(TargetError("no selector".to_owned())),
                text => LabelSelector::parse(text).map_err(|e| TargetError(e.to_string())),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::testing::Direct;
    use super::*;
    use crate::policy::testing::{self, pod};

    fn autoscaler(name: &str, mut spec: Value, target: Option<&str>) -> VerticalPodAutoscaler {
        if let Some(kind) = target {
            let name = if kind == "StatefulSet" { "sts" } else { "rs" };
            spec["targetRef"] = json!({"apiVersion": "apps/v1", "kind": kind, "name": name});
        }
        let mut autoscaler = testing::autoscaler(spec);
        autoscaler.metadata.name = Some(name.to_owned());
        autoscaler
    }

    fn mode(mode: &str) -> Value {
        json!({"updatePolicy": {"updateMode": mode}})
    }

    /// The cases of `matcher_test.go`.
    #[tokio::test]
    async fn the_autoscaler_of_the_controller_and_selector_matches() {
        let owner = json!([{"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "sts",
            "controller": true}]);
        let owned = pod(json!({"metadata": {"labels": {"app": "test"}, "ownerReferences": owner}}));
        let target = Some("StatefulSet");
        let boost = json!({"cpu": {"type": "Factor", "factor": 1}});
        let recreate = || autoscaler("recreate", mode("Recreate"), target);
        let off = || autoscaler("off", mode("Off"), target);
        let with = |mut spec: Value| {
            spec["startupBoost"] = boost.clone();
            spec
        };
        let mut container = mode("Off");
        container["resourcePolicy"] = json!({"containerPolicies": [
            {"containerName": "i-am-container", "startupBoost": boost}]});
        for (autoscalers, selector, expected) in [
            (vec![recreate()], "app = test", Some("recreate")),
            (vec![autoscaler("a", mode("Recreate"), None)], "app = test", None),
            (vec![autoscaler("a", json!({}), Some("ReplicaSet"))], "app = test", None),
            (vec![recreate()], "app = differentApp", None),
            (vec![recreate()], "", None),
            (vec![off()], "app = test", None),
            (vec![off(), recreate()], "app = test", Some("recreate")),
            (vec![autoscaler("i", mode("Initial"), target)], "app = test", Some("i")),
            (vec![], "app = test", None),
            (vec![autoscaler("b", with(mode("Off")), target)], "app = test", Some("b")),
            (vec![autoscaler("c", container, target)], "app = test", Some("c")),
            (vec![autoscaler("d", with(json!({})), target)], "app = test", Some("d")),
            (vec![recreate(), autoscaler("first", json!({}), target)], "app = test", Some("first")),
        ] {
            let (controller, targets) = (owned.controller.as_ref().unwrap(), Direct(selector));
            let found = matching("default", &owned, controller, autoscalers, &targets).await;
            assert_eq!(found.and_then(|f| f.metadata.name).as_deref(), expected);
        }
    }
}
