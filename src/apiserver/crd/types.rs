//! Builds the schema table of one version, which server-side apply uses. It contains only the types
//! of that version, because every version in use has its own table.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use api::custom::Structural;
use api::schema::{Field, Schema, Shape, Type, TypeId};

/// The name of the type of `metadata`.
pub(crate) const OBJECT_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";

/// The name of the type of the objects, the same in each table.
const ROOT: &str = "custom.Object";

/// A table with `ObjectMeta` and the types that it refers to, and the shape of `metadata`: each
/// table starts as a copy of it.
static BASE: LazyLock<(Schema, Shape)> = LazyLock::new(|| {
    let table = Schema::builtin();
    let mut base = Schema::new();
    let metadata = match table.by_name(OBJECT_META) {
        Some(id) => Shape::Struct(copy(&table, id, &mut base, &mut HashMap::new())),
        None => Shape::Any,
    };
    (base, metadata)
});

/// Copies a type and the types that it refers to into another table.
fn copy(from: &Schema, id: TypeId, to: &mut Schema, done: &mut HashMap<TypeId, TypeId>) -> TypeId {
    if let Some(known) = done.get(&id) {
        return *known;
    }
    let old = Arc::clone(from.get(id));
    let fields = old.fields.iter().cloned().map(|mut field| {
        field.shape = copy_shape(from, &field.shape, to, done);
        field
    });
    let fields = fields.collect();
    let new = to.add_type(retyped(&old, fields));
    done.insert(id, new);
    new
}

fn retyped(old: &Type, fields: Vec<Field>) -> Type {
    let mut ty = Type::new(Arc::clone(&old.name), fields);
    (ty.open, ty.atomic) = (old.open, old.atomic);
    ty
}

fn copy_shape(
    from: &Schema,
    shape: &Shape,
    to: &mut Schema,
    done: &mut HashMap<TypeId, TypeId>,
) -> Shape {
    match shape {
        Shape::Struct(id) => Shape::Struct(copy(from, *id, to, done)),
        Shape::List(inner) => Shape::List(Box::new(copy_shape(from, inner, to, done))),
        Shape::Map(inner) => Shape::Map(Box::new(copy_shape(from, inner, to, done))),
        other => other.clone(),
    }
}

/// Builds the table of one version and returns it with the type of its objects. Without a schema
/// the type accepts all fields.
pub(crate) fn build(schema: Option<&Structural>) -> (Arc<Schema>, TypeId) {
    let (base, metadata) = &*BASE;
    let mut table = base.clone();
    let root = match schema {
        Some(schema) => schema.extend(&mut table, ROOT, metadata),
        None => {
            let mut ty = Type::new(
                ROOT.into(),
                vec![
                    Field::new("apiVersion", Shape::String),
                    Field::new("kind", Shape::String),
                    Field::new("metadata", metadata.clone()),
                ],
            );
            ty.open = true;
            table.add_type(ty)
        }
    };
    (Arc::new(table), root)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_table_contains_the_schema_and_the_types_of_metadata() {
        let spec = json!({"type": "object", "properties": {"a": {"type": "string"}}});
        let schema = json!({"type": "object", "properties": {"spec": spec}});
        let (table, root) = build(Some(&Structural::new(&schema).unwrap()));
        let root = table.get(root);
        assert!(!root.open);
        assert!(root.field("spec").is_some());
        let Some(Shape::Struct(metadata)) = root.field("metadata").map(|f| f.shape.clone()) else {
            panic!("metadata is not a struct")
        };
        assert_eq!(table.get(metadata).name.as_ref(), OBJECT_META);
        // The whole table of built-in kinds has more than a thousand types.
        assert!(table.types().count() < 10);
        let (table, root) = build(None);
        assert!(table.get(root).open);
    }
}
