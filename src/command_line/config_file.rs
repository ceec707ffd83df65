//! `config.yaml` and its drop-ins: keys are flag names, later files win, `key+` appends.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::error_catalogue::{CONFIG_FILE, CommandError};

/// Values per flag name, in the order given.
pub(super) type Values = BTreeMap<String, Vec<String>>;

/// Reads `main` and `<main>.d/*.yaml` in name order. An absent main file is an error only if it
/// `is_required`.
pub(super) fn read(
    main: &Path,
    is_required: bool,
    known: &dyn Fn(&str) -> bool,
    nearest: &dyn Fn(&str) -> Option<String>,
) -> Result<Values, CommandError> {
    let mut files = Vec::new();
    if main.exists() || is_required {
        files.push(main.to_path_buf());
    }
    files.extend(drop_ins(main));
    let mut values = Values::new();
    for file in files {
        let text = base::fs::read_to_string(&file).map_err(|e| CONFIG_FILE.usage_error(e))?;
        merge_file(&file, &text, &mut values, known, nearest)?;
    }
    Ok(values)
}

fn drop_ins(main: &Path) -> Vec<PathBuf> {
    let mut directory = main.as_os_str().to_owned();
    directory.push(".d");
    let Ok(entries) = std::fs::read_dir(PathBuf::from(directory)) else { return Vec::new() };
    let is_yaml = |path: &PathBuf| path.extension().is_some_and(|e| e == "yaml" || e == "yml");
    let mut files: Vec<PathBuf> =
        entries.filter_map(|e| e.ok().map(|e| e.path())).filter(is_yaml).collect();
    files.sort();
    files
}

fn merge_file(
    file: &Path,
    text: &str,
    values: &mut Values,
    known: &dyn Fn(&str) -> bool,
    nearest: &dyn Fn(&str) -> Option<String>,
) -> Result<(), CommandError> {
    let bad = |why: String| CONFIG_FILE.usage_error(format!("{}: {why}", file.display()));
    if text.lines().all(|l| l.trim().is_empty() || l.trim_start().starts_with('#')) {
        return Ok(());
    }
    let document: Value = serde_saphyr::from_str(text).map_err(|e| bad(e.to_string()))?;
    let Value::Object(map) = document else {
        return Err(bad("is not a mapping of flag names to values".into()));
    };
    for (key, value) in map {
        let (name, append) =
            key.strip_suffix('+').map_or((key.as_str(), false), |name| (name, true));
        let line = text.lines().position(|l| l.trim_start().starts_with(&key)).map_or(0, |n| n + 1);
        if !known(name) {
            let why = match (super::unsupported::reason(name), nearest(name)) {
                (Some(why), _) => format!("line {line}: {name} is not supported: {why}"),
                (None, Some(near)) => {
                    format!("line {line}: unknown key {name:?}, did you mean {near:?}?")
                }
                (None, None) => format!("line {line}: unknown key {name:?}"),
            };
            return Err(bad(why));
        }
        let list = match value {
            Value::Array(items) => items.iter().map(scalar).collect::<Option<Vec<_>>>(),
            Value::Null => Some(Vec::new()),
            other => scalar(&other).map(|v| vec![v]),
        };
        let list = list.ok_or_else(|| {
            bad(format!("line {line}: {name} must be a value or a list of values"))
        })?;
        let slot = values.entry(name.to_owned()).or_default();
        if !append {
            slot.clear();
        }
        slot.extend(list);
    }
    Ok(())
}

fn scalar(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Bool(_) | Value::Number(_) => Some(value.to_string()),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    }
}
