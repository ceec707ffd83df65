//! Conversion between versions: `None` changes the name of the version alone, `Webhook` asks a
//! program of the user.
//!
//! Source of checks and texts: `pkg/apiserver/conversion/webhook_converter.go` of apiextensions.

use std::time::Duration;

use api::Gvk;
use api::validation::meta;
use serde_json::{Map, Value, json};

use super::definition::{Conversion, Definition};
use crate::metrics::admission as metrics;
use crate::registry::metadata;
use crate::webhook::{Callout, Client, ClientConfig};

/// Time that a conversion may take (upstream's default timeout of webhook clients).
const TIMEOUT: Duration = Duration::from_secs(30);

/// The webhook of a definition.
#[derive(Debug)]
pub(crate) struct Webhook {
    client: Client,
    /// Version of the review that it is asked with.
    version: &'static str,
}

impl Webhook {
    /// From `spec.conversion`.
    ///
    /// # Errors
    /// When the configuration cannot be used.
    pub(crate) fn new(conversion: &Conversion, callout: &Callout) -> Result<Self, String> {
        let webhook = conversion.webhook.as_ref().unwrap_or(&Value::Null);
        let config = webhook.get("clientConfig").unwrap_or(&Value::Null);
        let config = ClientConfig::from_value(config).map_err(|e| e.to_string())?;
        let client = Client::new(config, callout.clone()).map_err(|e| e.to_string())?;
        let versions = webhook.get("conversionReviewVersions").and_then(Value::as_array);
        let mut known = versions.into_iter().flatten().filter_map(|v| match v.as_str() {
            Some("v1") => Some("v1"),
            Some("v1beta1") => Some("v1beta1"),
            _ => None,
        });
        let version = known.next().ok_or("no supported conversion review versions")?;
        Ok(Self { client, version })
    }

    /// Objects in the version `to` (`group/version`), in their order.
    ///
    /// # Errors
    /// Upstream's sentence.
    pub(crate) async fn convert(
        &self,
        objects: Vec<Value>,
        to: &str,
    ) -> Result<Vec<Value>, String> {
        let begun = base::clock::now();
        let Some(first) = objects.first() else {
            metrics::converted("", begun.elapsed());
            return Ok(Vec::new());
        };
        let mut failure = "";
        let outcome = self.asked(&objects, first, to, &mut failure).await;
        metrics::converted(failure, base::clock::now().duration_since(begun));
        outcome
    }

    /// As [`Webhook::convert`]; `failure` becomes upstream's word for what went wrong.
    async fn asked(
        &self,
        objects: &[Value],
        first: &Value,
        to: &str,
        failure: &mut &'static str,
    ) -> Result<Vec<Value>, String> {
        let of = shown(first);
        let uid = base::clock::random_uuid();
        let review = json!({
            "kind": "ConversionReview", "apiVersion": format!("apiextensions.k8s.io/{}", self.version),
            "request": {"uid": uid, "desiredAPIVersion": to, "objects": objects},
            "response": {"uid": "", "convertedObjects": null, "result": {"metadata": {}}},
        });
        let failed = |why: &str| format!("conversion webhook for {of} failed: {why}");
        *failure = "conversion_webhook_call_failure";
        let attributes = || {
            vec![
                ("desired-api-version", to.into()),
                ("object-count", i64::try_from(objects.len()).unwrap_or(i64::MAX).into()),
                ("UID", uid.as_str().into()),
            ]
        };
        let post = self.client.post(&review, TIMEOUT);
        let answer = crate::request_tracing::run("Call conversion webhook", attributes, post).await;
        let answer = answer.map_err(|e| failed(&e.to_string()))?;
        *failure = "conversion_webhook_malformed_response_failure";
        let converted = converted(answer, self.version, &uid).map_err(|why| failed(&why))?;
        *failure = "conversion_webhook_partial_response_failure";
        if converted.len() != objects.len() {
            return Err(format!(
                "conversion webhook for {of} returned {} objects, expected {}",
                converted.len(),
                objects.len()
            ));
        }
        *failure = "conversion_webhook_invalid_converted_object_failure";
        let mut out = Vec::with_capacity(objects.len());
        for (index, (old, mut new)) in objects.iter().zip(converted).enumerate() {
            check(old, &new, to).map_err(|why| {
                format!("conversion webhook for {of} returned invalid converted object at index {index}: {why}")
            })?;
            restore(old, &mut new).map_err(|why| {
                format!("conversion webhook for {of} returned invalid metadata in object at index {index}: {why}")
            })?;
            out.push(new);
        }
        *failure = "";
        Ok(out)
    }
}

/// Renames the version, the conversion of definitions that have none.
pub(crate) fn rename(object: &mut Value, to: &str) {
    if let Some(map) = object.as_object_mut() {
        map.insert("apiVersion".into(), to.into());
    }
}

/// The webhook of a definition that has one.
pub(crate) fn is_webhook(definition: &Definition) -> bool {
    definition.conversion.strategy == "Webhook"
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value.get(key).and_then(Value::as_str).unwrap_or_default()
}

/// Group, version and kind as Go prints them.
fn shown(object: &Value) -> String {
    format!("{}, Kind={}", text(object, "apiVersion"), text(object, "kind"))
}

