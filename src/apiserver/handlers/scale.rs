//! The `scale` subresource: replicas of a workload under one kind for all.

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

/// Answers a get of the scale.
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

/// 400 of a Scale that names another object than the path.
fn named_as_asked(context: &Context, scale: &Value, name: &str) -> Result<(), Status> {
    let given = metadata::text(scale, "namespace");
    if !given.is_empty() && given != context.namespace() {
        return Err(Status::bad_request(
            "the namespace of the provided object does not match the namespace sent on the request",
        ));
    }
    same_name(scale, name)
}

/// Answers an update of the scale.
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
    // Asked before the object is looked for.
    named_as_asked(context, &scale, name)?;
    write(context, name, &options, false, &mut |_| Ok(scale.clone())).await
}

/// Answers a patch of the scale.
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
    context.size.note(bytes.len()).await;
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
        let shown = |made: &[u8]| patch.shown(&schema.schema, &kind(), scale, &bytes, made);
        if kind_of_patch == PatchType::Strategic {
            restore(&schema.schema, &kind(), &mut patched)
                .map_err(|cause| undecodable(shown(&[]), &cause))?;
        }
        let made = serde_json::to_vec(&patched).map_err(|e| Status::internal(&e.to_string()))?;
        let decoded = input::read(context, Media::Json, &made, &kind())
            .map_err(|refusal| undecodable(shown(&made), input::cause(&refusal, &kind())))?;
        input::strict(context, &decoded.strict_errors, options.validation)
            .map_err(|cause| undecodable(shown(&made), &cause))?;
        Ok(decoded.value)
    })
    .await
}

/// Where the replica count is, in the version of the request.
fn replicas_path(context: &Context) -> Vec<(String, Vec<String>)> {
    if let Some(kind) = &context.row.spec.custom {
        return crd::scale::paths(kind);
    }
    let version = match &*context.row.spec.gvk.group {
        "" => "v1",
        _ => "apps/v1",
    };
    vec![(version.to_owned(), vec!["spec".to_owned(), "replicas".to_owned()])]
}

async fn write(
    context: &Context,
    name: &str,
    options: &WriteOptions,
    applies: bool,
    produce: &mut (dyn FnMut(&Value) -> Result<Value, Status> + Send),
) -> Result<Response<Body>, Status> {
    let mut write = Write::new(context, options);
    // Owners are kept by way of the Scale below.
    write.applies = true;
    let paths = replicas_path(context);
    let steps: Vec<Vec<&str>> =
        paths.iter().map(|(_, path)| path.iter().map(String::as_str).collect()).collect();
    let paths: Vec<(&str, &[&str])> = paths
        .iter()
        .zip(&steps)
        .map(|((version, _), steps)| (version.as_str(), steps.as_slice()))
        .collect();
    let updated = write
        .update(name, None, &mut |old| {
            let owners = old.pointer("/metadata/managedFields");
            let fault = |why: String| Status::internal(&why);
            let (mut before, found) = scale_and_count(&context.row, old)?;
            if !found && let Some(spec) = before.get_mut("spec").and_then(Value::as_object_mut) {
                spec.insert("replicas".into(), crd::scale::ABSENT.into());
            }
            if let Some(fields) = api::patch::scale::to_scale(owners, &paths).map_err(fault)? {
                metadata::metadata_mut(&mut before).insert("managedFields".into(), fields);
            }
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
            named_as_asked(context, &scale, name)?;
            let replicas = scale.pointer("/spec/replicas").and_then(Value::as_i64).unwrap_or(0);
            let kind = context.row.spec.custom.as_ref();
            if let Some(kind) = kind.filter(|_| replicas == crd::scale::ABSENT) {
                let path = kind.scale().map(|s| s.spec_replicas_path.as_str()).unwrap_or_default();
                let path = api::field::go_quote(path);
                let text = format!("the spec replicas field {path} cannot be empty");
                return Err(Status::bad_request(text));
            }
            // The strategy of a custom resource checks the number where it stands.
            if replicas < 0 && kind.is_none() {
                let path = Path::new("spec").child("replicas");
                let error = Error::invalid(&path, replicas, "must be greater than or equal to 0");
                return Err(Status::invalid("autoscaling", "Scale", name, &[error]));
            }
            let mut new = old.clone();
            set_replicas(&context.row, &mut new, &scale)?;
            let fields = scale.pointer("/metadata/managedFields");
            let version = context.row.spec.gvk.api_version();
            let fields =
                api::patch::scale::to_resource(owners, fields, &version, &paths).map_err(fault)?;
            match fields {
                Some(fields) => {
                    metadata::metadata_mut(&mut new).insert("managedFields".into(), fields)
                }
                None => metadata::metadata_mut(&mut new).remove("managedFields"),
            };
            let version = metadata::text(&scale, "resourceVersion").to_owned();
            metadata::metadata_mut(&mut new).insert("resourceVersion".into(), version.into());
            let uid = metadata::text(&scale, "uid");
            if !uid.is_empty() {
                metadata::metadata_mut(&mut new).insert("uid".into(), uid.into());
            }
            Ok(new)
        })
        .await?;
    let object = updated.object.value().map_err(|e| Status::internal(&e.to_string()))?;
    encode::scale(context, &scale_and_count(&context.row, &object)?.0)
}
