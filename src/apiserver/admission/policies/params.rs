//! The parameters of policies: objects that a binding names or selects (upstream's
//! `CollectParams`).

use std::sync::Arc;

use api::object::BadObject;
use api::selector::{LabelSelector, SelectorError};
use api::value::{get, has, set, str_at};
use api::{Gvk, Status};
use serde_json::Value;

use super::{Cluster, kind_text};
use crate::registry::Resource;
use lookup::Lookup;

/// `paramKind` of a policy.
#[derive(Debug)]
pub(super) struct ParamKind(Gvk);

/// `paramRef` of a binding.
#[derive(Debug)]
pub(super) struct ParamRef {
    name: String,
    namespace: String,
    selector: Option<Result<LabelSelector, SelectorError>>,
    /// `parameterNotFoundAction: Deny`.
    denies: bool,
}

/// The parameters of a policy cannot be determined. The messages are upstream's.
#[derive(Debug, thiserror::Error)]
pub(super) enum ParamError {
    #[error("failed to find resource referenced by paramKind: '{}'", kind_text(.0))]
    UnknownKind(Gvk),
    #[error(
        "cannot use namespaced paramRef in policy binding that matches cluster-scoped resources"
    )]
    NoNamespace,
    #[error("paramRef.namespace must not be provided for a cluster-scoped `paramKind`")]
    UnexpectedNamespace,
    #[error("paramRef.name and paramRef.selector are mutually exclusive")]
    NameAndSelector,
    #[error("one of name or selector must be provided")]
    NoReference,
    #[error(transparent)]
    Selector(#[from] SelectorError),
    #[error("{}", .0.message)]
    Read(Box<Status>),
    #[error(transparent)]
    Decode(#[from] BadObject),
    #[error("no params found for policy binding with `Deny` parameterNotFoundAction")]
    NotFound,
}

impl ParamKind {
    /// Parses `paramKind` of a policy's `spec`.
    pub(super) fn of(spec: &Value) -> Option<Self> {
        let kind = get(spec, "paramKind");
        kind.is_object()
            .then(|| Self(Gvk::from_api_version(str_at(kind, "apiVersion"), str_at(kind, "kind"))))
    }

    /// The registered resource of the kind.
    ///
    /// # Errors
    /// If it is not served.
    pub(super) fn row(&self, cluster: &Cluster) -> Result<Arc<Resource>, ParamError> {
        let row = cluster.objects.registry().row_of_kind(&self.0).map(Arc::clone);
        row.ok_or_else(|| ParamError::UnknownKind(self.0.clone()))
    }
}

impl ParamRef {
    /// Parses `paramRef` of a binding's `spec`.
    pub(super) fn of(spec: &Value) -> Option<Self> {
        let reference = get(spec, "paramRef");
        reference.is_object().then(|| Self {
            name: str_at(reference, "name").to_owned(),
            namespace: str_at(reference, "namespace").to_owned(),
            selector: has(reference, "selector")
                .then(|| LabelSelector::from_value(reference.get("selector"))),
            denies: str_at(reference, "parameterNotFoundAction") == "Deny",
        })
    }

    /// The parameters for a request in this namespace.
    ///
    /// # Errors
    /// If the reference does not fit the scope of the resource or required parameters are missing.
    pub(super) async fn collect(
        &self,
        cluster: &Cluster,
        row: &Resource,
        namespace: &str,
    ) -> Result<Vec<Value>, ParamError> {
        let unreadable = |status| ParamError::Read(Box::new(status));
        let namespace = match (row.spec.namespaced, self.namespace.as_str(), namespace) {
            (true, "", "") => return Err(ParamError::NoNamespace),
            (true, "", own) => own,
            (true, given, _) => given,
            (false, "", _) => "",
            (false, ..) => return Err(ParamError::UnexpectedNamespace),
        };
        let (gvr, objects) = (&row.spec.gvr, &*cluster.objects);
        let found = match &self.selector {
            Some(_) if !self.name.is_empty() => {
                return Err(ParamError::NameAndSelector);
            }
            Some(selector) => {
                let selector = selector.as_ref().map_err(Clone::clone)?;
                let mut all = objects.list(gvr, namespace).await.map_err(unreadable)?;
                all.retain(|object| selector.matches(&**object));
                all
            }
            None if self.name.is_empty() => {
                return Err(ParamError::NoReference);
            }
            // A new object may not be in the cache yet.
            None => {
                let found = objects.find(gvr, namespace, &self.name).await;
                found.map_err(unreadable)?.into_iter().collect()
            }
        };
        if found.is_empty() && self.denies {
            return Err(ParamError::NotFound);
        }
        let read = found.iter().map(|object| {
            let mut value = object.value()?;
            set(&mut value, "apiVersion", row.spec.gvk.api_version());
            set(&mut value, "kind", &*row.spec.gvk.kind);
            Ok(value)
        });
        read.collect()
    }
}
