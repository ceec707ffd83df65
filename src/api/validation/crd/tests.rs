//! Definitions that are good, and the texts of those that are not.

use serde_json::json;

use super::*;

fn good() -> Value {
    json!({
        "metadata": {"name": "foos.x.example.com"},
        "spec": {
            "group": "x.example.com", "scope": "Namespaced",
            "names": {"plural": "foos", "singular": "foo", "kind": "Foo", "listKind": "FooList", "shortNames": ["fo"]},
            "versions": [{
                "name": "v1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": {"type": "object", "properties": {
                    "color": {"type": "string"}, "port": {"x-kubernetes-int-or-string": true}, "list": {"type": "array", "items": {"type": "string"}},
                    "map": {"type": "object", "additionalProperties": {"type": "string"}},
                }}}}},
                "selectableFields": [{"jsonPath": ".spec.color"}],
                "additionalPrinterColumns": [{"name": "C", "type": "string", "jsonPath": ".spec.color"}],
                "subresources": {"status": {}, "scale": {"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"}},
            }],
        },
        "status": {"storedVersions": ["v1"]},
    })
}

fn texts_of(object: &Value) -> Vec<String> {
    validate(object).iter().map(ToString::to_string).collect()
}

#[test]
fn a_complete_definition_is_good() {
    assert_eq!(texts_of(&good()), [""; 0]);
    assert_eq!(validate_change(&good(), &good()), []);
}

#[test]
fn an_empty_spec_lacks_everything() {
    assert_eq!(
        texts_of(&json!({"metadata": {"name": "foos.x.example.com"}, "spec": {}})),
        [
            "metadata.name: Invalid value: \"foos.x.example.com\": must be spec.names.plural+\".\"+spec.group",
            "spec.group: Required value",
            "spec.scope: Required value",
            "spec.versions: Invalid value: null: must have exactly one version marked as storage version",
            "spec.names.plural: Required value",
            "spec.names.singular: Required value",
            "spec.names.kind: Required value",
            "spec.names.listKind: Required value",
            "status.storedVersions: Invalid value: null: must have at least one stored version",
        ]
    );
}

#[test]
fn schemas_are_structural_and_selectable_fields_exist() {
    let mut bad = good();
    let schema = "/spec/versions/0/schema/openAPIV3Schema";
    *bad.pointer_mut(schema).unwrap() =
        json!({"properties": {"spec": {"x-kubernetes-validations": [{}]}}});
    assert_eq!(
        texts_of(&bad),
        [
            "spec.validation.openAPIV3Schema.properties[spec].type: Required value: must not be empty for specified object fields",
            "spec.validation.openAPIV3Schema.type: Required value: must not be empty at the root",
            "spec.validation.openAPIV3Schema.properties[spec].x-kubernetes-validations[0].rule: Required value: rule is not specified",
            "spec.selectableFields[0].jsonPath: Invalid value: \".spec.color\": is an invalid path: does not refer to a valid field",
        ]
    );
}

#[test]
fn versions_without_content_are_shown_with_gos_names() {
    let mut bad = good();
    bad["spec"]["versions"] = json!([{}]);
    bad["status"] = json!({});
    let found = texts_of(&bad);
    assert_eq!(found[0], "spec.versions[0].schema.openAPIV3Schema: Required value");
    assert_eq!(
        found[2],
        r#"spec.versions: Invalid value: [{"Name":"","Served":false,"Storage":false,"Deprecated":false,"DeprecationWarning":null,"Schema":null,"Subresources":null,"AdditionalPrinterColumns":null,"SelectableFields":null}]: must have exactly one version marked as storage version"#
    );
}

#[test]
fn groups_of_kubernetes_need_approval() {
    let mut bad = good();
    bad["spec"]["group"] = json!("x.k8s.io");
    bad["metadata"]["name"] = json!("foos.x.k8s.io");
    assert!(texts_of(&bad)[0].starts_with(
        "metadata.annotations[api-approved.kubernetes.io]: Required value: protected groups"
    ));
    bad["metadata"]["annotations"] =
        json!({"api-approved.kubernetes.io": "unapproved, experimental"});
    assert_eq!(texts_of(&bad), [""; 0]);
}
