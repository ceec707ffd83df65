//! Compares the codecs, strategic merge patch and field management with recordings of upstream's
//! for objects of every kind (`tests/wire` makes the recordings).

use std::io::Read;
use std::path::PathBuf;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use sorting::CompactSort as _;

use crate::codec;
use crate::object::Gvk;
use crate::patch::apply::{Write, apply, track_update};
use crate::schema::{Schema, TypeId};

/// A recorded case with its schema and its type.
struct Case {
    schema: Arc<Schema>,
    gvk: Gvk,
    ty: TypeId,
    line: Value,
}

impl Case {
    fn text(&self, key: &str) -> &str {
        self.line[key].as_str().unwrap_or_default()
    }

    fn value(&self, key: &str) -> Value {
        serde_json::from_str(self.text(key)).unwrap()
    }

    /// Returns the object in the form that Go has after it has decoded the text.
    fn read(&self, text: &str) -> Result<Value, String> {
        let decoded = codec::json::decode_strict(&self.schema, self.ty, text.as_bytes());
        let mut value = decoded.map_err(|e| e.to_string())?.value;
        codec::normalize(&self.schema, self.ty, &mut value);
        Ok(value)
    }
}

fn recorded() -> Vec<Case> {
    #[allow(clippy::disallowed_methods, reason = "a longer recording is the caller's business")]
    let named = std::env::var_os("KUBE_LITE_WIRE").map(PathBuf::from);
    let kept = || PathBuf::from("testdata/wire.jsonl.gz");
    let file = std::fs::File::open(named.unwrap_or_else(kept)).unwrap();
    let mut text = String::new();
    flate2::read::GzDecoder::new(file).read_to_string(&mut text).unwrap();
    let schema = Schema::builtin();
    let case = |line: &str| {
        let line: Value = serde_json::from_str(line).unwrap();
        let (version, kind) = line["kind"].as_str().unwrap().rsplit_once('/').unwrap();
        let gvk = Gvk::from_api_version(version, kind);
        let ty = schema.kind(&gvk).unwrap();
        Case { schema: Arc::clone(&schema), gvk, ty, line }
    };
    text.lines().map(case).collect()
}

/// Returns the first difference of two values.
fn difference(want: &Value, got: &Value, at: &str) -> Option<String> {
    match (want, got) {
        (Value::Object(a), Value::Object(b)) => {
            let keys: std::collections::BTreeSet<&String> = a.keys().chain(b.keys()).collect();
            keys.into_iter().find_map(|key| match (a.get(key), b.get(key)) {
                (Some(a), Some(b)) => difference(a, b, &format!("{at}.{key}")),
                (a, b) => Some(format!("{at}.{key}: {a:?} is {b:?}")),
            })
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            let mut pairs = a.iter().zip(b).enumerate();
            pairs.find_map(|(i, (a, b))| difference(a, b, &format!("{at}[{i}]")))
        }
        _ => (want != got).then(|| format!("{at}: {want} is {got}")),
    }
}

/// Fails with the number of differences and the first of them.
fn none(faults: &[String], of: usize) {
    let shown: Vec<&String> = faults.iter().take(40).collect();
    assert!(faults.is_empty(), "{} faults in {of} cases: {shown:#?}", faults.len());
}

fn check(op: &str, least: usize, judge: impl Fn(&Case) -> Vec<String>) {
    let (mut faults, mut count) = (Vec::new(), 0);
    for case in recorded().iter().filter(|case| case.text("op") == op) {
        count += 1;
        let name = format!("{} {}", case.text("kind"), case.line["number"]);
        faults.extend(judge(case).into_iter().map(|fault| format!("{name}: {fault}")));
    }
    assert!(count >= least, "only {count} cases of {op}");
    none(&faults, count);
}

