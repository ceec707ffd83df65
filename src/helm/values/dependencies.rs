//! Which subcharts are part of a release, and the values that parents import from them
//! (`pkg/chart/v2/util/dependencies.go` of Helm).

use serde_json::Value;

use super::coalesce::{self, NotATable};
use super::{Values, path_value, table};
use crate::chart::{Chart, Dependency};
use crate::version::is_compatible;

/// The most bytes of copies of subcharts and of imported values: aliases and imports in each other
/// multiply.
const COPIES_MAX: usize = 256 << 20;
/// What a chart takes besides its files and values.
const CHART_BYTES: usize = 1 << 10;
/// The most parts of the path of imported values.
const PATH_MAX: usize = 64;

/// Subcharts cannot be chosen, or their values not imported.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DependencyError {
    /// The value of a subchart is not a table.
    #[error(transparent)]
    Table(#[from] NotATable),
    /// Too many copies.
    #[error(
        "the aliases and import-values of the chart copy more than {COPIES_MAX} bytes; remove some \
         of its dependencies"
    )]
    Copies,
    /// A path of imported values is too long.
    #[error("import-values of dependency {0:?}: the path of parent has more than {PATH_MAX} parts")]
    Path(String),
}

/// What may still be copied.
struct Copies {
    left: usize,
}

impl Copies {
    fn add(&mut self, bytes: usize) -> Result<(), DependencyError> {
        self.left = self.left.checked_sub(bytes).ok_or(DependencyError::Copies)?;
        Ok(())
    }
}

/// Removes disabled subcharts, renames aliased ones and imports values.
///
/// # Errors
/// The value of a subchart is not a table, or copies are too large.
pub fn process(chart: &mut Chart, values: &Values) -> Result<(), DependencyError> {
    let mut copies = Copies { left: COPIES_MAX };
    enable(chart, values, "", &mut copies)?;
    import_all(chart, &mut copies)
}

/// The bytes of a chart in memory, roughly.
fn size(chart: &Chart) -> usize {
    let files = chart.templates.iter().chain(&chart.files);
    let files: usize = files.map(|file| file.name.len() + file.data.len()).sum();
    let schema = chart.schema.as_ref().map_or(0, Vec::len);
    let inner: usize = chart.dependencies.iter().map(size).sum();
    CHART_BYTES + files + schema + table_size(&chart.values) + inner
}

fn table_size(table: &Values) -> usize {
    serde_json::to_string(table).map_or(0, |text| text.len())
}

fn enable(
    chart: &mut Chart,
    values: &Values,
    path: &str,
    copies: &mut Copies,
) -> Result<(), DependencyError> {
    if chart.metadata.dependencies.is_empty() {
        return Ok(());
    }
    let listed = |sub: &Chart, dependency: &Dependency| {
        sub.name() == dependency.name && is_compatible(&dependency.version, &sub.metadata.version)
    };
    let declared = std::mem::take(&mut chart.metadata.dependencies);
    let existing = std::mem::take(&mut chart.dependencies);
    let unlisted =
        existing.iter().filter(|sub| !declared.iter().any(|dependency| listed(sub, dependency)));
    let mut subcharts: Vec<Chart> = unlisted.cloned().collect();
    let sizes: Vec<usize> = existing.iter().map(size).collect();
    let mut dependencies = Vec::with_capacity(declared.len());
    for mut dependency in declared {
        let mut sized = existing.iter().zip(&sizes);
        if let Some((found, size)) = sized.find(|(sub, _)| listed(sub, &dependency)) {
            copies.add(*size)?;
            let mut subchart = found.clone();
            if !dependency.alias.is_empty() {
                subchart.metadata.name.clone_from(&dependency.alias);
            }
            subcharts.push(subchart);
        }
        if !dependency.alias.is_empty() {
            dependency.name.clone_from(&dependency.alias);
        }
        dependency.enabled = true;
        dependencies.push(dependency);
    }
    chart.dependencies = subcharts;
    let all = coalesce::coalesce_values(chart, values)?;
    for dependency in &mut dependencies {
        apply_tags(dependency, &all);
        apply_condition(dependency, &all, path);
    }
    let is_disabled = |name: &str| dependencies.iter().any(|d| d.name == name && !d.enabled);
    chart.dependencies.retain(|sub| !is_disabled(sub.name()));
    for subchart in &mut chart.dependencies {
        let inner = format!("{path}{}.", subchart.metadata.name);
        enable(subchart, &all, &inner, copies)?;
    }
    let off: Vec<String> =
        dependencies.iter().filter(|d| !d.enabled).map(|d| d.name.clone()).collect();
    dependencies.retain(|dependency| !off.contains(&dependency.name));
    chart.metadata.dependencies = dependencies;
    Ok(())
}

/// The first condition whose path has a value decides.
fn apply_condition(dependency: &mut Dependency, values: &Values, path: &str) {
    for condition in dependency.condition.trim().split(',').filter(|c| !c.is_empty()) {
        match path_value(values, &format!("{path}{condition}")) {
            Some(Value::Bool(enabled)) => {
                dependency.enabled = *enabled;
                return;
            }
            Some(_) => tracing::warn!(
                chart = dependency.name,
                path = condition,
                "helm: condition is not a boolean"
            ),
            None => {}
        }
    }
}

