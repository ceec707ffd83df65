//! How the objects that every cluster begins with are kept (upstream's
//! `registry/flowcontrol/ensurer`). Pure.

use api::value::{get, int_at, str_in};
use serde_json::{Value, json};

use super::spec::{CATCH_ALL, EXEMPT};

/// Says whether the server keeps the specification.
const AUTOUPDATE: &str = "apf.kubernetes.io/autoupdate-spec";

/// Go's `strconv.ParseBool`.
fn boolean(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "TRUE" | "true" | "True" => Some(true),
        "0" | "f" | "F" | "FALSE" | "false" | "False" => Some(false),
        _ => None,
    }
}

fn annotated(object: &Value) -> Option<bool> {
    boolean(object.pointer("/metadata/annotations")?.get(AUTOUPDATE)?.as_str()?)
}

/// What `existing` has to become, when it is not as it should be. The specification of what is
/// mandatory is always kept, that of others while the annotation says so, or while nobody has
/// changed it.
pub(crate) fn revised(existing: &Value, wanted: &Value) -> Option<Value> {
    let mandatory = matches!(str_in(wanted, &["metadata", "name"]), EXEMPT | CATCH_ALL);
    let said = annotated(existing);
    let untouched = int_at(get(existing, "metadata"), "generation") == Some(1);
    let keeps = mandatory || said.unwrap_or(untouched);
    let mut revised = existing.clone();
    if keeps && let (Some(map), Some(spec)) = (revised.as_object_mut(), wanted.get("spec")) {
        map.insert("spec".into(), spec.clone());
    }
    if said != Some(keeps)
        && let Some(metadata) = revised.get_mut("metadata").and_then(Value::as_object_mut)
    {
        let annotations = metadata.entry("annotations").or_insert(Value::Null);
        if !annotations.is_object() {
            *annotations = json!({});
        }
        if let Some(map) = annotations.as_object_mut() {
            map.insert(AUTOUPDATE.into(), keeps.to_string().into());
        }
    }
    (revised != *existing).then_some(revised)
}

/// The server made this object and does not know it any more.
pub(super) fn is_unwanted(object: &Value) -> bool {
    annotated(object) == Some(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(name: &str, annotation: Option<&str>, generation: i64, shares: i64) -> Value {
        let mut object = json!({"metadata": {"name": name, "generation": generation}, "spec": {"shares": shares}});
        if let Some(text) = annotation {
            object["metadata"]["annotations"] = json!({ AUTOUPDATE: text });
        }
        object
    }

    /// The rows of upstream's `TestSuggestedFSEnsureStrategy_ShouldUpdate` and `TestMandatory…`:
    /// name, annotation, generation and shares of what is there; annotation and shares of what it
    /// becomes.
    #[test]
    fn specifications_are_kept_as_the_annotation_says() {
        for (name, annotation, generation, shares, becomes) in [
            ("a", Some("true"), 5, 1, None),
            ("a", Some("true"), 5, 2, Some(("true", 1))),
            ("a", Some("false"), 5, 2, None),
            ("a", Some("false"), 1, 2, None),
            ("a", None, 1, 2, Some(("true", 1))),
            ("a", None, 1, 1, Some(("true", 1))),
            ("a", None, 2, 2, Some(("false", 2))),
            ("a", Some("x"), 1, 2, Some(("true", 1))),
            ("a", Some("x"), 2, 2, Some(("false", 2))),
            ("exempt", Some("true"), 5, 1, None),
            ("exempt", Some("false"), 5, 1, Some(("true", 1))),
            ("exempt", Some("false"), 5, 2, Some(("true", 1))),
            ("catch-all", None, 5, 2, Some(("true", 1))),
        ] {
            let wanted = object(name, Some("true"), 0, 1);
            let expected =
                becomes.map(|(text, shares)| object(name, Some(text), generation, shares));
            let found = revised(&object(name, annotation, generation, shares), &wanted);
            assert_eq!(found, expected, "{name} {annotation:?} {generation} {shares}");
        }
    }
}
