//! JSON schemas of values (`values.schema.json`): the keywords of drafts 4 to 2020-12.
//!
//! What cannot be checked is refused, never skipped: references to other documents,
//! `unevaluatedProperties`, `unevaluatedItems`, `$dynamicRef` and `$recursiveRef`.

use regex::Regex;
use serde_json::{Map, Value};

use super::json::{is_type, same, type_name};
use super::reference::{find_anchor, percent_decoded};
use super::{Values, format};
use crate::chart::Chart;

/// The deepest nesting of schemas during a check.
const DEPTH_MAX: usize = 128;
/// The most steps of a check.
const STEPS_MAX: usize = 2_000_000;
/// The most violations that a message lists.
const VIOLATIONS_MAX: usize = 20;

/// Keywords that assert and that this validator does not know.
const UNSUPPORTED: &[&str] =
    &["unevaluatedProperties", "unevaluatedItems", "$dynamicRef", "$recursiveRef"];

/// Values do not satisfy a schema.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SchemaError {
    /// The schema cannot be used.
    #[error("values.schema.json of chart {chart} cannot be checked: {reason}")]
    Unusable {
        /// Name of the chart.
        chart: String,
        /// What is wrong or not supported.
        reason: String,
    },
    /// Violations, one per line.
    #[error(
        "values don't meet the specifications of the schema(s) in the following chart(s):\n{0}"
    )]
    Violations(String),
}

/// Checks the values of a chart and of its subcharts.
///
/// # Errors
/// A schema cannot be used or is violated.
pub fn check(chart: &Chart, values: &Values) -> Result<(), SchemaError> {
    let mut report = String::new();
    check_chart(chart, values, &mut report)?;
    if report.is_empty() { Ok(()) } else { Err(SchemaError::Violations(report)) }
}

fn check_chart(chart: &Chart, values: &Values, report: &mut String) -> Result<(), SchemaError> {
    if let Some(text) = &chart.schema {
        let unusable =
            |reason: String| SchemaError::Unusable { chart: chart.name().to_owned(), reason };
        let schema: Value =
            serde_json::from_slice(text).map_err(|e| unusable(format!("it is not JSON: {e}")))?;
        let violations =
            validate(&schema, &Value::Object(values.clone())).map_err(|e| unusable(e.0))?;
        if !violations.is_empty() {
            report.push_str(&format!("{}:\n", chart.name()));
            for violation in violations.iter().take(VIOLATIONS_MAX) {
                report.push_str(&format!("- {violation}\n"));
            }
        }
    }
    for subchart in &chart.dependencies {
        if let Some(Value::Object(own)) = values.get(subchart.name()) {
            check_chart(subchart, own, report)?;
        }
    }
    Ok(())
}

/// The violations, each with the place of the value; an error says why the schema cannot be used.
fn validate(schema: &Value, value: &Value) -> Result<Vec<String>, Reason> {
    let asserts_formats = match schema.get("$schema").and_then(Value::as_str) {
        Some(draft) => !(draft.contains("2019-09") || draft.contains("2020-12")),
        None => false,
    };
    let mut check = Check { root: schema, asserts_formats, steps: 0, violations: Vec::new() };
    check.value(schema, value, &ValueLocation { path: String::new(), depth: 0 })?;
    Ok(check.violations)
}

struct Check<'a> {
    root: &'a Value,
    asserts_formats: bool,
    steps: usize,
    violations: Vec<String>,
}

struct ValueLocation {
    path: String,
    depth: usize,
}

impl ValueLocation {
    fn inner(&self, part: &str) -> Self {
        Self { path: format!("{}/{part}", self.path), depth: self.depth + 1 }
    }

    fn same(&self) -> Self {
        Self { path: self.path.clone(), depth: self.depth + 1 }
    }
}

/// Why a schema cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
struct Reason(String);

impl From<&str> for Reason {
    fn from(text: &str) -> Self {
        Self(text.to_owned())
    }
}

impl From<String> for Reason {
    fn from(text: String) -> Self {
        Self(text)
    }
}

type Checked = Result<(), Reason>;

impl<'a> Check<'a> {
    fn fail(&mut self, place: &ValueLocation, text: impl std::fmt::Display) {
        self.violations.push(format!("at '{}': {text}", place.path));
    }

