//! SubjectAccessReview (`authorization.k8s.io`): the request to a webhook, the input of match
//! conditions, and the response.

use api::field::go_quote;
use api::selector::{FieldSelector, LabelSelector, Operator};
use api::value::{bool_at, get, str_at};
use serde_json::{Map, Value, json};

use super::super::Attributes;
use super::super::config::Version;
use crate::request::user::User;

const KIND: &str = "SubjectAccessReview";

/// The status of a webhook's response.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Status {
    pub(super) allowed: bool,
    pub(super) denied: bool,
    pub(super) reason: String,
}

impl Version {
    fn api_version(self) -> &'static str {
        match self {
            Self::V1 => "authorization.k8s.io/v1",
            Self::V1beta1 => "authorization.k8s.io/v1beta1",
        }
    }
}

/// A map of the texts that are not empty.
fn texts(list: &[(&str, &str)]) -> Map<String, Value> {
    let present = list.iter().filter(|(_, text)| !text.is_empty());
    present.map(|(name, text)| ((*name).to_owned(), json!(text))).collect()
}

/// The text attributes of a resource request.
fn resource<'a>(a: &Attributes<'a>) -> [(&'static str, &'a str); 7] {
    [
        ("namespace", a.namespace),
        ("verb", a.verb),
        ("group", a.group),
        ("version", a.version),
        ("resource", a.resource),
        ("subresource", a.subresource),
        ("name", a.name),
    ]
}

/// Adds the requirements of selectors. An invalid selector restricts nothing, so the request is the
/// broader one.
fn selectors(a: &Attributes<'_>, into: &mut Map<String, Value>) {
    let fields = FieldSelector::parse(a.field_selector).unwrap_or_default();
    let fields = fields.terms().iter().map(|term| {
        let operator = if term.not { "NotIn" } else { "In" };
        json!({"key": term.field, "operator": operator, "values": [term.value]})
    });
    let labels = LabelSelector::parse(a.label_selector);
    let labels = labels.as_ref().map_or(&[][..], LabelSelector::requirements);
    let labels = labels.iter().filter_map(|requirement| {
        let operator = match requirement.operator() {
            Operator::Equals | Operator::DoubleEquals | Operator::In => "In",
            Operator::NotEquals | Operator::NotIn => "NotIn",
            Operator::Exists => "Exists",
            Operator::DoesNotExist => "DoesNotExist",
            Operator::GreaterThan | Operator::LessThan => return None,
        };
        let mut term = json!({"key": requirement.key(), "operator": operator});
        let values: Vec<&str> = requirement.values().collect();
        if !values.is_empty() {
            api::value::set(&mut term, "values", json!(values));
        }
        Some(term)
    });
    let all: [(&str, Vec<Value>); 2] =
        [("fieldSelector", fields.collect()), ("labelSelector", labels.collect())];
    for (name, requirements) in all.into_iter().filter(|(_, list)| !list.is_empty()) {
        into.insert(name.to_owned(), json!({"requirements": requirements}));
    }
}

/// The `spec` of version v1.
pub(super) fn spec(user: &User, a: &Attributes<'_>) -> Map<String, Value> {
    let mut spec = texts(&[("user", &user.name), ("uid", &user.uid)]);
    if a.path.is_empty() {
        let mut attributes = texts(&resource(a));
        selectors(a, &mut attributes);
        spec.insert("resourceAttributes".to_owned(), Value::Object(attributes));
    } else {
        let attributes = texts(&[("path", a.path), ("verb", a.verb)]);
        spec.insert("nonResourceAttributes".to_owned(), Value::Object(attributes));
    }
    if !user.groups.is_empty() {
        spec.insert("groups".to_owned(), json!(user.groups));
    }
    if !user.extra.is_empty() {
        spec.insert("extra".to_owned(), json!(user.extra));
    }
    spec
}

/// The input of match conditions: the `spec` including empty texts and lists.
pub(super) fn condition_input(user: &User, a: &Attributes<'_>) -> Value {
    let mut input =
        json!({"user": user.name, "uid": user.uid, "groups": user.groups, "extra": user.extra});
    if a.path.is_empty() {
        let all = resource(a);
        let mut attributes: Map<String, Value> =
            all.iter().map(|(name, text)| ((*name).to_owned(), json!(text))).collect();
        selectors(a, &mut attributes);
        api::value::set(&mut input, "resourceAttributes", Value::Object(attributes));
    } else {
        let attributes = json!({"path": a.path, "verb": a.verb});
        api::value::set(&mut input, "nonResourceAttributes", attributes);
    }
    input
}

/// The review to post.
pub(super) fn body(mut spec: Map<String, Value>, version: Version) -> Vec<u8> {
    if version == Version::V1beta1
        && let Some(groups) = spec.remove("groups")
    {
        spec.insert("group".to_owned(), groups);
    }
    let review = json!({
        "kind": KIND,
        "apiVersion": version.api_version(),
        "metadata": {},
        "spec": spec,
        "status": {"allowed": false},
    });
    review.to_string().into_bytes()
}

