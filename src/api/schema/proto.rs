//! The protobuf layout of a struct: the fields in the order of their tags, with inlined Go structs
//! as separate messages.

use sorting::CompactSort as _;

use super::Field;

/// The fields of a struct in protobuf, sorted by tag.
pub(crate) type Layout = Box<[Node]>;

/// One field of a protobuf message.
#[derive(Debug, Clone)]
pub(crate) struct Node {
    /// The field number.
    pub(crate) tag: u32,
    /// The field of the table or the inlined struct with this number.
    pub(crate) what: What,
}

/// A field of the table, or the message of an inlined struct.
#[derive(Debug, Clone)]
pub(crate) enum What {
    /// The position in `Type::fields`.
    Field(u32),
    /// The fields of an inlined struct.
    Inlined(Layout),
}

/// Groups the fields by the inlined messages that contain them.
pub(crate) fn layout(fields: &[Field]) -> Layout {
    let all: Vec<(u32, &Field)> = (0_u32..).zip(fields).filter(|(_, f)| f.tag != 0).collect();
    level(&all, 0)
}

fn level(fields: &[(u32, &Field)], depth: usize) -> Layout {
    let mut nodes: Vec<Node> = Vec::new();
    for (position, field) in fields {
        match field.inlined_in.get(depth) {
            None => nodes.push(Node { tag: field.tag, what: What::Field(*position) }),
            Some(tag) if nodes.iter().any(|n| n.tag == *tag) => {}
            Some(tag) => {
                let inner: Vec<(u32, &Field)> = fields
                    .iter()
                    .filter(|(_, f)| f.inlined_in.get(depth) == Some(tag))
                    .copied()
                    .collect();
                nodes.push(Node { tag: *tag, what: What::Inlined(level(&inner, depth + 1)) });
            }
        }
    }
    nodes.compact_sort_by_key(|n| n.tag);
    nodes.into()
}
