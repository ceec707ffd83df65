//! The quota usage of one write, from admission until it is stored.

use std::fmt;
use std::sync::Arc;

use api::value::str_in;
use api::{Gvr, Status};
use serde_json::Value;
use tokio::sync::OwnedSemaphorePermit;

use super::{Evaluator, Operation, QuotaCheck, check, related};
use lookup::Lookup;

/// The number of attempts to store a write while other writers change its quotas.
const ATTEMPTS: usize = 10;

/// The changed quotas of a write, stored together with its object. Until it is dropped, this server
/// checks no other write of the namespace.
pub struct Reservation {
    lookup: Arc<dyn Lookup>,
    _turn: OwnedSemaphorePermit,
    namespace: String,
    operation: Operation,
    gvr: Gvr,
    subresource: String,
    name: String,
    old: Option<Value>,
    object: Value,
    evaluator: Evaluator,
    quotas: Vec<Value>,
    attempts: usize,
}

/// The quotas of a namespace from the cache.
pub(super) async fn quotas(lookup: &dyn Lookup, namespace: &str) -> Result<Vec<Value>, Status> {
    let cached = lookup.list(&lookup::RESOURCE_QUOTAS, namespace).await?;
    let values = cached.iter().map(|quota| quota.value());
    values.map(|value| value.map_err(|e| Status::internal(&e.to_string()))).collect()
}

impl fmt::Debug for Reservation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reservation").field("namespace", &self.namespace).finish_non_exhaustive()
    }
}

impl Reservation {
    pub(super) fn new(
        lookup: Arc<dyn Lookup>,
        turn: OwnedSemaphorePermit,
        namespace: &str,
        subject: QuotaCheck<'_>,
        quotas: Vec<Value>,
    ) -> Self {
        Self {
            lookup,
            _turn: turn,
            namespace: namespace.to_owned(),
            operation: subject.operation,
            gvr: subject.gvr.clone(),
            subresource: subject.subresource.to_owned(),
            name: subject.name.to_owned(),
            old: subject.old.cloned(),
            object: subject.object.clone(),
            evaluator: subject.evaluator,
            quotas,
            attempts: 1,
        }
    }

    /// The changed quotas, with the resource versions at which they were read.
    pub(crate) fn quotas(&self) -> &[Value] {
        &self.quotas
    }

    /// Checks again with the current quotas of the store, after a conflict.
    ///
    /// # Errors
    /// If the write exceeds a quota now, or the quotas changed too often.
    pub(crate) async fn renew(&mut self) -> Result<(), Status> {
        let written = [Some(&self.object), self.old.as_ref()];
        let related = related(&*self.lookup, &self.namespace, self.evaluator, written).await?;
        let subject = QuotaCheck {
            operation: self.operation,
            gvr: &self.gvr,
            subresource: &self.subresource,
            name: &self.name,
            old: self.old.as_ref(),
            object: &self.object,
            evaluator: self.evaluator,
            claims: &related.context(),
        };
        if self.attempts == ATTEMPTS {
            let why = "unable to update the usage of a resource quota, please try again";
            return Err(subject.refuse(why));
        }
        self.attempts += 1;
        let mut newest = Vec::new();
        for quota in quotas(&*self.lookup, &self.namespace).await? {
            let name = str_in(&quota, &["metadata", "name"]);
            let live = self.lookup.get_live(&lookup::RESOURCE_QUOTAS, &self.namespace, name).await;
            // A quota that was deleted meanwhile limits nothing.
            newest.extend(live.and_then(lookup::value)?);
        }
        self.quotas = check(subject, newest)?;
        Ok(())
    }
}
