//! The write strategy of custom resources: which fields a write can change, generation, validation
//! by the schema of the version, warnings.

use std::borrow::Cow;
use std::sync::Arc;

use api::field::{Error, ErrorList, Path};
use api::patch::gotext;
use api::validation::names;
use api::value::semantic_equal;
use serde_json::{Map, Value};
use sorting::CompactSort as _;

use super::definition::ScalePaths;
use super::error::AccessError;
use super::kind::Kind;
use crate::registry::{Strategy, WriteContext, metadata};

/// The strategy of one version.
#[derive(Debug)]
pub(crate) struct Custom {
    kind: Arc<Kind>,
    /// Selectable fields: the name without the leading dot, and the keys of the path.
    selectable: Vec<(Arc<str>, Vec<String>)>,
}

impl Custom {
    pub(crate) fn new(kind: &Arc<Kind>) -> Self {
        let version = kind.version();
        let paths = version.into_iter().flat_map(super::definition::Version::selectable);
        let selectable = paths
            .map(|path| {
                let name = path.strip_prefix('.').unwrap_or(path);
                (name.into(), name.split('.').map(str::to_owned).collect())
            })
            .collect();
        Self { kind: Arc::clone(kind), selectable }
    }

    fn has_status(&self) -> bool {
        self.kind.version().is_some_and(super::definition::Version::has_status)
    }
}

impl Strategy for Custom {
    fn default(&self, object: &mut Value) {
        self.kind.default(object);
    }

    fn prepare_for_create(&self, _: &WriteContext<'_>, object: &mut Value) {
        if self.has_status()
            && let Some(map) = object.as_object_mut()
        {
            map.remove("status");
        }
        metadata::metadata_mut(object).insert("generation".into(), 1.into());
    }

    fn prepare_for_update(&self, context: &WriteContext<'_>, object: &mut Value, old: &Value) {
        if context.subresource == "status" {
            let status = object.as_object_mut().and_then(|map| map.remove("status"));
            let managed_fields = metadata::metadata_mut(object).remove("managedFields");
            *object = old.clone();
            replace(metadata::metadata_mut(object), "managedFields", managed_fields);
            if let Some(map) = object.as_object_mut() {
                replace(map, "status", status);
            }
            return;
        }
        if self.has_status()
            && let Some(map) = object.as_object_mut()
        {
            replace(map, "status", old.get("status").cloned());
        }
        if !is_same_without_metadata(object, old) {
            let generation = metadata::number(old, "generation").unwrap_or(0) + 1;
            metadata::metadata_mut(object).insert("generation".into(), generation.into());
        }
    }

    fn validate(&self, _: &WriteContext<'_>, object: &Value) -> ErrorList {
        let mut errors = self.kind.values(object, None);
        errors.extend(self.scale_errors(object, true));
        errors.extend(self.kind.invariants(object, None));
        let (rule_errors, _) = self.kind.rules(object, None, &errors);
        errors.extend(rule_errors);
        errors
    }

    fn validate_update(
        &self,
        context: &WriteContext<'_>,
        object: &Value,
        old: &Value,
    ) -> ErrorList {
        let is_status_write = context.subresource == "status";
        let mut errors = if is_status_write {
            self.kind.status_values(object, old)
        } else {
            self.kind.values(object, Some(old))
        };
        errors.extend(self.scale_errors(object, !is_status_write));
        errors.extend(if is_status_write {
            self.kind.status_invariants(object, old)
        } else {
            self.kind.invariants(object, Some(old))
        });
        let (rule_errors, tolerated) = self.kind.rules(object, Some(old), &errors);
        errors.extend(rule_errors);
        *context.warnings.lock() = tolerated;
        errors
    }

    fn validate_name(&self, name: &str, prefix: bool) -> Vec<String> {
        names::name_is_subdomain(name, prefix)
    }

    fn warnings_on_create(&self, _: &WriteContext<'_>, object: &Value) -> Vec<String> {
        finalizer_warnings(object, &[])
    }

    fn warnings_on_update(
        &self,
        context: &WriteContext<'_>,
        object: &Value,
        old: &Value,
    ) -> Vec<String> {
        let mut warnings = std::mem::take(&mut *context.warnings.lock());
        if context.subresource != "status" {
            warnings.extend(finalizer_warnings(object, &metadata::finalizers(old)));
        }
        warnings
    }

    fn allow_unconditional_update(&self) -> bool {
        false
    }

    fn selectable_fields(&self, object: &Value) -> Vec<(Cow<'static, str>, String)> {
        let field = |(name, path): &(Arc<str>, Vec<String>)| {
            let value = path.iter().try_fold(object, |value, key| value.get(key));
            let text = match value {
                None | Some(Value::Null) => String::new(),
                Some(Value::String(text)) => text.clone(),
                Some(other) => other.to_string(),
            };
            (Cow::Owned(name.to_string()), text)
        };
        self.selectable.iter().map(field).collect()
    }
}

impl Custom {
    /// Validates the values of the scale subresource (`ValidateScaleSpec`, `ValidateScaleStatus`).
    fn scale_errors(&self, object: &Value, with_spec: bool) -> ErrorList {
        let Some(scale) = self.kind.scale() else { return ErrorList::new() };
        let mut errors = ErrorList::new();
        if with_spec {
            errors.extend(replicas_error(object, &scale.spec_replicas_path));
        }
        errors.extend(replicas_error(object, &scale.status_replicas_path));
        errors.extend(selector_error(object, scale));
        errors
    }
}

fn replace(map: &mut Map<String, Value>, key: &str, value: Option<Value>) {
    match value {
        Some(value) => map.insert(key.to_owned(), value),
        None => map.remove(key),
    };
}

