//! The allowed values of `enum`.

use std::collections::HashSet;
use std::ops::Deref;

use serde_json::Value;

use super::numbers::Num;

/// Minimum number of allowed values that are looked up in an index.
const INDEXED_MIN: usize = 32;

/// The values of `enum` in their order. Clients choose both the number of allowed values and the
/// number of values in an object, so the lookup in a large enumeration must not be linear.
#[derive(Debug, Clone, Default)]
pub(crate) struct Enumeration {
    values: Box<[Value]>,
    index: Option<Box<Index>>,
}

#[derive(Debug, Clone, Default)]
struct Index {
    texts: HashSet<Box<str>>,
    ints: HashSet<i64>,
    /// The bits of numbers that are not integers.
    floats: HashSet<u64>,
    /// All other values, encoded as JSON.
    others: HashSet<String>,
}

impl Enumeration {
    pub(super) fn new(values: &[Value]) -> Self {
        let index = || {
            let mut index = Index::default();
            for value in values {
                index.add(value);
            }
            Box::new(index)
        };
        Self { index: (values.len() >= INDEXED_MIN).then(index), values: values.into() }
    }

    /// Whether the enumeration contains a value. Numbers are converted to the type of the allowed
    /// value, as in Go.
    pub(super) fn allow(&self, value: &Value) -> bool {
        match &self.index {
            Some(index) => index.allows(value),
            None => self.values.iter().any(|allowed| is_value(value, allowed)),
        }
    }
}

impl Deref for Enumeration {
    type Target = [Value];

    fn deref(&self) -> &[Value] {
        &self.values
    }
}

/// The bits of a float; negative zero has the bits of zero, since both are equal.
fn bits(float: f64) -> u64 {
    (float + 0.0).to_bits()
}

impl Index {
    fn add(&mut self, value: &Value) {
        match value {
            Value::String(text) => drop(self.texts.insert(text.as_str().into())),
            Value::Number(number) => match Num::of(number) {
                Num::Int(int) => drop(self.ints.insert(int)),
                Num::Float(float) => drop(self.floats.insert(bits(float))),
            },
            other => drop(self.others.insert(other.to_string())),
        }
    }

    fn allows(&self, value: &Value) -> bool {
        match value {
            Value::String(text) => self.texts.contains(text.as_str()),
            Value::Number(number) => match Num::of(number) {
                Num::Int(int) => {
                    self.ints.contains(&int) || self.floats.contains(&bits(int as f64))
                }
                #[allow(
                    clippy::cast_possible_truncation,
                    reason = "Go cuts the value in the same way"
                )]
                Num::Float(float) => {
                    self.ints.contains(&(float as i64)) || self.floats.contains(&bits(float))
                }
            },
            Value::Null => false,
            other => self.others.contains(&other.to_string()),
        }
    }
}

fn is_value(value: &Value, allowed: &Value) -> bool {
    match (value, allowed) {
        (Value::Number(a), Value::Number(b)) => match (Num::of(a), Num::of(b)) {
            (Num::Int(a), Num::Int(b)) => a == b,
            (Num::Int(a), Num::Float(b)) => a as f64 == b,
            #[allow(clippy::cast_possible_truncation, reason = "Go cuts the value in the same way")]
            (Num::Float(a), Num::Int(b)) => a as i64 == b,
            (Num::Float(a), Num::Float(b)) => a == b,
        },
        // Upstream never matches null, even when `enum` contains it.
        _ => !value.is_null() && value == allowed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn an_indexed_enumeration_allows_what_a_comparison_with_each_value_allows() {
        let mut values = vec![
            json!(null),
            json!(true),
            json!("a"),
            json!(""),
            json!(1),
            json!(-7),
            json!(2.5),
            json!(3.0),
            json!(-0.0),
            json!([1, "a"]),
            json!({"a": 1, "b": [2]}),
        ];
        let others = [
            json!(false),
            json!("b"),
            json!(1.0),
            json!(1.5),
            json!(-7.9),
            json!(3),
            json!(0),
            json!(0.0),
            json!(2),
            json!([1]),
            json!({"b": [2], "a": 1}),
            json!(u64::MAX),
        ];
        let asked: Vec<Value> = values.iter().chain(&others).cloned().collect();
        let short = Enumeration::new(&values);
        values.extend((1000..1000 + INDEXED_MIN).map(|n| json!(n)));
        let long = Enumeration::new(&values);
        assert!(short.index.is_none() && long.index.is_some());
        for value in asked {
            assert_eq!(short.allow(&value), long.allow(&value), "{value}");
        }
    }
}
