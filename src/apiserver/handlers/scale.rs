//! The `scale` subresource: the replicas of a workload or custom resource as a Scale.

use api::field::{Error, Path};
use api::{Gvk, Status};
use http::Response;
use serde_json::Value;

use super::get;
use super::patch::{Patch, PatchType, patch_type, restore, undecodable};
use crate::crd;
use crate::registry::metadata;
use crate::registry::scale::{scale_and_count, set_replicas};
use crate::request::body;
use crate::request::body::Body;
use crate::request::context::Context;
use crate::request::context::RequestParts;
use crate::request::input;
use crate::request::negotiate::Media;
use crate::request::options::WriteOptions;
use crate::response::encode;
use crate::write::{Write, same_name, url_name};

fn kind() -> Gvk {
    Gvk::new("autoscaling", "v1", "Scale")
}

/// Handles a get of the scale.
///
/// # Errors
/// 404.
pub(super) async fn get(context: &Context) -> Result<Response<Body>, Status> {
    let object =
        get::current(context).await?.value().map_err(|e| Status::internal(&e.to_string()))?;
    let (scale, found) = scale_and_count(&context.row, &object)?;
    if let Some(kind) = context.row.spec.custom.as_ref().filter(|_| !found) {
        let path = kind.scale().map(|s| s.spec_replicas_path.as_str()).unwrap_or_default();
        let path = api::field::go_quote(path);
        return Err(Status::internal(&format!("the spec replicas field {path} does not exist")));
    }
    encode::scale(context, &scale)
}

/// Rejects a Scale that names another object than the path.
fn check_names(context: &Context, scale: &Value, name: &str) -> Result<(), Status> {
    let given = metadata::text(scale, "namespace");
    if !given.is_empty() && given != context.namespace() {
        return Err(Status::bad_request(
            "the namespace of the provided object does not match the namespace sent on the request",
        ));
    }
    same_name(scale, name)
}

/// Handles an update of the scale.
///
/// # Errors
/// 422 for negative replicas, and any error of the write pipeline.
pub(super) async fn update(
    context: &Context,
    exchange: RequestParts,
) -> Result<Response<Body>, Status> {
    let name = url_name(context)?;
    let options = WriteOptions::read(&context.query, "UpdateOptions", false)?;
    let scale = input::object(context, exchange.body, &kind(), options.validation).await?;
    // Checked before the object is read, as upstream does.
    check_names(context, &scale, name)?;
    write(context, name, &options, false, &mut |_| Ok(scale.clone())).await
}

/// Handles a patch of the scale.
///
/// # Errors
/// As [`update`].
pub(super) async fn patch(
    context: &Context,
    exchange: RequestParts,
) -> Result<Response<Body>, Status> {
    let name = url_name(context)?;
    let kind_of_patch = patch_type(context)?;
    let options =
        WriteOptions::read(&context.query, "PatchOptions", kind_of_patch == PatchType::Apply)?;
    let bytes = body::read(exchange.body).await?;
    context.size.record(bytes.len()).await;
    kind_of_patch.record(&bytes);
    if kind_of_patch == PatchType::Apply {
        let applied =
            crate::write::managed_fields::ApplyConfiguration::decode(context, &bytes, &options)?;
        return write(context, name, &options, true, &mut |scale| {
            applied.merge(context, &context.row, &kind(), "scale", Some(scale))
        })
        .await;
    }
    let schema = context.server.objects.registry();
    let patch = Patch::decode(kind_of_patch, &bytes)?;
    write(context, name, &options, false, &mut |scale| {
        let mut patched = patch.apply(&schema.schema, &kind(), scale)?;
        let shown =
            |made: &[u8]| patch.quoted_document(&schema.schema, &kind(), scale, &bytes, made);
        if kind_of_patch == PatchType::Strategic {
            restore(&schema.schema, &kind(), &mut patched, || shown(&[]))?;
        }
        let made = serde_json::to_vec(&patched).map_err(|e| Status::internal(&e.to_string()))?;
        let decoded = input::read(context, Media::Json, &made, &kind())
            .map_err(|refusal| undecodable(shown(&made), input::cause(&refusal, &kind())))?;
        input::strict(context, &decoded.strict_errors, options.validation)
            .map_err(|error| undecodable(shown(&made), &error.to_string()))?;
        Ok(decoded.value)
    })
    .await
}

