//! Tracks `metadata.managedFields` on every write, and implements server-side apply.

use std::sync::Arc;

use api::fields::Set;
use api::patch::apply;
use api::{Gvk, Status};
use bytes::Bytes;
use serde_json::Value;

use super::Write;
use crate::handlers::{FieldValidation, WriteOptions};
use crate::registry::{Resource, metadata, reset_fields};
use crate::request::context::Context;

impl Write<'_> {
    /// Records the manager of each field that the write sets. A server-side apply has already done
    /// so.
    pub(crate) fn update_managed_fields(&self, old: Option<&Value>, value: &mut Value) {
        if !self.applies {
            update_managed_fields(
                self.context,
                self.row,
                self.subresource,
                &self.options.manager,
                old,
                value,
            );
        }
    }
}

/// The manager of a write: the given one, or the User-Agent up to the first `/`.
fn manager<'a>(context: &'a Context, given: &'a str) -> &'a str {
    if !given.is_empty() {
        return given;
    }
    let agent = context
        .headers
        .get(http::header::USER_AGENT)
        .and_then(|v| v.to_str().ok())
        .unwrap_or_default();
    let head = agent.split('/').next().unwrap_or_default();
    if head.len() > MANAGER_MAX { "" } else { head }
}

/// Upstream's `FieldManagerMaxLength`.
const MANAGER_MAX: usize = 128;

/// Records the fields that a write sets under its manager.
pub(crate) fn update_managed_fields(
    context: &Context,
    row: &Resource,
    subresource: &str,
    given: &str,
    old: Option<&Value>,
    value: &mut Value,
) {
    let reset = reset_fields::of(row, subresource);
    if let Some(custom) = &row.spec.custom {
        let (schema, ty) = custom.types();
        let now = metadata::now();
        let write = apply::Write {
            schema: &schema,
            ty,
            gvk: &row.spec.gvk,
            custom: true,
            manager: manager(context, given),
            subresource,
            reset,
            now: &now,
        };
        return apply::track_update(&write, old, value);
    }
    update_managed_fields_of_kind(
        context,
        &row.spec.gvk,
        row.spec.unstructured,
        reset,
        subresource,
        given,
        old,
        value,
    );
}

/// As [`update_managed_fields`], for an object of any kind, such as Scale.
#[expect(clippy::too_many_arguments, reason = "each is a separate property of the write")]
pub(crate) fn update_managed_fields_of_kind(
    context: &Context,
    kind: &Gvk,
    custom: bool,
    reset: Option<&Set>,
    subresource: &str,
    given: &str,
    old: Option<&Value>,
    value: &mut Value,
) {
    let registry = context.server.objects.registry();
    let Some(ty) = registry.schema.kind(kind) else { return };
    let now = metadata::now();
    let manager = manager(context, given);
    let write = apply::Write {
        schema: &registry.schema,
        ty,
        gvk: kind,
        custom,
        manager,
        subresource,
        reset,
        now: &now,
    };
    if !api::codec::has_empties(&registry.schema, ty, value) {
        return apply::track_update(&write, old, value);
    }
    // Empty fields are not stored and have no owner.
    let mut normal = value.clone();
    api::codec::normalize(&registry.schema, ty, &mut normal);
    apply::track_update(&write, old, &mut normal);
    let fields = metadata::metadata_mut(&mut normal).remove("managedFields");
    let metadata = metadata::metadata_mut(value);
    match fields {
        Some(fields) => metadata.insert("managedFields".into(), fields),
        None => metadata.remove("managedFields"),
    };
}

/// The error when the applied configuration does not result in a valid object of the kind.
fn unconvertible(kind: &Gvk, config: &Value, cause: &str) -> Status {
    let gvk = format!("{}/{}, Kind={}", kind.group, kind.version, kind.kind);
    let (namespace, name) = (metadata::text(config, "namespace"), metadata::text(config, "name"));
    let text = format!(
        "failed to convert new object ({namespace}/{name}; {gvk}) to proper version: unable to convert unstructured object to {gvk}: {cause}"
    );
    crate::response::status::unmapped(500, text)
}

/// A decoded apply configuration.
pub(crate) struct ApplyConfiguration {
    config: Value,
    manager: String,
    force: bool,
}

