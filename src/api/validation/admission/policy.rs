//! Validation of admission policies and their bindings.

use serde_json::Value;

use super::{
    FAILURE_POLICIES, MATCH_POLICIES, OPERATIONS, REINVOCATIONS, conditions, expression, named_rule,
};
use crate::expressions::{Compiler, Uses, Yields};
use crate::field::{Error, ErrorList, Path};
use crate::validation::checks::{repeated, required, required_as, segment, selector, texts};
use crate::validation::conditions::validate as list_of_conditions;
use crate::validation::{each, names, one_of};
use crate::value::{get, has, is_empty, items, semantic_equal, str_at};

/// Maximum number of audit annotations of a policy.
const ANNOTATIONS_MAX: usize = 20;
/// Maximum length in bytes of the expression of an audit annotation.
const ANNOTATION_MAX: usize = 5 * 1024;

/// Validates a new ValidatingAdmissionPolicy.
pub fn validating_policy(object: &Value) -> ErrorList {
    validating(object, None)
}

/// Validates an update of a ValidatingAdmissionPolicy.
pub fn validating_policy_change(object: &Value, old: &Value) -> ErrorList {
    validating(object, Some(old))
}

/// Validates a new MutatingAdmissionPolicy.
pub fn mutating_policy(object: &Value) -> ErrorList {
    mutating(object, None)
}

/// Validates an update of a MutatingAdmissionPolicy.
pub fn mutating_policy_change(object: &Value, old: &Value) -> ErrorList {
    mutating(object, Some(old))
}

fn validating(object: &Value, old: Option<&Value>) -> ErrorList {
    let (spec, path) = (get(object, "spec"), Path::new("spec"));
    // Expressions of a policy without variables cannot use the identifier `variables`.
    let mut compiler =
        if is_empty(spec, "variables") { Compiler::plain() } else { Compiler::composed() };
    let uses = uses(spec);
    let mut errors = head(spec, false, old, &mut compiler, &path);
    if is_empty(spec, "validations") && is_empty(spec, "auditAnnotations") {
        let text = "validations or auditAnnotations must contain at least one item";
        for key in ["validations", "auditAnnotations"] {
            errors.push(Error::required(&path.child(key), text));
        }
        return errors;
    }
    for (index, one) in items(spec, "validations").iter().enumerate() {
        errors.extend(validation(one, &compiler, uses, &path.child("validations").index(index)));
    }
    let (list, field) = (items(spec, "auditAnnotations"), path.child("auditAnnotations"));
    if list.len() > ANNOTATIONS_MAX {
        let text = format!("must not have more than {ANNOTATIONS_MAX} auditAnnotations");
        errors.push(Error::invalid(&field, get(spec, "auditAnnotations").clone(), text));
    }
    let name = str_at(get(object, "metadata"), "name");
    let again = repeated(list.iter().map(|one| str_at(one, "key")));
    for (index, one) in list.iter().enumerate() {
        let (place, key) = (field.index(index), str_at(one, "key"));
        errors.extend(annotation(one, name, &compiler, uses, &place));
        if again.at(index) {
            errors.push(Error::duplicate(&place.child("key"), key));
        }
    }
    errors
}

/// Validates an update of the status of a ValidatingAdmissionPolicy.
pub fn validating_policy_status(subresource: &str, object: &Value, _: &Value) -> ErrorList {
    if subresource != "status" {
        return Vec::new();
    }
    let (status, path) = (get(object, "status"), Path::new("status"));
    let field = path.child("typeChecking").child("expressionWarnings");
    let mut errors = ErrorList::new();
    for (index, one) in items(get(status, "typeChecking"), "expressionWarnings").iter().enumerate()
    {
        let place = field.index(index);
        errors.extend(required(one, &["warning"], &place));
        if str_at(one, "fieldRef").trim().is_empty() {
            errors.push(Error::required(&place.child("fieldRef"), ""));
        }
    }
    errors.extend(list_of_conditions(items(status, "conditions"), &path.child("conditions")));
    errors
}

