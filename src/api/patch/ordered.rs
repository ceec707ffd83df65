//! The text of a document after a JSON patch or merge patch. Upstream's error about an invalid
//! result contains the patched document: its members have the order of the fields of Go's structs,
//! but are sorted in the objects that the patch traverses, since the patch library decodes these
//! objects as maps and keeps the text of all others.

use std::collections::{BTreeMap, HashMap};

use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::field::escape_html;
use crate::schema::{Schema, Shape, TypeId};

/// Deepest nesting of a document that is ordered.
const DEPTH_MAX: usize = 128;

/// A document whose objects have an order; leaves contain their text.
#[derive(Debug, Clone, PartialEq)]
enum Node {
    Leaf(String),
    List(Vec<Node>),
    Map(Vec<(String, Node)>),
}

/// The text of `old` after a merge patch; `None` when the patch cannot be parsed.
pub fn merged(schema: &Schema, ty: Option<TypeId>, old: &Value, patch: &[u8]) -> Option<String> {
    let mut node = typed(schema, ty, old);
    let patch = parse(std::str::from_utf8(patch).ok()?, DEPTH_MAX)?;
    let (Node::Map(map), Node::Map(patch)) = (&mut node, patch) else { return None };
    merge(map, patch);
    Some(node.text())
}

/// The text of `old` after a JSON patch; `None` when an operation does not apply.
pub fn patched(schema: &Schema, ty: Option<TypeId>, old: &Value, patch: &[u8]) -> Option<String> {
    let mut node = typed(schema, ty, old);
    let Node::List(operations) = parse(std::str::from_utf8(patch).ok()?, DEPTH_MAX)? else {
        return None;
    };
    node.sort();
    for operation in &operations {
        operate(&mut node, operation)?;
    }
    Some(node.text())
}

impl Node {
    fn text(&self) -> String {
        let mut out = String::new();
        self.write(&mut out);
        escape_html(&out)
    }

    fn write(&self, out: &mut String) {
        match self {
            Self::Leaf(text) => out.push_str(text),
            Self::List(items) => {
                out.push('[');
                for (index, item) in items.iter().enumerate() {
                    if index > 0 {
                        out.push(',');
                    }
                    item.write(out);
                }
                out.push(']');
            }
            Self::Map(map) => {
                out.push('{');
                for (index, (key, value)) in map.iter().enumerate() {
                    if index > 0 {
                        out.push(',');
                    }
                    out.push_str(&Value::from(key.as_str()).to_string());
                    out.push(':');
                    value.write(out);
                }
                out.push('}');
            }
        }
    }

    /// Sorts the members of an object, which the patch library decodes as a map.
    fn sort(&mut self) {
        if let Self::Map(map) = self {
            map.sort_by(|a, b| a.0.cmp(&b.0));
        }
    }

    fn sort_deep(&mut self) {
        self.sort();
        match self {
            Self::Leaf(_) => {}
            Self::List(items) => items.iter_mut().for_each(Self::sort_deep),
            Self::Map(map) => map.iter_mut().for_each(|(_, value)| value.sort_deep()),
        }
    }

    /// Prepares a new value of a merge patch: removes null members and sorts the members at all
    /// levels.
    fn prune(&mut self) {
        self.sort();
        match self {
            Self::Leaf(_) => {}
            Self::List(items) => items.iter_mut().for_each(Self::prune),
            Self::Map(map) => {
                map.retain(|(_, value)| !value.is_null());
                map.iter_mut().for_each(|(_, value)| value.prune());
            }
        }
    }

    fn is_null(&self) -> bool {
        matches!(self, Self::Leaf(text) if text == "null")
    }

    fn member(&mut self, key: &str) -> Option<&mut Self> {
        match self {
            Self::Leaf(_) => None,
            Self::List(items) => items.get_mut(key.parse::<usize>().ok()?),
            Self::Map(map) => map.iter_mut().find(|(name, _)| name == key).map(|(_, value)| value),
        }
    }

    fn put(&mut self, key: &str, value: Self, replaces: bool) -> Option<()> {
        match self {
            Self::Leaf(_) => return None,
            Self::List(items) if replaces => *items.get_mut(key.parse::<usize>().ok()?)? = value,
            Self::List(items) if key == "-" => items.push(value),
            Self::List(items) => {
                let at = key.parse::<usize>().ok().filter(|at| *at <= items.len())?;
                items.insert(at, value);
            }
            Self::Map(map) => {
                match map.iter_mut().find(|(name, _)| name == key) {
                    Some((_, there)) => *there = value,
                    None => map.push((key.to_owned(), value)),
                }
                self.sort();
            }
        }
        Some(())
    }

    fn take(&mut self, key: &str) -> Option<Self> {
        match self {
            Self::Leaf(_) => None,
            Self::List(items) => {
                let at = key.parse::<usize>().ok().filter(|at| *at < items.len())?;
                Some(items.remove(at))
            }
            Self::Map(map) => {
                let at = map.iter().position(|(name, _)| name == key)?;
                Some(map.remove(at).1)
            }
        }
    }
}

