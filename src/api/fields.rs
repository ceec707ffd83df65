//! Sets of field paths in the form of `managedFields`: a tree with upstream's FieldsV1 keys (`f:`,
//! `k:`, `v:`, `i:`, `.`).
//!
//! A path element keeps its serialized form, so that the conversion from and to FieldsV1 moves
//! strings without parsing them.

mod element;
mod error;

use std::cmp::Ordering;

use serde_json::{Map, Value};
use sorting::CompactSort as _;

pub use element::Element;
use element::compare_texts;
pub use error::FieldsError;

/// The deepest nesting of a field set that the decoder accepts, far more than any type requires.
const MAX_DEPTH: usize = 128;

/// A path of elements that starts at the root.
pub type Path = Vec<Element>;

/// Formats a path for messages: `.spec.containers[name="a"].image`.
pub fn show(path: &[Element]) -> String {
    path.iter().map(Element::show).collect()
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Node {
    element: Element,
    /// Whether the set contains the path itself; otherwise it contains only paths below it.
    member: bool,
    children: Set,
}

/// A set of paths. Every node has a member at or below it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Set {
    nodes: Vec<Node>,
}

impl Set {
    /// Creates an empty set.
    pub const fn new() -> Self {
        Self { nodes: Vec::new() }
    }

    /// Creates a set of paths of fields, such as `&[&["metadata", "name"]]`.
    pub fn of_fields(paths: &[&[&str]]) -> Self {
        let mut set = Self::new();
        for path in paths {
            set.insert(path.iter().map(|name| Element::field(name)));
        }
        set
    }

    /// Returns whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// Creates a set of nodes in any order; nodes of the same element are merged.
    fn of_nodes(mut nodes: Vec<Node>) -> Self {
        let sorted = nodes.is_sorted_by(|a, b| a.element.compare(&b.element) == Ordering::Less);
        if sorted {
            return Self { nodes };
        }
        nodes.compact_sort_by(|a, b| a.element.compare(&b.element));
        let mut joined: Vec<Node> = Vec::with_capacity(nodes.len());
        // Merged children are sorted once at the end, so that the cost does not grow with the
        // number of equal elements.
        let mut below: Vec<Node> = Vec::new();
        for node in nodes {
            let Node { element, member, children } = node;
            match joined.last_mut().filter(|last| last.element == element) {
                Some(last) => {
                    last.member |= member;
                    if below.is_empty() {
                        below = std::mem::take(&mut last.children.nodes);
                    }
                    below.extend(children.nodes);
                }
                None => {
                    Self::close(&mut joined, &mut below);
                    joined.push(Node { element, member, children });
                }
            }
        }
        Self::close(&mut joined, &mut below);
        Self { nodes: joined }
    }

    /// Moves the collected children to the last node.
    fn close(joined: &mut [Node], below: &mut Vec<Node>) {
        if let Some(last) = joined.last_mut().filter(|_| !below.is_empty()) {
            last.children = Self::of_nodes(std::mem::take(below));
        }
    }

    fn find(&self, element: &Element) -> Result<usize, usize> {
        self.nodes.binary_search_by(|n| n.element.compare(element))
    }

    fn node(&self, element: &Element) -> Option<&Node> {
        self.node_of_text(&element.0)
    }

    fn node_of_text(&self, element: &str) -> Option<&Node> {
        let at = self.nodes.binary_search_by(|n| compare_texts(&n.element.0, element)).ok()?;
        self.nodes.get(at)
    }

    /// Adds a path; an empty path is ignored.
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

