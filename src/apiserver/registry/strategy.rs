//! The rules of a kind for writes: defaults, validation, and the fields that a write may change.

use std::borrow::Cow;

use api::field::ErrorList;
use parking_lot::Mutex;
use serde_json::Value;

use crate::request::user::User;

/// The properties of a write that a strategy uses.
#[derive(Debug)]
pub struct WriteContext<'a> {
    /// The user that writes.
    pub user: &'a User,
    /// Namespace of the request, or empty.
    pub namespace: &'a str,
    /// Subresource written: empty, `status`, `scale`, `ephemeralcontainers`, `resize`, `approval`,
    /// `finalize`, …
    pub subresource: &'a str,
    /// Whether the write is a dry run.
    pub dry_run: bool,
    /// Warnings of the preparation of a new object, and errors that the validation of an update
    /// tolerated; [`Strategy::warnings_on_create`] and [`Strategy::warnings_on_update`] return
    /// them.
    pub warnings: Mutex<Vec<String>>,
}

#[cfg(test)]
impl<'a> WriteContext<'a> {
    /// The context of a write that is stored.
    pub(crate) fn of(user: &'a User, namespace: &'a str, subresource: &'a str) -> Self {
        Self { user, namespace, subresource, dry_run: false, warnings: Mutex::default() }
    }
}

/// Rules of one kind. All methods are pure; objects are complete JSON values in the kind's served
/// version.
///
/// Order on create: decode → table defaults → [`Strategy::default`] → admission (mutating) →
/// defaults again → [`Strategy::prepare_for_create`] → metadata validation (generic) →
/// [`Strategy::validate`] → admission (validating) → store. On update the same with
/// `prepare_for_update` and `validate_update`; the generic part keeps `metadata` fields that
/// clients may not change, and for `status` writes everything that [`Strategy::prepare_for_update`]
/// restores from `old`.
pub trait Strategy: Send + Sync {
    /// Sets defaults that the table of the schema does not have.
    fn default(&self, object: &mut Value) {
        let _ = object;
    }

    /// Clears fields that a client cannot set on creation (status, generation = 1, …).
    fn prepare_for_create(&self, context: &WriteContext<'_>, object: &mut Value) {
        let _ = (context, object);
    }

    /// Restores fields that this write cannot change, and increments `metadata.generation`.
    fn prepare_for_update(&self, context: &WriteContext<'_>, object: &mut Value, old: &Value) {
        let _ = (context, object, old);
    }

    /// Errors of a new object, in upstream's order. Generic `metadata` validation (names, labels,
    /// annotations, owner references) is done by the pipeline with [`Strategy::validate_name`].
    fn validate(&self, context: &WriteContext<'_>, object: &Value) -> ErrorList {
        let _ = (context, object);
        Vec::new()
    }

    /// Errors of a changed object.
    fn validate_update(
        &self,
        context: &WriteContext<'_>,
        object: &Value,
        old: &Value,
    ) -> ErrorList {
        let _ = (context, object, old);
        Vec::new()
    }

    /// Errors of the name, as texts without field; `prefix` when it is a `generateName`. Default:
    /// DNS-1123 subdomain.
    fn validate_name(&self, name: &str, prefix: bool) -> Vec<String> {
        let _ = (name, prefix);
        Vec::new()
    }

    /// Warnings for the client on creation.
    fn warnings_on_create(&self, context: &WriteContext<'_>, object: &Value) -> Vec<String> {
        let _ = (context, object);
        Vec::new()
    }

    /// Warnings for the client on update.
    fn warnings_on_update(
        &self,
        context: &WriteContext<'_>,
        object: &Value,
        old: &Value,
    ) -> Vec<String> {
        let _ = (context, object, old);
        Vec::new()
    }

    /// Whether a PUT creates an absent object.
    fn allow_create_on_update(&self) -> bool {
        false
    }

    /// Whether a PUT without resource version is accepted.
    fn allow_unconditional_update(&self) -> bool {
        true
    }

    /// Values of the selectable fields, except `metadata.name` and `metadata.namespace`.
    fn selectable_fields(&self, object: &Value) -> Vec<(Cow<'static, str>, String)> {
        let _ = object;
        Vec::new()
    }
}

/// A kind without specific rules.
#[derive(Debug)]
pub struct Plain;

impl Strategy for Plain {}
