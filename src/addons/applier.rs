//! Applies the objects of a manifest by server-side apply, and deletes those that it dropped.

use std::collections::BTreeSet;

use client::{
    Client, DeleteOptions, Discovery, Error, ListOptions, Patch, Propagation, ServedKind,
};
use serde_json::Value;
use sorting::CompactSort as _;

use crate::addon::VersionedKind;
use crate::config::AGENT;
use crate::document::{ManifestObject, describe, group};
use crate::migration;
use crate::object_set::{Owner, is_prunable};

/// Namespace of an object of a namespaced kind that names none.
const DEFAULT_NAMESPACE: &str = "default";
/// Errors that one message lists.
const ERRORS_MAX: usize = 3;

/// What tells an object of the cluster from another, whatever the version of its kind.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ObjectIdentity {
    /// API group.
    pub(crate) group: String,
    /// Kind.
    pub(crate) kind: String,
    /// Namespace; empty for cluster-scoped kinds.
    pub(crate) namespace: String,
    /// Name.
    pub(crate) name: String,
}

impl ObjectIdentity {
    /// `Deployment kube-system/a`, or `Namespace a`.
    pub(crate) fn describe(&self) -> String {
        describe(&self.kind, &self.namespace, &self.name)
    }
}

/// An object of a manifest whose kind is served.
#[derive(Debug)]
pub(crate) struct ResolvedObject {
    pub(crate) identity: ObjectIdentity,
    object: ManifestObject,
    served: ServedKind,
}

impl ResolvedObject {
    fn new(mut object: ManifestObject, served: ServedKind) -> Self {
        if !served.is_namespaced {
            object.namespace.clear();
        } else if object.namespace.is_empty() {
            DEFAULT_NAMESPACE.clone_into(&mut object.namespace);
        }
        if let Some(metadata) = object.value.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata.remove("namespace");
            if served.is_namespaced {
                metadata.insert("namespace".into(), object.namespace.as_str().into());
            }
        }
        let identity = ObjectIdentity {
            group: object.group().to_owned(),
            kind: object.kind.clone(),
            namespace: object.namespace.clone(),
            name: object.name.clone(),
        };
        Self { identity, object, served }
    }

    fn is(&self, group: &str, kind: &str) -> bool {
        self.identity.group == group && self.identity.kind == kind
    }

    /// Whether this is the CustomResourceDefinition of a kind.
    pub(crate) fn defines(&self, kind: &VersionedKind) -> bool {
        self.is("apiextensions.k8s.io", "CustomResourceDefinition")
            && has_kind(&self.object.value, kind)
    }

    /// Namespaces and definitions precede what needs them.
    fn rank(&self) -> u8 {
        match () {
            () if self.is("", "Namespace") => 0,
            () if self.is("apiextensions.k8s.io", "CustomResourceDefinition") => 1,
            () => 2,
        }
    }
}

/// The objects of a manifest.
#[derive(Debug, Default)]
pub(crate) struct ResolvedManifest {
    /// Objects of served kinds, in the order in which they are applied.
    pub(crate) objects: Vec<ResolvedObject>,
    /// All kinds of the file.
    pub(crate) kinds: BTreeSet<VersionedKind>,
    /// Kinds that are not served.
    pub(crate) missing: BTreeSet<VersionedKind>,
}

/// Finds the resources of the objects.
///
/// # Errors
/// The server's refusal.
pub(crate) async fn resolve(
    objects: Vec<ManifestObject>,
    discovery: &mut Discovery<'_>,
) -> Result<ResolvedManifest, Error> {
    let mut manifest = ResolvedManifest::default();
    for object in objects {
        let kind =
            VersionedKind { api_version: object.api_version.clone(), kind: object.kind.clone() };
        match discovery.kind(&object.api_version, &object.kind).await? {
            Some(served) => manifest.objects.push(ResolvedObject::new(object, served)),
            None => drop(manifest.missing.insert(kind.clone())),
        }
        manifest.kinds.insert(kind);
    }
    manifest.objects.compact_sort_by_key(ResolvedObject::rank);
    Ok(manifest)
}

/// The result of applying several objects.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    /// How many objects were created, changed or deleted.
    pub(crate) changed: usize,
    /// The objects that were not, with the reason.
    errors: Vec<String>,
}

impl Outcome {
    fn add(&mut self, object: &str, result: Result<bool, Error>) {
        match result {
            Ok(changed) => self.changed += usize::from(changed),
            Err(error) => self.errors.push(format!("{object}: {error}")),
        }
    }

