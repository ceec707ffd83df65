//! Parses a manifest: the documents of a YAML stream or a JSON text, with lists flattened.

use std::collections::BTreeSet;

use api::codec::yaml;
use serde_json::Value;

use crate::error::ParseError;
use crate::limits::OBJECTS_MAX;

/// End of the kinds of lists.
const LIST_SUFFIX: &str = "List";

/// An object of a manifest.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ManifestObject {
    /// The object.
    pub(crate) value: Value,
    /// Its `apiVersion`.
    pub(crate) api_version: String,
    /// Its `kind`.
    pub(crate) kind: String,
    /// Its `metadata.namespace`; empty if there is none.
    pub(crate) namespace: String,
    /// Its `metadata.name`.
    pub(crate) name: String,
}

impl ManifestObject {
    /// The API group; empty for the core group.
    pub(crate) fn group(&self) -> &str {
        group(&self.api_version)
    }

    /// `Deployment kube-system/a`, or `Namespace a`.
    pub(crate) fn describe(&self) -> String {
        describe(&self.kind, &self.namespace, &self.name)
    }
}

/// The group of an `apiVersion`; empty for the core group.
pub(crate) fn group(api_version: &str) -> &str {
    api_version.split_once('/').map_or("", |(group, _)| group)
}

/// A kind with a name, for messages.
pub(crate) fn describe(kind: &str, namespace: &str, name: &str) -> String {
    if namespace.is_empty() {
        format!("{kind} {name}")
    } else {
        format!("{kind} {namespace}/{name}")
    }
}

/// Parses the content of a file.
///
/// # Errors
/// The first document that is no object with `apiVersion`, `kind` and `metadata.name`, with the
/// line of the file.
pub(crate) fn parse(content: &[u8]) -> Result<Vec<ManifestObject>, ParseError> {
    let text = std::str::from_utf8(content).map_err(|_| ParseError::NotText)?;
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let (mut objects, mut names) = (Vec::new(), BTreeSet::new());
    for (line, document) in documents(text) {
        let value = yaml::parse(document.as_bytes()).map_err(|e| syntax(line, &e.to_string()))?;
        // A document of comments.
        if value.is_null() {
            continue;
        }
        let line = line + blank_lines(document);
        for value in flatten(value, line)? {
            let object = object(value, line)?;
            let key = (
                object.group().to_owned(),
                object.kind.clone(),
                object.namespace.clone(),
                object.name.clone(),
            );
            if !names.insert(key) {
                return Err(ParseError::Twice { line, object: object.describe() });
            }
            objects.push(object);
            if objects.len() > OBJECTS_MAX {
                return Err(ParseError::TooMany);
            }
        }
    }
    Ok(objects)
}

/// Splits a stream at lines that begin with `---`, as upstream's `YAMLReader`; each document comes
/// with the number of lines before it. The rest of a separator line, if it is not a comment,
/// belongs to the document.
fn documents(text: &str) -> Vec<(usize, &str)> {
    let (mut found, mut start, mut start_line, mut at) = (Vec::new(), 0, 0, 0);
    for (index, line) in text.split_inclusive('\n').enumerate() {
        let is_separator = line
            .strip_prefix("---")
            .is_some_and(|rest| rest.is_empty() || rest.starts_with([' ', '\t', '\r', '\n']));
        if is_separator && at > start {
            found.push((start_line, text.get(start..at).unwrap_or_default()));
            (start, start_line) = (at, index);
        }
        at += line.len();
    }
    found.push((start_line, text.get(start..).unwrap_or_default()));
    found
}

/// Lines of a document before its first content.
fn blank_lines(document: &str) -> usize {
    let is_blank = |line: &&str| {
        let line = line.trim();
        line.is_empty() || line == "---" || line.starts_with('#')
    };
    document.lines().take_while(is_blank).count() + 1
}

/// The error of the YAML parser, with the line in the file instead of that in the document.
fn syntax(lines_before: usize, message: &str) -> ParseError {
    let message = message.strip_prefix("error converting YAML to JSON: ").unwrap_or(message);
    let message = message.strip_prefix("yaml: ").unwrap_or(message);
    // `serde_saphyr` writes `error: line 3 column 5: text`.
    let message = message.strip_prefix("error: ").unwrap_or(message);
    let (number, text) = match message.strip_prefix("line ").and_then(|m| m.split_once(' ')) {
        Some((number, rest)) => match number.trim_end_matches(':').parse::<usize>() {
            Ok(number) => (number, rest),
            Err(_) => (1, message),
        },
        None => (1, message),
    };
    let text = match text.strip_prefix("column ").and_then(|t| t.split_once(": ")) {
        Some((_, text)) => text,
        None => text,
    };
    ParseError::Syntax { line: lines_before + number, message: text.trim().to_owned() }
}

