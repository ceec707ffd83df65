//! The AdmissionReview for a webhook, and the rules for its response (upstream's
//! `webhook/request`).

use api::value::{bool_at, get, items, str_at};
use api::{Gvk, Gvr, Status};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};

use super::Invocation;
use super::hook::ReviewVersion;
use crate::admission::{Request, matching};
use crate::request::user::User;

/// The content of a review: the request and its objects, in the version of the invocation.
pub(super) struct Question<'a> {
    pub(super) request: &'a Request<'a>,
    /// The kind of the request in its own version.
    pub(super) kind: &'a Gvk,
    pub(super) object: Option<&'a Value>,
    pub(super) old: Option<&'a Value>,
}

/// The content of a response that allows the request.
#[derive(Debug, PartialEq)]
pub(super) struct Verdict {
    pub(super) allowed: bool,
    /// The JSON patch, decoded from base64.
    pub(super) patch: Vec<u8>,
    /// `JSONPatch`, or another value that the webhook sent.
    pub(super) patch_type: String,
    pub(super) status: Option<Status>,
    pub(super) warnings: Vec<String>,
    /// The audit annotations.
    pub(super) annotations: Vec<(String, String)>,
}

fn kind_json(kind: &Gvk) -> Value {
    json!({"group": &*kind.group, "version": &*kind.version, "kind": &*kind.kind})
}

fn resource_json(gvr: &Gvr) -> Value {
    json!({"group": &*gvr.group, "version": &*gvr.version, "resource": &*gvr.resource})
}

fn user_json(user: &User) -> Value {
    let mut map = Map::new();
    for (key, text) in [("username", &user.name), ("uid", &user.uid)] {
        if !text.is_empty() {
            map.insert(key.to_owned(), text.as_str().into());
        }
    }
    if !user.groups.is_empty() {
        map.insert("groups".to_owned(), json!(user.groups));
    }
    if !user.extra.is_empty() {
        map.insert("extra".to_owned(), json!(user.extra));
    }
    Value::Object(map)
}

/// An AdmissionRequest without uid and objects: `gvr` and `gvk` come from the matching rule, `kind`
/// is that of the request itself.
pub(crate) fn described(
    request: &Request<'_>,
    kind: &Gvk,
    object: Option<&Value>,
    gvr: &Gvr,
    gvk: &Gvk,
) -> Map<String, Value> {
    let mut map = Map::new();
    map.insert("kind".to_owned(), kind_json(gvk));
    map.insert("resource".to_owned(), resource_json(gvr));
    map.insert("requestKind".to_owned(), kind_json(kind));
    map.insert("requestResource".to_owned(), resource_json(request.gvr));
    let texts = [
        ("subResource", request.subresource),
        ("requestSubResource", request.subresource),
        ("name", request.named(object)),
        ("namespace", matching::namespace_of(request, object)),
    ];
    for (key, text) in texts {
        if !text.is_empty() {
            map.insert(key.to_owned(), text.into());
        }
    }
    map.insert("operation".to_owned(), matching::operation_name(request.operation).into());
    map.insert("userInfo".to_owned(), user_json(request.user));
    map.insert("dryRun".to_owned(), request.dry_run.into());
    map.insert("options".to_owned(), request.options.value());
    map
}

/// The review with this UID.
pub(super) fn of(
    uid: &str,
    version: ReviewVersion,
    question: &Question<'_>,
    invocation: &Invocation,
) -> Value {
    let (request, object) = (question.request, question.object);
    let mut map = described(request, question.kind, object, &invocation.gvr, &invocation.gvk);
    map.insert("uid".to_owned(), uid.into());
    map.insert("object".to_owned(), object.cloned().unwrap_or_default());
    map.insert("oldObject".to_owned(), question.old.cloned().unwrap_or_default());
    let version = match version {
        ReviewVersion::V1 => "admission.k8s.io/v1",
        ReviewVersion::V1beta1 => "admission.k8s.io/v1beta1",
    };
    json!({"kind": "AdmissionReview", "apiVersion": version, "request": map})
}

/// A response violates the contract of its version. The messages are upstream's.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReviewError {
    #[error("webhook response was absent")]
    NoResponse,
    #[error(
        "expected response.uid={}, got {}",
        api::field::go_quote(.expected),
        api::field::go_quote(.actual)
    )]
    Uid { expected: String, actual: String },
    #[error(
        "expected webhook response of admission.k8s.io/v1, Kind=AdmissionReview, got \
         {group}/{version}, Kind={kind}"
    )]
    Kind { group: String, version: String, kind: String },
    #[error("response.patch is no base64: {0}")]
    PatchEncoding(#[source] base64::DecodeError),
    #[error("response.status is no Status: {0}")]
    Status(#[source] serde_json::Error),
    #[error("webhook returned response.patch but not response.patchType")]
    PatchWithoutType,
    #[error("webhook returned response.patchType but not response.patch")]
    TypeWithoutPatch,
    #[error("webhook returned invalid response.patchType of \"\"")]
    EmptyPatchType,
    #[error("validating webhook may not return response.patch")]
    ValidatingPatch,
    #[error("validating webhook may not return response.patchType")]
    ValidatingPatchType,
}

/// Parses a response.
///
/// # Errors
/// If it violates the contract of its version.
pub(super) fn verdict(
    uid: &str,
    version: ReviewVersion,
    mutating: bool,
    review: &Value,
) -> Result<Verdict, ReviewError> {
    let response = get(review, "response");
    if !response.is_object() {
        return Err(ReviewError::NoResponse);
    }
    let strict = version == ReviewVersion::V1;
    if strict {
        let actual = str_at(response, "uid");
        if actual != uid {
            let (expected, actual) = (uid.to_owned(), actual.to_owned());
            return Err(ReviewError::Uid { expected, actual });
        }
        let (api_version, kind) = (str_at(review, "apiVersion"), str_at(review, "kind"));
        if api_version != "admission.k8s.io/v1" || kind != "AdmissionReview" {
            let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
            return Err(ReviewError::Kind {
                group: group.to_owned(),
                version: version.to_owned(),
                kind: kind.to_owned(),
            });
        }
    }
    let patch = STANDARD.decode(str_at(response, "patch")).map_err(ReviewError::PatchEncoding)?;
    let patch_type = get(response, "patchType").as_str();
    if strict {
        check_patch(mutating, !patch.is_empty(), patch_type)?;
    }
    let status = match get(response, "status") {
        Value::Null => None,
        status => {
            Some(serde_json::from_value::<Status>(status.clone()).map_err(ReviewError::Status)?)
        }
    };
    let annotations = get(response, "auditAnnotations").as_object().into_iter().flatten();
    let annotations =
        annotations.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())));
    let warnings = items(response, "warnings").iter().filter_map(Value::as_str);
    Ok(Verdict {
        allowed: bool_at(response, "allowed"),
        // In v1beta1, the patch type is not checked and the patch of a validating webhook is
        // ignored.
        patch: if mutating { patch } else { Vec::new() },
        patch_type: if strict { patch_type.unwrap_or_default() } else { "JSONPatch" }.to_owned(),
        status,
        warnings: warnings.map(str::to_owned).collect(),
        annotations: annotations.collect(),
    })
}

