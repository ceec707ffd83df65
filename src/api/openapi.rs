//! The OpenAPI v2 and v3 documents, which are rendered from the schema table and the list of served
//! resources when a client requests them.
//!
//! No document is cached: the document of one group version has a few hundred kilobytes, and each
//! client requests it once.

mod custom;
mod definitions;
mod gnostic;
mod operations;
mod render;

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use serde_json::{Map, Value, json};
use sorting::{CollectOrdered as _, CompactSort as _};

pub use self::custom::CustomSchema;
pub use self::gnostic::NotEncodable;
use crate::object::{Gvk, Gvr};
use crate::schema::{Schema, TypeId};

/// A served resource in one of its served versions.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Served {
    /// The kind of the objects.
    pub gvk: Gvk,
    /// The resource, as in paths.
    pub gvr: Gvr,
    /// Whether the objects are namespaced.
    pub namespaced: bool,
    /// The verbs of discovery: `create`, `delete`, `deletecollection`, `get`, `list`, `patch`,
    /// `update`, `watch`.
    pub verbs: Vec<String>,
    /// The subresources of an object.
    pub subresources: Vec<ServedSubresource>,
    /// The schema of a custom resource, which replaces the type of the schema table.
    pub custom: Option<CustomSchema>,
}

/// A subresource.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ServedSubresource {
    /// The last element of the path, such as `status` or `exec`.
    pub name: String,
    /// The kind that the subresource reads and writes, such as `autoscaling/v1` `Scale`.
    pub gvk: Gvk,
    /// The verbs of discovery. Subresources with the operation `connect` (`exec`, `proxy`) have
    /// `create` and `get` and set `connect`.
    pub verbs: Vec<String>,
    /// Whether the subresource is a stream or a proxy instead of an object.
    pub connect: bool,
}

/// The two versions of OpenAPI.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Version {
    V2,
    V3,
}

impl Version {
    fn reference(self, name: &str) -> Value {
        match self {
            Self::V2 => json!({ "$ref": format!("#/definitions/{name}") }),
            Self::V3 => json!({ "$ref": format!("#/components/schemas/{name}") }),
        }
    }
}

/// Returns the document of `/openapi/v2`, which covers all group versions.
pub fn v2(schema: &Schema, served: &[Served], version: &str) -> Value {
    let operations: Vec<_> = group_versions(served)
        .into_iter()
        .flat_map(|(group, v)| operations::of_group_version(schema, served, &group, &v))
        .collect();
    let mut definitions = definitions::reachable(
        schema,
        &roots(schema, &operations),
        Version::V2,
        &kinds_index(schema, served),
    );
    add_custom(&mut definitions, served.iter(), Version::V2);
    json!({
        "swagger": "2.0",
        "info": { "title": "Kubernetes", "version": version },
        "paths": render::paths(&operations, Version::V2),
        "definitions": definitions,
        "securityDefinitions": { "BearerToken": { "description": "Bearer Token authentication", "type": "apiKey", "name": "authorization", "in": "header" } },
        "security": [{ "BearerToken": [] }],
    })
}

/// Returns the index of `/openapi/v3`: the paths of the documents of all group versions, with
/// hashes that change with the documents.
pub fn v3_index(schema: &Schema, served: &[Served], version: &str) -> Value {
    let mut paths = Map::new();
    for (group, v) in group_versions(served) {
        let path = group_path(&group, &v);
        let hash = group_hash(schema, served, &group, &v, version);
        let url = format!("/openapi/v3{path}?hash={hash:016X}");
        paths.insert(path.trim_start_matches('/').to_owned(), json!({ "serverRelativeURL": url }));
    }
    json!({ "paths": paths })
}

/// Returns the document of `/openapi/v3/apis/GROUP/VERSION` or `/openapi/v3/api/v1`; returns `None`
/// if the group version has no served resource.
pub fn v3(
    schema: &Schema,
    served: &[Served],
    group: &str,
    group_version: &str,
    version: &str,
) -> Option<Value> {
    let operations = operations::of_group_version(schema, served, group, group_version);
    if operations.is_empty() {
        return None;
    }
    let mut schemas = definitions::reachable(
        schema,
        &roots(schema, &operations),
        Version::V3,
        &kinds_index(schema, served),
    );
    add_custom(&mut schemas, of_version(served, group, group_version), Version::V3);
    Some(json!({
        "openapi": "3.0.0",
        "info": { "title": "Kubernetes", "version": version },
        "paths": render::paths(&operations, Version::V3),
        "components": {
            "schemas": schemas,
            "securitySchemes": { "BearerToken": { "description": "Bearer Token authentication", "type": "apiKey", "name": "authorization", "in": "header" } },
        },
    }))
}

/// Encodes a document of [`v2`] as protobuf
/// (`application/com.github.proto-openapi.spec.v2.v1.0+protobuf`).
///
/// # Errors
/// Returns an error if the document has content that the protobuf message cannot represent.
pub fn v2_protobuf(document: &Value) -> Result<Vec<u8>, NotEncodable> {
    gnostic::document(Version::V2, document)
}

