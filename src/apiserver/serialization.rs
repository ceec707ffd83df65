//! Decodes request bodies and encodes values, with the codecs of `api`.

use api::codec::{self, DecodeError, Decoded};
use api::schema::Schema;
use api::{Gvk, Status};
use serde_json::Value;

use crate::request::negotiate::Media;

/// Decodes a body as an object of `kind`.
///
/// # Errors
/// 400 with upstream's texts.
pub(crate) fn decode(
    schema: &Schema,
    media: Media,
    bytes: &[u8],
    kind: &Gvk,
) -> Result<Decoded, Status> {
    let unrecognized = |e: DecodeError| {
        Status::bad_request(codec::unrecognized(&kind.kind, &e.to_string(), bytes))
    };
    if media == Media::Protobuf {
        return decode_protobuf(schema, bytes, kind);
    }
    let (text, doubled);
    let json = if media == Media::Yaml {
        (text, doubled) = codec::yaml::to_json(bytes).map_err(unrecognized)?;
        text.as_slice()
    } else {
        doubled = None;
        bytes
    };
    let meta = codec::json::interpret(json).map_err(unrecognized)?;
    let refuse = |cause: &str| refusal(kind, &meta.kind, &meta.api_version, cause);
    check_kind(schema, kind, &meta.kind, &meta.api_version).map_err(|refused| {
        // A body of another known kind is decoded as that kind before it is rejected, so that its
        // decoding errors come first.
        let given = given_kind(kind, &meta.kind, &meta.api_version);
        let other =
            schema.kind(&given).and_then(|ty| codec::json::decode_strict(schema, ty, json).err());
        other.map_or(refused, |e| refuse(&e.to_string()))
    })?;
    let Some(ty) = schema.kind(kind) else {
        let value = codec::json::parse(json).map_err(unrecognized)?;
        return Ok(Decoded { value, strict_errors: Vec::new() });
    };
    let mut decoded =
        codec::json::decode_strict(schema, ty, json).map_err(|e| refuse(&e.to_string()))?;
    // The last of repeated YAML keys is used; repeating them is a strict decoding error.
    decoded.strict_errors.splice(0..0, doubled);
    Ok(decoded)
}

fn decode_protobuf(schema: &Schema, bytes: &[u8], kind: &Gvk) -> Result<Decoded, Status> {
    let unrecognized = |e: DecodeError| {
        Status::bad_request(codec::unrecognized(&kind.kind, &e.to_string(), bytes))
    };
    let envelope = codec::protobuf::open(bytes).map_err(unrecognized)?;
    check_kind(schema, kind, &envelope.kind, &envelope.api_version)?;
    let ty = schema.kind(kind).ok_or_else(crate::request::negotiate::unsupported)?;
    let value = codec::protobuf::decode_message(schema, ty, envelope.raw);
    let value =
        value.map_err(|e| refusal(kind, &envelope.kind, &envelope.api_version, &e.to_string()))?;
    Ok(Decoded { value, strict_errors: Vec::new() })
}

fn refusal(wanted: &Gvk, kind: &str, version: &str, cause: &str) -> Status {
    let own = wanted.api_version();
    let kind = if kind.is_empty() { &*wanted.kind } else { kind };
    let version = if version.is_empty() { own.as_str() } else { version };
    Status::bad_request(codec::cannot_handle(kind, short(version), &wanted.kind, cause))
}

/// The version without its group, as in upstream's texts.
fn short(version: &str) -> &str {
    version.rsplit('/').next().unwrap_or(version)
}