/// Paths of the replica count per version, for the conversion of managed fields
/// (`replicasPathInDeployment` and its like in `pkg/registry/apps`).
struct ReplicasPaths(Vec<(String, Vec<String>)>);

impl ReplicasPaths {
    fn of(context: &Context) -> Self {
        if let Some(kind) = &context.row.spec.custom {
            return Self(crd::scale::paths(kind));
        }
        let version = match &*context.row.spec.gvk.group {
            "" => "v1",
            _ => "apps/v1",
        };
        Self(vec![(version.to_owned(), vec!["spec".to_owned(), "replicas".to_owned()])])
    }

    /// Calls `convert` with the paths as `api::patch::scale` takes them.
    fn with<T>(&self, convert: impl FnOnce(&[(&str, &[&str])]) -> T) -> T {
        let steps: Vec<Vec<&str>> =
            self.0.iter().map(|(_, path)| path.iter().map(String::as_str).collect()).collect();
        let paths: Vec<(&str, &[&str])> = self
            .0
            .iter()
            .zip(&steps)
            .map(|((version, _), steps)| (version.as_str(), steps.as_slice()))
            .collect();
        convert(&paths)
    }
}

async fn write(
    context: &Context,
    name: &str,
    options: &WriteOptions,
    applies: bool,
    produce: &mut (dyn FnMut(&Value) -> Result<Value, Status> + Send),
) -> Result<Response<Body>, Status> {
    let mut write = Write::new(context, options);
    // The managed fields are updated on the Scale and converted back.
    write.applies = true;
    let paths = ReplicasPaths::of(context);
    let updated = write
        .update(name, None, &mut |old| {
            let before = scale_of(context, old, &paths)?;
            let mut scale = produce(&before)?;
            if !applies {
                crate::write::managed_fields::update_managed_fields_of_kind(
                    context,
                    &kind(),
                    false,
                    None,
                    "scale",
                    &options.manager,
                    Some(&before),
                    &mut scale,
                );
            }
            check_names(context, &scale, name)?;
            check_replicas(context, &scale, name)?;
            with_scale(context, old, &scale, &paths)
        })
        .await?;
    let object = updated.object.value().map_err(|e| Status::internal(&e.to_string()))?;
    encode::scale(context, &scale_and_count(&context.row, &object)?.0)
}

/// The Scale of an object, with the managed fields that concern it.
fn scale_of(context: &Context, object: &Value, paths: &ReplicasPaths) -> Result<Value, Status> {
    let (mut scale, has_count) = scale_and_count(&context.row, object)?;
    if !has_count && let Some(spec) = scale.get_mut("spec").and_then(Value::as_object_mut) {
        spec.insert("replicas".into(), crd::scale::ABSENT.into());
    }
    let owners = object.pointer("/metadata/managedFields");
    let fields = paths
        .with(|paths| api::patch::scale::to_scale(owners, paths))
        .map_err(|error| Status::internal(&error.to_string()))?;
    if let Some(fields) = fields {
        metadata::metadata_mut(&mut scale).insert("managedFields".into(), fields);
    }
    Ok(scale)
}

/// Rejects a replica count that is missing or negative (`ValidateScale` of
/// `pkg/apis/autoscaling/validation`).
fn check_replicas(context: &Context, scale: &Value, name: &str) -> Result<(), Status> {
    let replicas = scale.pointer("/spec/replicas").and_then(Value::as_i64).unwrap_or(0);
    let custom = context.row.spec.custom.as_ref();
    if let Some(kind) = custom.filter(|_| replicas == crd::scale::ABSENT) {
        let path = kind.scale().map(|s| s.spec_replicas_path.as_str()).unwrap_or_default();
        let path = api::field::go_quote(path);
        let text = format!("the spec replicas field {path} cannot be empty");
        return Err(Status::bad_request(text));
    }
    // The strategy of a custom resource checks the count at its path.
    if replicas < 0 && custom.is_none() {
        let path = Path::new("spec").child("replicas");
        let error = Error::invalid(&path, replicas, "must be greater than or equal to 0");
        return Err(Status::invalid("autoscaling", "Scale", name, &[error]));
    }
    Ok(())
}

