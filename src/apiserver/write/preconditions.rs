//! The name and the resource version that a written object has to have.

use api::Status;
use serde_json::Value;

use crate::registry::metadata;
use crate::request::context::Context;
use crate::response::status;

/// A changed object names itself, and as the URL does.
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

/// What a PUT or an apply creates has no resource version, whatever number was given.
///
/// # Errors
/// 500 of one that is no number.
pub(crate) fn unversioned(mut value: Value) -> Result<Value, Status> {
    let given = metadata::metadata_mut(&mut value).remove("resourceVersion");
    let text = given.as_ref().and_then(Value::as_str).unwrap_or_default();
    match no_revision(text) {
        Some(why) if !text.is_empty() => Err(status::unmapped(500, why)),
        _ => Ok(value),
    }
}

/// Go's words for a text that is no resource version.
pub(super) fn no_revision(text: &str) -> Option<String> {
    let why = match text.parse::<u64>() {
        Ok(_) if !text.starts_with('+') => return None,
        Err(e) if *e.kind() == std::num::IntErrorKind::PosOverflow => "value out of range",
        _ => "invalid syntax",
    };
    Some(format!("strconv.ParseUint: parsing {}: {why}", api::field::go_quote(text)))
}

/// Errors of a name in the URL.
///
/// # Errors
/// 400 as nothing can be stored under it (`NamespaceKeyFunc` of upstream's generic registry).
pub(crate) fn url_name(context: &Context) -> Result<&str, Status> {
    let name = context.info.path_name.as_str();
    let faults = metadata::path_segment(name, false);
    if faults.is_empty() {
        return Ok(name);
    }
    let (name, faults) = (api::field::go_quote(name), faults.join(";"));
    Err(Status::bad_request(format!("Name parameter invalid: {name}: {faults}")))
}
