//! PATCH in its four kinds: JSON, merge, strategic merge, apply.

use api::field::{Error, Path};
use api::patch::ordered;
use api::schema::Schema;
use api::{Gvk, Status};
use bytes::Bytes;
use http::{Response, StatusCode, header};
use serde_json::Value;

use crate::registry::metadata;
use crate::request::body;
use crate::request::body::Body;
use crate::request::context::Context;
use crate::request::context::RequestParts;
use crate::request::input;
use crate::request::negotiate::Media;
use crate::request::options::{FieldValidation, WriteOptions};
use crate::response::encode;
use crate::write;
use crate::write::managed_fields;
use crate::write::{Create, Write, same_name, url_name};

/// Error of a strategic merge patch of a custom resource.
const NO_STRATEGIC: &str = "the body of the request was in an unknown format - accepted media types include: application/json-patch+json, \
                            application/merge-patch+json, application/apply-patch+yaml";

/// The type of a patch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PatchType {
    Json,
    Merge,
    Strategic,
    Apply,
}

/// The patch type of the Content-Type.
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
    /// Records a patch as it was sent; an apply configuration as JSON.
    pub(super) fn record(self, bytes: &Bytes) {
        crate::audit::request_body(|| match self {
            Self::Apply => api::codec::yaml::parse(bytes).ok().map(|value| value.to_string()),
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
    /// 400 for a body that cannot be decoded.
    pub(super) fn decode(kind: PatchType, bytes: &Bytes) -> Result<Self, Status> {
        let value = match kind {
            PatchType::Apply => api::codec::yaml::parse(bytes)
                .map_err(|e| Status::bad_request(format!("error decoding patch: {e}")))?,
            PatchType::Json | PatchType::Merge | PatchType::Strategic => {
                serde_json::from_slice(bytes)
                    .map_err(|_| Status::bad_request("invalid JSON patch"))?
            }
        };
        Ok(Self { kind, value })
    }

    /// The patched object.
    ///
    /// # Errors
    /// When the patch does not apply.
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
            PatchType::Apply => {
                Err(Status::internal("an apply configuration is merged, not applied as a patch"))
            }
        }
    }

    /// The document that upstream's error quotes: the patched document in its order, or the
    /// strategic patch. Empty for a Secret: permission to patch does not imply permission to read,
    /// and errors are in the audit log at every level.
    pub(super) fn quoted_document(
        &self,
        schema: &Schema,
        kind: &Gvk,
        old: &Value,
        sent: &[u8],
        patched: &[u8],
    ) -> String {
        if kind.group.is_empty() && &*kind.kind == "Secret" {
            return "(not shown)".to_owned();
        }
        if self.kind == PatchType::Strategic {
            let mut value = self.value.clone();
            // The merge has removed the directive.
            if let Some(map) = value
                .as_object_mut()
                .filter(|map| map.get("$patch").is_some_and(|d| d == "replace"))
            {
                map.remove("$patch");
            }
            return api::patch::gotext::v(&value);
        }
        self.in_order(schema, kind, old, sent, patched)
            .unwrap_or_else(|| String::from_utf8_lossy(patched).into_owned())
    }

    /// The result of a JSON or merge patch with the fields in the order of upstream's patcher.
    fn in_order(
        &self,
        schema: &Schema,
        kind: &Gvk,
        old: &Value,
        sent: &[u8],
        patched: &[u8],
    ) -> Option<String> {
        let ty = schema.kind(kind);
        let text = match self.kind {
            PatchType::Merge => ordered::merged(schema, ty, old, sent),
            PatchType::Json => ordered::patched(schema, ty, old, sent),
            PatchType::Strategic | PatchType::Apply => None,
        };
        let read = |text: &[u8]| serde_json::from_slice::<Value>(text).ok();
        text.filter(|text| read(text.as_bytes()) == read(patched))
    }
}

/// 422 of upstream's patcher when the patched document is not an object of the kind.
pub(super) fn undecodable(shown: String, cause: &str) -> Status {
    Status::invalid("", "", "", &[Error::invalid(&Path::new("patch"), shown, cause)])
}

/// Makes the result of a strategic merge fit its kind and names the kind. Upstream converts the
/// maps of a strategic merge to the typed object without checking their kind
/// (`runtime.DefaultUnstructuredConverter` in `strategicPatchObject`).
///
/// # Errors
/// 422 that quotes `shown` when the result does not fit.
pub(super) fn restore(
    schema: &Schema,
    kind: &Gvk,
    patched: &mut Value,
    shown: impl FnOnce() -> String,
) -> Result<(), Status> {
    if let Some(ty) = schema.kind(kind) {
        api::patch::restore(schema, ty, patched)
            .map_err(|cause| undecodable(shown(), &cause.to_string()))?;
        input::name_kind(patched, kind);
    }
    Ok(())
}