fn mutating(object: &Value, old: Option<&Value>) -> ErrorList {
    let (spec, path) = (get(object, "spec"), Path::new("spec"));
    let mut compiler = Compiler::composed();
    let uses = Uses { patches: true, ..uses(spec) };
    let mut errors = head(spec, true, old, &mut compiler, &path);
    let (list, field) = (items(spec, "mutations"), path.child("mutations"));
    if list.is_empty() {
        errors.push(Error::required(&field, "mutations must contain at least one item"));
    }
    for (index, one) in list.iter().enumerate() {
        errors.extend(mutation(one, &compiler, uses, &field.index(index)));
    }
    let (policy, field) = (str_at(spec, "reinvocationPolicy"), path.child("reinvocationPolicy"));
    if policy.is_empty() {
        errors.push(Error::required(&field, ""));
    } else {
        errors.extend(one_of(policy, &REINVOCATIONS, &field));
    }
    errors
}

/// The identifiers that expressions of a policy may use.
fn uses(spec: &Value) -> Uses {
    Uses { params: has(spec, "paramKind"), authorizer: true, patches: false }
}

/// Validates the fields that both kinds of policies share, and declares the variables of the policy
/// in `compiler`.
fn head(
    spec: &Value,
    mutating: bool,
    old: Option<&Value>,
    compiler: &mut Compiler,
    path: &Path,
) -> ErrorList {
    let mut errors = ErrorList::new();
    let field = path.child("failurePolicy");
    match get(spec, "failurePolicy").as_str() {
        None => errors.push(Error::required(&field, "")),
        Some(policy) => errors.extend(one_of(policy, &FAILURE_POLICIES, &field)),
    }
    if has(spec, "paramKind") {
        errors.extend(param_kind(get(spec, "paramKind"), &path.child("paramKind")));
    }
    let (constraints, field) = (get(spec, "matchConstraints"), path.child("matchConstraints"));
    if constraints.is_object() {
        errors.extend(match_resources(constraints, &field));
        if is_empty(constraints, "resourceRules") {
            errors.push(Error::required(&field.child("resourceRules"), ""));
        }
        if mutating {
            errors.extend(only_mutable(constraints, &field));
        }
    } else {
        errors.push(Error::required(&field, ""));
    }
    let same = old.map(|old| get(old, "spec")).is_some_and(|old| {
        ["paramKind", "matchConditions"]
            .iter()
            .all(|key| semantic_equal(get(spec, key), get(old, key)))
    });
    if !same {
        errors.extend(conditions(spec, has(spec, "paramKind"), path));
    }
    for (index, one) in items(spec, "variables").iter().enumerate() {
        let field = path.child("variables").index(index);
        let name = str_at(one, "name");
        if name.trim().is_empty() {
            errors.push(Error::required(&field.child("name"), "name is not specified"));
        } else if !expression::is_identifier(name) {
            let text = "must be a valid CEL identifier";
            errors.push(Error::invalid(&field.child("name"), name, text));
        }
        let text = str_at(one, "expression");
        let place = field.child("expression");
        if text.trim().is_empty() {
            errors.push(Error::required(&place, "expression is not specified"));
        } else {
            let compiled = compiler.variable(name, text, uses(spec));
            errors.extend(expression::outcome(compiled, text, &place));
        }
    }
    errors
}

/// Checks that no rule of a mutating policy matches the operation `DELETE`.
fn only_mutable(resources: &Value, path: &Path) -> ErrorList {
    let allowed: Vec<&str> = OPERATIONS.into_iter().filter(|o| *o != "DELETE").collect();
    let field = path.child("resourceRules").child("operations");
    let rules = items(resources, "resourceRules").iter();
    rules
        .flat_map(|rule| texts(rule, "operations"))
        .filter_map(|operation| one_of(operation, &allowed, &field))
        .collect()
}

fn match_resources(resources: &Value, path: &Path) -> ErrorList {
    let mut errors = ErrorList::new();
    let field = path.child("matchPolicy");
    match get(resources, "matchPolicy").as_str() {
        None => errors.push(Error::required(&field, "")),
        Some(policy) => errors.extend(one_of(policy, &MATCH_POLICIES, &field)),
    }
    for key in ["namespaceSelector", "objectSelector"] {
        if has(resources, key) {
            errors.extend(selector(resources, key, path));
        } else {
            errors.push(Error::required(&path.child(key), ""));
        }
    }
    for key in ["resourceRules", "excludeResourceRules"] {
        for (index, one) in items(resources, key).iter().enumerate() {
            errors.extend(named_rule(one, &path.child(key).index(index)));
        }
    }
    errors
}

