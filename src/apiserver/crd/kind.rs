//! One version of a custom resource: reads, converts, prunes, defaults and validates its objects.
//! Its schema is compiled on first use.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, OnceLock};

use api::custom::{PruneOptions, Structural};
use api::field::{Error, ErrorList, Path};
use api::fields::Set;
use api::openapi::CustomSchema;
use api::schema::{Schema, TypeId};
use api::{Gvk, Object};
use bytes::Bytes;
use serde_json::Value;

use super::convert::{self, Webhook};
use super::definition::{Definition, ScalePaths, Version};
use super::error::{ConversionError, ReadError};
use super::types;
use crate::metrics::admission as metrics;
use crate::registry::metadata;
use webhook::Callout;

/// The fields that a write of `status` resets (upstream's `statusStrategy.GetResetFields`).
static ALL_BUT_STATUS: LazyLock<Set> =
    LazyLock::new(|| Set::of_fields(&[&["metadata"], &["spec"]]));
/// The field that a write of the object itself resets if there is a `status` subresource.
static STATUS: LazyLock<Set> = LazyLock::new(|| Set::of_fields(&[&["status"]]));

/// The next [`Family::number`].
static NEXT_NUMBER: AtomicU64 = AtomicU64::new(1);

/// All versions of one revision of a definition, shared by its rows.
#[derive(Debug)]
pub(crate) struct Family {
    pub(crate) definition: Definition,
    /// Identifies this revision of the definition within the process: watch caches of different
    /// revisions have different keys.
    pub(crate) number: u64,
    /// The compiled schema of each version, in the order of `definition.versions`.
    compiled: Box<[OnceLock<Compiled>]>,
    without_schema: OnceLock<Compiled>,
    webhook: OnceLock<Result<Webhook, ConversionError>>,
    /// Another revision has replaced this one: no watch cache is started for it anymore.
    is_retired: AtomicBool,
}

/// A stored value, read for one version.
pub(crate) enum Read {
    /// An object of that version.
    Ready(Object),
    /// An object of another version, which the webhook has to convert.
    Foreign(Value),
}

/// The compiled schema of one version.
#[derive(Debug)]
struct Compiled {
    /// `None` if the version has no schema.
    schema: Option<Structural>,
    types: (Arc<Schema>, TypeId),
    keeps_unknown_fields: bool,
}

impl Compiled {
    fn default(&self, value: &mut Value) {
        if let Some(schema) = &self.schema {
            schema.default(value);
        }
    }

    /// Removes unknown fields and invalid embedded metadata from a stored or converted object.
    fn clean(&self, value: &mut Value) {
        let Some(schema) = &self.schema else { return };
        if !self.keeps_unknown_fields {
            schema.prune(value, &PruneOptions { resource: true, collect: false });
        }
        if let Err(error) = schema.coerce(value, true) {
            tracing::debug!(%error, "the metadata of an embedded object is kept unchanged");
        }
    }
}

impl Family {
    /// The client of the conversion webhook, created on first use.
    fn webhook(&self, callout: Option<&Callout>) -> Result<&Webhook, ConversionError> {
        let callout = callout.ok_or(ConversionError::NotStarted)?;
        let webhook =
            self.webhook.get_or_init(|| Webhook::new(&self.definition.conversion, callout));
        webhook.as_ref().map_err(Clone::clone)
    }

    fn compiled(&self, index: usize) -> &Compiled {
        // The index comes from a row of this family, so the version exists.
        match self.compiled.get(index) {
            Some(slot) => slot.get_or_init(|| self.compile(index)),
            None => self.without_schema.get_or_init(|| Compiled {
                schema: None,
                types: types::build(None),
                keeps_unknown_fields: true,
            }),
        }
    }

    fn compile(&self, index: usize) -> Compiled {
        let definition = &self.definition;
        let name = definition.versions.get(index).map_or("", |v| &v.name);
        let source: Option<Value> =
            definition.schema(name).and_then(|text| serde_json::from_str(text).ok());
        let schema = source.as_ref().and_then(|source| match Structural::new(source) {
            Ok(schema) => Some(schema),
            Err(errors) => {
                let errors: Vec<String> = errors.iter().map(ToString::to_string).collect();
                tracing::error!(
                    definition = %definition.name(),
                    version = name,
                    errors = errors.join("; "),
                    "the schema is invalid, objects are not validated"
                );
                None
            }
        });
        let types = types::build(schema.as_ref().filter(|_| !definition.preserve_unknown));
        Compiled { schema, types, keeps_unknown_fields: definition.preserve_unknown }
    }

