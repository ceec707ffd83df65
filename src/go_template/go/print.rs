//! `%v` of the package fmt.

use crate::budget::{Budget, MAX_NESTING};
use crate::error::Failure;
use crate::go::{duration, float};
use crate::value::{Class, Value};

/// Text under construction that may not grow over the budget.
pub(crate) struct Out<'a> {
    pub bytes: Vec<u8>,
    budget: &'a mut Budget,
}

impl<'a> Out<'a> {
    pub(crate) fn new(budget: &'a mut Budget) -> Self {
        Self { bytes: Vec::new(), budget }
    }

    /// Appends `text`.
    ///
    /// # Errors
    ///
    /// The text would be larger than the budget allows.
    pub(crate) fn push(&mut self, text: &[u8]) -> Result<(), Failure> {
        if self.bytes.len() + text.len() > self.budget.max_bytes() {
            return self.budget.bytes(usize::MAX);
        }
        self.bytes.extend_from_slice(text);
        Ok(())
    }

    pub(crate) fn budget(&mut self) -> &mut Budget {
        self.budget
    }

    /// Counts the text as a result.
    ///
    /// # Errors
    ///
    /// The budget is used up.
    pub(crate) fn finish(self) -> Result<Vec<u8>, Failure> {
        self.budget.bytes(self.bytes.len())?;
        Ok(self.bytes)
    }
}

/// `fmt.Sprint` of one value.
///
/// # Errors
///
/// The text would be larger than the budget allows.
pub(crate) fn sprint(value: &Value, budget: &mut Budget) -> Result<Value, Failure> {
    if let Value::String(_) | Value::Binary(_) = value {
        return Ok(value.clone());
    }
    let mut out = Out::new(budget);
    write(&mut out, value, 0)?;
    Ok(Value::from_bytes(out.finish()?))
}

fn scalar(value: &Value) -> Option<String> {
    Some(match value {
        Value::Invalid | Value::Nil => "<nil>".into(),
        Value::Bool(value) => value.to_string(),
        Value::Int(value) | Value::Int64(value) => value.to_string(),
        Value::Byte(value) => value.to_string(),
        Value::Uint64(value) => value.to_string(),
        Value::Float(value) => float::display(*value),
        Value::Time(time) => time.text(),
        Value::Duration(nanos) => duration::text(*nanos),
        Value::Object(object) => object.text(),
        _ => return None,
    })
}

/// Appends what `%v` prints.
///
/// # Errors
///
/// The text would be larger than the budget allows.
pub(crate) fn write(out: &mut Out<'_>, value: &Value, depth: usize) -> Result<(), Failure> {
    if depth > MAX_NESTING {
        return Err(Failure::new("a value is nested too deep, or contains itself"));
    }
    out.budget().step(1)?;
    match value {
        Value::String(text) => out.push(text.as_bytes()),
        Value::Binary(bytes) => out.push(bytes),
        Value::Bytes(bytes) => {
            let items: Vec<String> = bytes.iter().map(u8::to_string).collect();
            out.push(format!("[{}]", items.join(" ")).as_bytes())
        }
        Value::List(list) => {
            out.push(b"[")?;
            for (at, item) in list.items.iter().enumerate() {
                if at > 0 {
                    out.push(b" ")?;
                }
                write(out, item, depth + 1)?;
            }
            out.push(b"]")
        }
        Value::Map(map) => {
            out.push(b"map[")?;
            for (at, (key, item)) in map.pairs().iter().enumerate() {
                if at > 0 {
                    out.push(b" ")?;
                }
                out.push(key.as_bytes())?;
                out.push(b":")?;
                write(out, item, depth + 1)?;
            }
            out.push(b"]")
        }
        _ => match scalar(value) {
            Some(text) => out.push(text.as_bytes()),
            None => Ok(()),
        },
    }
}

/// What `%T` prints.
pub(crate) fn type_of(value: &Value) -> &'static str {
    match value {
        Value::Nil | Value::Invalid => "<nil>",
        Value::Map(map) if map.class == Class::Any => "map[string]interface {}",
        _ => value.type_name(),
    }
}
