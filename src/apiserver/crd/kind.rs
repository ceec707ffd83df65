//! One version of a custom resource as its row knows it, and what is compiled from its schema on
//! first use.

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
use super::types;
use crate::metrics::admission as metrics;
use crate::registry::metadata;
use crate::webhook::Callout;

/// What a write of `status` may not touch (upstream's `statusStrategy.GetResetFields`).
static ALL_BUT_STATUS: LazyLock<Set> =
    LazyLock::new(|| Set::of_fields(&[&["metadata"], &["spec"]]));
/// What a write of the object itself may not touch where there is a `status` subresource.
static STATUS: LazyLock<Set> = LazyLock::new(|| Set::of_fields(&[&["status"]]));

/// Numbers of families, so that caches of an old form of a definition are told from those of the
/// new one.
static NEXT: AtomicU64 = AtomicU64::new(1);

/// All versions of one definition as it stands: what its rows share.
#[derive(Debug)]
pub(crate) struct Family {
    pub(crate) definition: Definition,
    /// Distinguishes this form of the definition from all others of this process.
    pub(crate) number: u64,
    /// What is made of the schemas, by version, on first use.
    compiled: Box<[OnceLock<Compiled>]>,
    nothing: OnceLock<Compiled>,
    webhook: OnceLock<Result<Webhook, String>>,
    /// Another form has taken its place: no cache is started for it any more.
    retired: AtomicBool,
}

/// A stored value as one version sees it.
pub(crate) enum Read {
    /// As it is, or renamed.
    Ready(Object),
    /// Of another version, for the webhook to convert.
    Foreign(Value),
}

/// What is made of the schema of one version.
#[derive(Debug)]
struct Compiled {
    /// None when the version has no schema.
    schema: Option<Structural>,
    types: (Arc<Schema>, TypeId),
    keeps_unknown: bool,
}

impl Compiled {
    fn default(&self, value: &mut Value) {
        if let Some(schema) = &self.schema {
            schema.default(value);
        }
    }

    /// Takes out of a stored or converted object what does not belong there.
    fn clean(&self, value: &mut Value) {
        let Some(schema) = &self.schema else { return };
        if !self.keeps_unknown {
            schema.prune(value, &PruneOptions { resource: true, collect: false });
        }
        if let Err(error) = schema.coerce(value, true) {
            tracing::debug!(%error, "an embedded object is kept as it is");
        }
    }
}

impl Family {
    /// The webhook that converts, made when it is needed first.
    fn webhook(&self, callout: Option<&Callout>) -> Result<&Webhook, String> {
        let callout = callout.ok_or("this server has no way to webhooks")?;
        let made = self.webhook.get_or_init(|| Webhook::new(&self.definition.conversion, callout));
        made.as_ref().map_err(Clone::clone)
    }

    fn compiled(&self, at: usize) -> &Compiled {
        // A version is asked for by the rows that were made for it, so there is one.
        match self.compiled.get(at) {
            Some(slot) => slot.get_or_init(|| self.compile(at)),
            None => self.nothing.get_or_init(|| Compiled {
                schema: None,
                types: types::of(None),
                keeps_unknown: true,
            }),
        }
    }

    fn compile(&self, at: usize) -> Compiled {
        let definition = &self.definition;
        let name = definition.versions.get(at).map_or("", |v| &v.name);
        let source: Option<Value> =
            definition.schema(name).and_then(|text| serde_json::from_str(text).ok());
        let schema = source.as_ref().and_then(|source| match Structural::new(source) {
            Ok(schema) => Some(schema),
            Err(errors) => {
                let errors: Vec<String> = errors.iter().map(ToString::to_string).collect();
                tracing::error!(definition = %definition.name(), version = name, errors = errors.join("; "),
                    "the schema cannot be used, objects are taken without one");
                None
            }
        });
        let types = types::of(schema.as_ref().filter(|_| !definition.preserve_unknown));
        Compiled { schema, types, keeps_unknown: definition.preserve_unknown }
    }

    /// Place of the version that an `apiVersion` names.
    fn position(&self, api_version: &str) -> Option<usize> {
        let version = api_version.strip_prefix(&*self.definition.group)?.strip_prefix('/')?;
        self.definition.versions.iter().position(|v| *v.name == *version)
    }

    pub(crate) fn new(definition: Definition) -> Arc<Self> {
        Arc::new(Self {
            compiled: definition.versions.iter().map(|_| OnceLock::new()).collect(),
            nothing: OnceLock::new(),
            webhook: OnceLock::new(),
            definition,
            number: NEXT.fetch_add(1, Ordering::Relaxed),
            retired: AtomicBool::new(false),
        })
    }

