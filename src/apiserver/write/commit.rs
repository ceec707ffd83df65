//! The last step of a write: the object, and what it uses of quotas, in one transaction.

use std::sync::Arc;

use api::{Object, Status};
use serde_json::Value;

use super::{GENERATE_MAX, Write};
use crate::admission::quota::Reservation;
use crate::registry::convert;
use crate::registry::lookup;
use crate::registry::metadata;
use crate::registry::storage::{LinkedWrite, Prepared, Written};

impl Write<'_> {
    /// Writes what is prepared with what it uses of quotas, which is checked again where a quota changed meanwhile. What was
    /// reserved comes back for another attempt.
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

    fn linked(&self, reservation: &Reservation) -> Result<Vec<LinkedWrite>, Status> {
        let row = self.context.server.objects.row(&lookup::RESOURCE_QUOTAS)?;
        let write = |quota: &Value| LinkedWrite {
            row: Arc::clone(&row),
            expected: metadata::text(quota, "resourceVersion").parse().unwrap_or_default(),
            value: quota.clone(),
        };
        Ok(reservation.quotas().iter().map(write).collect())
    }

    /// Stores a new object, under another name where a generated one is taken.
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

    /// `prefixed`: the object has a `generateName`, also beside a name of its own.
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
