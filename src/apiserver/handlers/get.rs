//! GET of one object: the stored bytes with the resource version spliced in.

use std::sync::Arc;

use api::{Object, Status};
use http::{Response, StatusCode};

use crate::request::body::Body;
use crate::request::context::Context;
use crate::request::options;
use crate::response::encode;
use crate::response::status;

/// Answers a get, also of a subresource that shows the whole object.
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
        // Events are read from upstream's store itself, whose refusals are the client's.
        let is_event = &*context.row.spec.gvr.resource == "events";
        options::parse_revision(wanted).map_err(|error| match is_event {
            true => Status::bad_request(format!("invalid resource version: {error}")),
            false => status::unmapped(500, error.to_string()),
        })?;
    }
    let storage = context.server.objects.storage();
    // `resourceVersion=0` asks for any state and upstream serves it from its cache; the store is as
    // fast and never stale.
    let found = storage.get(&context.row, context.namespace(), name).await?;
    found.ok_or_else(|| context.not_found(name))
}
