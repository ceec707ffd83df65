//! Reading YAML 1.1 as `sigs.k8s.io/yaml` does, into JSON's types.

use std::collections::HashMap;

use granit_parser::{Event, Parser, ScalarStyle};

use crate::budget::{Budget, MAX_NESTING};
use crate::error::Failure;
use crate::go::printf;
use crate::value::{Entries, Value};
use crate::yaml::Dialect;
use crate::yaml::resolve::{self, Scalar};

/// Nodes that one document may have, aliases expanded.
const MAX_NODES: usize = 500_000;

/// The text is not YAML that JSON can hold.
#[derive(Debug, thiserror::Error)]
pub(crate) enum YamlError {
    #[error("error converting YAML to JSON: yaml: line {line}: {text}")]
    Syntax { line: usize, text: String },
    #[error("error converting YAML to JSON: yaml: {0}")]
    Content(String),
    #[error("error converting YAML to JSON: {0}")]
    Key(String),
}

struct Reader<'a> {
    parser: Parser<'a, granit_parser::StrInput<'a>>,
    anchors: HashMap<usize, (Value, usize)>,
    nodes: usize,
}

/// Reads the first document of a text; an empty one is nil.
///
/// # Errors
///
/// The text is not YAML, or larger than the bounds when its aliases are expanded.
pub(crate) fn read(text: &str) -> Result<Value, YamlError> {
    let options = granit_parser::options! { emit_comments: false };
    let parser = Parser::new_from_str_with_options(text, options);
    let mut reader = Reader { parser, anchors: HashMap::new(), nodes: 0 };
    loop {
        match reader.event()? {
            Event::StreamEnd => return Ok(Value::Nil),
            Event::StreamStart | Event::DocumentStart(..) => {}
            event => return Ok(reader.node(event, 0)?.0),
        }
    }
}

impl<'a> Reader<'a> {
    fn event(&mut self) -> Result<Event<'a>, YamlError> {
        match self.parser.next() {
            None => Ok(Event::StreamEnd),
            Some(Ok((event, _))) => Ok(event),
            Some(Err(error)) => {
                let line = error.marker().line();
                Err(YamlError::Syntax { line, text: error.info() })
            }
        }
    }

    fn count(&mut self, nodes: usize) -> Result<(), YamlError> {
        self.nodes = self.nodes.saturating_add(nodes);
        if self.nodes > MAX_NODES {
            return Err(YamlError::Content("document contains excessive aliasing".into()));
        }
        Ok(())
    }

    fn keep(&mut self, anchor: usize, value: &Value, before: usize) {
        if anchor > 0 {
            self.anchors.insert(anchor, (value.clone(), self.nodes - before));
        }
    }

    /// The value, and whether it is a merge key.
    fn node(&mut self, event: Event<'a>, depth: usize) -> Result<(Value, bool), YamlError> {
        if depth > MAX_NESTING {
            return Err(YamlError::Content("exceeded max depth of 10000".into()));
        }
        let before = self.nodes;
        self.count(1)?;
        match event {
            Event::Alias(anchor) => {
                let known = self.anchors.get(&anchor).cloned();
                let (value, size) =
                    known.ok_or_else(|| YamlError::Content("anchor contains itself".into()))?;
                self.count(size)?;
                Ok((value, false))
            }
            Event::Scalar(text, style, anchor, tag) => {
                let tag = tag.map(|tag| tag.to_string());
                let (value, merge) = scalar(&text, style, tag.as_deref())?;
                self.keep(anchor, &value, before);
                Ok((value, merge))
            }
            Event::SequenceStart(_, anchor, _) => {
                let mut items = Vec::new();
                loop {
                    match self.event()? {
                        Event::SequenceEnd => break,
                        event => items.push(self.node(event, depth + 1)?.0),
                    }
                }
                let value = Value::list(items);
                self.keep(anchor, &value, before);
                Ok((value, false))
            }
            Event::MappingStart(_, anchor, _) => {
                let value = self.mapping(depth)?;
                self.keep(anchor, &value, before);
                Ok((value, false))
            }
            _ => Err(YamlError::Content("unexpected end of the document".into())),
        }
    }

    fn mapping(&mut self, depth: usize) -> Result<Value, YamlError> {
        let mut entries = Entries::new();
        let mut merged = Vec::new();
        loop {
            let event = match self.event()? {
                Event::MappingEnd => break,
                event => event,
            };
            let (key, is_merge) = self.node(event, depth + 1)?;
            let event = self.event()?;
            let (value, _) = self.node(event, depth + 1)?;
            if is_merge {
                merged.push(value);
                continue;
            }
            entries.insert(key_text(&key, &value)?.into(), value);
        }
        for value in merged {
            let maps = match &value {
                Value::List(list) => list.items.to_vec(),
                _ => vec![value],
            };
            for map in maps {
                let Value::Map(map) = map else {
                    let text = "map merge requires map or sequence of maps as the value";
                    return Err(YamlError::Content(text.into()));
                };
                for (key, value) in map.pairs() {
                    entries.entry(key).or_insert(value);
                }
            }
        }
        Ok(Value::from(entries))
    }
}

