//! The controllers of pods: the selector of the target of an autoscaler, and the top-most
//! controller of an object (upstream's `target` and `target/controller_fetcher`).

mod cluster;

use std::collections::HashSet;
use std::sync::Arc;

use api::Object;
use api::k8s::api::autoscaling::v1::CrossVersionObjectReference;
use api::k8s::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use api::selector::{LabelSelector, SelectorError};
use client::controller_of;
use serde::Deserialize;
use serde_json::Value;

pub use cluster::{ClusterControllers, Lookup};

/// An owner that no autoscaler may have: the server does not look it up.
const NODE: &str = "Node";

/// The name of a controller.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ControllerKey {
    /// Its namespace.
    pub namespace: String,
    /// Its `apiVersion`.
    pub api_version: String,
    /// Its kind.
    pub kind: String,
    /// Its name.
    pub name: String,
}

impl ControllerKey {
    /// The controller that an autoscaler in this namespace names.
    pub fn of_target(namespace: &str, target: &CrossVersionObjectReference) -> Self {
        Self {
            namespace: namespace.to_owned(),
            api_version: target.api_version.clone().unwrap_or_default(),
            kind: target.kind.clone(),
            name: target.name.clone(),
        }
    }

    /// The controller that owns an object in this namespace.
    pub fn of_owner(namespace: &str, owner: &OwnerReference) -> Self {
        Self {
            namespace: namespace.to_owned(),
            api_version: owner.api_version.clone(),
            kind: owner.kind.clone(),
            name: owner.name.clone(),
        }
    }
}