/// Parses a document of at most `depth` levels; the size limit of the request body applies earlier.
fn parse(text: &str, depth: usize) -> Option<Node> {
    let depth = depth.checked_sub(1)?;
    match text.trim_start().bytes().next()? {
        b'{' => {
            let mut reader = serde_json::Deserializer::from_str(text);
            let members = reader.deserialize_map(Members).ok()?;
            let mut map: Vec<(String, Node)> = Vec::with_capacity(members.len());
            let mut places: HashMap<String, usize> = HashMap::with_capacity(members.len());
            for (key, raw) in members {
                let value = parse(raw.get(), depth)?;
                match places.get(&key).and_then(|at| map.get_mut(*at)) {
                    // The last of several members with the same name sets the value, the first one
                    // the position.
                    Some((_, there)) => *there = value,
                    None => {
                        places.insert(key.clone(), map.len());
                        map.push((key, value));
                    }
                }
            }
            Some(Node::Map(map))
        }
        b'[' => {
            let items: Vec<Box<RawValue>> = serde_json::from_str(text).ok()?;
            let items = items.iter().map(|raw| parse(raw.get(), depth));
            Some(Node::List(items.collect::<Option<_>>()?))
        }
        _ => Some(Node::Leaf(text.trim().to_owned())),
    }
}

/// Decodes the members of an object in their order.
struct Members;

impl<'de> Visitor<'de> for Members {
    type Value = Vec<(String, Box<RawValue>)>;

    fn expecting(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut members = Vec::new();
        while let Some(member) = map.next_entry()? {
            members.push(member);
        }
        Ok(members)
    }
}

fn typed(schema: &Schema, ty: Option<TypeId>, value: &Value) -> Node {
    match value {
        Value::Object(map) => {
            let member = |(key, value): (&String, &Value)| {
                let field = ty.and_then(|ty| schema.get(ty).field(key));
                (key.clone(), shaped(schema, field.map(|field| &field.shape), value))
            };
            let mut members: Vec<(String, Node)> = map.iter().map(member).collect();
            if let Some(ty) = ty {
                let ty = schema.get(ty);
                // Go's structs embed `kind` and `apiVersion` first, and the table omits them.
                let place = |key: &str| match (ty.position(key), key) {
                    (None, "kind") => 0,
                    (None, "apiVersion") => 1,
                    (None, _) => usize::MAX,
                    (Some(at), _) => at + 2,
                };
                members.sort_by_cached_key(|(key, _)| place(key));
            }
            Node::Map(members)
        }
        Value::Array(items) => {
            Node::List(items.iter().map(|item| typed(schema, ty, item)).collect())
        }
        leaf => Node::Leaf(leaf.to_string()),
    }
}

fn shaped(schema: &Schema, shape: Option<&Shape>, value: &Value) -> Node {
    match (shape, value) {
        (Some(Shape::Struct(ty)), _) => typed(schema, Some(*ty), value),
        (Some(Shape::List(element)), Value::Array(items)) => {
            Node::List(items.iter().map(|item| shaped(schema, Some(element), item)).collect())
        }
        (Some(Shape::Map(element)), Value::Object(map)) => {
            let member = |(key, value): (&String, &Value)| {
                (key.clone(), shaped(schema, Some(element), value))
            };
            Node::Map(map.iter().map(member).collect())
        }
        (Some(Shape::Typed(field)), _) => shaped(schema, Some(&field.shape), value),
        _ => typed(schema, None, value),
    }
}

fn merge(map: &mut Vec<(String, Node)>, patch: Vec<(String, Node)>) {
    let mut members: BTreeMap<String, Node> = std::mem::take(map).into_iter().collect();
    for (key, value) in patch {
        if value.is_null() {
            members.remove(&key);
            continue;
        }
        match (members.get_mut(&key), value) {
            (Some(Node::Map(inner)), Node::Map(patch)) => merge(inner, patch),
            (Some(there @ Node::Map(_)), value) => *there = value,
            (_, mut value) => {
                value.prune();
                members.insert(key, value);
            }
        }
    }
    *map = members.into_iter().collect();
}

/// The value of a string member of an operation.
fn word(operation: &Node, name: &str) -> Option<String> {
    let Node::Map(map) = operation else { return None };
    match map.iter().find(|(key, _)| key == name) {
        Some((_, Node::Leaf(text))) => serde_json::from_str(text).ok(),
        _ => None,
    }
}

/// The parent of the value that a pointer references, and the last key. Sorts the objects on the
/// path, which the patch library decodes as maps.
fn parent<'a>(root: &'a mut Node, pointer: &str) -> Option<(&'a mut Node, String)> {
    let plain = |part: &str| part.replace("~1", "/").replace("~0", "~");
    let (steps, last) = pointer.rsplit_once('/')?;
    let mut at = root;
    for step in steps.split('/').skip(1) {
        at = at.member(&plain(step))?;
        at.sort();
    }
    Some((at, plain(last)))
}

