//! Conversion of a structural schema into types of the schema table, for server-side apply
//! (`k8s.io/kube-openapi/pkg/schemaconv`).
//!
//! Objects of custom resources are not decoded with the table, since validation, not the decoder,
//! reports a wrong type in them.

use std::sync::Arc;

use super::Structural;
use super::node::{Additional, ListKind, Node, Type as Named};
use crate::schema::{Field, ListType, Schema, Shape, Type, TypeId};

impl Structural {
    /// Adds the types of a kind to a schema table and returns the type of its objects. The types
    /// are named `name`, or have `name` as their prefix. `metadata` is the shape of `metadata` in
    /// objects and in embedded resources. Types that were added for an earlier version of the
    /// definition are replaced.
    pub fn extend(&self, schema: &mut Schema, name: &str, metadata: &Shape) -> TypeId {
        let mut builder = Builder { schema, metadata };
        let mut fields = builder.fields(&self.0, name, self.0.preserve);
        fields.retain(|field| !is_meta(&field.json));
        fields.extend(builder.meta());
        let mut ty = Type::new(name.into(), fields);
        ty.open = open(&self.0, self.0.preserve);
        ty.atomic = self.0.map_atomic;
        builder.schema.add_type(ty)
    }
}

fn is_meta(name: &str) -> bool {
    matches!(name, "apiVersion" | "kind" | "metadata")
}

/// Whether fields that the schema does not specify may be applied. `preserve` is set when the
/// schema or one of its ancestors preserves unknown fields.
fn open(node: &Node, preserve: bool) -> bool {
    match &node.additional {
        Some(Additional::Any(allowed)) => *allowed,
        Some(Additional::Schema(_)) => false,
        None => preserve || node.properties.is_empty(),
    }
}

struct Builder<'a> {
    schema: &'a mut Schema,
    metadata: &'a Shape,
}

impl Builder<'_> {
    /// The fields `apiVersion`, `kind` and `metadata`.
    fn meta(&self) -> [Field; 3] {
        [
            Field::new("apiVersion", Shape::String),
            Field::new("kind", Shape::String),
            Field::new("metadata", self.metadata.clone()),
        ]
    }

    fn fields(&mut self, node: &Node, path: &str, preserve: bool) -> Vec<Field> {
        let properties = node.properties.iter();
        let mut fields: Vec<Field> = properties
            .map(|(name, below)| self.field(name, below, &format!("{path}.{name}"), preserve))
            .collect();
        if node.embedded {
            fields.retain(|field| !is_meta(&field.json));
            fields.extend(self.meta());
        }
        fields
    }

    fn field(&mut self, name: &str, node: &Node, path: &str, preserve: bool) -> Field {
        let list_type = match node.list {
            Some(ListKind::Set) => ListType::Set,
            Some(ListKind::Map) => ListType::Map(node.list_keys.to_vec()),
            _ => ListType::Atomic,
        };
        Field {
            list_atomic: node.list == Some(ListKind::Atomic),
            list_type,
            atomic: node.map_atomic,
            default: node.default.clone().map(Arc::new),
            ..Field::new(name, self.shape(node, path, preserve))
        }
    }

    /// The shape of a list's item or a map's value.
    fn element(&mut self, node: &Node, path: &str, preserve: bool) -> Shape {
        let field = self.field("", node, path, preserve);
        let plain = !field.atomic && field.list_type == ListType::Atomic;
        if plain { field.shape } else { Shape::Typed(Arc::new(field)) }
    }

    fn shape(&mut self, node: &Node, path: &str, preserve: bool) -> Shape {
        let preserve = preserve || node.preserve;
        if node.int_or_string {
            return Shape::IntOrString;
        }
        match node.kind {
            Some(Named::String) if node.checks.format.is_some() => Shape::IntOrString,
            Some(Named::String) => Shape::String,
            Some(Named::Boolean) => Shape::Bool,
            Some(Named::Integer) => Shape::Int64,
            Some(Named::Number) => Shape::Double,
            Some(Named::Array) => {
                let items = node.items.as_deref();
                let element = items.map_or(Shape::Any, |items| {
                    self.element(items, &format!("{path}.items"), preserve)
                });
                Shape::List(Box::new(element))
            }
            Some(Named::Object) | None => self.object(node, path, preserve),
        }
    }

    fn object(&mut self, node: &Node, path: &str, preserve: bool) -> Shape {
        if let (Some(Additional::Schema(below)), true) =
            (&node.additional, node.properties.is_empty())
        {
            let path = format!("{path}.additionalProperties");
            return Shape::Map(Box::new(self.element(below, &path, preserve)));
        }
        if node.properties.is_empty() && !node.embedded {
            return Shape::Any;
        }
        let fields = self.fields(node, path, preserve);
        let mut ty = Type::new(path.into(), fields);
        ty.open = open(node, preserve);
        Shape::Struct(self.schema.add_type(ty))
    }
}