    /// Adds an element with all paths below it, unless both are empty. For elements out of order
    /// use a [`SetBuilder`], because each insertion moves all elements that follow.
    pub(crate) fn put(&mut self, element: Element, member: bool, children: Self) {
        if !member && children.is_empty() {
            return;
        }
        let node = Node { element, member, children };
        // Callers visit elements in order, so the usual case is an append.
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

    /// Returns whether the path is a member.
    pub fn has(&self, path: &[Element]) -> bool {
        match path {
            [] => false,
            [last] => self.node(last).is_some_and(|n| n.member),
            [first, rest @ ..] => self.node(first).is_some_and(|n| n.children.has(rest)),
        }
    }

    /// Returns whether the element is a member, and the paths below it.
    pub(crate) fn get(&self, element: &Element) -> (bool, &Self) {
        static EMPTY: Set = Set::new();
        self.node(element).map_or((false, &EMPTY), |n| (n.member, &n.children))
    }

    /// Returns the members of either set.
    #[must_use]
    pub fn union(self, other: Self) -> Self {
        if self.is_empty() {
            return other;
        }
        if other.is_empty() {
            return self;
        }
        let mut nodes = self.nodes;
        nodes.extend(other.nodes);
        // The sort merges two sorted runs in linear time.
        Self::of_nodes(nodes)
    }

    /// Returns the members of any of the sets.
    pub(crate) fn union_all(sets: impl IntoIterator<Item = Self>) -> Self {
        Self::of_nodes(sets.into_iter().flat_map(|set| set.nodes).collect())
    }

    /// Returns the members of both sets.
    #[must_use]
    pub fn intersection(&self, other: &Self) -> Self {
        self.combine(other, |a, b| a && b, Self::intersection, |_| false)
    }

    /// Returns the members of this set that the other lacks; the children of a removed parent
    /// remain.
    #[must_use]
    pub fn difference(&self, other: &Self) -> Self {
        self.combine(other, |a, b| a && !b, Self::difference, |_| true)
    }

    /// Returns the members of this set that are neither in the other set nor below one of its
    /// members.
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

    /// Returns whether the two sets share a member.
    pub fn overlaps(&self, other: &Self) -> bool {
        self.nodes.iter().any(|node| {
            other.node(&node.element).is_some_and(|theirs| {
                (node.member && theirs.member) || node.children.overlaps(&theirs.children)
            })
        })
    }

    /// Returns whether this set shares a member with a set in FieldsV1 form, without decoding the
    /// latter.
    pub fn overlaps_fields_v1(&self, fields: &Value) -> bool {
        let Some(map) = fields.as_object() else { return false };
        // A comparison of texts does not find an element in a non-canonical form, so a set with
        // such keys is decoded.
        if map.keys().any(|k| k.starts_with("k:") || k.starts_with("v:")) {
            return Self::from_fields_v1(fields).is_ok_and(|set| self.overlaps(&set));
        }
        let shared = |node: &Node, below: &Value| {
            let theirs = below.as_object().is_some_and(|m| m.is_empty() || m.contains_key("."));
            (node.member && theirs) || node.children.overlaps_fields_v1(below)
        };
        // The loop iterates over the smaller side, because a large set is compared with many small
        // entries.
        if map.len() < self.nodes.len() {
            return map.iter().any(|(key, below)| {
                self.node_of_text(key).is_some_and(|node| shared(node, below))
            });
        }
        self.nodes
            .iter()
            .any(|node| map.get(&*node.element.0).is_some_and(|below| shared(node, below)))
    }

    /// Returns the elements of the first level, whether each is a member, and the paths below it.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Element, bool, &Self)> {
        self.nodes.iter().map(|n| (&n.element, n.member, &n.children))
    }

    /// Returns all members in upstream's order: the members of a level precede those below it.
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

    /// Decodes FieldsV1.
    ///
    /// # Errors
    /// Returns an error if a key is not a path element, a value is not an object, or the nesting is
    /// too deep.
    pub fn from_fields_v1(fields: &Value) -> Result<Self, FieldsError> {
        Self::read(fields, 0).map(|(set, _)| set)
    }

    fn read(fields: &Value, depth: usize) -> Result<(Self, bool), FieldsError> {
        if depth > MAX_DEPTH {
            return Err(FieldsError::TooDeep);
        }
        let map = match fields {
            Value::Object(map) => map,
            Value::Null => return Ok((Self::new(), true)),
            other => return Err(FieldsError::NotAnObject(other.to_string())),
        };
        let mut set = SetBuilder::default();
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
        let set = set.build();
        let own = own || set.is_empty();
        Ok((set, own))
    }

    /// Encodes the set as FieldsV1.
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

/// Collects the elements of one level in any order and sorts them once, at the end.
#[derive(Debug, Default)]
pub(crate) struct SetBuilder {
    nodes: Vec<Node>,
}

impl SetBuilder {
    /// Adds an element with all paths below it, unless both are empty.
    pub(crate) fn put(&mut self, element: Element, member: bool, children: Set) {
        if member || !children.is_empty() {
            self.nodes.push(Node { element, member, children });
        }
    }

    pub(crate) fn build(self) -> Set {
        Set::of_nodes(self.nodes)
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
        // A different spelling of a key is the same element; the decoder drops elements of unknown
        // kinds.
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
    #[test]
    fn elements_out_of_order_are_sorted_and_joined() {
        let mut builder = SetBuilder::default();
        let below = |name: &str| set(json!({format!("f:{name}"): {}}));
        builder.put(Element::field("b"), false, below("x"));
        builder.put(Element::field("a"), true, Set::new());
        builder.put(Element::field("b"), true, below("y"));
        builder.put(Element::field("c"), false, Set::new());
        builder.put(Element::field("b"), false, below("x"));
        let built = builder.build();
        assert_eq!(built.to_fields_v1(), json!({"f:a":{},"f:b":{".":{},"f:x":{},"f:y":{}}}));
        assert_eq!(built, set(json!({"f:a":{},"f:b":{".":{},"f:x":{},"f:y":{}}})));
    }
}