    /// The errors as one text; `None` if there are none.
    pub(crate) fn error(&self) -> Option<String> {
        let shown: Vec<&str> = self.errors.iter().take(ERRORS_MAX).map(String::as_str).collect();
        let more = self.errors.len().saturating_sub(ERRORS_MAX);
        match (shown.is_empty(), more) {
            (true, _) => None,
            (false, 0) => Some(shown.join("; ")),
            (false, more) => Some(format!("{}; and {more} more objects", shown.join("; "))),
        }
    }
}

/// Applies objects. An error of one does not prevent the others.
pub(crate) async fn apply(
    client: &Client,
    owner: Option<&Owner>,
    objects: Vec<ResolvedObject>,
) -> Outcome {
    let mut outcome = Outcome::default();
    for object in objects {
        let name = object.identity.describe();
        outcome.add(&name, apply_one(client, owner, object).await);
    }
    outcome
}

/// Applies an object; returns whether that created or changed it.
async fn apply_one(
    client: &Client,
    owner: Option<&Owner>,
    object: ResolvedObject,
) -> Result<bool, Error> {
    let ResolvedObject { mut object, served, .. } = object;
    let (namespace, name) = (object.namespace.as_str(), object.name.as_str());
    let before = match client.get_value(&served.gvr, namespace, name).await {
        Ok(value) => Some(value),
        Err(error) if error.is_not_found() => None,
        Err(error) => return Err(error),
    };
    if let Some(owner) = owner {
        owner.mark(&mut object.value);
        if let Some(before) = before.as_ref().filter(|before| owner.owns(before))
            && let Some(patch) = migration::take_over(before)
        {
            let patch = Patch::Json(&patch);
            client.patch_value(&served.gvr, namespace, name, "", &patch).await?;
        }
    }
    let patch = Patch::Apply { object: &object.value, manager: AGENT, force: true };
    let after = client.patch_value(&served.gvr, namespace, name, "", &patch).await?;
    let version = |value: &Value| value.pointer("/metadata/resourceVersion").cloned();
    Ok(before.as_ref().and_then(version) != version(&after))
}

/// Deletes the objects of an owner other than `keep`. `kinds` are those that may have objects.
/// Namespaces in which `keep` has objects are not deleted; they are returned.
///
/// # Errors
/// The server's refusal of a list.
pub(crate) async fn prune(
    client: &Client,
    owner: &Owner,
    kinds: &BTreeSet<VersionedKind>,
    keep: &BTreeSet<ObjectIdentity>,
    discovery: &mut Discovery<'_>,
) -> Result<(Outcome, Vec<String>), Error> {
    let (mut outcome, mut used) = (Outcome::default(), Vec::new());
    for kind in kinds {
        // The kind may have been removed with its definition.
        let Some(served) = discovery.kind(&kind.api_version, &kind.kind).await? else { continue };
        for object in owned(client, owner, &served).await? {
            let identity = identity(kind, &object);
            if keep.contains(&identity) || !is_prunable(&object) || is_deleted(&object) {
                continue;
            }
            if identity.group.is_empty()
                && identity.kind == "Namespace"
                && keep.iter().any(|kept| kept.namespace == identity.name)
            {
                used.push(identity.name);
                continue;
            }
            outcome.add(&identity.describe(), delete(client, &served, &identity, &object).await);
        }
    }
    Ok((outcome, used))
}

/// The objects with the label of an owner.
async fn owned(client: &Client, owner: &Owner, served: &ServedKind) -> Result<Vec<Value>, Error> {
    let selector = owner.selector();
    let options = ListOptions { labels: &selector, fields: "" };
    match client.list_values(&served.gvr, "", &options).await {
        // A resource without lists, such as a review.
        Err(error) if error.status().is_some_and(|s| matches!(s.code, 404 | 405)) => Ok(Vec::new()),
        other => other,
    }
}

fn identity(kind: &VersionedKind, object: &Value) -> ObjectIdentity {
    let text = |name: &str| {
        let metadata = object.get("metadata").and_then(|m| m.get(name));
        metadata.and_then(Value::as_str).unwrap_or_default().to_owned()
    };
    ObjectIdentity {
        group: group(&kind.api_version).to_owned(),
        kind: kind.kind.clone(),
        namespace: text("namespace"),
        name: text("name"),
    }
}