impl ApplyConfiguration {
    /// Decodes the body of an apply.
    ///
    /// # Errors
    /// 400 when the body cannot be decoded.
    pub(crate) fn decode(
        context: &Context,
        bytes: &Bytes,
        options: &WriteOptions,
    ) -> Result<Self, Status> {
        let (config, doubled) = api::codec::yaml::parse_doubled(bytes)
            .map_err(|e| Status::bad_request(format!("error decoding patch: {e}")))?;
        let doubled = doubled.map(|text| format!("error converting YAML to JSON: {text}"));
        match (doubled, options.validation) {
            (None, _) | (_, FieldValidation::Ignore) => {}
            (Some(text), FieldValidation::Warn) => context.warn(text),
            (Some(text), FieldValidation::Strict) => {
                return Err(Status::bad_request(format!("error strict decoding patch: {text}")));
            }
        }
        Ok(Self { config, manager: options.manager.clone(), force: options.force.unwrap_or(false) })
    }

    /// The live object (or nothing) with this configuration applied.
    ///
    /// # Errors
    /// 409 with the conflicts; 400 or 500 when the configuration does not match the schema.
    pub(crate) fn merge(
        &self,
        context: &Context,
        row: &Resource,
        kind: &Gvk,
        subresource: &str,
        live: Option<&Value>,
    ) -> Result<Value, Status> {
        let registry = context.server.objects.registry();
        let own = row.spec.custom.as_ref().filter(|_| *kind == row.spec.gvk);
        let (schema, ty) = match (own, registry.schema.kind(kind)) {
            (Some(custom), _) => custom.types(),
            (None, Some(ty)) => (Arc::clone(&registry.schema), ty),
            (None, None) => return Err(crate::request::negotiate::unsupported()),
        };
        let now = metadata::now();
        let write = apply::Write {
            schema: &schema,
            ty,
            gvk: kind,
            custom: row.spec.unstructured,
            manager: &self.manager,
            subresource,
            reset: if *kind == row.spec.gvk { reset_fields::of(row, subresource) } else { None },
            now: &now,
        };
        let merged = apply::apply(&write, live, &self.config, self.force);
        let mut merged = merged.map_err(|refusal| *refusal)?;
        if !row.spec.unstructured {
            api::patch::restore(&schema, ty, &mut merged)
                .map_err(|cause| unconvertible(kind, &self.config, &cause.to_string()))?;
            // Normalized to the typed object, so that values which Go's encoder omits do not count
            // as changes.
            let bytes =
                serde_json::to_vec(&merged).map_err(|e| Status::internal(&e.to_string()))?;
            merged = api::codec::json::decode_strict(&schema, ty, &bytes)
                .map_err(|cause| unconvertible(kind, &self.config, &cause.to_string()))?
                .value;
        }
        Ok(merged)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// From the strategies of `pkg/registry` in 1.37.1.
    #[test]
    fn strategies_reset_the_fields_of_upstream_get_reset_fields() {
        let fields = |group: &str, kind: &str, subresource: &str| {
            reset_fields::built_in(&Gvk::new(group, "v1", kind), subresource).to_fields_v1()
        };
        let (spec, status) = (json!({"f:spec": {}}), json!({"f:status": {}}));
        assert_eq!(fields("batch", "Job", ""), status);
        assert_eq!(fields("batch", "Job", "status"), spec);
        assert_eq!(fields("", "Namespace", "finalize"), status);
        assert_eq!(
            fields("", "Pod", "status"),
            json!({"f:metadata": {"f:deletionTimestamp": {}, "f:ownerReferences": {}}, "f:spec": {}})
        );
        assert_eq!(
            fields("apps", "Deployment", "status"),
            json!({"f:metadata": {"f:labels": {}}, "f:spec": {}})
        );
        for kind in ["ResourceClaim", "DeviceTaintRule"] {
            assert_eq!(
                fields("resource.k8s.io", kind, "status"),
                json!({"f:metadata": {}, "f:spec": {}})
            );
        }
        let request =
            |subresource| fields("certificates.k8s.io", "CertificateSigningRequest", subresource);
        assert_eq!(request(""), json!({"f:spec": {}, "f:status": {}}));
        assert_eq!(request("status"), json!({"f:spec": {}, "f:status": {"f:conditions": {}}}));
        assert_eq!(request("approval"), json!({"f:spec": {}, "f:status": {"f:certificate": {}}}));
    }
}
