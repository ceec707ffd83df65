//! Decodes request bodies by the schema; unknown and duplicate fields are rejected, warned about or
//! ignored.

use api::Status;
use api::codec::Decoded;
use serde_json::{Map, Value};

use super::options::FieldValidation;
use crate::audit;
use crate::metrics::requests as metrics;
use crate::request::body;
use crate::request::body::Body;
use crate::request::context::Context;
use crate::request::negotiate;
use crate::request::negotiate::Media;
use crate::serialization;

/// Reads the body of a create or update as an object of the kind `kind` (the row's, or a
/// subresource's).
///
/// # Errors
/// 400, 413, 415 with upstream's texts.
pub(crate) async fn object(
    context: &Context,
    body: Body,
    kind: &api::Gvk,
    validation: FieldValidation,
) -> Result<Value, Status> {
    let media = negotiate::content_type(&context.headers)?;
    let bytes = body::read(body).await?;
    context.size.record(bytes.len()).await;
    metrics::body(&context.row.spec.gvr, context.info.verb, bytes.len());
    let value = decode(context, media, &bytes, kind, validation)?;
    audit::request_object(&value, |mut shown| {
        // Audit records the object with defaults, as upstream records the decoder's output.
        let schema = &context.server.objects.registry().schema;
        serialization::default(schema, kind, &mut shown);
        if *kind == context.row.spec.gvk {
            context.row.spec.strategy.default(&mut shown);
        } else {
            api::defaults::defaulter(&kind.group, &kind.version, &kind.kind)(&mut shown);
        }
        if let Some(ty) = schema.kind(kind) {
            api::codec::normalize(schema, ty, &mut shown);
        }
        shown
    });
    Ok(value)
}

/// Decodes bytes as an object of a kind.
///
/// # Errors
/// 400 with upstream's texts.
pub(crate) fn decode(
    context: &Context,
    media: Media,
    bytes: &[u8],
    kind: &api::Gvk,
    validation: FieldValidation,
) -> Result<Value, Status> {
    let decoded = read(context, media, bytes, kind)?;
    let refuse = |error: StrictDecodingError| {
        let (name, version) = (&kind.kind, &kind.version);
        Status::bad_request(api::codec::cannot_handle(name, version, name, &error.to_string()))
    };
    strict(context, &decoded.strict_errors, validation).map_err(refuse)?;
    Ok(decoded.value)
}

/// Decodes bytes as an object of a kind; fields outside the schema are allowed.
///
/// # Errors
/// 400 with upstream's texts.
pub(crate) fn read(
    context: &Context,
    media: Media,
    bytes: &[u8],
    kind: &api::Gvk,
) -> Result<Decoded, Status> {
    if let Some(custom) = context.row.spec.custom.as_ref().filter(|_| *kind == context.row.spec.gvk)
    {
        return crate::crd::decode_body(custom, kind, media, bytes);
    }
    let schema = &context.server.objects.registry().schema;
    let mut decoded = serialization::decode(schema, media, bytes, kind)?;
    template_generation(kind, &decoded.value)?;
    if &*kind.kind == "PodCertificateRequest" {
        let sent = match media {
            Media::Json => serde_json::from_slice(bytes).ok(),
            Media::Yaml => api::codec::yaml::parse(bytes).ok(),
            Media::Protobuf => None,
        };
        exact_times(&sent.unwrap_or_default(), &mut decoded.value);
    }
    name_kind(&mut decoded.value, kind);
    Ok(decoded)
}

/// The error of the decoder without the sentence about the request body.
pub(crate) fn cause<'a>(refusal: &'a Status, kind: &api::Gvk) -> &'a str {
    let message = refusal.message.as_str();
    let handled = format!(" cannot be handled as a {}: ", kind.kind);
    let recognized =
        format!("the object provided is unrecognized (must be of type {}): ", kind.kind);
    if let Some((_, cause)) = message.split_once(&handled) {
        cause
    } else if let Some(cause) = message.strip_prefix(&recognized) {
        // The first bytes of the body follow.
        cause.rsplit_once(" (").map_or(cause, |(cause, _)| cause)
    } else {
        message
    }
}

