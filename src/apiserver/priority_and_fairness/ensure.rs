//! Decides how the bootstrap objects of flow control are maintained (upstream's
//! `registry/flowcontrol/ensurer`), without I/O.

use api::value::{get, int_at, str_in};
use serde_json::{Value, json};

use super::spec::{CATCH_ALL, EXEMPT};

/// The annotation that tells whether the server maintains the spec.
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

/// The object that has to replace `existing`; `None` if it is up to date. The spec of mandatory
/// objects is always restored. That of others is restored if the annotation says so, or without the
/// annotation if the spec was never changed.
pub(crate) fn revised(existing: &Value, wanted: &Value) -> Option<Value> {
    let mandatory = matches!(str_in(wanted, &["metadata", "name"]), EXEMPT | CATCH_ALL);
    let annotation = annotated(existing);
    let is_unchanged = int_at(get(existing, "metadata"), "generation") == Some(1);
    let is_maintained = mandatory || annotation.unwrap_or(is_unchanged);
    let mut revised = existing.clone();
    if is_maintained && let (Some(map), Some(spec)) = (revised.as_object_mut(), wanted.get("spec"))
    {
        map.insert("spec".into(), spec.clone());
    }
    if annotation != Some(is_maintained)
        && let Some(metadata) = revised.get_mut("metadata").and_then(Value::as_object_mut)
    {
        let annotations = metadata.entry("annotations").or_insert(Value::Null);
        if !annotations.is_object() {
            *annotations = json!({});
        }
        if let Some(map) = annotations.as_object_mut() {
            map.insert(AUTOUPDATE.into(), is_maintained.to_string().into());
        }
    }
    (revised != *existing).then_some(revised)
}

/// Whether the server maintains this object: if it is not a bootstrap object, it is obsolete.
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
    /// name, annotation, generation and shares of the existing object; annotation and shares of the
    /// new one.
    #[test]
    fn specs_are_restored_as_the_annotation_says() {
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