fn check_kind(schema: &Schema, wanted: &Gvk, kind: &str, version: &str) -> Result<(), Status> {
    let same_kind = kind.is_empty() || kind == &*wanted.kind;
    // Typed clients send the group of the deleted object.
    let of_any_group = &*wanted.kind == "DeleteOptions";
    // Evictions are also accepted in their former version (`GroupVersionAcceptor` of
    // `pods/eviction`).
    let was_beta = &*wanted.kind == "Eviction" && version == "policy/v1beta1";
    let same_version =
        version.is_empty() || of_any_group || was_beta || version == wanted.api_version();
    if same_kind && same_version {
        return Ok(());
    }
    let given = given_kind(wanted, kind, version);
    let cause = if schema.kind(&given).is_none() {
        no_kind(&given.kind, &given.api_version())
    } else {
        format!(
            "converting ({}) to ({}): unknown conversion",
            go_type(&given, &given.version),
            go_type(wanted, "")
        )
    };
    Err(refusal(wanted, kind, version, &cause))
}

/// The kind that a body names; a missing version or kind is that of `wanted`.
fn given_kind(wanted: &Gvk, kind: &str, version: &str) -> Gvk {
    let own = wanted.api_version();
    Gvk::from_api_version(
        if version.is_empty() { &own } else { version },
        if kind.is_empty() { &wanted.kind } else { kind },
    )
}

/// Upstream's text for a kind that is not in a scheme.
pub(crate) fn no_kind(kind: &str, version: &str) -> String {
    let [kind, version] = [kind, version].map(api::field::go_quote);
    format!(
        "no kind {kind} is registered for version {version} in scheme \"pkg/runtime/scheme.go:111\""
    )
}

/// Go's name of the type: `v1.Secret` in a version, `core.ConfigMap` inside the server.
pub(crate) fn go_type(kind: &Gvk, version: &str) -> String {
    let package = match (version, kind.group.split('.').next().unwrap_or_default()) {
        ("", "" | "events") => "core",
        ("", first) => first,
        (version, _) => version,
    };
    format!("{package}.{}", kind.kind)
}

/// Sets the defaults of the schema.
pub(crate) fn default(schema: &Schema, kind: &Gvk, value: &mut Value) {
    if let Some(ty) = schema.kind(kind) {
        api::schema::defaults::apply_table(schema, ty, value);
    }
}

/// Groups that upstream stores as JSON.
const STORED_AS_JSON: [&str; 2] = ["apiextensions.k8s.io", "apiregistration.k8s.io"];

/// Normalizes a value by its kind, after defaults and changes.
pub(crate) fn normalize(schema: &Schema, kind: &Gvk, value: &mut Value) {
    let Some(ty) = schema.kind(kind) else { return };
    if STORED_AS_JSON.contains(&&*kind.group) {
        codec::normalize(schema, ty, value);
    } else {
        codec::normalize_stored(schema, ty, value);
    }
}

/// A value as YAML.
pub(crate) fn yaml(value: &Value) -> String {
    codec::yaml::write(value)
}

/// A value as protobuf.
///
/// # Errors
/// 406 when it has no such form.
pub(crate) fn protobuf(schema: &Schema, value: &Value) -> Result<Vec<u8>, Status> {
    let encoded = codec::protobuf::encode_object(schema, value);
    encoded.map(|bytes| bytes.to_vec()).map_err(|error| no_protobuf(&error))
}

/// The encoder of a list as protobuf.
///
/// # Errors
/// 406 when the kind has no such form.
pub(crate) fn protobuf_list(
    schema: &Schema,
    list: &Gvk,
    metadata: &Value,
) -> Result<codec::protobuf::ListEncoder, Status> {
    codec::protobuf::ListEncoder::new(schema, list, metadata).map_err(|error| no_protobuf(&error))
}

/// 406 for a value without protobuf form.
pub(crate) fn no_protobuf(error: &codec::protobuf::EncodeError) -> Status {
    tracing::debug!(%error, "cannot encode as protobuf");
    crate::request::negotiate::not_acceptable()
}

/// A watch event as a protobuf frame.
pub(crate) fn protobuf_event(schema: &Schema, kind: &str, object: &Value) -> bytes::Bytes {
    codec::protobuf::encode_watch_event(schema, kind, object).unwrap_or_else(|error| {
        let refusal =
            serde_json::to_value(Status::internal(&error.to_string())).unwrap_or_default();
        codec::protobuf::encode_watch_event(schema, "ERROR", &refusal).unwrap_or_default()
    })
}
