//! Reads values for cells, and formats that several printers share.

pub(super) use api::value::{condition, is_condition_true as is_true};
use jiff::Timestamp;
use serde_json::Value;

static NULL: Value = Value::Null;

/// The value at a path of fields; null when something on the way is absent.
pub(super) fn at<'a>(value: &'a Value, path: &[&str]) -> &'a Value {
    path.iter().fold(value, |v, name| v.get(*name).unwrap_or(&NULL))
}

/// The text at a path, or empty.
pub(super) fn text<'a>(value: &'a Value, path: &[&str]) -> &'a str {
    at(value, path).as_str().unwrap_or_default()
}

/// The text at a path, or this one when it is empty.
pub(super) fn text_or<'a>(value: &'a Value, path: &[&str], default: &'a str) -> &'a str {
    let found = text(value, path);
    if found.is_empty() { default } else { found }
}

/// The integer at a path, or 0.
pub(super) fn integer(value: &Value, path: &[&str]) -> i64 {
    at(value, path).as_i64().unwrap_or_default()
}

/// The flag at a path, or false.
pub(super) fn flag(value: &Value, path: &[&str]) -> bool {
    at(value, path).as_bool().unwrap_or_default()
}

/// The list at a path, or an empty one.
pub(super) fn list<'a>(value: &'a Value, path: &[&str]) -> &'a [Value] {
    at(value, path).as_array().map(Vec::as_slice).unwrap_or_default()
}

/// Number of items of a list or members of a map.
pub(super) fn count(value: &Value, path: &[&str]) -> i64 {
    let n = match at(value, path) {
        Value::Array(list) => list.len(),
        Value::Object(map) => map.len(),
        _ => 0,
    };
    i64::try_from(n).unwrap_or(i64::MAX)
}

/// The texts of a list, joined.
pub(super) fn joined(value: &Value, path: &[&str], separator: &str) -> String {
    list(value, path).iter().filter_map(Value::as_str).collect::<Vec<_>>().join(separator)
}

/// The object's name.
pub(super) fn name(object: &Value) -> Value {
    Value::from(text(object, &["metadata", "name"]))
}

/// The value of an annotation, if present.
pub(super) fn annotation<'a>(object: &'a Value, key: &str) -> Option<&'a str> {
    at(object, &["metadata", "annotations", key]).as_str()
}

/// Whether the object is being deleted.
pub(super) fn deleted(object: &Value) -> bool {
    !at(object, &["metadata", "deletionTimestamp"]).is_null()
}

/// The time at a path.
pub(super) fn time(value: &Value, path: &[&str]) -> Option<Timestamp> {
    at(value, path).as_str().and_then(|t| t.parse().ok())
}

/// Human-readable time since then; `<unknown>` without a time.
pub(super) fn since(value: &Value, path: &[&str], now: Timestamp) -> String {
    time(value, path)
        .map_or_else(|| "<unknown>".to_owned(), |t| human_duration(now.duration_since(t).as_secs()))
}

/// Age of an object.
pub(super) fn age(object: &Value, now: Timestamp) -> Value {
    Value::from(since(object, &["metadata", "creationTimestamp"], now))
}

/// Creation time as the generic table has it; an object without one shows Go's zero time.
pub(super) fn created_at(object: &Value) -> Value {
    Value::from(text_or(object, &["metadata", "creationTimestamp"], "0001-01-01T00:00:00Z"))
}

/// Formats seconds like upstream's `duration.HumanDuration`, with two or three significant digits.
pub fn human_duration(seconds: i64) -> String {
    let (minutes, hours) = (seconds / 60, seconds / 3600);
    let (days, years) = (hours / 24, hours / 24 / 365);
    let two = |a: i64, unit: &str, b: i64, sub: &str| {
        if b == 0 { format!("{a}{unit}") } else { format!("{a}{unit}{b}{sub}") }
    };
    match () {
        () if seconds < -1 => "<invalid>".into(),
        () if seconds < 0 => "0s".into(),
        () if seconds < 120 => format!("{seconds}s"),
        () if minutes < 10 => two(minutes, "m", seconds % 60, "s"),
        () if minutes < 180 => format!("{minutes}m"),
        () if hours < 8 => two(hours, "h", minutes % 60, "m"),
        () if hours < 48 => format!("{hours}h"),
        () if hours < 24 * 8 => two(days, "d", hours % 24, "h"),
        () if hours < 24 * 365 * 2 => format!("{days}d"),
        () if hours < 24 * 365 * 8 => two(years, "y", days % 365, "d"),
        () => format!("{years}y"),
    }
}

/// A map of labels: `a=b,c=d`, or `<none>`.
pub(super) fn labels(map: &Value) -> String {
    let pairs: Vec<String> = map
        .as_object()
        .into_iter()
        .flatten()
        .map(|(k, v)| format!("{k}={}", v.as_str().unwrap_or_default()))
        .collect();
    if pairs.is_empty() { "<none>".into() } else { pairs.join(",") }
}

/// A `metav1.LabelSelector` in its string form; `<none>` when it selects everything or nothing.
pub(super) fn selector(value: &Value) -> String {
    match api::selector::LabelSelector::from_value(Some(value)) {
        Err(_) => "<error>".into(),
        Ok(selector) => {
            Some(selector.to_string()).filter(|s| !s.is_empty()).unwrap_or_else(|| "<none>".into())
        }
    }
}

/// Names and images of the containers of a pod spec.
pub(super) fn containers(spec: &Value) -> [Value; 2] {
    ["name", "image"].map(|field| {
        Value::from(
            list(spec, &["containers"])
                .iter()
                .map(|c| text(c, &[field]))
                .collect::<Vec<_>>()
                .join(","),
        )
    })
}

/// A quantity as it is written; `0` when absent.
pub(super) fn quantity(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => "0".into(),
        other => other.to_string(),
    }
}

/// The first three of a list, and how many more there are; `<unset>` for none.
pub(super) fn first_three(all: &[String]) -> String {
    let shown = all.iter().take(3).map(String::as_str).collect::<Vec<_>>().join(",");
    match all.len() {
        0..=3 if shown.is_empty() => "<unset>".into(),
        0..=3 => shown,
        n => format!("{shown} + {} more...", n - 3),
    }
}
