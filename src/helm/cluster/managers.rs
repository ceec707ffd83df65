//! Field managers of objects that Helm wrote by client-side apply
//! (`k8s.io/client-go/util/csaupgrade`).

use serde_json::{Value, json};

use super::FIELD_MANAGER;

/// The managed fields with Helm's updates as one apply; `None` if Helm has no update.
pub(super) fn converted(object: &Value) -> Option<Value> {
    let entries = object.get("metadata")?.get("managedFields")?.as_array()?;
    let is_helm = |entry: &Value, operation: &str| {
        api::value::str_at(entry, "manager") == FIELD_MANAGER
            && api::value::str_at(entry, "operation") == operation
            && api::value::str_at(entry, "subresource").is_empty()
    };
    let update = entries.iter().find(|entry| is_helm(entry, "Update"))?;
    let mut applied =
        entries.iter().find(|entry| is_helm(entry, "Apply")).unwrap_or(update).clone();
    let updates = entries.iter().filter(|entry| is_helm(entry, "Update"));
    for fields in updates.filter_map(|entry| entry.get("fieldsV1")) {
        if let Some(all) = applied.get_mut("fieldsV1") {
            union(all, fields);
        }
    }
    api::value::set(&mut applied, "operation", "Apply");
    let others = entries.iter().filter(|e| !is_helm(e, "Update") && !is_helm(e, "Apply"));
    Some(json!(std::iter::once(applied).chain(others.cloned()).collect::<Vec<_>>()))
}

fn union(all: &mut Value, more: &Value) {
    let (Value::Object(all), Value::Object(more)) = (all, more) else { return };
    for (key, value) in more {
        match all.get_mut(key) {
            Some(inner) => union(inner, value),
            None => {
                all.insert(key.clone(), value.clone());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn updates_of_helm_become_one_apply() {
        let object = json!({"metadata": {"managedFields": [
            {"manager": "helm", "operation": "Update", "fieldsV1": {"f:spec": {"f:a": {}}}},
            {"manager": "kubelet", "operation": "Update", "subresource": "status"},
            {"manager": "helm", "operation": "Apply", "fieldsV1": {"f:spec": {"f:b": {}}}},
        ]}});
        let want = json!([
            {"manager": "helm", "operation": "Apply",
             "fieldsV1": {"f:spec": {"f:a": {}, "f:b": {}}}},
            {"manager": "kubelet", "operation": "Update", "subresource": "status"},
        ]);
        assert_eq!(converted(&object), Some(want));
        assert_eq!(converted(&json!({"metadata": {"managedFields": []}})), None);
    }
}
