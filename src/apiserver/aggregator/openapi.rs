//! Adds the OpenAPI documents of aggregated API servers: version 3 is proxied by group version,
//! version 2 is merged (upstream's `pkg/controllers/openapi` and `openapiv3` of kube-aggregator).

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use api::value::{get, items, str_at};
use serde_json::{Map, Value};

use super::{Remote, Table};

/// The maximum size of an index of documents.
const INDEX_BYTES_MAX: usize = 1 << 20;
/// The maximum size of a version 2 document.
const SWAGGER_BYTES_MAX: usize = 16 << 20;
/// The timeout for one document: the server becomes available after they are read.
const DOWNLOAD_MAX: Duration = Duration::from_secs(10);
const DEFINITIONS: &str = "#/definitions/";
const PARAMETERS: &str = "#/parameters/";
const KINDS: &str = "x-kubernetes-group-version-kind";

/// The OpenAPI documents of an aggregated API server.
#[derive(Debug)]
pub(crate) struct Described {
    /// `apis/GROUP/VERSION`.
    path: String,
    /// Its entry in the index of version 3; `None` if it serves none.
    entry: Option<Value>,
    /// Its version 2 document, reduced to the paths of the group version and their definitions.
    swagger: Option<Value>,
    /// The resource list at the same time.
    resources: Option<Arc<Value>>,
    /// A tag that changes with the documents.
    tag: String,
}

impl Remote {
    /// Reads the documents of its group version; those that cannot be read remain unchanged.
    pub(super) async fn describe(&self) {
        let path = format!("apis/{}/{}", self.group, self.version);
        let before = self.described.load_full();
        let index = self.document("/openapi/v3", INDEX_BYTES_MAX).await;
        let entry = index.and_then(|index| index.pointer("/paths")?.get(&path).cloned());
        let resources = self.resources.load_full();
        // Skip documents that have not changed: the index of version 3 contains their hashes.
        if before.is_some_and(|before| {
            before.entry == entry && before.resources == resources && before.swagger.is_some()
        }) {
            return;
        }
        let swagger = self.document("/openapi/v2", SWAGGER_BYTES_MAX).await;
        let swagger = swagger.map(|document| of_paths(document, &format!("/{path}/")));
        if entry.is_none() && swagger.is_none() {
            return;
        }
        let mut digest = ring::digest::Context::new(&ring::digest::SHA256);
        for part in [&entry, &swagger].into_iter().flatten() {
            digest.update(part.to_string().as_bytes());
        }
        let tag = base::hex(digest.finish().as_ref());
        self.described.store(Some(Arc::new(Described { path, entry, swagger, resources, tag })));
    }

    async fn document(&self, path: &str, bytes_max: usize) -> Option<Value> {
        let response = tokio::time::timeout(DOWNLOAD_MAX, self.get(path, bytes_max)).await;
        let document = match response {
            Ok(Ok((_, body))) => serde_json::from_slice::<Value>(&body)
                .map_err(|e| format!("the response is not JSON: {e}")),
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err(format!("no response within {DOWNLOAD_MAX:?}")),
        };
        document
            .inspect_err(|error| {
                tracing::debug!(
                    apiservice = self.name,
                    path,
                    error,
                    "cannot read the OpenAPI document of an API server"
                );
            })
            .ok()
    }
}

/// The last known documents of the remotes.
pub(crate) fn described(remotes: &Table) -> Vec<Arc<Described>> {
    remotes.values().filter_map(|remote| remote.described.load_full()).collect()
}

/// The remote that serves the version 3 document of a path.
pub(crate) fn of_document(remotes: &Table, path: &str) -> Option<Arc<Remote>> {
    let path = path.strip_prefix("/openapi/v3/")?;
    let serves = |remote: &&Arc<Remote>| {
        let described = remote.described.load();
        described.as_ref().is_some_and(|it| it.entry.is_some() && it.path == path)
    };
    remotes.values().find(serves).cloned()
}

/// A tag that changes with any of the documents.
pub(crate) fn tag(all: &[Arc<Described>]) -> String {
    all.iter().map(|one| one.tag.as_str()).collect::<Vec<_>>().join(" ")
}

/// Adds the remotes' documents to the index of version 3.
pub(crate) fn list(index: &mut Value, all: &[Arc<Described>]) {
    let Some(paths) = index.get_mut("paths").and_then(Value::as_object_mut) else { return };
    for one in all {
        if let Some(entry) = &one.entry {
            // Replaces the entry of a group version that both serve, which is proxied.
            paths.insert(one.path.clone(), entry.clone());
        }
    }
}

