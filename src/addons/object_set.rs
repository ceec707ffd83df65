//! The marks of an Addon's objects, in the form of rancher's wrangler (`pkg/apply`): k3s finds the
//! objects of kube-lite by them and kube-lite those of k3s.

use std::io::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::{Map, Value};

use crate::addon::{KIND, NAMESPACE};

/// Label with the hash of the owner.
pub(crate) const HASH: &str = "objectset.rio.cattle.io/hash";
/// Annotation with the object as it was applied: compressed, without long texts.
const APPLIED: &str = "objectset.rio.cattle.io/applied";
/// Label with which a user keeps an object that its file drops.
const PRUNE: &str = "objectset.rio.cattle.io/prune";
const ID: &str = "objectset.rio.cattle.io/id";
const OWNER_KIND: &str = "objectset.rio.cattle.io/owner-gvk";
const OWNER_NAME: &str = "objectset.rio.cattle.io/owner-name";
const OWNER_NAMESPACE: &str = "objectset.rio.cattle.io/owner-namespace";

/// The longest text in the annotation of the applied object.
const TEXT_MAX: usize = 64;
/// Members of list items that the annotation keeps whole: they identify items.
const LIST_KEYS: [&str; 10] = [
    "apiVersion",
    "containerPort",
    "devicePath",
    "ip",
    "kind",
    "mountPath",
    "name",
    "port",
    "topologyKey",
    "type",
];

/// The Addon that owns objects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Owner {
    name: String,
    hash: String,
}

impl Owner {
    /// The Addon `name`.
    pub(crate) fn new(name: &str) -> Self {
        let text = format!("{KIND}{name}{NAMESPACE}");
        let digest = ring::digest::digest(&ring::digest::SHA1_FOR_LEGACY_USE_ONLY, text.as_bytes());
        Self { name: name.to_owned(), hash: base::hex(digest.as_ref()) }
    }

    /// The label selector of its objects.
    pub(crate) fn selector(&self) -> String {
        format!("{HASH}={}", self.hash)
    }

    /// Whether the object has the label of this owner.
    pub(crate) fn owns(&self, object: &Value) -> bool {
        member(object, "labels", HASH) == Some(&self.hash)
    }

    /// Adds the marks to an object.
    pub(crate) fn mark(&self, object: &mut Value) {
        set(object, "labels", HASH, &self.hash);
        set(object, "annotations", ID, "");
        set(object, "annotations", OWNER_KIND, KIND);
        set(object, "annotations", OWNER_NAME, &self.name);
        set(object, "annotations", OWNER_NAMESPACE, NAMESPACE);
        let annotations =
            object.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut);
        if let Some(annotations) = annotations {
            annotations.remove(APPLIED);
        }
        let applied = applied(object);
        set(object, "annotations", APPLIED, &applied);
    }
}

/// Whether an object may be deleted because its file dropped it.
pub(crate) fn is_prunable(object: &Value) -> bool {
    member(object, "labels", PRUNE) != Some("false")
}

fn member<'a>(object: &'a Value, map: &str, name: &str) -> Option<&'a str> {
    object.get("metadata")?.get(map)?.get(name)?.as_str()
}

fn set(object: &mut Value, map: &str, name: &str, value: &str) {
    let Some(fields) = object.as_object_mut() else { return };
    let metadata = fields.entry("metadata").or_insert_with(|| Value::Object(Map::new()));
    let Some(metadata) = metadata.as_object_mut() else { return };
    let members = metadata.entry(map).or_insert(Value::Null);
    if members.is_null() {
        *members = Value::Object(Map::new());
    }
    if let Some(members) = members.as_object_mut() {
        members.insert(name.to_owned(), value.into());
    }
}

/// The annotation: JSON with shortened texts, compressed by gzip, in base64 without padding.
fn applied(object: &Value) -> String {
    let text = serde_json::to_vec(&shorten(object, false)).unwrap_or_default();
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    // Writing into memory does not fail.
    let compressed = encoder.write_all(&text).and_then(|()| encoder.finish());
    STANDARD_NO_PAD.encode(compressed.unwrap_or_default())
}

/// Shortens the texts in an object. wrangler counts bytes; a character is not split here.
fn shorten(value: &Value, is_item: bool) -> Value {
    match value {
        Value::Object(members) => {
            let member = |(name, value): (&String, &Value)| {
                let is_kept = is_item && LIST_KEYS.contains(&name.as_str()) && value.is_string();
                (name.clone(), if is_kept { value.clone() } else { shorten(value, false) })
            };
            Value::Object(members.iter().map(member).collect())
        }
        Value::Array(items) => {
            let item = |value: &Value| {
                if value.is_string() { value.clone() } else { shorten(value, true) }
            };
            Value::Array(items.iter().map(item).collect())
        }
        Value::String(text) if text.len() > TEXT_MAX => {
            let end = (0..=TEXT_MAX).rev().find(|end| text.is_char_boundary(*end));
            Value::from(text.get(..end.unwrap_or_default()).unwrap_or_default())
        }
        other => other.clone(),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use serde_json::json;

    use super::*;

    #[test]
    fn the_hash_of_an_owner_is_that_of_k3s() {
        // The label of k3s's CoreDNS Deployment and ConfigMap.
        let owner = Owner::new("coredns");
        assert_eq!(
            owner.selector(),
            "objectset.rio.cattle.io/hash=bce283298811743a0386ab510f2f67ef74240c57"
        );
    }

    #[test]
    fn marked_objects_have_labels_annotations_and_the_applied_object() {
        let owner = Owner::new("coredns");
        let mut object = json!({"kind": "ConfigMap", "metadata": {"name": "a", "labels": null},
            "data": {"long": "x".repeat(100)}, "list": [{"name": "n".repeat(70), "other": "o".repeat(70)}, "s".repeat(70)]});
        owner.mark(&mut object);
        assert!(owner.owns(&object) && !Owner::new("b").owns(&object));
        let annotations = &object["metadata"]["annotations"];
        assert_eq!(annotations[ID], "");
        assert_eq!(annotations[OWNER_KIND], "k3s.cattle.io/v1, Kind=Addon");
        assert_eq!(
            (&annotations[OWNER_NAME], &annotations[OWNER_NAMESPACE]),
            (&json!("coredns"), &json!("kube-system"))
        );
        let decode = |object: &Value| {
            let text = object["metadata"]["annotations"][APPLIED].as_str().unwrap();
            assert!(text.starts_with("H4sI"));
            let bytes = STANDARD_NO_PAD.decode(text).unwrap();
            let mut json = String::new();
            flate2::read::GzDecoder::new(&*bytes).read_to_string(&mut json).unwrap();
            serde_json::from_str::<Value>(&json).unwrap()
        };
        let applied = decode(&object);
        assert_eq!(applied["data"]["long"], "x".repeat(64));
        assert_eq!(
            applied["list"],
            json!([{"name": "n".repeat(70), "other": "o".repeat(64)}, "s".repeat(70)])
        );
        assert_eq!(applied["metadata"]["annotations"].get(APPLIED), None);
        let before = object.clone();
        owner.mark(&mut object);
        assert_eq!(object, before, "the marks do not depend on earlier ones");
        assert!(is_prunable(&object));
        object["metadata"]["labels"][PRUNE] = "false".into();
        assert!(!is_prunable(&object));
    }
}