/// Restores certificate times that were sent with fractional seconds, which the canonical form
/// drops. Validation then rejects them, because times in certificates have whole seconds.
fn exact_times(sent: &Value, value: &mut Value) {
    for key in ["notBefore", "notAfter"] {
        let Some(text) = sent.get("status").and_then(|status| status.get(key)) else { continue };
        let has_fraction = text
            .as_str()
            .and_then(|text| text.parse::<jiff::Timestamp>().ok())
            .is_some_and(|moment| moment.subsec_nanosecond() != 0);
        let status = value.get_mut("status").and_then(Value::as_object_mut);
        if let Some(slot) = status.filter(|_| has_fraction).and_then(|map| map.get_mut(key)) {
            *slot = text.clone();
        }
    }
}

/// Rejects a malformed template generation of a DaemonSet, which `apps/v1` keeps in an annotation
/// and upstream parses while decoding.
fn template_generation(kind: &api::Gvk, value: &Value) -> Result<(), Status> {
    if &*kind.kind != "DaemonSet" {
        return Ok(());
    }
    let key = "deprecated.daemonset.template.generation";
    let given = value.get("metadata").and_then(|m| m.get("annotations")).and_then(|a| a.get(key));
    match given.and_then(Value::as_str).map(|text| (text, text.parse::<i64>())) {
        Some((text, Err(_))) => {
            let quoted = api::field::go_quote(text);
            let cause = format!("strconv.ParseInt: parsing {quoted}: invalid syntax");
            let (name, version) = (&kind.kind, &kind.version);
            Err(Status::bad_request(api::codec::cannot_handle(name, version, name, &cause)))
        }
        _ => Ok(()),
    }
}

/// The strict decoding errors of an object: fields that are unknown or repeated.
#[derive(Debug, thiserror::Error)]
#[error("{}", api::codec::strict_message(.0))]
pub(crate) struct StrictDecodingError(Vec<String>);

/// Handles strict decoding errors according to `fieldValidation`: ignore, warn or reject.
///
/// # Errors
/// The errors, under `Strict`.
pub(crate) fn strict(
    context: &Context,
    errors: &[String],
    validation: FieldValidation,
) -> Result<(), StrictDecodingError> {
    match validation {
        _ if errors.is_empty() => {}
        FieldValidation::Ignore => {}
        FieldValidation::Warn => {
            let warnings = errors.iter().flat_map(|error| warnings(error));
            warnings.for_each(|warning| context.warn(warning.to_owned()));
        }
        FieldValidation::Strict => return Err(StrictDecodingError(errors.to_vec())),
    }
    Ok(())
}

/// Splits a strict decoding error into warnings, one per YAML error (upstream's
/// `parseYAMLWarnings`).
fn warnings(error: &str) -> Vec<&str> {
    match error.strip_prefix("yaml: unmarshal errors:\n") {
        Some(mistakes) => mistakes.split('\n').map(str::trim).collect(),
        None => vec![error],
    }
}

/// Sets kind and version.
pub(crate) fn name_kind(value: &mut Value, kind: &api::Gvk) {
    if !value.is_object() {
        *value = Value::Object(Map::new());
    }
    if let Some(map) = value.as_object_mut() {
        map.insert("kind".into(), (*kind.kind).into());
        map.insert("apiVersion".into(), kind.api_version().into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn each_yaml_error_becomes_one_warning() {
        assert_eq!(
            warnings("yaml: unmarshal errors:\n  line 2: key \"a\" already set in map"),
            ["line 2: key \"a\" already set in map"]
        );
        assert_eq!(warnings("unknown field \"spec.x\""), ["unknown field \"spec.x\""]);
    }

    #[test]
    fn fractional_certificate_times_reach_validation() {
        let sent = json!({"status": {"notBefore": "2026-01-01T00:00:00.5Z", "notAfter": "2026-01-02T00:00:00.000Z"}});
        let mut value = json!({"status": {"notBefore": "2026-01-01T00:00:00Z", "notAfter": "2026-01-02T00:00:00Z"}});
        exact_times(&sent, &mut value);
        assert_eq!(
            value["status"],
            json!({"notBefore": "2026-01-01T00:00:00.5Z", "notAfter": "2026-01-02T00:00:00Z"})
        );
    }
}
