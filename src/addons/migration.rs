//! Takes over the field ownership of objects that k3s applied.
//!
//! k3s updates objects by patches that it computes itself, so their `managedFields` name it with
//! the operation `Update`. Server-side apply would then keep a field that the manifest drops,
//! because k3s still owns it. As client-go's `csaupgrade`, the entries become one of the operation
//! `Apply`.

use serde_json::{Map, Value, json};

use crate::config::AGENT;

/// The user agents of k3s that apply manifests, up to `@` and the host name.
const K3S_MANAGERS: [&str; 3] = ["deploy", "k3s", "k3s-supervisor"];

/// The JSON patch that takes over the fields of k3s in an object; `None` if k3s has none there.
pub(crate) fn take_over(object: &Value) -> Option<Value> {
    let version = object.get("apiVersion")?;
    let entries = object.pointer("/metadata/managedFields")?.as_array()?;
    let is_taken = |entry: &&Value| {
        let manager = entry.get("manager").and_then(Value::as_str).unwrap_or_default();
        let manager = manager.split('@').next().unwrap_or_default();
        let is_of_k3s = K3S_MANAGERS.contains(&manager) && entry["operation"] == "Update";
        let is_own = manager == AGENT && entry["operation"] == "Apply";
        // Paths of another version may have another meaning.
        (is_of_k3s || is_own)
            && entry.get("subresource").is_none()
            && entry["apiVersion"] == *version
    };
    let (taken, mut rest): (Vec<&Value>, Vec<&Value>) = entries.iter().partition(is_taken);
    let newest = taken.iter().rev().find(|entry| entry["operation"] == "Update")?;
    let mut fields = json!({});
    for entry in &taken {
        merge(&mut fields, &entry["fieldsV1"]);
    }
    let own = json!({
        "manager": AGENT,
        "operation": "Apply",
        "apiVersion": version,
        "time": newest["time"],
        "fieldsType": "FieldsV1",
        "fieldsV1": fields,
    });
    rest.insert(0, &own);
    Some(json!([
        {"op": "replace", "path": "/metadata/managedFields", "value": rest},
        // Rejected if the object changed since it was read.
        {"op": "replace", "path": "/metadata/resourceVersion",
            "value": object.pointer("/metadata/resourceVersion")?},
    ]))
}

/// Adds the fields of `other`: sets of field paths are nested objects.
fn merge(fields: &mut Value, other: &Value) {
    let (Some(fields), Some(other)) = (fields.as_object_mut(), other.as_object()) else { return };
    for (name, value) in other {
        merge(fields.entry(name.clone()).or_insert_with(|| Value::Object(Map::new())), value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(manager: &str, operation: &str, fields: Value) -> Value {
        json!({"manager": manager, "operation": operation, "apiVersion": "v1", "time": "t",
            "fieldsType": "FieldsV1", "fieldsV1": fields})
    }

    #[test]
    fn fields_of_k3s_become_applied_ones() {
        let mut of_status = entry("deploy@a", "Update", json!({"f:status": {}}));
        of_status["subresource"] = "status".into();
        let kubectl = entry("kubectl-edit", "Update", json!({"f:data": {"f:c": {}}}));
        let object = json!({"apiVersion": "v1", "metadata": {"resourceVersion": "7", "managedFields": [
            entry("deploy@a", "Update", json!({"f:data": {"f:a": {}}})),
            entry("k3s-supervisor@b", "Update", json!({"f:data": {".": {}, "f:b": {}}})),
            kubectl.clone(),
            of_status.clone(),
        ]}});
        let patch = take_over(&object).unwrap();
        let own = entry(AGENT, "Apply", json!({"f:data": {".": {}, "f:a": {}, "f:b": {}}}));
        assert_eq!(
            patch,
            json!([
                {"op": "replace", "path": "/metadata/managedFields", "value": [own, kubectl, of_status]},
                {"op": "replace", "path": "/metadata/resourceVersion", "value": "7"},
            ])
        );
    }

    #[test]
    fn objects_without_fields_of_k3s_stay() {
        let object = |entries: Value| json!({"apiVersion": "v1", "metadata": {"resourceVersion": "7", "managedFields": entries}});
        assert_eq!(take_over(&object(json!([]))), None);
        assert_eq!(take_over(&object(json!([entry(AGENT, "Apply", json!({}))]))), None);
        assert_eq!(take_over(&object(json!([entry("kubectl", "Update", json!({}))]))), None);
        let mut other = entry("deploy@a", "Update", json!({}));
        other["apiVersion"] = "v1beta1".into();
        assert_eq!(take_over(&object(json!([other]))), None);
    }
}
