//! Validation of webhook configurations, admission policies and their bindings.

use serde_json::Value;

use super::checks::{optional_as, repeated, required, segment, selector, texts};
use super::names::{self, qualified_name};
use super::{each, one_of};
use crate::expressions::{Compiler, Uses, Yields};
use crate::field::{Error, ErrorList, Path};
use crate::value::{get, has, int_at, is_empty, items, semantic_equal, str_at};

pub(in crate::validation) mod expression;
mod policy;

pub use policy::{
    mutating_binding, mutating_policy, mutating_policy_change, validating_binding,
    validating_policy, validating_policy_change, validating_policy_status,
};

const FAILURE_POLICIES: [&str; 2] = ["Fail", "Ignore"];
const MATCH_POLICIES: [&str; 2] = ["Equivalent", "Exact"];
const OPERATIONS: [&str; 5] = ["*", "CONNECT", "CREATE", "DELETE", "UPDATE"];
const REINVOCATIONS: [&str; 2] = ["IfNeeded", "Never"];
const NO_SIDE_EFFECTS: [&str; 2] = ["None", "NoneOnDryRun"];
const SIDE_EFFECTS: [&str; 4] = ["None", "NoneOnDryRun", "Some", "Unknown"];
const REVIEW_VERSIONS: [&str; 2] = ["v1", "v1beta1"];
/// Maximum number of match conditions of one webhook or policy.
const CONDITIONS_MAX: usize = 64;

/// Newer rules that do not apply to an update because the old object already violates them.
struct Leniency {
    side_effects: bool,
    versions: bool,
    names: bool,
}

/// Validates a new validating or mutating webhook configuration.
pub fn webhooks(object: &Value) -> ErrorList {
    configuration(object, &Leniency { side_effects: false, versions: false, names: false }, None)
}

/// Validates an update of a validating or mutating webhook configuration.
pub fn webhooks_change(object: &Value, old: &Value) -> ErrorList {
    let hooks = items(old, "webhooks");
    let recognized = |hook: &Value| {
        let versions = texts(hook, "admissionReviewVersions");
        versions.is_empty() || versions.iter().any(|v| REVIEW_VERSIONS.contains(v))
    };
    let mut seen = std::collections::BTreeSet::new();
    let leniency = Leniency {
        side_effects: hooks.iter().any(|h| !NO_SIDE_EFFECTS.contains(&str_at(h, "sideEffects"))),
        versions: !hooks.iter().all(recognized),
        names: !hooks.iter().all(|hook| seen.insert(str_at(hook, "name"))),
    };
    configuration(object, &leniency, Some(old))
}

fn configuration(object: &Value, leniency: &Leniency, old: Option<&Value>) -> ErrorList {
    let (hooks, path) = (items(object, "webhooks"), Path::new("webhooks"));
    let mutating = str_at(object, "kind") == "MutatingWebhookConfiguration";
    let same_conditions = old.is_some_and(|old| {
        let before = items(old, "webhooks");
        before.len() == hooks.len()
            && before
                .iter()
                .zip(hooks)
                .all(|(a, b)| semantic_equal(get(a, "matchConditions"), get(b, "matchConditions")))
    });
    let mut errors = ErrorList::new();
    let again = repeated(hooks.iter().map(|hook| str_at(hook, "name")));
    for (index, hook) in hooks.iter().enumerate() {
        let field = path.index(index);
        errors.extend(webhook(hook, mutating, leniency, &field));
        if !same_conditions {
            errors.extend(conditions(hook, false, &field));
        }
        errors.extend(review_versions(hook, leniency, &field.child("admissionReviewVersions")));
        let name = str_at(hook, "name");
        let twice = again.at(index);
        if twice && !name.is_empty() && !leniency.names {
            errors.push(Error::duplicate(&field.child("name"), name));
        }
    }
    errors
}

