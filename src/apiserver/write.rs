//! The one pipeline of writes: defaults, admission, strategy, validation, store. Every verb that changes an object ends here.

mod admission;
mod commit;
pub(crate) mod device_claims;
pub(crate) mod managed_fields;
mod preconditions;
pub(crate) mod service_allocation;

use std::sync::Arc;

use api::field::{Error, Path};
use api::{Object, Status};
use serde_json::{Map, Value};

use crate::admission::Operation;
use crate::registry::convert;
use crate::registry::lookup::Lookup;
use crate::registry::storage::{self, Written};
use crate::registry::strategy::WriteContext;
use crate::registry::unsupported::IngressClasses;
use crate::registry::{Resource, metadata};
use crate::request::context::Context;
use crate::request::input;
use crate::request::options::WriteOptions;
use crate::response::status;
use preconditions::no_revision;
pub(crate) use preconditions::{same_name, unversioned, url_name};

/// How often a generated name is tried anew (upstream's `maxNameGenerationCreateAttempts`).
const GENERATE_MAX: usize = 8;
/// How often a write that names no resource version is tried against a newer object.
const RETRY_MAX: usize = 10;

/// Part of the warning of owners that admission doubled.
const AFTER_ADMISSION: &str = " after mutating admission happens";

/// The scheduler's decision is no edit of the pod: no strategy looks at it, as upstream.
const BINDING: &str = "binding";

/// What is written, apart from the object itself.
pub(crate) struct Write<'a> {
    pub(crate) context: &'a Context,
    pub(crate) options: &'a WriteOptions,
    /// Row written; differs from the context's for evictions and the like.
    pub(crate) row: &'a Arc<Resource>,
    pub(crate) subresource: &'a str,
    /// A server-side apply, which has noted its managed fields itself.
    pub(crate) applies: bool,
    /// Options of a deletion, for those who admit it.
    pub(crate) delete_options: Option<Map<String, Value>>,
}

/// What to store when there is no object.
pub(crate) type Create<'a> = Box<dyn FnOnce() -> Result<Value, Status> + Send + 'a>;

/// The outcome of an update.
pub(crate) struct Updated {
    pub(crate) object: Arc<Object>,
    pub(crate) created: bool,
}

impl<'a> Write<'a> {
    pub(crate) fn new(context: &'a Context, options: &'a WriteOptions) -> Self {
        Self {
            context,
            options,
            row: &context.row,
            subresource: &context.info.subresource,
            applies: false,
            delete_options: None,
        }
    }