    /// The index of the version in an `apiVersion`; `None` if the definition does not have it.
    fn position(&self, api_version: &str) -> Option<usize> {
        let version = api_version.strip_prefix(&*self.definition.group)?.strip_prefix('/')?;
        self.definition.versions.iter().position(|v| *v.name == *version)
    }

    pub(crate) fn new(definition: Definition) -> Arc<Self> {
        Arc::new(Self {
            compiled: definition.versions.iter().map(|_| OnceLock::new()).collect(),
            without_schema: OnceLock::new(),
            webhook: OnceLock::new(),
            definition,
            number: NEXT_NUMBER.fetch_add(1, Ordering::Relaxed),
            is_retired: AtomicBool::new(false),
        })
    }

    /// Marks this revision as replaced, before its rows are removed.
    pub(crate) fn retire(&self) {
        self.is_retired.store(true, Ordering::Release);
    }
}

/// One version of a custom resource.
#[derive(Debug)]
pub struct Kind {
    family: Arc<Family>,
    /// The index of the version in the definition.
    version: usize,
    /// Group, version and kind of the objects.
    gvk: Gvk,
}

impl Kind {
    /// `version` is the index of the version in the definition.
    pub(crate) fn new(family: &Arc<Family>, version: usize, gvk: Gvk) -> Self {
        Self { family: Arc::clone(family), version, gvk }
    }

    /// The definition.
    pub(crate) fn definition(&self) -> &Definition {
        &self.family.definition
    }

    /// The version of the definition.
    pub(crate) fn version(&self) -> Option<&Version> {
        self.family.definition.versions.get(self.version)
    }

    /// The number of this revision of the definition ([`Family::number`]).
    pub(crate) fn number(&self) -> u64 {
        self.family.number
    }

    /// Whether another revision of the definition has replaced this one.
    pub(crate) fn is_retired(&self) -> bool {
        self.family.is_retired.load(Ordering::Acquire)
    }

    /// Whether the definition is being deleted: no objects can be created.
    pub(crate) fn is_terminating(&self) -> bool {
        self.family.definition.is_terminating()
    }

    /// The `scale` subresource.
    pub(crate) fn scale(&self) -> Option<&ScalePaths> {
        self.version()?.scale()
    }

