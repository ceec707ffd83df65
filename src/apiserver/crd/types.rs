//! The schema table of one version, as server-side apply walks it: small, since every version that
//! is used has one.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use api::custom::Structural;
use api::schema::{Field, Schema, Shape, Type, TypeId};

/// Name of the type of `metadata`.
pub(crate) const OBJECT_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";

/// Name of the type of the objects; each version has a table of its own.
const ROOT: &str = "custom.Object";

/// `metadata` and what it is made of, and nothing else: the table of a custom resource begins with
/// it.
static BASE: LazyLock<(Schema, Shape)> = LazyLock::new(|| {
    let table = Schema::builtin();
    let mut base = Schema::new();
    let metadata = match table.by_name(OBJECT_META) {
        Some(id) => Shape::Struct(copy(&table, id, &mut base, &mut HashMap::new())),
        None => Shape::Any,
    };
    (base, metadata)
});

/// Copies a type and those that it names into another table.
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

/// The table of one version, and the type of its objects. Without a schema all but `metadata` is
/// kept as it comes.
pub(crate) fn of(schema: Option<&Structural>) -> (Arc<Schema>, TypeId) {
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
    fn a_table_has_the_kind_and_what_metadata_is_made_of() {
        let schema = json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {"a": {"type": "string"}}}}});
        let (table, root) = of(Some(&Structural::new(&schema).unwrap()));
        let root = table.get(root);
        assert!(!root.open);
        assert!(root.field("spec").is_some());
        let Some(Shape::Struct(metadata)) = root.field("metadata").map(|f| f.shape.clone()) else {
            panic!("metadata is no struct")
        };
        assert_eq!(table.get(metadata).name.as_ref(), OBJECT_META);
        // The whole table of built-in kinds has more than a thousand types.
        assert!(table.types().count() < 10);
        assert!(of(None).0.get(of(None).1).open);
    }
}
