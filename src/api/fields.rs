//! Sets of field paths, as `managedFields` holds them: a tree with upstream's FieldsV1 keys (`f:`, `k:`, `v:`, `i:`, `.`).
//!
//! A path element is kept in its serialized form, so that reading and writing FieldsV1 moves strings and parses nothing.

use std::cmp::Ordering;

use serde_json::{Map, Value};

use crate::field::go_quote;

/// Deepest nesting of a field set that is read; far above what any type needs.
const MAX_DEPTH: usize = 128;

/// One path element in FieldsV1 form, such as `f:spec` or `k:{"name":"a"}`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Element(Box<str>);

impl Element {
    /// A field of a struct or a key of a map.
    pub fn field(name: &str) -> Self {
        Self(["f:", name].concat().into())
    }

    /// An element of an associative list; `keys` are its key fields that are set.
    pub fn keys<'a>(keys: impl IntoIterator<Item = (&'a str, &'a Value)>) -> Self {
        let mut sorted: Vec<(&str, &Value)> = keys.into_iter().collect();
        sorted.sort_unstable_by_key(|(name, _)| *name);
        let mut text = String::from("k:{");
        for (i, (name, value)) in sorted.into_iter().enumerate() {
            if i > 0 {
                text.push(',');
            }
            text.push_str(&Value::from(name).to_string());
            text.push(':');
            text.push_str(&canonical(value));
        }
        text.push('}');
        Self(text.into())
    }

    /// An element of a set.
    pub fn value(value: &Value) -> Self {
        Self(format!("v:{}", canonical(value)).into())
    }

    /// Reads a key of FieldsV1; `Ok(None)` for a kind that is unknown and ignored.
    fn parse(key: &str) -> Result<Option<Self>, String> {
        let Some((kind, rest)) = key.split_once(':').filter(|(kind, _)| kind.len() == 1) else {
            return Err(if key.len() < 2 {
                "key must be 2 characters long:".into()
            } else {
                format!("missing colon: {key}")
            });
        };
        let json = |text: &str| serde_json::from_str::<Value>(text).map_err(|e| e.to_string());
        Ok(match kind {
            "f" => Some(Self(key.into())),
            "v" => Some(Self::value(&json(rest)?)),
            "k" => match json(rest)? {
                Value::Object(map) => Some(Self::keys(map.iter().map(|(k, v)| (k.as_str(), v)))),
                other => return Err(format!("the keys of an element are no object: {other}")),
            },
            "i" => {
                Some(Self(format!("i:{}", rest.parse::<i64>().map_err(|e| e.to_string())?).into()))
            }
            _ => None,
        })
    }

    /// The name, when this is a field.
    pub fn name(&self) -> Option<&str> {
        self.0.strip_prefix("f:")
    }

    /// Upstream's order: fields, keys, values, indexes; each by its own order.
    fn compare(&self, other: &Self) -> Ordering {
        let (a, b) = (self.0.as_bytes().first(), other.0.as_bytes().first());
        let rank = |c: Option<&u8>| match c {
            Some(b'f') => 0,
            Some(b'k') => 1,
            Some(b'v') => 2,
            _ => 3,
        };
        rank(a).cmp(&rank(b)).then_with(|| {
            if a == Some(&b'f') || self.0 == other.0 {
                return self.0.cmp(&other.0);
            }
            let parse = |e: &Self| {
                e.0.get(2..).and_then(|t| serde_json::from_str::<Value>(t).ok()).unwrap_or_default()
            };
            compare_values(&parse(self), &parse(other)).then_with(|| self.0.cmp(&other.0))
        })
    }

    /// As a path shows it: `.spec`, `[name="a"]`, `[="x"]`, `[1]`.
    pub fn show(&self) -> String {
        let rest = self.0.get(2..).unwrap_or_default();
        let json = || serde_json::from_str::<Value>(rest).unwrap_or_default();
        match self.0.as_bytes().first() {
            Some(b'f') => format!(".{rest}"),
            Some(b'k') => match json() {
                Value::Object(map) => {
                    format!(
                        "[{}]",
                        map.iter()
                            .map(|(k, v)| format!("{k}={}", shown(v)))
                            .collect::<Vec<_>>()
                            .join(",")
                    )
                }
                _ => "[]".into(),
            },
            Some(b'v') => format!("[={}]", shown(&json())),
            _ => format!("[{rest}]"),
        }
    }
}

fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => go_quote(text),
        other => other.to_string(),
    }
}