/// Whether a JSON or merge patch removed the version. Upstream then decodes into its internal type,
/// which has none of the field names.
fn is_unversioned(kind: PatchType, patched: &Value) -> bool {
    kind != PatchType::Strategic
        && patched.is_object()
        && patched
            .get("apiVersion")
            .is_none_or(|v| v.is_null() || matches!(v.as_str(), Some("" | "/")))
}

/// The error of a patch that removed the version: an unknown kind, unknown fields, or the missing
/// name.
fn unversioned_patch(
    context: &Context,
    patched: &Value,
    shown: &dyn Fn(&[u8]) -> String,
    validation: FieldValidation,
) -> Status {
    let made = serde_json::to_vec(patched).unwrap_or_default();
    let (own, schema) = (&context.row.spec.gvk, &context.server.objects.registry().schema);
    match api::codec::json::interpret(&made) {
        Err(e) => return undecodable(shown(&made), &e.to_string()),
        Ok(named) => {
            let kind = if named.kind.is_empty() { &*own.kind } else { named.kind.as_str() };
            if schema.kind(&Gvk::new(&own.group, &own.version, kind)).is_none() {
                let kind = api::field::go_quote(kind);
                let cause = format!(
                    "no kind {kind} is registered for the internal version of group \"{}\" in scheme \"pkg/runtime/scheme.go:111\"",
                    own.group
                );
                return undecodable(shown(&made), &cause);
            }
        }
    }
    let keys = patched.as_object().into_iter().flat_map(serde_json::Map::keys);
    let unknown: Vec<String> = keys
        .filter(|key| !matches!(key.as_str(), "kind" | "apiVersion"))
        .map(|key| format!("unknown field \"{key}\""))
        .collect();
    match input::strict(context, &unknown, validation) {
        Err(error) => undecodable(shown(&made), &error.to_string()),
        Ok(()) => Status::bad_request(format!(
            "the name of the object ({} based on URL) was undeterminable: name must be provided",
            context.info.path_name
        )),
    }
}

/// Handles a patch.
///
/// # Errors
/// Any error of the patch or the write pipeline.
pub(super) async fn patch(
    context: &Context,
    exchange: RequestParts,
) -> Result<Response<Body>, Status> {
    let kind = patch_type(context)?;
    context.accept()?;
    let name = url_name(context)?;
    let options = WriteOptions::read(&context.query, "PatchOptions", kind == PatchType::Apply)?;
    let bytes = body::read(exchange.body).await?;
    context.size.record(bytes.len()).await;
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
            let shown =
                |made: &[u8]| patch.quoted_document(&registry.schema, gvk, old, &bytes, made);
            if kind == PatchType::Strategic {
                restore(&registry.schema, gvk, &mut patched, || shown(&[]))?;
            }
            if context.row.spec.custom.is_none() && is_unversioned(kind, &patched) {
                return Err(unversioned_patch(context, &patched, &shown, options.validation));
            }
            // The patched object is decoded like a body, which finds wrong types and unknown
            // fields.
            let made =
                serde_json::to_vec(&patched).map_err(|e| Status::internal(&e.to_string()))?;
            let decoded = input::read(context, Media::Json, &made, gvk).map_err(|refusal| {
                let cause = input::cause(&refusal, gvk);
                // Upstream converts the result of a strategic patch without a decoder, so that its
                // errors have no Status.
                if kind == PatchType::Strategic && cause.starts_with("strconv.") {
                    crate::response::status::unmapped(500, cause.to_owned())
                } else {
                    undecodable(shown(&made), cause)
                }
            })?;
            // Several errors have the order of the patched text.
            let in_order = (decoded.strict_errors.len() > 1)
                .then(|| patch.in_order(&registry.schema, gvk, old, &bytes, &made))
                .flatten()
                .and_then(|text| input::read(context, Media::Json, text.as_bytes(), gvk).ok());
            let strict_errors = in_order.map_or(decoded.strict_errors, |read| read.strict_errors);
            input::strict(context, &strict_errors, options.validation)
                .map_err(|error| undecodable(shown(&made), &error.to_string()))?;
            Ok(decoded.value)
        })
        .await?;
    encode::object(context, StatusCode::OK, &updated.object)
}

