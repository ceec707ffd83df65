//! Warnings about accepted definitions.

use std::collections::HashSet;

use serde_json::Value;

use super::{DEPTH_MAX, options};
use crate::field::go_quote;
use crate::value::{get, str_at};

/// Returns the warnings about a definition that do not apply to the old definition.
pub fn warnings(object: &Value, old: Option<&Value>) -> Vec<String> {
    let before: HashSet<String> = old.map(found).unwrap_or_default().into_iter().collect();
    found(object).into_iter().filter(|text| !before.contains(text.as_str())).collect()
}

fn found(definition: &Value) -> Vec<String> {
    let mut texts: Vec<String> = Vec::new();
    let mut seen: HashSet<String> = HashSet::new();
    let mut add = |text: String| {
        if seen.insert(text.clone()) {
            texts.push(text);
        }
    };
    for schema in options::schemas(definition) {
        for format in crate::custom::unrecognized_formats(schema) {
            add(format!("unrecognized format {}", go_quote(&format)));
        }
    }
    for kind in ["array", "object"] {
        let such = |schema: &Value| {
            str_at(schema, "x-kubernetes-list-type") == "set"
                && str_at(get(schema, "items"), "type") == kind
        };
        if options::schemas(definition).any(|schema| options::any(schema, &such, DEPTH_MAX)) {
            add(format!(
                "x-kubernetes-list-type: set for items of type \"{kind}\" is not supported by server-side apply or CEL validation rules"
            ));
        }
    }
    texts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::validation::tests::same;
    use serde_json::json;

    /// `WarningsOnCreate` and `WarningsOnUpdate` of `pkg/registry/customresourcedefinition`.
    #[test]
    fn formats_and_sets_without_effect_are_named_once() {
        let definition = |property: Value| {
            let schema = json!({"type": "object", "properties": {"p": property, "q": property}});
            json!({"spec": {"versions": [{"schema": {"openAPIV3Schema": schema}}]}})
        };
        let check = |property: Value, expected: &[&str]| {
            let new = definition(property);
            same(&warnings(&new, None), expected);
            same(&warnings(&new, Some(&definition(json!({"type": "string"})))), expected);
            same(&warnings(&new, Some(&new)), &[""; 0]);
        };
        let set =
            |item: Value| json!({"type": "array", "x-kubernetes-list-type": "set", "items": item});
        check(json!({"type": "string", "format": "date-time"}), &[]);
        check(json!({"type": "string", "format": "nope"}), &["unrecognized format \"nope\""]);
        check(set(json!({"type": "string"})), &[]);
        for kind in ["array", "object"] {
            let text = format!(
                "x-kubernetes-list-type: set for items of type \"{kind}\" is not supported by \
                 server-side apply or CEL validation rules"
            );
            check(set(json!({ "type": kind })), &[&text]);
        }
    }
}