/// Merges the remotes' documents into the version 2 document. An existing path is kept; a
/// conflicting definition is renamed
/// (`MergeSpecsIgnorePathConflictRenamingDefinitionsAndParameters`).
pub(crate) fn merge(own: &mut Value, all: &[Arc<Described>]) {
    for theirs in all.iter().filter_map(|one| one.swagger.as_ref()) {
        let mut theirs = theirs.clone();
        let renamed = renamed(own, &theirs);
        rename(&mut theirs, &renamed);
        if let Value::Object(definitions) =
            theirs.get_mut("definitions").map(Value::take).unwrap_or_default()
            && let Some(known) = object_at(own, "definitions")
        {
            for (name, definition) in definitions {
                let name = renamed
                    .iter()
                    .find(|(old, _)| *old == name)
                    .map_or(name, |(_, new)| new.clone());
                match known.get_mut(&name) {
                    Some(same) => add_kinds(same, &definition),
                    None => drop(known.insert(name, definition)),
                }
            }
        }
        if let Value::Object(paths) = theirs.get_mut("paths").map(Value::take).unwrap_or_default()
            && let Some(known) = object_at(own, "paths")
        {
            for (path, item) in paths {
                known.entry(path).or_insert(item);
            }
        }
    }
}

fn object_at<'a>(document: &'a mut Value, key: &str) -> Option<&'a mut Map<String, Value>> {
    document.get_mut(key).and_then(Value::as_object_mut)
}

/// The old and new names of conflicting definitions.
fn renamed(own: &Value, theirs: &Value) -> Vec<(String, String)> {
    let (known, new) = (get(own, "definitions"), get(theirs, "definitions"));
    let clashes = new.as_object().into_iter().flatten().filter(|(name, definition)| {
        let same = known.get(name.as_str());
        same.is_some_and(|same| !alike(same, definition))
    });
    let names = clashes.filter_map(|(name, definition)| {
        let mut tried = (2..1000).map(|number| format!("{name}_v{number}"));
        let free = tried.find(|name| {
            new.get(name).is_none() && known.get(name).is_none_or(|same| alike(same, definition))
        });
        Some((name.clone(), free?))
    });
    names.collect()
}

/// Whether two definitions are equal, apart from their kinds.
fn alike(a: &Value, b: &Value) -> bool {
    let (Some(a), Some(b)) = (a.as_object(), b.as_object()) else { return a == b };
    let within = |a: &Map<String, Value>, b: &Map<String, Value>| {
        a.iter().all(|(key, value)| key == KINDS || b.get(key) == Some(value))
    };
    within(a, b) && within(b, a)
}

fn add_kinds(known: &mut Value, more: &Value) {
    let more = items(more, KINDS);
    if let Some(map) = known.as_object_mut().filter(|_| !more.is_empty())
        && let Some(list) =
            map.entry(KINDS).or_insert_with(|| Value::Array(Vec::new())).as_array_mut()
    {
        for kind in more {
            if !list.contains(kind) {
                list.push(kind.clone());
            }
        }
    }
}

fn rename(value: &mut Value, names: &[(String, String)]) {
    match value {
        Value::Object(map) => {
            for (key, value) in map.iter_mut() {
                let of = value
                    .as_str()
                    .filter(|_| key == "$ref")
                    .and_then(|to| to.strip_prefix(DEFINITIONS));
                match of.and_then(|of| names.iter().find(|(old, _)| old == of)) {
                    Some((_, new)) => *value = Value::String(format!("{DEFINITIONS}{new}")),
                    None => rename(value, names),
                }
            }
        }
        Value::Array(list) => list.iter_mut().for_each(|value| rename(value, names)),
        _ => {}
    }
}

/// Reduces a version 2 document to the paths below `prefix` and their definitions
/// (`FilterSpecByPathsWithoutSideEffects`).
fn of_paths(mut document: Value, prefix: &str) -> Value {
    if let Some(paths) = object_at(&mut document, "paths") {
        paths.retain(|path, _| path.starts_with(prefix) || *path == *prefix.trim_end_matches('/'));
    }
    let mut needed = BTreeSet::new();
    let mut open = Vec::new();
    // Inline shared parameters, because our own documents have none.
    let shared = document.get_mut("parameters").map(Value::take).unwrap_or_default();
    if let Some(paths) = document.get_mut("paths") {
        let mut room = SWAGGER_BYTES_MAX;
        inline(paths, &shared, &mut room);
    }
    references(get(&document, "paths"), &mut open);
    while let Some(name) = open.pop() {
        if let Some(definition) = get(&document, "definitions").get(&name)
            && needed.insert(name)
        {
            references(definition, &mut open);
        }
    }
    if let Some(definitions) = object_at(&mut document, "definitions") {
        definitions.retain(|name, _| needed.contains(name));
    }
    document
}