fn is_deleted(object: &Value) -> bool {
    object.pointer("/metadata/deletionTimestamp").is_some()
}

async fn delete(
    client: &Client,
    served: &ServedKind,
    identity: &ObjectIdentity,
    object: &Value,
) -> Result<bool, Error> {
    let uid = object.pointer("/metadata/uid").and_then(Value::as_str);
    let options = DeleteOptions {
        uid: uid.map(str::to_owned),
        propagation: Some(Propagation::Background),
        ..DeleteOptions::default()
    };
    match client.delete_gvr(&served.gvr, &identity.namespace, &identity.name, &options).await {
        Err(error) if !error.is_not_found() => Err(error),
        _ => Ok(true),
    }
}

/// Whether a CustomResourceDefinition is established and has one of the kinds.
pub(crate) fn establishes(definition: &Value, kinds: &BTreeSet<VersionedKind>) -> bool {
    api::value::is_condition_true(definition, "Established")
        && kinds.iter().any(|kind| has_kind(definition, kind))
}

/// Whether a CustomResourceDefinition has the kind.
fn has_kind(definition: &Value, kind: &VersionedKind) -> bool {
    let text = |pointer: &str| definition.pointer(pointer).and_then(Value::as_str);
    text("/spec/group") == Some(group(&kind.api_version))
        && text("/spec/names/kind") == Some(&kind.kind)
}

#[cfg(test)]
mod tests {
    use api::Gvr;
    use serde_json::json;

    use super::*;
    use crate::document;

    fn resolved(text: &str, is_namespaced: bool) -> ResolvedObject {
        let object = document::parse(text.as_bytes()).unwrap().remove(0);
        ResolvedObject::new(object, ServedKind { gvr: Gvr::new("", "v1", "x"), is_namespaced })
    }

    #[test]
    fn the_scope_of_the_kind_decides_about_the_namespace() {
        let text = "apiVersion: v1\nkind: A\nmetadata: {name: a}\n";
        let own = "apiVersion: v1\nkind: A\nmetadata: {name: a, namespace: b}\n";
        for (text, is_namespaced, want) in [
            (text, true, "A default/a"),
            (text, false, "A a"),
            (own, true, "A b/a"),
            (own, false, "A a"),
        ] {
            let object = resolved(text, is_namespaced);
            assert_eq!(object.identity.describe(), want);
            let namespace = object.object.value["metadata"].get("namespace").cloned();
            assert_eq!(namespace.is_some(), is_namespaced);
        }
    }

    #[test]
    fn namespaces_and_definitions_are_applied_first() {
        let of = |version: &str, kind: &str| {
            resolved(
                &format!("apiVersion: {version}\nkind: {kind}\nmetadata: {{name: a}}\n"),
                false,
            )
        };
        let mut objects = [
            of("v1", "Pod"),
            of("apiextensions.k8s.io/v1", "CustomResourceDefinition"),
            of("example.com/v1", "Namespace"),
            of("v1", "Namespace"),
        ];
        objects.sort_by_key(ResolvedObject::rank);
        let order: Vec<_> = objects.iter().map(|o| o.identity.describe()).collect();
        assert_eq!(order, ["Namespace a", "CustomResourceDefinition a", "Pod a", "Namespace a"]);
    }

    #[test]
    fn a_message_lists_three_errors() {
        let mut outcome = Outcome::default();
        assert_eq!(outcome.error(), None);
        for name in ["a", "b", "c", "d", "e"] {
            outcome.add(name, Err(api::Status::failure(403, "Forbidden", "no").into()));
        }
        assert_eq!(outcome.error().unwrap(), "a: no; b: no; c: no; and 2 more objects");
    }

    #[test]
    fn only_an_established_definition_of_the_kind_ends_the_wait() {
        let kind = VersionedKind { api_version: "example.com/v1".into(), kind: "Foo".into() };
        let kinds = BTreeSet::from([kind]);
        let definition = |group: &str, status: &str| {
            json!({"spec": {"group": group, "names": {"kind": "Foo"}},
                "status": {"conditions": [{"type": "Established", "status": status}]}})
        };
        assert!(establishes(&definition("example.com", "True"), &kinds));
        assert!(!establishes(&definition("example.com", "False"), &kinds));
        assert!(!establishes(&definition("example.org", "True"), &kinds));
        assert!(!establishes(&json!({}), &kinds));
    }
}
