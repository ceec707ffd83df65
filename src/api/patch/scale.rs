//! Conversion of managed fields between a resource and its `scale` subresource, whose managed
//! fields contain the owner of the replica count.

use serde_json::Value;

use super::managed::{self, ManagedFieldsEntry, ManagedFieldsError};
use crate::fields::{Element, Set};

/// API version of a Scale.
const SCALE_VERSION: &str = "autoscaling/v1";

/// The path of the replica count in each version of the resource, such as `("apps/v1", &["spec",
/// "replicas"])`.
pub type ReplicasPaths<'a> = [(&'a str, &'a [&'a str])];

fn path_of(paths: &ReplicasPaths<'_>, version: &str) -> Option<Vec<Element>> {
    let (_, path) = paths.iter().find(|(v, path)| *v == version && !path.is_empty())?;
    Some(path.iter().map(|name| Element::field(name)).collect())
}

fn replicas_in_scale() -> Vec<Element> {
    vec![Element::field("spec"), Element::field("replicas")]
}

fn set_of(path: Vec<Element>) -> Set {
    let mut set = Set::new();
    set.insert(path);
    set
}

fn with(entry: &ManagedFieldsEntry, version: &str, path: Vec<Element>) -> ManagedFieldsEntry {
    let mut out = ManagedFieldsEntry::new(
        &entry.manager,
        entry.operation,
        version,
        &entry.subresource,
        set_of(path),
    );
    out.time.clone_from(&entry.time);
    out
}

/// Returns the managed fields of a resource's Scale; `None` when no manager owns the replica count.
///
/// # Errors
/// The managed fields are invalid.
pub fn to_scale(
    resource: Option<&Value>,
    paths: &ReplicasPaths<'_>,
) -> Result<Option<Value>, ManagedFieldsError> {
    let mut out = Vec::new();
    for mut entry in managed::decode(resource.cloned(), true)? {
        if let Some(path) = path_of(paths, &entry.api_version)
            && entry.set().has(&path)
        {
            out.push(with(&entry, SCALE_VERSION, replicas_in_scale()));
        }
    }
    Ok(managed::encode(out))
}

/// Returns the managed fields of the resource after a write of its Scale; `version` is the
/// resource's API version.
///
/// # Errors
/// The managed fields of the resource or of the Scale are invalid.
pub fn to_resource(
    resource: Option<&Value>,
    scale: Option<&Value>,
    version: &str,
    paths: &ReplicasPaths<'_>,
) -> Result<Option<Value>, ManagedFieldsError> {
    let mut scale = managed::decode(scale.cloned(), true)?;
    let mut out: Vec<ManagedFieldsEntry> = Vec::new();
    for mut entry in managed::decode(resource.cloned(), true)? {
        if !paths.iter().any(|(v, _)| *v == entry.api_version) {
            continue;
        }
        let Some(path) = path_of(paths, &entry.api_version).filter(|path| entry.set().has(path))
        else {
            out.push(entry);
            continue;
        };
        // In the Scale, an `Update` entry has the API version of the Scale.
        let same = |s: &ManagedFieldsEntry| {
            s.manager == entry.manager
                && s.operation == entry.operation
                && s.subresource == entry.subresource
        };
        match scale.iter().position(same) {
            Some(at) => {
                scale.remove(at);
                out.push(entry);
            }
            None => {
                let left = entry.set().difference(&set_of(path));
                if !left.is_empty() {
                    *entry.set() = left;
                    out.push(entry);
                }
            }
        }
    }
    for mut entry in scale {
        if entry.set().has(&replicas_in_scale())
            && let Some(path) = path_of(paths, version)
        {
            let moved = with(&entry, version, path);
            match out.iter_mut().find(|e| e.is_same(&moved)) {
                Some(have) => {
                    let set = std::mem::take(have.set())
                        .union(set_of(path_of(paths, version).unwrap_or_default()));
                    *have.set() = set;
                }
                None => out.push(moved),
            }
        }
    }
    Ok(managed::encode(out))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const PATHS: &ReplicasPaths<'static> = &[("apps/v1", &["spec", "replicas"])];

    fn entry(manager: &str, operation: &str, version: &str, fields: &Value) -> Value {
        json!({"manager":manager,"operation":operation,"apiVersion":version,"fieldsType":"FieldsV1","fieldsV1":fields})
    }

    #[test]
    fn shows_the_owner_of_the_count_and_moves_it() {
        let resource = json!([entry(
            "two",
            "Apply",
            "apps/v1",
            &json!({"f:spec":{"f:replicas":{},"f:paused":{}}})
        )]);
        let scale = to_scale(Some(&resource), PATHS).unwrap();
        assert_eq!(
            scale,
            Some(json!([entry(
                "two",
                "Apply",
                "autoscaling/v1",
                &json!({"f:spec":{"f:replicas":{}}})
            )]))
        );
        // The count is unchanged, so the entry keeps all of its fields.
        assert_eq!(
            to_resource(Some(&resource), scale.as_ref(), "apps/v1", PATHS).unwrap(),
            Some(resource.clone())
        );
        // Another manager acquires the replica count.
        let hpa =
            json!([entry("hpa", "Update", "autoscaling/v1", &json!({"f:spec":{"f:replicas":{}}}))]);
        let want = json!([
            entry("two", "Apply", "apps/v1", &json!({"f:spec":{"f:paused":{}}})),
            entry("hpa", "Update", "apps/v1", &json!({"f:spec":{"f:replicas":{}}}))
        ]);
        assert_eq!(to_resource(Some(&resource), Some(&hpa), "apps/v1", PATHS).unwrap(), Some(want));
    }
}