/// One tag that is true enables; without one, a tag that is false disables.
fn apply_tags(dependency: &mut Dependency, values: &Values) {
    let Some(tags) = values.get("tags").and_then(Value::as_object) else { return };
    let states: Vec<bool> =
        dependency.tags.iter().filter_map(|tag| tags.get(tag)?.as_bool()).collect();
    dependency.enabled = states.is_empty() || states.contains(&true);
}

fn import_all(chart: &mut Chart, copies: &mut Copies) -> Result<(), DependencyError> {
    for subchart in &mut chart.dependencies {
        import_all(subchart, copies)?;
    }
    if chart.metadata.dependencies.is_empty() {
        return Ok(());
    }
    let mut own = coalesce::merge_values(chart, &Values::new())?;
    let mut imported = Values::new();
    for dependency in &chart.metadata.dependencies {
        for import in &dependency.import_values {
            let Some((child, parent)) = import_paths(import) else { continue };
            let Some(found) = table(&own, &format!("{}.{child}", dependency.name)) else {
                tracing::warn!(
                    chart = dependency.name,
                    table = child,
                    "helm: imported table does not exist"
                );
                continue;
            };
            if parent.split('.').count() > PATH_MAX {
                return Err(DependencyError::Path(dependency.name.clone()));
            }
            copies.add(table_size(found))?;
            coalesce::coalesce_tables(&mut imported, nested(&parent, found.clone()), true);
        }
    }
    coalesce::coalesce_tables(&mut own, imported, true);
    chart.values = own;
    Ok(())
}

/// The paths of `import-values`: a pair, or the name of an export.
fn import_paths(import: &Value) -> Option<(String, String)> {
    let text = |value: Option<&Value>| value.and_then(Value::as_str).map(str::to_owned);
    match import {
        Value::String(export) => Some((format!("exports.{export}"), ".".into())),
        Value::Object(pair) => Some((text(pair.get("child"))?, text(pair.get("parent"))?)),
        _ => None,
    }
}

fn nested(path: &str, values: Values) -> Values {
    if path == "." {
        return values;
    }
    path.rsplit('.')
        .fold(values, |inner, part| Values::from_iter([(part.to_owned(), Value::Object(inner))]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn sub(name: &str, values: Value) -> Chart {
        let mut chart = Chart::default();
        chart.metadata.name = name.into();
        chart.metadata.version = "1.2.0".into();
        chart.values = values.as_object().unwrap().clone();
        chart
    }

    fn top(dependencies: Value) -> Chart {
        let mut chart = sub("top", json!({}));
        chart.metadata.dependencies = serde_json::from_value(dependencies).unwrap();
        chart.dependencies = vec![
            sub("db", json!({"port": 1, "exports": {"x": {"host": "h"}}})),
            sub("cache", json!({})),
        ];
        chart
    }

    fn names(chart: &Chart) -> Vec<&str> {
        chart.dependencies.iter().map(Chart::name).collect()
    }

    #[test]
    fn conditions_tags_and_aliases_choose_subcharts() {
        let dependencies = json!([
            {"name": "db", "version": "^1", "alias": "main", "condition": "main.enabled"},
            {"name": "db", "version": "1.x", "alias": "copy", "tags": ["extra"]},
            {"name": "cache", "version": "~1.2", "condition": "cache.on,cache.enabled"},
        ]);
        for (values, want) in [
            (json!({}), vec!["main", "copy", "cache"]),
            (json!({"main": {"enabled": false}, "tags": {"extra": false}}), vec!["cache"]),
            (json!({"cache": {"on": true, "enabled": false}}), vec!["main", "copy", "cache"]),
            (json!({"cache": {"enabled": false}}), vec!["main", "copy"]),
        ] {
            let mut chart = top(dependencies.clone());
            process(&mut chart, values.as_object().unwrap()).unwrap();
            assert_eq!(names(&chart), want, "{values}");
        }
    }

    #[test]
    fn aliases_in_aliases_do_not_multiply_without_bound() {
        let mut chart = sub("leaf", json!({"x": "x".repeat(1 << 20)}));
        for level in 0..4 {
            let aliases = (0..20).map(|number| {
                json!({"name": chart.name(), "version": "*", "alias": format!("a{number}")})
            });
            let aliases = Value::Array(aliases.collect());
            let mut parent = sub(&format!("level{level}"), json!({}));
            parent.metadata.dependencies = serde_json::from_value(aliases).unwrap();
            parent.dependencies = vec![chart];
            chart = parent;
        }
        assert_eq!(process(&mut chart, &Values::new()), Err(DependencyError::Copies));
    }

    #[test]
    fn a_deep_path_of_imported_values_is_refused() {
        let path = vec!["a"; 100_000].join(".");
        let mut chart = top(json!([{
            "name": "db", "version": "*", "import-values": [{"child": "exports.x", "parent": path}],
        }]));
        let error = process(&mut chart, &Values::new()).unwrap_err();
        assert_eq!(error, DependencyError::Path("db".into()));
    }

    #[test]
    fn parents_import_values_of_subcharts() {
        let mut chart = top(json!([{
            "name": "db", "version": "*",
            "import-values": ["x", {"child": "exports.x", "parent": "a.b"}],
        }]));
        process(&mut chart, &Values::new()).unwrap();
        assert_eq!(chart.values["host"], "h");
        assert_eq!(chart.values["a"], json!({"b": {"host": "h"}}));
    }
}
