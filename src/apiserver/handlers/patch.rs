//! PATCH in its four kinds: JSON, merge, strategic merge, apply.

use api::field::{Error, Path};
use api::schema::Schema;
use api::{Gvk, Status};
use bytes::Bytes;
use http::{Response, StatusCode, header};
use serde_json::Value;

use super::options::WriteOptions;
use super::write::{Write, url_name};
use super::{Exchange, input, output};
use crate::body::{self, Body};
use crate::context::Context;
use crate::negotiate::Media;
use crate::registry::metadata;
use crate::{managed, wire};

/// Custom resources know no strategic merge.
const NO_STRATEGIC: &str = "the body of the request was in an unknown format - accepted media types include: application/json-patch+json, \
                            application/merge-patch+json, application/apply-patch+yaml";

/// Kind of a patch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PatchType {
    Json,
    Merge,
    Strategic,
    Apply,
}

/// The kind that the Content-Type says.
///
/// # Errors
/// 415 with upstream's router text.
pub(super) fn patch_type(context: &Context) -> Result<PatchType, Status> {
    let text =
        context.headers.get(header::CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or("");
    match text.split(';').next().unwrap_or("").trim() {
        "application/json-patch+json" => Ok(PatchType::Json),
        "application/merge-patch+json" => Ok(PatchType::Merge),
        "application/strategic-merge-patch+json" if context.row.spec.custom.is_some() => {
            Err(Status::failure(415, "UnsupportedMediaType", NO_STRATEGIC))
        }
        "application/strategic-merge-patch+json" => Ok(PatchType::Strategic),
        "application/apply-patch+yaml" => Ok(PatchType::Apply),
        _ => {
            let mut refusal =
                Status::failure(415, "UnsupportedMediaType", "415: Unsupported Media Type");
            refusal.details = Some(api::status::Details::default());
            Err(refusal)
        }
    }
}

impl PatchType {
    /// Records a patch as it came; an apply configuration as JSON.
    pub(super) fn record(self, bytes: &Bytes) {
        crate::audit::request_body(|| match self {
            Self::Apply => wire::any_yaml(bytes).ok().map(|value| value.to_string()),
            Self::Json | Self::Merge | Self::Strategic => String::from_utf8(bytes.to_vec()).ok(),
        });
    }
}

/// A decoded patch.
pub(super) struct Patch {
    kind: PatchType,
    value: Value,
}

impl Patch {
    /// Decodes the body.
    ///
    /// # Errors
    /// 400 as upstream.
    pub(super) fn decode(kind: PatchType, bytes: &Bytes) -> Result<Self, Status> {
        let value = match kind {
            PatchType::Apply => wire::any_yaml(bytes)
                .map_err(|e| Status::bad_request(format!("error decoding YAML: {e}")))?,
            PatchType::Merge => serde_json::from_slice(bytes)
                .map_err(|_| Status::bad_request("invalid JSON patch"))?,
            PatchType::Json | PatchType::Strategic => {
                let bad = |e: serde_json::Error| {
                    Status::bad_request(format!(
                        "error decoding patch: {}",
                        wire::go_json(bytes, &e)
                    ))
                };
                serde_json::from_slice(bytes).map_err(bad)?
            }
        };
        Ok(Self { kind, value })
    }

    /// The patched object.
    ///
    /// # Errors
    /// As the patch.
    pub(super) fn apply(
        &self,
        schema: &Schema,
        kind: &Gvk,
        current: &Value,
    ) -> Result<Value, Status> {
        let current = current.clone();
        match self.kind {
            PatchType::Json => api::patch::json_patch(current, &self.value).map_err(|e| *e),
            PatchType::Merge => {
                api::patch::merge_patch(current, self.value.clone()).map_err(|e| *e)
            }
            PatchType::Strategic => {
                let ty = schema.kind(kind).ok_or_else(|| {
                    Status::failure(
                        415,
                        "UnsupportedMediaType",
                        "strategic merge patch needs a built-in kind",
                    )
                })?;
                api::patch::strategic(schema, ty, current, self.value.clone()).map_err(|e| *e)
            }
            PatchType::Apply => Err(Status::internal("apply is no patch of this kind")),
        }
    }

    /// 422 as upstream's patcher says that what came of the patch is no object of the kind: it shows the patched object, or the strategic patch.
    fn undecodable(&self, patched: &[u8], cause: &str) -> Status {
        let shown = match self.kind {
            PatchType::Strategic => api::patch::gotext::v(&self.value),
            _ => String::from_utf8_lossy(patched).into_owned(),
        };
        Status::invalid("", "", "", &[Error::invalid(&Path::new("patch"), shown, cause)])
    }
}

/// A strategic merge works on maps, of which upstream makes the typed object; nobody looks at the kind that they name.
fn restore(schema: &Schema, kind: &Gvk, patched: &mut Value) -> Result<(), String> {
    if let Some(ty) = schema.kind(kind) {
        api::patch::restore(schema, ty, patched)?;
        input::name_kind(patched, kind);
    }
    Ok(())
}

/// Answers a patch.
///
/// # Errors
/// Any refusal of the patch or the pipeline.
pub(super) async fn patch(context: &Context, exchange: Exchange) -> Result<Response<Body>, Status> {
    let kind = patch_type(context)?;
    context.accept()?;
    let name = url_name(context)?;
    let options = WriteOptions::read(&context.query, "PatchOptions", kind == PatchType::Apply)?;
    let bytes = body::read(exchange.body).await?;
    kind.record(&bytes);
    let mut write = Write::new(context, &options);
    write.applies = kind == PatchType::Apply;
    if kind == PatchType::Apply {
        return apply(context, &write, name, &bytes).await;
    }
    let registry = context.server.objects.registry();
    let gvk = &context.row.spec.gvk;
    let mut decoded: Option<Patch> = None;
    let updated = write
        .update(name, None, &mut |old| {
            let patch = match &decoded {
                Some(patch) => patch,
                None => decoded.insert(Patch::decode(kind, &bytes)?),
            };
            let mut patched = patch.apply(&registry.schema, gvk, old)?;
            if kind == PatchType::Strategic {
                restore(&registry.schema, gvk, &mut patched)
                    .map_err(|cause| patch.undecodable(&[], &cause))?;
            }
            // The patched object is decoded like any body, so that wrong types and unknown fields are found.
            let bytes =
                serde_json::to_vec(&patched).map_err(|e| Status::internal(&e.to_string()))?;
            let decoded = input::read(context, Media::Json, &bytes, gvk)
                .map_err(|refusal| patch.undecodable(&bytes, input::cause(&refusal, gvk)))?;
            input::strict(context, &decoded.strict_errors, options.validation)
                .map_err(|cause| patch.undecodable(&bytes, &cause))?;
            Ok(decoded.value)
        })
        .await?;
    output::object(context, StatusCode::OK, &updated.object)
}

async fn apply(
    context: &Context,
    write: &Write<'_>,
    name: &str,
    bytes: &Bytes,
) -> Result<Response<Body>, Status> {
    let gvk = &context.row.spec.gvk;
    let applied = managed::Applied::decode(context, bytes, write.options)?;
    let subresource = context.info.subresource.as_str();
    let given = metadata::text(applied.config(), "name");
    if !given.is_empty() && given != name {
        return Err(Status::bad_request(format!(
            "the name of the object ({given}) does not match the name on the URL ({name})"
        )));
    }
    let mut create = None;
    if subresource.is_empty() {
        let mut value = applied.merge(context, &context.row, gvk, "", None)?;
        metadata::metadata_mut(&mut value).insert("name".into(), name.into());
        create = Some(value);
    }
    let updated = write
        .update(name, create, &mut |old| {
            applied.merge(context, &context.row, gvk, subresource, Some(old))
        })
        .await?;
    let code = if updated.created { StatusCode::CREATED } else { StatusCode::OK };
    output::object(context, code, &updated.object)
}
