//! Label selectors in both forms: the string `a=b,c notin (d)` and `metav1.LabelSelector`.

use std::fmt;
use std::sync::Arc;

use serde_json::{Map, Value};
use sorting::CompactSort as _;

use super::SelectorError;
use super::names::{label_key, label_value};
use super::parser;
use crate::field::{Error as FieldError, Path, go_quote};

/// A source of labels from which a value is read without a copy.
pub trait Labels {
    /// Returns the value of a label.
    fn get_label(&self, key: &str) -> Option<&str>;
}

impl Labels for [(Arc<str>, Arc<str>)] {
    fn get_label(&self, key: &str) -> Option<&str> {
        self.binary_search_by(|(k, _)| (**k).cmp(key))
            .ok()
            .and_then(|i| self.get(i))
            .map(|(_, v)| &**v)
    }
}

impl Labels for crate::Object {
    fn get_label(&self, key: &str) -> Option<&str> {
        self.labels.get_label(key)
    }
}

impl Labels for Map<String, Value> {
    fn get_label(&self, key: &str) -> Option<&str> {
        self.get(key).and_then(Value::as_str)
    }
}

impl Labels for std::collections::BTreeMap<String, String> {
    fn get_label(&self, key: &str) -> Option<&str> {
        self.get(key).map(String::as_str)
    }
}

impl Labels for std::collections::HashMap<String, String> {
    fn get_label(&self, key: &str) -> Option<&str> {
        self.get(key).map(String::as_str)
    }
}

/// The operator that compares the value of a label.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operator {
    /// `key=value`.
    Equals,
    /// `key==value`, which equals [`Operator::Equals`] except for its text.
    DoubleEquals,
    /// `key!=value`, which also matches without the label.
    NotEquals,
    /// `key in (…)`.
    In,
    /// `key notin (…)`, which also matches without the label.
    NotIn,
    /// `key`.
    Exists,
    /// `!key`.
    DoesNotExist,
    /// `key>integer`.
    GreaterThan,
    /// `key<integer`.
    LessThan,
}

/// A requirement of a label selector.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Requirement {
    key: Box<str>,
    operator: Operator,
    values: Vec<Box<str>>,
}

impl Requirement {
    /// Creates a valid requirement.
    ///
    /// # Errors
    /// Returns upstream's aggregate text if the key, the number of values or a value is invalid.
    pub fn new(
        key: &str,
        operator: Operator,
        values: Vec<Box<str>>,
    ) -> Result<Self, SelectorError> {
        let mut errors: Vec<FieldError> = Vec::new();
        let problems = label_key(key);
        if !problems.is_empty() {
            errors.push(FieldError::invalid(&Path::new("key"), key, problems.join("; ")));
        }
        let path = Path::new("values");
        let shown = || Value::Array(values.iter().map(|v| Value::from(&**v)).collect());
        match operator {
            Operator::In | Operator::NotIn if values.is_empty() => {
                errors.push(FieldError::invalid(
                    &path,
                    shown(),
                    "for 'in', 'notin' operators, values set can't be empty",
                ));
            }
            Operator::Equals | Operator::DoubleEquals | Operator::NotEquals
                if values.len() != 1 =>
            {
                errors.push(FieldError::invalid(
                    &path,
                    shown(),
                    "exact-match compatibility requires one single value",
                ));
            }
            Operator::Exists | Operator::DoesNotExist if !values.is_empty() => {
                errors.push(FieldError::invalid(
                    &path,
                    shown(),
                    "values set must be empty for exists and does not exist",
                ));
            }
            Operator::GreaterThan | Operator::LessThan => {
                if values.len() != 1 {
                    errors.push(FieldError::invalid(
                        &path,
                        shown(),
                        "for 'Gt', 'Lt' operators, exactly one value is required",
                    ));
                }
                for (i, value) in values.iter().enumerate() {
                    if value.parse::<i64>().is_err() {
                        errors.push(FieldError::invalid(
                            &path.index(i),
                            &**value,
                            "for 'Gt', 'Lt' operators, the value must be an integer",
                        ));
                    }
                }
            }
            _ => {}
        }
        for (i, value) in values.iter().enumerate() {
            let problems = label_value(value);
            if !problems.is_empty() {
                errors.push(FieldError::invalid(
                    &path.index(i).key(key),
                    &**value,
                    problems.join("; "),
                ));
            }
        }
        match errors.as_slice() {
            [] => Ok(Self { key: key.into(), operator, values }),
            [one] => Err(SelectorError(one.to_string())),
            many => Err(SelectorError(format!(
                "[{}]",
                many.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
            ))),
        }
    }

    /// Returns the key of the label.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// Returns the operator.
    pub fn operator(&self) -> Operator {
        self.operator
    }

    /// Returns the values in their original form.
    pub fn values(&self) -> impl Iterator<Item = &str> {
        self.values.iter().map(|v| &**v)
    }