fn key_text(key: &Value, value: &Value) -> Result<String, YamlError> {
    Ok(match key {
        Value::String(text) => text.to_string(),
        Value::Bool(value) => value.to_string(),
        Value::Float(number) => {
            let whole = number.fract() == 0.0 && number.abs() < 9.0e15;
            if whole { crate::go::float::json(*number) } else { crate::go::float::display(*number) }
        }
        key => {
            let kind = match key {
                Value::Nil | Value::Invalid => "%!s(<nil>)",
                Value::List(_) => "slice",
                _ => "map",
            };
            let mut budget = Budget::new(1000, 1000, 1);
            let mut text = |verb: &str, value: &Value| {
                let text = printf::sprintf(verb, std::slice::from_ref(value), &mut budget);
                text.ok().and_then(|text| text.string_bytes().map(<[u8]>::to_vec))
            };
            let shown = |text: Option<Vec<u8>>| {
                String::from_utf8_lossy(&text.unwrap_or_default()).into_owned()
            };
            let key = shown(text("%v", key));
            let verb = if value.string_bytes().is_some() { "%#v" } else { "%v" };
            let value = shown(text(verb, value));
            let text = format!("unsupported map key of type: {kind}, key: {key}, value: {value}");
            return Err(YamlError::Key(text));
        }
    })
}

fn scalar(text: &str, style: ScalarStyle, tag: Option<&str>) -> Result<(Value, bool), YamlError> {
    let plain = style == ScalarStyle::Plain;
    let short = tag.and_then(|tag| tag.rsplit(':').next().map(|t| t.trim_start_matches('!')));
    let forced = short.is_some_and(|tag| matches!(tag, "str" | "binary" | ""));
    if (!plain && short.is_none()) || forced {
        if short == Some("binary") {
            use base64::Engine as _;
            let clean: String = text.split_whitespace().collect();
            let bytes = base64::engine::general_purpose::STANDARD.decode(clean).map_err(|_| {
                YamlError::Content("!!binary value contains invalid base64 data".into())
            })?;
            return Ok((Value::from(String::from_utf8_lossy(&bytes).into_owned()), false));
        }
        return Ok((Value::from(text), false));
    }
    let value = match resolve::resolve(text, Dialect::V2) {
        Scalar::Null => Value::Nil,
        Scalar::Bool(value) => Value::Bool(value),
        Scalar::Int(number) => Value::Float(crate::parse::number::to_float(number)),
        Scalar::Uint(number) => Value::Float(number.to_string().parse().unwrap_or(0.0)),
        Scalar::Float(number) if number.is_finite() => Value::Float(number),
        Scalar::Float(_) => {
            return Err(YamlError::Content(format!("json: unsupported value: {text}")));
        }
        Scalar::Merge => return Ok((Value::from(text), plain)),
        Scalar::Timestamp | Scalar::String => Value::from(text),
    };
    Ok((value, false))
}

/// Reads a mapping, as `fromYaml` does.
///
/// # Errors
///
/// Go's text when the text is not YAML or no mapping.
pub(crate) fn mapping(text: &str) -> Result<Value, Failure> {
    match read(text) {
        Ok(Value::Nil) => Ok(Value::map()),
        Ok(value @ Value::Map(_)) => Ok(value),
        Ok(value) => Err(wrong_type(&value, "map[string]interface {}")),
        Err(error) => Err(Failure::new(error.to_string())),
    }
}

/// Reads a sequence, as `fromYamlArray` does.
///
/// # Errors
///
/// Go's text when the text is not YAML or no sequence.
pub(crate) fn sequence(text: &str) -> Result<Value, Failure> {
    match read(text) {
        Ok(Value::Nil) => Ok(Value::List(crate::value::List::none(crate::value::Elem::Any))),
        Ok(value @ Value::List(_)) => Ok(value),
        Ok(value) => Err(wrong_type(&value, "[]interface {}")),
        Err(error) => Err(Failure::new(error.to_string())),
    }
}

fn wrong_type(value: &Value, wanted: &str) -> Failure {
    let kind = crate::json::kind_name(value);
    let text = "error unmarshaling JSON: while decoding JSON: json: cannot unmarshal";
    Failure::new(format!("{text} {kind} into Go value of type {wanted}"))
}
