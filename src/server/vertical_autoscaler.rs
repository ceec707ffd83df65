//! The admission of the vertical pod autoscaler as a plugin of the API server: it does what
//! upstream's admission webhook does.

mod controllers;

use std::sync::Arc;

use api::{Object, Status};
use apiserver::admission::{Operation, Plugin, Request};
use async_trait::async_trait;
use lookup::Lookup;
use serde_json::Value;
use vertical_autoscaler::admission::matching::{TargetError, Targets as _, matching};
use vertical_autoscaler::admission::startup_boost::BoostError;
use vertical_autoscaler::admission::validation::validate;
use vertical_autoscaler::admission::{patch_pod, set_defaults};
use vertical_autoscaler::policy::Features;
use vertical_autoscaler::policy::limit_range::LimitRanges;
use vertical_autoscaler::policy::pod::{ControllerRef, PodView};
use vertical_autoscaler::types::{GROUP, VerticalPodAutoscaler, autoscalers};

use controllers::LookupControllers;

/// The kind that is validated.
const KIND: &str = "VerticalPodAutoscaler";
/// Begins the message of a rejection, as that of upstream's webhook.
const DENIED: &str = "admission webhook \"vpa.k8s.io\" denied the request: ";

/// The plugin. It is in the chain only if the vertical pod autoscaler is enabled.
pub(crate) struct Admission {
    lookup: Arc<dyn Lookup>,
}

/// Why a pod is created without a recommendation.
#[derive(Debug, thiserror::Error)]
enum PodError {
    #[error("cannot read objects: {0}")]
    Read(String),
    #[error(transparent)]
    Target(#[from] TargetError),
    #[error(transparent)]
    Boost(#[from] BoostError),
}

impl From<Status> for PodError {
    fn from(status: Status) -> Self {
        Self::Read(status.message)
    }
}

impl Admission {
    /// Creates the plugin.
    pub(crate) fn new(lookup: Arc<dyn Lookup>) -> Self {
        Self { lookup }
    }

    /// The autoscalers of a namespace whose target may be `controller`. Only objects with its name
    /// are decoded, because a namespace may have many.
    fn with_target(
        objects: &[Arc<Object>],
        controller: &ControllerRef,
    ) -> Vec<VerticalPodAutoscaler> {
        let named = objects.iter().filter(|object| {
            std::str::from_utf8(object.raw()).is_ok_and(|text| text.contains(&*controller.name))
        });
        let decoded = named.filter_map(|object| {
            let decoded = serde_json::from_slice(&object.json());
            if let Err(error) = &decoded {
                tracing::warn!(object = %object.key, %error, "vertical-autoscaler: cannot decode");
            }
            decoded.ok()
        });
        decoded.collect()
    }

    async fn recommend(&self, namespace: &str, pod: &mut Value) -> Result<(), PodError> {
        let objects = self.lookup.list(&autoscalers(), namespace).await?;
        if objects.is_empty() {
            return Ok(());
        }
        let view = PodView::read(pod);
        let controllers = LookupControllers::new(&*self.lookup);
        let Some(owner) = &view.controller else { return Ok(()) };
        let controller = controllers.top_most(namespace, owner).await?;
        let Some(controller) = controller else { return Ok(()) };
        let autoscalers = Self::with_target(&objects, &controller);
        let found = matching(namespace, &view, &controller, autoscalers, &controllers).await;
        let Some(autoscaler) = found else { return Ok(()) };
        let ranges = self.lookup.list(&lookup::LIMIT_RANGES, namespace).await?;
        let ranges: Vec<Value> = ranges.iter().filter_map(|range| range.value().ok()).collect();
        patch_pod(pod, &autoscaler, &LimitRanges::merge(ranges.iter()), Features::ALL)?;
        Ok(())
    }
}

/// Validates an autoscaler and sets its defaults.
fn admit_autoscaler(request: &Request<'_>, autoscaler: &mut Value) -> Result<(), Status> {
    let validation = validate(autoscaler, request.old, Features::ALL);
    for warning in validation.warnings {
        request.warn(warning);
    }
    if validation.errors.is_empty() {
        set_defaults(autoscaler);
        return Ok(());
    }
    let mut status = Status::invalid(GROUP, KIND, request.name, &validation.errors);
    status.message = format!("{DENIED}{}", status.message);
    Err(status)
}

#[async_trait]
impl Plugin for Admission {
    fn name(&self) -> &'static str {
        "VerticalPodAutoscaler"
    }

    async fn mutate(
        &self,
        request: &Request<'_>,
        object: &mut Option<Value>,
    ) -> Result<(), Status> {
        let Some(object) = object.as_mut().filter(|_| request.subresource.is_empty()) else {
            return Ok(());
        };
        let is_create = request.operation == Operation::Create;
        if is_create && request.is("", "pods") {
            // As the failure policy `Ignore` of upstream's webhook.
            if let Err(error) = self.recommend(request.namespace, object).await {
                let namespace = request.namespace;
                tracing::warn!(namespace, %error, "vertical-autoscaler: pod has no recommendation");
            }
            return Ok(());
        }
        let is_write = is_create || request.operation == Operation::Update;
        if is_write && request.gvr == &autoscalers() {
            return admit_autoscaler(request, object);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
