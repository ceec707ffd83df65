//! PUT of an object or of one of its subresources.

use api::Status;
use http::{Response, StatusCode};

use crate::registry::metadata;
use crate::request::body::Body;
use crate::request::context::Context;
use crate::request::context::RequestParts;
use crate::request::input;
use crate::request::options::WriteOptions;
use crate::response::encode;
use crate::write;
use crate::write::{Create, Write, same_name, url_name};

/// Handles an update.
///
/// # Errors
/// Any error of the write pipeline.
pub(super) async fn update(
    context: &Context,
    exchange: RequestParts,
) -> Result<Response<Body>, Status> {
    context.accept()?;
    let name = url_name(context)?;
    let options = WriteOptions::read(&context.query, "UpdateOptions", false)?;
    let mut value =
        input::object(context, exchange.body, &context.row.spec.gvk, options.validation).await?;
    let write = Write::new(context, &options);
    write.set_request_namespace(&mut value)?;
    same_name(&value, name)?;
    let creates = context.row.spec.strategy.allow_create_on_update()
        && matches!(context.info.subresource.as_str(), "" | "status");
    let create = creates.then(|| {
        let make = || {
            let uid = metadata::text(&value, "uid");
            if !uid.is_empty() {
                return Err(write.other_uid(name, uid, ""));
            }
            write::unversioned(value.clone())
        };
        Box::new(make) as Create<'_>
    });
    let updated = write.update(name, create, &mut |_old| Ok(value.clone())).await?;
    let code = if updated.created { StatusCode::CREATED } else { StatusCode::OK };
    encode::object(context, code, &updated.object)
}

#[cfg(test)]
mod tests {
    use crate::server::tests::{answer, ask, post, server};
    use serde_json::json;

    /// Texts of `checkName` of the handlers, of `rest.EnsureObjectNamespaceMatchesRequestNamespace`
    /// and of `OptimisticLockErrorMsg` of the generic registry. The strategy of ConfigMaps does not
    /// allow create on update, that of Leases does.
    #[tokio::test]
    async fn updates_match_the_url_and_the_stored_version() {
        let server = server();
        let maps = "/api/v1/namespaces/n/configmaps";
        let (_, made) = post(&server, maps, json!({"metadata": {"name": "a"}})).await;
        let version = made["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
        let current = format!(
            r#"{{"metadata": {{"name": "a", "resourceVersion": "{version}"}}, "data": {{"k": "v"}}}}"#
        );
        let map = format!("{maps}/a");
        let absent = format!("{maps}/absent");
        let lease = "/apis/coordination.k8s.io/v1/namespaces/n/leases/l".to_owned();
        let rows = [
            (
                &map,
                r#"{"metadata": {"name": "b"}}"#,
                "400 the name of the object (b) does not match the name on the URL (a)",
            ),
            (
                &map,
                r#"{"metadata": {}}"#,
                "400 the name of the object (a based on URL) was undeterminable: name must be provided",
            ),
            (
                &map,
                r#"{"metadata": {"name": "a", "namespace": "other"}}"#,
                "400 the namespace of the provided object does not match the namespace sent on the request",
            ),
            (&absent, r#"{"metadata": {"name": "absent"}}"#, "404 configmaps \"absent\" not found"),
            (&map, current.as_str(), "200 "),
            (
                &map,
                r#"{"metadata": {"name": "a", "resourceVersion": "1"}}"#,
                "409 Operation cannot be fulfilled on configmaps \"a\": the object has been modified; please apply your changes to the latest version and try again",
            ),
            (&map, r#"{"metadata": {"name": "a"}}"#, "200 "),
            (&lease, r#"{"metadata": {"name": "l"}, "spec": {}}"#, "201 "),
        ];
        for (url, body, expected) in rows {
            let answered = answer(&server, "PUT", url, "application/json", body).await;
            assert_eq!(answered, expected, "{url} {body}");
        }
        assert_eq!(ask(&server, "GET", &lease, "", "").await.0, 200);
    }
}
