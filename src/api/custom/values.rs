//! Validation of values against a schema, with kube-openapi's errors in the form of the API server
//! (`k8s.io/kube-openapi/pkg/validation/validate`, `pkg/apiserver/validation`).
//!
//! Upstream counts the checks that pass to select the alternative of `anyOf` and `oneOf` whose
//! errors it reports: [`Outcome::matched`].

use std::collections::HashSet;
use std::fmt::Write;

use serde_json::{Map, Value};

use super::correlate::{self, OldItems};
use super::formats::What;
use super::node::{Additional, Node, Type};
use super::numbers::{self, Num, Wrong};
use crate::field::{Error, ErrorList, Kind, Path, go_quote};

/// Maximum number of errors that are reported for one object.
const ERRORS_MAX: usize = 1000;
/// Maximum total size of these errors in bytes: paths and values can be long.
const ERROR_BYTES_MAX: usize = 4 << 20;

/// An error, and the text by which kube-openapi recognizes duplicate errors.
struct ValueError {
    error: Error,
    text: String,
}

/// The result of the validation of one value and the values below it.
#[derive(Default)]
struct Outcome {
    errors: Vec<ValueError>,
    bytes: usize,
    /// Number of checks that passed.
    matched: u64,
}

impl Outcome {
    fn merge(&mut self, other: Self) {
        self.matched = self.matched.saturating_add(other.matched);
        for found in other.errors {
            self.push(found);
        }
    }

    fn push(&mut self, found: ValueError) {
        let size = found.text.len() + found.error.field.to_string().len();
        let full =
            self.errors.len() >= ERRORS_MAX || self.bytes.saturating_add(size) > ERROR_BYTES_MAX;
        if self.errors.is_empty() || !full {
            self.bytes = self.bytes.saturating_add(size);
            self.errors.push(found);
        }
    }
}

/// Validates a value; `prefix` is the prefix of each error's field.
pub(super) fn validate(node: &Node, new: &Value, old: Option<&Value>, prefix: &Path) -> ErrorList {
    let mut walk = Walk { path: String::new(), prefix };
    let outcome = walk.value(new, node, old);
    let mut told = HashSet::new();
    outcome
        .errors
        .into_iter()
        .filter(|found| told.insert(found.text.clone()))
        .map(|found| found.error)
        .collect()
}

struct Walk<'a> {
    /// The path of the current value in kube-openapi's syntax.
    path: String,
    prefix: &'a Path,
}

fn type_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_i64() => "integer",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

