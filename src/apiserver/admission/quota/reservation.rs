//! What one write uses of quotas, from its admission until it is stored.

use std::fmt;
use std::sync::Arc;

use api::value::str_in;
use api::{Gvr, Status};
use serde_json::Value;
use tokio::sync::OwnedSemaphorePermit;

use super::{Evaluator, Operation, Subject, check};
use crate::registry::lookup;
use crate::registry::lookup::Lookup;

/// Attempts to store a write whose quotas others change, too.
const ATTEMPTS: usize = 10;

/// The quotas that a write changes, to be stored with its object. Until it is dropped, no other write of the namespace is
/// checked on this server.
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

/// The quotas of a namespace, as this server has seen them last.
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
        subject: Subject<'_>,
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

    /// The changed quotas, each with the resource version that it was read at.
    pub(crate) fn quotas(&self) -> &[Value] {
        &self.quotas
    }

    /// Checks again, with the quotas as the store has them now, after one of them has changed.
    ///
    /// # Errors
    /// The write exceeds a quota now, or the quotas changed too often meanwhile.
    pub(crate) async fn renew(&mut self) -> Result<(), Status> {
        let subject = Subject {
            operation: self.operation,
            gvr: &self.gvr,
            subresource: &self.subresource,
            name: &self.name,
            old: self.old.as_ref(),
            object: &self.object,
            evaluator: self.evaluator,
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
            // One that was deleted meanwhile limits nothing any more.
            newest.extend(live.and_then(lookup::value)?);
        }
        self.quotas = check(subject, newest)?;
        Ok(())
    }
}