/// What the review answers.
fn converted(mut answer: Value, version: &str, uid: &str) -> Result<Vec<Value>, String> {
    if version == "v1" {
        let given = Gvk::from_api_version(text(&answer, "apiVersion"), text(&answer, "kind"));
        if given != Gvk::new("apiextensions.k8s.io", "v1", "ConversionReview") {
            return Err(format!(
                "expected webhook response of apiextensions.k8s.io/v1, Kind=ConversionReview, got {}",
                shown(&answer)
            ));
        }
    }
    let Some(response) = answer.get_mut("response").filter(|r| r.is_object()) else {
        return Err("no response provided".into());
    };
    if version == "v1" && text(response, "uid") != uid {
        let quote = api::field::go_quote;
        return Err(format!(
            "expected response.uid={}, got {}",
            quote(uid),
            quote(text(response, "uid"))
        ));
    }
    let result = response.get("result").unwrap_or(&Value::Null);
    if text(result, "status") != "Success" {
        return Err(match text(result, "message") {
            "" => format!("response.result.status was '{}', not 'Success'", text(result, "status")),
            message => message.to_owned(),
        });
    }
    match response.get_mut("convertedObjects").map(Value::take) {
        Some(Value::Array(list)) => Ok(list),
        _ => Ok(Vec::new()),
    }
}

/// What a conversion may not change.
fn check(old: &Value, new: &Value, to: &str) -> Result<(), String> {
    let version = text(new, "apiVersion");
    if version != to {
        return Err(format!("invalid groupVersion (expected {to}, received {version})"));
    }
    let (was, is) = (text(old, "kind"), text(new, "kind"));
    if was != is {
        return Err(format!("invalid kind (expected {was}, received {is})"));
    }
    for (field, name) in [("name", "name"), ("namespace", "namespace"), ("uid", "UID")] {
        let (was, is) = (metadata::text(old, field), metadata::text(new, field));
        if was != is {
            return Err(format!("must have the same {name}: {was} != {is}"));
        }
    }
    Ok(())
}

/// The metadata of the original; labels and annotations are those of the converted object.
fn restore(old: &Value, new: &mut Value) -> Result<(), String> {
    let Some(given) = new.get("metadata") else {
        return Err("missing metadata in converted object".into());
    };
    let Some(given) = given.as_object() else {
        return Err("invalid metadata in converted object".into());
    };
    let mut kept = old.get("metadata").and_then(Value::as_object).cloned().unwrap_or_default();
    for field in ["labels", "annotations"] {
        let Some(values) = given.get(field).filter(|v| !v.is_null()) else {
            kept.remove(field);
            continue;
        };
        let Some(values) = values.as_object() else {
            return Err(format!("invalid metadata.{field} in converted object"));
        };
        if let Some((key, _)) = values.iter().find(|(_, v)| !v.is_string()) {
            return Err(format!("metadata.{field}[{key}] must be a string in converted object"));
        }
        let same = kept.get(field).and_then(Value::as_object) == Some(values);
        if !same {
            valid(field, values)?;
        }
        kept.insert(field.to_owned(), Value::Object(values.clone()));
    }
    if let Some(map) = new.as_object_mut() {
        map.insert("metadata".into(), Value::Object(kept));
    }
    Ok(())
}

fn valid(field: &str, values: &Map<String, Value>) -> Result<(), String> {
    let object = json!({"metadata": {"name": "x", field: values}});
    let errors = meta::validate_create(&object, false, |_, _| Vec::new());
    match errors.first() {
        None => Ok(()),
        Some(_) => {
            let texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
            Err(match texts.as_slice() {
                [one] => one.clone(),
                many => format!("[{}]", many.join(", ")),
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(version: &str, name: &str) -> Value {
        json!({"apiVersion": format!("example.com/{version}"), "kind": "Foo",
            "metadata": {"name": name, "namespace": "n", "uid": "1", "generation": 2, "labels": {"a": "b"}}})
    }

    fn review(uid: &str, result: &Value) -> Value {
        json!({"kind": "ConversionReview", "apiVersion": "apiextensions.k8s.io/v1",
            "response": {"uid": uid, "result": result, "convertedObjects": [1]}})
    }

    #[test]
    fn answers_are_looked_at_as_upstream_does() {
        let good = json!({"status": "Success"});
        assert_eq!(converted(review("u", &good), "v1", "u"), Ok(vec![json!(1)]));
        assert_eq!(
            converted(review("w", &good), "v1", "u").unwrap_err(),
            "expected response.uid=\"u\", got \"w\""
        );
        let bad = json!({"status": "Failed", "message": "no"});
        assert_eq!(converted(review("u", &bad), "v1", "u").unwrap_err(), "no");
        assert_eq!(
            converted(review("u", &json!({"status": "x"})), "v1", "u").unwrap_err(),
            "response.result.status was 'x', not 'Success'"
        );
        assert_eq!(
            converted(json!({"kind": "X", "apiVersion": "v1"}), "v1", "u").unwrap_err(),
            "expected webhook response of apiextensions.k8s.io/v1, Kind=ConversionReview, got v1, Kind=X"
        );
    }

    #[test]
    fn what_names_an_object_stays() {
        let old = object("v1", "a");
        assert_eq!(
            check(&old, &object("v3", "a"), "example.com/v2").unwrap_err(),
            "invalid groupVersion (expected example.com/v2, received example.com/v3)"
        );
        assert_eq!(
            check(&old, &object("v2", "b"), "example.com/v2").unwrap_err(),
            "must have the same name: a != b"
        );
        assert_eq!(check(&old, &object("v2", "a"), "example.com/v2"), Ok(()));
    }

    #[test]
    fn metadata_is_the_originals_but_for_labels_and_annotations() {
        let mut new = object("v2", "a");
        new["metadata"]["generation"] = 9.into();
        new["metadata"]["labels"] = json!({"c": "d"});
        restore(&object("v1", "a"), &mut new).unwrap();
        assert_eq!(new["metadata"]["generation"], 2);
        assert_eq!(new["metadata"]["labels"], json!({"c": "d"}));
        new["metadata"]["labels"] = json!({"c": 1});
        assert_eq!(
            restore(&object("v1", "a"), &mut new).unwrap_err(),
            "metadata.labels[c] must be a string in converted object"
        );
    }
}
