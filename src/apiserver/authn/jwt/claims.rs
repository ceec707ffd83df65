//! Maps claims to a user: pure functions, with upstream's order and messages.

use api::field::go_quote;
use kcel::Value;
use serde_json::{Map, Value as Json, json};

use super::Expression;
use super::expressions::EvaluationError;
use crate::authn::configuration::Jwt;
use crate::request::user::User;

/// The extra key that identifies the token.
const CREDENTIAL_ID: &str = "authentication.kubernetes.io/credential-id";

/// The compiled expressions of one issuer.
#[derive(Debug, Default)]
pub(crate) struct Mapper {
    pub(crate) username: Option<Expression>,
    pub(crate) groups: Option<Expression>,
    pub(crate) uid: Option<Expression>,
    /// The extra attributes by key.
    pub(crate) extra: Vec<(String, Expression)>,
    /// The claim rules with their messages.
    pub(crate) claim_rules: Vec<(Expression, String)>,
    pub(crate) user_rules: Vec<(Expression, String)>,
}

impl Mapper {
    /// The depth of the deepest expression.
    pub(crate) fn depth(&self) -> usize {
        let single = [&self.username, &self.groups, &self.uid].into_iter().flatten();
        let extra = self.extra.iter().map(|(_, expression)| expression);
        let rules =
            self.claim_rules.iter().chain(&self.user_rules).map(|(expression, _)| expression);
        single.chain(extra).chain(rules).map(Expression::depth).max().unwrap_or(0)
    }
}