/// Compact JSON; a float without fraction is the integer it equals, and characters of HTML are escaped as Go does.
fn canonical(value: &Value) -> String {
    let text = match value.as_f64() {
        Some(f) if value.is_f64() && f.fract() == 0.0 && f.abs() < 9e15 => {
            return format!("{f:.0}");
        }
        _ => value.to_string(),
    };
    if !text.contains(['<', '>', '&', '\u{2028}', '\u{2029}']) {
        return text;
    }
    let mut out = String::with_capacity(text.len() + 16);
    for letter in text.chars() {
        match letter {
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => {
                out.push_str(&format!("\\u{:04x}", u32::from(letter)));
            }
            other => out.push(other),
        }
    }
    out
}

/// Upstream's total order of values: numbers, strings, booleans, the rest.
fn compare_values(a: &Value, b: &Value) -> Ordering {
    let rank = |v: &Value| match v {
        Value::Number(_) => 0,
        Value::String(_) => 1,
        Value::Bool(_) => 2,
        Value::Array(_) => 3,
        Value::Object(_) => 4,
        Value::Null => 5,
    };
    match (a, b) {
        (Value::Number(x), Value::Number(y)) => match (x.as_i64(), y.as_i64()) {
            (Some(x), Some(y)) => x.cmp(&y),
            _ => x.as_f64().partial_cmp(&y.as_f64()).unwrap_or(Ordering::Equal),
        },
        (Value::String(x), Value::String(y)) => x.cmp(y),
        (Value::Bool(x), Value::Bool(y)) => x.cmp(y),
        (Value::Object(x), Value::Object(y)) => {
            for ((xk, xv), (yk, yv)) in x.iter().zip(y) {
                match xk.cmp(yk).then_with(|| compare_values(xv, yv)) {
                    Ordering::Equal => {}
                    other => return other,
                }
            }
            x.len().cmp(&y.len())
        }
        _ => rank(a).cmp(&rank(b)),
    }
}

/// A path: elements from the root.
pub type Path = Vec<Element>;

/// A path as messages show it: `.spec.containers[name="a"].image`.
pub fn show(path: &[Element]) -> String {
    path.iter().map(Element::show).collect()
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Node {
    element: Element,
    /// The path itself is in the set; otherwise only paths below it.
    member: bool,
    children: Set,
}

/// A set of paths. No node is without a member at or below it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Set {
    nodes: Vec<Node>,
}

impl Set {
    /// The empty set.
    pub const fn new() -> Self {
        Self { nodes: Vec::new() }
    }

    /// A set of paths of fields, such as `&[&["metadata", "name"]]`.
    pub fn of_fields(paths: &[&[&str]]) -> Self {
        let mut set = Self::new();
        for path in paths {
            set.insert(path.iter().map(|name| Element::field(name)));
        }
        set
    }