    fn matches<L: Labels + ?Sized>(&self, labels: &L) -> bool {
        let value = labels.get_label(&self.key);
        let listed = |v: &str| self.values.iter().any(|x| **x == *v);
        match self.operator {
            Operator::Equals | Operator::DoubleEquals | Operator::In => value.is_some_and(listed),
            Operator::NotEquals | Operator::NotIn => !value.is_some_and(listed),
            Operator::Exists => value.is_some(),
            Operator::DoesNotExist => value.is_none(),
            Operator::GreaterThan | Operator::LessThan => {
                let bound = self.values.first().and_then(|v| v.parse::<i64>().ok());
                let (Some(have), Some(bound)) = (value.and_then(|v| v.parse::<i64>().ok()), bound)
                else {
                    return false;
                };
                if self.operator == Operator::GreaterThan { have > bound } else { have < bound }
            }
        }
    }
}

impl fmt::Display for Requirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.operator == Operator::DoesNotExist {
            f.write_str("!")?;
        }
        f.write_str(&self.key)?;
        let (before, after) = match self.operator {
            Operator::Equals => ("=", ""),
            Operator::DoubleEquals => ("==", ""),
            Operator::NotEquals => ("!=", ""),
            Operator::GreaterThan => (">", ""),
            Operator::LessThan => ("<", ""),
            Operator::In => (" in (", ")"),
            Operator::NotIn => (" notin (", ")"),
            Operator::Exists | Operator::DoesNotExist => return Ok(()),
        };
        let mut values: Vec<&str> = self.values().collect();
        values.compact_sort();
        write!(f, "{before}{}{after}", values.join(","))
    }
}

/// A label selector. Labels must match all requirements; without requirements it selects every
/// object.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LabelSelector {
    requirements: Vec<Requirement>,
    nothing: bool,
}

impl LabelSelector {
    /// Returns the selector that matches every object.
    pub fn everything() -> Self {
        Self::default()
    }

    /// Returns the selector that matches no object, like an absent `metav1.LabelSelector`.
    pub fn nothing() -> Self {
        Self { requirements: Vec::new(), nothing: true }
    }

    /// Parses the string form, such as `a=b,c!=d,e in (x,y),!f,g>1`.
    ///
    /// # Errors
    /// Returns upstream's parse error.
    pub fn parse(text: &str) -> Result<Self, SelectorError> {
        let mut requirements = parser::parse(text)?;
        requirements.compact_sort_by(|a, b| a.key.cmp(&b.key));
        Ok(Self { requirements, nothing: false })
    }

    /// Reads a `metav1.LabelSelector`. `None` and null select no object; an empty object selects
    /// every object.
    ///
    /// # Errors
    /// Returns upstream's text for an unknown operator or an invalid requirement, and a description
    /// if the value has a different shape.
    pub fn from_value(value: Option<&Value>) -> Result<Self, SelectorError> {
        let Some(value) = value.filter(|v| !v.is_null()) else { return Ok(Self::nothing()) };
        let bad =
            |what: &str| SelectorError(format!("the label selector's {what} has the wrong type"));
        let map = value.as_object().ok_or_else(|| bad("value"))?;
        let mut requirements = Vec::new();
        if let Some(labels) = map.get("matchLabels").filter(|v| !v.is_null()) {
            for (key, value) in labels.as_object().ok_or_else(|| bad("matchLabels"))? {
                let value = value.as_str().ok_or_else(|| bad("matchLabels"))?;
                requirements.push(Requirement::new(key, Operator::Equals, vec![value.into()])?);
            }
        }
        if let Some(expressions) = map.get("matchExpressions").filter(|v| !v.is_null()) {
            for expression in expressions.as_array().ok_or_else(|| bad("matchExpressions"))? {
                requirements.push(expression_requirement(expression)?);
            }
        }
        requirements.compact_sort_by(|a, b| a.key.cmp(&b.key));
        Ok(Self { requirements, nothing: false })
    }

    /// Creates a selector that requires every label of a map, without validation, as in the
    /// selectors of services and replication controllers.
    pub fn from_map(labels: &Map<String, Value>) -> Self {
        let requirements = labels
            .iter()
            .filter_map(|(key, value)| Some((key, value.as_str()?)))
            .map(|(key, value)| Requirement {
                key: key.as_str().into(),
                operator: Operator::Equals,
                values: vec![value.into()],
            })
            .collect();
        Self { requirements, nothing: false }
    }

    /// Returns whether the selector matches the labels.
    pub fn matches<L: Labels + ?Sized>(&self, labels: &L) -> bool {
        !self.nothing && self.requirements.iter().all(|r| r.matches(labels))
    }

    /// Returns whether the selector matches every object.
    pub fn is_empty(&self) -> bool {
        !self.nothing && self.requirements.is_empty()
    }

    /// Returns whether the selector matches no object.
    pub fn is_nothing(&self) -> bool {
        self.nothing
    }

    /// Returns the requirements, sorted by key.
    pub fn requirements(&self) -> &[Requirement] {
        &self.requirements
    }

