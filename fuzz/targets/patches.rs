//! Patches: the first byte says which, then two JSON texts, object and patch. A patch of nothing
//! changes nothing, an apply that is repeated neither, and nothing grows beyond what upstream lets
//! it.
#![no_main]

mod kinds;

use api::patch::apply::{Write, apply, track_update};
use api::patch::{self, MAX_JSON_PATCH_COPY_BYTES, ordered};
use kinds::{SCHEMA, kind_of, values};
use serde_json::{Value, json};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let Some((how, texts)) = bytes.split_first() else { return };
    let mut texts = values(texts);
    let (Some(live), Some(patch)) = (texts.next(), texts.next()) else { return };
    let text = |key| live.get(key).and_then(Value::as_str).unwrap_or_default();
    let (gvk, id) = kind_of(text("apiVersion"), text("kind"), usize::from(how >> 2));
    let size = |value: &Value| value.to_string().len();
    let raw = patch.to_string();
    match how % 4 {
        0 => {
            let most = size(&live) + raw.len() + MAX_JSON_PATCH_COPY_BYTES;
            let _ = ordered::patched(&SCHEMA, Some(id), &live, raw.as_bytes());
            let _ = patch::json_patch_strict_errors(&patch);
            if let Ok(patched) = patch::json_patch(live, &patch) {
                assert!(size(&patched) <= most, "{} bytes", size(&patched));
            }
        }
        1 => {
            let most = size(&live) + raw.len();
            let _ = ordered::merged(&SCHEMA, Some(id), &live, raw.as_bytes());
            if live.is_object() {
                assert_eq!(patch::merge_patch(live.clone(), json!({})).unwrap(), live);
            }
            if let Ok(once) = patch::merge_patch(live, patch.clone()) {
                assert!(size(&once) <= most, "{} bytes", size(&once));
                let twice = patch::merge_patch(once.clone(), patch).unwrap();
                let thrice = patch::merge_patch(twice.clone(), serde_json::from_str(&raw).unwrap());
                assert_eq!(thrice.unwrap(), twice, "a merge that was made changes nothing");
            }
        }
        2 => {
            if live.is_object() {
                assert_eq!(patch::strategic(&SCHEMA, id, live.clone(), json!({})).unwrap(), live);
            }
            let most = size(&live) + raw.len();
            if let Ok(once) = patch::strategic(&SCHEMA, id, live, patch) {
                assert!(size(&once) <= most, "{} bytes", size(&once));
            }
        }
        _ => {
            let now = "2026-01-01T00:00:00Z";
            let by = |manager| {
                let schema = &SCHEMA;
                Write {
                    schema,
                    ty: id,
                    gvk,
                    custom: false,
                    manager,
                    subresource: "",
                    reset: None,
                    now,
                }
            };
            let mut tracked = live;
            track_update(&by("a"), None, &mut tracked);
            let Ok(once) = apply(&by("b"), Some(&tracked), &patch, true) else { return };
            let twice = apply(&by("b"), Some(&once), &patch, true)
                .expect("what was applied is applied again");
            assert_eq!(twice, once, "an apply that was made changes nothing");
            let mut updated = once.clone();
            track_update(&by("c"), Some(&once), &mut updated);
            assert_eq!(updated, once, "an update of nothing owns nothing");
        }
    }
});
