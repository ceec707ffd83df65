//! POST of kinds that are not stored: reviews, bindings and tokens of service accounts.

use api::{Gvk, Status};
use http::{Response, StatusCode};
use serde_json::Value;

use super::{bind, get};
use crate::registry::metadata;
use crate::request::body::Body;
use crate::request::context::Context;
use crate::request::context::RequestParts;
use crate::request::input;
use crate::request::options::WriteOptions;
use crate::response::encode;
use crate::response::status;
use crate::write::{Write, url_name};

/// Handles the creation of a kind that is not stored.
///
/// # Errors
/// The error of the component that handles the review.
pub(super) async fn review(
    context: &Context,
    exchange: RequestParts,
) -> Result<Response<Body>, Status> {
    let accepted = context.accept()?;
    let options = WriteOptions::read(&context.query, "CreateOptions", false)?;
    let kind = &context.row.spec.gvk;
    let mut value = input::object(context, exchange.body, kind, options.validation).await?;
    let write = Write::new(context, &options);
    write.set_request_namespace(&mut value)?;
    if &*kind.kind == "Binding" {
        let name = metadata::text(&value, "name").to_owned();
        let pods = context.server.objects.row(&api::Gvr::new("", "v1", "pods"))?;
        let pod_context = context.with_row(pods);
        bind::bind_pod(&pod_context, &name, value, &options).await?;
        return encode::value(context, StatusCode::CREATED, &encode::done(201));
    }
    metadata::reset_system_fields(&mut value);
    write.dedup_owner_references(&mut value, "");
    write.update_managed_fields(None, &mut value);
    normalize(context, kind, &mut value);
    if accepted.transform != crate::request::negotiate::Transform::None {
        return Err(crate::request::negotiate::not_acceptable());
    }
    let Some(reviews) = &context.server.parts.reviews else {
        return Err(status::not_implemented(&context.row.qualified()));
    };
    let answer = reviews.review(&kind.kind, &context.user, &context.info.namespace, value).await?;
    encode::value(context, StatusCode::CREATED, &answer)
}

/// Normalizes a request that the response repeats, because it is not stored.
fn normalize(context: &Context, kind: &Gvk, value: &mut serde_json::Value) {
    let schema = &context.server.objects.registry().schema;
    if let Some(ty) = schema.kind(kind) {
        api::codec::normalize(schema, ty, value);
    }
}

/// Handles a POST of `serviceaccounts/token`.
///
/// # Errors
/// 404, or the issuer's error.
pub(super) async fn token(
    context: &Context,
    exchange: RequestParts,
) -> Result<Response<Body>, Status> {
    let name = url_name(context)?;
    let options = WriteOptions::read(&context.query, "CreateOptions", false)?;
    let kind = Gvk::new("authentication.k8s.io", "v1", "TokenRequest");
    let mut request = input::object(context, exchange.body, &kind, options.validation).await?;
    let write = Write::new(context, &options);
    write.set_request_namespace(&mut request)?;
    normalize(context, &kind, &mut request);
    // Upstream's decoder sets this default before the request is processed.
    if let Some(spec) = request.get_mut("spec").and_then(Value::as_object_mut)
        && spec.get("expirationSeconds").is_none_or(Value::is_null)
    {
        spec.insert("expirationSeconds".into(), 3600.into());
    }
    let manager = options.manager.as_str();
    crate::write::managed_fields::update_managed_fields_of_kind(
        context,
        &kind,
        false,
        None,
        "token",
        manager,
        None,
        &mut request,
    );
    let given = metadata::text(&request, "name");
    if given.is_empty() {
        metadata::metadata_mut(&mut request).insert("name".into(), name.into());
    } else if given != name {
        let text =
            format!("the name of the object ({given}) does not match the name on the URL ({name})");
        return Err(Status::bad_request(text));
    }
    let account =
        get::current(context).await?.value().map_err(|e| Status::internal(&e.to_string()))?;
    let Some(issuer) = &context.server.parts.token_issuer else {
        return Err(status::not_implemented("serviceaccounts/token"));
    };
    let request = write.admit_create(name, request).await?;
    let answer = issuer.issue(&context.user, &account, request).await?;
    encode::value(context, StatusCode::CREATED, &answer)
}

#[cfg(test)]
mod tests {
    use crate::server::tests::{answer, post, server};
    use serde_json::json;

    /// `EnsureObjectNamespaceMatchesRequestNamespace`, `ValidatePodBinding` and `TokenREST.Create`,
    /// which reads the service account before it issues a token.
    #[tokio::test]
    async fn bindings_and_token_requests_are_for_objects_of_the_url() {
        let server = server();
        let namespace = "/api/v1/namespaces/n";
        let account = json!({"metadata": {"name": "a"}});
        assert_eq!(post(&server, &format!("{namespace}/serviceaccounts"), account).await.0, 201);
        let other_namespace = "400 the namespace of the provided object does not match the namespace sent on the request";
        let rows = [
            ("serviceaccounts/a/token", r#"{"metadata": {"namespace": "m"}}"#, other_namespace),
            ("serviceaccounts/b/token", "{}", "404 serviceaccounts \"b\" not found"),
            ("bindings", r#"{"metadata": {"name": "p", "namespace": "m"}}"#, other_namespace),
            (
                "bindings",
                r#"{"metadata": {"name": "p"}, "target": {"kind": "Node"}}"#,
                "500 target.name: Required value",
            ),
            (
                "bindings",
                r#"{"metadata": {"name": "p"}, "target": {"kind": "Node", "name": "m"}}"#,
                "404 pods \"p\" not found",
            ),
        ];
        for (path, body, expected) in rows {
            let url = format!("{namespace}/{path}");
            let answered = answer(&server, "POST", &url, "application/json", body).await;
            assert_eq!(answered, expected, "{path} {body}");
        }
    }
}
