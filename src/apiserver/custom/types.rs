//! The schema of a version as server-side apply walks it: which lists are sets or maps, what is replaced as a whole, what is unknown.
//!
//! Source of the rules: `kube-openapi/pkg/schemaconv`, over what `pkg/controller/openapi/builder` of apiextensions makes of a schema.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use api::schema::{Field, ListType, Schema, Shape, Type, TypeId};
use serde_json::Value;

/// Name of the type of `metadata`.
pub(crate) const OBJECT_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";

/// Schemas nest so deep at most; deeper parts are taken without one.
const DEPTH_MAX: usize = 64;

/// `metadata` and what it is made of, and nothing else: the table of a custom resource begins with it.
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

/// The table of one version, and the type of its objects. Without a schema all but `metadata` is kept as it comes.
pub(crate) fn of(schema: Option<&Value>) -> (Arc<Schema>, TypeId) {
    let (base, metadata) = &*BASE;
    let mut maker = Maker { table: base.clone(), metadata: metadata.clone(), made: 0 };
    let none = Value::Null;
    let props = schema.unwrap_or(&none);
    let root = maker.object(props, 0, true, schema.is_none());
    (Arc::new(maker.table), root)
}

struct Maker {
    table: Schema,
    metadata: Shape,
    made: usize,
}

fn flag(props: &Value, key: &str) -> bool {
    props.get(key).and_then(Value::as_bool).unwrap_or(false)
}

fn text<'a>(props: &'a Value, key: &str) -> &'a str {
    props.get(key).and_then(Value::as_str).unwrap_or_default()
}

impl Maker {
    /// An object with properties as a type of the table.
    fn object(&mut self, props: &Value, depth: usize, resource: bool, open: bool) -> TypeId {
        let mut fields = Vec::new();
        for (name, inner) in
            props.get("properties").and_then(Value::as_object).into_iter().flatten()
        {
            let typed = resource && matches!(name.as_str(), "apiVersion" | "kind" | "metadata");
            if !typed {
                fields.push(self.field(name, inner, depth + 1));
            }
        }
        if resource {
            fields.push(Field::new("apiVersion", Shape::String));
            fields.push(Field::new("kind", Shape::String));
            fields.push(Field::new("metadata", self.metadata.clone()));
        }
        let mut ty = Type::new(format!("custom.{}", self.made).into(), fields);
        self.made += 1;
        ty.open = open || flag(props, "x-kubernetes-preserve-unknown-fields");
        ty.atomic = text(props, "x-kubernetes-map-type") == "atomic";
        self.table.add_type(ty)
    }

    fn field(&mut self, name: &str, props: &Value, depth: usize) -> Field {
        let mut field = Field::new(name, self.shape(props, depth));
        field.default = props.get("default").map(|value| Arc::new(value.clone()));
        field.atomic = text(props, "x-kubernetes-map-type") == "atomic";
        field.list_type = match text(props, "x-kubernetes-list-type") {
            "set" => ListType::Set,
            "map" => {
                let keys = props.get("x-kubernetes-list-map-keys").and_then(Value::as_array);
                let keys = keys.into_iter().flatten().filter_map(Value::as_str);
                ListType::Map(keys.map(Into::into).collect())
            }
            _ => ListType::Atomic,
        };
        field
    }

    fn shape(&mut self, props: &Value, depth: usize) -> Shape {
        if depth > DEPTH_MAX {
            return Shape::Any;
        }
        if flag(props, "x-kubernetes-int-or-string") {
            return Shape::IntOrString;
        }
        let has =
            |key: &str| props.get(key).and_then(Value::as_object).is_some_and(|m| !m.is_empty());
        let embedded = flag(props, "x-kubernetes-embedded-resource");
        match text(props, "type") {
            "string" => Shape::String,
            "integer" => Shape::Int64,
            "number" => Shape::Double,
            "boolean" => Shape::Bool,
            "array" => {
                let none = Value::Null;
                let items = props.get("items").unwrap_or(&none);
                Shape::List(Box::new(self.shape(items, depth + 1)))
            }
            "object" if has("properties") || embedded => {
                Shape::Struct(self.object(props, depth, embedded, false))
            }
            "object" => match props.get("additionalProperties") {
                Some(inner @ Value::Object(_)) => {
                    Shape::Map(Box::new(self.shape(inner, depth + 1)))
                }
                _ => Shape::Any,
            },
            _ => Shape::Any,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_schema_becomes_types() {
        let schema = json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {
            "ports": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["port"], "items": {
                "type": "object", "properties": {"port": {"type": "integer"}, "protocol": {"type": "string", "default": "TCP"}}}},
            "labels": {"type": "object", "additionalProperties": {"type": "string"}},
            "any": {"x-kubernetes-preserve-unknown-fields": true},
            "size": {"x-kubernetes-int-or-string": true},
        }}}});
        let (table, root) = of(Some(&schema));
        let root = table.get(root);
        assert!(!root.open);
        assert!(root.field("metadata").is_some());
        let Some(Shape::Struct(spec)) = root.field("spec").map(|f| f.shape.clone()) else {
            panic!("spec is no struct")
        };
        let spec = table.get(spec);
        assert_eq!(spec.field("ports").unwrap().list_type, ListType::Map(vec!["port".into()]));
        assert_eq!(spec.field("labels").unwrap().shape, Shape::Map(Box::new(Shape::String)));
        assert_eq!(spec.field("any").unwrap().shape, Shape::Any);
        assert_eq!(spec.field("size").unwrap().shape, Shape::IntOrString);
        assert!(of(None).0.get(of(None).1).open);
    }
}
