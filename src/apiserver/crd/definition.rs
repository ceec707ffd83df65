//! The parts of a CustomResourceDefinition that serving needs: names, versions and conditions. The
//! schemas stay in the stored bytes until a version is used.

use std::borrow::Cow;
use std::sync::Arc;

use api::Object;
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

/// The finalizer that keeps a definition until its objects are deleted
/// (`CustomResourceCleanupFinalizer`).
pub(crate) const CLEANUP: &str = "customresourcecleanup.apiextensions.k8s.io";

/// `spec.names`, and `status.acceptedNames` of the same form.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Names {
    pub(crate) plural: String,
    pub(crate) singular: String,
    #[serde(deserialize_with = "list")]
    pub(crate) short_names: Vec<String>,
    pub(crate) kind: String,
    pub(crate) list_kind: String,
    #[serde(deserialize_with = "list")]
    pub(crate) categories: Vec<String>,
}

/// One of `status.conditions`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Condition {
    #[serde(rename = "type")]
    pub(crate) name: String,
    pub(crate) status: String,
    pub(crate) reason: String,
    pub(crate) message: String,
}

/// `subresources.scale`: the JSON paths of the replica counts and the selector.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct ScalePaths {
    pub(crate) spec_replicas_path: String,
    pub(crate) status_replicas_path: String,
    pub(crate) label_selector_path: Option<String>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct Subresources {
    status: Option<Value>,
    scale: Option<ScalePaths>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Selectable {
    json_path: String,
}

/// One of `spec.versions`, without its schema.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Version {
    pub(crate) name: Arc<str>,
    pub(crate) served: bool,
    pub(crate) storage: bool,
    pub(crate) deprecated: bool,
    pub(crate) deprecation_warning: Option<String>,
    subresources: Option<Subresources>,
    pub(crate) additional_printer_columns: Option<Value>,
    #[serde(deserialize_with = "list")]
    selectable_fields: Vec<Selectable>,
}

impl Version {
    /// Whether there is a `status` subresource.
    pub(crate) fn has_status(&self) -> bool {
        self.subresources.as_ref().is_some_and(|s| s.status.is_some())
    }

    /// The `scale` subresource.
    pub(crate) fn scale(&self) -> Option<&ScalePaths> {
        self.subresources.as_ref()?.scale.as_ref()
    }

    /// The JSON paths of the fields that field selectors can use.
    pub(crate) fn selectable(&self) -> impl Iterator<Item = &str> {
        self.selectable_fields.iter().map(|f| f.json_path.as_str())
    }
}