fn is_same_without_metadata(a: &Value, b: &Value) -> bool {
    let fields = |value: &Value| -> Map<String, Value> {
        let fields = value.as_object().into_iter().flatten().filter(|(key, _)| *key != "metadata");
        fields.map(|(key, value)| (key.clone(), value.clone())).collect()
    };
    semantic_equal(&Value::Object(fields(a)), &Value::Object(fields(b)))
}

/// The value at a simple JSON path such as `.spec.replicas`; `None` if it is absent.
///
/// # Errors
/// If a parent is not an object (`unstructured.NestedFieldNoCopy`).
pub(crate) fn nested<'a>(object: &'a Value, path: &str) -> Result<Option<&'a Value>, AccessError> {
    let mut value = object;
    let mut walked = String::new();
    for key in path.strip_prefix('.').unwrap_or(path).split('.') {
        match value {
            Value::Object(map) => match map.get(key) {
                Some(next) => value = next,
                None => return Ok(None),
            },
            Value::Null => return Ok(None),
            other => {
                let path = format!("{walked}.{key}");
                return Err(access_error(path, other, "map[string]interface{}"));
            }
        }
        walked.push('.');
        walked.push_str(key);
    }
    Ok(Some(value))
}

fn access_error(path: String, value: &Value, expected: &'static str) -> AccessError {
    AccessError { path, value: gotext::v(value), actual: gotext::type_name(value), expected }
}

/// The integer at a simple JSON path, and whether it is present; 0 if it is absent.
///
/// # Errors
/// If the value is not an integer, or a parent is not an object.
pub(crate) fn nested_integer(object: &Value, path: &str) -> Result<(i64, bool), AccessError> {
    let Some(value) = nested(object, path)? else { return Ok((0, false)) };
    match value.as_i64() {
        Some(number) => Ok((number, true)),
        None => {
            let path = if path.starts_with('.') { path.to_owned() } else { format!(".{path}") };
            Err(access_error(path, value, "int64"))
        }
    }
}

/// The string at a simple JSON path; empty if it is absent.
///
/// # Errors
/// If the value is not a string, or a parent is not an object.
pub(crate) fn nested_text<'a>(object: &'a Value, path: &str) -> Result<&'a str, AccessError> {
    match nested(object, path)? {
        None => Ok(""),
        Some(Value::String(text)) => Ok(text),
        Some(other) => Err(access_error(path.to_owned(), other, "string")),
    }
}

fn replicas_error(object: &Value, path: &str) -> Option<Error> {
    let field = Path::new(path);
    match nested_integer(object, path) {
        Err(error) => Some(Error::invalid(&field, 0, error.to_string())),
        Ok((number, _)) if number < 0 => {
            Some(Error::invalid(&field, number, "should be a non-negative integer"))
        }
        Ok((number, _)) if number > i64::from(i32::MAX) => {
            let text = format!("should be less than or equal to {}", i32::MAX);
            Some(Error::invalid(&field, number, text))
        }
        Ok(_) => None,
    }
}

fn selector_error(object: &Value, scale: &ScalePaths) -> Option<Error> {
    let path = scale.label_selector_path.as_deref().filter(|path| !path.is_empty())?;
    let error = nested_text(object, path).err()?;
    Some(Error::invalid(&Path::new(path), "", error.to_string()))
}

/// Warnings about added finalizers whose name is not domain-qualified
/// (`validateKubeFinalizerName`).
fn finalizer_warnings(object: &Value, old: &[String]) -> Vec<String> {
    const STANDARD: [&str; 3] = ["orphan", "foregroundDeletion", "kubernetes"];
    let mut names = metadata::finalizers(object);
    names.retain(|name| !old.contains(name));
    names.compact_sort();
    names.dedup();
    let mut warnings = Vec::new();
    for name in names {
        let quoted = api::field::go_quote(&name);
        for message in names::qualified_name(&name) {
            warnings.push(format!("metadata.finalizers: {quoted}: {message}"));
        }
        if !name.contains('/') && !STANDARD.contains(&name.as_str()) {
            let path = if name.contains('.') { " including a path (/)" } else { "" };
            warnings.push(format!(
                "metadata.finalizers: {quoted}: prefer a domain-qualified finalizer name{path} to \
                 avoid accidental conflicts with other finalizer writers"
            ));
        }
    }
    warnings
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn finalizers_without_a_domain_cause_warnings() {
        let object =
            json!({"metadata": {"finalizers": ["a", "a.b", "example.com/c", "orphan", "old"]}});
        assert_eq!(
            finalizer_warnings(&object, &["old".to_owned()]),
            [
                "metadata.finalizers: \"a\": prefer a domain-qualified finalizer name to avoid accidental conflicts with other finalizer writers",
                "metadata.finalizers: \"a.b\": prefer a domain-qualified finalizer name including a path (/) to avoid accidental conflicts with other finalizer writers",
            ]
        );
    }

    #[test]
    fn nested_integer_returns_the_value_or_upstreams_message() {
        let object = json!({"spec": {"replicas": 3, "name": "x"}});
        assert_eq!(nested_integer(&object, ".spec.replicas"), Ok((3, true)));
        assert_eq!(nested_integer(&object, ".spec.other"), Ok((0, false)));
        assert_eq!(
            nested_integer(&object, ".spec.name").unwrap_err().to_string(),
            ".spec.name accessor error: x is of the type string, expected int64"
        );
        assert_eq!(
            nested_integer(&object, ".spec.name.deep").unwrap_err().to_string(),
            ".spec.name.deep accessor error: x is of the type string, expected map[string]interface{}"
        );
    }
}