    /// Its rows are gone, or about to be.
    pub(crate) fn retire(&self) {
        self.retired.store(true, Ordering::Release);
    }
}

/// One version of a custom resource.
#[derive(Debug)]
pub struct Kind {
    family: Arc<Family>,
    version: usize,
    /// Group, version and kind of its objects.
    gvk: Gvk,
}

impl Kind {
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

    /// Number of this form of the definition.
    pub(crate) fn number(&self) -> u64 {
        self.family.number
    }

    /// Another form of the definition is served by now.
    pub(crate) fn is_retired(&self) -> bool {
        self.family.retired.load(Ordering::Acquire)
    }

    /// The definition is being deleted: nothing new is made.
    pub(crate) fn is_terminating(&self) -> bool {
        self.family.definition.is_terminating()
    }

    /// The `scale` subresource.
    pub(crate) fn scale(&self) -> Option<&ScalePaths> {
        self.version()?.scale()
    }

    /// Fields that a write through a subresource (empty: none) resets.
    pub(crate) fn reset(&self, subresource: &str) -> Option<&'static Set> {
        let has_status = self.version().is_some_and(Version::has_status);
        match subresource {
            "status" => Some(&ALL_BUT_STATUS),
            _ if has_status => Some(&STATUS),
            _ => None,
        }
    }

    /// The types that server-side apply walks, and that of an object.
    pub(crate) fn types(&self) -> (Arc<Schema>, TypeId) {
        let compiled = self.compiled();
        (Arc::clone(&compiled.types.0), compiled.types.1)
    }

    fn compiled(&self) -> &Compiled {
        self.family.compiled(self.version)
    }

    /// What its OpenAPI documents need.
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

    /// What every request about a deprecated version is warned of (`defaultDeprecationWarning`).
    pub(crate) fn deprecation(&self) -> Option<String> {
        let version = self.version().filter(|v| v.deprecated)?;
        if let Some(own) = &version.deprecation_warning {
            return Some(own.clone());
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

    /// The first half of reading a stored value: what the schema of its version does not know is
    /// gone, defaults that came since are there.
    ///
    /// # Errors
    /// A sentence.
    pub(crate) fn read(&self, bytes: Bytes, revision: i64) -> Result<Read, String> {
        let mut value: Value = serde_json::from_slice(&bytes).map_err(|e| e.to_string())?;
        let stored = value.get("apiVersion").and_then(Value::as_str).unwrap_or_default().to_owned();
        let own = self.gvk.api_version();
        let at = if stored == own { Some(self.version) } else { self.family.position(&stored) };
        if let Some(compiled) = at.map(|at| self.family.compiled(at)) {
            compiled.clean(&mut value);
            compiled.default(&mut value);
        }
        // Very old objects have none.
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
        let new = own_bytes(&value, &self.gvk);
        // What did not change shares the bytes of the store.
        let bytes = if new == bytes { bytes } else { new };
        Object::from_stored(bytes, revision).map(Read::Ready).map_err(|e| e.to_string())
    }

    /// The second half: a converted object.
    ///
    /// # Errors
    /// A sentence.
    pub(crate) fn finish(&self, mut value: Value, revision: i64) -> Result<Object, String> {
        self.compiled().clean(&mut value);
        Object::from_stored(own_bytes(&value, &self.gvk), revision).map_err(|e| e.to_string())
    }

    /// Objects of other versions as this one.
    ///
    /// # Errors
    /// Upstream's sentence.
    pub(crate) async fn convert(
        &self,
        objects: Vec<Value>,
        callout: Option<&Callout>,
    ) -> Result<Vec<Value>, String> {
        self.by_webhook(objects, &self.gvk.api_version(), callout).await
    }

    /// Asks the webhook of the definition for objects in the version `to` (`group/version`).
    ///
    /// # Errors
    /// Upstream's sentence.
    async fn by_webhook(
        &self,
        objects: Vec<Value>,
        to: &str,
        callout: Option<&Callout>,
    ) -> Result<Vec<Value>, String> {
        let begun = base::clock::now();
        let version = |of: &str| of.rsplit('/').next().unwrap_or_default().to_owned();
        let of = |object: &Value| {
            version(object.get("apiVersion").and_then(Value::as_str).unwrap_or_default())
        };
        let from = objects.first().map(of).unwrap_or_default();
        let converted = match self.family.webhook(callout) {
            Ok(webhook) => webhook.convert(objects, to).await,
            Err(why) => Err(why),
        };
        let took = base::clock::now().duration_since(begun);
        let versions = (from.as_str(), &*version(to));
        metrics::definition_converted(
            &self.definition().object.key.name,
            versions,
            converted.is_ok(),
            took,
        );
        converted
    }

    /// The bytes to store for an object of this version.
    ///
    /// # Errors
    /// A sentence.
    pub(crate) async fn to_stored(
        &self,
        value: &Value,
        storage: &Gvk,
        callout: Option<&Callout>,
    ) -> Result<Bytes, String> {
        let (own, wanted) = (self.gvk.api_version(), storage.api_version());
        if own == wanted {
            return Ok(own_bytes(value, storage));
        }
        let mut value = value.clone();
        metadata::metadata_mut(&mut value).remove("resourceVersion");
        if convert::is_webhook(self.definition()) {
            let converted = self.by_webhook(vec![value], &wanted, callout).await?;
            value = converted.into_iter().next().ok_or("no object was converted")?;
        } else {
            convert::rename(&mut value, &wanted);
        }
        if let Some(at) = self.family.position(&wanted) {
            self.family.compiled(at).clean(&mut value);
        }
        Ok(own_bytes(&value, storage))
    }

    /// The bytes of an object in this version, as they are answered.
    pub(crate) fn bytes(&self, value: &Value) -> Bytes {
        own_bytes(value, &self.gvk)
    }

    /// Sets the defaults of the schema.
    pub(crate) fn default(&self, value: &mut Value) {
        self.compiled().default(value);
    }

    /// Takes out what the schema does not know; the texts of strict decoding.
    ///
    /// # Errors
    /// The text of an embedded object that is none.
    pub(crate) fn prune(&self, value: &mut Value) -> Result<Vec<String>, String> {
        let Some(schema) = &self.compiled().schema else { return Ok(Vec::new()) };
        let mut paths = Vec::new();
        if !self.definition().preserve_unknown {
            paths = schema.prune(value, &PruneOptions { resource: true, collect: true });
        }
        paths.extend(schema.coerce(value, false).map_err(|error| error.to_string())?);
        Ok(paths.into_iter().map(|path| format!("unknown field \"{path}\"")).collect())
    }

    /// Errors of the values.
    pub(crate) fn values(&self, new: &Value, old: Option<&Value>) -> ErrorList {
        let schema = self.compiled().schema.as_ref();
        schema.map(|schema| schema.values(new, old, &Path::default())).unwrap_or_default()
    }

    /// Errors of lists and embedded objects, behind those of the values.
    pub(crate) fn invariants(&self, new: &Value, old: Option<&Value>) -> ErrorList {
        let schema = self.compiled().schema.as_ref();
        schema.map(|schema| schema.invariants(new, old)).unwrap_or_default()
    }

    /// Errors of rules in CEL, behind all others, and warnings.
    pub(crate) fn rules(
        &self,
        new: &Value,
        old: Option<&Value>,
        before: &[Error],
    ) -> (ErrorList, Vec<String>) {
        let Some(schema) = self.compiled().schema.as_ref() else { return Default::default() };
        let begun = base::clock::now();
        let (any, now) = schema.compile();
        let compiled = base::clock::now();
        if now && any {
            metrics::COMPILED.took(&[], compiled.duration_since(begun));
        }
        let found = schema.rules(new, old, before);
        if any {
            metrics::EVALUATED.took(&[], compiled.elapsed());
        }
        found
    }

    /// Errors of the values of `status`.
    pub(crate) fn status_values(&self, new: &Value, old: &Value) -> ErrorList {
        let schema = self.compiled().schema.as_ref().and_then(|schema| schema.property("status"));
        let (Some(schema), Some(status)) = (schema, new.get("status")) else {
            return ErrorList::new();
        };
        let was = old.get("status").unwrap_or(&Value::Null);
        schema.values(status, Some(was), &Path::new("status"))
    }

    /// Errors of lists that a write of the status leaves.
    pub(crate) fn status_invariants(&self, new: &Value, old: &Value) -> ErrorList {
        let schema = self.compiled().schema.as_ref();
        schema.map(|schema| schema.lists(new, Some(old))).unwrap_or_default()
    }
}

/// The stored form, kind and version first.
fn own_bytes(value: &Value, gvk: &Gvk) -> Bytes {
    let head = format!("{{\"kind\":\"{}\",\"apiVersion\":\"{}\",", gvk.kind, gvk.api_version());
    crate::registry::storage::encode_as(&head, value).into()
}
