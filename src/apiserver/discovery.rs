//! Serves discovery documents, legacy and aggregated; they are rebuilt when the registry changes.

pub(crate) mod health;
pub(crate) mod openapi;
pub(crate) mod zpages;

use std::collections::BTreeMap;
use std::sync::Arc;

use base64::Engine;
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::aggregator::Table;
use crate::registry::{Registry, Resource, Version};
use crate::request::Query;
use crate::request::body;
use crate::request::body::Body;
use crate::request::negotiate;
use crate::request::negotiate::{Media, Offer};

/// The documents of the current registry, built on first request: a burst of definitions rebuilds
/// them only once.
#[derive(Debug, Default)]
pub(crate) struct Cached(Mutex<Option<(Arc<Registry>, Arc<Documents>)>>);

impl Cached {
    /// The documents of this registry; they replace those of another one.
    pub(crate) fn of(&self, registry: &Arc<Registry>) -> Arc<Documents> {
        let mut cached = self.0.lock();
        match &*cached {
            Some((of, documents)) if Arc::ptr_eq(of, registry) => Arc::clone(documents),
            _ => {
                let documents = Arc::new(Documents::of(registry));
                *cached = Some((Arc::clone(registry), Arc::clone(&documents)));
                documents
            }
        }
    }
}

/// All discovery documents of a registry.
#[derive(Debug)]
pub(crate) struct Documents {
    legacy: BTreeMap<String, Value>,
    aggregated: BTreeMap<&'static str, (Bytes, String)>,
}

impl Documents {
    /// Builds the documents.
    pub(crate) fn of(registry: &Registry) -> Self {
        let mut legacy = BTreeMap::new();
        let mut groups = Vec::new();
        let mut core_items = Vec::new();
        let mut group_items = Vec::new();
        for group in registry.groups() {
            let versions: Vec<Value> =
                group.versions.iter().map(|v| group_version(&group.name, v)).collect();
            for version in &group.versions {
                let name = join(&group.name, &version.name);
                let path = if group.name.is_empty() {
                    format!("/api/{name}")
                } else {
                    format!("/apis/{name}")
                };
                legacy.insert(path, resource_list(&name, &group.name, version));
            }
            let is_core = group.name.is_empty();
            let metadata = if is_core { json!({}) } else { json!({"name": *group.name}) };
            let item = json!({"metadata": metadata,
                "versions": group.versions.iter().map(aggregated_version).collect::<Vec<_>>()});
            if group.name.is_empty() {
                let names: Vec<&str> = group.versions.iter().map(|v| v.name.as_ref()).collect();
                // Upstream adds the server's address, which no current client reads.
                let versions = json!({"kind": "APIVersions", "versions": names,
                    "serverAddressByClientCIDRs": []});
                legacy.insert("/api".into(), versions);
                core_items.push(item);
            } else {
                let preferred = versions.first().cloned().unwrap_or_default();
                let group_value = json!({"name": *group.name, "versions": versions,
                    "preferredVersion": preferred});
                let mut alone = group_value.clone();
                if let Some(map) = alone.as_object_mut() {
                    map.insert("kind".into(), "APIGroup".into());
                    map.insert("apiVersion".into(), "v1".into());
                }
                legacy.insert(format!("/apis/{}", group.name), alone);
                groups.push(group_value);
                group_items.push(item);
            }
        }
        legacy.insert(
            "/apis".into(),
            json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}),
        );
        let mut aggregated = BTreeMap::new();
        aggregated.insert("/api", aggregated_document(core_items));
        aggregated.insert("/apis", aggregated_document(group_items));
        Self { legacy, aggregated }
    }

    /// The documents of a path with the groups of aggregated API servers; `None` if those do not
    /// affect it.
    pub(crate) fn with(&self, remotes: &Table, path: &str) -> Option<Self> {
        let path = path.trim_end_matches('/');
        let groups = crate::aggregator::merge(remotes);
        if path != "/apis" {
            let name = path.strip_prefix("/apis/")?;
            let (group, _) = groups.into_iter().find(|(g, _)| g["name"] == name)?;
            let mut document = match self.legacy.get(path) {
                Some(document) => document.clone(),
                None => {
                    json!({"kind": "APIGroup", "apiVersion": "v1", "preferredVersion": group["preferredVersion"]})
                }
            };
            join_group(&mut document, &group);
            document["name"] = name.into();
            return Some(Self {
                legacy: BTreeMap::from([(path.to_owned(), document)]),
                aggregated: BTreeMap::new(),
            });
        }
        let mut list = self.legacy.get(path)?.clone();
        let (bytes, _) = self.aggregated.get(path)?;
        let mut items: Value = serde_json::from_slice(bytes).ok()?;
        for (group, discovered) in groups {
            join_groups(&mut list["groups"], group, "/name");
            join_groups(&mut items["items"], discovered, "/metadata/name");
        }
        let items = items["items"].as_array().cloned().unwrap_or_default();
        Some(Self {
            legacy: BTreeMap::from([(path.to_owned(), list)]),
            aggregated: BTreeMap::from([("/apis", aggregated_document(items))]),
        })
    }

    /// All discovery paths.
    pub(crate) fn paths(&self) -> Vec<String> {
        self.legacy.keys().cloned().collect()
    }

    /// The response for a path; `None` if it is not a discovery path.
    pub(crate) fn answer(
        &self,
        path: &str,
        headers: &HeaderMap,
        query: &Query,
    ) -> Option<Response<Body>> {
        let path = path.trim_end_matches('/');
        let document = self.legacy.get(path)?;
        if let Some((bytes, tag)) = self.aggregated.get(path)
            && let Some(version) = aggregated_version_wanted(headers)
        {
            return Some(aggregated_answer(bytes, tag, version, headers));
        }
        let accepted =
            match negotiate::accept(headers, query, Offer { transforms: false, streams: false }) {
                Ok(accepted) => accepted,
                Err(refusal) => return Some(crate::response::status::response(&refusal)),
            };
        let (media, bytes) = match accepted.media {
            Media::Yaml => (Media::Yaml, crate::serialization::yaml(document).into_bytes()),
            _ if accepted.pretty => {
                (Media::Json, serde_json::to_vec_pretty(document).unwrap_or_default())
            }
            _ => (Media::Json, serde_json::to_vec(document).unwrap_or_default()),
        };
        let mut response = negotiate::respond(headers, StatusCode::OK, media.name(), bytes);
        if self.aggregated.contains_key(path) {
            response.headers_mut().insert(header::VARY, HeaderValue::from_static("Accept"));
        }
        Some(response)
    }
}

