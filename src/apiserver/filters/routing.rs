//! The end of the chain: the handler of the resource, and the warnings of its response.

use api::Gvr;
use http::{HeaderName, HeaderValue, Response};
use parking_lot::Mutex;

use super::exchange::Exchange;
use crate::handlers;
use crate::request::body::Body;
use crate::request::context::{Context, RequestParts};
use crate::request::size;
use crate::response::{encode, status};

/// Calls the handler of the resource and verb, or of the path.
pub(crate) async fn route(exchange: Box<Exchange>) -> Response<Body> {
    let Exchange { server, user, info, query, request, watching, .. } = *exchange;
    // No route begins with two slashes.
    if info.path.starts_with("//") {
        return status::page_not_found();
    }
    if !info.is_resource {
        return handlers::serve_path(&server, &info, &query, request).await;
    }
    let registry = server.objects.registry();
    let gvr = Gvr::new(&info.group, &info.version, &info.resource);
    let is_scoped = (info.prefix == "api") == info.group.is_empty();
    let Some(row) = registry.row(&gvr).filter(|_| is_scoped).cloned() else {
        let is_known = is_scoped && registry.group(&info.group).is_some();
        return if is_known {
            status::response(&status::no_resource())
        } else {
            status::page_not_found()
        };
    };
    let subresource = row.subresource(&info.subresource).cloned();
    let (parts, body) = request.into_parts();
    let context = Context {
        server,
        user,
        info,
        query,
        headers: parts.headers,
        row,
        subresource,
        warnings: Mutex::new(Vec::new()),
        watching: Mutex::new(watching),
        size: Default::default(),
    };
    let parts =
        RequestParts { method: parts.method, uri: parts.uri, extensions: parts.extensions, body };
    let outcome = size::run(&context.size, handlers::dispatch(&context, parts)).await;
    let mut response = outcome.unwrap_or_else(|refusal| encode::refusal(&context, &refusal));
    if let Some(warning) = crate::authn::ignored_token_warning(&context.headers) {
        context.warn(warning);
    }
    for warning in context.warnings_to_send() {
        let text = format!("299 - {}", api::field::go_quote(&warning));
        if let Ok(value) = HeaderValue::from_bytes(text.as_bytes()) {
            response.headers_mut().append(HeaderName::from_static("warning"), value);
        }
    }
    response
}