    /// The fields that a write through a subresource resets; `subresource` is empty for the object
    /// itself.
    pub(crate) fn reset(&self, subresource: &str) -> Option<&'static Set> {
        let has_status = self.version().is_some_and(Version::has_status);
        match subresource {
            "status" => Some(&ALL_BUT_STATUS),
            _ if has_status => Some(&STATUS),
            _ => None,
        }
    }

    /// The schema table for server-side apply, and the type of the objects.
    pub(crate) fn types(&self) -> (Arc<Schema>, TypeId) {
        let compiled = self.compiled();
        (Arc::clone(&compiled.types.0), compiled.types.1)
    }

    fn compiled(&self) -> &Compiled {
        self.family.compiled(self.version)
    }

    /// The input of its OpenAPI documents.
    pub(crate) fn openapi(&self) -> CustomSchema {
        let version = self.version();
        let name = version.map_or("", |v| &v.name);
        let selectable = version.into_iter().flat_map(Version::selectable);
        CustomSchema {
            text: self.definition().schema(name).map(Into::into),
            list_kind: self.list_kind().to_owned(),
            preserve: self.definition().preserve_unknown,
            selectable: selectable.map(|p| p.strip_prefix('.').unwrap_or(p).to_owned()).collect(),
        }
    }

    /// The list kind.
    pub(crate) fn list_kind(&self) -> &str {
        &self.family.definition.accepted.list_kind
    }

    /// The warning for requests of a deprecated version (`defaultDeprecationWarning`).
    pub(crate) fn deprecation(&self) -> Option<String> {
        let version = self.version().filter(|v| v.deprecated)?;
        if let Some(warning) = &version.deprecation_warning {
            return Some(warning.clone());
        }
        let definition = self.definition();
        let (group, kind) = (&definition.group, &definition.requested.kind);
        let newer = definition.versions.iter().filter(|v| v.served && !v.deprecated);
        let newer =
            newer.filter(|v| crate::crd::registration::compare(&v.name, &version.name).is_lt());
        let newest = newer.min_by(|a, b| crate::crd::registration::compare(&a.name, &b.name));
        let message = format!("{group}/{} {kind} is deprecated", version.name);
        Some(match newest {
            Some(newest) => format!("{message}; use {group}/{} {kind}", newest.name),
            None => message,
        })
    }

    /// Reads a stored value: removes fields that the schema of its version does not have, adds
    /// defaults, and converts it unless a webhook has to.
    ///
    /// # Errors
    /// If the bytes are not an object.
    pub(crate) fn read(&self, bytes: Bytes, revision: i64) -> Result<Read, ReadError> {
        let mut value: Value = serde_json::from_slice(&bytes)?;
        let stored = value.get("apiVersion").and_then(Value::as_str).unwrap_or_default().to_owned();
        let own = self.gvk.api_version();
        let index = if stored == own { Some(self.version) } else { self.family.position(&stored) };
        if let Some(compiled) = index.map(|index| self.family.compiled(index)) {
            compiled.clean(&mut value);
            compiled.default(&mut value);
        }
        // Objects written by very old servers have no generation.
        if matches!(metadata::number(&value, "generation"), None | Some(0)) {
            metadata::metadata_mut(&mut value).insert("generation".into(), 1.into());
        }
        if stored != own {
            if convert::is_webhook(self.definition()) {
                return Ok(Read::Foreign(value));
            }
            convert::rename(&mut value, &own);
            return self.finish(value, revision).map(Read::Ready);
        }
        let encoded = encode(&value, &self.gvk);
        // An unchanged object shares the bytes of the store.
        let bytes = if encoded == bytes { bytes } else { encoded };
        Ok(Read::Ready(Object::from_stored(bytes, revision)?))
    }

    /// Creates the object from the result of a conversion to this version.
    ///
    /// # Errors
    /// If the value is not an object.
    pub(crate) fn finish(&self, mut value: Value, revision: i64) -> Result<Object, ReadError> {
        self.compiled().clean(&mut value);
        Ok(Object::from_stored(encode(&value, &self.gvk), revision)?)
    }

    /// Converts objects of other versions to this one with the webhook of the definition.
    ///
    /// # Errors
    /// If the webhook cannot be called or does not convert all objects.
    pub(crate) async fn convert(
        &self,
        objects: Vec<Value>,
        callout: Option<&Callout>,
    ) -> Result<Vec<Value>, ConversionError> {
        self.call_webhook(objects, &self.gvk.api_version(), callout).await
    }

    /// Converts objects to the version `to` (`group/version`) with the webhook of the definition.
    async fn call_webhook(
        &self,
        objects: Vec<Value>,
        to: &str,
        callout: Option<&Callout>,
    ) -> Result<Vec<Value>, ConversionError> {
        let started = base::clock::now();
        let version =
            |api_version: &str| api_version.rsplit('/').next().unwrap_or_default().to_owned();
        let version_of = |object: &Value| {
            version(object.get("apiVersion").and_then(Value::as_str).unwrap_or_default())
        };
        let from = objects.first().map(version_of).unwrap_or_default();
        let converted = match self.family.webhook(callout) {
            Ok(webhook) => webhook.convert(objects, to).await,
            Err(error) => Err(error),
        };
        let took = base::clock::now().duration_since(started);
        let versions = (from.as_str(), &*version(to));
        metrics::definition_converted(
            &self.definition().object.key.name,
            versions,
            converted.is_ok(),
            took,
        );
        converted
    }

    /// The bytes to store for an object of this version; `storage` has the storage version.
    ///
    /// # Errors
    /// If the object cannot be converted to the storage version.
    pub(crate) async fn to_stored(
        &self,
        value: &Value,
        storage: &Gvk,
        callout: Option<&Callout>,
    ) -> Result<Bytes, ConversionError> {
        let (own, target) = (self.gvk.api_version(), storage.api_version());
        if own == target {
            return Ok(encode(value, storage));
        }
        let mut value = value.clone();
        metadata::metadata_mut(&mut value).remove("resourceVersion");
        if convert::is_webhook(self.definition()) {
            let converted = self.call_webhook(vec![value], &target, callout).await?;
            value = converted.into_iter().next().ok_or(ConversionError::NoObject)?;
        } else {
            convert::rename(&mut value, &target);
        }
        if let Some(index) = self.family.position(&target) {
            self.family.compiled(index).clean(&mut value);
        }
        Ok(encode(&value, storage))
    }

    /// The bytes of an object of this version for a response.
    pub(crate) fn bytes(&self, value: &Value) -> Bytes {
        encode(value, &self.gvk)
    }

    /// Sets the defaults of the schema.
    pub(crate) fn default(&self, value: &mut Value) {
        self.compiled().default(value);
    }

    /// Removes the fields that the schema does not have; returns the messages of strict decoding.
    ///
    /// # Errors
    /// An embedded `apiVersion`, `kind` or `metadata` of a wrong type.
    pub(crate) fn prune(&self, value: &mut Value) -> Result<Vec<String>, Box<Error>> {
        let Some(schema) = &self.compiled().schema else { return Ok(Vec::new()) };
        let mut paths = Vec::new();
        if !self.definition().preserve_unknown {
            paths = schema.prune(value, &PruneOptions { resource: true, collect: true });
        }
        paths.extend(schema.coerce(value, false)?);
        Ok(paths.into_iter().map(|path| format!("unknown field \"{path}\"")).collect())
    }

    /// Validates the values against the schema.
    pub(crate) fn values(&self, new: &Value, old: Option<&Value>) -> ErrorList {
        let schema = self.compiled().schema.as_ref();
        schema.map(|schema| schema.values(new, old, &Path::default())).unwrap_or_default()
    }

    /// Validates lists and embedded objects; upstream reports these errors after those of
    /// [`Kind::values`].
    pub(crate) fn invariants(&self, new: &Value, old: Option<&Value>) -> ErrorList {
        let schema = self.compiled().schema.as_ref();
        schema.map(|schema| schema.invariants(new, old)).unwrap_or_default()
    }

    /// Evaluates the CEL rules of the schema and returns errors and warnings. `before` are the
    /// errors of the preceding validations.
    pub(crate) fn rules(
        &self,
        new: &Value,
        old: Option<&Value>,
        before: &[Error],
    ) -> (ErrorList, Vec<String>) {
        let Some(schema) = self.compiled().schema.as_ref() else { return Default::default() };
        let started = base::clock::now();
        let (has_rules, was_compiled) = schema.compile();
        let compiled = base::clock::now();
        if was_compiled && has_rules {
            metrics::COMPILED.took(&[], compiled.duration_since(started));
        }
        let outcome = schema.rules(new, old, before);
        if has_rules {
            metrics::EVALUATED.took(&[], compiled.elapsed());
        }
        outcome
    }

    /// Validates the values of `status` against the schema.
    pub(crate) fn status_values(&self, new: &Value, old: &Value) -> ErrorList {
        let schema = self.compiled().schema.as_ref().and_then(|schema| schema.property("status"));
        let (Some(schema), Some(status)) = (schema, new.get("status")) else {
            return ErrorList::new();
        };
        let was = old.get("status").unwrap_or(&Value::Null);
        schema.values(status, Some(was), &Path::new("status"))
    }

    /// Validates the lists of the object after a write of the status.
    pub(crate) fn status_invariants(&self, new: &Value, old: &Value) -> ErrorList {
        let schema = self.compiled().schema.as_ref();
        schema.map(|schema| schema.lists(new, Some(old))).unwrap_or_default()
    }
}

/// Encodes an object, kind and version first.
fn encode(value: &Value, gvk: &Gvk) -> Bytes {
    let head = format!("{{\"kind\":\"{}\",\"apiVersion\":\"{}\",", gvk.kind, gvk.api_version());
    crate::registry::storage::encode_as(&head, value).into()
}
