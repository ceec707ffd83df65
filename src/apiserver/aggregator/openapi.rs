//! OpenAPI documents of API servers beside this one, among those of this one: those of version 3 are handed over by group version, that of
//! version 2 is merged (upstream's `pkg/controllers/openapi` and `openapiv3` of kube-aggregator).

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use api::value::{get, items, str_at};
use serde_json::{Map, Value};

use super::{Remote, Table};

/// Largest list of documents that is read.
const INDEX_BYTES_MAX: usize = 1 << 20;
/// Largest document of version 2 that is read.
const SWAGGER_BYTES_MAX: usize = 16 << 20;
/// Time for one document: it is told that the server is available once they were read.
const DOWNLOAD_MAX: Duration = Duration::from_secs(10);
const DEFINITIONS: &str = "#/definitions/";
const PARAMETERS: &str = "#/parameters/";
const KINDS: &str = "x-kubernetes-group-version-kind";

/// What another API server says of its own group version.
#[derive(Debug)]
pub(crate) struct Described {
    /// `apis/GROUP/VERSION`.
    path: String,
    /// Its entry in the list of documents of version 3; `None` when it serves none.
    entry: Option<Value>,
    /// Its document of version 2 with the paths of the group version, and the definitions that they need.
    swagger: Option<Value>,
    /// The list of resources that it had then.
    resources: Option<Arc<Value>>,
    /// Changes with what it says.
    tag: String,
}

impl Remote {
    /// Reads what it says of its group version; what cannot be read stays as it was.
    pub(super) async fn describe(&self) {
        let path = format!("apis/{}/{}", self.group, self.version);
        let before = self.described.load_full();
        let index = self.document("/openapi/v3", INDEX_BYTES_MAX).await;
        let entry = index.and_then(|index| index.pointer("/paths")?.get(&path).cloned());
        let resources = self.resources.load_full();
        // A document that was read is not read again before something else of it changes: the list of documents names their hashes.
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
        let tag = digest.finish().as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
        self.described.store(Some(Arc::new(Described { path, entry, swagger, resources, tag })));
    }

    async fn document(&self, path: &str, bytes_max: usize) -> Option<Value> {
        let asked = tokio::time::timeout(DOWNLOAD_MAX, self.get(path, bytes_max)).await;
        let told = match asked {
            Ok(Ok((_, body))) => {
                serde_json::from_slice::<Value>(&body).map_err(|e| format!("it is no JSON: {e}"))
            }
            Ok(Err(why)) => Err(why),
            Err(_) => Err("it takes too long".to_owned()),
        };
        told.inspect_err(|why| {
            tracing::debug!(apiservice = self.name, path, why, "its OpenAPI document is not read");
        })
        .ok()
    }
}

/// What the servers beside this one say, as they last said it.
pub(crate) fn described(remotes: &Table) -> Vec<Arc<Described>> {
    remotes.values().filter_map(|remote| remote.described.load_full()).collect()
}

/// Whose document of version 3 a path names.
pub(crate) fn of_document(remotes: &Table, path: &str) -> Option<Arc<Remote>> {
    let path = path.strip_prefix("/openapi/v3/")?;
    let serves = |remote: &&Arc<Remote>| {
        let said = remote.described.load();
        said.as_ref().is_some_and(|said| said.entry.is_some() && said.path == path)
    };
    remotes.values().find(serves).cloned()
}

/// What changes with what they say.
pub(crate) fn tag(all: &[Arc<Described>]) -> String {
    all.iter().map(|one| one.tag.as_str()).collect::<Vec<_>>().join(" ")
}

/// The list of documents of version 3 with theirs.
pub(crate) fn list(index: &mut Value, all: &[Arc<Described>]) {
    let Some(paths) = index.get_mut("paths").and_then(Value::as_object_mut) else { return };
    for one in all {
        if let Some(entry) = &one.entry {
            paths.entry(one.path.clone()).or_insert_with(|| entry.clone());
        }
    }
}

/// The document of version 2 with theirs. A path that is there stays; a definition that says something else than the one of its name
/// gets another name (`MergeSpecsIgnorePathConflictRenamingDefinitionsAndParameters`).
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

/// Old and new names of definitions that say something else here.
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

/// Two definitions say the same, the kinds apart that they stand for.
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

/// A document of version 2 with nothing but the paths below `prefix`, and the definitions that they need
/// (`FilterSpecByPathsWithoutSideEffects`).
fn of_paths(mut document: Value, prefix: &str) -> Value {
    if let Some(paths) = object_at(&mut document, "paths") {
        paths.retain(|path, _| path.starts_with(prefix) || *path == *prefix.trim_end_matches('/'));
    }
    let mut needed = BTreeSet::new();
    let mut open = Vec::new();
    // Parameters that operations share are put in their places: our own documents know none.
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

/// Puts what is shared in the place of each reference to it, as long as there is `room` (bytes).
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

/// The names of definitions that a value refers to.
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

    /// As upstream's `TestMergeSpecsRenameModelWithExistingV2InDestination` and `TestFilterSpecs` have it.
    #[test]
    fn a_definition_that_says_something_else_gets_another_name() {
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
    fn what_is_served_here_is_not_listed_as_anothers() {
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
