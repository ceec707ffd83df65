//! Bodies of custom resources: any JSON or YAML, `metadata` by its type, unknown fields by the
//! schema of the version.

use api::codec::{self, DecodeError, Decoded};
use api::{Gvk, Status};
use serde_json::Value;

use super::kind::Kind;
use super::types::OBJECT_META;
use crate::request::negotiate;
use crate::request::negotiate::Media;

/// Decodes a body as an object of this version.
///
/// # Errors
/// 400 with upstream's texts, 415 for protobuf, which custom resources have not.
pub(crate) fn body(kind: &Kind, gvk: &Gvk, media: Media, bytes: &[u8]) -> Result<Decoded, Status> {
    let unrecognized =
        |e: DecodeError| Status::bad_request(codec::unrecognized(&gvk.kind, &e.to_string(), bytes));
    let text;
    let mut strict: Vec<String>;
    let json = match media {
        Media::Json => {
            strict = Vec::new();
            bytes
        }
        Media::Yaml => {
            let (value, doubled) = codec::yaml::parse_doubled(bytes).map_err(unrecognized)?;
            strict = doubled.into_iter().collect();
            text = value.to_string();
            text.as_bytes()
        }
        Media::Protobuf => return Err(negotiate::unsupported()),
    };
    let named = codec::json::interpret(json).map_err(unrecognized)?;
    let (mut value, doubled) = codec::json::parse_strict(json).map_err(unrecognized)?;
    let refuse = |cause: &str| {
        let name = if named.kind.is_empty() { &*gvk.kind } else { &named.kind };
        let version = named.api_version.rsplit('/').next().unwrap_or_default();
        let version = if version.is_empty() { &*gvk.version } else { version };
        Status::bad_request(codec::cannot_handle(name, version, &gvk.kind, cause))
    };
    if named.kind.is_empty() {
        let cause = format!("Object 'Kind' is missing in '{}'", String::from_utf8_lossy(bytes));
        return Err(Status::bad_request(codec::unrecognized(&gvk.kind, &cause, bytes)));
    }
    let wanted = gvk.api_version();
    if named.api_version != wanted {
        return Err(Status::bad_request(format!(
            "the API version in the data ({}) does not match the expected API version ({wanted})",
            named.api_version
        )));
    }
    if named.kind != *gvk.kind {
        let path = api::field::Path::new("kind");
        let error =
            api::field::Error::invalid(&path, named.kind.as_str(), format!("must be {}", gvk.kind));
        let name = crate::registry::metadata::text(&value, "name");
        return Err(Status::invalid(&gvk.group, &gvk.kind, name, &[error]));
    }
    strict.extend(doubled.into_iter().map(|path| format!("duplicate field \"{path}\"")));
    metadata(&mut value, &mut strict).map_err(|cause| refuse(&cause))?;
    strict.extend(kind.prune(&mut value).map_err(|cause| refuse(&cause))?);
    Ok(Decoded { value, strict_errors: strict })
}

/// Brings `metadata` into the form of its type.
fn metadata(value: &mut Value, strict: &mut Vec<String>) -> Result<(), String> {
    let Some(given) = value.get_mut("metadata") else { return Ok(()) };
    let schema = api::schema::Schema::builtin();
    let ty = schema.by_name(OBJECT_META).ok_or("the table has no ObjectMeta")?;
    let bytes = serde_json::to_vec(given).map_err(|e| e.to_string())?;
    let decoded =
        codec::json::decode_strict(&schema, ty, &bytes).map_err(|error| error.to_string())?;
    *given = decoded.value;
    strict.extend(decoded.strict_errors.into_iter().map(|error| {
        match error.strip_prefix("unknown field \"") {
            Some(rest) => format!("unknown field \"metadata.{rest}"),
            None => error,
        }
    }));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::crd::testing;

    fn decode(text: &str) -> Result<Decoded, Status> {
        let (kind, gvk) = testing::kind("v1");
        body(&kind, &gvk, Media::Json, text.as_bytes())
    }

    #[test]
    fn metadata_is_typed_and_doubled_keys_are_told() {
        let text = r#"{"apiVersion":"example.com/v1","kind":"Foo","metadata":{"name":"a","extra":1},"spec":{"a":1,"a":2,"l":[{"b":1,"b":1}]}}"#;
        let body = decode(text).unwrap();
        assert_eq!(
            body.strict_errors,
            [
                "duplicate field \"spec.a\"",
                "duplicate field \"spec.l[0].b\"",
                "unknown field \"metadata.extra\""
            ]
        );
        assert_eq!(body.value["metadata"], serde_json::json!({"name": "a"}));
    }

    #[test]
    fn refusals_are_upstreams() {
        let message = |text: &str| decode(text).unwrap_err().message;
        assert_eq!(
            message(r#"{"apiVersion":"example.com/v2","kind":"Foo"}"#),
            "the API version in the data (example.com/v2) does not match the expected API version (example.com/v1)"
        );
        assert_eq!(
            message(r#"{"apiVersion":"example.com/v1","kind":"Bar","metadata":{"name":"a"}}"#),
            "Foo.example.com \"a\" is invalid: kind: Invalid value: \"Bar\": must be Foo"
        );
        assert_eq!(
            message(
                r#"{"apiVersion":"example.com/v1","kind":"Foo","metadata":{"labels":{"a":1}}}"#
            ),
            "Foo in version \"v1\" cannot be handled as a Foo: json: cannot unmarshal number into Go struct field ObjectMeta.labels of type string"
        );
    }
}