fn webhook(hook: &Value, mutating: bool, leniency: &Leniency, path: &Path) -> ErrorList {
    let mut errors = qualified_host(str_at(hook, "name"), &path.child("name"));
    for (index, one) in items(hook, "rules").iter().enumerate() {
        errors.extend(rule(one, &path.child("rules").index(index)));
    }
    let mut closed = |key: &str, allowed: &[&str]| {
        let value = get(hook, key).as_str();
        errors.extend(value.and_then(|value| one_of(value, allowed, &path.child(key))));
    };
    closed("failurePolicy", &FAILURE_POLICIES);
    closed("matchPolicy", &MATCH_POLICIES);
    let allowed = if leniency.side_effects { &SIDE_EFFECTS[..] } else { &NO_SIDE_EFFECTS[..] };
    closed("sideEffects", allowed);
    if mutating {
        closed("reinvocationPolicy", &REINVOCATIONS);
    }
    if !has(hook, "sideEffects") {
        let text = format!("must specify one of {}", allowed.join(", "));
        errors.push(Error::required(&path.child("sideEffects"), text));
    }
    if let Some(seconds) = int_at(hook, "timeoutSeconds").filter(|s| !(1..=30).contains(s)) {
        let text = "the timeout value must be between 1 and 30 seconds";
        errors.push(Error::invalid(&path.child("timeoutSeconds"), seconds, text));
    }
    for key in ["namespaceSelector", "objectSelector"] {
        errors.extend(selector(hook, key, path));
    }
    errors.extend(client(get(hook, "clientConfig"), &path.child("clientConfig")));
    errors
}

/// Validates the name of a webhook: a DNS subdomain of at least three segments.
fn qualified_host(name: &str, field: &Path) -> ErrorList {
    if name.is_empty() {
        return vec![Error::required(field, "")];
    }
    let bad = names::dns1123_subdomain(name);
    if !bad.is_empty() {
        return each(field, name, bad).collect();
    }
    if name.split('.').count() < 3 {
        let text = "should be a domain with at least three segments separated by dots";
        return vec![Error::invalid(field, name, text)];
    }
    ErrorList::new()
}

/// Validates `clientConfig` of a webhook, which has either `url` or `service`.
fn client(config: &Value, path: &Path) -> ErrorList {
    let (url, service) = (get(config, "url").as_str(), get(config, "service"));
    match (url, service.is_object()) {
        (Some(_), true) | (None, false) => {
            vec![Error::required(path, "exactly one of url or service is required")]
        }
        (Some(url), false) => webhook_url(url, &path.child("url")),
        (None, true) => webhook_service(service, true, &path.child("service")),
    }
}

/// Returns the error of Go's URL parser for a colon before the first slash that no valid scheme
/// precedes.
fn scheme_fault(url: &str) -> Option<&'static str> {
    let (before, _) = url.split('/').next()?.split_once(':')?;
    let is_scheme = before.starts_with(|c: char| c.is_ascii_alphabetic())
        && before.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.'));
    match before {
        "" => Some("missing protocol scheme"),
        _ => (!is_scheme).then_some("first path segment in URL cannot contain colon"),
    }
}

