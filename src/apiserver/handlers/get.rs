//! GET of one object: the stored bytes with the resource version spliced in.

use std::sync::Arc;

use api::{Object, Status};
use http::{Response, StatusCode};

use crate::request::body::Body;
use crate::request::context::Context;
use crate::request::options;
use crate::response::encode;
use crate::response::status;

/// Handles a get, also of a subresource that returns the whole object.
///
/// # Errors
/// 404, 406, or the store's error.
pub(super) async fn get(context: &Context) -> Result<Response<Body>, Status> {
    context.accept()?;
    let object = current(context).await?;
    encode::object(context, StatusCode::OK, &Arc::new(object))
}

/// The object that the request names.
///
/// # Errors
/// 404, 500 for a resource version that is not a number, or the store's error.
pub(super) async fn current(context: &Context) -> Result<Object, Status> {
    let name = crate::write::url_name(context)?;
    if context.info.verb == "get" {
        let wanted = context.query.get("resourceVersion").unwrap_or_default();
        // Upstream reads Events from its store, which reports a bad request.
        let is_event = &*context.row.spec.gvr.resource == "events";
        options::parse_revision(wanted).map_err(|error| match is_event {
            true => Status::bad_request(format!("invalid resource version: {error}")),
            false => status::unmapped(500, error.to_string()),
        })?;
    }
    let storage = context.server.objects.storage();
    // `resourceVersion=0` accepts any state, which upstream serves from its cache; the store is as
    // fast and never stale.
    let found = storage.get(&context.row, context.namespace(), name).await?;
    found.ok_or_else(|| context.not_found(name))
}

#[cfg(test)]
mod tests {
    use crate::server::tests::{answer, post, server};
    use serde_json::json;

    /// `ParseResourceVersion` of `APIObjectVersioner`: the cacher returns its error as it is, the
    /// store that serves Events makes it a bad request (`storage/etcd3/store.go`).
    #[tokio::test]
    async fn a_get_needs_an_existing_object_and_a_numeric_resource_version() {
        let server = server();
        let url = "/api/v1/namespaces/n/configmaps";
        assert_eq!(post(&server, url, json!({"metadata": {"name": "a"}})).await.0, 201);
        let invalid = "resourceVersion: Invalid value: \"x\": strconv.ParseUint: parsing \"x\": invalid syntax";
        let rows = [
            ("configmaps/a", "200 ".to_owned()),
            ("configmaps/a?resourceVersion=0", "200 ".to_owned()),
            ("configmaps/a?resourceVersion=x", format!("500 {invalid}")),
            (
                "configmaps/a?resourceVersion=18446744073709551616",
                format!("500 {invalid}")
                    .replace("\"x\"", "\"18446744073709551616\"")
                    .replace("invalid syntax", "value out of range"),
            ),
            ("events/a?resourceVersion=x", format!("400 invalid resource version: {invalid}")),
            ("configmaps/b", "404 configmaps \"b\" not found".to_owned()),
        ];
        for (path, expected) in rows {
            let url = format!("/api/v1/namespaces/n/{path}");
            assert_eq!(answer(&server, "GET", &url, "", "").await, expected, "{path}");
        }
    }
}
