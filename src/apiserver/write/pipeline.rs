//! The steps of every write in their order: defaulting, managed fields, mutating admission,
//! preparation and validation by the strategy, validating admission, commit (upstream's
//! `Store.Create` and `Store.Update` in `pkg/registry/generic/registry`).

use std::sync::Arc;

use api::{Object, Status};
use serde_json::Value;

use super::{BINDING, Create, UpdateAttempt, Updated, Write, service_allocation};
use crate::admission::Operation;
use crate::registry::{convert, metadata};
use crate::request::input;

/// How often a write without a resource version is tried against a newer object.
const RETRY_MAX: usize = 10;

/// Part of the warning about owner references that admission repeated.
const AFTER_ADMISSION: &str = " after mutating admission happens";

impl Write<'_> {
    /// Creates the object and returns it as stored.
    ///
    /// # Errors
    /// The error of any step.
    pub(crate) async fn create(&self, mut value: Value) -> Result<Arc<Object>, Status> {
        self.check_not_terminating(&value)?;
        // Clients cannot set system fields.
        input::name_kind(&mut value, &self.row.spec.gvk);
        if self.context.info.verb == "create" {
            metadata::reset_system_fields(&mut value);
        }
        self.set_request_namespace(&mut value)?;
        self.default(&mut value);
        self.context.size.checkpoint().await;
        let name = metadata::text(&value, "name").to_owned();
        self.dedup_owner_references(&mut value, "");
        // Before admission and the strategy: fields that those add have no manager.
        self.update_managed_fields(None, &mut value);
        self.context.size.checkpoint().await;
        let mut value = self.mutate(Operation::Create, &name, None, value).await?;
        self.dedup_owner_references(&mut value, AFTER_ADMISSION);
        // Admission may have added fields that have defaults.
        self.default(&mut value);
        let has_generated_name = metadata::text(&value, "name").is_empty()
            && !metadata::text(&value, "generateName").is_empty();
        metadata::reset_system_fields(&mut value);
        metadata::fill_on_create(&mut value);
        self.set_request_namespace(&mut value)?;
        // Before validation, which checks addresses and ports; released when the write fails.
        let (row, dry_run) = (self.row, self.options.dry_run);
        let held =
            service_allocation::before_create(self.context, row, &mut value, dry_run).await?;
        let created = self.create_allocated(value, has_generated_name).await;
        held.finish(created.is_ok()).await;
        created
    }

    async fn create_allocated(
        &self,
        mut value: Value,
        has_generated_name: bool,
    ) -> Result<Arc<Object>, Status> {
        self.validate_create(&mut value).await?;
        self.normalize(&mut value);
        self.context.size.checkpoint().await;
        let name = metadata::text(&value, "name").to_owned();
        let reservation = self.admit(Operation::Create, &name, None, Some(&value)).await?;
        self.warn_unsupported(&value).await;
        self.check_new_resource_version(&mut value)?;
        self.store_new(value, has_generated_name, reservation).await
    }

    /// Updates the object `name`. `produce` receives the current object (in the row's version) and
    /// returns the new one; `create` produces the object when none exists.
    ///
    /// # Errors
    /// The error of any step; 409 when the object changed and the new state contains a resource
    /// version.
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
            self.context.size.record(found.raw().len()).await;
            let stored = found.value().map_err(|e| Status::internal(&e.to_string()))?;
            let old = convert::from_storage(self.row, stored);
            self.context.size.checkpoint().await;
            let new = produce(&old)?;
            self.context.size.checkpoint().await;
            let named_version = !matches!(metadata::text(&new, "resourceVersion"), "" | "0");
            match self.update_once(name, &found, old, new).await? {
                UpdateAttempt::Done(object) => return Ok(Updated { object, created: false }),
                UpdateAttempt::Changed(changed)
                    if attempt < RETRY_MAX
                        && (!named_version || self.context.info.verb == "patch") =>
                {
                    current = changed
                }
                UpdateAttempt::Changed(_) => return Err(self.conflict(name)),
            }
        }
        Err(self.conflict(name))
    }

    /// One attempt of an update.
    async fn update_once(
        &self,
        name: &str,
        found: &Object,
        old: Value,
        mut value: Value,
    ) -> Result<UpdateAttempt, Status> {
        input::name_kind(&mut value, &self.row.spec.gvk);
        self.check_identity(name, found, &mut value)?;
        self.default(&mut value);
        self.dedup_owner_references(&mut value, "");
        self.context.size.checkpoint().await;
        if self.subresource != BINDING {
            self.update_managed_fields(Some(&old), &mut value);
        }
        self.context.size.checkpoint().await;
        let mut value = self.mutate(Operation::Update, name, Some(&old), value).await?;
        self.dedup_owner_references(&mut value, AFTER_ADMISSION);
        // Admission may have added fields that have defaults.
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
        let updated = self.update_allocated(name, found, old, value).await;
        held.finish(matches!(updated, Ok(UpdateAttempt::Done(_)))).await;
        updated
    }

    async fn update_allocated(
        &self,
        name: &str,
        found: &Object,
        old: Value,
        mut value: Value,
    ) -> Result<UpdateAttempt, Status> {
        if self.subresource != BINDING {
            self.validate_update(name, &old, &mut value).await?;
        }
        self.context.size.checkpoint().await;
        self.normalize(&mut value);
        let reservation = self.admit(Operation::Update, name, Some(&old), Some(&value)).await?;
        self.warn_unsupported(&value).await;
        api::patch::apply::keep_times_if_unchanged(&old, &mut value);
        self.store_changed(found, old, value, reservation).await
    }
}