async fn apply(
    context: &Context,
    write: &Write<'_>,
    name: &str,
    bytes: &Bytes,
) -> Result<Response<Body>, Status> {
    let gvk = &context.row.spec.gvk;
    let applied = managed_fields::ApplyConfiguration::decode(context, bytes, write.options)?;
    let subresource = context.info.subresource.as_str();
    // Apply to the status creates objects of a few kinds, too.
    let creates = subresource.is_empty()
        || subresource == "status" && context.row.spec.strategy.allow_create_on_update();
    let create = creates.then(|| {
        let make = || {
            let value = applied.merge(context, &context.row, gvk, subresource, None)?;
            let uid = metadata::text(&value, "uid");
            if !uid.is_empty() {
                let gvr = &context.row.spec.gvr;
                let why = format!(
                    "uid mismatch: the provided object specified uid {uid}, and no existing object was found"
                );
                return Err(Status::conflict(&gvr.group, &gvr.resource, name, &why));
            }
            same_name(&value, name)?;
            write::unversioned(value)
        };
        Box::new(make) as Create<'_>
    });
    let updated = write
        .update(name, create, &mut |old| {
            applied.merge(context, &context.row, gvk, subresource, Some(old))
        })
        .await?;
    let code = if updated.created { StatusCode::CREATED } else { StatusCode::OK };
    encode::object(context, code, &updated.object)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::tests::{answer, post, server};
    use serde_json::json;

    const JSON: &str = "application/json-patch+json";
    const MERGE: &str = "application/merge-patch+json";
    const STRATEGIC: &str = "application/strategic-merge-patch+json";
    const APPLY: &str = "application/apply-patch+yaml";

    /// Texts of `PatchResource`, `jsonPatcher` and `smpPatcher` in `endpoints/handlers/patch.go`,
    /// `checkName`, `ValidatePatchOptions` and `evanphx/json-patch`.
    #[tokio::test]
    async fn patches_are_decoded_by_their_content_type() {
        let server = server();
        let url = "/api/v1/namespaces/n/configmaps";
        let map = json!({"metadata": {"name": "a"}, "data": {"k": "v"}});
        assert_eq!(post(&server, url, map).await.0, 201);
        let rows = [
            ("a", "text/plain", "{}", "415 415: Unsupported Media Type"),
            ("a", "application/json", "{}", "415 415: Unsupported Media Type"),
            ("a", "application/merge-patch+json; charset=utf-8", "{}", "200 "),
            ("a", STRATEGIC, r#"{"data": {"k": "w"}}"#, "200 "),
            ("a", JSON, r#"[{"op": "replace", "path": "/data/k", "value": "x"}]"#, "200 "),
            ("a", MERGE, r#"{"data": {"k": null}}"#, "200 "),
            (
                "a",
                MERGE,
                r#"{"metadata": {"name": "b"}}"#,
                "400 the name of the object (b) does not match the name on the URL (a)",
            ),
            ("absent", MERGE, "{}", "404 configmaps \"absent\" not found"),
            (
                "a?force=true",
                MERGE,
                "{}",
                "422 PatchOptions.meta.k8s.io \"\" is invalid: force: Forbidden: may not be specified for non-apply patch",
            ),
            (
                "a",
                APPLY,
                "{}",
                "422 PatchOptions.meta.k8s.io \"\" is invalid: fieldManager: Required value: is required for apply patch",
            ),
            (
                "new?fieldManager=m",
                APPLY,
                "{apiVersion: v1, kind: ConfigMap, metadata: {name: new}}",
                "201 ",
            ),
            (
                "new?fieldManager=m",
                APPLY,
                "{apiVersion: v1, kind: ConfigMap, metadata: {name: new}, data: {k: v}}",
                "200 ",
            ),
        ];
        for (name, kind, body, expected) in rows {
            let answered = answer(&server, "PATCH", &format!("{url}/{name}"), kind, body).await;
            assert_eq!(answered, expected, "{name} {kind} {body}");
        }
    }

    /// `DecodeInto` of the internal type finds no version; `strategicPatchObject` does not decode.
    #[test]
    fn a_patch_may_remove_the_version_only_by_strategic_merge() {
        let rows = [
            (PatchType::Json, json!({"kind": "Pod"}), true),
            (PatchType::Merge, json!({"apiVersion": null}), true),
            (PatchType::Merge, json!({"apiVersion": ""}), true),
            (PatchType::Merge, json!({"apiVersion": "/"}), true),
            (PatchType::Merge, json!({"apiVersion": "v1"}), false),
            (PatchType::Json, json!([]), false),
            (PatchType::Strategic, json!({"kind": "Pod"}), false),
        ];
        for (kind, patched, expected) in rows {
            assert_eq!(is_unversioned(kind, &patched), expected, "{kind:?} {patched}");
        }
    }

    #[test]
    fn errors_do_not_quote_secrets() {
        let patch = Patch::decode(PatchType::Merge, &Bytes::from_static(b"{}")).unwrap();
        let schema = Schema::builtin();
        for (kind, expected) in [("Secret", "(not shown)"), ("ConfigMap", r#"{"data":"x"}"#)] {
            let kind = Gvk::new("", "v1", kind);
            let shown =
                patch.quoted_document(&schema, &kind, &json!({}), b"{}", br#"{"data":"x"}"#);
            assert_eq!(shown, expected);
        }
    }
}
