//! Admission policies: expressions that objects of the cluster say, asked about every write that a binding of theirs matches
//! (upstream's `pkg/admission/plugin/policy`).

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

/// Both plugins over these objects, and what keeps their policies current.
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

/// What policies see of the cluster.
struct Cluster {
    objects: Arc<Objects>,
    versions: Versions,
    authorizer: Arc<dyn Authorizer>,
}

impl Cluster {
    /// The namespace of the request as `namespaceObject` shows it; none for what is in none, and for namespaces themselves.
    ///
    /// # Errors
    /// 404 when it is not there.
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

/// The members of a namespace that expressions may see.
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

/// No policy is asked about this request: about policies themselves, or nobody could mend a broken one, and about questions that are
/// answered and not stored.
fn is_exempt(request: &Request<'_>) -> bool {
    matching::is_policy(request) || matching::is_virtual(request)
}

/// Group, version and kind as Go prints them: `apps/v1, Kind=Deployment`.
fn kind_text(kind: &Gvk) -> String {
    format!("{}/{}, Kind={}", kind.group, kind.version, kind.kind)
}

/// Name of an object.
fn name_of(object: &Value) -> &str {
    str_in(object, &["metadata", "name"])
}