    fn value(&mut self, schema: &'a Value, value: &Value, place: &ValueLocation) -> Checked {
        self.steps += 1;
        if self.steps > STEPS_MAX || place.depth > DEPTH_MAX {
            return Err("it needs too many steps; it may refer to itself".into());
        }
        let keywords = match schema {
            Value::Bool(true) => return Ok(()),
            Value::Bool(false) => {
                self.fail(place, "false schema");
                return Ok(());
            }
            Value::Object(keywords) => keywords,
            _ => return Err(format!("a schema at '{}' is not an object", place.path).into()),
        };
        if let Some(name) = UNSUPPORTED.iter().find(|name| keywords.contains_key(**name)) {
            return Err(format!("the keyword {name} is not supported").into());
        }
        if let Some(reference) = keywords.get("$ref") {
            let target = self.resolve(reference)?;
            self.value(target, value, &place.same())?;
        }
        self.any_type(keywords, value, place)?;
        match value {
            Value::Object(object) => self.object(keywords, object, place)?,
            Value::Array(items) => self.array(keywords, items, place)?,
            Value::String(text) => self.text(keywords, text, place)?,
            Value::Number(number) => self.number(keywords, number, place),
            Value::Null | Value::Bool(_) => {}
        }
        self.combined(keywords, value, place)
    }