/// Validates the URL of a webhook.
pub fn webhook_url(url: &str, field: &Path) -> ErrorList {
    const FORM: &str = "; desired format: https://host[/path]";
    // Go's URL parser stops at the first invalid escape.
    let bad = url.match_indices('%').map(|(at, _)| at).find(|at| {
        let digits = url.as_bytes().get(at + 1..at + 3);
        !digits.is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit))
    });
    if let Some(escape) = bad.and_then(|at| url.get(at..)) {
        let escape: String = escape.chars().take(3).collect();
        let [url, escape] = [url, &escape].map(crate::field::go_quote);
        let text =
            format!("url must be a valid URL: parse {url}: invalid URL escape {escape}{FORM}");
        return vec![Error::required(field, text)];
    }
    let (rest, fragment) = url.split_once('#').unwrap_or((url, ""));
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    if let Some(fault) = scheme_fault(rest) {
        let url = crate::field::go_quote(url);
        let text = format!("url must be a valid URL: parse {url}: {fault}{FORM}");
        return vec![Error::required(field, text)];
    }
    // A URL with a colon before its first slash has a scheme: `scheme_fault` rejects all others. A
    // host follows exactly two slashes.
    let first = rest.split('/').next().unwrap_or_default();
    let (scheme, rest) = match first.split_once(':').and_then(|_| rest.split_once(':')) {
        Some((scheme, rest)) => (scheme.to_lowercase(), rest),
        None if rest.starts_with("///") => (String::new(), ""),
        None => (String::new(), rest),
    };
    let authority = rest.strip_prefix("//").and_then(|r| r.split('/').next()).unwrap_or_default();
    let (user, host) = authority.rsplit_once('@').map_or((None, authority), |(u, h)| (Some(u), h));
    let mut errors = ErrorList::new();
    if scheme != "https" {
        let text = format!("'https' is the only allowed URL scheme{FORM}");
        errors.push(Error::invalid(field, scheme, text));
    }
    if host.is_empty() {
        errors.push(Error::invalid(field, "", format!("host must be specified{FORM}")));
    }
    for (part, text) in [
        (user.unwrap_or_default(), "user information is not permitted in the URL"),
        (fragment, "fragments are not permitted in the URL"),
        (query, "query parameters are not permitted in the URL"),
    ] {
        if !part.is_empty() {
            errors.push(Error::invalid(field, part, text));
        }
    }
    errors
}

/// Validates the service of a webhook. If `exchanged`, the error for a missing `namespace` names
/// the field `name` and vice versa, as upstream's errors for webhook configurations do.
pub fn webhook_service(service: &Value, exchanged: bool, path: &Path) -> ErrorList {
    let mut errors = ErrorList::new();
    let keys = if exchanged {
        [("namespace", "name"), ("name", "namespace")]
    } else {
        [("name", "name"), ("namespace", "namespace")]
    };
    for (key, shown) in keys {
        if is_empty(service, key) {
            errors.push(Error::required(&path.child(shown), ""));
        }
    }
    let port = int_at(service, "port").unwrap_or_default();
    let bad = names::port_number(port);
    if !bad.is_empty() {
        let text = format!("port is not valid: {}", bad.join(", "));
        errors.push(Error::invalid(&path.child("port"), port, text));
    }
    errors.extend(service_path(str_at(service, "path"), &path.child("path")));
    errors
}

fn service_path(value: &str, field: &Path) -> ErrorList {
    if matches!(value, "" | "/") {
        return ErrorList::new();
    }
    if value == "//" {
        return vec![Error::invalid(field, value, "segment[0] may not be empty")];
    }
    let mut errors = ErrorList::new();
    if !value.starts_with('/') {
        errors.push(Error::invalid(field, value, "must start with a '/'"));
    }
    let first = value.chars().next().map_or(0, char::len_utf8);
    let rest = value.get(first..).unwrap_or_default();
    for (index, step) in rest.strip_suffix('/').unwrap_or(rest).split('/').enumerate() {
        if step.is_empty() {
            errors.push(Error::invalid(field, value, format!("segment[{index}] may not be empty")));
            continue;
        }
        let texts = names::dns1123_subdomain(step).into_iter();
        let texts = texts.map(|text| format!("segment[{index}]: {text}")).collect();
        errors.extend(each(field, value, texts));
    }
    errors
}

fn review_versions(hook: &Value, leniency: &Leniency, field: &Path) -> ErrorList {
    let versions = texts(hook, "admissionReviewVersions");
    let known = REVIEW_VERSIONS.join(", ");
    if versions.is_empty() {
        return vec![Error::required(field, format!("must specify one of {known}"))];
    }
    let mut errors = ErrorList::new();
    let again = repeated(versions.iter());
    for (index, version) in versions.iter().enumerate() {
        if again.at(index) {
            errors.push(Error::invalid(&field.index(index), *version, "duplicate version"));
            continue;
        }
        errors.extend(each(&field.index(index), *version, names::dns1035_label(version)));
    }
    if !leniency.versions && !versions.iter().any(|v| REVIEW_VERSIONS.contains(v)) {
        let shown = get(hook, "admissionReviewVersions").clone();
        errors.push(Error::invalid(field, shown, format!("must include at least one of {known}")));
    }
    errors
}

