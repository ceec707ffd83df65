//! The fields of KubeletConfiguration that files and arguments give, with their values, for the
//! page `/configz` of the kubelet.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::kubelet_config::KubeletConfig;
use crate::command_line::components::kubelet::without_password;
use crate::command_line::components::kubelet_config::{FIELDS, Form};

/// The given fields as an object. An argument takes precedence over the field of a file.
pub(super) fn given(files: &KubeletConfig, arguments: &[String]) -> Map<String, Value> {
    let mut by_name: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for argument in arguments {
        let (name, value) = component_config::flags::parts(argument);
        by_name.entry(name).or_default().push(value.unwrap_or("true"));
    }
    let mut fields = Map::new();
    for field in FIELDS {
        let texts = field.argument.and_then(|name| by_name.get(name));
        let value = match texts {
            Some(texts) => of_argument(field.form, &texts.join(",")),
            None => files.value(field).map(|value| of_file(field.form, value)),
        };
        if let Some(value) = value {
            set(&mut fields, field.path, value);
        }
    }
    fields
}

/// A value of a file, with durations in Go's form.
fn of_file(form: Form, value: &Value) -> Value {
    match (form, value) {
        (Form::Url, Value::String(url)) => return without_password(url).into(),
        (Form::Headers, Value::Object(headers)) => return masked(headers.keys()),
        _ => {}
    }
    match value.as_str().filter(|_| form == Form::Duration) {
        Some(text) => duration(text).unwrap_or_else(|| value.clone()),
        None => value.clone(),
    }
}

/// Headers with a mask for their values (upstream's `marshalKubeletConfigForLog`).
fn masked<'a>(names: impl Iterator<Item = &'a String>) -> Value {
    names.map(|name| (name.clone(), json!(["<masked>"]))).collect::<Map<_, _>>().into()
}

/// The value of an argument as the field has it; `None` for a form that arguments do not have.
fn of_argument(form: Form, text: &str) -> Option<Value> {
    let parts = || text.split(',').map(str::trim).filter(|part| !part.is_empty());
    let pairs = |separator: &str| {
        let pair = |part: &str| {
            let (name, value) = part.split_once(separator)?;
            Some((name.to_owned(), Value::from(value)))
        };
        Value::Object(parts().filter_map(pair).collect())
    };
    match form {
        Form::Text | Form::Any => Some(text.into()),
        Form::Url => Some(without_password(text).into()),
        Form::Headers => {
            let name = |part: &str| part.split_once(':').map(|(name, _)| name.trim().to_owned());
            let names: Vec<String> = parts().filter_map(name).collect();
            Some(masked(names.iter()))
        }
        Form::Duration => duration(text),
        Form::Number => text.parse::<i64>().ok().map(Value::from),
        Form::Bool => Some(matches!(text, "1" | "t" | "T" | "true" | "TRUE" | "True").into()),
        Form::Texts => Some(parts().collect::<Vec<_>>().into()),
        Form::Pairs(separator) => Some(pairs(separator)),
        Form::Gates => {
            let gate = |part: &str| {
                let (name, value) = part.split_once('=')?;
                Some((name.to_owned(), Value::from(value == "true")))
            };
            Some(Value::Object(parts().filter_map(gate).collect()))
        }
        Form::ReservedMemory => Some(reserved_memory(text)),
        // The page has the taints of the node; the periods are no argument.
        Form::Taints | Form::GracePeriods => None,
    }
}

/// A list of NUMA nodes of `0:memory=1Gi,hugepages-1Gi=2Gi;1:memory=1Gi`. Several arguments are
/// joined by commas, so that a node may also follow a comma.
fn reserved_memory(text: &str) -> Value {
    let mut nodes: Vec<(i64, Map<String, Value>)> = Vec::new();
    for part in text.split([';', ',']) {
        let limit = match part.split_once(':') {
            Some((node, limit)) => {
                let Ok(node) = node.trim().parse() else { continue };
                nodes.push((node, Map::new()));
                limit
            }
            None => part,
        };
        if let (Some((_, limits)), Some((name, amount))) = (nodes.last_mut(), limit.split_once('='))
        {
            limits.insert(name.trim().to_owned(), amount.trim().into());
        }
    }
    nodes.into_iter().map(|(node, limits)| json!({"numaNode": node, "limits": limits})).collect()
}

/// A duration in Go's form.
fn duration(text: &str) -> Option<Value> {
    let nanoseconds = api::codec::time::parse_duration(text).ok()?;
    Some(api::codec::time::duration_text(nanoseconds).into())
}

/// Sets the value at a path with dots.
fn set(fields: &mut Map<String, Value>, path: &str, value: Value) {
    match path.split_once('.') {
        None => {
            fields.insert(path.to_owned(), value);
        }
        Some((first, rest)) => {
            let inner = fields.entry(first).or_insert_with(|| Value::Object(Map::new()));
            if let Value::Object(inner) = inner {
                set(inner, rest, value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn fields_of_files_and_arguments_have_their_values() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("kubelet.yaml");
        let text = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n\
                    fileCheckFrequency: 90s\nmaxPods: 5\nlogging: {verbosity: 4}\n\
                    registryBurst: 0\nevictionHard: {memory.available: 1Gi}\n\
                    staticPodURL: 'http://u:hush@m'\nstaticPodURLHeader: {a: [hush, hush]}\n";
        std::fs::write(&file, text).unwrap();
        let files = KubeletConfig::read(Some(Path::new(&file)), None).unwrap();
        let arguments = [
            "max-pods=7",
            "event-qps=3",
            "serialize-image-pulls=false",
            "system-reserved=cpu=100m,memory=1Gi",
            "eviction-soft=nodefs.available<10%",
            "allowed-unsafe-sysctls=kernel.msg*",
            "reserved-memory=0:memory=1Gi,hugepages-2Mi=2Mi;1:memory=2Gi",
            "tls-cipher-suites=A,B",
            "register-with-taints=a=b:NoSchedule",
        ];
        let fields = given(&files, &arguments.map(str::to_owned));
        assert_eq!(
            Value::Object(fields),
            json!({
                "fileCheckFrequency": "1m30s",
                "maxPods": 7,
                "logging": {"verbosity": 4},
                "evictionHard": {"memory.available": "1Gi"},
                "evictionSoft": {"nodefs.available": "10%"},
                "eventRecordQPS": 3,
                "serializeImagePulls": false,
                "systemReserved": {"cpu": "100m", "memory": "1Gi"},
                "allowedUnsafeSysctls": ["kernel.msg*"],
                "reservedMemory": [
                    {"numaNode": 0, "limits": {"memory": "1Gi", "hugepages-2Mi": "2Mi"}},
                    {"numaNode": 1, "limits": {"memory": "2Gi"}},
                ],
                "staticPodURL": "http://u:xxxxx@m/",
                "staticPodURLHeader": {"a": ["<masked>"]},
                "tlsCipherSuites": ["A", "B"],
            })
        );
    }

    #[test]
    fn values_of_headers_are_masked() {
        let arguments = ["manifest-url-header=a:hush,b:hush", "manifest-url=http://u:hush@m/"]
            .map(str::to_owned);
        let fields = Value::Object(given(&KubeletConfig::default(), &arguments));
        assert_eq!(
            fields,
            json!({
                "staticPodURL": "http://u:xxxxx@m/",
                "staticPodURLHeader": {"a": ["<masked>"], "b": ["<masked>"]},
            })
        );
    }
}
