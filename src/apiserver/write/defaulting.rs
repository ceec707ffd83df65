//! Sets defaults and the metadata that the request determines, and normalizes objects.

use api::Status;
use serde_json::Value;

use super::Write;
use crate::registry::metadata;
use crate::serialization;

impl Write<'_> {
    /// Sets the defaults of the schema, then those of the strategy.
    pub(super) fn default(&self, value: &mut Value) {
        serialization::default(
            &self.context.server.objects.registry().schema,
            &self.row.spec.gvk,
            value,
        );
        self.row.spec.strategy.default(value);
    }

    /// Removes empty fields that Go's encoder omits.
    pub(super) fn normalize(&self, value: &mut Value) {
        serialization::normalize(
            &self.context.server.objects.registry().schema,
            &self.row.spec.gvk,
            value,
        );
    }

    /// Sets the namespace of the request.
    ///
    /// # Errors
    /// 400 when the object names another namespace.
    pub(crate) fn set_request_namespace(&self, value: &mut Value) -> Result<(), Status> {
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

    /// Removes repeated owner references and adds a warning that contains `when`. A patch is
    /// checked after admission only (upstream's `dedupOwnerReferencesAndAddWarning`).
    pub(crate) fn dedup_owner_references(&self, value: &mut Value, when: &str) {
        if when.is_empty() && self.context.info.verb == "patch" {
            return;
        }
        let doubled = metadata::dedup_owner_references(value);
        if !doubled.is_empty() {
            self.context.warn(format!(
                ".metadata.ownerReferences contains duplicate entries{when}; API server dedups owner references in 1.20+, and may reject \
                 such requests as early as 1.24; please fix your requests; duplicate UID(s) observed: {}",
                doubled.join(", ")
            ));
        }
    }
}
