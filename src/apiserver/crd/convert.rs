//! Converts objects between versions: the strategy `None` changes only `apiVersion`, `Webhook`
//! calls the webhook of the definition.
//!
//! Checks and messages are those of `pkg/apiserver/conversion/webhook_converter.go` of
//! apiextensions.

use std::sync::Arc;
use std::time::Duration;

use api::Gvk;
use api::validation::meta;
use serde_json::{Map, Value, json};

use super::definition::{Conversion, Definition};
use super::error::{ConversionError, MetadataError, ObjectError, ResponseError};
use crate::metrics::admission as metrics;
use crate::registry::metadata;
use webhook::{Callout, Client, ClientConfig, ConfigError};

/// The timeout of a conversion (upstream's default for webhook clients).
const TIMEOUT: Duration = Duration::from_secs(30);

/// The conversion webhook of a definition.
#[derive(Debug)]
pub(crate) struct Webhook {
    client: Client,
    /// The version of `ConversionReview` that it supports: `v1` or `v1beta1`.
    version: &'static str,
}

impl Webhook {
    /// Creates the client for `spec.conversion`.
    ///
    /// # Errors
    /// If the configuration is unusable.
    pub(crate) fn new(conversion: &Conversion, callout: &Callout) -> Result<Self, ConversionError> {
        let unusable = |error: ConfigError| ConversionError::Webhook(Arc::new(error));
        let webhook = conversion.webhook.as_ref().unwrap_or(&Value::Null);
        let config = webhook.get("clientConfig").unwrap_or(&Value::Null);
        let config = ClientConfig::from_value(config).map_err(unusable)?;
        let client = Client::new(config, callout.clone()).map_err(unusable)?;
        let versions = webhook.get("conversionReviewVersions").and_then(Value::as_array);
        let mut supported = versions.into_iter().flatten().filter_map(|v| match v.as_str() {
            Some("v1") => Some("v1"),
            Some("v1beta1") => Some("v1beta1"),
            _ => None,
        });
        let version = supported.next().ok_or(ConversionError::ReviewVersions)?;
        Ok(Self { client, version })
    }

    /// Converts objects to the version `to` (`group/version`); returns them in the same order.
    ///
    /// # Errors
    /// If the webhook cannot be called or does not convert all objects.
    pub(crate) async fn convert(
        &self,
        objects: Vec<Value>,
        to: &str,
    ) -> Result<Vec<Value>, ConversionError> {
        let started = base::clock::now();
        let Some(first) = objects.first() else {
            metrics::converted("", started.elapsed());
            return Ok(Vec::new());
        };
        let outcome = self.review(&objects, first, to).await;
        let failure_type = outcome.as_ref().err().map_or("", ConversionError::failure_type);
        metrics::converted(failure_type, base::clock::now().duration_since(started));
        outcome
    }

    /// Sends the review and checks the converted objects.
    async fn review(
        &self,
        objects: &[Value],
        first: &Value,
        to: &str,
    ) -> Result<Vec<Value>, ConversionError> {
        let gvk = gvk_text(first);
        let uid = base::clock::random_uuid();
        let review = json!({
            "kind": "ConversionReview", "apiVersion": format!("apiextensions.k8s.io/{}", self.version),
            "request": {"uid": uid, "desiredAPIVersion": to, "objects": objects},
            "response": {"uid": "", "convertedObjects": null, "result": {"metadata": {}}},
        });
        let attributes = || {
            vec![
                ("desired-api-version", to.into()),
                ("object-count", i64::try_from(objects.len()).unwrap_or(i64::MAX).into()),
                ("UID", uid.as_str().into()),
            ]
        };
        let post = self.client.post(&review, TIMEOUT);
        let response =
            crate::request_tracing::run("Call conversion webhook", attributes, post).await;
        let response = response
            .map_err(|error| ConversionError::Call { gvk: gvk.clone(), source: Arc::new(error) })?;
        let converted = converted_objects(response, self.version, &uid)
            .map_err(|source| ConversionError::Response { gvk: gvk.clone(), source })?;
        if converted.len() != objects.len() {
            let (returned, expected) = (converted.len(), objects.len());
            return Err(ConversionError::ObjectCount { gvk, returned, expected });
        }
        let mut out = Vec::with_capacity(objects.len());
        for (index, (old, mut new)) in objects.iter().zip(converted).enumerate() {
            check_identity(old, &new, to).map_err(|source| ConversionError::Object {
                gvk: gvk.clone(),
                index,
                source,
            })?;
            restore_metadata(old, &mut new).map_err(|source| ConversionError::Metadata {
                gvk: gvk.clone(),
                index,
                source,
            })?;
            out.push(new);
        }
        Ok(out)
    }
}