/// Validates a rule of a webhook: operations, API groups, API versions, resources and scope.
fn rule(rule: &Value, path: &Path) -> ErrorList {
    let mut errors = ErrorList::new();
    let wild = |list: &[&str]| list.len() > 1 && list.contains(&"*");
    let other = |field: &Path, what: &str, shown: &Value| {
        let text = format!("if '*' is present, must not specify other {what}");
        Error::invalid(field, shown.clone(), text)
    };
    for (key, what) in
        [("operations", "operations"), ("apiGroups", "API groups"), ("apiVersions", "API versions")]
    {
        let (list, field) = (texts(rule, key), path.child(key));
        if list.is_empty() {
            errors.push(Error::required(&field, ""));
        }
        if wild(&list) {
            errors.push(other(&field, what, get(rule, key)));
        }
        for (index, value) in list.iter().enumerate() {
            let place = field.index(index);
            match key {
                "operations" => errors.extend(one_of(value, &OPERATIONS, &place)),
                "apiVersions" if value.is_empty() => errors.push(Error::required(&place, "")),
                _ => {}
            }
        }
    }
    errors.extend(resources(&texts(rule, "resources"), get(rule, "resources"), path));
    let scope = get(rule, "scope").as_str();
    let scopes = ["*", "Cluster", "Namespaced"];
    errors.extend(scope.and_then(|scope| one_of(scope, &scopes, &path.child("scope"))));
    errors
}

/// Validates resources and subresources; the list must not contain an element that a wildcard in
/// the same list already covers.
fn resources(list: &[&str], shown: &Value, path: &Path) -> ErrorList {
    let field = path.child("resources");
    let mut errors = ErrorList::new();
    if list.is_empty() {
        errors.push(Error::required(&field, ""));
    }
    let (mut all_subresources, mut all_resources) = (Vec::new(), Vec::new());
    let mut every_resource = false;
    for (index, value) in list.iter().enumerate() {
        let place = field.index(index);
        let mut add = |text: String| errors.push(Error::invalid(&place, *value, text));
        if value.is_empty() {
            errors.push(Error::required(&place, ""));
            continue;
        }
        if *value == "*/*" {
            every_resource = true;
        }
        if *value == "*" && every_resource {
            add("if '*/*' is present, must not specify '*'".to_owned());
        }
        let (resource, sub) = value.split_once('/').unwrap_or((value, ""));
        if all_subresources.contains(&resource) {
            add(format!("if '{resource}/*' is present, must not specify {value}"));
        }
        if all_resources.contains(&sub) && !sub.is_empty() {
            add(format!("if '*/{sub}' is present, must not specify {value}"));
        }
        if sub == "*" {
            all_subresources.push(resource);
        }
        if resource == "*" {
            all_resources.push(sub);
        }
    }
    if list.len() > 1 && every_resource {
        let text = "if '*/*' is present, must not specify other resources";
        errors.push(Error::invalid(&field, shown.clone(), text));
    }
    let subresources = list.iter().any(|value| value.contains('/'));
    if list.len() > 1 && list.contains(&"*") && !subresources {
        let text = "if '*' is present, must not specify other resources";
        errors.push(Error::invalid(&field, shown.clone(), text));
    }
    errors
}