#[test]
fn codecs_are_recorded_on_the_wire() {
    check("codec", 200, |case| {
        let read = match (case.read(case.text("in")), case.text("proto").is_empty()) {
            (Ok(read), _) => read,
            (Err(error), true) if error == case.text("error") => return Vec::new(),
            (Err(error), _) => {
                return vec![format!("{error:?}, upstream {:?}", case.text("error"))];
            }
        };
        let mut faults = Vec::new();
        let want = if case.text("json").is_empty() { "in" } else { "json" };
        if let Some(difference) = difference(&case.value(want), &read, "") {
            faults.push(format!("JSON{difference}"));
        }
        let proto = STANDARD.decode(case.text("proto")).unwrap();
        match codec::protobuf::encode_object(&case.schema, &read) {
            Ok(bytes) if bytes == proto => {}
            Ok(bytes) => {
                let at = bytes.iter().zip(&proto).take_while(|(a, b)| a == b).count();
                let around = |bytes: &[u8]| {
                    let part = bytes.get(at.saturating_sub(20)..(at + 20).min(bytes.len()));
                    part.unwrap_or_default().escape_ascii().to_string()
                };
                faults.push(format!("protobuf at {at}: {} is {}", around(&proto), around(&bytes)));
            }
            Err(_) if proto.is_empty() => {}
            Err(error) => faults.push(format!("protobuf: {error}")),
        }
        if !proto.is_empty() {
            let back = if case.text("back").is_empty() { want } else { "back" };
            match codec::protobuf::decode_object(&case.schema, &proto) {
                Ok((_, value)) => {
                    let difference = difference(&case.value(back), &value, "");
                    faults.extend(difference.map(|d| format!("read from protobuf{d}")));
                }
                Err(error) => faults.push(format!("read from protobuf: {error}")),
            }
        }
        faults
    });
}

#[test]
fn strategic_merges_are_recorded_on_the_wire() {
    check("strategic", 60, |case| {
        let (old, patch) = (case.value("old"), case.value("patch"));
        match (crate::patch::strategic(&case.schema, case.ty, old, patch), case.text("error")) {
            (Ok(merged), "") => difference(&case.value("json"), &merged, "").into_iter().collect(),
            (Err(refusal), error) if !error.is_empty() && refusal.message.contains(error) => {
                Vec::new()
            }
            (outcome, error) => vec![format!("{:?}, upstream {error:?}", outcome.err())],
        }
    });
}

/// Returns the object without the times of its managed fields, and with their entries sorted. The
/// order of two entries depends on the times of the writes.
fn timeless(mut object: Value) -> Value {
    let entries = object.pointer_mut("/metadata/managedFields").and_then(Value::as_array_mut);
    if let Some(entries) = entries {
        for entry in entries.iter_mut().filter_map(Value::as_object_mut) {
            entry.remove("time");
        }
        entries.compact_sort_by_key(ToString::to_string);
    }
    object
}

/// Returns the sorted lines of an error.
fn unordered(said: &str) -> Vec<&str> {
    let mut lines: Vec<&str> = said.lines().collect();
    lines.compact_sort();
    lines
}

#[test]
fn owners_are_recorded_on_the_wire() {
    check("apply", 60, |case| {
        let mut live: Option<Value> = None;
        let mut faults = Vec::new();
        for (number, step) in case.line["steps"].as_array().unwrap().iter().enumerate() {
            let write = Write {
                schema: &case.schema,
                ty: case.ty,
                gvk: &case.gvk,
                custom: false,
                manager: step["manager"].as_str().unwrap(),
                subresource: "",
                reset: None,
                now: "2026-01-01T00:00:00Z",
            };
            let of = usize::try_from(step["of"].as_u64().unwrap()).unwrap();
            let text = case.line["objects"][of].as_str().unwrap();
            let outcome = if step["op"] == "apply" {
                let config: Value = serde_json::from_str(text).unwrap();
                apply(&write, live.as_ref(), &config, step["force"] == true)
                    .map_err(|refusal| refusal.message)
                    .and_then(|mut made| {
                        crate::patch::restore(&case.schema, case.ty, &mut made)
                            .map_err(|error| error.to_string())?;
                        case.read(&made.to_string())
                    })
            } else {
                case.read(text).map(|mut new| {
                    let held = live.as_ref().and_then(|l| l.pointer("/metadata/managedFields"));
                    if let Some(held) = held {
                        new["metadata"]["managedFields"] = held.clone();
                    }
                    track_update(&write, live.as_ref(), &mut new);
                    new
                })
            };
            let fault = match (&outcome, step["error"].as_str()) {
                (Ok(made), None) => {
                    let want: Value = serde_json::from_str(step["json"].as_str().unwrap()).unwrap();
                    difference(&timeless(want), &timeless(made.clone()), "")
                }
                // Upstream reports several errors in the order of a Go map, which varies.
                (Err(said), Some(error)) if unordered(said) == unordered(error) => None,
                (outcome, error) => Some(format!(
                    " {:?}, upstream {error:?}",
                    outcome.as_ref().map(|_| json!("made"))
                )),
            };
            if let Some(fault) = fault {
                faults.push(format!("step {number}{fault}"));
                // The following steps depend on this one.
                break;
            }
            live = outcome.ok().or(live);
        }
        faults
    });
}
