//! Reviews, which are answered and not stored: access reviews, rules reviews, token reviews, self
//! subject reviews.

use std::sync::Arc;

use api::Status;
use api::field::{Error, ErrorList, Path};
use api::selector::LabelSelector;
use api::value::{at, get, has, is_empty, items, set, str_at, str_in};
use serde_json::{Map, Value, json};

use crate::authn::Union;
use crate::authz::{Attributes, Authorizer, Decision, Failure};
use crate::request::user::User;
use component_config::aggregate;

/// The handler of reviews.
pub struct Reviews {
    authenticator: Arc<Union>,
    authorizer: Arc<dyn Authorizer>,
    audiences: Vec<String>,
}

const AUTHORIZATION: &str = "authorization.k8s.io";
/// The printed form of non-resource attributes in error messages.
const PATHS: &str = "*NonResourceAttributes";

impl Reviews {
    /// Creates the handler with the server's authenticator and authorizer; `audiences` are the API
    /// server's.
    pub fn new(
        authenticator: Arc<Union>,
        authorizer: Arc<dyn Authorizer>,
        audiences: Vec<String>,
    ) -> Self {
        Self { authenticator, authorizer, audiences }
    }

    /// Sets the `status` of the review in `object`. `resource` is its plural, `namespace` that of
    /// the request.
    ///
    /// # Errors
    /// 400 and 422 for an invalid review, 404 for a resource that is not a review.
    pub async fn create(
        &self,
        resource: &str,
        namespace: &str,
        user: &User,
        object: &mut Value,
    ) -> Result<(), Status> {
        let status = match resource {
            "subjectaccessreviews" => self.subject_access(object).await?,
            "localsubjectaccessreviews" => self.local_subject_access(namespace, object).await?,
            "selfsubjectaccessreviews" => self.self_subject_access(user, object).await?,
            "selfsubjectrulesreviews" => self.rules(user, object)?,
            "tokenreviews" => self.token(object).await?,
            "selfsubjectreviews" => json!({"userInfo": user_info(user)}),
            other => return Err(Status::not_found("", other, "")),
        };
        if resource == "selfsubjectrulesreviews" {
            // The response has no metadata.
            set(object, "metadata", json!({}));
            set(object, "spec", json!({}));
        }
        if resource == "selfsubjectreviews" {
            let at = jiff::Timestamp::from_second(
                i64::try_from(base::clock::unix_time().as_secs()).unwrap_or_default(),
            );
            let at = at.map_err(|e| Status::internal(&e.to_string()))?;
            set(object, "metadata", json!({"creationTimestamp": at.to_string()}));
        }
        set(object, "status", status);
        Ok(())
    }

    async fn subject_access(&self, object: &Value) -> Result<Value, Status> {
        let mut errors = attribute_errors(object);
        errors.extend(user_errors(object));
        errors.extend(metadata_errors(object, false));
        invalid(&errors)?;
        Ok(self.answer(&subject(get(object, "spec")), object).await)
    }

    async fn local_subject_access(&self, namespace: &str, object: &Value) -> Result<Value, Status> {
        let mut errors = attribute_errors(object);
        errors.extend(user_errors(object));
        errors.extend(metadata_errors(object, true));
        let own = str_in(object, &["metadata", "namespace"]);
        let asked = at(object, &["spec", "resourceAttributes"]);
        if !asked.is_null() && str_at(asked, "namespace") != own {
            let path = Path::new("spec.resourceAttributes.namespace");
            errors.push(Error::invalid(
                &path,
                str_at(asked, "namespace"),
                "must match metadata.namespace",
            ));
        }
        let path = at(object, &["spec", "nonResourceAttributes"]);
        if !path.is_null() {
            let detail = "disallowed on this kind of request";
            let at = Path::new("spec.nonResourceAttributes");
            errors.push(Error::invalid(&at, path.clone(), detail).printed_as(PATHS));
        }
        invalid(&errors)?;
        if namespace != own {
            return Err(Status::bad_request(format!(
                "spec.resourceAttributes.namespace must match namespace: {namespace}"
            )));
        }
        Ok(self.answer(&subject(get(object, "spec")), object).await)
    }

    async fn self_subject_access(&self, user: &User, object: &Value) -> Result<Value, Status> {
        let mut errors = attribute_errors(object);
        errors.extend(metadata_errors(object, false));
        invalid(&errors)?;
        Ok(self.answer(user, object).await)
    }