/// Adds the versions of `group` to an existing group, and replaces those that both have.
fn join_group(existing: &mut Value, group: &Value) {
    let mut versions = existing["versions"].as_array().cloned().unwrap_or_default();
    let theirs = group["versions"].as_array();
    let is_replaced = |own: &Value| {
        theirs.into_iter().flatten().any(|version| version["version"] == own["version"])
    };
    versions.retain(|own| !is_replaced(own));
    versions.extend(group["versions"].as_array().into_iter().flatten().cloned());
    existing["versions"] = versions.into();
}

/// Adds a group to a list, or its versions to the existing group; `name` is the JSON pointer to the
/// group's name.
fn join_groups(list: &mut Value, group: Value, name: &str) {
    let Some(list) = list.as_array_mut() else { return };
    match list.iter_mut().find(|existing| existing.pointer(name) == group.pointer(name)) {
        Some(existing) => join_group(existing, &group),
        None => list.push(group),
    }
}

fn join(group: &str, version: &str) -> String {
    if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") }
}

fn group_version(group: &str, version: &Version) -> Value {
    json!({"groupVersion": join(group, &version.name), "version": *version.name})
}

fn resource_list(name: &str, group: &str, version: &Version) -> Value {
    let mut resources = Vec::new();
    for row in &version.resources {
        resources.push(legacy_resource(row));
        for sub in &row.spec.subresources {
            let mut value = json!({
                "name": format!("{}/{}", row.spec.gvr.resource, sub.name),
                "singularName": "",
                "namespaced": row.spec.namespaced,
                "kind": *sub.kind.kind,
                "verbs": sub.verbs.iter().map(|verb| &**verb).collect::<Vec<_>>(),
            });
            if let Some(map) = value.as_object_mut().filter(|_| !sub.kind.version.is_empty()) {
                map.insert("group".into(), (*sub.kind.group).into());
                map.insert("version".into(), (*sub.kind.version).into());
            }
            resources.push(value);
        }
    }
    let mut list = json!({"kind": "APIResourceList", "groupVersion": name, "resources": resources});
    if let Some(map) = list.as_object_mut().filter(|_| !group.is_empty()) {
        map.insert("apiVersion".into(), "v1".into());
    }
    list
}

fn texts(list: &[std::sync::Arc<str>]) -> Vec<&str> {
    list.iter().map(|t| &**t).collect()
}

/// The verbs of a row in discovery.
fn verbs(row: &Resource) -> Vec<&str> {
    match &row.spec.custom {
        Some(custom) if custom.is_terminating() => crate::crd::LAST_VERBS.to_vec(),
        _ => texts(&row.spec.verbs),
    }
}

fn legacy_resource(row: &Resource) -> Value {
    let spec = &row.spec;
    let mut value = json!({"name": *spec.gvr.resource, "singularName": *spec.singular, "namespaced": spec.namespaced,
        "kind": *spec.gvk.kind, "verbs": verbs(row)});
    if let Some(map) = value.as_object_mut() {
        if !spec.short_names.is_empty() {
            map.insert("shortNames".into(), texts(&spec.short_names).into());
        }
        if !spec.categories.is_empty() {
            map.insert("categories".into(), texts(&spec.categories).into());
        }
        if !row.storage_hash.is_empty() {
            map.insert("storageVersionHash".into(), row.storage_hash.clone().into());
        }
    }
    value
}

fn aggregated_version(version: &Version) -> Value {
    let resources: Vec<Value> =
        version.resources.iter().map(|row| aggregated_resource(row)).collect();
    json!({"version": *version.name, "resources": resources, "freshness": "Current"})
}

