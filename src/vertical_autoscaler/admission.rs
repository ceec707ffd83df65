//! Admission: writes recommendations into new pods, and sets defaults of and validates autoscalers
//! (`pkg/admission-controller`).

pub mod matching;
pub mod startup_boost;
pub mod validation;

use std::collections::BTreeMap;

use api::value::{ensure_object, has, items_mut, set};
use serde_json::Value;

use crate::policy::amounts::Amounts;
use crate::policy::limit_range::LimitRanges;
use crate::policy::pod::PodView;
use crate::policy::resources::{ContainerResources, pod_resources};
use crate::policy::{Features, is_scaling_off, update_mode};
use crate::types::{UpdateMode, VerticalPodAutoscaler};
use startup_boost::BoostError;

/// The annotation with the changes to a pod.
pub const UPDATES_ANNOTATION: &str = "vpaUpdates";
/// The annotation with the containers that the pod had at admission.
pub const OBSERVED_ANNOTATION: &str = "vpaObservedContainers";
/// Separates the containers in [`OBSERVED_ANNOTATION`].
pub(crate) const LIST_SEPARATOR: &str = ", ";

/// Writes the recommendation of the autoscaler that controls `pod` into it: requests and limits of
/// the containers (init containers stay as they are), the startup boost, and annotations.
///
/// # Errors
/// A startup boost that cannot be computed; the pod is unchanged.
pub fn patch_pod(
    pod: &mut Value,
    autoscaler: &VerticalPodAutoscaler,
    ranges: &LimitRanges,
    features: Features,
) -> Result<(), BoostError> {
    let view = PodView::read(pod);
    let (mut resources, mut notes) = pod_resources(&view, autoscaler, ranges);
    if update_mode(autoscaler) == UpdateMode::Off {
        // Only the startup boost applies.
        resources.iter_mut().for_each(|own| *own = ContainerResources::default());
        notes.clear();
    }
    let mut annotations = BTreeMap::new();
    let (mut changes, mut updates) = (Vec::new(), Vec::new());
    for (index, (container, mut own)) in view.containers.iter().zip(resources).enumerate() {
        if features.cpu_startup_boost {
            if is_scaling_off(&container.name, autoscaler.spec.resource_policy.as_ref()) {
                continue;
            }
            annotations.extend(startup_boost::apply(container, autoscaler, &mut own)?);
        }
        let current = container.current();
        let lacks_both = current.requests.is_none() && current.limits.is_none();
        if !lacks_both && own.requests.is_empty() && own.limits.is_empty() {
            continue;
        }
        let mut texts = notes.remove(&container.name).unwrap_or_default();
        texts.extend(own.requests.keys().map(|name| format!("{name} request")));
        texts.extend(own.limits.keys().map(|name| format!("{name} limit")));
        updates.push(format!("container {index}: {}", texts.join(", ")));
        changes.push((index, own));
    }
    if !updates.is_empty() {
        let name = autoscaler.metadata.name.as_deref().unwrap_or_default();
        let text = format!("Pod resources updated by {name}: {}", updates.join("; "));
        annotations.insert(UPDATES_ANNOTATION.to_owned(), text);
    }
    let observed: Vec<&str> = view.containers.iter().map(|c| c.name.as_str()).collect();
    annotations.insert(OBSERVED_ANNOTATION.to_owned(), observed.join(LIST_SEPARATOR));
    write(pod, changes, annotations);
    Ok(())
}

fn write(
    pod: &mut Value,
    changes: Vec<(usize, ContainerResources)>,
    annotations: BTreeMap<String, String>,
) {
    if let Some(spec) = pod.get_mut("spec") {
        let containers = items_mut(spec, "containers");
        for (index, own) in changes {
            let container = containers.get_mut(index);
            let Some(resources) = container.and_then(|c| ensure_object(c, "resources")) else {
                continue;
            };
            set_amounts(resources, "requests", &own.requests);
            set_amounts(resources, "limits", &own.limits);
        }
    }
    let meta = ensure_object(pod, "metadata");
    if let Some(own) = meta.and_then(|meta| ensure_object(meta, "annotations")) {
        for (key, text) in annotations {
            set(own, &key, text);
        }
    }
}

fn set_amounts(resources: &mut Value, field: &str, amounts: &Amounts) {
    if amounts.is_empty() {
        return;
    }
    if let Some(list) = ensure_object(resources, field) {
        for (name, amount) in amounts {
            set(list, name, amount.to_string());
        }
    }
}

/// Sets the default of an autoscaler's `spec.updatePolicy`.
pub fn set_defaults(autoscaler: &mut Value) {
    let spec = autoscaler.get_mut("spec").filter(|spec| spec.is_object());
    if let Some(spec) = spec.filter(|spec| !has(spec, "updatePolicy")) {
        set(spec, "updatePolicy", serde_json::json!({"updateMode": "Recreate"}));
    }
}

#[cfg(test)]
mod tests;