/// Sets `apiVersion`: the conversion of the strategy `None`.
pub(crate) fn rename(object: &mut Value, to: &str) {
    if let Some(map) = object.as_object_mut() {
        map.insert("apiVersion".into(), to.into());
    }
}

/// Whether a webhook converts the objects of the definition.
pub(crate) fn is_webhook(definition: &Definition) -> bool {
    definition.conversion.strategy == "Webhook"
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value.get(key).and_then(Value::as_str).unwrap_or_default()
}

/// Group, version and kind in Go's format.
fn gvk_text(object: &Value) -> String {
    format!("{}, Kind={}", text(object, "apiVersion"), text(object, "kind"))
}

/// The converted objects of a response to a `ConversionReview` of this version and UID.
fn converted_objects(
    mut review: Value,
    version: &str,
    uid: &str,
) -> Result<Vec<Value>, ResponseError> {
    if version == "v1" {
        let gvk = Gvk::from_api_version(text(&review, "apiVersion"), text(&review, "kind"));
        if gvk != Gvk::new("apiextensions.k8s.io", "v1", "ConversionReview") {
            return Err(ResponseError::Kind(gvk_text(&review)));
        }
    }
    let Some(response) = review.get_mut("response").filter(|r| r.is_object()) else {
        return Err(ResponseError::Missing);
    };
    if version == "v1" && text(response, "uid") != uid {
        let received = text(response, "uid").to_owned();
        return Err(ResponseError::Uid { expected: uid.to_owned(), received });
    }
    let result = response.get("result").unwrap_or(&Value::Null);
    if text(result, "status") != "Success" {
        return Err(match text(result, "message") {
            "" => ResponseError::Status(text(result, "status").to_owned()),
            message => ResponseError::Message(message.to_owned()),
        });
    }
    match response.get_mut("convertedObjects").map(Value::take) {
        Some(Value::Array(list)) => Ok(list),
        _ => Ok(Vec::new()),
    }
}

/// Checks that a converted object has the requested version and is otherwise the same object.
fn check_identity(old: &Value, new: &Value, to: &str) -> Result<(), ObjectError> {
    let owned = str::to_owned;
    let version = text(new, "apiVersion");
    if version != to {
        return Err(ObjectError::GroupVersion { expected: owned(to), received: owned(version) });
    }
    let (original, converted) = (text(old, "kind"), text(new, "kind"));
    if original != converted {
        return Err(ObjectError::Kind { expected: owned(original), received: owned(converted) });
    }
    for (key, field) in [("name", "name"), ("namespace", "namespace"), ("uid", "UID")] {
        let (original, converted) = (metadata::text(old, key), metadata::text(new, key));
        if original != converted {
            let (original, converted) = (owned(original), owned(converted));
            return Err(ObjectError::Identity { field, original, converted });
        }
    }
    Ok(())
}

