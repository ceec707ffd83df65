//! Maps claims to a user: pure functions, with upstream's order and messages.

use api::field::go_quote;
use kcel::Value;
use serde_json::{Map, Value as Json, json};

use super::Expression;
use crate::authn::configuration::Jwt;
use crate::request::user::User;

/// The extra key that identifies the token.
const CREDENTIAL_ID: &str = "authentication.kubernetes.io/credential-id";
const NO_TEXTS: &str = "expression must return a string or a list of strings";

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

/// Maps verified claims to a user.
///
/// # Errors
/// Upstream's message for the claim, expression or rule that fails.
pub(super) fn user(jwt: &Jwt, mapper: &Mapper, claims: &Json) -> Result<User, String> {
    let empty = Map::new();
    let map = claims.as_object().unwrap_or(&empty);
    let mappings = &jwt.mappings;
    refuse_distributed(&mappings.groups.claim, map)?;
    let mut user = User { name: username(jwt, mapper, claims, map)?, ..User::default() };
    user.groups = groups(jwt, mapper, claims, map)?;
    user.uid = uid(jwt, mapper, claims, map)?;
    if let Some(id) = map.get("jti").and_then(Json::as_str).filter(|id| !id.is_empty()) {
        user.extra.insert(CREDENTIAL_ID.to_owned(), vec![format!("JTI={id}")]);
    }
    for (key, expression) in &mapper.extra {
        let values = texts(&expression.eval(claims)?).map_err(|why| {
            format!("oidc: error evaluating extra claim expression: {}: {why}", expression.text())
        })?;
        if !values.is_empty() {
            user.extra.insert(key.clone(), values);
        }
    }
    for rule in jwt.claim_rules.iter().filter(|rule| !rule.claim.is_empty()) {
        required(&rule.claim, &rule.required_value, map)?;
    }
    let failed = |why| format!("oidc: error evaluating claim validation expression: {why}");
    rules(&mapper.claim_rules, claims).map_err(failed)?;
    if !mapper.user_rules.is_empty() {
        let info = json!({"username": user.name, "uid": user.uid, "groups": user.groups, "extra": user.extra});
        let failed = |why| format!("oidc: error evaluating user info validation rule: {why}");
        rules(&mapper.user_rules, &info).map_err(failed)?;
    }
    Ok(user)
}

/// Distributed claims would have to be fetched for each request.
fn refuse_distributed(claim: &str, map: &Map<String, Json>) -> Result<(), String> {
    let names = map.get("_claim_names").and_then(Json::as_object);
    if claim.is_empty() || map.contains_key(claim) || !names.is_some_and(|n| n.contains_key(claim))
    {
        return Ok(());
    }
    let why = "distributed claims are not supported, let the issuer put the claim into the token";
    Err(format!("oidc: could not expand distributed claims: claim {}: {why}", go_quote(claim)))
}

/// A string claim; null is empty, as in Go.
fn text(map: &Map<String, Json>, claim: &str) -> Result<String, String> {
    match map.get(claim) {
        None => Err("claim not present".to_owned()),
        Some(value) => go_string(value),
    }
}

