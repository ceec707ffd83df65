//! Objects of releases in the cluster: kinds, application, ownership, removal
//! (`pkg/kube/client.go` and `pkg/action/validate.go` of Helm).

pub(crate) mod discovery;
mod managers;
pub(crate) mod wait;

use std::collections::BTreeSet;

use api::Gvr;
use client::{Client, DeleteOptions, Discovery, Error, Propagation, ServedKind};
use http::Method;
use serde_json::{Map, Value, json};
use sorting::CollectOrdered as _;

/// The field manager of Helm: the name of its program.
pub(crate) const FIELD_MANAGER: &str = "helm";

const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
const RELEASE_NAME: &str = "meta.helm.sh/release-name";
const RELEASE_NAMESPACE: &str = "meta.helm.sh/release-namespace";

/// An object cannot be applied, read or removed.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    /// The kind is not served.
    #[error(
        "unable to build kubernetes objects from release manifest: resource mapping not found for \
         name: {name:?}: no matches for kind {kind:?} in version {version:?}: ensure CRDs are \
         installed first"
    )]
    NoKind {
        /// Name of the object.
        name: String,
        /// Its kind.
        kind: String,
        /// Its `apiVersion`.
        version: String,
    },
    /// The document is not an object.
    #[error("a document of {place} is not an object: it lacks {field}")]
    NotAnObject {
        /// The template or file.
        place: String,
        /// The absent field.
        field: &'static str,
    },
    /// Discovery failed.
    #[error("cannot read the kinds of the API server: {0}")]
    Discovery(Error),
    /// The object belongs to something else.
    #[error(
        "unable to continue with {operation}: {object} exists and cannot be imported into the \
             current release: invalid ownership metadata; {reasons}"
    )]
    Foreign {
        /// `install` or `update`.
        operation: &'static str,
        /// Kind, name and namespace.
        object: String,
        /// The labels and annotations that differ.
        reasons: String,
    },
    /// Another manager has a field.
    #[error("conflict occurred while applying object {object}: {cause}")]
    Conflict {
        /// Namespace, name and kind.
        object: String,
        /// Cause.
        cause: Error,
    },
    /// The API server refuses.
    #[error("{action} failed for object {object}: {cause}")]
    Request {
        /// What was tried.
        action: &'static str,
        /// Namespace, name and kind.
        object: String,
        /// Cause.
        cause: Error,
    },
    /// Objects did not become ready in time.
    #[error(transparent)]
    Wait(#[from] wait::WaitError),
}

/// An object of a release with its resource.
#[derive(Debug, Clone)]
pub(crate) struct Target {
    pub(crate) kind: ServedKind,
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) object: Value,
}

impl Target {
    pub(crate) fn kind_name(&self) -> &str {
        api::value::str_at(&self.object, "kind")
    }

    /// Kind, group, namespace and name: two targets with the same key are one object.
    pub(crate) fn key(&self) -> (String, String, String, String) {
        let kind = self.kind_name().to_owned();
        (self.kind.gvr.group.to_string(), kind, self.namespace.clone(), self.name.clone())
    }

    /// As Helm names it in errors of application.
    fn applied(&self) -> String {
        let version = api::value::str_at(&self.object, "apiVersion");
        format!("{}/{} {version}, Kind={}", self.namespace, self.name, self.kind_name())
    }

    fn described(&self) -> String {
        format!("{} {:?} in namespace {:?}", self.kind_name(), self.name, self.namespace)
    }

    fn path(&self) -> String {
        Client::path(&self.kind.gvr, &self.namespace, &self.name, "")
    }
}

/// Applies and removes the objects of one release.
pub(crate) struct Cluster<'a> {
    pub(crate) client: &'a Client,
    pub(crate) release: &'a str,
    pub(crate) namespace: &'a str,
}