/// Replaces references with the shared value, as long as there is `room` (bytes).
fn inline(value: &mut Value, shared: &Value, room: &mut usize) {
    let named = str_at(value, "$ref").strip_prefix(PARAMETERS);
    if let Some(parameter) = named.and_then(|name| shared.get(name)) {
        if let Some(left) = room.checked_sub(parameter.to_string().len()) {
            *room = left;
            *value = parameter.clone();
        }
        return;
    }
    match value {
        Value::Object(map) => map.values_mut().for_each(|value| inline(value, shared, room)),
        Value::Array(list) => list.iter_mut().for_each(|value| inline(value, shared, room)),
        _ => {}
    }
}

/// The names of the definitions that a value refers to.
fn references(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                match value.as_str().and_then(|to| to.strip_prefix(DEFINITIONS)) {
                    Some(name) if key == "$ref" => found.push(name.to_owned()),
                    _ => references(value, found),
                }
            }
        }
        Value::Array(list) => list.iter().for_each(|value| references(value, found)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn of(swagger: Value) -> Vec<Arc<Described>> {
        let swagger = Some(of_paths(swagger, "/apis/x.io/v1/"));
        let entry = Some(json!({"serverRelativeURL": "/openapi/v3/apis/x.io/v1?hash=A"}));
        vec![Arc::new(Described {
            path: "apis/x.io/v1".into(),
            entry,
            swagger,
            resources: None,
            tag: "t".into(),
        })]
    }

    fn refers(to: &str) -> Value {
        json!({"get": {"responses": {"200": {"schema": {"$ref": format!("{DEFINITIONS}{to}")}}}}})
    }

    /// The cases of upstream's `TestMergeSpecsRenameModelWithExistingV2InDestination` and
    /// `TestFilterSpecs`.
    #[test]
    fn conflicting_definitions_are_renamed() {
        let mut own = json!({
            "paths": {"/apis/a": refers("Meta")},
            "definitions": {
                "Meta": {"type": "object", (KINDS): [{"group": "", "kind": "Meta", "version": "v1"}]},
                "Foo": {"type": "string"}, "Foo_v2": {"type": "boolean"},
            },
        });
        let theirs = of(json!({
            "parameters": {"p-1": {"name": "p", "in": "query"}, "q-1": {"name": "q", "in": "query"}},
            "paths": {"/apis/x.io/v1/foos": refers("Foo"), "/apis/x.io/v1/bars": {"parameters": [{"$ref": "#/parameters/p-1"}]}, "/apis/x.io/v1beta1/foos": refers("Old"), "/apis/a": refers("Old")},
            "definitions": {
                "Foo": {"type": "object", "properties": {"meta": {"$ref": "#/definitions/Meta"}}},
                "Meta": {"type": "object", (KINDS): [{"group": "x.io", "kind": "Meta", "version": "v1"}]},
                "Old": {"type": "object"},
            },
        }));
        merge(&mut own, &theirs);
        assert_eq!(
            own,
            json!({
                "paths": {"/apis/a": refers("Meta"), "/apis/x.io/v1/foos": refers("Foo_v3"), "/apis/x.io/v1/bars": {"parameters": [{"name": "p", "in": "query"}]}},
                "definitions": {
                    "Meta": {"type": "object", (KINDS): [{"group": "", "kind": "Meta", "version": "v1"}, {"group": "x.io", "kind": "Meta", "version": "v1"}]},
                    "Foo": {"type": "string"}, "Foo_v2": {"type": "boolean"},
                    "Foo_v3": {"type": "object", "properties": {"meta": {"$ref": "#/definitions/Meta"}}},
                },
            })
        );
    }

    #[test]
    fn the_index_keeps_own_paths_and_adds_those_of_remotes() {
        let mut index =
            json!({"paths": {"api/v1": {"serverRelativeURL": "/openapi/v3/api/v1?hash=B"}}});
        list(&mut index, &of(json!({})));
        assert_eq!(
            index,
            json!({"paths": {
                "api/v1": {"serverRelativeURL": "/openapi/v3/api/v1?hash=B"},
                "apis/x.io/v1": {"serverRelativeURL": "/openapi/v3/apis/x.io/v1?hash=A"},
            }})
        );
    }
}