    fn strategy_context(&self) -> WriteContext<'_> {
        WriteContext {
            user: &self.context.user,
            namespace: self.context.namespace(),
            subresource: self.subresource,
            dry_run: self.options.dry_run,
            tolerated: Default::default(),
        }
    }

    fn default(&self, value: &mut Value) {
        crate::serialization::default(
            &self.context.server.objects.registry().schema,
            &self.row.spec.gvk,
            value,
        );
        self.row.spec.strategy.default(value);
    }

    /// Notes who sets which field; an apply has done so itself.
    pub(crate) fn track(&self, old: Option<&Value>, value: &mut Value) {
        if !self.applies {
            crate::write::managed_fields::track(
                self.context,
                self.row,
                self.subresource,
                &self.options.manager,
                old,
                value,
            );
        }
    }

    /// The normal form, as Go would write it: what defaults and edits left empty is gone.
    fn normalize(&self, value: &mut Value) {
        crate::serialization::normalize(
            &self.context.server.objects.registry().schema,
            &self.row.spec.gvk,
            value,
        );
    }

    /// Sets the namespace of the request.
    ///
    /// # Errors
    /// 400 when the object names another.
    pub(crate) fn place(&self, value: &mut Value) -> Result<(), Status> {
        let wanted = self.context.namespace();
        let given = metadata::text(value, "namespace");
        if given == wanted {
            return Ok(());
        }
        if wanted.is_empty() {
            metadata::metadata_mut(value).remove("namespace");
            return Ok(());
        }
        if !given.is_empty() {
            return Err(Status::bad_request(
                "the namespace of the provided object does not match the namespace sent on the request",
            ));
        }
        metadata::metadata_mut(value).insert("namespace".into(), wanted.into());
        Ok(())
    }

    fn invalid(&self, name: &str, errors: &[Error]) -> Status {
        let kind = &self.row.spec.gvk;
        // Upstream has one type for the events of both groups, and names the older one.
        let group = if &*kind.group == "events.k8s.io" { "" } else { &*kind.group };
        Status::invalid(group, &kind.kind, name, errors)
    }

    /// Creates the object and returns it as stored.
    ///
    /// # Errors
    /// Any refusal on the way.
    pub(crate) async fn create(&self, mut value: Value) -> Result<Arc<Object>, Status> {
        let spec = &self.row.spec;
        if spec.custom.as_ref().is_some_and(|custom| custom.is_terminating()) {
            let why = "create not allowed while custom resource definition is terminating";
            let name = metadata::text(&value, "name");
            return Err(Status::forbidden(&spec.gvr.group, &spec.gvr.resource, name, why));
        }
        input::name_kind(&mut value, &spec.gvk);
        if self.context.info.verb == "create" {
            metadata::wipe(&mut value);
        }
        self.place(&mut value)?;
        self.default(&mut value);
        let size = &self.context.size;
        size.checkpoint().await;
        let name = metadata::text(&value, "name").to_owned();
        self.one_of_each_owner(&mut value, "");
        // Noted before admission and the strategy: what those add is nobody's.
        self.track(None, &mut value);
        size.checkpoint().await;
        let mut value = self.mutate(Operation::Create, &name, None, value).await?;
        self.one_of_each_owner(&mut value, AFTER_ADMISSION);
        self.default(&mut value);
        let generated = metadata::text(&value, "name").is_empty()
            && !metadata::text(&value, "generateName").is_empty();
        metadata::wipe(&mut value);
        metadata::fill_on_create(&mut value);
        self.place(&mut value)?;
        let held = service_allocation::before_create(
            self.context,
            self.row,
            &mut value,
            self.options.dry_run,
        )
        .await?;
        let finished = self.finish_create(value, generated).await;
        held.settle(finished.is_ok()).await;
        finished
    }

    async fn finish_create(
        &self,
        mut value: Value,
        generated: bool,
    ) -> Result<Arc<Object>, Status> {
        let spec = &self.row.spec;
        // What a PUT of the status creates is a whole object.
        let context = WriteContext { subresource: "", ..self.strategy_context() };
        spec.strategy.prepare_for_create(&context, &mut value);
        let name = metadata::text(&value, "name").to_owned();
        let size = &self.context.size;
        size.checkpoint().await;
        let mut errors = metadata::validate(&value, spec.namespaced, spec.strategy.as_ref());
        // The rules of these kinds leave the metadata to the generic part, which is asked when nothing else is wrong.
        errors.extend(device_claims::faults(self.context, &value, None).await);
        let own = spec.strategy.validate(&context, &value);
        let generic = matches!(
            (&*spec.gvk.group, &*spec.gvk.kind),
            ("policy", "PodDisruptionBudget") | ("", "Event")
        );
        if generic && !own.is_empty() {
            errors.clear();
        }
        errors.extend(own);
        if !errors.is_empty() {
            return Err(self.invalid(&name, &errors));
        }
        size.checkpoint().await;
        for warning in spec.strategy.warnings_on_create(&context, &value) {
            self.context.warn(warning);
        }
        self.normalize(&mut value);
        size.checkpoint().await;
        let reservation = self.admit(Operation::Create, &name, None, Some(&value)).await?;
        self.warn_unsupported(&value).await;
        // The store's own refusal: a trial, which stores nothing, does not meet it and shows what was sent.
        let version = metadata::text(&value, "resourceVersion");
        // What is no number counts as none there.
        if version.parse::<u64>().map_or(true, |number| number == 0) {
            if version.is_empty() || !self.options.dry_run {
                metadata::metadata_mut(&mut value).remove("resourceVersion");
            }
        } else if !self.options.dry_run {
            let why = "resourceVersion should not be set on objects to be created";
            return Err(status::unmapped(500, why));
        }
        self.store_new(value, generated, reservation).await
    }

    /// Owners named twice are stored once, and the client is told; a patch is looked at after admission only.
    pub(crate) fn one_of_each_owner(&self, value: &mut Value, when: &str) {
        if when.is_empty() && self.context.info.verb == "patch" {
            return;
        }
        let doubled = metadata::one_of_each_owner(value);
        if !doubled.is_empty() {
            self.context.warn(format!(
                ".metadata.ownerReferences contains duplicate entries{when}; API server dedups owner references in 1.20+, and may reject \
                 such requests as early as 1.24; please fix your requests; duplicate UID(s) observed: {}",
                doubled.join(", ")
            ));
        }
    }

    /// Tells of what is stored and not acted on; a write of the status alone sets nothing of that.
    async fn warn_unsupported(&self, value: &Value) {
        if !self.options.dry_run && self.subresource != "status" {
            let kind = &self.row.spec.gvk;
            let classes = IngressClasses::for_kind(kind, &*self.context.server.objects).await;
            for warning in crate::registry::unsupported::warnings(kind, value, &classes) {
                self.context.warn(warning);
            }
        }
    }

    /// The object as it would be stored.
    pub(crate) fn dry(&self, value: &Value, revision: i64) -> Result<Arc<Object>, Status> {
        let sent = metadata::text(value, "resourceVersion");
        let bytes = match &self.row.spec.custom {
            // A version that a client sent with what is to be created, which need not be a number.
            _ if revision == 0 && !sent.is_empty() => {
                serde_json::to_vec(value).map_err(|e| Status::internal(&e.to_string()))?.into()
            }
            Some(custom) => custom.bytes(value),
            None => storage::encode(self.row, value).into(),
        };
        let object =
            Object::from_stored(bytes, revision).map_err(|e| Status::internal(&e.to_string()))?;
        Ok(Arc::new(object))
    }

    /// Changes the object `name` as `produce` says, which gets the current state (in the row's version) and returns the new one.
    /// `create` is what to store when there is none.
    ///
    /// # Errors
    /// Any refusal on the way; 409 when the object changed and the new state names a resource version.
    pub(crate) async fn update(
        &self,
        name: &str,
        create: Option<Create<'_>>,
        produce: &mut (dyn FnMut(&Value) -> Result<Value, Status> + Send),
    ) -> Result<Updated, Status> {
        let objects = &self.context.server.objects;
        let mut current = objects.storage().get(self.row, self.context.namespace(), name).await?;
        for attempt in 1.. {
            let Some(found) = current.take() else {
                return match create {
                    Some(create) => {
                        Ok(Updated { object: self.create(create()?).await?, created: true })
                    }
                    None => Err(self.context.not_found(name)),
                };
            };
            self.context.size.note(found.raw().len()).await;
            let stored = found.value().map_err(|e| Status::internal(&e.to_string()))?;
            let old = convert::from_storage(self.row, stored);
            self.context.size.checkpoint().await;
            let new = produce(&old)?;
            self.context.size.checkpoint().await;
            let named_version = !matches!(metadata::text(&new, "resourceVersion"), "" | "0");
            match self.update_once(name, &found, old, new).await? {
                Ok(object) => return Ok(Updated { object, created: false }),
                Err(changed)
                    if attempt < RETRY_MAX
                        && (!named_version || self.context.info.verb == "patch") =>
                {
                    current = changed
                }
                Err(_) => return Err(self.conflict(name)),
            }
        }
        Err(self.conflict(name))
    }

    /// 409 of a write that names another uid than the stored object's, or one where there is no object.
    pub(crate) fn other_uid(&self, name: &str, wanted: &str, there: &str) -> Status {
        self.unmet_precondition(name, "UID", wanted, there)
    }

    /// 409 of a write whose precondition about `field` does not hold.
    pub(crate) fn unmet_precondition(
        &self,
        name: &str,
        field: &str,
        wanted: &str,
        there: &str,
    ) -> Status {
        let key = self.row.key(self.context.namespace(), name);
        // A trial does not reach the store, whose keys have this prefix.
        let key = if self.options.dry_run { key.trim_start_matches("/registry") } else { &key };
        let why = format!(
            "StorageError: invalid object, Code: 4, Key: {key}, ResourceVersion: 0, AdditionalErrorMsg: Precondition failed: {field} in \
             precondition: {wanted}, {field} in object meta: {there}"
        );
        Status::conflict(&self.row.spec.gvr.group, &self.row.spec.gvr.resource, name, &why)
    }

    pub(crate) fn conflict(&self, name: &str) -> Status {
        Status::conflict(
            &self.row.spec.gvr.group,
            &self.row.spec.gvr.resource,
            name,
            crate::response::status::MODIFIED,
        )
    }

    async fn update_once(
        &self,
        name: &str,
        found: &Object,
        old: Value,
        new: Value,
    ) -> Result<Result<Arc<Object>, Option<Object>>, Status> {
        let spec = &self.row.spec;
        let mut value = new;
        input::name_kind(&mut value, &spec.gvk);
        self.check_identity(name, found, &mut value)?;
        self.default(&mut value);
        self.one_of_each_owner(&mut value, "");
        self.context.size.checkpoint().await;
        if self.subresource != BINDING {
            self.track(Some(&old), &mut value);
        }
        self.context.size.checkpoint().await;
        let mut value = self.mutate(Operation::Update, name, Some(&old), value).await?;
        self.one_of_each_owner(&mut value, AFTER_ADMISSION);
        self.default(&mut value);
        metadata::keep_generation(&mut value, &old);
        self.check_node(name, &old).await?;
        let held = service_allocation::before_update(
            self.context,
            self.row,
            self.subresource,
            &mut value,
            &old,
            self.options.dry_run,
        )
        .await?;
        let finished = self.finish_update(name, found, old, value).await;
        held.settle(matches!(finished, Ok(Ok(_)))).await;
        finished
    }

    /// A pod's resources can only be changed where its node is known, since that has to take the change up.
    async fn check_node(&self, name: &str, old: &Value) -> Result<(), Status> {
        let node = old.pointer("/spec/nodeName").and_then(Value::as_str).unwrap_or_default();
        if self.subresource != "resize" || node.is_empty() {
            return Ok(());
        }
        let found =
            self.context.server.objects.get(&crate::registry::lookup::NODES, "", node).await?;
        match found {
            Some(_) => Ok(()),
            None => Err(Status::forbidden(
                "",
                "pods",
                name,
                &format!("node {} not found", api::field::go_quote(node)),
            )),
        }
    }

    /// Name, namespace, uid and resource version against the stored object.
    fn check_identity(&self, name: &str, found: &Object, value: &mut Value) -> Result<(), Status> {
        self.place(value)?;
        same_name(value, name)?;
        let uid = metadata::text(value, "uid");
        // A patch states no precondition: that its object has another uid is a change that is not allowed.
        let is_patch = self.context.info.verb == "patch";
        if !is_patch && !uid.is_empty() && *uid != *found.uid {
            return Err(self.other_uid(name, uid, &found.uid));
        }
        let version = metadata::text(value, "resourceVersion");
        let current = found.resource_version.to_string();
        if matches!(version, "" | "0") {
            if !self.row.spec.strategy.allow_unconditional_update() {
                let path = Path::new("metadata").child("resourceVersion");
                let given = Value::from(version.parse::<i64>().unwrap_or(0));
                // Named by its resource instead of its kind, as upstream's storage does.
                let gvr = &self.row.spec.gvr;
                return Err(Status::invalid(
                    &gvr.group,
                    &gvr.resource,
                    name,
                    &[Error::invalid(&path, given, "must be specified for an update")],
                ));
            }
        } else if let Some(why) = no_revision(version) {
            return Err(status::unmapped(500, why));
        } else if version != current {
            return Err(self.conflict(name));
        }
        metadata::metadata_mut(value).insert("resourceVersion".into(), current.into());
        Ok(())
    }

    /// Strategy and validation of a change.
    async fn check_change(&self, name: &str, old: &Value, value: &mut Value) -> Result<(), Status> {
        let spec = &self.row.spec;
        let context = self.strategy_context();
        spec.strategy.prepare_for_update(&context, value, old);
        metadata::keep_on_update(value, old);
        let mut errors = metadata::validate_update(value, old, spec.namespaced);
        errors.extend(device_claims::faults(self.context, value, Some(old)).await);
        errors.extend(spec.strategy.validate_update(&context, value, old));
        if !errors.is_empty() {
            return Err(self.invalid(name, &errors));
        }
        for warning in spec.strategy.warnings_on_update(&context, value, old) {
            self.context.warn(warning);
        }
        Ok(())
    }

    /// The write would store what is there. A custom resource that lies in another version, or without defaults that came
    /// since, is stored anew: so objects are brought to a new storage version, and to a new key.
    async fn is_stored(&self, found: &Object, value: &Value) -> Result<bool, Status> {
        let stored = self.context.server.objects.storage();
        let Some(custom) = &self.row.spec.custom else {
            return Ok(storage::encode(self.row, value) == found.raw().as_ref()
                && !stored.is_stale(self.row, found).await?);
        };
        if custom.bytes(value) != *found.raw() {
            return Ok(false);
        }
        stored.is_stored(self.row, found, value).await
    }

    async fn finish_update(
        &self,
        name: &str,
        found: &Object,
        old: Value,
        mut value: Value,
    ) -> Result<Result<Arc<Object>, Option<Object>>, Status> {
        if self.subresource != BINDING {
            self.check_change(name, &old, &mut value).await?;
        }
        self.context.size.checkpoint().await;
        self.normalize(&mut value);
        let reservation = self.admit(Operation::Update, name, Some(&old), Some(&value)).await?;
        self.warn_unsupported(&value).await;
        api::patch::apply::keep_times_if_unchanged(&old, &mut value);
        let value = convert::to_storage(self.row, value);
        if self.is_stored(found, &value).await? {
            return Ok(Ok(Arc::new(found.clone())));
        }
        if self.options.dry_run {
            return self.dry(&value, found.resource_version).map(Ok);
        }
        let storage = self.context.server.objects.storage();
        if is_finalized(self.row, &value) {
            return match storage.delete(self.row, found).await? {
                Ok(_) => {
                    service_allocation::deleted(self.context, self.row, &value).await;
                    self.dry(&value, found.resource_version).map(Ok)
                }
                Err(changed) => Ok(Err(changed)),
            };
        }
        let expected = found.resource_version;
        let prepared = storage.prepare_replace(self.row, old, value, expected).await?;
        match self.put(&prepared, reservation).await?.0 {
            Written::Done(object) => Ok(Ok(Arc::new(object))),
            Written::Changed(changed) => Ok(Err(changed)),
        }
    }
}

/// The object only waited for its finalizers, and the last one is gone.
fn is_finalized(row: &Resource, value: &Value) -> bool {
    let deleting = !metadata::text(value, "deletionTimestamp").is_empty();
    let graceless = metadata::number(value, "deletionGracePeriodSeconds").unwrap_or(0) == 0;
    let namespace_done = row.spec.gvk.kind.as_ref() != "Namespace"
        || value.pointer("/spec/finalizers").and_then(Value::as_array).is_none_or(Vec::is_empty);
    deleting && graceless && namespace_done && metadata::finalizers(value).is_empty()
}
