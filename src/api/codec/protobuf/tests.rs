//! Tests of the encoder and the decoder with upstream's golden files.

use std::path::PathBuf;

use serde_json::json;

use super::*;

#[allow(clippy::print_stderr, reason = "a skipped test says so")]
/// Returns the folder of Kubernetes' round-trip data, which contains one fully populated object per
/// kind.
fn golden_dir() -> Option<PathBuf> {
    #[allow(clippy::disallowed_methods, reason = "where the data is is the caller's business")]
    let named = std::env::var_os("KUBE_LITE_GOLDEN").map(PathBuf::from);
    // Tests run in the folder of their crate. The path at compile time can be that of another
    // checkout whose build is reused.
    let beside = || PathBuf::from("../../../shared/kubernetes-1.37/golden");
    let dir = named.unwrap_or_else(beside);
    if dir.is_dir() {
        return Some(dir);
    }
    #[allow(clippy::disallowed_methods, reason = "a skipped test must not pass unnoticed in CI")]
    let ci = std::env::var_os("CI").is_some_and(|v| v == "true");
    assert!(!ci, "no golden data at {}: set KUBE_LITE_GOLDEN", dir.display());
    eprintln!("skipped: no golden data at {}", dir.display());
    None
}

fn golden() -> Vec<(String, Value, Vec<u8>)> {
    let Some(dir) = golden_dir() else { return Vec::new() };
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|e| e == "json") {
            let value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
            let name = path.file_stem().unwrap().to_string_lossy().into_owned();
            found.push((name, value, std::fs::read(path.with_extension("pb")).unwrap()));
        }
    }
    found.sort_by(|a, b| a.0.cmp(&b.0));
    assert!(!found.is_empty(), "the golden folder holds no data");
    found
}

fn first_difference(a: &[u8], b: &[u8]) -> String {
    let at = a.iter().zip(b).position(|(x, y)| x != y).unwrap_or(a.len().min(b.len()));
    let around = |d: &[u8]| {
        String::from_utf8_lossy(&d[at.saturating_sub(30)..d.len().min(at + 30)])
            .escape_debug()
            .to_string()
    };
    format!("byte {at} of {} and {}:\n    {}\n    {}", a.len(), b.len(), around(a), around(b))
}

#[test]
fn golden_objects_survive_both_formats() {
    let schema = Schema::builtin();
    let mut faults = Vec::new();
    for (name, value, pb) in golden() {
        let mut fault =
            |what: &str, detail: String| faults.push(format!("{name}: {what}: {detail}"));
        // A watch event is the only object without a kind.
        let bare = value["kind"].is_null();
        let id = if bare {
            schema.by_name("io.k8s.apimachinery.pkg.apis.meta.v1.WatchEvent").unwrap()
        } else {
            schema
                .kind(&Gvk::from_api_version(
                    value["apiVersion"].as_str().unwrap(),
                    value["kind"].as_str().unwrap(),
                ))
                .unwrap()
        };
        let encoded = if bare {
            encode_typed(&schema, id, "", "", &value)
        } else {
            encode_object(&schema, &value)
        };
        let decoded = if bare {
            decode_message(&schema, id, open(&pb).unwrap().raw)
        } else {
            decode_object(&schema, &pb).map(|(_, value)| value)
        };
        match encoded {
            Ok(bytes) if bytes == pb => {}
            Ok(bytes) => fault("encoded differently", first_difference(&bytes, &pb)),
            Err(e) => fault("not encoded", e.to_string()),
        }
        match decoded {
            Ok(decoded) if decoded == value => {}
            Ok(decoded) => fault(
                "decoded differently",
                first_difference(decoded.to_string().as_bytes(), value.to_string().as_bytes()),
            ),
            Err(e) => fault("not decoded", e.to_string()),
        }
        match crate::codec::json::decode_strict(&schema, id, value.to_string().as_bytes()) {
            Ok(decoded) if decoded.value == value && decoded.strict_errors.is_empty() => {}
            Ok(decoded) => fault(
                "read differently",
                format!(
                    "{:?} {}",
                    decoded.strict_errors,
                    first_difference(
                        decoded.value.to_string().as_bytes(),
                        value.to_string().as_bytes()
                    )
                ),
            ),
            Err(e) => fault("not read", e.to_string()),
        }
        let mut normal = value.clone();
        crate::codec::normalize(&schema, id, &mut normal);
        if normal != value {
            fault(
                "normalised differently",
                first_difference(normal.to_string().as_bytes(), value.to_string().as_bytes()),
            );
        }
    }
    assert!(faults.is_empty(), "{} faults\n{}", faults.len(), faults.join("\n"));
}