fn operate(root: &mut Node, operation: &Node) -> Option<()> {
    let value = || match operation {
        Node::Map(map) => map.iter().find(|(key, _)| key == "value").map(|(_, value)| value),
        _ => None,
    };
    let (name, path) = (word(operation, "op")?, word(operation, "path")?);
    let from = || word(operation, "from");
    let brought = match name.as_str() {
        "move" => {
            let from = from()?;
            let (holder, key) = parent(root, &from)?;
            Some(holder.take(&key)?)
        }
        "copy" => {
            let from = from()?;
            let (holder, key) = parent(root, &from)?;
            let found = holder.member(&key).cloned();
            Some(found.unwrap_or_else(|| Node::Leaf("null".into())))
        }
        "add" | "replace" => Some(value().cloned().unwrap_or_else(|| Node::Leaf("null".into()))),
        _ => None,
    };
    let (holder, key) = parent(root, &path)?;
    match (name.as_str(), brought) {
        ("remove", _) => holder.take(&key).map(|_| ()),
        ("test", _) => {
            if let Some(found) = holder.member(&key) {
                found.sort_deep();
            }
            Some(())
        }
        (name, Some(brought)) => holder.put(&key, brought, name == "replace"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Gvk;
    use serde_json::json;

    fn service() -> Value {
        json!({"apiVersion": "v1", "kind": "Service",
            "metadata": {"name": "s2", "namespace": "a", "uid": "U", "resourceVersion": "219", "creationTimestamp": "T",
                "managedFields": [{"manager": "unknown", "operation": "Update", "apiVersion": "v1", "time": "T", "fieldsType": "FieldsV1", "fieldsV1": {}}]},
            "spec": {"ports": [{"protocol": "TCP", "port": 80, "targetPort": 80}], "selector": {"app": "x"}, "clusterIP": "None", "type": "ClusterIP"},
            "status": {"loadBalancer": {}}})
    }

    /// Recorded answers of kube-apiserver 1.37.1.
    #[test]
    fn untouched_objects_keep_the_order_of_their_structure() {
        let schema = Schema::builtin();
        let ty = schema.kind(&Gvk::new("", "v1", "Service"));
        let metadata = r#""metadata":{"name":"s2","namespace":"a","uid":"U","resourceVersion":"219","creationTimestamp":"T","managedFields":[{"manager":"unknown","operation":"Update","apiVersion":"v1","time":"T","fieldsType":"FieldsV1","fieldsV1":{}}]}"#;
        let spec = r#""spec":{"ports":[{"protocol":"TCP","port":80,"targetPort":80}],"selector":{"app":"x"},"clusterIP":"None","type":"ClusterIP"}"#;
        let status = r#""status":{"loadBalancer":{}}"#;
        assert_eq!(
            merged(&schema, ty, &service(), br#"{"kind": "a/b/c"}"#).unwrap(),
            format!(r#"{{"apiVersion":"v1","kind":"a/b/c",{metadata},{spec},{status}}}"#)
        );
        let sorted = r#""spec":{"clusterIP":true,"new":{"b":1},"ports":[{"protocol":"TCP","port":80,"targetPort":80}],"selector":{"app":"x"},"type":"ClusterIP"}"#;
        let patch = br#"{"spec": {"new": {"x": null, "b": 1}, "clusterIP": true}}"#;
        assert_eq!(
            merged(&schema, ty, &service(), patch).unwrap(),
            format!(r#"{{"apiVersion":"v1","kind":"Service",{metadata},{sorted},{status}}}"#)
        );
        let patch =
            br#"[{"op": "replace", "path": "/spec/ports/0/port", "value": {"b": "<", "a": 1.50}}]"#;
        let sorted = r#""spec":{"clusterIP":"None","ports":[{"port":{"b":"\u003c","a":1.50},"protocol":"TCP","targetPort":80}],"selector":{"app":"x"},"type":"ClusterIP"}"#;
        assert_eq!(
            patched(&schema, ty, &service(), patch).unwrap(),
            format!(r#"{{"apiVersion":"v1","kind":"Service",{metadata},{sorted},{status}}}"#)
        );
        let patch = br#"[{"op": "add", "path": "/spec/ports/-", "value": 3}, {"op": "move", "from": "/spec/type", "path": "/kind"}, {"op": "remove", "path": "/spec/selector"}]"#;
        let moved = r#""spec":{"clusterIP":"None","ports":[{"protocol":"TCP","port":80,"targetPort":80},3]}"#;
        assert_eq!(
            patched(&schema, ty, &service(), patch).unwrap(),
            format!(r#"{{"apiVersion":"v1","kind":"ClusterIP",{metadata},{moved},{status}}}"#)
        );
    }
}
