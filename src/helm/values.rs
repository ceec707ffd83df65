//! Values of charts: precedence, subcharts, `--set` expressions and schemas.

pub mod coalesce;
pub mod dependencies;
mod format;
mod json;
mod reference;
pub mod schema;
pub mod set;

use serde_json::{Map, Value};

/// Values by their name.
pub type Values = Map<String, Value>;

/// Merges later values over earlier ones, as Helm merges values files: maps key by key, everything
/// else by replacement.
pub fn merge(base: &mut Values, over: Values) {
    for (key, value) in over {
        match (base.get_mut(&key), value) {
            (Some(Value::Object(base)), Value::Object(over)) => merge(base, over),
            (_, value) => {
                base.insert(key, value);
            }
        }
    }
}

/// The table at a path with dots (`Values.Table`).
pub fn table<'a>(values: &'a Values, path: &str) -> Option<&'a Values> {
    path.split('.').try_fold(values, |values, part| values.get(part)?.as_object())
}

/// The value that is no table at a path with dots (`Values.PathValue`).
pub fn path_value<'a>(values: &'a Values, path: &str) -> Option<&'a Value> {
    let (parents, last) = match path.rsplit_once('.') {
        Some((parents, last)) => (table(values, parents)?, last),
        None => (values, path),
    };
    parents.get(last).filter(|value| !value.is_object())
}