impl Walk<'_> {
    /// The field of an error about the current value or, with `below`, about one of its fields.
    fn field(&self, below: &str) -> Path {
        let name = [self.path.as_str(), below].concat();
        match name.strip_prefix('.').unwrap_or(&name) {
            "" => self.prefix.clone(),
            name => self.prefix.child(name),
        }
    }

    /// The error `{path} in body {text}`.
    fn told(&self, kind: Kind, value: Value, text: &str) -> ValueError {
        let text = format!("{} in body {text}", self.path);
        let field = self.field("");
        let error = match kind {
            Kind::TypeInvalid => Error::type_invalid(&field, value, text.as_str()),
            _ => Error::invalid(&field, value, text.as_str()),
        };
        ValueError { error, text }
    }

    /// An error without a field.
    fn bare(&self, text: String) -> ValueError {
        ValueError { error: Error::invalid(self.prefix, "", text.as_str()), text }
    }

    /// Validates a value with its old value; errors of an unchanged value are dropped.
    fn value(&mut self, value: &Value, node: &Node, old: Option<&Value>) -> Outcome {
        let mut outcome = self.plain(value, node, old);
        if !outcome.errors.is_empty()
            && old.is_some_and(|old| correlate::unchanged(value, old, node))
        {
            outcome.errors.clear();
            outcome.bytes = 0;
        }
        outcome
    }

    fn plain(&mut self, value: &Value, node: &Node, old: Option<&Value>) -> Outcome {
        let mut out = Outcome::default();
        if value.is_null() {
            match self.type_error(value, node) {
                Some(found) => out.push(found),
                None => out.matched += 1,
            }
            self.one_of_values(value, node, &mut out);
            return out;
        }
        if !node.types().is_empty() || node.checks.format.is_some() {
            out.matched += 1;
            match self.type_error(value, node) {
                Some(found) => out.push(found),
                None => out.matched += 1,
            }
        }
        let alternatives = self.alternatives(value, node);
        out.merge(alternatives);
        out.matched += 1;
        match value {
            Value::String(text) => self.string(text, node, &mut out),
            Value::Number(number) => {
                self.number(value, Num::of(number), node, &mut out);
                out.matched += 2;
            }
            Value::Array(list) => {
                self.list(list, node, old, &mut out);
                out.matched += 2;
            }
            _ => {}
        }
        self.one_of_values(value, node, &mut out);
        out.matched += 1;
        if let Value::Object(map) = value {
            self.object(map, node, old, &mut out);
            out.matched += 1;
        }
        out.matched += 1;
        out
    }

    fn type_error(&self, value: &Value, node: &Node) -> Option<ValueError> {
        let types = node.types();
        let wrong = |wanted: &str, got: &str| {
            let text = format!("must be of type {wanted}: {}", go_quote(got));
            self.told(Kind::TypeInvalid, Value::from(got), &text)
        };
        let wanted = || types.iter().map(|kind| kind.name()).collect::<Vec<_>>().join(",");
        let got = type_of(value);
        if value.is_null() {
            return (!types.is_empty() && !node.nullable).then(|| wrong(&wanted(), "null"));
        }
        let is = |kind: Type| types.contains(&kind);
        let named = types.iter().any(|kind| kind.name() == got);
        let number = match value {
            Value::Number(n) => match Num::of(n) {
                Num::Int(_) => is(Type::Number),
                Num::Float(float) => is(Type::Integer) && numbers::is_integer(float),
            },
            _ => false,
        };
        let texty = matches!(value, Value::String(_) | Value::Array(_));
        if let Some(format) = &node.checks.format {
            if !texty {
                let own = match got {
                    "integer" => "int64",
                    "number" => "float64",
                    _ => "",
                };
                if !named && !number && own != &*format.name {
                    return Some(wrong(&format.name, own));
                }
            } else if !is(Type::Number) && !is(Type::Integer) {
                return None;
            }
        }
        (!named && !number).then(|| wrong(&wanted(), got))
    }

    /// Validates `allOf`, `anyOf`, `oneOf` and `not`. These schemas are not correlated with an old
    /// object.
    fn alternatives(&mut self, value: &Value, node: &Node) -> Outcome {
        let checks = &node.checks;
        let mut out = Outcome { matched: 1, ..Outcome::default() };
        if !checks.any_of.is_empty() {
            self.any_of(value, &checks.any_of, &mut out);
        }
        if !checks.one_of.is_empty() {
            self.exactly_one(value, &checks.one_of, &mut out);
        }
        if !checks.all_of.is_empty() {
            let mut valid = 0;
            for schema in &checks.all_of {
                let result = self.plain(value, schema, None);
                valid += usize::from(result.errors.is_empty());
                out.merge(result);
            }
            if valid < checks.all_of.len() {
                let none = if valid == 0 { ". None validated" } else { "" };
                let path = go_quote(&self.path);
                out.push(self.bare(format!("{path} must validate all the schemas (allOf){none}")));
            }
        }
        if let Some(not) = &checks.not
            && self.plain(value, not, None).errors.is_empty()
        {
            let path = go_quote(&self.path);
            out.push(self.bare(format!("{path} must not validate the schema (not)")));
        }
        out
    }

    fn any_of(&mut self, value: &Value, schemas: &[Node], out: &mut Outcome) {
        let mut best: Option<Outcome> = None;
        for schema in schemas {
            let result = self.plain(value, schema, None);
            if result.errors.is_empty() {
                out.merge(result);
                return;
            }
            if best.as_ref().is_none_or(|best| result.matched > best.matched) {
                best = Some(result);
            }
        }
        let path = go_quote(&self.path);
        out.push(self.bare(format!("{path} must validate at least one schema (anyOf)")));
        out.merge(best.unwrap_or_default());
    }

    fn exactly_one(&mut self, value: &Value, schemas: &[Node], out: &mut Outcome) {
        let (mut best, mut first): (Option<Outcome>, Option<Outcome>) = (None, None);
        let mut valid = 0_usize;
        for schema in schemas {
            let result = self.plain(value, schema, None);
            if result.errors.is_empty() {
                valid += 1;
                best = None;
                first.get_or_insert(result);
            } else if valid == 0 && best.as_ref().is_none_or(|best| result.matched > best.matched) {
                best = Some(result);
            }
        }
        if valid == 1 {
            out.merge(first.unwrap_or_default());
            return;
        }
        let found = match valid {
            0 => "Found none valid".to_owned(),
            n => format!("Found {n} valid alternatives"),
        };
        let path = go_quote(&self.path);
        let text = format!("{path} must validate one and only one schema (oneOf). {found}");
        out.push(self.bare(text));
        out.merge(best.unwrap_or_default());
    }

    fn string(&self, text: &str, node: &Node, out: &mut Outcome) {
        let checks = &node.checks;
        let length = || i64::try_from(text.chars().count()).unwrap_or(i64::MAX);
        let long = checks.max_length.filter(|max| length() > *max);
        let short = checks.min_length.filter(|min| length() < *min);
        if let Some(max) = long {
            let text = format!("{} in body should be at most {max} chars long", self.path);
            let error = Error::too_long(&self.field(""), usize::try_from(max).unwrap_or(0));
            out.push(ValueError { error, text });
        } else if let Some(min) = short {
            let why = format!("should be at least {min} chars long");
            out.push(self.told(Kind::Invalid, text.into(), &why));
        } else if let Some(pattern) = &checks.pattern {
            let source = &pattern.source;
            match pattern.matches(text) {
                Ok(true) => {}
                Ok(false) => {
                    let why = format!("should match '{source}'");
                    out.push(self.told(Kind::Invalid, text.into(), &why));
                }
                Err(error) => {
                    let why = format!("should match '{source}, but pattern is invalid: {error}'");
                    out.push(self.told(Kind::Invalid, text.into(), &why));
                }
            }
        }
        out.matched += 1;
        if let Some(format) = &checks.format
            && let What::Text(check) = format.what
        {
            if !check(text) {
                let why = format!("must be of type {}: {}", format.name, go_quote(text));
                out.push(self.told(Kind::TypeInvalid, text.into(), &why));
            }
            out.matched += 1;
        }
    }

    fn number(&self, value: &Value, num: Num, node: &Node, out: &mut Outcome) {
        let kind = if node.int_or_string { None } else { node.kind };
        let mut found = Vec::new();
        numbers::check(num, kind, &node.checks, &mut found);
        for wrong in found {
            out.push(match wrong {
                Wrong::Value(why) => self.told(Kind::Invalid, value.clone(), &why),
                Wrong::Range(text) => self.bare(text + &self.path),
                Wrong::Factor(factor, number) => {
                    let path = &self.path;
                    let text =
                        format!("factor MultipleOf declared for {path} must be positive: {factor}");
                    let error =
                        Error::invalid(&self.field(""), Value::Number(number), text.as_str());
                    ValueError { error, text }
                }
            });
        }
    }

    fn list(&mut self, list: &[Value], node: &Node, old: Option<&Value>, out: &mut Outcome) {
        let checks = &node.checks;
        if let Some(below) = node.items.as_deref() {
            let before = OldItems::of(old, node);
            for (index, value) in list.iter().enumerate() {
                let end = self.path.len();
                // Writing to a string cannot fail.
                let _ = write!(self.path, "[{index}]");
                let old = before.as_ref().and_then(|items| items.get(value, node));
                let result = self.value(value, below, old);
                out.merge(result);
                self.path.truncate(end);
            }
        }
        let size = i64::try_from(list.len()).unwrap_or(i64::MAX);
        if let Some(min) = checks.min_items.filter(|min| size < *min) {
            let why = format!("should have at least {min} items");
            out.push(self.told(Kind::Invalid, size.into(), &why));
        }
        if let Some(max) = checks.max_items.filter(|max| size > *max) {
            let text = format!("{} in body should have at most {max} items", self.path);
            out.push(ValueError { error: self.too_many(list.len(), max), text });
        }
        if checks.unique_items {
            let mut seen = HashSet::new();
            if !list.iter().all(|item| seen.insert(item.to_string())) {
                out.push(self.told(Kind::Invalid, "".into(), "shouldn't contain duplicates"));
            }
        }
    }

    fn too_many(&self, actual: usize, max: i64) -> Error {
        Error::too_many(&self.field(""), actual, usize::try_from(max).unwrap_or(0))
    }

    fn one_of_values(&self, value: &Value, node: &Node, out: &mut Outcome) {
        let values = &node.checks.values;
        if values.is_empty() || values.allow(value) {
            return;
        }
        let shown: Vec<String> = values
            .iter()
            .map(|value| match value {
                Value::String(text) => text.clone(),
                other => other.to_string(),
            })
            .collect();
        let shown: Vec<&str> = shown.iter().map(String::as_str).collect();
        let text = format!("{} in body should be one of [{}]", self.path, shown.join(" "));
        let error = Error::not_supported(&self.field(""), value.clone(), &shown);
        out.push(ValueError { error, text });
    }

    fn object(
        &mut self,
        map: &Map<String, Value>,
        node: &Node,
        old: Option<&Value>,
        out: &mut Outcome,
    ) {
        let checks = &node.checks;
        let size = i64::try_from(map.len()).unwrap_or(i64::MAX);
        if let Some(min) = checks.min_properties.filter(|min| size < *min) {
            let why = format!("should have at least {min} properties");
            out.push(self.told(Kind::Invalid, size.into(), &why));
        }
        if let Some(max) = checks.max_properties.filter(|max| size > *max) {
            let text = format!("{} in body should have at most {max} properties", self.path);
            out.push(ValueError { error: self.too_many(map.len(), max), text });
        }
        let unspecified =
            map.iter().filter(|(name, _)| !node.properties.contains_key(name.as_str()));
        match &node.additional {
            Some(Additional::Any(false)) => {
                for (name, _) in unspecified {
                    let text = format!("{}.{name} in body is a forbidden property", self.path);
                    let error = Error::invalid(&self.field(""), name.as_str(), text.as_str());
                    out.push(ValueError { error, text });
                }
            }
            Some(Additional::Schema(below)) => {
                for (name, value) in unspecified {
                    let result = self.member(value, name, node, below, old, true);
                    out.merge(result);
                }
            }
            _ => {}
        }
        for (name, below) in &node.properties {
            if let Some(value) = map.get(&**name) {
                let result = self.member(value, name, node, below, old, false);
                out.merge(result);
            }
        }
        for name in checks.required.iter().filter(|name| !map.contains_key(&***name)) {
            let below = format!(".{name}");
            let text = format!("{}{below} in body is required", self.path);
            out.push(ValueError { error: Error::required(&self.field(&below), ""), text });
        }
    }

    fn member(
        &mut self,
        value: &Value,
        name: &str,
        node: &Node,
        below: &Node,
        old: Option<&Value>,
        dotted: bool,
    ) -> Outcome {
        let end = self.path.len();
        // Both objects are converted to one version before the comparison, so a change of these
        // fields is not visible.
        let hidden = end == 0 && matches!(name, "kind" | "apiVersion");
        let old = if hidden { None } else { correlate::field(old, name, node) };
        if dotted || end > 0 {
            self.path.push('.');
        }
        self.path.push_str(name);
        let outcome = self.value(value, below, old);
        self.path.truncate(end);
        outcome
    }
}