/// `spec.conversion`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Conversion {
    pub(crate) strategy: String,
    pub(crate) webhook: Option<Value>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Spec {
    group: Arc<str>,
    names: Names,
    scope: String,
    #[serde(deserialize_with = "list")]
    versions: Vec<Version>,
    conversion: Option<Conversion>,
    preserve_unknown_fields: bool,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct StatusPart {
    accepted_names: Names,
    #[serde(deserialize_with = "list")]
    conditions: Vec<Condition>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Metadata {
    generation: i64,
    deletion_timestamp: Option<String>,
    #[serde(deserialize_with = "list")]
    finalizers: Vec<String>,
    annotations: Option<std::collections::BTreeMap<String, String>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct StoredDefinition {
    metadata: Metadata,
    spec: Spec,
    status: StatusPart,
}

/// Deserializes null as an empty list, as Go does.
fn list<'de, D, T>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    D: serde::Deserializer<'de>,
    T: Deserialize<'de>,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// A definition, without its schemas.
#[derive(Debug, Clone)]
pub(crate) struct Definition {
    /// The object; the bytes are those of the watch cache.
    pub(crate) object: Arc<Object>,
    pub(crate) group: Arc<str>,
    pub(crate) namespaced: bool,
    pub(crate) requested: Names,
    pub(crate) accepted: Names,
    pub(crate) versions: Vec<Version>,
    pub(crate) conversion: Conversion,
    pub(crate) preserve_unknown: bool,
    pub(crate) conditions: Vec<Condition>,
    pub(crate) generation: i64,
    pub(crate) is_deleting: bool,
    /// Its objects must be deleted before the definition is.
    pub(crate) needs_cleanup: bool,
    /// The annotation `api-approved.kubernetes.io`, which protected groups need.
    pub(crate) approval: String,
}

impl Definition {
    /// Reads a stored definition.
    ///
    /// # Errors
    /// If a field has the wrong type; validation does not let such objects into the store.
    pub(crate) fn read(object: &Arc<Object>) -> Result<Self, serde_json::Error> {
        let StoredDefinition { metadata, spec, status } = serde_json::from_slice(object.raw())?;
        let is_deleting = metadata.deletion_timestamp.is_some_and(|t| !t.is_empty());
        let approval = metadata
            .annotations
            .and_then(|mut a| a.remove("api-approved.kubernetes.io"))
            .unwrap_or_default();
        Ok(Self {
            object: Arc::clone(object),
            namespaced: spec.scope == "Namespaced",
            group: spec.group,
            requested: spec.names,
            accepted: status.accepted_names,
            versions: spec.versions,
            conversion: spec.conversion.unwrap_or_default(),
            preserve_unknown: spec.preserve_unknown_fields,
            conditions: status.conditions,
            generation: metadata.generation,
            is_deleting,
            needs_cleanup: is_deleting && metadata.finalizers.iter().any(|f| f == CLEANUP),
            approval,
        })
    }

    /// The name of the definition.
    pub(crate) fn name(&self) -> &Arc<str> {
        &self.object.key.name
    }

    /// The condition of this type.
    pub(crate) fn condition(&self, name: &str) -> Option<&Condition> {
        self.conditions.iter().find(|c| c.name == name)
    }

    /// Whether the condition of this type is true.
    pub(crate) fn has_condition(&self, name: &str) -> bool {
        self.condition(name).is_some_and(|c| c.status == "True")
    }

    /// Whether its objects are served.
    pub(crate) fn is_served(&self) -> bool {
        (self.has_condition("NamesAccepted") || self.has_condition("Established"))
            && ![
                &self.accepted.plural,
                &self.accepted.singular,
                &self.accepted.kind,
                &self.accepted.list_kind,
            ]
            .iter()
            .any(|name| name.is_empty())
    }

    /// Whether the definition is being deleted: no objects can be created.
    pub(crate) fn is_terminating(&self) -> bool {
        self.is_deleting || self.has_condition("Terminating")
    }

    /// The storage version.
    pub(crate) fn storage(&self) -> Option<&Version> {
        self.versions.iter().find(|v| v.storage)
    }

    /// Whether both definitions result in the same rows: they are the same object with the same
    /// spec, accepted names and state.
    pub(crate) fn has_same_rows(&self, other: &Self) -> bool {
        self.object.uid == other.object.uid
            && self.generation == other.generation
            && self.accepted == other.accepted
            && self.is_served() == other.is_served()
            && self.is_terminating() == other.is_terminating()
    }

    /// The schema of a version as JSON text, unchanged.
    pub(crate) fn schema(&self, version: &str) -> Option<&str> {
        #[derive(Deserialize)]
        struct ValidationPart<'a> {
            #[serde(rename = "openAPIV3Schema", borrow)]
            schema: Option<&'a RawValue>,
        }
        #[derive(Deserialize)]
        struct VersionPart<'a> {
            #[serde(borrow)]
            name: Cow<'a, str>,
            #[serde(borrow)]
            schema: Option<ValidationPart<'a>>,
        }
        #[derive(Deserialize)]
        struct SpecPart<'a> {
            #[serde(borrow)]
            versions: Vec<VersionPart<'a>>,
        }
        #[derive(Deserialize)]
        struct DefinitionPart<'a> {
            #[serde(borrow)]
            spec: SpecPart<'a>,
        }
        let definition: DefinitionPart<'_> = serde_json::from_slice(self.object.raw()).ok()?;
        let part = definition.spec.versions.into_iter().find(|v| v.name == version)?;
        part.schema?.schema.map(RawValue::get)
    }
}