    /// The target of a reference inside the document.
    fn resolve(&self, reference: &Value) -> Result<&'a Value, Reason> {
        let text = reference.as_str().unwrap_or_default();
        let pointer = text.strip_prefix('#').ok_or_else(|| {
            format!("the reference {text:?} leads to another document, which is not supported")
        })?;
        let decoded = percent_decoded(pointer);
        if let Some(target) = self.root.pointer(&decoded) {
            return Ok(target);
        }
        let anchored = || find_anchor(self.root, &decoded, 0);
        anchored().ok_or_else(|| format!("the reference {text:?} leads nowhere").into())
    }

    fn any_type(
        &mut self,
        keywords: &'a Map<String, Value>,
        value: &Value,
        place: &ValueLocation,
    ) -> Checked {
        if let Some(types) = keywords.get("type") {
            let wanted: Vec<&str> = match types {
                Value::String(one) => vec![one],
                Value::Array(several) => several.iter().filter_map(Value::as_str).collect(),
                _ => return Err("the keyword type is neither a text nor a list".into()),
            };
            if !wanted.iter().any(|name| is_type(value, name)) {
                let want = wanted.join(" or ");
                self.fail(place, format!("got {}, want {want}", type_name(value)));
            }
        }
        if let Some(Value::Array(allowed)) = keywords.get("enum")
            && !allowed.iter().any(|one| same(one, value))
        {
            let all: Vec<String> =
                allowed.iter().map(|one| one.to_string().replace('"', "'")).collect();
            self.fail(place, format!("value must be one of {}", all.join(", ")));
        }
        if let Some(constant) = keywords.get("const").filter(|constant| !same(constant, value)) {
            self.fail(place, format!("value must be {constant}"));
        }
        Ok(())
    }

    fn combined(
        &mut self,
        keywords: &'a Map<String, Value>,
        value: &Value,
        place: &ValueLocation,
    ) -> Checked {
        for schema in list(keywords, "allOf") {
            self.value(schema, value, &place.same())?;
        }
        if keywords.contains_key("anyOf") {
            let mut matched = false;
            for schema in list(keywords, "anyOf") {
                matched |= self.holds(schema, value, place)?;
            }
            if !matched {
                self.fail(place, "'anyOf' failed");
            }
        }
        if keywords.contains_key("oneOf") {
            let mut matches = 0;
            for schema in list(keywords, "oneOf") {
                matches += usize::from(self.holds(schema, value, place)?);
            }
            match matches {
                1 => {}
                0 => self.fail(place, "'oneOf' failed, none matched"),
                _ => self.fail(place, "'oneOf' failed, several subschemas matched"),
            }
        }
        if let Some(schema) = keywords.get("not")
            && self.holds(schema, value, place)?
        {
            self.fail(place, "'not' failed");
        }
        if let Some(condition) = keywords.get("if") {
            let branch = if self.holds(condition, value, place)? { "then" } else { "else" };
            if let Some(schema) = keywords.get(branch) {
                self.value(schema, value, &place.same())?;
            }
        }
        Ok(())
    }

    fn holds(
        &mut self,
        schema: &'a Value,
        value: &Value,
        place: &ValueLocation,
    ) -> Result<bool, Reason> {
        let before = self.violations.len();
        self.value(schema, value, &place.same())?;
        let holds = self.violations.len() == before;
        self.violations.truncate(before);
        Ok(holds)
    }

    fn object(
        &mut self,
        keywords: &'a Map<String, Value>,
        object: &Map<String, Value>,
        place: &ValueLocation,
    ) -> Checked {
        let missing = |name: &&Value| name.as_str().is_some_and(|n| !object.contains_key(n));
        for name in list(keywords, "required").iter().filter(missing) {
            self.fail(place, format!("missing property {name}").replace('"', "'"));
        }
        self.count(keywords, ["minProperties", "maxProperties"], object.len(), place);
        let properties = keywords.get("properties").and_then(Value::as_object);
        let patterns = keywords.get("patternProperties").and_then(Value::as_object);
        let additional = keywords.get("additionalProperties");
        for (key, value) in object {
            let inner = place.inner(key);
            let mut is_known = false;
            if let Some(schema) = properties.and_then(|properties| properties.get(key)) {
                is_known = true;
                self.value(schema, value, &inner)?;
            }
            for (pattern, schema) in patterns.into_iter().flatten() {
                if compiled(pattern)?.is_match(key) {
                    is_known = true;
                    self.value(schema, value, &inner)?;
                }
            }
            match additional.filter(|_| !is_known) {
                Some(Value::Bool(false)) => {
                    self.fail(place, format!("additional properties '{key}' not allowed"));
                }
                Some(schema) => self.value(schema, value, &inner)?,
                None => {}
            }
            if let Some(schema) = keywords.get("propertyNames") {
                self.value(schema, &Value::String(key.clone()), &inner)?;
            }
        }
        self.dependents(keywords, object, place)
    }

    fn dependents(
        &mut self,
        keywords: &'a Map<String, Value>,
        object: &Map<String, Value>,
        place: &ValueLocation,
    ) -> Checked {
        for keyword in ["dependencies", "dependentRequired", "dependentSchemas"] {
            let all = keywords.get(keyword).and_then(Value::as_object).into_iter().flatten();
            for (_, wanted) in all.filter(|(key, _)| object.contains_key(*key)) {
                let Value::Array(names) = wanted else {
                    self.value(wanted, &Value::Object(object.clone()), &place.same())?;
                    continue;
                };
                let absent = |n: &&str| !object.contains_key(*n);
                for name in names.iter().filter_map(Value::as_str).filter(absent) {
                    self.fail(place, format!("properties '{name}' required"));
                }
            }
        }
        Ok(())
    }

    fn array(
        &mut self,
        keywords: &'a Map<String, Value>,
        items: &[Value],
        place: &ValueLocation,
    ) -> Checked {
        self.count(keywords, ["minItems", "maxItems"], items.len(), place);
        let (tuple, rest) = match (keywords.get("prefixItems"), keywords.get("items")) {
            (Some(Value::Array(tuple)), rest) => (tuple.as_slice(), rest),
            (None, Some(Value::Array(tuple))) => {
                (tuple.as_slice(), keywords.get("additionalItems"))
            }
            (_, rest) => (&[][..], rest),
        };
        for (at, item) in items.iter().enumerate() {
            let inner = place.inner(&at.to_string());
            if let Some(schema) = tuple.get(at).or(rest) {
                self.value(schema, item, &inner)?;
            }
        }
        if keywords.get("uniqueItems") == Some(&Value::Bool(true)) {
            let is_repeated = |(at, item): (usize, &Value)| {
                items.iter().take(at).any(|earlier| same(earlier, item))
            };
            self.steps += items.len().saturating_mul(items.len()) / 2;
            if self.steps <= STEPS_MAX && items.iter().enumerate().any(is_repeated) {
                self.fail(place, "items are not unique");
            }
        }
        if let Some(schema) = keywords.get("contains") {
            let mut matches = 0;
            for item in items {
                matches += usize::from(self.holds(schema, item, place)?);
            }
            let min = size(keywords, "minContains").unwrap_or(1);
            let max = size(keywords, "maxContains").unwrap_or(usize::MAX);
            if !(min..=max).contains(&matches) {
                self.fail(place, "'contains' failed");
            }
        }
        Ok(())
    }

    fn text(
        &mut self,
        keywords: &'a Map<String, Value>,
        text: &str,
        place: &ValueLocation,
    ) -> Checked {
        self.count(keywords, ["minLength", "maxLength"], text.chars().count(), place);
        if let Some(pattern) = keywords.get("pattern").and_then(Value::as_str)
            && !compiled(pattern)?.is_match(text)
        {
            self.fail(place, format!("'{text}' does not match pattern '{pattern}'"));
        }
        if let Some(name) = keywords.get("format").and_then(Value::as_str)
            && self.asserts_formats
            && !format::matches(name, text)
        {
            self.fail(place, format!("'{text}' is not valid {name}"));
        }
        Ok(())
    }

    fn number(
        &mut self,
        keywords: &'a Map<String, Value>,
        number: &serde_json::Number,
        place: &ValueLocation,
    ) {
        let Some(got) = number.as_f64() else { return };
        let limit = |name: &str| keywords.get(name).and_then(Value::as_f64);
        let is_strict = |name: &str| keywords.get(name) == Some(&Value::Bool(true));
        if let Some(min) = limit("minimum")
            && (got < min || is_strict("exclusiveMinimum") && got <= min)
        {
            self.fail(place, format!("minimum: got {got}, want {min}"));
        }
        if let Some(max) = limit("maximum")
            && (got > max || is_strict("exclusiveMaximum") && got >= max)
        {
            self.fail(place, format!("maximum: got {got}, want {max}"));
        }
        if let Some(min) = limit("exclusiveMinimum").filter(|min| got <= *min) {
            self.fail(place, format!("exclusiveMinimum: got {got}, want {min}"));
        }
        if let Some(max) = limit("exclusiveMaximum").filter(|max| got >= *max) {
            self.fail(place, format!("exclusiveMaximum: got {got}, want {max}"));
        }
        if let Some(step) = limit("multipleOf").filter(|step| *step > 0.0) {
            let quotient = got / step;
            if (quotient - quotient.round()).abs() > 1e-9 {
                self.fail(place, format!("multipleOf: got {got}, want {step}"));
            }
        }
    }

    fn count(
        &mut self,
        keywords: &Map<String, Value>,
        [min, max]: [&str; 2],
        got: usize,
        place: &ValueLocation,
    ) {
        if let Some(want) = size(keywords, min).filter(|want| got < *want) {
            self.fail(place, format!("{min}: got {got}, want {want}"));
        }
        if let Some(want) = size(keywords, max).filter(|want| got > *want) {
            self.fail(place, format!("{max}: got {got}, want {want}"));
        }
    }
}