/// The response of a webhook is not a review of the requested version.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum ReviewError {
    #[error("expected webhook response of {KIND} {expected}, got {} {}",
        go_quote(.kind), go_quote(.api_version), KIND = KIND)]
    Kind { expected: &'static str, kind: String, api_version: String },
    /// `field` of the status has the wrong type.
    #[error("the webhook's answer has a value of another type: status.{field}")]
    Type { field: &'static str },
}

/// Parses a response.
///
/// # Errors
/// If it is not a review of this version.
pub(super) fn status(response: &Value, version: Version) -> Result<Status, ReviewError> {
    let (kind, api_version) = (str_at(response, "kind"), str_at(response, "apiVersion"));
    let expected = version.api_version();
    if !response.is_object()
        || !matches!(kind, "" | KIND)
        || !(api_version.is_empty() || api_version == expected)
    {
        return Err(ReviewError::Kind {
            expected,
            kind: kind.to_owned(),
            api_version: api_version.to_owned(),
        });
    }
    let status = get(response, "status");
    let checks: [(&'static str, Check); 3] = [
        ("allowed", Value::is_boolean),
        ("denied", Value::is_boolean),
        ("reason", Value::is_string),
    ];
    for (name, is_good) in checks {
        let value = get(status, name);
        if !value.is_null() && !is_good(value) {
            return Err(ReviewError::Type { field: name });
        }
    }
    Ok(Status {
        allowed: bool_at(status, "allowed"),
        denied: bool_at(status, "denied"),
        reason: str_at(status, "reason").to_owned(),
    })
}

/// Whether a value has the required type.
type Check = fn(&Value) -> bool;

#[cfg(test)]
mod tests {
    use super::*;

    fn jane() -> User {
        let extra = [("scopes".to_owned(), vec!["a".to_owned()])].into();
        User {
            name: "jane".into(),
            uid: "1".into(),
            groups: vec!["group1".into(), "group2".into()],
            extra,
        }
    }

    /// The example of upstream's `Authorize`, and its selectors (`webhook_v1_test.go`).
    #[test]
    fn posted_reviews_have_upstreams_form() {
        let a = Attributes {
            verb: "list",
            group: "group3",
            resource: "pods",
            namespace: "kittensandponies",
            field_selector: "metadata.name=a,spec.nodeName!=b",
            label_selector: "app in (x,y),!gone,tier!=z,size>3",
            ..Attributes::default()
        };
        let sent: Value = serde_json::from_slice(&body(spec(&jane(), &a), Version::V1)).unwrap();
        assert_eq!(
            sent,
            json!({
                "apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "metadata": {}, "status": {"allowed": false},
                "spec": {
                    "user": "jane", "uid": "1", "groups": ["group1", "group2"], "extra": {"scopes": ["a"]},
                    "resourceAttributes": {
                        "namespace": "kittensandponies", "verb": "list", "group": "group3", "resource": "pods",
                        "fieldSelector": {"requirements": [
                            {"key": "metadata.name", "operator": "In", "values": ["a"]},
                            {"key": "spec.nodeName", "operator": "NotIn", "values": ["b"]}]},
                        "labelSelector": {"requirements": [
                            {"key": "app", "operator": "In", "values": ["x", "y"]},
                            {"key": "gone", "operator": "DoesNotExist"},
                            {"key": "tier", "operator": "NotIn", "values": ["z"]}]},
                    },
                },
            })
        );
        let path = Attributes { verb: "get", path: "/healthz", ..Attributes::default() };
        let sent: Value =
            serde_json::from_slice(&body(spec(&jane(), &path), Version::V1beta1)).unwrap();
        assert_eq!(sent["apiVersion"], "authorization.k8s.io/v1beta1");
        assert_eq!(sent["spec"]["group"], json!(["group1", "group2"]));
        assert_eq!(
            sent["spec"]["nonResourceAttributes"],
            json!({"path": "/healthz", "verb": "get"})
        );
        assert!(sent["spec"].get("groups").is_none());
    }

    #[test]
    fn condition_input_includes_empty_fields() {
        let user = User { name: "a".into(), ..User::default() };
        let a = Attributes { verb: "get", resource: "pods", ..Attributes::default() };
        assert_eq!(
            condition_input(&user, &a),
            json!({"user": "a", "uid": "", "groups": [], "extra": {}, "resourceAttributes": {
                "namespace": "", "verb": "get", "group": "", "version": "", "resource": "pods", "subresource": "", "name": ""}})
        );
    }

    #[test]
    fn responses_must_have_the_requested_version() {
        let answer = json!({"apiVersion": "authorization.k8s.io/v1", "kind": KIND, "status": {"denied": true, "reason": "no"}});
        let want = Status { denied: true, reason: "no".into(), ..Status::default() };
        assert_eq!(status(&answer, Version::V1), Ok(want));
        assert_eq!(
            status(&answer, Version::V1beta1).unwrap_err().to_string(),
            r#"expected webhook response of SubjectAccessReview authorization.k8s.io/v1beta1, got "SubjectAccessReview" "authorization.k8s.io/v1""#
        );
        assert_eq!(status(&json!({}), Version::V1), Ok(Status::default()));
        assert!(status(&json!({"status": {"allowed": "yes"}}), Version::V1).is_err());
        assert!(status(&json!([]), Version::V1).is_err());
    }
}
