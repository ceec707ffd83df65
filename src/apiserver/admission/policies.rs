//! Admission policies: CEL expressions in API objects, evaluated for every write that a binding
//! matches (upstream's `pkg/admission/plugin/policy`).

mod criteria;
mod mutating;
mod params;
mod patch;
mod source;
mod validating;
mod validator;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use api::value::{at, str_in};
use api::{Gvk, Status};
use serde_json::{Map, Value, json};

use super::webhooks::versions::Versions;
use super::{Request, matching};
use crate::authz::Authorizer;
use crate::registry::objects::Objects;
pub use mutating::MutatingAdmissionPolicy;
pub use source::Sources;
pub use validating::ValidatingAdmissionPolicy;

/// Creates both plugins over these objects, and the sources that keep the policies current.
pub fn plugins(
    objects: &Arc<Objects>,
    authorizer: &Arc<dyn Authorizer>,
) -> (MutatingAdmissionPolicy, ValidatingAdmissionPolicy, Sources) {
    let sources = Sources::default();
    let cluster = || Cluster {
        objects: Arc::clone(objects),
        versions: Versions::new(objects),
        authorizer: Arc::clone(authorizer),
    };
    let mutating = MutatingAdmissionPolicy::new(cluster(), Arc::clone(&sources.mutating));
    let validating = ValidatingAdmissionPolicy::new(cluster(), Arc::clone(&sources.validating));
    (mutating, validating, sources)
}

/// The cluster state that policies use.
struct Cluster {
    objects: Arc<Objects>,
    versions: Versions,
    authorizer: Arc<dyn Authorizer>,
}

impl Cluster {
    /// The namespace of the request for `namespaceObject`; `None` for cluster-scoped objects,
    /// including namespaces.
    ///
    /// # Errors
    /// 404 if it does not exist.
    async fn namespace(
        &self,
        request: &Request<'_>,
        kind: &Gvk,
        object: Option<&Value>,
    ) -> Result<Option<Value>, Status> {
        let name = matching::namespace_of(request, object);
        let is_namespace =
            kind.group.is_empty() && &*kind.version == "v1" && &*kind.kind == "Namespace";
        if name.is_empty() || is_namespace {
            return Ok(None);
        }
        let namespace = matching::namespace(&*self.objects, name).await?;
        let namespace = namespace.value().map_err(|e| Status::internal(&e.to_string()))?;
        Ok(Some(shown_namespace(&namespace)))
    }
}

/// The fields of a namespace that expressions can read.
fn shown_namespace(namespace: &Value) -> Value {
    const METADATA: [&str; 12] = [
        "annotations",
        "creationTimestamp",
        "deletionGracePeriodSeconds",
        "deletionTimestamp",
        "finalizers",
        "generateName",
        "generation",
        "labels",
        "name",
        "namespace",
        "resourceVersion",
        "uid",
    ];
    let metadata = at(namespace, &["metadata"]).as_object().into_iter().flatten();
    let shown: Map<String, Value> = metadata
        .filter(|(key, _)| METADATA.contains(&key.as_str()))
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect();
    json!({"metadata": shown, "spec": at(namespace, &["spec"]), "status": at(namespace, &["status"])})
}

/// Whether the request is exempt from policies: writes of policies themselves, so that a broken one
/// can be fixed, and virtual resources.
fn is_exempt(request: &Request<'_>) -> bool {
    matching::is_policy(request) || matching::is_virtual(request)
}

/// Group, version and kind in Go's format: `apps/v1, Kind=Deployment`.
fn kind_text(kind: &Gvk) -> String {
    format!("{}/{}, Kind={}", kind.group, kind.version, kind.kind)
}

/// The name of an object.
fn name_of(object: &Value) -> &str {
    str_in(object, &["metadata", "name"])
}
