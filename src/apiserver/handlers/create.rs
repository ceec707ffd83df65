//! POST of an object.

use api::Status;
use http::{Response, StatusCode};

use crate::priority_and_fairness::status;
use crate::request::body::Body;
use crate::request::context::Context;
use crate::request::context::RequestParts;
use crate::request::input;
use crate::request::options::WriteOptions;
use crate::response::encode;
use crate::write::Write;

/// Handles a create.
///
/// # Errors
/// Any error of the write pipeline.
pub(super) async fn create(
    context: &Context,
    exchange: RequestParts,
) -> Result<Response<Body>, Status> {
    context.accept()?;
    let options = WriteOptions::read(&context.query, "CreateOptions", false)?;
    let value =
        input::object(context, exchange.body, &context.row.spec.gvk, options.validation).await?;
    let object = Write::new(context, &options).create(value).await?;
    if !options.dry_run {
        status::after_write(context, Some(&object.key.name)).await;
    }
    encode::object(context, StatusCode::CREATED, &object)
}

#[cfg(test)]
mod tests {
    use crate::server::tests::{answer, server};

    /// Texts of `rest.EnsureObjectNamespaceMatchesRequestNamespace`, `rest.BeforeCreate`,
    /// `ValidateCreateOptions`, `storage.ErrResourceVersionSetOnCreate` and
    /// `errors.NewAlreadyExists`.
    #[tokio::test]
    async fn new_objects_need_a_free_name_the_namespace_of_the_url_and_no_resource_version() {
        let server = server();
        let rows = [
            ("", r#"{"metadata": {"name": "a"}}"#, "201 "),
            ("", r#"{"metadata": {"name": "a"}}"#, "409 configmaps \"a\" already exists"),
            ("?dryRun=All", r#"{"metadata": {"name": "b"}}"#, "201 "),
            ("", r#"{"metadata": {"name": "b", "namespace": "n"}}"#, "201 "),
            (
                "",
                r#"{"metadata": {"name": "c", "namespace": "other"}}"#,
                "400 the namespace of the provided object does not match the namespace sent on the request",
            ),
            (
                "",
                r#"{"metadata": {}}"#,
                "422 ConfigMap \"\" is invalid: metadata.name: Required value: name or generateName is required",
            ),
            (
                "",
                r#"{"metadata": {"name": "c", "resourceVersion": "7"}}"#,
                "500 resourceVersion should not be set on objects to be created",
            ),
            (
                "?fieldValidation=x",
                r#"{"metadata": {"name": "c"}}"#,
                "422 CreateOptions.meta.k8s.io \"\" is invalid: fieldValidation: Unsupported value: \"x\": supported values: \"\", \"Ignore\", \"Strict\", \"Warn\"",
            ),
        ];
        for (query, body, expected) in rows {
            let url = format!("/api/v1/namespaces/n/configmaps{query}");
            let answered = answer(&server, "POST", &url, "application/json", body).await;
            assert_eq!(answered, expected, "{body}");
        }
    }
}
