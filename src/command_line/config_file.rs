//! `config.yaml` and its drop-ins: keys are flag names, later files win, `key+` appends.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::Value;
use sorting::CompactSort as _;

use super::flags::Flags;
use super::merge::Notes;
use super::old_names::{self, Renamed};
use super::unsupported;
use crate::error_catalogue::{CONFIG_FILE, CommandError, UNSUPPORTED_FLAG};

/// Values per flag name, in the order given.
pub(super) type Values = BTreeMap<String, Vec<String>>;

/// Reads `main` and `<main>.d/*.yaml` in name order, with the keys of `flags`; keys without effect
/// and old names go to `notes`. An absent main file is an error only if it
/// `is_required`.
pub(super) fn read(
    main: &Path,
    is_required: bool,
    flags: &Flags,
    notes: &mut Notes,
) -> Result<Values, CommandError> {
    let mut files = Vec::new();
    if main.exists() || is_required {
        files.push(main.to_path_buf());
    }
    files.extend(drop_ins(main));
    let mut values = Values::new();
    for file in files {
        let text = base::fs::read_to_string(&file).map_err(|e| CONFIG_FILE.usage_error(e))?;
        merge_file(&file, &text, &mut values, flags, notes)?;
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
    files.compact_sort();
    files
}

fn merge_file(
    file: &Path,
    text: &str,
    values: &mut Values,
    flags: &Flags,
    notes: &mut Notes,
) -> Result<(), CommandError> {
    let bad = |why: String| CONFIG_FILE.usage_error(format!("{}: {why}", file.display()));
    if text.lines().all(|l| l.trim().is_empty() || l.trim_start().starts_with('#')) {
        return Ok(());
    }
    let document = api::codec::yaml::parse_settings(text).map_err(|e| bad(e.to_string()))?;
    let Value::Object(map) = document else {
        return Err(bad("is not a mapping of flag names to values".into()));
    };
    for (key, value) in map {
        let (name, append) =
            key.strip_suffix('+').map_or((key.as_str(), false), |name| (name, true));
        let line = text.lines().position(|l| l.trim_start().starts_with(&key)).map_or(0, |n| n + 1);
        let place = || format!("{}: line {line}: {name}", file.display());
        let mut list = match value {
            Value::Array(items) => items.iter().map(scalar).collect::<Option<Vec<_>>>(),
            Value::Null => Some(Vec::new()),
            other => scalar(&other).map(|v| vec![v]),
        }
        .ok_or_else(|| bad(format!("line {line}: {name} must be a value or a list of values")))?;
        let mut flag = name;
        match old_names::present(name, list.last().map(String::as_str)) {
            Some(Renamed::Off) => continue,
            Some(Renamed::Same(new)) => flag = new,
            Some(Renamed::Value(new, set)) => (flag, list) = (new, vec![set.to_owned()]),
            None => {}
        }
        if flag != name {
            notes.warnings.push(old_names::warning(&place(), flag));
        }
        if let Some(why) = unsupported::reason(flag) {
            // `false` switches nothing on.
            if list.iter().all(|value| value == "false") {
                continue;
            }
            let text = format!("{} is not supported: {why}", place());
            return Err(UNSUPPORTED_FLAG.usage_error(text));
        }
        if flags.is_of_other_command(flag) {
            notes.without_effect.push(flags.of_other_command(&place()));
            continue;
        }
        if !flags.is_known(flag) {
            let near = flags.nearest(name).map(|near| format!(", did you mean {near:?}?"));
            let near = near.unwrap_or_default();
            return Err(bad(format!("line {line}: unknown key {name:?}{near}")));
        }
        let slot = values.entry(flag.to_owned()).or_default();
        // In k3s the old name of a list is a list of its own, in addition to the present one.
        if !append && flag == name {
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