    /// Whether no path is in the set.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    fn find(&self, element: &Element) -> Result<usize, usize> {
        self.nodes.binary_search_by(|n| n.element.compare(element))
    }

    fn node(&self, element: &Element) -> Option<&Node> {
        self.find(element).ok().and_then(|i| self.nodes.get(i))
    }

    /// Adds one path; the empty path is ignored.
    pub fn insert(&mut self, path: impl IntoIterator<Item = Element>) {
        let mut path = path.into_iter();
        let Some(first) = path.next() else { return };
        let mut rest = path.peekable();
        let at = match self.find(&first) {
            Ok(at) => at,
            Err(at) => {
                self.nodes
                    .insert(at, Node { element: first, member: false, children: Self::new() });
                at
            }
        };
        let Some(node) = self.nodes.get_mut(at) else { return };
        if rest.peek().is_none() {
            node.member = true;
        } else {
            node.children.insert(&mut rest as &mut dyn Iterator<Item = Element>);
        }
    }

    /// Adds an element with all that is below it; nothing when it would be empty.
    pub(crate) fn put(&mut self, element: Element, member: bool, children: Self) {
        if !member && children.is_empty() {
            return;
        }
        let node = Node { element, member, children };
        // Walkers visit in order, so appending is the usual case.
        if self
            .nodes
            .last()
            .is_none_or(|last| last.element.compare(&node.element) == Ordering::Less)
        {
            self.nodes.push(node);
            return;
        }
        match self.find(&node.element) {
            Ok(at) => {
                if let Some(have) = self.nodes.get_mut(at) {
                    have.member |= node.member;
                    have.children = std::mem::take(&mut have.children).union(node.children);
                }
            }
            Err(at) => self.nodes.insert(at, node),
        }
    }

    /// Whether the path is a member.
    pub fn has(&self, path: &[Element]) -> bool {
        match path {
            [] => false,
            [last] => self.node(last).is_some_and(|n| n.member),
            [first, rest @ ..] => self.node(first).is_some_and(|n| n.children.has(rest)),
        }
    }

    /// Whether the element itself is a member, and what is below it.
    pub(crate) fn get(&self, element: &Element) -> (bool, &Self) {
        static EMPTY: Set = Set::new();
        self.node(element).map_or((false, &EMPTY), |n| (n.member, &n.children))
    }

    /// Members of either set.
    #[must_use]
    pub fn union(self, other: Self) -> Self {
        if self.is_empty() {
            return other;
        }
        let mut out = self;
        for node in other.nodes {
            out.put(node.element, node.member, node.children);
        }
        out
    }

    /// Members of both sets.
    #[must_use]
    pub fn intersection(&self, other: &Self) -> Self {
        self.combine(other, |a, b| a && b, Self::intersection, |_| false)
    }

    /// Members of this set that are not in the other; removing a parent keeps its children.
    #[must_use]
    pub fn difference(&self, other: &Self) -> Self {
        self.combine(other, |a, b| a && !b, Self::difference, |_| true)
    }

    /// Members of this set that are not in the other nor below a member of it.
    #[must_use]
    pub fn recursive_difference(&self, other: &Self) -> Self {
        let mut out = Self::new();
        for node in &self.nodes {
            match other.node(&node.element) {
                None => out.nodes.push(node.clone()),
                Some(theirs) if theirs.member => {}
                Some(theirs) => out.push(
                    &node.element,
                    node.member,
                    node.children.recursive_difference(&theirs.children),
                ),
            }
        }
        out
    }

    fn push(&mut self, element: &Element, member: bool, children: Self) {
        if member || !children.is_empty() {
            self.nodes.push(Node { element: element.clone(), member, children });
        }
    }

    fn combine(
        &self,
        other: &Self,
        member: impl Fn(bool, bool) -> bool,
        below: impl Fn(&Self, &Self) -> Self,
        alone: impl Fn(&Node) -> bool,
    ) -> Self {
        let mut out = Self::new();
        for node in &self.nodes {
            match other.node(&node.element) {
                None if alone(node) => out.nodes.push(node.clone()),
                None => {}
                Some(theirs) => out.push(
                    &node.element,
                    member(node.member, theirs.member),
                    below(&node.children, &theirs.children),
                ),
            }
        }
        out
    }

    /// Whether the two sets share a member.
    pub fn overlaps(&self, other: &Self) -> bool {
        self.nodes.iter().any(|node| {
            other.node(&node.element).is_some_and(|theirs| {
                (node.member && theirs.member) || node.children.overlaps(&theirs.children)
            })
        })
    }

    /// Whether this set shares a member with a set in FieldsV1 form, without reading that one.
    pub fn overlaps_fields_v1(&self, fields: &Value) -> bool {
        let Some(map) = fields.as_object() else { return false };
        // An element written in another than the canonical form is not found by its text: then the set is read.
        if map.keys().any(|k| k.starts_with("k:") || k.starts_with("v:")) {
            return Self::from_fields_v1(fields).is_ok_and(|set| self.overlaps(&set));
        }
        self.nodes.iter().any(|node| {
            map.get(&*node.element.0).is_some_and(|below| {
                let theirs = below.as_object().is_some_and(|m| m.is_empty() || m.contains_key("."));
                (node.member && theirs) || node.children.overlaps_fields_v1(below)
            })
        })
    }

    /// The elements of the first level, whether each is a member, and what is below.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Element, bool, &Self)> {
        self.nodes.iter().map(|n| (&n.element, n.member, &n.children))
    }

    /// All members in upstream's order: those of a level before those below it.
    pub fn paths(&self) -> Vec<Path> {
        fn walk(set: &Set, prefix: &mut Path, out: &mut Vec<Path>) {
            for node in set.nodes.iter().filter(|n| n.member) {
                let mut path = prefix.clone();
                path.push(node.element.clone());
                out.push(path);
            }
            for node in set.nodes.iter().filter(|n| !n.children.is_empty()) {
                prefix.push(node.element.clone());
                walk(&node.children, prefix, out);
                prefix.pop();
            }
        }
        let mut out = Vec::new();
        walk(self, &mut Path::new(), &mut out);
        out
    }

    /// Reads FieldsV1.
    ///
    /// # Errors
    /// When a key is no path element, a value no object, or the nesting too deep.
    pub fn from_fields_v1(fields: &Value) -> Result<Self, String> {
        Self::read(fields, 0).map(|(set, _)| set)
    }

    fn read(fields: &Value, depth: usize) -> Result<(Self, bool), String> {
        if depth > MAX_DEPTH {
            return Err(format!("fields are nested deeper than {MAX_DEPTH}"));
        }
        let map = match fields {
            Value::Object(map) => map,
            Value::Null => return Ok((Self::new(), true)),
            other => return Err(format!("expected an object of fields, got {other}")),
        };
        let mut set = Self::new();
        let mut own = false;
        for (key, below) in map {
            if key == "." {
                own = true;
                continue;
            }
            if let Some(element) = Element::parse(key)? {
                let (children, member) = Self::read(below, depth + 1)?;
                set.put(element, member, children);
            }
        }
        let own = own || set.is_empty();
        Ok((set, own))
    }

    /// Writes FieldsV1.
    pub fn to_fields_v1(&self) -> Value {
        self.write(false)
    }

    fn write(&self, own: bool) -> Value {
        let mut map = Map::new();
        if own && !self.nodes.is_empty() {
            map.insert(".".into(), Value::Object(Map::new()));
        }
        for node in &self.nodes {
            map.insert(node.element.0.clone().into(), node.children.write(node.member));
        }
        Value::Object(map)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn set(value: Value) -> Set {
        Set::from_fields_v1(&value).unwrap()
    }

    #[test]
    fn reads_and_writes_fields_v1() {
        let v = json!({"f:metadata":{"f:finalizers":{".":{},"v:\"x.io/b\"":{}},"f:labels":{".":{},"f:z":{}}},
            "f:spec":{"f:ports":{"k:{\"containerPort\":80,\"protocol\":\"TCP\"}":{".":{},"f:containerPort":{}}}}});
        assert_eq!(set(v.clone()).to_fields_v1(), v);
        assert_eq!(set(json!({})).to_fields_v1(), json!({}));
        // Another spelling of the same key is the same element; kinds that are unknown are dropped.
        let other = json!({"f:a":{"k:{ \"p\": 80.0, \"n\":\"x\" }":{"f:b":{}},"z:q":{}}});
        assert_eq!(
            set(other).to_fields_v1(),
            json!({"f:a":{"k:{\"n\":\"x\",\"p\":80}":{"f:b":{}}}})
        );
        assert!(Set::from_fields_v1(&json!({"x":{}})).is_err());
        assert!(Set::from_fields_v1(&json!({"f:a":3})).is_err());
    }

    #[test]
    fn shows_paths_as_upstream_does() {
        let s = set(
            json!({"f:spec":{"f:ports":{"k:{\"port\":443}":{".":{}},"k:{\"port\":80}":{".":{},"f:name":{}}},"f:x":{"v:1":{},"v:\"a\"":{}}},"f:b":{}}),
        );
        let shown: Vec<String> = s.paths().iter().map(|p| show(p)).collect();
        assert_eq!(
            shown,
            [
                ".b",
                ".spec.ports[port=80]",
                ".spec.ports[port=443]",
                ".spec.ports[port=80].name",
                ".spec.x[=1]",
                ".spec.x[=\"a\"]"
            ]
        );
    }

    #[test]
    fn combines_sets() {
        let a = set(json!({"f:a":{".":{},"f:b":{}},"f:c":{}}));
        let b = set(json!({"f:a":{},"f:d":{}}));
        assert_eq!(a.difference(&b).to_fields_v1(), json!({"f:a":{"f:b":{}},"f:c":{}}));
        assert_eq!(a.recursive_difference(&b).to_fields_v1(), json!({"f:c":{}}));
        assert_eq!(a.intersection(&b).to_fields_v1(), json!({"f:a":{}}));
        assert_eq!(
            a.clone().union(b.clone()).to_fields_v1(),
            json!({"f:a":{".":{},"f:b":{}},"f:c":{},"f:d":{}})
        );
        assert!(a.overlaps(&b) && a.overlaps_fields_v1(&json!({"f:a":{}})));
        assert!(!a.overlaps_fields_v1(&json!({"f:a":{"f:x":{}}})));
        assert!(
            a.has(&[Element::field("a"), Element::field("b")])
                && !b.has(&[Element::field("a"), Element::field("b")])
        );
    }
}
