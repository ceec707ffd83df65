//! Tests of the decoder with literal expectations and recorded answers of upstream.

use serde_json::json;

use super::*;
use crate::codec::{cannot_handle, strict_message, unrecognized};
use crate::object::Gvk;

fn decode(api_version: &str, kind: &str, body: &str) -> Result<Decoded, DecodeError> {
    let schema = Schema::builtin();
    let id = schema.kind(&Gvk::from_api_version(api_version, kind)).unwrap();
    decode_strict(&schema, id, body.as_bytes())
}

fn refused(kind: &str, body: &str) -> String {
    decode("v1", kind, body).unwrap_err().to_string()
}

#[test]
fn writes_the_normal_form_of_go() {
    let pod = r#"{"kind":"Pod","apiVersion":"v1","metadata":{"name":"p","creationTimestamp":null,"labels":{}},
        "spec":{"containers":[{"name":"c","image":"","resources":{"limits":{"cpu":0.5,"memory":"1024Ki"}},"ports":[]}],
        "hostNetwork":false,"activeDeadlineSeconds":0,"volumes":null}}"#;
    assert_eq!(
        decode("v1", "Pod", pod).unwrap().value,
        json!({"kind":"Pod","apiVersion":"v1","metadata":{"name":"p","labels":{}},"spec":{"activeDeadlineSeconds":0,
            "containers":[{"name":"c","resources":{"limits":{"cpu":"500m","memory":"1Mi"}},"ports":[]}]},"status":{}})
    );
    let schema = Schema::builtin();
    let ty = schema.kind(&Gvk::new("", "v1", "Pod")).unwrap();
    let mut sent = decode("v1", "Pod", pod).unwrap().value;
    assert!(crate::codec::has_empties(&schema, ty, &sent));
    crate::codec::normalize(&schema, ty, &mut sent);
    assert_eq!(
        sent,
        json!({"kind":"Pod","apiVersion":"v1","metadata":{"name":"p"},"spec":{"activeDeadlineSeconds":0,
            "containers":[{"name":"c","resources":{"limits":{"cpu":"500m","memory":"1Mi"}}}]},"status":{}})
    );
    assert!(!crate::codec::has_empties(&schema, ty, &sent));
    assert_eq!(
        decode("apps/v1", "Deployment", r#"{"spec":{"replicas":0}}"#).unwrap().value,
        json!({"metadata":{},"spec":{"replicas":0,"selector":null,"strategy":{},
            "template":{"metadata":{},"spec":{"containers":null}}},"status":{}})
    );
    assert_eq!(
        decode("rbac.authorization.k8s.io/v1", "Role", "{}").unwrap().value,
        json!({"metadata":{},"rules":null})
    );
    assert_eq!(
        decode("v1", "Secret", r#"{"data":{"a":"aGk=\n","b":null}}"#).unwrap().value,
        json!({"metadata":{},"data":{"a":"aGk=","b":null}})
    );
}

/// `encoding/json` decodes a list of numbers as bytes and reports the type of an element that is
/// not a number.
#[test]
fn bytes_may_be_a_list_of_numbers() {
    let secret = |data: &str| decode("v1", "Secret", &format!(r#"{{"data":{{"k":{data}}}}}"#));
    assert_eq!(secret("[1,2,null]").unwrap().value["data"]["k"], "AQIA");
    assert_eq!(secret("[]").unwrap().value["data"]["k"], "");
    assert_eq!(
        secret("[{}]").unwrap_err().to_string(),
        "json: cannot unmarshal object into Go struct field Secret.data of type uint8"
    );
    assert_eq!(
        secret("[256]").unwrap_err().to_string(),
        "json: cannot unmarshal number 256 into Go struct field Secret.data of type uint8"
    );
}

#[test]
fn collects_strict_errors_in_order() {
    let body = r#"{"metadata":{"name":"a","zzz":1,"name":"b"},"spec":{"containers":[{"name":"x","Image":"y"}],"foo":{"bar":1}},"nope":[]}"#;
    let decoded = decode("v1", "Pod", body).unwrap();
    assert_eq!(
        strict_message(&decoded.strict_errors),
        r#"strict decoding error: unknown field "metadata.zzz", duplicate field "metadata.name", unknown field "spec.containers[0].Image", unknown field "spec.foo", unknown field "nope""#
    );
    assert_eq!(decoded.value["metadata"], json!({"name":"b"}));
    let decoded = decode("v1", "Pod", r#"{"spec":{"a\bc":1}}"#).unwrap();
    assert_eq!(decoded.strict_errors, [r#"unknown field "spec.a\bc""#]);
}

#[test]
fn says_what_go_says_about_wrong_types() {
    assert_eq!(
        refused("Pod", r#"{"spec":{"containers":"x"}}"#),
        "json: cannot unmarshal string into Go struct field PodSpec.spec.containers of type []v1.Container"
    );
    assert_eq!(
        refused("Pod", r#"{"spec":{"volumes":[{"emptyDir":"x"}]}}"#),
        "json: cannot unmarshal string into Go struct field Volume.spec.volumes.VolumeSource.emptyDir of type v1.EmptyDirVolumeSource"
    );
    assert_eq!(
        refused("Pod", r#"{"spec":{"terminationGracePeriodSeconds":1.0}}"#),
        "json: cannot unmarshal number 1.0 into Go struct field PodSpec.spec.terminationGracePeriodSeconds of type int64"
    );
    assert_eq!(
        refused("Service", r#"{"spec":{"ports":[{"port":99999999999,"protocol":7}]}}"#),
        "json: cannot unmarshal number 99999999999 into Go struct field ServicePort.spec.ports.port of type int32"
    );
    assert_eq!(
        refused("Service", r#"{"spec":{"ports":[{"protocol":7}]}}"#),
        "json: cannot unmarshal number into Go struct field ServicePort.spec.ports.protocol of type v1.Protocol"
    );
    assert_eq!(
        refused("Secret", r#"{"data":{"k":"Bad_Name!"}}"#),
        "illegal base64 data at input byte 3"
    );
    assert_eq!(
        refused("Pod", r#"{"metadata":{"creationTimestamp":7}}"#),
        "json: cannot unmarshal number into Go struct field ObjectMeta.metadata.creationTimestamp of type string"
    );
    assert_eq!(
        refused("Service", r#"{"spec":{"ports":[{"targetPort":true}]}}"#),
        "json: cannot unmarshal bool into Go struct field ServicePort.spec.ports.targetPort of type int32"
    );
}

#[test]
fn says_what_go_says_about_bad_syntax() {
    for (body, message) in [
        ("", "unexpected end of JSON input"),
        ("{", "unexpected end of JSON input"),
        ("{]", "invalid character ']' looking for beginning of object key string"),
        ("{\"a\" 1}", "invalid character '1' after object key"),
        ("{\"a\":1 \"b\"}", "invalid character '\"' after object key:value pair"),
        ("[1 2]", "invalid character '2' after array element"),
        ("[1,]", "invalid character ']' looking for beginning of value"),
        ("{\"a\":tru}", "invalid character '}' in literal true (expecting 'e')"),
        ("{\"a\":01}", "invalid character '1' after object key:value pair"),
        ("{\"a\":\"\n\"}", "invalid character '\\n' in string literal"),
        ("{\"a\":\"\\x\"}", "invalid character 'x' in string escape code"),
        ("{} x", "invalid character 'x' after top-level value"),
        // Go's scanner treats the end of the input as a space.
        ("{\"a\":tru", "invalid character ' ' in literal true (expecting 'e')"),
        ("{\"a\":-", "invalid character ' ' in numeric literal"),
        ("{\"a\":\"\\", "invalid character ' ' in string escape code"),
        ("{\"a\":\"\\u00", "invalid character ' ' in \\u hexadecimal character escape"),
        ("{\"a\":\"b", "unexpected end of JSON input"),
        ("{\"a\":12", "unexpected end of JSON input"),
    ] {
        let error = interpret(body.as_bytes()).unwrap_err().to_string();
        assert_eq!(
            error,
            format!("couldn't get version/kind; json parse error: {message}"),
            "{body}"
        );
    }
    let deep = "[".repeat(100_000);
    assert!(parse(deep.as_bytes()).unwrap_err().to_string().contains("exceeded max depth"));
}

#[test]
fn words_the_refusal_as_upstream() {
    let body = br#"{"apiVersion": 7, "kind": "Pod", "metadata": {}}"#;
    let error = interpret(body).unwrap_err();
    assert_eq!(
        unrecognized("Pod", &error.to_string(), body),
        r#"the object provided is unrecognized (must be of type Pod): couldn't get version/kind; json parse error: json: cannot unmarshal number into Go struct field .apiVersion of type string ({"apiVersion": 7, "kind": "Pod ...)"#
    );
    let error = interpret(b"[]").unwrap_err();
    assert!(
        unrecognized("ConfigMap", &error.to_string(), b"[]")
            .ends_with(r#"Kind string "json:\"kind,omitempty\"" } (5b5d)"#)
    );
    assert_eq!(
        cannot_handle("Pod", "v1", "Pod", "x"),
        r#"Pod in version "v1" cannot be handled as a Pod: x"#
    );
}

#[test]
fn keeps_strings_as_go_reads_them() {
    assert_eq!(parse(br#""a\u00e9\ud83d\ude00\ud800x\/""#).unwrap(), json!("aé😀\u{fffd}x/"));
    assert_eq!(parse(b"\"\xff\"").unwrap(), json!("\u{fffd}"));
    assert_eq!(
        parse(b"[1,1.0,1e2,12345678901234567890]").unwrap(),
        json!([1, 1.0, 100.0, 12345678901234567890_f64])
    );
}

/// A body with the original order of its keys.
#[derive(serde::Deserialize)]
struct Raw<'a> {
    #[serde(borrow)]
    body: Option<&'a serde_json::value::RawValue>,
}

/// Compares with every recorded answer in which upstream's decoder rejects the body; the folder is
/// that of `KUBE_LITE_ANSWERS`.
#[test]
fn agrees_with_recorded_refusals() {
    #[allow(
        clippy::disallowed_methods,
        reason = "where the recorded answers are is the caller's business"
    )]
    let Ok(path) = std::env::var("KUBE_LITE_ANSWERS") else { return };
    let schema = Schema::builtin();
    let (mut count, mut wrong) = (0, Vec::new());
    let mut bases = std::collections::HashMap::new();
    for line in std::fs::read_to_string(path).unwrap().lines() {
        let case: serde_json::Value = serde_json::from_str(line).unwrap();
        let raw: Raw<'_> = serde_json::from_str(line).unwrap();
        let body = raw.body.map_or_else(String::new, |b| b.get().to_owned());
        let code = case["code"].as_i64().unwrap();
        let group = case["group"].as_str().unwrap().to_owned();
        if case["base"].is_object() {
            bases.insert(group.clone(), case["base"]["obj"].clone());
        }
        let Some(base) = bases.get(&group) else { continue };
        let (Some(version), Some(kind)) = (base["apiVersion"].as_str(), base["kind"].as_str())
        else {
            continue;
        };
        let Some(id) = schema.kind(&Gvk::from_api_version(version, kind)) else { continue };
        let message = case["answer"]["message"].as_str().unwrap_or_default();
        // The recording replaces a time by this placeholder.
        let body = body.replace("$ct", "2026-01-01T00:00:00Z");
        let decoder_said = [
            "cannot unmarshal",
            "strict decoding",
            "quantities must",
            "illegal base64",
            "parsing time",
        ]
        .iter()
        .any(|m| message.contains(m))
            && code == 400;
        if message.starts_with("the object provided is unrecognized")
            || message.contains("no kind ")
            || message.contains("undeterminable")
        {
            continue;
        }
        let short = version.rsplit('/').next().unwrap();
        let mine = match decode_strict(&schema, id, body.as_bytes()) {
            Err(e) => cannot_handle(kind, short, kind, &e.to_string()),
            Ok(d) if !d.strict_errors.is_empty() => {
                cannot_handle(kind, short, kind, &strict_message(&d.strict_errors))
            }
            Ok(_) => String::new(),
        };
        let mine =
            mine.replace("2006-01-02T15:04:05Z", "$T").replace("2006-01-02T15:04:05.000000Z", "$T");
        count += 1;
        if mine.is_empty() == decoder_said || decoder_said && mine != message {
            wrong.push(format!("{}\n  want {message}\n  have {mine}", case["id"]));
        }
    }
    assert!(wrong.is_empty(), "{} of {count} cases:\n{}", wrong.len(), wrong.join("\n"));
}