fn param_kind(kind: &Value, path: &Path) -> ErrorList {
    let mut errors = required(kind, &["apiVersion"], path);
    let (full, field) = (str_at(kind, "apiVersion"), path.child("apiVersion"));
    let parts: Vec<&str> = full.split('/').collect();
    let (group, version) = match parts.as_slice() {
        [""] | ["", ""] => ("", ""),
        [version] => ("", *version),
        [group, version] => (*group, *version),
        _ => {
            let text = format!("unexpected GroupVersion string: {full}");
            errors.push(Error::invalid(&field, full, text));
            ("", "")
        }
    };
    if !full.is_empty() && parts.len() < 3 {
        let bad = names::dns1123_subdomain(group);
        if !group.is_empty() && !bad.is_empty() {
            errors.push(Error::invalid(&field, group, bad.join(",")));
        }
        let bad = names::dns1035_label(version);
        if version.is_empty() {
            errors.push(Error::invalid(&field, full, "version must be specified"));
        } else if !bad.is_empty() {
            errors.push(Error::invalid(&field, version, bad.join(",")));
        }
    }
    let (name, field) = (str_at(kind, "kind"), path.child("kind"));
    let bad = names::dns1035_label(&name.to_lowercase());
    if name.is_empty() {
        errors.push(Error::required(&field, ""));
    } else if !bad.is_empty() {
        let text = format!("may have mixed case, but should otherwise match: {}", bad.join(","));
        errors.push(Error::invalid(&field, name, text));
    }
    errors
}

fn validation(one: &Value, compiler: &Compiler, uses: Uses, path: &Path) -> ErrorList {
    let field = path.child("expression");
    let text = (str_at(one, "expression"), "expression is not specified");
    let mut errors = expression::required(compiler, text, (uses, Yields::Bool), &field);
    let blank = |text: &str| !text.is_empty() && text.trim().is_empty();
    let (message, computed) = (str_at(one, "message"), str_at(one, "messageExpression"));
    let field = path.child("messageExpression");
    if blank(computed) {
        errors.push(Error::invalid(&field, computed, "must be non-empty if specified"));
    } else if !computed.is_empty() {
        let uses = Uses { authorizer: false, ..uses };
        let compiled = compiler.compile(computed, uses, Yields::Text);
        errors.extend(expression::outcome(compiled, computed, &field));
    }
    let field = path.child("message");
    if blank(message) {
        errors.push(Error::invalid(&field, message, "must be non-empty if specified"));
    } else if message.trim().contains(['\n', '\r']) {
        errors.push(Error::invalid(&field, message, "must not contain line breaks"));
    }
    let reasons = ["Forbidden", "Invalid", "RequestEntityTooLarge"];
    let reason = get(one, "reason").as_str();
    errors.extend(reason.and_then(|reason| one_of(reason, &reasons, &path.child("reason"))));
    errors
}

fn annotation(
    one: &Value,
    policy: &str,
    compiler: &Compiler,
    uses: Uses,
    path: &Path,
) -> ErrorList {
    let (key, field) = (str_at(one, "key"), path.child("key"));
    let mut errors = ErrorList::new();
    if policy.is_empty() {
        errors.push(Error::invalid(&field, key, "requires metadata.name be non-empty"));
    } else {
        let full = format!("{policy}/{key}");
        let texts = names::qualified_name(&full);
        errors.extend(each(&field, full, texts));
    }
    let (text, field) = (str_at(one, "valueExpression"), path.child("valueExpression"));
    if text.trim().is_empty() {
        errors.push(Error::required(&field, "valueExpression is not specified"));
    } else if text.trim().len() > ANNOTATION_MAX {
        let detail = format!("must not exceed {ANNOTATION_MAX} bytes in length");
        errors.push(Error::required(&field, detail));
    } else {
        let compiled = compiler.compile(text.trim(), uses, Yields::TextOrNull);
        errors.extend(expression::outcome(compiled, text, &field));
    }
    errors
}