/// The object with the replica count, the managed fields and the preconditions of the Scale.
fn with_scale(
    context: &Context,
    object: &Value,
    scale: &Value,
    paths: &ReplicasPaths,
) -> Result<Value, Status> {
    let mut new = object.clone();
    set_replicas(&context.row, &mut new, scale)?;
    let owners = object.pointer("/metadata/managedFields");
    let fields = scale.pointer("/metadata/managedFields");
    let version = context.row.spec.gvk.api_version();
    let fields = paths
        .with(|paths| api::patch::scale::to_resource(owners, fields, &version, paths))
        .map_err(|error| Status::internal(&error.to_string()))?;
    let version = metadata::text(scale, "resourceVersion").to_owned();
    let uid = metadata::text(scale, "uid");
    let metadata = metadata::metadata_mut(&mut new);
    match fields {
        Some(fields) => metadata.insert("managedFields".into(), fields),
        None => metadata.remove("managedFields"),
    };
    metadata.insert("resourceVersion".into(), version.into());
    if !uid.is_empty() {
        metadata.insert("uid".into(), uid.into());
    }
    Ok(new)
}

#[cfg(test)]
mod tests {
    use crate::server::tests::{answer, ask, post, server};
    use serde_json::json;

    /// `ScaleREST` and `scaleUpdatedObjectInfo` of `pkg/registry/apps/deployment/storage`, and
    /// `ValidateScale` of `pkg/apis/autoscaling/validation`.
    #[tokio::test]
    async fn a_scale_sets_the_replicas_of_the_object_that_it_names() {
        let server = server();
        let url = "/apis/apps/v1/namespaces/n/deployments";
        let deployment = json!({"metadata": {"name": "d"}, "spec": {"replicas": 2,
            "selector": {"matchLabels": {"a": "b"}},
            "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}}});
        assert_eq!(post(&server, url, deployment).await.0, 201);
        let merge = "application/merge-patch+json";
        let json = "application/json";
        let rows = [
            (
                "PUT",
                "d",
                json,
                r#"{"metadata": {"name": "d"}, "spec": {"replicas": 3}}"#,
                "200 ",
                3,
            ),
            ("PATCH", "d", merge, r#"{"spec": {"replicas": 4}}"#, "200 ", 4),
            (
                "PUT",
                "d",
                json,
                r#"{"metadata": {"name": "d"}, "spec": {"replicas": -1}}"#,
                "422 Scale.autoscaling \"d\" is invalid: spec.replicas: Invalid value: -1: must be greater than or equal to 0",
                4,
            ),
            (
                "PUT",
                "d",
                json,
                r#"{"metadata": {"name": "x"}, "spec": {"replicas": 5}}"#,
                "400 the name of the object (x) does not match the name on the URL (d)",
                4,
            ),
            (
                "PUT",
                "d",
                json,
                r#"{"metadata": {"name": "d", "namespace": "m"}, "spec": {"replicas": 5}}"#,
                "400 the namespace of the provided object does not match the namespace sent on the request",
                4,
            ),
            (
                "PUT",
                "d",
                json,
                r#"{"metadata": {"name": "d", "resourceVersion": "1"}, "spec": {"replicas": 5}}"#,
                "409 Operation cannot be fulfilled on deployments.apps \"d\": the object has been modified; please apply your changes to the latest version and try again",
                4,
            ),
            (
                "PUT",
                "absent",
                json,
                r#"{"metadata": {"name": "absent"}}"#,
                "404 deployments.apps \"absent\" not found",
                4,
            ),
        ];
        for (method, name, kind, body, expected, replicas) in rows {
            let scale = format!("{url}/{name}/scale");
            assert_eq!(answer(&server, method, &scale, kind, body).await, expected, "{body}");
            let (_, scale) = ask(&server, "GET", &format!("{url}/d/scale"), "", "").await;
            assert_eq!(scale["spec"]["replicas"], replicas, "{body}");
            assert_eq!(scale["status"]["selector"], "a=b");
        }
    }
}