/// Validates `matchConditions` of a webhook or policy; `params` allows expressions to use the
/// variable `params`, for a policy with parameters.
fn conditions(parent: &Value, params: bool, path: &Path) -> ErrorList {
    let uses = Uses { params, authorizer: true, patches: false };
    let (list, field) = (items(parent, "matchConditions"), path.child("matchConditions"));
    let mut errors = ErrorList::new();
    if list.len() > CONDITIONS_MAX {
        errors.push(Error::too_many(&field, list.len(), CONDITIONS_MAX));
    }
    let again = repeated(list.iter().map(|condition| str_at(condition, "name")));
    for (index, condition) in list.iter().enumerate() {
        let (place, name) = (field.index(index), str_at(condition, "name"));
        let text = (str_at(condition, "expression").trim(), "");
        let wanted = (uses, Yields::Bool);
        let place_of_text = place.child("expression");
        errors.extend(expression::required(&Compiler::plain(), text, wanted, &place_of_text));
        errors.extend(required(condition, &["name"], &place));
        errors.extend(optional_as(condition, "name", &place, qualified_name));
        let twice = again.at(index);
        if twice && !name.is_empty() {
            errors.push(Error::duplicate(&place.child("name"), name));
        }
    }
    errors
}

/// Validates a rule that also has `resourceNames`.
fn named_rule(one: &Value, path: &Path) -> ErrorList {
    let names = texts(one, "resourceNames");
    let mut errors = ErrorList::new();
    let again = repeated(names.iter());
    for (index, name) in names.iter().enumerate() {
        let field = path.child("resourceNames").index(index);
        errors.extend(each(&field, *name, segment(name)));
        if again.at(index) {
            errors.push(Error::duplicate(&field, *name));
        }
    }
    errors.extend(rule(one, path));
    errors
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_webhook_says_where_it_is() {
        let field = Path::new("url");
        assert!(webhook_url("https://example.com/x", &field).is_empty());
        assert_eq!(
            webhook_url("http://example.com", &field)[0].to_string(),
            "url: Invalid value: \"http\": 'https' is the only allowed URL scheme; desired format: https://host[/path]"
        );
        assert_eq!(webhook_url("", &field).len(), 2);
        assert!(webhook_url("HTTPS://EXAMPLE.COM/X", &field).is_empty());
        for (url, fault) in [
            ("2026-01-01T00:00:00Z", "first path segment in URL cannot contain colon"),
            (":x", "missing protocol scheme"),
        ] {
            assert_eq!(
                webhook_url(url, &field)[0].to_string(),
                format!(
                    "url: Required value: url must be a valid URL: parse \"{url}\": {fault}; desired format: https://host[/path]"
                )
            );
        }
        // The response of kube-apiserver 1.37.1.
        assert_eq!(
            webhook_url("101%", &field)[0].to_string(),
            "url: Required value: url must be a valid URL: parse \"101%\": invalid URL escape \"%\"; desired format: https://host[/path]"
        );
        let said = |url: &str| -> Vec<String> {
            webhook_url(url, &field).iter().map(|e| e.to_string().replace(FORM, "")).collect()
        };
        const FORM: &str = "; desired format: https://host[/path]";
        assert_eq!(
            said("a:b"),
            [
                "url: Invalid value: \"a\": 'https' is the only allowed URL scheme",
                "url: Invalid value: \"\": host must be specified"
            ]
        );
        assert_eq!(said("https:x"), ["url: Invalid value: \"\": host must be specified"]);
        assert_eq!(
            said("//h/x"),
            ["url: Invalid value: \"\": 'https' is the only allowed URL scheme"]
        );
        assert_eq!(client(&json!({}), &field).len(), 1);
        assert_eq!(
            service_path("x", &field)[0].to_string(),
            "url: Invalid value: \"x\": must start with a '/'"
        );
    }

    #[test]
    fn old_side_effects_may_stay() {
        let hooks = |effects: &str| json!({"kind": "ValidatingWebhookConfiguration", "webhooks": [{"name": "a.b.c", "sideEffects": effects, "admissionReviewVersions": ["v1"], "clientConfig": {"url": "https://h/"}}]});
        assert!(webhooks_change(&hooks("Some"), &hooks("Unknown")).is_empty());
        assert_eq!(webhooks_change(&hooks("Some"), &hooks("None")).len(), 1);
    }
}