fn mutation(one: &Value, compiler: &Compiler, uses: Uses, path: &Path) -> ErrorList {
    const PATCHES: [(&str, &str); 2] =
        [("ApplyConfiguration", "applyConfiguration"), ("JSONPatch", "jsonPatch")];
    let kind = str_at(one, "patchType");
    if kind.is_empty() {
        return vec![Error::required(&path.child("patchType"), "")];
    }
    if !PATCHES.iter().any(|(name, _)| *name == kind) {
        let allowed = PATCHES.map(|(name, _)| name);
        return vec![Error::not_supported(&path.child("patchType"), kind, &allowed)];
    }
    let mut errors = ErrorList::new();
    for (name, key) in PATCHES {
        let (patch, field) = (get(one, key), path.child(key));
        if name != kind {
            if patch.is_object() {
                let text = format!("must not be specified when patchType is {kind}");
                errors.push(Error::invalid(&field, format!("{{{key}}}"), text));
            }
        } else if patch.is_object() {
            let yields = if name == "JSONPatch" { Yields::Patches } else { Yields::Object };
            let (text, field) = (str_at(patch, "expression").trim(), field.child("expression"));
            errors.extend(expression::required(compiler, (text, ""), (uses, yields), &field));
        } else {
            let text = format!("must be specified when patchType is {kind}");
            errors.push(Error::required(&field, text));
        }
    }
    errors
}

/// Validates a ValidatingAdmissionPolicyBinding.
pub fn validating_binding(object: &Value) -> ErrorList {
    let (spec, path) = (get(object, "spec"), Path::new("spec"));
    let mut errors = binding(spec, &path);
    let (actions, field) = (texts(spec, "validationActions"), path.child("validationActions"));
    let again = repeated(actions.iter());
    for (index, action) in actions.iter().enumerate() {
        errors.extend(one_of(action, &["Audit", "Deny", "Warn"], &field.index(index)));
        if again.at(index) {
            errors.push(Error::duplicate(&field.index(index), *action));
        }
    }
    if actions.contains(&"Deny") && actions.contains(&"Warn") {
        let text = "must not contain both Deny and Warn (repeating the same validation failure information in the API response and headers serves no purpose)";
        errors.push(Error::invalid(&field, get(spec, "validationActions").clone(), text));
    }
    if actions.is_empty() {
        errors.push(Error::required(&field, ""));
    }
    errors
}

/// Validates a MutatingAdmissionPolicyBinding.
pub fn mutating_binding(object: &Value) -> ErrorList {
    let (spec, path) = (get(object, "spec"), Path::new("spec"));
    let mut errors = binding(spec, &path);
    errors.extend(only_mutable(get(spec, "matchResources"), &path.child("matchResources")));
    errors
}

fn binding(spec: &Value, path: &Path) -> ErrorList {
    let mut errors = required_as(spec, "policyName", path, names::dns1123_subdomain);
    if has(spec, "paramRef") {
        errors.extend(param_ref(get(spec, "paramRef"), &path.child("paramRef")));
    }
    if has(spec, "matchResources") {
        errors.extend(match_resources(get(spec, "matchResources"), &path.child("matchResources")));
    }
    errors
}