/// Replaces the metadata of the converted object with the original's, except for labels and
/// annotations.
fn restore_metadata(old: &Value, new: &mut Value) -> Result<(), MetadataError> {
    let converted = new.get("metadata").ok_or(MetadataError::Missing)?;
    let converted = converted.as_object().ok_or(MetadataError::NotAnObject)?;
    let mut restored = old.get("metadata").and_then(Value::as_object).cloned().unwrap_or_default();
    for field in ["labels", "annotations"] {
        let Some(values) = converted.get(field).filter(|v| !v.is_null()) else {
            restored.remove(field);
            continue;
        };
        let values = values.as_object().ok_or(MetadataError::NotAMap(field))?;
        if let Some((key, _)) = values.iter().find(|(_, v)| !v.is_string()) {
            return Err(MetadataError::NotAString { field, key: key.clone() });
        }
        let is_unchanged = restored.get(field).and_then(Value::as_object) == Some(values);
        if !is_unchanged {
            validate_metadata(field, values)?;
        }
        restored.insert(field.to_owned(), Value::Object(values.clone()));
    }
    if let Some(map) = new.as_object_mut() {
        map.insert("metadata".into(), Value::Object(restored));
    }
    Ok(())
}

/// Validates labels or annotations as those of a new object.
fn validate_metadata(field: &str, values: &Map<String, Value>) -> Result<(), MetadataError> {
    let object = json!({"metadata": {"name": "x", field: values}});
    let errors = meta::validate_create(&object, false, |_, _| Vec::new());
    if errors.is_empty() {
        return Ok(());
    }
    let texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
    Err(MetadataError::Invalid(match texts.as_slice() {
        [one] => one.clone(),
        several => format!("[{}]", several.join(", ")),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(version: &str, name: &str) -> Value {
        let metadata = json!({"name": name, "namespace": "n", "uid": "1", "generation": 2,
            "labels": {"a": "b"}});
        json!({"apiVersion": format!("example.com/{version}"), "kind": "Foo", "metadata": metadata})
    }

    fn review(uid: &str, result: &Value) -> Value {
        json!({"kind": "ConversionReview", "apiVersion": "apiextensions.k8s.io/v1",
            "response": {"uid": uid, "result": result, "convertedObjects": [1]}})
    }

    #[test]
    fn responses_are_checked_with_upstreams_messages() {
        let error = |review: Value| converted_objects(review, "v1", "u").unwrap_err().to_string();
        let success = json!({"status": "Success"});
        assert_eq!(converted_objects(review("u", &success), "v1", "u"), Ok(vec![json!(1)]));
        assert_eq!(error(review("w", &success)), "expected response.uid=\"u\", got \"w\"");
        assert_eq!(error(review("u", &json!({"status": "Failed", "message": "no"}))), "no");
        assert_eq!(
            error(review("u", &json!({"status": "x"}))),
            "response.result.status was 'x', not 'Success'"
        );
        assert_eq!(
            error(json!({"kind": "X", "apiVersion": "v1"})),
            "expected webhook response of apiextensions.k8s.io/v1, Kind=ConversionReview, got v1, \
             Kind=X"
        );
    }

    #[test]
    fn a_conversion_cannot_change_the_identity_of_an_object() {
        let check = |version: &str, name: &str| {
            check_identity(&object("v1", "a"), &object(version, name), "example.com/v2")
        };
        assert_eq!(
            check("v3", "a").unwrap_err().to_string(),
            "invalid groupVersion (expected example.com/v2, received example.com/v3)"
        );
        assert_eq!(check("v2", "b").unwrap_err().to_string(), "must have the same name: a != b");
        assert_eq!(check("v2", "a"), Ok(()));
    }

    #[test]
    fn a_conversion_can_change_only_labels_and_annotations_of_the_metadata() {
        let mut new = object("v2", "a");
        new["metadata"]["generation"] = 9.into();
        new["metadata"]["labels"] = json!({"c": "d"});
        restore_metadata(&object("v1", "a"), &mut new).unwrap();
        assert_eq!(new["metadata"]["generation"], 2);
        assert_eq!(new["metadata"]["labels"], json!({"c": "d"}));
        new["metadata"]["labels"] = json!({"c": 1});
        assert_eq!(
            restore_metadata(&object("v1", "a"), &mut new).unwrap_err().to_string(),
            "metadata.labels[c] must be a string in converted object"
        );
    }
}