fn check_patch(
    mutating: bool,
    has_patch: bool,
    patch_type: Option<&str>,
) -> Result<(), ReviewError> {
    match (mutating, has_patch, patch_type) {
        (true, true, None) => Err(ReviewError::PatchWithoutType),
        (true, false, Some(_)) => Err(ReviewError::TypeWithoutPatch),
        (true, true, Some("")) => Err(ReviewError::EmptyPatchType),
        (false, true, _) => Err(ReviewError::ValidatingPatch),
        (false, false, Some(_)) => Err(ReviewError::ValidatingPatchType),
        _ => Ok(()),
    }
}

/// The rejection by a webhook (upstream's `webhook/errors.ToStatusErr`).
pub(super) fn denial(hook: &str, status: Option<Status>) -> Status {
    let mut status = status.unwrap_or_default();
    "Status".clone_into(&mut status.kind);
    "v1".clone_into(&mut status.api_version);
    if status.code < 400 {
        status.code = 400;
    }
    if matches!(status.status.as_str(), "" | "Success") {
        "Failure".clone_into(&mut status.status);
    }
    let denied = format!("admission webhook {} denied the request", api::field::go_quote(hook));
    status.message = match (status.message.as_str(), status.reason.as_str()) {
        ("", "") => format!("{denied} without explanation"),
        ("", reason) => format!("{denied}: {reason}"),
        (message, _) => format!("{denied}: {message}"),
    };
    status
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn responses_that_violate_the_contract_are_errors() {
        // Messages of upstream's `admissionreview_test.go`.
        let ok = |response: Value| json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response});
        let error = |mutating, review: Value| {
            verdict("123", ReviewVersion::V1, mutating, &review).unwrap_err().to_string()
        };
        assert_eq!(error(true, ok(Value::Null)), "webhook response was absent");
        assert_eq!(error(true, ok(json!({"uid": ""}))), "expected response.uid=\"123\", got \"\"");
        assert_eq!(
            error(true, json!({"response": {"uid": "123"}})),
            "expected webhook response of admission.k8s.io/v1, Kind=AdmissionReview, got /, Kind="
        );
        let cases = [
            (
                true,
                json!({"patch": "W10="}),
                "webhook returned response.patch but not response.patchType",
            ),
            (
                true,
                json!({"patchType": "JSONPatch"}),
                "webhook returned response.patchType but not response.patch",
            ),
            (false, json!({"patch": "W10="}), "validating webhook may not return response.patch"),
            (
                false,
                json!({"patchType": "JSONPatch"}),
                "validating webhook may not return response.patchType",
            ),
        ];
        for (mutating, mut response, wanted) in cases {
            response["uid"] = "123".into();
            assert_eq!(error(mutating, ok(response)), wanted);
        }
        let answer = ok(
            json!({"uid": "123", "allowed": true, "patch": "W10=", "patchType": "JSONPatch", "warnings": ["w"]}),
        );
        let read = verdict("123", ReviewVersion::V1, true, &answer).unwrap();
        assert_eq!(
            (read.allowed, read.patch.as_slice(), read.warnings),
            (true, b"[]".as_slice(), vec!["w".to_owned()])
        );
        let old = json!({"response": {"allowed": true, "patch": "W10="}});
        assert_eq!(
            verdict("123", ReviewVersion::V1beta1, true, &old).unwrap().patch_type,
            "JSONPatch"
        );
    }

    #[test]
    fn a_denial_has_a_code_a_status_and_a_message() {
        let text = |status: Value| {
            let status = denial("h", serde_json::from_value(status).unwrap());
            (status.code, status.status, status.message)
        };
        let failure = "Failure".to_owned();
        let denied = "admission webhook \"h\" denied the request";
        assert_eq!(
            text(Value::Null),
            (400, failure.clone(), format!("{denied} without explanation"))
        );
        assert_eq!(
            text(json!({"message": "m", "code": 1})),
            (400, failure.clone(), format!("{denied}: m"))
        );
        assert_eq!(
            text(json!({"reason": "r", "code": 403, "status": "Success"})),
            (403, failure, format!("{denied}: r"))
        );
    }
}
