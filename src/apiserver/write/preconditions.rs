//! Preconditions: the name, uid and resource version that a written object must have.

use api::field::{Error, Path};
use api::{Object, Status};
use serde_json::Value;

use super::Write;
use crate::registry::metadata;
use crate::request::context::Context;
use crate::response::status;
use lookup::Lookup;

/// Checks that a changed object has a name and that it equals the name in the URL.
///
/// # Errors
/// 400 otherwise.
pub(crate) fn same_name(value: &Value, name: &str) -> Result<(), Status> {
    match metadata::text(value, "name") {
        "" => Err(Status::bad_request(format!(
            "the name of the object ({name} based on URL) was undeterminable: name must be provided"
        ))),
        given if given != name => Err(Status::bad_request(format!(
            "the name of the object ({given}) does not match the name on the URL ({name})"
        ))),
        _ => Ok(()),
    }
}

/// Removes the resource version from an object that a PUT or apply creates.
///
/// # Errors
/// 500 for a resource version that is not a number.
pub(crate) fn unversioned(mut value: Value) -> Result<Value, Status> {
    let given = metadata::metadata_mut(&mut value).remove("resourceVersion");
    let text = given.as_ref().and_then(Value::as_str).unwrap_or_default();
    match no_revision(text) {
        Some(why) if !text.is_empty() => Err(status::unmapped(500, why)),
        _ => Ok(value),
    }
}

/// Go's error text for an invalid resource version.
fn no_revision(text: &str) -> Option<String> {
    let why = match text.parse::<u64>() {
        Ok(_) if !text.starts_with('+') => return None,
        Err(e) if *e.kind() == std::num::IntErrorKind::PosOverflow => "value out of range",
        _ => "invalid syntax",
    };
    Some(format!("strconv.ParseUint: parsing {}: {why}", api::field::go_quote(text)))
}

/// The name in the URL, checked.
///
/// # Errors
/// 400 when it cannot be part of a storage key (`NamespaceKeyFunc` of upstream's generic registry).
pub(crate) fn url_name(context: &Context) -> Result<&str, Status> {
    let name = context.info.path_name.as_str();
    let faults = metadata::path_segment(name, false);
    if faults.is_empty() {
        return Ok(name);
    }
    let (name, faults) = (api::field::go_quote(name), faults.join(";"));
    Err(Status::bad_request(format!("Name parameter invalid: {name}: {faults}")))
}

impl Write<'_> {
    /// Refuses to create an instance of a definition that is being deleted.
    ///
    /// # Errors
    /// 403.
    pub(super) fn check_not_terminating(&self, value: &Value) -> Result<(), Status> {
        let spec = &self.row.spec;
        if spec.custom.as_ref().is_some_and(|custom| custom.is_terminating()) {
            let why = "create not allowed while custom resource definition is terminating";
            let name = metadata::text(value, "name");
            return Err(Status::forbidden(&spec.gvr.group, &spec.gvr.resource, name, why));
        }
        Ok(())
    }

    /// Removes the resource version of an object to create.
    ///
    /// # Errors
    /// 500 for a number other than 0 (upstream's `Create` in `storage/etcd3`).
    pub(super) fn check_new_resource_version(&self, value: &mut Value) -> Result<(), Status> {
        // The error comes from the storage, which a dry run does not reach; it returns the version
        // that the client sent.
        let version = metadata::text(value, "resourceVersion");
        // The storage treats a text that is not a number as unset.
        if version.parse::<u64>().map_or(true, |number| number == 0) {
            if version.is_empty() || !self.options.dry_run {
                metadata::metadata_mut(value).remove("resourceVersion");
            }
        } else if !self.options.dry_run {
            let why = "resourceVersion should not be set on objects to be created";
            return Err(status::unmapped(500, why));
        }
        Ok(())
    }

    /// Checks name, namespace, uid and resource version against the stored object.
    pub(super) fn check_identity(
        &self,
        name: &str,
        found: &Object,
        value: &mut Value,
    ) -> Result<(), Status> {
        self.set_request_namespace(value)?;
        same_name(value, name)?;
        let uid = metadata::text(value, "uid");
        // A patch has no uid precondition: another uid in the patched object is a forbidden change
        // instead.
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
                // Upstream's storage names the resource instead of the kind.
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

    /// Rejects a resize of a pod whose node does not exist, because a kubelet has to apply it.
    pub(super) async fn check_node(&self, name: &str, old: &Value) -> Result<(), Status> {
        let node = old.pointer("/spec/nodeName").and_then(Value::as_str).unwrap_or_default();
        if self.subresource != "resize" || node.is_empty() {
            return Ok(());
        }
        let found = self.context.server.objects.get(&lookup::NODES, "", node).await?;
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

    /// 409 for a write whose uid differs from the stored object's, or whose object does not exist.
    pub(crate) fn other_uid(&self, name: &str, wanted: &str, there: &str) -> Status {
        self.unmet_precondition(name, "UID", wanted, there)
    }

    /// 409 for a write whose precondition on `field` is not met.
    pub(crate) fn unmet_precondition(
        &self,
        name: &str,
        field: &str,
        wanted: &str,
        there: &str,
    ) -> Status {
        let key = self.row.key(self.context.namespace(), name);
        // The prefix is that of store keys, which a dry run does not reach.
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
}