fn list<'a>(keywords: &'a Map<String, Value>, name: &str) -> &'a [Value] {
    keywords.get(name).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

fn size(keywords: &Map<String, Value>, name: &str) -> Option<usize> {
    keywords.get(name).and_then(Value::as_u64).and_then(|n| usize::try_from(n).ok())
}

fn compiled(pattern: &str) -> Result<Regex, Reason> {
    Regex::new(pattern).map_err(|_| format!("the pattern {pattern:?} is not supported").into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn values_are_checked_by_keyword() {
        for (schema, value, want) in [
            (json!({"type": "object"}), json!({}), ""),
            (json!({"properties": {"a": {"type": "integer"}}}), json!({"a": 1.0}), ""),
            (
                json!({"properties": {"a": {"type": "integer"}}}),
                json!({"a": "x"}),
                "at '/a': got string, want integer",
            ),
            (json!({"required": ["a"]}), json!({}), "at '': missing property 'a'"),
            (
                json!({"additionalProperties": false, "properties": {"a": {}}}),
                json!({"b": 1}),
                "at '': additional properties 'b' not allowed",
            ),
            (
                json!({"properties": {"a": {"enum": ["x", "y"]}}}),
                json!({"a": "z"}),
                "at '/a': value must be one of 'x', 'y'",
            ),
            (
                json!({"properties": {"a": {"minimum": 1, "maximum": 5}}}),
                json!({"a": 7}),
                "at '/a': maximum: got 7, want 5",
            ),
            (
                json!({"properties": {"a": {"$ref": "#/$defs/s"}},
                    "$defs": {"s": {"type": "string"}}}),
                json!({"a": 1}),
                "at '/a': got number, want string",
            ),
            (
                json!({"oneOf": [{"required": ["a"]}, {"required": ["b"]}]}),
                json!({"a": 1, "b": 2}),
                "at '': 'oneOf' failed, several subschemas matched",
            ),
            (
                json!({"if": {"required": ["a"]}, "then": {"required": ["b"]}}),
                json!({"a": 1}),
                "at '': missing property 'b'",
            ),
            (
                json!({"properties": {"a": {"pattern": "^x"}}}),
                json!({"a": "y"}),
                "at '/a': 'y' does not match pattern '^x'",
            ),
            (
                json!({"properties": {"l": {"items": {"type": "string"}, "minItems": 2}}}),
                json!({"l": [1]}),
                "at '/l': minItems: got 1, want 2|at '/l/0': got number, want string",
            ),
            (
                json!({"$schema": "http://json-schema.org/draft-07/schema#",
                "properties": {"a": {"format": "ipv4"}}}),
                json!({"a": "x"}),
                "at '/a': 'x' is not valid ipv4",
            ),
        ] {
            let found = validate(&schema, &value).unwrap().join("|");
            assert_eq!(found, want, "{schema} {value}");
        }
    }

    #[test]
    fn what_cannot_be_checked_is_refused_by_name() {
        for (schema, want) in [
            (json!({"$ref": "https://example.com/x.json"}), "another document"),
            (json!({"unevaluatedProperties": false}), "unevaluatedProperties"),
            (json!({"$ref": "#"}), "refer to itself"),
            (json!({"$ref": "#/no"}), "leads nowhere"),
        ] {
            let error = validate(&schema, &json!({})).unwrap_err();
            assert!(error.0.contains(want), "{error}");
        }
    }
}
