//! The admission chain: every write passes it, also in-process ones.

use api::{Gvk, Gvr, Status};
use async_trait::async_trait;
use serde_json::Value;

use crate::user::User;

/// What is being done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// POST, and PUT or apply that creates.
    Create,
    /// PUT, PATCH.
    Update,
    /// DELETE.
    Delete,
    /// exec, attach, portforward, proxy.
    Connect,
}

/// One write on its way to the store.
#[derive(Debug)]
pub struct Request<'a> {
    /// Operation.
    pub operation: Operation,
    /// Resource written.
    pub gvr: &'a Gvr,
    /// Its kind.
    pub gvk: &'a Gvk,
    /// Subresource, or empty.
    pub subresource: &'a str,
    /// Namespace, or empty.
    pub namespace: &'a str,
    /// Name; empty on create with `generateName`.
    pub name: &'a str,
    /// Who writes.
    pub user: &'a User,
    /// Nothing is stored.
    pub dry_run: bool,
    /// State before (update, delete).
    pub old: Option<&'a Value>,
    /// Warnings for the client are added here.
    pub warnings: &'a parking_lot::Mutex<Vec<String>>,
}

/// One admission step.
#[async_trait]
pub trait Plugin: Send + Sync {
    /// Name, as upstream's `--enable-admission-plugins` has it.
    fn name(&self) -> &'static str;

    /// Changes the object (absent for deletions and most connects).
    ///
    /// # Errors
    /// The refusal.
    async fn mutate(
        &self,
        request: &Request<'_>,
        object: &mut Option<Value>,
    ) -> Result<(), Status> {
        let _ = (request, object);
        Ok(())
    }

    /// Accepts or refuses the final object.
    ///
    /// # Errors
    /// The refusal.
    async fn validate(&self, request: &Request<'_>, object: Option<&Value>) -> Result<(), Status> {
        let _ = (request, object);
        Ok(())
    }
}