/// Why the scale of a controller is not usable.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ScaleError {
    /// A Node owns mirror pods.
    #[error("node is not a valid owner")]
    Node,
    /// The `apiVersion` has more than one slash.
    #[error("unexpected GroupVersion string: {0}")]
    GroupVersion(String),
    /// The kind is not served.
    #[error("no matches for kind \"{kind}\" in group \"{group}\"")]
    NoMatch {
        /// The kind.
        kind: String,
        /// Its group.
        group: String,
    },
    /// The request failed.
    #[error(transparent)]
    Client(#[from] client::Error),
    /// `status.selector` is empty.
    #[error("resource {namespace}/{name} has an empty selector for scale sub-resource")]
    EmptySelector {
        /// Namespace of the controller.
        namespace: String,
        /// Name of the controller.
        name: String,
    },
    /// `status.selector` is not a selector.
    #[error(transparent)]
    Selector(#[from] SelectorError),
}

impl ScaleError {
    /// Whether the object does not exist or has no scale.
    fn is_not_found(&self) -> bool {
        match self {
            Self::Client(error) => error.status().is_some_and(|status| status.code == 404),
            _ => false,
        }
    }
}

/// Why the target of an autoscaler cannot be used; the texts are upstream's.
#[derive(Debug, Clone, thiserror::Error)]
pub enum TargetError {
    /// The autoscaler names no target.
    #[error("targetRef not defined. If this is a v1beta1 object, switch to v1")]
    NotDefined,
    /// There is no such controller.
    #[error("{kind} {namespace}/{name} does not exist")]
    Missing {
        /// Its kind.
        kind: String,
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
    },
    /// The controller is of another kind, and its scale cannot be used.
    #[error("unhandled targetRef {api_version} / {kind} / {name}, last error {source}")]
    Unhandled {
        /// Its `apiVersion`.
        api_version: String,
        /// Its kind.
        kind: String,
        /// Its name.
        name: String,
        /// Why.
        source: ScaleError,
    },
    /// The selector of the controller is invalid.
    #[error(transparent)]
    Selector(#[from] SelectorError),
    /// A controller owns itself.
    #[error("cycle detected in ownership chain")]
    Cycle,
}

impl TargetError {
    fn missing(key: &ControllerKey) -> Self {
        let ControllerKey { namespace, kind, name, .. } = key.clone();
        Self::Missing { kind, namespace, name }
    }

    fn unhandled(key: &ControllerKey, source: ScaleError) -> Self {
        let ControllerKey { api_version, kind, name, .. } = key.clone();
        Self::Unhandled { api_version, kind, name, source }
    }
}

/// Reads controllers.
pub trait Controllers: Sync {
    /// Whether controllers of the kind are read with [`Controllers::get`].
    fn is_well_known(&self, kind: &str) -> bool;

    /// A controller of a well-known kind; `None` if it does not exist.
    fn get(&self, key: &ControllerKey) -> Option<Arc<Object>>;

    /// The scale subresource of a controller of another kind.
    ///
    /// # Errors
    /// The kind is not served, or the object does not exist or has no scale.
    fn scale(&self, key: &ControllerKey) -> impl Future<Output = Result<Value, ScaleError>> + Send;
}

/// The parts of a controller that contain its selector.
#[derive(Deserialize)]
struct SelectorFields {
    spec: SpecFields,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct SpecFields {
    #[serde(default)]
    selector: Value,
    #[serde(default)]
    job_template: Value,
}

/// The selector of a well-known controller.
fn selector_of(kind: &str, object: &Object) -> Result<LabelSelector, SelectorError> {
    let fields: SelectorFields =
        serde_json::from_slice(object.raw()).map_err(|e| SelectorError(e.to_string()))?;
    let of_labels = |labels: &Value| {
        labels.as_object().map_or_else(LabelSelector::nothing, LabelSelector::from_map)
    };
    match kind {
        "CronJob" => {
            let path = ["spec", "template", "metadata", "labels"];
            Ok(of_labels(api::value::at(&fields.spec.job_template, &path)))
        }
        "ReplicationController" => Ok(of_labels(&fields.spec.selector)),
        _ => LabelSelector::from_value(Some(&fields.spec.selector)),
    }
}

/// The selector of the pods of a target: that of a well-known controller, or that of the scale
/// subresource.
///
/// # Errors
/// The target does not exist, or has no scale subresource with a selector.
pub async fn selector(
    controllers: &impl Controllers,
    key: &ControllerKey,
) -> Result<LabelSelector, TargetError> {
    if controllers.is_well_known(&key.kind) {
        let object = controllers.get(key).ok_or_else(|| TargetError::missing(key))?;
        return Ok(selector_of(&key.kind, &object)?);
    }
    let scale = controllers.scale(key).await.map_err(|error| TargetError::unhandled(key, error))?;
    let text = api::value::str_in(&scale, &["status", "selector"]);
    if text.is_empty() {
        let (namespace, name) = (key.namespace.clone(), key.name.clone());
        return Err(TargetError::unhandled(key, ScaleError::EmptySelector { namespace, name }));
    }
    LabelSelector::parse(text).map_err(|error| TargetError::unhandled(key, error.into()))
}

/// Whether the controller is well known or has a scale subresource.
async fn is_scalable(controllers: &impl Controllers, key: &ControllerKey) -> bool {
    controllers.is_well_known(&key.kind) || key.kind != NODE && controllers.scale(key).await.is_ok()
}

/// The controller that owns a controller.
async fn parent(
    controllers: &impl Controllers,
    key: &ControllerKey,
) -> Result<Option<ControllerKey>, TargetError> {
    let of = |meta: &ObjectMeta| {
        controller_of(meta).map(|owner| ControllerKey::of_owner(&key.namespace, owner))
    };
    if controllers.is_well_known(&key.kind) {
        let object = controllers.get(key).ok_or_else(|| TargetError::missing(key))?;
        return Ok(client::meta(&object).and_then(|meta| of(&meta)));
    }
    if key.kind == NODE {
        return Err(TargetError::unhandled(key, ScaleError::Node));
    }
    match controllers.scale(key).await {
        Ok(mut scale) => {
            let meta = scale.get_mut("metadata").map(Value::take).unwrap_or_default();
            Ok(serde_json::from_value(meta).ok().and_then(|meta| of(&meta)))
        }
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(TargetError::unhandled(key, error)),
    }
}

/// The top-most controller above `key`, or itself, that is well known or has a scale subresource
/// (`FindTopMostWellKnownOrScalable`).
///
/// # Errors
/// A controller of the chain does not exist, or the chain is a cycle.
pub async fn topmost(
    controllers: &impl Controllers,
    key: &ControllerKey,
) -> Result<Option<ControllerKey>, TargetError> {
    let mut topmost = None;
    let mut visited = HashSet::new();
    let mut next = Some(key.clone());
    while let Some(key) = next {
        let is_scalable = is_scalable(controllers, &key).await;
        if !visited.insert(key.clone()) {
            return Err(TargetError::Cycle);
        }
        next = parent(controllers, &key).await?;
        if is_scalable {
            topmost = Some(key);
        }
    }
    Ok(topmost)
}

#[cfg(test)]
mod tests;