    /// Returns the value that the selector requires for a label, if it requires exactly one.
    pub fn exact(&self, key: &str) -> Option<&str> {
        let requirement = self.requirements.iter().find(|r| *r.key == *key)?;
        match (requirement.operator, requirement.values.as_slice()) {
            (Operator::Equals | Operator::DoubleEquals | Operator::In, [one]) => Some(one),
            _ => None,
        }
    }
}

impl fmt::Display for LabelSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, requirement) in self.requirements.iter().enumerate() {
            if i > 0 {
                f.write_str(",")?;
            }
            requirement.fmt(f)?;
        }
        Ok(())
    }
}

fn expression_requirement(expression: &Value) -> Result<Requirement, SelectorError> {
    let text = |name: &str| expression.get(name).and_then(Value::as_str).unwrap_or("");
    let operator = match text("operator") {
        "In" => Operator::In,
        "NotIn" => Operator::NotIn,
        "Exists" => Operator::Exists,
        "DoesNotExist" => Operator::DoesNotExist,
        other => {
            return Err(SelectorError(format!(
                "{} is not a valid label selector operator",
                go_quote(other)
            )));
        }
    };
    let values = match expression.get("values") {
        None | Some(Value::Null) => Vec::new(),
        Some(Value::Array(items)) => {
            items.iter().map(|v| v.as_str().map(Box::from)).collect::<Option<Vec<_>>>().ok_or_else(
                || SelectorError("the label selector's values have the wrong type".into()),
            )?
        }
        Some(_) => {
            return Err(SelectorError("the label selector's values have the wrong type".into()));
        }
    };
    Requirement::new(text("key"), operator, values)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn labels(value: &Value) -> &Map<String, Value> {
        value.as_object().unwrap()
    }

    #[test]
    fn prints_the_normal_form() {
        for (text, normal) in [
            ("x in (foo,,baz),y,z notin ()", "x in (,baz,foo),y,z notin ()"),
            ("b=2, a = 1", "a=1,b=2"),
            ("a==b,!c", "a==b,!c"),
            ("n>1,m<2", "m<2,n>1"),
            ("x=", "x="),
            ("in in (in)", "in in (in)"),
            ("", ""),
        ] {
            assert_eq!(LabelSelector::parse(text).unwrap().to_string(), normal, "{text}");
        }
    }

    #[test]
    fn refuses_with_upstreams_texts() {
        let bad_value = "unable to parse requirement: values[0][t]: Invalid value: \"-bad-\": a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')";
        for (text, error) in [
            ("t in (x", "unable to parse requirement: found '', expected: ',' or ')'"),
            ("t==-bad-", bad_value),
            ("a,", "found '', expected: identifier after ','"),
            ("=a", "found '=', expected: !, identifier, or 'end of string'"),
            (
                "a b",
                "unable to parse requirement: found 'b', expected: in, notin, =, ==, !=, gt, lt",
            ),
            (
                "a>x",
                "unable to parse requirement: values[0]: Invalid value: \"x\": for 'Gt', 'Lt' operators, the value must be an integer",
            ),
            ("a in b", "unable to parse requirement: found 'b' expected: '('"),
        ] {
            assert_eq!(LabelSelector::parse(text).unwrap_err().to_string(), error, "{text}");
        }
    }

    #[test]
    fn matches_as_upstream_does() {
        let have = json!({"t":"x","n":"2"});
        for (text, expected) in [
            ("t=x", true),
            ("t notin (x),n", false),
            ("!z", true),
            ("n>1", true),
            ("n>2", false),
            ("z!=1", true),
            ("z<1", false),
            ("t in (x,y)", true),
            ("", true),
        ] {
            assert_eq!(
                LabelSelector::parse(text).unwrap().matches(labels(&have)),
                expected,
                "{text}"
            );
        }
    }

    #[test]
    fn reads_the_object_form() {
        let s = LabelSelector::from_value(Some(
            &json!({"matchLabels":{"b":"c"},"matchExpressions":[{"key":"a","operator":"Exists"}]}),
        ))
        .unwrap();
        assert_eq!(s.to_string(), "a,b=c");
        assert_eq!(s.exact("b"), Some("c"));
        assert!(LabelSelector::from_value(Some(&json!({}))).unwrap().is_empty());
        assert!(!LabelSelector::from_value(None).unwrap().matches(labels(&json!({}))));
        let e = LabelSelector::from_value(Some(
            &json!({"matchExpressions":[{"key":"a","operator":"Like"}]}),
        ))
        .unwrap_err();
        assert_eq!(e.to_string(), "\"Like\" is not a valid label selector operator");
    }

    #[test]
    fn finds_labels_of_an_object_by_binary_search() {
        let o = crate::Object::from_value(
            json!({"metadata":{"name":"a","labels":{"b":"1","a":"2","c":"3"}}}),
        )
        .unwrap();
        assert!(LabelSelector::parse("a=2,b=1,c=3,!d").unwrap().matches(&o));
    }
}
