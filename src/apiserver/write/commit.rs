//! The last step of a write: commits the object and its quota usage in one transaction.

use std::sync::Arc;

use api::{Object, Status};
use serde_json::Value;

use super::{UpdateAttempt, Write, service_allocation};
use crate::admission::quota::Reservation;
use crate::registry::Resource;
use crate::registry::convert;
use crate::registry::metadata;
use crate::registry::storage::{self, Deletion, LinkedWrite, Prepared, Written};

/// How often a generated name is replaced when it is taken (upstream's
/// `maxNameGenerationCreateAttempts`).
const GENERATE_MAX: usize = 8;

impl Write<'_> {
    /// Commits a prepared write with its quota usage, which is checked again when a quota has
    /// changed since. Returns the reservation for another attempt.
    pub(super) async fn put(
        &self,
        prepared: &Prepared,
        mut reservation: Option<Reservation>,
    ) -> Result<(Written, Option<Reservation>), Status> {
        let storage = self.context.server.objects.storage();
        loop {
            let linked = match &reservation {
                Some(reservation) => self.linked(reservation)?,
                None => Vec::new(),
            };
            if let Some(written) = storage.put(self.row, prepared, &linked).await? {
                return Ok((written, reservation));
            }
            if let Some(reservation) = &mut reservation {
                reservation.renew().await?;
            }
        }
    }

    /// Stores a changed object; writes nothing when it equals the stored one.
    pub(super) async fn store_changed(
        &self,
        found: &Object,
        old: Value,
        value: Value,
        reservation: Option<Reservation>,
    ) -> Result<UpdateAttempt, Status> {
        let value = convert::to_storage(self.row, value);
        if self.is_stored(found, &value).await? {
            return Ok(UpdateAttempt::Done(Arc::new(found.clone())));
        }
        if self.options.dry_run {
            return self.dry(&value, found.resource_version).map(UpdateAttempt::Done);
        }
        let storage = self.context.server.objects.storage();
        if is_finalized(self.row, &value) {
            return match storage.delete(self.row, found).await? {
                Deletion::Done(_) => {
                    service_allocation::deleted(self.context, self.row, &value).await;
                    self.dry(&value, found.resource_version).map(UpdateAttempt::Done)
                }
                Deletion::Changed(changed) => Ok(UpdateAttempt::Changed(changed)),
            };
        }
        let expected = found.resource_version;
        let prepared = storage.prepare_replace(self.row, old, value, expected).await?;
        match self.put(&prepared, reservation).await?.0 {
            Written::Done(object) => Ok(UpdateAttempt::Done(Arc::new(object))),
            Written::Changed(changed) => Ok(UpdateAttempt::Changed(changed)),
        }
    }

    /// Whether the stored bytes already equal the object. A custom resource that is stored in
    /// another version, or without defaults that were added since, is written again: this migrates
    /// objects to a new storage version and to a new encryption key.
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

    /// The object as it would be stored; used for dry runs.
    pub(crate) fn dry(&self, value: &Value, revision: i64) -> Result<Arc<Object>, Status> {
        let sent = metadata::text(value, "resourceVersion");
        let bytes = match &self.row.spec.custom {
            // A client may send a resource version that is not a number with an object to create.
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

    fn linked(&self, reservation: &Reservation) -> Result<Vec<LinkedWrite>, Status> {
        let row = self.context.server.objects.row(&lookup::RESOURCE_QUOTAS)?;
        let write = |quota: &Value| LinkedWrite {
            row: Arc::clone(&row),
            expected: metadata::text(quota, "resourceVersion").parse().unwrap_or_default(),
            value: quota.clone(),
        };
        Ok(reservation.quotas().iter().map(write).collect())
    }

    /// Stores a new object; retries with another name when a generated one is taken.
    pub(super) async fn store_new(
        &self,
        value: Value,
        generated: bool,
        mut reservation: Option<Reservation>,
    ) -> Result<Arc<Object>, Status> {
        let objects = &self.context.server.objects;
        let mut value = convert::to_storage(self.row, value);
        for attempt in 1.. {
            let taken = if self.options.dry_run {
                let (namespace, name) =
                    (metadata::text(&value, "namespace"), metadata::text(&value, "name"));
                match objects.storage().get(self.row, namespace, name).await? {
                    None => return self.dry(&value, 0),
                    taken => taken,
                }
            } else {
                let prepared = objects.storage().prepare(self.row, &value, 0).await?;
                match self.put(&prepared, reservation.take()).await? {
                    (Written::Done(object), _) => return Ok(Arc::new(object)),
                    (Written::Changed(taken), unused) => {
                        reservation = unused;
                        taken
                    }
                }
            };
            let name = metadata::text(&value, "name").to_owned();
            if !generated || attempt == GENERATE_MAX {
                let prefixed = !metadata::text(&value, "generateName").is_empty();
                return Err(self.taken(&name, taken.as_ref(), prefixed));
            }
            metadata::metadata_mut(&mut value).remove("name");
            metadata::generate_name(&mut value);
        }
        Err(Status::internal("no name could be generated"))
    }

    /// `prefixed`: the object has a `generateName`, possibly in addition to a name.
    fn taken(&self, name: &str, there: Option<&Object>, prefixed: bool) -> Status {
        let gvr = &self.row.spec.gvr;
        let mut refusal = Status::already_exists(&gvr.group, &gvr.resource, name);
        if prefixed {
            let qualified = api::status::qualified(&gvr.group, &gvr.resource);
            refusal.message = format!(
                "{qualified} \"{name}\" already exists, the server was not able to generate a unique name for the object"
            );
            if let Some(details) = &mut refusal.details {
                details.retry_after_seconds = 1;
            }
        }
        if there
            .and_then(|o| o.value().ok())
            .is_some_and(|v| !metadata::text(&v, "deletionTimestamp").is_empty())
        {
            refusal.message = format!("object is being deleted: {}", refusal.message);
        }
        refusal
    }
}

/// The object is being deleted and its last finalizer was removed.
fn is_finalized(row: &Resource, value: &Value) -> bool {
    let deleting = !metadata::text(value, "deletionTimestamp").is_empty();
    let graceless = metadata::number(value, "deletionGracePeriodSeconds").unwrap_or(0) == 0;
    let namespace_done = row.spec.gvk.kind.as_ref() != "Namespace"
        || value.pointer("/spec/finalizers").and_then(Value::as_array).is_none_or(Vec::is_empty);
    deleting && graceless && namespace_done && metadata::finalizers(value).is_empty()
}