fn aggregated_resource(row: &Resource) -> Value {
    let spec = &row.spec;
    let kind = |k: &api::Gvk| json!({"group": *k.group, "version": *k.version, "kind": *k.kind});
    // As in upstream, only definitions repeat the group and version in `responseKind`.
    let full = |k: &api::Gvk| match (&spec.custom, k.version.is_empty()) {
        (Some(_), true) => api::Gvk { kind: Arc::clone(&k.kind), ..spec.gvk.clone() },
        _ => k.clone(),
    };
    let own = full(&api::Gvk::new("", "", &spec.gvk.kind));
    let mut value = json!({"resource": *spec.gvr.resource, "responseKind": kind(&own),
        "scope": if spec.namespaced { "Namespaced" } else { "Cluster" }, "singularResource": *spec.singular, "verbs": verbs(row)});
    if let Some(map) = value.as_object_mut() {
        if !spec.short_names.is_empty() {
            map.insert("shortNames".into(), texts(&spec.short_names).into());
        }
        if !spec.categories.is_empty() {
            map.insert("categories".into(), texts(&spec.categories).into());
        }
        if !spec.subresources.is_empty() {
            let subs = spec.subresources.iter();
            let subs = subs.map(|s| json!({"subresource": *s.name, "responseKind": kind(&full(&s.kind)), "verbs": texts(&s.verbs)}));
            map.insert("subresources".into(), subs.collect::<Vec<_>>().into());
        }
    }
    value
}

fn aggregated_document(items: Vec<Value>) -> (Bytes, String) {
    let document = json!({"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "metadata": {}, "items": items});
    let bytes = serde_json::to_vec(&document).unwrap_or_default();
    let digest = ring::digest::digest(&ring::digest::SHA512, &bytes);
    let tag = base64::engine::general_purpose::STANDARD_NO_PAD.encode(digest.as_ref());
    (bytes.into(), format!("\"{tag}\""))
}

/// The requested version of aggregated discovery; `None` if plain JSON is accepted before it
/// (clauses with equal quality are in order of preference).
fn aggregated_version_wanted(headers: &HeaderMap) -> Option<&'static str> {
    let accept = headers.get(header::ACCEPT)?.to_str().ok()?;
    for clause in accept.split(',') {
        let clause: Vec<&str> = clause.split(';').map(str::trim).collect();
        let has = |wanted: &str| clause.contains(&wanted);
        match clause.first().copied() {
            Some("application/json")
                if has("g=apidiscovery.k8s.io") && has("as=APIGroupDiscoveryList") =>
            {
                if has("v=v2") {
                    return Some("v2");
                }
                if has("v=v2beta1") {
                    continue;
                }
            }
            Some("application/json" | "*/*" | "application/*")
                if clause.len() == 1 || has("q=1") =>
            {
                return None;
            }
            _ => {}
        }
    }
    None
}

fn aggregated_answer(
    bytes: &Bytes,
    tag: &str,
    version: &str,
    headers: &HeaderMap,
) -> Response<Body> {
    let known = headers.get(header::IF_NONE_MATCH).and_then(|v| v.to_str().ok()) == Some(tag);
    let mut response = Response::new(if known { body::empty() } else { body::full(bytes.clone()) });
    if known {
        *response.status_mut() = StatusCode::NOT_MODIFIED;
    }
    let out = response.headers_mut();
    let kind =
        format!("application/json;g=apidiscovery.k8s.io;v={version};as=APIGroupDiscoveryList");
    for (name, value) in [
        (header::CONTENT_TYPE, kind.as_str()),
        (header::ETAG, tag),
        (header::VARY, "Accept"),
        (header::CACHE_CONTROL, "public"),
    ] {
        if let Ok(value) = HeaderValue::from_str(value) {
            out.insert(name, value);
        }
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::schema::Schema;
    use std::sync::Arc;

    #[test]
    fn resource_lists_have_upstreams_entries() {
        let documents = Documents::of(&Registry::builtin(Arc::new(Schema::new())));
        let deployments = &documents.legacy["/apis/apps/v1"]["resources"][3];
        assert_eq!(
            deployments.to_string(),
            r#"{"categories":["all"],"kind":"Deployment","name":"deployments","namespaced":true,"shortNames":["deploy"],"singularName":"deployment","storageVersionHash":"8aSe+NMegvE=","verbs":["create","delete","deletecollection","get","list","patch","update","watch"]}"#
        );
        let scale = &documents.legacy["/apis/apps/v1"]["resources"][4];
        assert_eq!(
            (scale["name"].as_str(), scale["group"].as_str()),
            (Some("deployments/scale"), Some("autoscaling"))
        );
    }

    #[test]
    fn the_first_of_clauses_with_equal_quality_decides() {
        let wanted = |accept: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::ACCEPT, accept.parse().unwrap());
            aggregated_version_wanted(&headers)
        };
        let aggregated = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
        assert_eq!(wanted(&format!("{aggregated},application/json")), Some("v2"));
        assert_eq!(wanted(&format!("application/json,{aggregated}")), None);
        assert_eq!(wanted("application/json"), None);
    }
}
