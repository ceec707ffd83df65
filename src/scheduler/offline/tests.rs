//! Recorded clusters with the decisions of upstream's kube-scheduler for their pods.

use std::collections::BTreeMap;
use std::io::Read as _;

use serde_json::Value;

use super::*;

/// The decision with the score of each plugin as the distance to its best node: a constant for all
/// nodes decides nothing. Empty fields are left out.
fn canonical(decision: &Value) -> Value {
    let Value::Object(mut decision) = decision.clone() else { unreachable!() };
    let scores = decision.remove("scores");
    let scores: Vec<&Value> = scores.iter().flat_map(|s| s.as_array()).flatten().collect();
    let plugins = scores.iter().flat_map(|score| score["plugins"].as_object()).flatten();
    let names: Vec<&String> = plugins.map(|(name, _)| name).collect();
    let mut distances: BTreeMap<&String, BTreeMap<&str, i64>> = BTreeMap::new();
    for name in names {
        let value = |score: &Value| score["plugins"][name].as_i64().unwrap_or(0);
        let best = scores.iter().map(|score| value(score)).max().unwrap_or(0);
        let below = scores.iter().filter(|score| value(score) < best);
        let below: BTreeMap<&str, i64> =
            below.map(|score| (score["node"].as_str().unwrap(), best - value(score))).collect();
        if !below.is_empty() {
            distances.insert(name, below);
        }
    }
    let distances = serde_json::to_value(distances).unwrap();
    decision.insert("scores".into(), distances);
    decision.retain(|_, value| match value {
        Value::Null => false,
        Value::Array(items) => !items.is_empty(),
        Value::Object(fields) => !fields.is_empty(),
        Value::String(text) => !text.is_empty(),
        Value::Bool(_) | Value::Number(_) => true,
    });
    Value::Object(decision)
}

/// The decisions of kube-scheduler, which `tests/scheduler/run --record` writes.
#[test]
fn decisions_are_those_of_kube_scheduler() {
    let file = std::fs::File::open("testdata/decisions.jsonl.gz").unwrap();
    let mut text = String::new();
    flate2::read::GzDecoder::new(file).read_to_string(&mut text).unwrap();
    let mut compared = 0;
    for line in text.lines() {
        let shape: Value = serde_json::from_str(line).unwrap();
        let configuration = match &shape["config"] {
            Value::Null => Configuration::default(),
            config => crate::config::parse(config.to_string().as_bytes()).unwrap(),
        };
        let objects = shape["objects"].as_array().unwrap().iter().cloned();
        let mut cluster = Cluster::new(&configuration, objects, None).unwrap();
        let pods = shape["pods"].as_array().unwrap().iter();
        let made: Vec<Value> =
            pods.flat_map(|pod| cluster.schedule(pod.clone()).unwrap()).collect();
        let upstream = shape["decisions"].as_array().unwrap();
        assert_eq!(made.len(), upstream.len(), "{}", shape["shape"]);
        for (ours, theirs) in made.iter().zip(upstream) {
            assert_eq!(&canonical(ours), theirs, "{}", shape["shape"]);
            compared += 1;
        }
    }
    assert!(compared > 500, "{compared}");
}
