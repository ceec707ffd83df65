//! YAML, JSON and TOML.

use crate::error::Failure;
use crate::function::{Args, Call, Function, Plain, fixed};
use crate::json::{self, Layout};
use crate::signature::Param::{Any, Str};
use crate::value::{Elem, List, Value};
use crate::{toml, yaml};

pub(super) const FUNCTIONS: &[Function] = &[
    fixed("toYaml", &[Any], |call, args| or_empty(call, args, TO_YAML)),
    fixed("mustToYaml", &[Any], TO_YAML),
    fixed("toYamlPretty", &[Any], |call, args| {
        or_empty(call, args, |call, args| yaml::to_yaml_pretty(&args.value(0), call.budget))
    }),
    fixed("fromYaml", &[Str], |call, args| parse(call, args, yaml::mapping).map(or_error_map)),
    fixed("fromYamlArray", &[Str], |call, args| {
        parse(call, args, yaml::sequence).map(or_error_list)
    }),
    fixed("toJson", &[Any], |call, args| or_empty(call, args, TO_JSON)),
    fixed("mustToJson", &[Any], TO_JSON),
    fixed("toPrettyJson", &[Any], |call, args| or_empty(call, args, TO_PRETTY_JSON)),
    fixed("mustToPrettyJson", &[Any], TO_PRETTY_JSON),
    fixed("toRawJson", &[Any], TO_RAW_JSON),
    fixed("mustToRawJson", &[Any], TO_RAW_JSON),
    fixed("fromJson", &[Str], |call, args| {
        parse(call, args, |text| from_json(text, "map[string]interface {}")).map(or_error_map)
    }),
    fixed("fromJsonArray", &[Str], |call, args| {
        parse(call, args, |text| from_json(text, "[]interface {}")).map(or_error_list)
    }),
    fixed("mustFromJson", &[Str], |call, args| parse(call, args, |text| from_json(text, ""))?),
    fixed("toToml", &[Any], |call, args| match toml::to_toml(&args.value(0), call.budget) {
        // Go panics for nil, and gives other errors as text.
        Err(failure) if !call.budget.is_exhausted() && !args.value(0).is_nil() => {
            Ok(Value::from(failure.message))
        }
        result => result,
    }),
    fixed("mustToToml", &[Any], |call, args| toml::to_toml(&args.value(0), call.budget)),
    fixed("fromToml", &[Str], |call, args| parse(call, args, toml::from_toml).map(or_error_map)),
];

const TO_YAML: Plain = |call, args| yaml::to_yaml(&args.value(0), call.budget);
const TO_JSON: Plain = |call, args| json::to_json(&args.value(0), Layout::Compact, call.budget);
const TO_PRETTY_JSON: Plain =
    |call, args| json::to_json(&args.value(0), Layout::Pretty, call.budget);
const TO_RAW_JSON: Plain = |call, args| json::to_json(&args.value(0), Layout::Raw, call.budget);

/// An empty text where writing fails, as Helm has it; not where the budget is used up.
fn or_empty(call: &mut Call<'_>, args: &[Value], write: Plain) -> Result<Value, Failure> {
    match write(call, args) {
        Err(_) if !call.budget.is_exhausted() => Ok(Value::from("")),
        result => result,
    }
}

type Parsed = Result<Value, Failure>;

/// Reads a text after its work is counted.
fn parse(call: &mut Call<'_>, args: &[Value], read: fn(&str) -> Parsed) -> Result<Parsed, Failure> {
    let text = args.text(0);
    call.budget.bytes(text.len().saturating_mul(8))?;
    Ok(read(&text))
}

fn or_error_map(parsed: Parsed) -> Value {
    parsed.unwrap_or_else(|failure| [("Error", Value::from(failure.message))].into_iter().collect())
}

fn or_error_list(parsed: Parsed) -> Value {
    parsed.unwrap_or_else(|failure| Value::list(vec![Value::from(failure.message)]))
}

/// `json.Unmarshal`; `wanted` is Go's name of a map or slice, or empty for any value.
fn from_json(text: &str, wanted: &str) -> Parsed {
    let parsed: Result<serde_json::Value, _> = serde_json::from_str(text);
    let value = parsed.map_err(|error| json_error(text, &error))?;
    let value = Value::from(value);
    match (wanted, &value) {
        ("", _)
        | ("map[string]interface {}", Value::Map(_))
        | ("[]interface {}", Value::List(_)) => Ok(value),
        ("[]interface {}", Value::Nil) => Ok(Value::List(List::none(Elem::Any))),
        (_, Value::Nil) => Ok(Value::map()),
        _ => {
            let kind = json::kind_name(&value);
            let text = format!("json: cannot unmarshal {kind} into Go value of type {wanted}");
            Err(Failure::new(text))
        }
    }
}

/// Go's text about wrong JSON.
fn json_error(text: &str, error: &serde_json::Error) -> Failure {
    if error.is_eof() {
        return Failure::new("unexpected end of JSON input");
    }
    let line = text.split('\n').nth(error.line().saturating_sub(1)).unwrap_or_default();
    let column = error.column().saturating_sub(1);
    let found = line.get(column..).and_then(|rest| rest.chars().next()).unwrap_or(' ');
    let reason = error.to_string();
    let places = [
        ("trailing characters", "after top-level value"),
        ("expected `,` or `}`", "after object key:value pair"),
        ("expected `,` or `]`", "after array element"),
        ("expected `:`", "after object key"),
        ("key must be a string", "looking for beginning of object key string"),
    ];
    let place = places.iter().find(|(begin, _)| reason.starts_with(begin));
    let place = place.map_or("looking for beginning of value", |(_, place)| place);
    Failure::new(format!("invalid character '{found}' {place}"))
}
