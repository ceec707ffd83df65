//! A CustomResourceDefinition as serving needs it: names, versions and conditions; the schemas stay
//! in the stored bytes until a version is used.

use std::borrow::Cow;
use std::sync::Arc;

use api::Object;
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

/// The finalizer that holds a definition until its objects are gone
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

/// `subresources.scale`: where the numbers are.
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
    /// There is a `status` subresource.
    pub(crate) fn has_status(&self) -> bool {
        self.subresources.as_ref().is_some_and(|s| s.status.is_some())
    }

    /// The `scale` subresource.
    pub(crate) fn scale(&self) -> Option<&ScalePaths> {
        self.subresources.as_ref()?.scale.as_ref()
    }

    /// JSON paths of the fields that lists can be selected by.
    pub(crate) fn selectable(&self) -> impl Iterator<Item = &str> {
        self.selectable_fields.iter().map(|f| f.json_path.as_str())
    }
}

/// How objects change their version.
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
struct Parsed {
    metadata: Metadata,
    spec: Spec,
    status: StatusPart,
}

/// Null is an empty list, as Go reads it.
fn list<'de, D, T>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    D: serde::Deserializer<'de>,
    T: Deserialize<'de>,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// What is to be served of one definition.
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
    pub(crate) deleting: bool,
    /// Its objects are to be deleted before it goes.
    pub(crate) cleans: bool,
    /// The note that groups of Kubernetes' own need.
    pub(crate) approval: String,
}

impl Definition {
    /// Reads a stored definition.
    ///
    /// # Errors
    /// A sentence when the object has another form, which validation keeps out of the store.
    pub(crate) fn read(object: &Arc<Object>) -> Result<Self, String> {
        let parsed: Parsed = serde_json::from_slice(object.raw()).map_err(|e| e.to_string())?;
        let Parsed { metadata, spec, status } = parsed;
        let deleting = metadata.deletion_timestamp.is_some_and(|t| !t.is_empty());
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
            deleting,
            cleans: deleting && metadata.finalizers.iter().any(|f| f == CLEANUP),
            approval,
        })
    }

    /// Name of the definition.
    pub(crate) fn name(&self) -> &Arc<str> {
        &self.object.key.name
    }

    /// The condition of this type.
    pub(crate) fn condition(&self, name: &str) -> Option<&Condition> {
        self.conditions.iter().find(|c| c.name == name)
    }

    /// The condition holds.
    pub(crate) fn is(&self, name: &str) -> bool {
        self.condition(name).is_some_and(|c| c.status == "True")
    }

    /// Requests about its objects are answered.
    pub(crate) fn is_served(&self) -> bool {
        (self.is("NamesAccepted") || self.is("Established"))
            && ![
                &self.accepted.plural,
                &self.accepted.singular,
                &self.accepted.kind,
                &self.accepted.list_kind,
            ]
            .iter()
            .any(|name| name.is_empty())
    }

    /// Nothing new is made any more.
    pub(crate) fn is_terminating(&self) -> bool {
        self.deleting || self.is("Terminating")
    }

    /// The version that objects are stored in.
    pub(crate) fn storage(&self) -> Option<&Version> {
        self.versions.iter().find(|v| v.storage)
    }

    /// Both are served alike: the same object with the same spec, names and stage of life.
    pub(crate) fn serves_as(&self, other: &Self) -> bool {
        self.object.uid == other.object.uid
            && self.generation == other.generation
            && self.accepted == other.accepted
            && self.is_served() == other.is_served()
            && self.is_terminating() == other.is_terminating()
    }

    /// The schema of a version as it was written, as JSON text.
    pub(crate) fn schema(&self, version: &str) -> Option<&str> {
        #[derive(Deserialize)]
        struct Holder<'a> {
            #[serde(rename = "openAPIV3Schema", borrow)]
            schema: Option<&'a RawValue>,
        }
        #[derive(Deserialize)]
        struct One<'a> {
            #[serde(borrow)]
            name: Cow<'a, str>,
            #[serde(borrow)]
            schema: Option<Holder<'a>>,
        }
        #[derive(Deserialize)]
        struct Versions<'a> {
            #[serde(borrow)]
            versions: Vec<One<'a>>,
        }
        #[derive(Deserialize)]
        struct Whole<'a> {
            #[serde(borrow)]
            spec: Versions<'a>,
        }
        let whole: Whole<'_> = serde_json::from_slice(self.object.raw()).ok()?;
        let found = whole.spec.versions.into_iter().find(|v| v.name == version)?;
        found.schema?.schema.map(RawValue::get)
    }
}
