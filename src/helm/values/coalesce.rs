//! Values of a chart with the defaults of its values.yaml and of its subcharts
//! (`pkg/chart/common/util/coalesce.go` of Helm).

use serde_json::Value;

use super::Values;
use crate::chart::Chart;

const GLOBAL: &str = "global";

/// The value of a subchart is not a table.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("type mismatch on {subchart}: the values of a subchart must be a mapping")]
pub struct NotATable {
    /// Name of the subchart.
    pub subchart: String,
}

/// The values with defaults; null removes a default.
///
/// # Errors
/// The value of a subchart is not a table.
pub fn coalesce_values(chart: &Chart, values: &Values) -> Result<Values, NotATable> {
    let mut out = values.clone();
    coalesce(chart, &mut out, false)?;
    Ok(out)
}

/// The values with defaults; null is kept.
///
/// # Errors
/// The value of a subchart is not a table.
pub fn merge_values(chart: &Chart, values: &Values) -> Result<Values, NotATable> {
    let mut out = values.clone();
    coalesce(chart, &mut out, true)?;
    Ok(out)
}

fn coalesce(chart: &Chart, dest: &mut Values, merge: bool) -> Result<(), NotATable> {
    add_defaults(chart, dest, merge);
    for subchart in &chart.dependencies {
        let name = subchart.name();
        let not_a_table = || NotATable { subchart: name.to_owned() };
        let globals = dest.get(GLOBAL).cloned();
        let own = dest.entry(name).or_insert_with(|| Value::Object(Values::new()));
        let own = own.as_object_mut().ok_or_else(not_a_table)?;
        add_globals(own, globals);
        coalesce(subchart, own, merge)?;
    }
    Ok(())
}

/// Adds the globals of the parent to those of a subchart; the parent's take precedence.
fn add_globals(dest: &mut Values, source: Option<Value>) {
    let mut own = match dest.get(GLOBAL) {
        None => Values::new(),
        Some(Value::Object(own)) => own.clone(),
        Some(_) => return,
    };
    let source = match source {
        None => Values::new(),
        Some(Value::Object(source)) => source,
        Some(_) => return,
    };
    for (key, value) in source {
        match (value, own.get_mut(&key)) {
            (Value::Object(mut table), Some(Value::Object(below))) => {
                coalesce_tables(&mut table, std::mem::take(below), true);
                own.insert(key, Value::Object(table));
            }
            (Value::Object(_), Some(_)) => {}
            (value, Some(Value::Object(_))) if !value.is_object() => {}
            (value, _) => {
                own.insert(key, value);
            }
        }
    }
    dest.insert(GLOBAL.into(), Value::Object(own));
}

fn add_defaults(chart: &Chart, values: &mut Values, merge: bool) {
    for (key, default) in &chart.values {
        let mut default = default.clone();
        match values.get_mut(key) {
            Some(Value::Null) if !merge => {
                values.remove(key);
            }
            Some(Value::Object(own)) => {
                let Value::Object(mut source) = default else { continue };
                let is_subchart = chart.dependencies.iter().any(|sub| sub.name() == key);
                if !(merge || is_subchart) {
                    remove_nulls(&mut source);
                }
                coalesce_tables(own, source, merge || is_subchart);
            }
            Some(_) => {}
            None => {
                if !merge {
                    if default.is_null() {
                        continue;
                    }
                    if let Value::Object(table) = &mut default {
                        remove_nulls(table);
                    }
                }
                values.insert(key.clone(), default);
            }
        }
    }
}

/// Adds what `source` has and `dest` lacks, table by table. Without `merge`, null in `dest` removes
/// the key if `source` has a value.
pub fn coalesce_tables(dest: &mut Values, source: Values, merge: bool) {
    for (key, value) in source {
        match dest.get_mut(&key) {
            None => {
                dest.insert(key, value);
            }
            Some(Value::Null) if !merge && !value.is_null() => {
                dest.remove(&key);
            }
            Some(Value::Object(own)) => {
                if let Value::Object(table) = value {
                    coalesce_tables(own, table, merge);
                }
            }
            Some(_) => {}
        }
    }
}

/// Removes the keys whose value is null, at all levels.
pub fn remove_nulls(table: &mut Values) {
    table.retain(|_, value| !value.is_null());
    for value in table.values_mut() {
        if let Value::Object(inner) = value {
            remove_nulls(inner);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn chart(name: &str, values: Value, subcharts: Vec<Chart>) -> Chart {
        let mut chart = Chart { dependencies: subcharts, ..Chart::default() };
        chart.metadata.name = name.into();
        chart.values = values.as_object().unwrap().clone();
        chart
    }

    #[test]
    fn given_values_come_first_and_null_removes_a_default() {
        let top = chart("top", json!({"a": 1, "b": {"c": 2, "d": 3}, "e": null, "l": [1]}), vec![]);
        for (given, want) in [
            (json!({}), json!({"a": 1, "b": {"c": 2, "d": 3}, "l": [1]})),
            (json!({"a": null}), json!({"b": {"c": 2, "d": 3}, "l": [1]})),
            (json!({"b": {"c": null}}), json!({"a": 1, "b": {"d": 3}, "l": [1]})),
            (json!({"b": 7, "l": [2]}), json!({"a": 1, "b": 7, "l": [2]})),
            (
                json!({"new": null, "b": {"x": null}}),
                json!({"a": 1, "b": {"c": 2, "d": 3, "x": null}, "l": [1], "new": null}),
            ),
        ] {
            let values = coalesce_values(&top, given.as_object().unwrap()).unwrap();
            assert_eq!(Value::from(values), want, "{given}");
        }
    }

    #[test]
    fn subcharts_get_their_values_and_the_globals() {
        let sub = chart("sub", json!({"x": 1, "global": {"own": true, "shared": "sub"}}), vec![]);
        let top = chart("top", json!({"sub": {"y": 2}, "global": {"shared": "top"}}), vec![sub]);
        let values = coalesce_values(&top, &Values::new()).unwrap();
        let want = json!({
            "global": {"shared": "top"},
            "sub": {"x": 1, "y": 2, "global": {"own": true, "shared": "top"}},
        });
        assert_eq!(Value::from(values), want);
        let bad = json!({"sub": 1});
        let error = coalesce_values(&top, bad.as_object().unwrap()).unwrap_err();
        assert_eq!(error.subchart, "sub");
    }
}
