//! Recorded answers of kube-apiserver 1.37.1 to definitions with rules and to their objects.
//! `recorded.jsonl` begins with the schema and the value that all expressions share; each further
//! line contains an expression, a message or a separate schema.

use std::fmt::Write as _;

use serde_json::json;

use super::*;

/// Whether the errors have the texts of a status message. The message has the order of a Go map, so
/// the order is not compared.
fn same(wanted: &str, errors: &[Error]) -> bool {
    let found = texts(errors);
    match found.as_slice() {
        [one] => wanted == one,
        [] => wanted.is_empty(),
        many => {
            let length = many.iter().map(|text| text.len() + 2).sum::<usize>();
            wanted.len() == length && many.iter().all(|text| wanted.contains(text.as_str()))
        }
    }
}

fn object(spec: &Value) -> Value {
    json!({"apiVersion": "d.example.com/v1", "kind": "T", "metadata": {"name": "o"}, "spec": spec})
}

#[test]
fn every_answer_is_upstreams() {
    let text = include_str!("recorded.jsonl");
    let mut lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let base = lines.next().unwrap();
    let mut differences = String::new();
    let mut count = 0;
    for line in lines {
        let mut schema = base["schema"].clone();
        let mut writes = vec![(base["value"].clone(), Value::Null)];
        if let Some(rule) = line["rule"].as_str() {
            schema["x-kubernetes-validations"] = json!([{"rule": rule}]);
        } else if let Some(message) = line["message"].as_str() {
            schema["x-kubernetes-validations"] =
                json!([{"rule": "self.i2 == 4", "messageExpression": message, "message": "own"}]);
        } else {
            schema = line["schema"].clone();
            let pairs = line["writes"].as_array().unwrap().iter();
            writes = pairs.map(|pair| (pair[0].clone(), pair[1].clone())).collect();
        }
        let root = json!({"type": "object", "properties": {"spec": schema}});
        let definition = json!({
            "metadata": {"name": "ts.d.example.com"},
            "spec": {"group": "d.example.com", "scope": "Namespaced", "names": {"plural": "ts", "singular": "t", "kind": "T", "listKind": "TList"},
                "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": root}}]},
            "status": {"storedVersions": ["v1"]}});
        let defined = crate::validation::crd::validate(&definition);
        if !same(line["defined"].as_str().unwrap(), &defined) {
            let _ = writeln!(differences, "{line}\n  defined: {:?}", texts(&defined));
        }
        count += 1;
        let structural = Structural::new(&root).unwrap();
        for ((new, old), wanted) in writes.iter().zip(line["told"].as_array().unwrap()) {
            let wanted = wanted.as_str().unwrap();
            let mut told = Vec::new();
            if !old.is_null() {
                told = structural.validate(&object(old), None, &Path::default());
            }
            if told.is_empty() {
                let before = (!old.is_null()).then(|| object(old));
                told = structural.validate(&object(new), before.as_ref(), &Path::default());
            }
            count += 1;
            if !same(wanted, &told) {
                let _ = writeln!(differences, "{line}\n  told: {:?}", texts(&told));
            }
        }
    }
    assert!(differences.is_empty(), "{differences}");
    assert!(count > 200, "{count}");
}