    async fn answer(&self, user: &User, object: &Value) -> Value {
        let spec = get(object, "spec");
        let asked = get(spec, "resourceAttributes");
        let selector = field_selector(get(asked, "fieldSelector"));
        let labels = label_selector(get(asked, "labelSelector"));
        let attributes = if asked.is_null() {
            let asked = get(spec, "nonResourceAttributes");
            Attributes {
                verb: str_at(asked, "verb"),
                path: str_at(asked, "path"),
                ..Attributes::default()
            }
        } else {
            Attributes {
                verb: str_at(asked, "verb"),
                group: str_at(asked, "group"),
                version: str_at(asked, "version"),
                resource: str_at(asked, "resource"),
                subresource: str_at(asked, "subresource"),
                namespace: str_at(asked, "namespace"),
                name: str_at(asked, "name"),
                field_selector: &selector,
                label_selector: &labels,
                path: "",
            }
        };
        let decision = self.authorizer.authorize(user, &attributes).await;
        let (allowed, denied, reason, error) = match decision {
            Decision::Allow(reason) => (true, false, reason, String::new()),
            Decision::Deny(reason) => (false, true, reason, String::new()),
            Decision::NoOpinion(reason) => (false, false, reason, String::new()),
            Decision::Failed(Failure { denied, reason, error }) => (false, denied, reason, error),
        };
        let mut status = json!({"allowed": allowed});
        if denied {
            set(&mut status, "denied", true);
        }
        if !reason.is_empty() {
            set(&mut status, "reason", reason);
        }
        if !error.is_empty() {
            set(&mut status, "evaluationError", error);
        }
        status
    }

    fn rules(&self, user: &User, object: &Value) -> Result<Value, Status> {
        let namespace = str_in(object, &["spec", "namespace"]);
        if namespace.is_empty() {
            return Err(Status::bad_request("no namespace on request"));
        }
        let (mut resources, mut paths) = (Vec::new(), Vec::new());
        let known = self.authorizer.rules(user, namespace);
        for rule in known.rules {
            let mut shown = json!(rule);
            if rule.resources.is_empty() {
                paths.push(shown);
            } else {
                api::value::remove(&mut shown, "nonResourceURLs");
                resources.push(shown);
            }
        }
        let mut status = json!({"resourceRules": resources, "nonResourceRules": paths, "incomplete": known.incomplete});
        if !known.errors.is_empty() {
            set(&mut status, "evaluationError", aggregate(known.errors));
        }
        Ok(status)
    }

    async fn token(&self, object: &Value) -> Result<Value, Status> {
        let spec = get(object, "spec");
        let token = str_at(spec, "token");
        if token.is_empty() {
            return Err(Status::bad_request("token is required for TokenReview in authentication"));
        }
        let asked: Vec<String> =
            items(spec, "audiences").iter().filter_map(Value::as_str).map(str::to_owned).collect();
        let audiences = if asked.is_empty() { self.audiences.clone() } else { asked };
        match self.authenticator.review(token, &audiences).await {
            Ok(Some(identity)) => {
                // Tokens without audiences are valid for the API server.
                let own = if identity.audiences.is_empty() {
                    &self.audiences
                } else {
                    &identity.audiences
                };
                let shared: Vec<&String> =
                    own.iter().filter(|aud| audiences.contains(aud)).collect();
                if shared.is_empty() {
                    return Ok(json!({"user": {}, "error": "invalid bearer token"}));
                }
                let mut user = identity.user;
                if !user.in_group("system:authenticated") {
                    user.groups.push("system:authenticated".into());
                }
                Ok(json!({"authenticated": true, "user": user_info(&user), "audiences": shared}))
            }
            Ok(None) => Ok(json!({"user": {}, "error": "invalid bearer token"})),
            Err(error) => Ok(json!({"user": {}, "error": error.to_string()})),
        }
    }
}

fn invalid(errors: &[Error]) -> Result<(), Status> {
    // Upstream omits the kind in this message.
    if errors.is_empty() { Ok(()) } else { Err(Status::invalid(AUTHORIZATION, "", "", errors)) }
}