fn param_ref(reference: &Value, path: &Path) -> ErrorList {
    const EXCLUSIVE: &str = "name and selector are mutually exclusive";
    let mut errors = ErrorList::new();
    let (name, selected) = (str_at(reference, "name"), has(reference, "selector"));
    if !name.is_empty() {
        errors.extend(each(&path.child("name"), name, segment(name)));
        if selected {
            errors.push(Error::forbidden(&path.child("name"), EXCLUSIVE));
        }
    }
    if selected {
        errors.extend(selector(reference, "selector", path));
        if !name.is_empty() {
            errors.push(Error::forbidden(&path.child("selector"), EXCLUSIVE));
        }
    }
    if name.is_empty() && !selected {
        errors.push(Error::required(path, "one of name or selector must be specified"));
    }
    let (action, field) =
        (str_at(reference, "parameterNotFoundAction"), path.child("parameterNotFoundAction"));
    if action.is_empty() {
        errors.push(Error::required(&field, ""));
    } else {
        errors.extend(one_of(action, &["Deny", "Allow"], &field));
    }
    errors
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_mutation_has_one_patch() {
        let path = Path::new("m");
        let patch =
            |text: &str| json!({"patchType": "JSONPatch", "jsonPatch": {"expression": text}});
        let good = patch("[JSONPatch{op: 'remove', path: '/metadata/labels'}]");
        let mutation = |one: &Value| {
            let uses = Uses { patches: true, ..Uses::default() };
            mutation(one, &Compiler::composed(), uses, &path)
        };
        assert!(mutation(&good).is_empty(), "{:?}", mutation(&good));
        // The type of an empty list is not exactly the type of a list of patches (cel-go's
        // `IsExactType`).
        assert_eq!(
            mutation(&patch("[]"))[0].detail,
            "must evaluate to list(JSONPatch) but got list(dyn)"
        );
        assert_eq!(
            mutation(&json!({"patchType": "JSONPatch"}))[0].to_string(),
            "m.jsonPatch: Required value: must be specified when patchType is JSONPatch"
        );
    }

    fn policy(spec: Value) -> Value {
        let mut object = json!({"metadata": {"name": "p"}, "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": {"matchPolicy": "Equivalent", "namespaceSelector": {}, "objectSelector": {},
                "resourceRules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}]},
        }});
        for (key, value) in spec.as_object().unwrap() {
            object["spec"][key] = value.clone();
        }
        object
    }

    /// Error texts of upstream's `validation_test.go`.
    #[test]
    fn expressions_that_do_not_compile_are_refused() {
        let errors = |spec: Value| -> Vec<String> {
            validating_policy(&policy(spec)).iter().map(ToString::to_string).collect()
        };
        let one = |expression: &str| errors(json!({"validations": [{"expression": expression}]}));
        assert_eq!(
            one("object.x in [1, 2, "),
            [
                "spec.validations[0].expression: Invalid value: \"object.x in [1, 2, \": compilation failed: ERROR: <input>:1:20: Syntax error: missing ']' at '<EOF>'\n | object.x in [1, 2, \n | ...................^"
            ]
        );
        assert_eq!(
            one("1 == 1 ? 'a' : 'b'"),
            [
                "spec.validations[0].expression: Invalid value: \"1 == 1 ? 'a' : 'b'\": must evaluate to bool but got string"
            ]
        );
        assert_eq!(
            one("variables.x"),
            [
                "spec.validations[0].expression: Invalid value: \"variables.x\": compilation failed: ERROR: <input>:1:1: undeclared reference to 'variables' (in container '')\n | variables.x\n | ^"
            ]
        );
        assert_eq!(
            errors(json!({"validations": [{"expression": "true", "messageExpression": "authorizer.path('/x').check('get').reason()"}]})).len(),
            1
        );
        assert!(
            errors(json!({"paramKind": {"apiVersion": "v1", "kind": "ConfigMap"}, "validations": [{"expression": "params == null", "messageExpression": "string(params.data.x)"}]})).is_empty()
        );
        let variables = json!([{"name": "foo", "expression": "1 + 1"}, {"name": "bar", "expression": "variables.foo > 1"}]);
        assert!(
            errors(
                json!({"variables": variables, "validations": [{"expression": "variables.bar"}]})
            )
            .is_empty()
        );
        assert_eq!(
            errors(json!({"variables": variables, "validations": [{"expression": "variables.foo == 'x'"}]})).len(),
            1
        );
        assert_eq!(
            errors(json!({"auditAnnotations": [{"key": "k", "valueExpression": "true"}]})),
            [
                "spec.auditAnnotations[0].valueExpression: Invalid value: \"true\": must evaluate to one of [string null_type] but got bool"
            ]
        );
        let mut nameless =
            policy(json!({"auditAnnotations": [{"key": "k", "valueExpression": "'x'"}]}));
        nameless["metadata"] = json!({});
        let said: Vec<String> =
            validating_policy(&nameless).iter().map(ToString::to_string).collect();
        assert_eq!(
            said,
            [
                "spec.auditAnnotations[0].key: Invalid value: \"k\": requires metadata.name be non-empty"
            ]
        );
    }
}