fn go_string(value: &Json) -> Result<String, String> {
    match value {
        Json::String(text) => Ok(text.clone()),
        Json::Null => Ok(String::new()),
        other => Err(unfit(kind_of(other), "string")),
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

fn unfit(kind: &str, wanted: &str) -> String {
    format!("json: cannot unmarshal {kind} into Go value of type {wanted}")
}

fn username(
    jwt: &Jwt,
    mapper: &Mapper,
    claims: &Json,
    map: &Map<String, Json>,
) -> Result<String, String> {
    if let Some(expression) = &mapper.username {
        let failed =
            |why: String| format!("oidc: error evaluating username claim expression: {why}");
        let value = expression.eval(claims).map_err(failed)?;
        let name = value
            .as_str()
            .ok_or_else(|| failed("username claim expression must return a string".to_owned()))?;
        if name.is_empty() {
            return Err("oidc: empty username via CEL expression is not allowed".to_owned());
        }
        return Ok(name.to_owned());
    }
    let mapping = &jwt.mappings.username;
    let claim = mapping.claim.as_str();
    let name = text(map, claim)
        .map_err(|why| format!("oidc: parse username claims {}: {why}", go_quote(claim)))?;
    if claim == "email"
        && let Some(verified) = map.get("email_verified")
    {
        match verified {
            Json::Bool(true) => {}
            Json::Bool(false) | Json::Null => return Err("oidc: email not verified".to_owned()),
            other => {
                let why = unfit(kind_of(other), "bool");
                return Err(format!("oidc: parse 'email_verified' claim: {why}"));
            }
        }
    }
    let name = format!("{}{name}", mapping.prefix.as_deref().unwrap_or_default());
    // Upstream accepts an empty user name; nothing can be granted to it, so it is rejected here.
    if name.is_empty() {
        return Err(format!("oidc: parse username claims {}: the claim is empty", go_quote(claim)));
    }
    Ok(name)
}

fn groups(
    jwt: &Jwt,
    mapper: &Mapper,
    claims: &Json,
    map: &Map<String, Json>,
) -> Result<Vec<String>, String> {
    let mapping = &jwt.mappings.groups;
    if !mapping.claim.is_empty()
        && let Some(value) = map.get(&mapping.claim)
    {
        let all: Result<Vec<String>, String> = match value {
            Json::Null => Ok(Vec::new()),
            Json::Array(items) => items.iter().map(go_string).collect(),
            // Some issuers send a single string instead of a list (upstream's issue 33290).
            other => go_string(other).map(|one| vec![one]),
        };
        let all = all.map_err(|why| {
            // Go reports an invalid list as an error of unmarshaling it into a string.
            let why = if value.is_array() { unfit("array", "string") } else { why };
            format!("oidc: parse groups claim {}: {why}", go_quote(&mapping.claim))
        })?;
        let prefix = mapping.prefix.as_deref().unwrap_or_default();
        return Ok(all.into_iter().map(|group| format!("{prefix}{group}")).collect());
    }
    let Some(expression) = &mapper.groups else { return Ok(Vec::new()) };
    expression
        .eval(claims)
        .and_then(|value| texts(&value))
        .map_err(|why| format!("oidc: error evaluating group claim expression: {why}"))
}

fn uid(
    jwt: &Jwt,
    mapper: &Mapper,
    claims: &Json,
    map: &Map<String, Json>,
) -> Result<String, String> {
    let claim = jwt.mappings.uid.claim.as_str();
    if !claim.is_empty() {
        return text(map, claim)
            .map_err(|why| format!("oidc: parse uid claim {}: {why}", go_quote(claim)));
    }
    let Some(expression) = &mapper.uid else { return Ok(String::new()) };
    let failed = |why: String| format!("oidc: error evaluating uid claim expression: {why}");
    let value = expression.eval(claims).map_err(failed)?;
    let uid = value.as_str().map(str::to_owned);
    uid.ok_or_else(|| failed("uid claim expression must return a string".to_owned()))
}

fn required(claim: &str, want: &str, map: &Map<String, Json>) -> Result<(), String> {
    if !map.contains_key(claim) {
        return Err(format!("oidc: required claim {claim} not present in ID token"));
    }
    let got = text(map, claim).map_err(|why| format!("oidc: parse claim {claim}: {why}"))?;
    if got == want {
        return Ok(());
    }
    Err(format!("oidc: required claim {claim} value does not match. Got = {got}, want = {want}"))
}

fn rules(rules: &[(Expression, String)], input: &Json) -> Result<(), String> {
    // Evaluate all expressions first: an error takes precedence over a false rule.
    let values: Result<Vec<Value<'_>>, String> =
        rules.iter().map(|(expression, _)| expression.eval(input)).collect();
    for ((expression, message), value) in rules.iter().zip(values?) {
        match value.as_bool() {
            Some(true) => {}
            Some(false) => {
                return Err(format!(
                    "validation expression '{}' failed: {message}",
                    expression.text()
                ));
            }
            None => return Err("validation expression must return a boolean".to_owned()),
        }
    }
    Ok(())
}

/// A string or a list of strings, without empty ones.
fn texts(value: &Value<'_>) -> Result<Vec<String>, String> {
    let no_texts = || NO_TEXTS.to_owned();
    match value {
        Value::Null => Ok(Vec::new()),
        Value::String(text) if text.is_empty() => Ok(Vec::new()),
        Value::String(text) => Ok(vec![text.to_string()]),
        Value::List(list) => {
            let mut all = Vec::with_capacity(list.len());
            for item in list.iter() {
                let item = item.map_err(|_| no_texts())?;
                let text = item.as_str().ok_or_else(no_texts)?;
                if !text.is_empty() {
                    all.push(text.to_owned());
                }
            }
            Ok(all)
        }
        _ => Err(no_texts()),
    }
}