fn attribute_errors(object: &Value) -> ErrorList {
    let spec = get(object, "spec");
    let mut errors = either_errors(spec);
    let asked = get(spec, "resourceAttributes");
    let path = Path::new("spec").child("resourceAttributes");
    for name in ["fieldSelector", "labelSelector"].into_iter().filter(|name| has(asked, name)) {
        let (selector, path) = (get(asked, name), path.child(name));
        match (is_empty(selector, "rawSelector"), items(selector, "requirements").is_empty()) {
            (false, false) => errors.push(Error::invalid(
                &path.child("rawSelector"),
                str_at(selector, "rawSelector"),
                "may not specified at the same time as requirements",
            )),
            (true, true) => {
                let text =
                    format!("when {path} is specified, requirements or rawSelector is required");
                errors.push(Error::required(&path.child("requirements"), text));
            }
            _ => {}
        }
        for (index, requirement) in items(selector, "requirements").iter().enumerate() {
            let path = path.child("requirements").index(index);
            let labels = name == "labelSelector";
            errors.extend(api::validation::labels::asked_requirement(requirement, &path, labels));
        }
    }
    errors
}

/// A review is either about a resource or about a path.
fn either_errors(spec: &Value) -> ErrorList {
    let paths = get(spec, "nonResourceAttributes");
    if has(spec, "resourceAttributes") == paths.is_null() {
        return Vec::new();
    }
    let detail = "exactly one of nonResourceAttributes or resourceAttributes must be specified";
    vec![Error::invalid(&Path::new("spec"), paths.clone(), detail).printed_as(PATHS)]
}

fn user_errors(object: &Value) -> ErrorList {
    let spec = get(object, "spec");
    if !is_empty(spec, "user") || !is_empty(spec, "groups") {
        return Vec::new();
    }
    vec![Error::invalid(
        &Path::new("spec").child("user"),
        "",
        "at least one of user or group must be specified",
    )]
}

fn metadata_errors(object: &Value, namespace: bool) -> ErrorList {
    let meta = get(object, "metadata");
    let rest = api::value::entries(object, "metadata")
        .filter(|(key, _)| {
            key.as_str() != "managedFields" && !(namespace && key.as_str() == "namespace")
        })
        .any(|(key, _)| !is_empty(meta, key));
    if !rest {
        return Vec::new();
    }
    let detail = if namespace { "must be empty except for namespace" } else { "must be empty" };
    vec![Error::invalid(&Path::new("metadata"), meta.clone(), detail).printed_as("ObjectMeta")]
}

fn subject(spec: &Value) -> User {
    let texts = |value: &Value| {
        value
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .map(str::to_owned)
            .collect()
    };
    let extra = api::value::entries(spec, "extra")
        .map(|(key, values)| (key.to_lowercase(), texts(values)))
        .collect();
    User {
        name: str_at(spec, "user").to_owned(),
        uid: str_at(spec, "uid").to_owned(),
        groups: texts(get(spec, "groups")),
        extra,
    }
}

/// The field selector of a review as text; requirements that are no comparison with one value are
/// omitted, because they restrict nothing.
fn field_selector(selector: &Value) -> String {
    let raw = str_at(selector, "rawSelector");
    if !raw.is_empty() {
        return raw.to_owned();
    }
    let terms = items(selector, "requirements").iter().filter_map(|r| {
        let operator = match str_at(r, "operator") {
            "In" => "=",
            "NotIn" => "!=",
            _ => return None,
        };
        let [value] = items(r, "values") else { return None };
        let value = value.as_str()?.replace('\\', r"\\").replace(',', r"\,").replace('=', r"\=");
        Some(format!("{}{operator}{value}", str_at(r, "key")))
    });
    terms.collect::<Vec<_>>().join(",")
}

/// The label selector of a review as text; invalid requirements are omitted, because they restrict
/// nothing.
fn label_selector(selector: &Value) -> String {
    let raw = str_at(selector, "rawSelector");
    if !raw.is_empty() {
        return raw.to_owned();
    }
    let terms = items(selector, "requirements").iter().filter_map(|r| {
        let one = json!({"matchExpressions": [r]});
        LabelSelector::from_value(Some(&one)).ok().map(|selector| selector.to_string())
    });
    terms.collect::<Vec<_>>().join(",")
}

/// `authentication/v1 UserInfo`.
fn user_info(user: &User) -> Value {
    let mut info = Map::new();
    info.insert("username".into(), json!(user.name));
    if !user.uid.is_empty() {
        info.insert("uid".into(), json!(user.uid));
    }
    if !user.groups.is_empty() {
        info.insert("groups".into(), json!(user.groups));
    }
    if !user.extra.is_empty() {
        info.insert("extra".into(), json!(user.extra));
    }
    Value::Object(info)
}

#[cfg(test)]
mod tests;
