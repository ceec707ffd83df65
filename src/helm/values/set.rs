//! `--set` and `--set-string` expressions (`pkg/strvals` of Helm).

use std::iter::Peekable;
use std::str::Chars;

use serde_json::Value;

use super::Values;

/// The highest index of a list (`MaxIndex`).
const INDEX_MAX: usize = 65_536;
/// The deepest nesting of names (`MaxNestedNameLevel`).
const DEPTH_MAX: usize = 30;

/// An expression cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SetError {
    /// A name without a value.
    #[error("key {0:?} has no value")]
    NoValue(String),
    /// An index that is not a number or too large.
    #[error("error parsing index {0:?}: it is not a number up to {INDEX_MAX}")]
    Index(String),
    /// Text after an index.
    #[error("unexpected data at end of array index: {0:?}")]
    AfterIndex(String),
    /// A list without an end.
    #[error("list must terminate with '}}'")]
    OpenList,
    /// Names in names without end.
    #[error(
        "value name nested level is greater than maximum supported nested level of {DEPTH_MAX}"
    )]
    Depth,
    /// A name inside something that is not a mapping, or an index of something that is no list.
    #[error("unable to parse key: {0:?} already has a value of another type")]
    Type(String),
}

/// Applies `NAME=VALUE[,NAME=VALUE...]` to values. With `strings`, values are not converted.
///
/// # Errors
/// The expression cannot be read, or contradicts the values.
pub fn apply(expression: &str, strings: bool, values: &mut Values) -> Result<(), SetError> {
    let mut parser = Parser { input: expression.chars().peekable(), strings };
    while parser.input.peek().is_some() {
        parser.key(values, 0)?;
    }
    Ok(())
}

struct Parser<'a> {
    input: Peekable<Chars<'a>>,
    strings: bool,
}