/// Claims cannot be mapped to a user, or violate a rule. The messages are upstream's.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ClaimError {
    #[error(
        "oidc: could not expand distributed claims: claim {}: distributed claims are not \
         supported, let the issuer put the claim into the token",
        go_quote(.claim)
    )]
    Distributed { claim: String },
    #[error("oidc: parse username claims {}: {source}", go_quote(.claim))]
    Username { claim: String, source: ValueError },
    #[error("oidc: email not verified")]
    EmailNotVerified,
    #[error("oidc: parse 'email_verified' claim: {0}")]
    EmailVerified(#[source] ValueError),
    #[error("oidc: empty username via CEL expression is not allowed")]
    EmptyUsername,
    #[error("oidc: parse groups claim {}: {source}", go_quote(.claim))]
    Groups { claim: String, source: ValueError },
    #[error("oidc: parse uid claim {}: {source}", go_quote(.claim))]
    Uid { claim: String, source: ValueError },
    /// The expression of a mapping; `mapping` is `username`, `group` or `uid`.
    #[error("oidc: error evaluating {mapping} claim expression: {source}")]
    Mapping { mapping: &'static str, source: MappingError },
    #[error("oidc: error evaluating extra claim expression: {expression}: {source}")]
    Extra { expression: String, source: MappingError },
    #[error(transparent)]
    Evaluation(#[from] EvaluationError),
    #[error("oidc: required claim {claim} not present in ID token")]
    MissingClaim { claim: String },
    #[error("oidc: parse claim {claim}: {source}")]
    RequiredClaim { claim: String, source: ValueError },
    #[error("oidc: required claim {claim} value does not match. Got = {actual}, want = {required}")]
    ClaimMismatch { claim: String, actual: String, required: String },
    #[error("oidc: error evaluating claim validation expression: {0}")]
    ClaimRule(#[source] RuleError),
    #[error("oidc: error evaluating user info validation rule: {0}")]
    UserRule(#[source] RuleError),
}

/// A claim is absent or has the wrong type.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ValueError {
    #[error("claim not present")]
    Missing,
    /// The claim is of the JSON type `actual`, and not of Go's type `required`.
    #[error("json: cannot unmarshal {actual} into Go value of type {required}")]
    Type { actual: &'static str, required: &'static str },
    #[error("the claim is empty")]
    Empty,
}

/// The expression of a mapping has no value, or one of the wrong type.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MappingError {
    #[error(transparent)]
    Evaluation(#[from] EvaluationError),
    #[error("{mapping} claim expression must return a string")]
    NotString { mapping: &'static str },
    #[error("expression must return a string or a list of strings")]
    NotStrings,
}

/// A validation rule is not satisfied.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RuleError {
    #[error(transparent)]
    Evaluation(#[from] EvaluationError),
    #[error("validation expression '{expression}' failed: {message}")]
    False { expression: String, message: String },
    #[error("validation expression must return a boolean")]
    NotBoolean,
}

/// Maps verified claims to a user.
///
/// # Errors
/// The claim, expression or rule that fails.
pub(super) fn user(jwt: &Jwt, mapper: &Mapper, claims: &Json) -> Result<User, ClaimError> {
    let empty = Map::new();
    let map = claims.as_object().unwrap_or(&empty);
    let mappings = &jwt.mappings;
    reject_distributed(&mappings.groups.claim, map)?;
    let mut user = User { name: username(jwt, mapper, claims, map)?, ..User::default() };
    user.groups = groups(jwt, mapper, claims, map)?;
    user.uid = uid(jwt, mapper, claims, map)?;
    if let Some(id) = map.get("jti").and_then(Json::as_str).filter(|id| !id.is_empty()) {
        user.extra.insert(CREDENTIAL_ID.to_owned(), vec![format!("JTI={id}")]);
    }
    for (key, expression) in &mapper.extra {
        let values = texts(&expression.eval(claims)?).map_err(|source| ClaimError::Extra {
            expression: expression.text().to_owned(),
            source,
        })?;
        if !values.is_empty() {
            user.extra.insert(key.clone(), values);
        }
    }
    for rule in jwt.claim_rules.iter().filter(|rule| !rule.claim.is_empty()) {
        check_required(&rule.claim, &rule.required_value, map)?;
    }
    check_rules(&mapper.claim_rules, claims).map_err(ClaimError::ClaimRule)?;
    if !mapper.user_rules.is_empty() {
        let info = json!({"username": user.name, "uid": user.uid, "groups": user.groups, "extra": user.extra});
        check_rules(&mapper.user_rules, &info).map_err(ClaimError::UserRule)?;
    }
    Ok(user)
}

/// Distributed claims would have to be fetched for each request.
fn reject_distributed(claim: &str, map: &Map<String, Json>) -> Result<(), ClaimError> {
    let names = map.get("_claim_names").and_then(Json::as_object);
    if claim.is_empty() || map.contains_key(claim) || !names.is_some_and(|n| n.contains_key(claim))
    {
        return Ok(());
    }
    Err(ClaimError::Distributed { claim: claim.to_owned() })
}

/// A string claim; null is empty, as in Go.
fn text(map: &Map<String, Json>, claim: &str) -> Result<String, ValueError> {
    match map.get(claim) {
        None => Err(ValueError::Missing),
        Some(value) => go_string(value),
    }
}

fn go_string(value: &Json) -> Result<String, ValueError> {
    match value {
        Json::String(text) => Ok(text.clone()),
        Json::Null => Ok(String::new()),
        other => Err(ValueError::Type { actual: kind_of(other), required: "string" }),
    }
}

fn kind_of(value: &Json) -> &'static str {
    match value {
        Json::Null => "null",
        Json::Bool(_) => "bool",
        Json::Number(_) => "number",
        Json::String(_) => "string",
        Json::Array(_) => "array",
        Json::Object(_) => "object",
    }
}

fn username(
    jwt: &Jwt,
    mapper: &Mapper,
    claims: &Json,
    map: &Map<String, Json>,
) -> Result<String, ClaimError> {
    if let Some(expression) = &mapper.username {
        let name = string_of("username", expression, claims)?;
        return if name.is_empty() { Err(ClaimError::EmptyUsername) } else { Ok(name) };
    }
    let mapping = &jwt.mappings.username;
    let claim = mapping.claim.as_str();
    let invalid = |source| ClaimError::Username { claim: claim.to_owned(), source };
    let name = text(map, claim).map_err(invalid)?;
    if claim == "email"
        && let Some(verified) = map.get("email_verified")
    {
        match verified {
            Json::Bool(true) => {}
            Json::Bool(false) | Json::Null => return Err(ClaimError::EmailNotVerified),
            other => {
                let error = ValueError::Type { actual: kind_of(other), required: "bool" };
                return Err(ClaimError::EmailVerified(error));
            }
        }
    }
    let name = format!("{}{name}", mapping.prefix.as_deref().unwrap_or_default());
    // Upstream accepts an empty user name; nothing can be granted to it, so it is rejected here.
    if name.is_empty() {
        return Err(invalid(ValueError::Empty));
    }
    Ok(name)
}

fn groups(
    jwt: &Jwt,
    mapper: &Mapper,
    claims: &Json,
    map: &Map<String, Json>,
) -> Result<Vec<String>, ClaimError> {
    let mapping = &jwt.mappings.groups;
    if !mapping.claim.is_empty()
        && let Some(value) = map.get(&mapping.claim)
    {
        let all: Result<Vec<String>, ValueError> = match value {
            Json::Null => Ok(Vec::new()),
            Json::Array(items) => items.iter().map(go_string).collect(),
            // Some issuers send a single string instead of a list (upstream's issue 33290).
            other => go_string(other).map(|one| vec![one]),
        };
        let all = all.map_err(|error| {
            // Go reports an invalid list as an error of unmarshaling it into a string.
            let of_list = ValueError::Type { actual: "array", required: "string" };
            let source = if value.is_array() { of_list } else { error };
            ClaimError::Groups { claim: mapping.claim.clone(), source }
        })?;
        let prefix = mapping.prefix.as_deref().unwrap_or_default();
        return Ok(all.into_iter().map(|group| format!("{prefix}{group}")).collect());
    }
    let Some(expression) = &mapper.groups else { return Ok(Vec::new()) };
    let value = expression.eval(claims).map_err(MappingError::from);
    let groups = value.and_then(|value| texts(&value));
    groups.map_err(|source| ClaimError::Mapping { mapping: "group", source })
}

fn uid(
    jwt: &Jwt,
    mapper: &Mapper,
    claims: &Json,
    map: &Map<String, Json>,
) -> Result<String, ClaimError> {
    let claim = jwt.mappings.uid.claim.as_str();
    if !claim.is_empty() {
        return text(map, claim)
            .map_err(|source| ClaimError::Uid { claim: claim.to_owned(), source });
    }
    let Some(expression) = &mapper.uid else { return Ok(String::new()) };
    string_of("uid", expression, claims)
}

/// The string that the expression of the `mapping` returns.
fn string_of(
    mapping: &'static str,
    expression: &Expression,
    claims: &Json,
) -> Result<String, ClaimError> {
    let failed = |source| ClaimError::Mapping { mapping, source };
    let value = expression.eval(claims).map_err(|e| failed(e.into()))?;
    let text = value.as_str().map(str::to_owned);
    text.ok_or_else(|| failed(MappingError::NotString { mapping }))
}

/// Checks that a claim has the `required` value.
fn check_required(claim: &str, required: &str, map: &Map<String, Json>) -> Result<(), ClaimError> {
    let claim_name = || claim.to_owned();
    if !map.contains_key(claim) {
        return Err(ClaimError::MissingClaim { claim: claim_name() });
    }
    let actual = text(map, claim)
        .map_err(|source| ClaimError::RequiredClaim { claim: claim_name(), source })?;
    if actual == required {
        return Ok(());
    }
    Err(ClaimError::ClaimMismatch { claim: claim_name(), actual, required: required.to_owned() })
}

fn check_rules(rules: &[(Expression, String)], input: &Json) -> Result<(), RuleError> {
    // Evaluate all expressions first: an error takes precedence over a false rule.
    let values: Result<Vec<Value<'_>>, EvaluationError> =
        rules.iter().map(|(expression, _)| expression.eval(input)).collect();
    for ((expression, message), value) in rules.iter().zip(values?) {
        match value.as_bool() {
            Some(true) => {}
            Some(false) => {
                let (expression, message) = (expression.text().to_owned(), message.clone());
                return Err(RuleError::False { expression, message });
            }
            None => return Err(RuleError::NotBoolean),
        }
    }
    Ok(())
}

/// A string or a list of strings, without empty ones.
fn texts(value: &Value<'_>) -> Result<Vec<String>, MappingError> {
    match value {
        Value::Null => Ok(Vec::new()),
        Value::String(text) if text.is_empty() => Ok(Vec::new()),
        Value::String(text) => Ok(vec![text.to_string()]),
        Value::List(list) => {
            let mut all = Vec::with_capacity(list.len());
            for item in list.iter() {
                let item = item.map_err(|_| MappingError::NotStrings)?;
                let text = item.as_str().ok_or(MappingError::NotStrings)?;
                if !text.is_empty() {
                    all.push(text.to_owned());
                }
            }
            Ok(all)
        }
        _ => Err(MappingError::NotStrings),
    }
}