/// Encodes a document of [`v3`] as protobuf
/// (`application/com.github.proto-openapi.spec.v3.v1.0+protobuf`).
///
/// # Errors
/// Returns an error if the document has content that the protobuf message cannot represent.
pub fn v3_protobuf(document: &Value) -> Result<Vec<u8>, NotEncodable> {
    gnostic::document(Version::V3, document)
}

/// Returns the hash of a group version in the index. A client may cache the document under this
/// hash without a time limit.
pub fn group_hash(
    schema: &Schema,
    served: &[Served],
    group: &str,
    group_version: &str,
    version: &str,
) -> u64 {
    let mut hasher = DefaultHasher::new();
    version.hash(&mut hasher);
    env!("CARGO_PKG_VERSION").hash(&mut hasher);
    let mut roots = BTreeSet::new();
    for one in of_version(served, group, group_version) {
        one.hash(&mut hasher);
        roots.extend(schema.kind(&one.gvk));
        roots.extend(one.subresources.iter().filter_map(|s| schema.kind(&s.gvk)));
    }
    for id in definitions::closure(schema, &roots) {
        let ty = schema.get(id);
        ty.name.hash(&mut hasher);
        for field in &ty.fields {
            field.json.hash(&mut hasher);
            field.required.hash(&mut hasher);
            field.allowed.hash(&mut hasher);
            definitions::hash_shape(&field.shape, &mut hasher);
        }
    }
    hasher.finish()
}

fn of_version<'a>(
    served: &'a [Served],
    group: &'a str,
    version: &'a str,
) -> impl Iterator<Item = &'a Served> {
    served.iter().filter(move |s| *s.gvr.group == *group && *s.gvr.version == *version)
}

/// Adds the types of custom resources.
fn add_custom<'a>(out: &mut Value, served: impl Iterator<Item = &'a Served>, version: Version) {
    let Some(map) = out.as_object_mut() else { return };
    for one in served {
        let Some(custom) = &one.custom else { continue };
        let list = Gvk::new(&one.gvk.group, &one.gvk.version, &custom.list_kind);
        map.insert(custom::model(&one.gvk), custom::object(&one.gvk, custom, version));
        let plural = &one.gvr.resource;
        map.insert(custom::model(&list), custom::list(&one.gvk, plural, custom, version));
    }
}

/// Returns the group versions in the order of the list, without repetitions.
fn group_versions(served: &[Served]) -> Vec<(String, String)> {
    let mut found: Vec<(String, String)> = Vec::new();
    for one in served {
        let pair = (one.gvr.group.to_string(), one.gvr.version.to_string());
        if !found.contains(&pair) {
            found.push(pair);
        }
    }
    found
}

/// Returns `/api/v1` or `/apis/GROUP/VERSION`.
fn group_path(group: &str, version: &str) -> String {
    if group.is_empty() { format!("/api/{version}") } else { format!("/apis/{group}/{version}") }
}

/// Returns the types to which the operations refer.
fn roots(schema: &Schema, operations: &[operations::Operation]) -> BTreeSet<TypeId> {
    let named = operations.iter().flat_map(|o| {
        o.body.iter().map(|b| b.0.as_str()).chain(o.responses.iter().filter_map(|r| r.1.as_deref()))
    });
    let mut found: BTreeSet<TypeId> = named.filter_map(|name| schema.by_name(name)).collect_set();
    if operations.iter().any(|o| o.custom) {
        found.extend(custom::REFERRED.iter().filter_map(|name| schema.by_name(name)));
    }
    found
}

/// Returns the kinds of each type. A kind of every group version has one entry per served built-in
/// group version.
fn kinds_index(schema: &Schema, served: &[Served]) -> definitions::Kinds {
    let mut kinds = definitions::Kinds::new();
    let built_in: Vec<Served> = served.iter().filter(|s| s.custom.is_none()).cloned().collect();
    let built_in = group_versions(&built_in);
    for (gvk, id) in schema.kinds() {
        let everywhere = matches!(gvk.kind.as_ref(), "DeleteOptions" | "WatchEvent");
        // On the wire, the unversioned kinds of `meta.k8s.io` belong to the core group.
        let core = gvk.group.as_ref() == "meta.k8s.io";
        let gvk = if core { Gvk::new("", "v1", &gvk.kind) } else { gvk.clone() };
        let list = kinds.entry(id).or_default();
        if everywhere {
            // Custom groups are left out, so that a new CustomResourceDefinition does not change
            // the documents of built-in groups.
            let versions = built_in.iter();
            list.extend(versions.map(|(g, v)| Gvk::new(g, v, &gvk.kind)));
        }
        list.push(gvk);
    }
    for list in kinds.values_mut() {
        list.compact_sort();
        list.dedup();
    }
    kinds
}

#[cfg(test)]
mod tests;
