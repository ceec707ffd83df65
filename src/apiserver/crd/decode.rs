//! Decodes request bodies of custom resources from JSON or YAML: `metadata` by its type, unknown
//! fields by the schema of the version.

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
/// 400 with upstream's messages, 415 for protobuf, which custom resources do not support.
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
            let (value, duplicate) = codec::yaml::parse_doubled(bytes).map_err(unrecognized)?;
            strict = duplicate.into_iter().collect();
            text = value.to_string();
            text.as_bytes()
        }
        Media::Protobuf => return Err(negotiate::unsupported()),
    };
    let named = codec::json::interpret(json).map_err(unrecognized)?;
    let (mut value, duplicates) = codec::json::parse_strict(json).map_err(unrecognized)?;
    let cannot_handle = |cause: &str| {
        let name = if named.kind.is_empty() { &*gvk.kind } else { &named.kind };
        let version = named.api_version.rsplit('/').next().unwrap_or_default();
        let version = if version.is_empty() { &*gvk.version } else { version };
        Status::bad_request(codec::cannot_handle(name, version, &gvk.kind, cause))
    };
    if named.kind.is_empty() {
        let cause = format!("Object 'Kind' is missing in '{}'", String::from_utf8_lossy(bytes));
        return Err(Status::bad_request(codec::unrecognized(&gvk.kind, &cause, bytes)));
    }
    let expected = gvk.api_version();
    if named.api_version != expected {
        return Err(Status::bad_request(format!(
            "the API version in the data ({}) does not match the expected API version ({expected})",
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
    strict.extend(duplicates.into_iter().map(|path| format!("duplicate field \"{path}\"")));
    metadata(&mut value, &mut strict).map_err(|cause| cannot_handle(&cause.to_string()))?;
    let unknown = kind.prune(&mut value).map_err(|cause| cannot_handle(&cause.to_string()))?;
    strict.extend(unknown);
    Ok(Decoded { value, strict_errors: strict })
}

/// Normalizes `metadata` by its type, and adds its strict errors to `strict`.
fn metadata(value: &mut Value, strict: &mut Vec<String>) -> Result<(), DecodeError> {
    let Some(metadata) = value.get_mut("metadata") else { return Ok(()) };
    let schema = api::schema::Schema::builtin();
    let ty = schema
        .by_name(OBJECT_META)
        .ok_or_else(|| DecodeError::Type("the schema has no ObjectMeta".to_owned()))?;
    let decoded = codec::json::decode_strict(&schema, ty, metadata.to_string().as_bytes())?;
    *metadata = decoded.value;
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
    fn strict_errors_contain_duplicate_fields_and_unknown_metadata() {
        let text = concat!(
            r#"{"apiVersion":"example.com/v1","kind":"Foo","metadata":{"name":"a","extra":1},"#,
            r#""spec":{"a":1,"a":2,"l":[{"b":1,"b":1}]}}"#,
        );
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
    fn errors_have_upstreams_messages() {
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
