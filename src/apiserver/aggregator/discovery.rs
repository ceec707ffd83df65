//! Adds the resources of aggregated API servers to discovery.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use api::value::{get, items, str_at};
use serde_json::{Value, json};
use sorting::CompactSort as _;

use super::{Remote, Table};

/// The groups of remotes, in the formats of `/apis` and of aggregated discovery.
pub(crate) fn merge(remotes: &Table) -> Vec<(Value, Value)> {
    let mut groups: BTreeMap<&str, Vec<&Remote>> = BTreeMap::new();
    for remote in remotes.values() {
        groups.entry(&remote.group).or_default().push(remote);
    }
    let mut groups: Vec<(&str, Vec<&Remote>)> = groups.into_iter().collect();
    for (_, versions) in &mut groups {
        versions.compact_sort_by_key(|r| (Reverse(r.priority.1), r.version.clone()));
    }
    groups.compact_sort_by_key(|(name, versions)| {
        (Reverse(versions.iter().map(|r| r.priority.0).max()), *name)
    });
    groups
        .into_iter()
        .map(|(name, versions)| (legacy(name, &versions), aggregated(name, &versions)))
        .collect()
}

fn legacy(name: &str, versions: &[&Remote]) -> Value {
    let versions: Vec<Value> = versions
        .iter()
        .map(|r| json!({"groupVersion": format!("{name}/{}", r.version), "version": r.version}))
        .collect();
    let preferred = versions.first().cloned().unwrap_or_default();
    json!({"name": name, "versions": versions, "preferredVersion": preferred})
}

fn aggregated(name: &str, versions: &[&Remote]) -> Value {
    let versions: Vec<Value> = versions
        .iter()
        .map(|remote| {
            let list = remote.resources.load();
            let resources = list.as_deref().map(|list| resources(remote, list)).unwrap_or_default();
            let freshness =
                if remote.is_available() && list.is_some() { "Current" } else { "Stale" };
            json!({"version": remote.version, "resources": resources, "freshness": freshness})
        })
        .collect();
    json!({"metadata": {"name": name}, "versions": versions})
}

/// Converts an `APIResourceList` to aggregated discovery (upstream's
/// `ConvertGroupVersionIntoToDiscovery`).
fn resources(remote: &Remote, list: &Value) -> Vec<Value> {
    let kind = |resource: &Value| {
        let or = |key: &str, own: &str| match str_at(resource, key) {
            "" => own.to_owned(),
            given => given.to_owned(),
        };
        json!({"group": or("group", &remote.group), "version": or("version", &remote.version), "kind": str_at(resource, "kind")})
    };
    let all = items(list, "resources");
    let tops = all.iter().filter(|r| !str_at(r, "name").contains('/'));
    tops.map(|resource| {
        let name = str_at(resource, "name");
        let namespaced = get(resource, "namespaced") == &Value::Bool(true);
        let mut value = json!({"resource": name, "responseKind": kind(resource), "scope": if namespaced { "Namespaced" } else { "Cluster" },
            "singularResource": str_at(resource, "singularName"), "verbs": items(resource, "verbs")});
        let subs: Vec<Value> = all
            .iter()
            .filter_map(|r| {
                let sub = str_at(r, "name").strip_prefix(name)?.strip_prefix('/')?;
                Some(json!({"subresource": sub, "responseKind": kind(r), "verbs": items(r, "verbs")}))
            })
            .collect();
        if let Some(map) = value.as_object_mut() {
            for key in ["shortNames", "categories"] {
                if !items(resource, key).is_empty() {
                    map.insert(key.to_owned(), items(resource, key).into());
                }
            }
            if !subs.is_empty() {
                map.insert("subresources".to_owned(), subs.into());
            }
        }
        value
    })
    .collect()
}