impl Cluster<'_> {
    /// The objects of documents, with their resources and namespaces; lists become their items.
    pub(crate) async fn targets<'d>(
        &self,
        discovery: &mut Discovery<'_>,
        documents: &[(&'d str, &'d Value)],
    ) -> Result<Vec<Target>, ClusterError> {
        let mut targets = Vec::new();
        for (place, document) in documents {
            for object in items(document) {
                targets.push(self.target(discovery, place, object).await?);
            }
        }
        Ok(targets)
    }

    async fn target(
        &self,
        discovery: &mut Discovery<'_>,
        place: &str,
        object: &Value,
    ) -> Result<Target, ClusterError> {
        let field = |field: &'static str, text: &str| match text.is_empty() {
            true => Err(ClusterError::NotAnObject { place: place.to_owned(), field }),
            false => Ok(text.to_owned()),
        };
        let version = field("apiVersion", api::value::str_at(object, "apiVersion"))?;
        let kind_name = field("kind", api::value::str_at(object, "kind"))?;
        let name = field("metadata.name", api::value::str_in(object, &["metadata", "name"]))?;
        let found = discovery.kind(&version, &kind_name).await.map_err(ClusterError::Discovery)?;
        let kind = found.ok_or_else(|| ClusterError::NoKind {
            name: name.clone(),
            kind: kind_name.clone(),
            version: version.clone(),
        })?;
        let mut object = object.clone();
        let own = api::value::str_in(&object, &["metadata", "namespace"]).to_owned();
        let namespace = match (kind.is_namespaced, own.is_empty()) {
            (false, _) => String::new(),
            (true, false) => own,
            (true, true) => self.namespace.to_owned(),
        };
        if kind.is_namespaced
            && let Some(metadata) = api::value::ensure_object(&mut object, "metadata")
        {
            api::value::set(metadata, "namespace", namespace.as_str());
        }
        Ok(Target { kind, namespace, name, object })
    }

    /// Adds the label and annotations of ownership.
    pub(crate) fn own(&self, target: &mut Target) {
        let Some(metadata) = api::value::ensure_object(&mut target.object, "metadata") else {
            return;
        };
        if let Some(labels) = api::value::ensure_object(metadata, "labels") {
            api::value::set(labels, MANAGED_BY, "Helm");
        }
        if let Some(annotations) = api::value::ensure_object(metadata, "annotations") {
            api::value::set(annotations, RELEASE_NAME, self.release);
            api::value::set(annotations, RELEASE_NAMESPACE, self.namespace);
        }
    }

    /// The current state; `None` if the object does not exist.
    pub(crate) async fn get(&self, target: &Target) -> Result<Option<Value>, ClusterError> {
        match self.client.get_value(&target.kind.gvr, &target.namespace, &target.name).await {
            Ok(object) => Ok(Some(object)),
            Err(error) if error.is_not_found() => Ok(None),
            Err(cause) => Err(self.failed("get", target, cause)),
        }
    }

    fn failed(&self, action: &'static str, target: &Target, cause: Error) -> ClusterError {
        ClusterError::Request { action, object: target.applied(), cause }
    }

    /// Why an object does not belong to this release; empty if it does.
    fn foreign(&self, object: &Value) -> String {
        let metadata = object.get("metadata").unwrap_or(&Value::Null);
        let checks = [
            ("label", "labels", MANAGED_BY, "Helm"),
            ("annotation", "annotations", RELEASE_NAME, self.release),
            ("annotation", "annotations", RELEASE_NAMESPACE, self.namespace),
        ];
        let wrong = checks.iter().filter_map(|(what, field, key, want)| {
            match metadata.get(field).and_then(|entries| entries.get(key)).and_then(Value::as_str) {
                Some(got) if got == *want => None,
                Some(got) => Some(format!(
                    "{what} validation error: key {key:?} must equal {want:?}: current value is \
                     {got:?}"
                )),
                None => Some(format!(
                    "{what} validation error: missing key {key:?}: must be set to {want:?}"
                )),
            }
        });
        wrong.collect::<Vec<_>>().join("; ")
    }

    /// Refuses objects that exist and belong to something else.
    pub(crate) async fn check_adoption(
        &self,
        targets: &[&Target],
        operation: &'static str,
        take_ownership: bool,
    ) -> Result<(), ClusterError> {
        if take_ownership {
            return Ok(());
        }
        for target in targets {
            let Some(existing) = self.get(target).await? else { continue };
            let reasons = self.foreign(&existing);
            if !reasons.is_empty() {
                let object = target.described();
                return Err(ClusterError::Foreign { operation, object, reasons });
            }
        }
        Ok(())
    }

    /// Applies an object on the server side, with strict field validation. With `convert`, fields
    /// that Helm wrote by client-side apply become fields of server-side apply first.
    pub(crate) async fn apply(
        &self,
        target: &Target,
        force: bool,
        convert: bool,
    ) -> Result<(), ClusterError> {
        if convert {
            self.convert_managers(target).await?;
        }
        let path = format!(
            "{}?fieldManager={FIELD_MANAGER}&fieldValidation=Strict&force={force}",
            target.path()
        );
        let body = serde_json::to_vec(&target.object);
        let body = body.map_err(|e| self.failed("server-side apply", target, e.into()))?;
        let kind = "application/apply-patch+yaml";
        match self.client.request(Method::PATCH, &path, kind, body.into()).await {
            Ok(_) => Ok(()),
            Err(cause) if cause.is_conflict() => {
                Err(ClusterError::Conflict { object: target.applied(), cause })
            }
            Err(cause) => Err(self.failed("server-side apply", target, cause)),
        }
    }

    async fn convert_managers(&self, target: &Target) -> Result<(), ClusterError> {
        let Some(object) = self.get(target).await? else { return Ok(()) };
        let Some(managed) = managers::converted(&object) else { return Ok(()) };
        let version = api::value::str_in(&object, &["metadata", "resourceVersion"]);
        let patch = json!([
            {"op": "replace", "path": "/metadata/managedFields", "value": managed},
            {"op": "replace", "path": "/metadata/resourceVersion", "value": version},
        ]);
        let patch = client::Patch::Json(&patch);
        let gvr = &target.kind.gvr;
        let patched =
            self.client.patch_value(gvr, &target.namespace, &target.name, "", &patch).await;
        patched
            .map(drop)
            .map_err(|cause| self.failed("conversion of field managers", target, cause))
    }

    /// Removes an object that this release owns; others are left alone, which is logged.
    pub(crate) async fn remove_owned(&self, target: &Target) -> Result<bool, ClusterError> {
        let Some(existing) = self.get(target).await? else { return Ok(false) };
        let reasons = self.foreign(&existing);
        if !reasons.is_empty() {
            tracing::warn!(
                release = self.release,
                object = target.described(),
                reasons,
                "helm: skip removal of object not owned by this release"
            );
            return Ok(false);
        }
        self.remove(target).await?;
        Ok(true)
    }

    /// Removes an object; one that does not exist is no error.
    pub(crate) async fn remove(&self, target: &Target) -> Result<(), ClusterError> {
        let options = DeleteOptions {
            propagation: Some(Propagation::Background),
            ..DeleteOptions::default()
        };
        let gvr: &Gvr = &target.kind.gvr;
        match self.client.delete_gvr(gvr, &target.namespace, &target.name, &options).await {
            Err(cause) if !cause.is_not_found() => Err(self.failed("removal", target, cause)),
            _ => Ok(()),
        }
    }

    /// Removes the objects of the earlier revision that the new one lacks, but those to keep.
    pub(crate) async fn prune(
        &self,
        earlier: &[Target],
        targets: &[Target],
    ) -> Result<(), ClusterError> {
        let kept: BTreeSet<_> = targets.iter().map(Target::key).collect_set();
        for target in earlier.iter().filter(|target| !kept.contains(&target.key())) {
            let Some(existing) = self.get(target).await? else { continue };
            if !crate::manifest::is_kept(&existing) {
                self.remove(target).await?;
            }
        }
        Ok(())
    }
}

/// The objects of a document: the items of a list, else itself; none for a document of comments.
fn items(document: &Value) -> Vec<&Value> {
    let is_list = api::value::str_at(document, "kind").ends_with("List");
    match document.get("items").filter(|_| is_list) {
        Some(Value::Array(items)) => items.iter().collect(),
        _ if document.as_object().is_none_or(Map::is_empty) => Vec::new(),
        _ => vec![document],
    }
}
