//! The defaults that Go types declare (`+default=`), which the schema table contains.

use serde_json::Value;

use super::{Field, Schema, Shape, TypeId};

/// The deepest nesting that defaulting processes; decoders reject deeper objects.
const DEPTH_MAX: usize = crate::codec::DEPTH_MAX;

/// Sets absent fields of an object of this type to the defaults of the table, in every struct that
/// is present.
///
/// For a field that is not a Go pointer, absence and the zero value are the same, so a zero value
/// is replaced, too.
pub fn apply_table(schema: &Schema, type_id: TypeId, value: &mut Value) {
    apply(schema, &Shape::Struct(type_id), value, 0);
}

fn apply(schema: &Schema, shape: &Shape, value: &mut Value, depth: usize) {
    if depth > DEPTH_MAX {
        return;
    }
    match (shape, value) {
        (Shape::Struct(id), Value::Object(map)) => {
            for field in &schema.get(*id).fields {
                if let Some(default) = &field.default
                    && map.get(field.json.as_ref()).is_none_or(|v| unset(field, v))
                    && (field.pointer || !is_zero(default))
                {
                    map.insert(field.json.to_string(), default.as_ref().clone());
                }
                if holds_structs(&field.shape)
                    && let Some(inner) = map.get_mut(field.json.as_ref())
                {
                    apply(schema, &field.shape, inner, depth + 1);
                }
            }
        }
        (Shape::List(element), Value::Array(list)) => {
            list.iter_mut().for_each(|v| apply(schema, element, v, depth + 1))
        }
        (Shape::Map(element), Value::Object(map)) => {
            map.values_mut().for_each(|v| apply(schema, element, v, depth + 1))
        }
        _ => {}
    }
}

fn holds_structs(shape: &Shape) -> bool {
    match shape {
        Shape::Struct(_) => true,
        Shape::List(element) | Shape::Map(element) => holds_structs(element),
        _ => false,
    }
}

fn unset(field: &Field, value: &Value) -> bool {
    value.is_null() || !field.pointer && is_zero(value)
}

fn is_zero(value: &Value) -> bool {
    match value {
        Value::String(text) => text.is_empty(),
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::Bool(value) => !value,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::object::Gvk;

    #[test]
    fn fills_what_the_table_states() {
        let schema = Schema::builtin();
        let id = schema.kind(&Gvk::new("", "v1", "Pod")).unwrap();
        let mut pod = json!({"spec":{
            "containers":[{"name":"c","ports":[{"containerPort":80},{"containerPort":81,"protocol":"UDP"}]}],
            "volumes":[{"name":"v","rbd":{"monitors":[],"image":"i","user":""}},{"name":"a","azureDisk":{"diskName":"d","diskURI":"u","readOnly":true}}]}});
        apply_table(&schema, id, &mut pod);
        assert_eq!(
            pod["spec"]["containers"][0]["ports"],
            json!([{"containerPort":80,"protocol":"TCP"},{"containerPort":81,"protocol":"UDP"}])
        );
        assert_eq!(
            pod["spec"]["volumes"][0]["rbd"],
            json!({"monitors":[],"image":"i","user":"admin","pool":"rbd","keyring":"/etc/ceph/keyring"})
        );
        assert_eq!(
            pod["spec"]["volumes"][1]["azureDisk"],
            json!({"diskName":"d","diskURI":"u","readOnly":true,"cachingMode":"ReadWrite","fsType":"ext4","kind":"Shared"})
        );
        let mut probe = json!({"grpc":{"port":1}});
        apply_table(&schema, schema.by_name("io.k8s.api.core.v1.Probe").unwrap(), &mut probe);
        assert_eq!(probe, json!({"grpc":{"port":1,"service":""}}));
    }
}