/// Decodes arbitrary bytes, which results in an error or a value, without a panic and with bounded
/// work.
#[test]
fn golden_objects_with_flipped_bytes_do_not_panic() {
    let schema = Schema::builtin();
    for (_, _, pb) in golden() {
        let step = (pb.len() / 97).max(1);
        for at in (0..pb.len()).step_by(step) {
            for flip in [0xff_u8, 0x01, 0x80] {
                let mut bytes = pb.clone();
                bytes[at] ^= flip;
                if let Ok((_, value)) = decode_object(&schema, &bytes) {
                    let _ = encode_object(&schema, &value);
                }
                let _ = decode_object(&schema, &bytes[..at]);
            }
        }
    }
}

#[test]
fn writes_zero_values_as_gogo_does() {
    let schema = Schema::builtin();
    let bytes = encode_object(
        &schema,
        &json!({"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a"},"data":{"k":"v"}}),
    )
    .unwrap();
    let expected = b"k8s\0\x0a\x0f\x0a\x02v1\x12\x09ConfigMap\x12\x1b\
        \x0a\x11\x0a\x01a\x12\x00\x1a\x00\x22\x00\x2a\x00\x32\x00\x38\x00\x42\x00\
        \x12\x06\x0a\x01k\x12\x01v\x1a\x00\x22\x00";
    // The metadata has 17 bytes: seven empty fields and the name.
    assert_eq!(first_difference(&bytes, expected), first_difference(expected, expected));
}

#[test]
fn lists_and_events_hold_the_bytes_of_their_objects() {
    let schema = Schema::builtin();
    let item = json!({"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a"}});
    let list = encoded_list(&schema, &mut std::iter::once(item.to_string()));
    let whole = json!({"apiVersion":"v1","kind":"ConfigMapList","metadata":{"resourceVersion":"7"},"items":[{"metadata":{"name":"a"}}]});
    assert_eq!(list, encode_object(&schema, &whole).unwrap());
    let frame = encode_watch_event(&schema, "ADDED", &item).unwrap();
    assert_eq!(frame[..4], u32::try_from(frame.len() - 4).unwrap().to_be_bytes());
    assert_eq!(&frame[4..11], b"\x0a\x05ADDED");
    let object = encode_object(&schema, &item).unwrap();
    assert!(frame.ends_with(&object));
}

/// Encodes ConfigMaps as a list at revision 7.
fn encoded_list(schema: &Schema, items: &mut dyn Iterator<Item = String>) -> Vec<u8> {
    let list = Gvk::new("", "v1", "ConfigMapList");
    let encoder = ListEncoder::new(schema, &list, &json!({"resourceVersion":"7"})).unwrap();
    let mut bytes = Vec::new();
    items.for_each(|item| encoder.item(schema, item.as_bytes(), &mut bytes).unwrap());
    [encoder.begin(bytes.len()).unwrap(), bytes, encoder.end()].concat()
}

#[test]
fn lists_of_any_length_are_the_bytes_of_the_whole() {
    let schema = Schema::builtin();
    let item =
        |n: usize| json!({"metadata":{"name":format!("m-{n}")},"data":{"k":"v".repeat(100)}});
    for count in [0, 1, 3000] {
        let whole = json!({"apiVersion":"v1","kind":"ConfigMapList","metadata":{"resourceVersion":"7"},
            "items":(0..count).map(item).collect::<Vec<_>>()});
        let list = encoded_list(&schema, &mut (0..count).map(|n| item(n).to_string()));
        assert_eq!(list, encode_object(&schema, &whole).unwrap(), "{count}");
    }
}

#[test]
fn refuses_kinds_without_protobuf() {
    let schema = Schema::builtin();
    let table = json!({"apiVersion":"meta.k8s.io/v1","kind":"Table","columnDefinitions":[]});
    assert!(matches!(encode_object(&schema, &table), Err(EncodeError::NoForm(_))));
    assert!(matches!(
        encode_object(&schema, &json!({"apiVersion":"a/v1","kind":"B"})),
        Err(EncodeError::UnknownKind { .. })
    ));
    assert!(decode_object(&schema, b"k8s").is_err());
    assert!(decode_object(&schema, b"k8s\0\x12\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01").is_err());
}
