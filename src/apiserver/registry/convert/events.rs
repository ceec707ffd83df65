//! `events.k8s.io/v1` Event and core/v1 Event are one stored object with two sets of field names
//! (`pkg/apis/events/v1/conversion.go`).

use serde_json::{Map, Value, json};

/// Field of core Event and its name in `events.k8s.io/v1`.
const NAMES: [(&str, &str); 7] = [
    ("message", "note"),
    ("involvedObject", "regarding"),
    ("reportingComponent", "reportingController"),
    ("source", "deprecatedSource"),
    ("firstTimestamp", "deprecatedFirstTimestamp"),
    ("lastTimestamp", "deprecatedLastTimestamp"),
    ("count", "deprecatedCount"),
];

/// Converts to core Event and sets the fields that it always has.
pub(super) fn to_core(value: Value) -> Value {
    let mut map =
        renamed(value, |key| NAMES.iter().find(|(_, new)| *new == key).map(|(core, _)| *core));
    map.insert("apiVersion".into(), "v1".into());
    for (key, empty) in [
        ("involvedObject", json!({})),
        ("source", json!({})),
        ("firstTimestamp", Value::Null),
        ("lastTimestamp", Value::Null),
    ] {
        map.entry(key).or_insert(empty);
    }
    map.entry("eventTime").or_insert(Value::Null);
    for key in ["reportingComponent", "reportingInstance"] {
        map.entry(key).or_insert_with(|| "".into());
    }
    Value::Object(map)
}

pub(super) fn from_core(value: Value) -> Value {
    let mut map =
        renamed(value, |key| NAMES.iter().find(|(core, _)| *core == key).map(|(_, new)| *new));
    map.insert("apiVersion".into(), "events.k8s.io/v1".into());
    for key in ["reportingController", "reportingInstance"] {
        if map.get(key).and_then(Value::as_str) == Some("") {
            map.remove(key);
        }
    }
    Value::Object(map)
}

fn renamed(value: Value, name: impl Fn(&str) -> Option<&'static str>) -> Map<String, Value> {
    let Value::Object(map) = value else { return Map::new() };
    map.into_iter().map(|(key, value)| (name(&key).map_or(key, str::to_owned), value)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn converting_forth_and_back_keeps_all_fields() {
        let new = json!({"apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": {}, "note": "n", "regarding": {"kind": "Pod"},
            "eventTime": "2026-01-01T00:00:00.000000Z", "reportingController": "c", "reportingInstance": "i", "action": "a", "reason": "r"});
        let core = to_core(new.clone());
        assert_eq!(core["message"], "n");
        assert_eq!(core["involvedObject"]["kind"], "Pod");
        let back = from_core(core);
        for (key, value) in new.as_object().unwrap() {
            assert_eq!(&back[key], value, "{key}");
        }
    }
}
