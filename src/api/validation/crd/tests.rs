//! Tests of the validation of definitions: valid definitions, and the error texts of invalid ones.

use serde_json::json;

use super::*;

mod rules;

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

/// Responses of kube-apiserver 1.37.1.
#[test]
fn a_version_that_stands_twice_is_stored_once() {
    let mut twice = good();
    let version = twice["spec"]["versions"][0].clone();
    twice["spec"]["versions"] = json!([version, version]);
    let text = "status.storedVersions: Invalid value: [\"v1\"]: must have the storage version v1";
    assert!(texts_of(&twice).iter().any(|said| said == text), "{:?}", texts_of(&twice));
    let mut empty = good();
    empty["spec"]["versions"][0]["schema"] = json!({});
    empty["spec"]["versions"][0]["selectableFields"] = json!([{}]);
    let said = texts_of(&empty);
    assert!(
        said.iter().any(|text| text == "spec.selectableFields[0].jsonPath: Required value"),
        "{said:?}"
    );
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

/// The errors of a definition with the given schema.
fn of_schema(schema: Value) -> Vec<String> {
    let mut definition = good();
    definition["spec"]["versions"][0] = json!({"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}});
    let prefix = "spec.validation.openAPIV3Schema";
    texts_of(&definition).iter().map(|text| text.replace(prefix, "~")).collect()
}

/// The errors of a definition with one property of the given schema.
fn of_property(schema: Value) -> Vec<String> {
    let texts = of_schema(json!({"type": "object", "properties": {"p": schema}}));
    texts.iter().map(|text| text.replace("~.properties[p]", "p")).collect()
}

// `TestValidateStructuralMetadataInvariants`, `TestValidateNestedValueValidation…` of
// pkg/apiserver/schema/validation_test.go.
#[test]
fn what_all_of_and_its_like_say_is_about_specified_fields() {
    assert_eq!(
        of_schema(json!({"type": "object", "allOf": [{"properties": {"a": {"minLength": 1}}}]})),
        ["~.properties[a]: Required value: because it is defined in ~.allOf[0].properties[a]"]
    );
    assert_eq!(
        of_property(
            json!({"type": "string", "anyOf": [{"type": "string", "nullable": true, "description": "x"}]})
        ),
        [
            "p.anyOf[0].description: Forbidden: must be empty to be structural",
            "p.anyOf[0].nullable: Forbidden: must be false to be structural",
            "p.anyOf[0].type: Forbidden: must be empty to be structural",
        ]
    );
    assert_eq!(
        of_property(
            json!({"x-kubernetes-int-or-string": true, "anyOf": [{"type": "integer"}, {"type": "string"}]})
        ),
        [""; 0]
    );
    assert_eq!(
        of_property(json!({"type": "string", "pattern": "a("})),
        [
            "p.pattern: Invalid value: \"a(\": must be a valid regular expression, but isn't: error parsing regexp: missing closing ): `a(`"
        ]
    );
    assert_eq!(
        of_schema(
            json!({"type": "object", "properties": {"metadata": {"type": "object", "properties": {"labels": {"type": "object"}}}}})
        ),
        [
            "~.properties[metadata]: Forbidden: must not specify anything other than name and generateName, but metadata is implicitly specified"
        ]
    );
    let names =
        json!({"type": "object", "properties": {"name": {"type": "string", "maxLength": 3}}});
    assert_eq!(of_schema(json!({"type": "object", "properties": {"metadata": names}})), [""; 0]);
    assert_eq!(
        of_property(json!({"type": "array"})),
        ["p.items: Required value: must be specified"]
    );
    assert_eq!(
        of_schema(json!({"type": "object", "$schema": "x"})),
        ["~: Invalid value: \"\": OpenAPIV3Schema 'schema' is not supported"]
    );
}

// `TestValidateCustomResourceDefinitionValidation` of
// pkg/apis/apiextensions/validation/validation_test.go.
#[test]
fn lists_and_maps_say_how_they_merge() {
    let list = |more: Value| {
        let mut schema = json!({"type": "array", "items": {"type": "object", "properties": {"a": {"type": "string"}}}});
        schema.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        of_property(schema)
    };
    assert_eq!(
        list(json!({"x-kubernetes-list-type": "set"})),
        [
            "p.items.x-kubernetes-map-type: Invalid value: null: must be atomic as item of a list with x-kubernetes-list-type=set"
        ]
    );
    assert_eq!(
        list(json!({"x-kubernetes-list-type": "map"})),
        [
            "p.x-kubernetes-list-map-keys: Required value: must not be empty if x-kubernetes-list-type is map"
        ]
    );
    assert_eq!(
        list(json!({"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["a"]})),
        [
            "p.items.properties[a].default: Required value: this property is in x-kubernetes-list-map-keys, so it must have a default or be a required property"
        ]
    );
    assert_eq!(
        list(json!({"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["b"]})),
        [
            "p.x-kubernetes-list-map-keys: Invalid value: [\"b\"]: entries must all be names of item properties"
        ]
    );
    assert_eq!(
        list(json!({"x-kubernetes-list-map-keys": ["a"]})),
        [
            "p.x-kubernetes-list-type: Required value: must be map if x-kubernetes-list-map-keys is non-empty"
        ]
    );
    assert_eq!(
        of_property(json!({"type": "string", "x-kubernetes-map-type": "odd"})),
        [
            "p.type: Invalid value: \"string\": must be object if x-kubernetes-map-type is specified",
            "p.x-kubernetes-map-type: Unsupported value: \"odd\": supported values: \"atomic\", \"granular\"",
        ]
    );
}

// `TestValidateDefaults…` of pkg/apiserver/schema/defaulting/validation_test.go, and of
// validation_test.go.
#[test]
fn defaults_are_valid_and_know_no_more_than_the_schema() {
    assert_eq!(
        of_property(json!({"type": "string", "default": 1})),
        ["p.default: Invalid value: \"integer\":  in body must be of type string: \"integer\""]
    );
    assert_eq!(
        of_property(
            json!({"type": "object", "properties": {"a": {"type": "string"}}, "default": {"b": 1}})
        ),
        ["p.default: Invalid value: {\"b\":1}: must not have unknown fields"]
    );
    assert_eq!(
        of_schema(
            json!({"type": "object", "properties": {"kind": {"type": "string", "default": "x"}}})
        ),
        ["~.properties[kind].default: Forbidden: must not be set in top-level kind"]
    );
    assert_eq!(of_property(json!({"type": "string", "default": "x", "maxLength": 1})), [""; 0]);
}

#[test]
fn what_an_old_definition_breaks_may_stay() {
    let mut old = good();
    old["status"]["conditions"] = json!([{"type": "Established", "status": "True"}]);
    let map = json!({"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["a"],
        "items": {"type": "object", "properties": {"a": {"type": "string"}}}});
    let mut new = old.clone();
    new["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["map"] = map.clone();
    assert_eq!(validate_change(&new, &old).len(), 1);
    old["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["map"] = map;
    assert_eq!(validate_change(&new, &old), []);
}

#[test]
fn two_versions_keep_apart_what_differs() {
    let mut definition = good();
    let mut second = definition["spec"]["versions"][0].clone();
    second["name"] = json!("v2");
    second["storage"] = json!(false);
    second["deprecationWarning"] = json!("");
    second["schema"]["openAPIV3Schema"] = json!({"type": "object", "properties": {"x": {}}});
    second["selectableFields"] = json!([{"jsonPath": ".metadata.name"}]);
    definition["spec"]["versions"].as_array_mut().unwrap().push(second);
    assert_eq!(
        texts_of(&definition),
        [
            "spec.versions[1].deprecationWarning: Invalid value: \"\": can only be set for deprecated versions",
            "spec.versions[1].schema.openAPIV3Schema.properties[x].type: Required value: must not be empty for specified object fields",
            "spec.versions[1].selectableFields[0].jsonPath: Invalid value: \".metadata.name\": is an invalid path: does not refer to a valid field",
        ]
    );
}

#[test]
fn writers_are_warned_of_what_has_no_effect() {
    let mut definition = good();
    definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["f"] =
        json!({"type": "string", "format": "nope", "x-kubernetes-validations": [{"rule": "true"}]});
    let found = warnings(&definition, None);
    assert_eq!(found, ["unrecognized format \"nope\""]);
    assert_eq!(texts_of(&definition), [""; 0]);
    assert_eq!(warnings(&definition, Some(&definition)), [""; 0]);
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