/// The items of a list, or the object itself.
fn flatten(mut value: Value, line: usize) -> Result<Vec<Value>, ParseError> {
    if !value.is_object() {
        return Err(ParseError::NotAnObject { line });
    }
    let is_list =
        value.get("kind").and_then(Value::as_str).is_some_and(|k| k.ends_with(LIST_SUFFIX));
    match value.get_mut("items").map(Value::take) {
        Some(Value::Array(items)) if is_list => Ok(items),
        Some(Value::Null) if is_list => Ok(Vec::new()),
        Some(items) => {
            value["items"] = items;
            Ok(vec![value])
        }
        None => Ok(vec![value]),
    }
}

fn object(mut value: Value, line: usize) -> Result<ManifestObject, ParseError> {
    let text = |pointer: &str| value.pointer(pointer).and_then(Value::as_str).map(str::to_owned);
    let needed = |pointer, missing| {
        text(pointer).filter(|t| !t.is_empty()).ok_or(ParseError::Missing { line, missing })
    };
    if !value.is_object() {
        return Err(ParseError::NotAnObject { line });
    }
    let api_version = needed("/apiVersion", "apiVersion")?;
    let kind = needed("/kind", "kind")?;
    let name = needed("/metadata/name", "metadata.name")?;
    let namespace = text("/metadata/namespace").unwrap_or_default();
    remove_server_fields(&mut value);
    Ok(ManifestObject { value, api_version, kind, namespace, name })
}

/// Removes what the server alone sets; an exported object has it.
fn remove_server_fields(value: &mut Value) {
    if let Some(fields) = value.as_object_mut() {
        fields.remove("status");
    }
    let metadata = value.get_mut("metadata").and_then(Value::as_object_mut);
    if let Some(metadata) = metadata {
        for field in [
            "creationTimestamp",
            "generation",
            "managedFields",
            "resourceVersion",
            "selfLink",
            "uid",
        ] {
            metadata.remove(field);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(text: &str) -> Vec<String> {
        parse(text.as_bytes()).unwrap().iter().map(ManifestObject::describe).collect()
    }

    #[test]
    fn documents_and_lists_become_objects_in_order() {
        let text = "# note\n---\napiVersion: v1\nkind: Namespace\nmetadata: {name: a}\n--- # next\n\n---\n\
            apiVersion: v1\nkind: ConfigMapList\nitems:\n- apiVersion: v1\n  kind: ConfigMap\n  \
            metadata: {name: b, namespace: a}\n- apiVersion: v1\n  kind: Secret\n  metadata: {name: c}\n---\n";
        assert_eq!(names(text), ["Namespace a", "ConfigMap a/b", "Secret c"]);
        let json = r#"{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"d"}}"#;
        assert_eq!(names(json), ["Deployment d"]);
        assert_eq!(parse(json.as_bytes()).unwrap()[0].group(), "apps");
        assert_eq!(names("\u{feff}# only comments\n"), [""; 0]);
        assert_eq!(names("apiVersion: v1\nkind: List\nitems:\n"), [""; 0]);
    }

    #[test]
    fn a_separator_inside_a_block_does_not_split() {
        let text = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata:\n  x: |\n    ---\n    b: 1\n";
        assert_eq!(names(text), ["ConfigMap a"]);
        assert_eq!(parse(text.as_bytes()).unwrap()[0].value["data"]["x"], "---\nb: 1\n");
    }

    #[test]
    fn an_error_names_the_line_of_the_file() {
        let good = "apiVersion: v1\nkind: Namespace\nmetadata: {name: a}\n";
        for (text, want) in [
            (format!("{good}---\n\nkind: [\n"), "line 6: "),
            (format!("{good}---\nkind: Pod\n"), "line 5: apiVersion is missing"),
            (
                format!("{good}---\napiVersion: v1\nkind: Pod\nmetadata: {{}}\n"),
                "line 5: metadata.name",
            ),
            (format!("{good}---\nhello\n"), "line 5: the document is not an object"),
            (format!("{good}---\n{good}"), "line 5: Namespace a is in this file twice"),
            ("a: 1\na: 2\n".to_owned(), "line 2: "),
        ] {
            let error = parse(text.as_bytes()).unwrap_err().to_string();
            assert!(error.starts_with(want), "{text}\n{error}");
        }
        assert_eq!(parse(&[0xff, 0xfe]), Err(ParseError::NotText));
    }

    #[test]
    fn fields_of_the_server_are_removed() {
        let text = "apiVersion: v1\nkind: Pod\nmetadata:\n  name: a\n  uid: x\n  resourceVersion: '5'\n  \
            creationTimestamp: null\n  labels: {b: c}\nstatus: {phase: Running}\n";
        let object = parse(text.as_bytes()).unwrap().remove(0);
        assert_eq!(
            object.value,
            serde_json::json!({"apiVersion": "v1", "kind": "Pod",
                "metadata": {"name": "a", "labels": {"b": "c"}}})
        );
    }
}