impl Parser<'_> {
    /// Reads up to one of the characters, which is consumed; a backslash keeps the next one.
    fn until(&mut self, stop: &[char]) -> (String, Option<char>) {
        let mut text = String::new();
        while let Some(c) = self.input.next() {
            if stop.contains(&c) {
                return (text, Some(c));
            }
            if c == '\\' {
                text.extend(self.input.next());
            } else {
                text.push(c);
            }
        }
        (text, None)
    }

    fn key(&mut self, values: &mut Values, depth: usize) -> Result<(), SetError> {
        let (name, stop) = self.until(&['=', '[', ',', '.']);
        match stop {
            None if name.is_empty() => Ok(()),
            None | Some(',') => Err(SetError::NoValue(name)),
            Some('[') => {
                let index = self.index()?;
                let list = values.entry(name.clone()).or_insert_with(|| Value::Array(Vec::new()));
                let Value::Array(list) = list else { return Err(SetError::Type(name)) };
                self.item(list, index, depth)
            }
            Some('=') => {
                let value = self.value()?;
                if !name.is_empty() {
                    values.insert(name, value);
                }
                Ok(())
            }
            Some(_) => {
                if depth >= DEPTH_MAX {
                    return Err(SetError::Depth);
                }
                let is_new = !values.contains_key(&name);
                let inner = values.entry(name.clone()).or_insert(Value::Object(Values::new()));
                if inner.is_null() {
                    *inner = Value::Object(Values::new());
                }
                let Value::Object(inner) = inner else { return Err(SetError::Type(name)) };
                self.key(inner, depth + 1)?;
                if is_new && inner.is_empty() {
                    return Err(SetError::NoValue(name));
                }
                Ok(())
            }
        }
    }

    fn index(&mut self) -> Result<usize, SetError> {
        let (text, _) = self.until(&[']']);
        let index = text.parse().ok().filter(|index| *index <= INDEX_MAX);
        index.ok_or(SetError::Index(text))
    }

    fn item(&mut self, list: &mut Vec<Value>, at: usize, depth: usize) -> Result<(), SetError> {
        if depth >= DEPTH_MAX {
            return Err(SetError::Depth);
        }
        let (text, stop) = self.until(&['[', '.', '=']);
        if !text.is_empty() {
            return Err(SetError::AfterIndex(text));
        }
        if list.len() <= at {
            list.resize(at + 1, Value::Null);
        }
        let Some(slot) = list.get_mut(at) else { return Err(SetError::Index(at.to_string())) };
        match stop {
            Some('=') => *slot = self.value()?,
            Some('[') => {
                let inner = self.index()?;
                if !slot.is_array() {
                    *slot = Value::Array(Vec::new());
                }
                if let Value::Array(nested) = slot {
                    self.item(nested, inner, depth + 1)?;
                }
            }
            Some(_) => {
                if !slot.is_object() {
                    *slot = Value::Object(Values::new());
                }
                if let Value::Object(nested) = slot {
                    self.key(nested, depth + 1)?;
                }
            }
            None => return Err(SetError::NoValue(format!("[{at}]"))),
        }
        Ok(())
    }

    fn value(&mut self) -> Result<Value, SetError> {
        if self.input.peek() != Some(&'{') {
            let (text, _) = self.until(&[',']);
            return Ok(self.typed(text));
        }
        self.input.next();
        let mut list = Vec::new();
        loop {
            let (text, stop) = self.until(&[',', '}']);
            match stop {
                None => return Err(SetError::OpenList),
                Some('}') => {
                    if !(text.is_empty() && list.is_empty()) || self.strings {
                        list.push(self.typed(text));
                    } else {
                        list.push(Value::String(text));
                    }
                    if self.input.peek() == Some(&',') {
                        self.input.next();
                    }
                    return Ok(Value::Array(list));
                }
                Some(_) => list.push(self.typed(text)),
            }
        }
    }

    /// `true`, `false`, `null` and integers, unless values are strings.
    fn typed(&self, text: String) -> Value {
        if self.strings {
            return Value::String(text);
        }
        match text.to_ascii_lowercase().as_str() {
            "true" => Value::Bool(true),
            "false" => Value::Bool(false),
            "null" => Value::Null,
            "0" => Value::from(0),
            _ if text.starts_with('0') => Value::String(text),
            _ => text.parse::<i64>().map_or(Value::String(text), Value::from),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn expressions_set_typed_values() {
        // From pkg/strvals/parser_test.go.
        for (text, strings, want) in [
            ("name1=null,f=false,t=true", false, json!({"name1": null, "f": false, "t": true})),
            ("name1=one\\,two,name2=a", false, json!({"name1": "one,two", "name2": "a"})),
            ("a.b.c=1,a.b.d=01", false, json!({"a": {"b": {"c": 1, "d": "01"}}})),
            ("a=1", true, json!({"a": "1"})),
            ("list={a,2,c}", false, json!({"list": ["a", 2, "c"]})),
            ("l[0].x=1,l[1].x=2", false, json!({"l": [{"x": 1}, {"x": 2}]})),
            ("l[1]=x", false, json!({"l": [null, "x"]})),
            ("l[0][1]=x", false, json!({"l": [[null, "x"]]})),
            (
                "nodeSelector.kubernetes\\.io/role=m",
                false,
                json!({"nodeSelector": {"kubernetes.io/role": "m"}}),
            ),
            ("empty=", false, json!({"empty": ""})),
        ] {
            let mut values = Values::new();
            apply(text, strings, &mut values).unwrap();
            assert_eq!(Value::from(values), want, "{text}");
        }
    }

    #[test]
    fn bad_expressions_are_refused() {
        for (text, want) in [
            ("a", "has no value"),
            ("a.b", "has no value"),
            ("a[x]=1", "error parsing index"),
            ("a[99999999]=1", "error parsing index"),
            ("a[0]b=1", "unexpected data"),
            ("a={b", "must terminate"),
            ("a=1,a.b=2", "value of another type"),
        ] {
            let error = apply(text, false, &mut Values::new()).unwrap_err().to_string();
            assert!(error.contains(want), "{text}: {error}");
        }
        let deep = format!("{}=1", ["a"; 40].join("."));
        assert_eq!(apply(&deep, false, &mut Values::new()), Err(SetError::Depth));
    }
}
