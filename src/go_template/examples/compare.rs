//! Renders what `tests/helm-templates` recorded of a chart, and compares the output with that of
//! Helm's engine: `cargo run -p go_template --example compare INPUTS DIFFERENCES`.

use std::collections::BTreeMap;
use std::error::Error;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use go_template::{Capabilities, Entries, NoCluster, Options, Source, Value, render};
use serde_json::Value as Json;

fn text<'a>(value: &'a Json, key: &str) -> &'a str {
    value.get(key).and_then(Json::as_str).unwrap_or_default()
}

fn files(root: &Json) -> Value {
    let object = root.get("files").and_then(Json::as_object).cloned().unwrap_or_default();
    Value::files(object.into_iter().map(|(name, data)| {
        let data = data.as_str().unwrap_or_default();
        (name, STANDARD.decode(data).unwrap_or_default())
    }))
}

/// The roots of all charts by their path; subcharts share the values of their parents.
fn roots(inputs: &Json) -> BTreeMap<String, Value> {
    let strings = |value: Option<&Json>| -> Vec<String> {
        let items = value.and_then(Json::as_array).cloned().unwrap_or_default();
        items.iter().filter_map(Json::as_str).map(str::to_owned).collect()
    };
    let json = |key: &str| Value::from(inputs.get(key).cloned().unwrap_or(Json::Null));
    let (all_values, release) = (json("values"), json("release"));
    let capabilities = Capabilities {
        kube_version: text(inputs, "kubeVersion").to_owned(),
        kube_major: "1".into(),
        kube_minor: "37".into(),
        api_versions: strings(inputs.get("apiVersions")),
        helm_version: "v4.3.1".into(),
    };
    let capabilities = capabilities.value();
    let described = inputs.get("roots").and_then(Json::as_object).cloned().unwrap_or_default();
    let mut roots = BTreeMap::new();
    for (name, root) in &described {
        let mut values = all_values.clone();
        for key in strings(root.get("values")) {
            values = values.get(&key).unwrap_or_else(Value::map);
        }
        let entries: Entries = [
            ("Chart", Value::from(root.get("chart").cloned().unwrap_or(Json::Null))),
            ("Files", files(root)),
            ("Release", release.clone()),
            ("Capabilities", capabilities.clone()),
            ("Values", values),
            ("Subcharts", Value::map()),
        ]
        .into_iter()
        .map(|(key, value)| (key.into(), value))
        .collect();
        roots.insert(name.clone(), Value::from(entries));
    }
    for (name, root) in &described {
        let subcharts = roots.get(text(root, "parent")).and_then(|parent| parent.get("Subcharts"));
        if let (Some(Value::Map(subcharts)), Some(own)) = (subcharts, roots.get(name)) {
            subcharts.insert(name.rsplit('/').next().unwrap_or(name), own.clone());
        }
    }
    roots
}

fn compare(inputs: &Json) -> Vec<String> {
    let roots = roots(inputs);
    let sources = inputs.get("sources").and_then(Json::as_array).cloned().unwrap_or_default();
    let sources: Vec<Source<'_>> = sources
        .iter()
        .map(|source| Source {
            name: text(source, "name"),
            text: text(source, "text"),
            root: roots.get(text(source, "chart")).cloned().unwrap_or_else(Value::map),
            render: source.get("render").and_then(Json::as_bool).unwrap_or_default(),
        })
        .collect();
    let expected_error = text(inputs, "error");
    let output = match render(&sources, &NoCluster, &Options::default()) {
        Ok(output) if expected_error.is_empty() => output,
        Ok(_) => return vec![format!("Helm fails: {expected_error}")],
        Err(error) if error.to_string() == expected_error => return Vec::new(),
        Err(error) => return vec![format!("ours: {error}\nHelm: {expected_error}")],
    };
    let expected = inputs.get("output").and_then(Json::as_object).cloned().unwrap_or_default();
    let mut differences = Vec::new();
    for (name, expected) in &expected {
        let expected = expected.as_str().unwrap_or_default();
        match output.get(name) {
            Some(ours) if ours == expected => {}
            ours => {
                let ours = ours.map_or("(none)", String::as_str);
                let line = ours.lines().zip(expected.lines()).find(|(a, b)| a != b);
                differences.push(format!("{name}: first other line: {line:?}"));
            }
        }
    }
    if output.len() != expected.len() {
        differences.push(format!("{} files instead of {}", output.len(), expected.len()));
    }
    differences
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let (Some(inputs), Some(target)) = (args.next(), args.next()) else {
        return Err("usage: compare INPUTS DIFFERENCES".into());
    };
    let inputs: Json = serde_json::from_slice(&std::fs::read(inputs)?)?;
    let differences = compare(&inputs);
    std::fs::write(target, differences.join("\n"))?;
    if differences.is_empty() { Ok(()) } else { Err("the output differs".into()) }
}
