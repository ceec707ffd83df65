//! Whole-object writes that keep fields which our types do not know, for roles that may update but
//! not patch.

use api::{Gvr, Object};
use bytes::Bytes;
use client::{Client, Error};
use serde_json::Value;

/// A cached object as JSON, resource version included, to be changed and put back.
pub(crate) fn value(object: &Object) -> Result<Value, Error> {
    Ok(object.value()?)
}

/// Replaces an object, or its status, by `value`, whose resource version must still be the current
/// one.
///
/// # Errors
/// The server's refusal or the transport's failure.
pub(crate) async fn put(
    client: &Client,
    gvr: &Gvr,
    subresource: &str,
    value: &Value,
) -> Result<Value, Error> {
    let meta = |field: &str| value.pointer(&format!("/metadata/{field}")).and_then(Value::as_str);
    let (namespace, name) =
        (meta("namespace").unwrap_or_default(), meta("name").unwrap_or_default());
    let path = Client::path(gvr, namespace, name, subresource);
    let body = Bytes::from(serde_json::to_vec(value)?);
    let answer = client.request(http::Method::PUT, &path, "application/json", body).await?;
    Ok(serde_json::from_slice(&answer)?)
}

/// Whether `metadata.<list>` holds `entry`.
fn position(value: &Value, entry: &str) -> Option<usize> {
    value.pointer("/metadata/finalizers")?.as_array()?.iter().position(|f| f == entry)
}

/// Adds a finalizer; `false` when it was there.
pub(crate) fn add_finalizer(value: &mut Value, name: &str) -> bool {
    if position(value, name).is_some() {
        return false;
    }
    match value.pointer_mut("/metadata/finalizers").and_then(Value::as_array_mut) {
        Some(list) => list.push(name.into()),
        None => value["metadata"]["finalizers"] = serde_json::json!([name]),
    }
    true
}

/// Removes a finalizer; `false` when it was not there.
pub(crate) fn remove_finalizer(value: &mut Value, name: &str) -> bool {
    let Some(at) = position(value, name) else { return false };
    if let Some(list) = value.pointer_mut("/metadata/finalizers").and_then(Value::as_array_mut) {
        list.remove(at);
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn finalizers_are_added_once_and_others_stay() {
        let mut value = json!({"metadata": {"name": "a"}});
        assert!(add_finalizer(&mut value, "x") && !add_finalizer(&mut value, "x"));
        assert!(add_finalizer(&mut value, "y"));
        assert!(remove_finalizer(&mut value, "x") && !remove_finalizer(&mut value, "x"));
        assert_eq!(value["metadata"]["finalizers"], json!(["y"]));
    }
}
