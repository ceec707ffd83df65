//! A structural schema in the schema table, for server-side apply and OpenAPI (`k8s.io/kube-openapi/pkg/schemaconv`).
//!
//! Objects of custom resources are not decoded by the table: a wrong type is an error of validation there, not of the decoder.

use std::sync::Arc;

use serde_json::Value;

use super::Structural;
use super::node::{Additional, ListKind, Node, Type as Named};
use crate::object::Gvk;
use crate::schema::{Custom, Field, ListType, Schema, Shape, Type, TypeId};

const OBJECT_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";
const LIST_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ListMeta";

/// One kind that a definition serves in one version.
#[derive(Debug, Clone)]
pub struct Kind<'a> {
    /// Group, version and kind.
    pub gvk: Gvk,
    /// The kind of its lists.
    pub list_kind: &'a str,
    /// Its name in paths, for the description of lists.
    pub plural: &'a str,
    /// `JSONSchemaProps` of the version, of which OpenAPI is rendered.
    pub source: &'a Value,
}

/// The name of a kind's definition in OpenAPI: `com.example.stable.v1.CronTab`.
pub fn type_name(group: &str, version: &str, kind: &str) -> String {
    let mut parts: Vec<&str> = group.rsplit('.').collect();
    parts.extend([version, kind]);
    parts.join(".")
}

impl Structural {
    /// Adds the types of a kind and of its lists to a table, and says which kinds they are. Types of an earlier state of the
    /// same kind are replaced.
    pub fn extend(&self, schema: &mut Schema, kind: &Kind<'_>) -> TypeId {
        let Gvk { group, version, kind: name } = &kind.gvk;
        let root = type_name(group, version, name);
        let mut builder = Builder { schema, root: root.clone() };
        let mut fields = builder.fields(&self.0, &root, self.0.preserve);
        fields.retain(|field| !matches!(&*field.json, "apiVersion" | "kind" | "metadata"));
        fields.extend(builder.meta(OBJECT_META));
        let source = Custom { source: kind.source.to_string().into(), list_of: None };
        let mut ty = Type::new(root.as_str().into(), fields);
        ty.open = open(&self.0, self.0.preserve);
        ty.atomic = self.0.map_atomic;
        ty.custom = Some(Arc::new(source));
        let id = schema.add_type(ty);
        schema.add_kind(kind.gvk.clone(), id);

        let mut builder = Builder { schema, root: root.clone() };
        let mut fields = builder.meta(LIST_META);
        let items = Field::new("items", Shape::List(Box::new(Shape::Struct(id))));
        fields.push(Field { required: true, pointer: false, omit_empty: false, ..items });
        let list = type_name(group, version, kind.list_kind);
        let mut ty = Type::new(list.as_str().into(), fields);
        ty.custom = Some(Arc::new(Custom {
            source: "".into(),
            list_of: Some((root.as_str().into(), kind.list_kind.into(), kind.plural.into())),
        }));
        let list = schema.add_type(ty);
        schema.add_kind(Gvk::new(group, version, kind.list_kind), list);
        id
    }
}

/// Whether fields that the schema does not name may be applied. What an ancestor preserves is preserved below it.
fn open(node: &Node, preserve: bool) -> bool {
    match &node.additional {
        Some(Additional::Any(allowed)) => *allowed,
        Some(Additional::Schema(_)) => false,
        None => preserve || node.properties.is_empty(),
    }
}

struct Builder<'a> {
    schema: &'a mut Schema,
    root: String,
}

impl Builder<'_> {
    /// `apiVersion`, `kind` and `metadata`.
    fn meta(&mut self, name: &str) -> Vec<Field> {
        let shape = self.schema.by_name(name).map_or(Shape::Any, Shape::Struct);
        vec![
            Field::new("apiVersion", Shape::String),
            Field::new("kind", Shape::String),
            Field::new("metadata", shape),
        ]
    }

    fn fields(&mut self, node: &Node, path: &str, preserve: bool) -> Vec<Field> {
        let properties = node.properties.iter();
        let mut fields: Vec<Field> = properties
            .map(|(name, below)| self.field(name, below, &format!("{path}.{name}"), preserve))
            .collect();
        if node.embedded {
            fields.retain(|field| !matches!(&*field.json, "apiVersion" | "kind" | "metadata"));
            fields.extend(self.meta(OBJECT_META));
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

    /// An item of a list or a value of a map.
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
        debug_assert!(path.starts_with(&self.root), "types of a kind stand below it");
        Shape::Struct(self.schema.add_type(ty))
    }
}
