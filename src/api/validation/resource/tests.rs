//! Tests of claims, templates and device classes: responses of kube-apiserver 1.37.1 and error
//! texts of its tests.

use serde_json::json;

/// Error texts of upstream's `validation_deviceclass_test.go`, and a response of kube-apiserver
/// 1.37.1.
#[test]
fn selectors_compile_when_they_are_written() {
    let class = |expression: &str, extended: &str| json!({"spec": {"selectors": [{"cel": {"expression": expression}}], "extendedResourceName": extended}});
    let said = |object: &serde_json::Value, old: &serde_json::Value| -> Vec<String> {
        super::class_change(object, old).iter().map(ToString::to_string).collect()
    };
    let none = serde_json::Value::Null;
    let good = class("device.driver == 'd.example.com'", "example.com/gpu");
    assert_eq!(said(&good, &none), [""; 0]);
    let bad = class("device.drivers == 'd.example.com'", "tcp");
    assert_eq!(
        said(&bad, &none),
        [
            "spec.selectors[0].cel.expression: Invalid value: \"device.drivers == 'd.example.com'\": compilation failed: ERROR: <input>:1:7: undefined field 'drivers'\n | device.drivers == 'd.example.com'\n | ......^",
            "spec.extendedResourceName: Invalid value: \"tcp\": a name must be a domain-prefixed path, such as 'example.com/my-prop'",
        ]
    );
    assert_eq!(said(&bad, &bad), [""; 0]);
    let list = "[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]";
    let loops = ["x", "y", "z", "z2", "z3", "z4", "z5"].map(|name| format!("{list}.all({name}, "));
    let costly = format!("{}true{}", loops.join(""), ")".repeat(loops.len()));
    assert_eq!(
        said(&class(&costly, "example.com/gpu"), &none),
        ["spec.selectors[0].cel.expression: Forbidden: too complex, exceeds cost limit"]
    );
    assert_eq!(
        said(&class(&"x".repeat(10_241), "example.com/gpu"), &none),
        ["spec.selectors[0].cel.expression: Too long: may not be more than 10240 bytes"]
    );
}

/// Responses of kube-apiserver 1.37.1, and a field that `ValidateTemplateObjectMeta` prints by its
/// Go name.
#[test]
fn templates_have_labels_and_annotations_alone() {
    let template = json!({"spec": {
        "metadata": {"labels": {"a": "b"}, "creationTimestamp": "2008-01-01T01:01:01Z", "uid": "u", "generation": 0},
        "spec": {"devices": {
            "requests": [{"name": "r", "exactly": {"deviceClassName": "dc", "allocationMode": "ExactCount", "count": 1}}],
            "constraints": [{"requests": ["r"], "matchAttribute": "d.example.com/"}],
        }},
    }});
    let mut said: Vec<String> =
        super::template(&template).iter().map(ToString::to_string).collect();
    said.sort();
    assert_eq!(
        said,
        [
            "spec.metadata.creationTimestamp: Forbidden: cannot be set",
            "spec.metadata.uID: Forbidden: cannot be set",
            "spec.spec.devices.constraints[0].matchAttribute: Invalid value: \"\": name must not be empty",
        ]
    );
}

/// Responses of kube-apiserver 1.37.1.
#[test]
fn of_both_forms_of_a_request_the_declared_rules_are_told() {
    let bad = json!({"name": "Bad_N", "deviceClassName": "Bad_C", "selectors": [{}], "allocationMode": "zz", "count": -1, "tolerations": [{"key": "a b", "operator": "zz", "effect": "zz"}, {}]});
    let fields = |exactly: serde_json::Value, first: serde_json::Value| -> Vec<String> {
        let claim = json!({"spec": {"devices": {"requests": [{"name": "r", "exactly": exactly, "firstAvailable": first}]}}});
        let errors = super::claim(&claim);
        let part =
            |e: &crate::field::Error| e.field.to_string().replace("spec.devices.requests[0]", "R");
        errors.iter().map(part).collect()
    };
    assert_eq!(
        fields(bad.clone(), json!([{"name": "ok", "deviceClassName": "ok"}])),
        [
            "R",
            "R.exactly.allocationMode",
            "R.exactly.tolerations[0].key",
            "R.exactly.tolerations[0].operator",
            "R.exactly.tolerations[0].effect"
        ]
    );
    assert_eq!(
        fields(json!({"deviceClassName": "ok"}), json!([bad, {}])),
        [
            "R",
            "R.firstAvailable[0].deviceClassName",
            "R.firstAvailable[0].allocationMode",
            "R.firstAvailable[0].tolerations[0].key",
            "R.firstAvailable[0].tolerations[0].operator",
            "R.firstAvailable[0].tolerations[0].effect",
            "R.firstAvailable[1].deviceClassName"
        ]
    );
}

/// A response of kube-apiserver 1.37.1.
#[test]
fn a_request_that_stands_twice_is_shown() {
    let first = json!({"name": "r", "firstAvailable": [{"name": "s", "deviceClassName": "dc", "allocationMode": "ExactCount", "count": 1}]});
    let second = json!({"name": "r", "firstAvailable": [{"name": "s", "allocationMode": "ExactCount", "count": 1}]});
    let claim = json!({"spec": {"devices": {"requests": [first, second]}}});
    let said: Vec<String> = super::claim(&claim).iter().map(ToString::to_string).collect();
    let twice = "spec.devices.requests[1]: Duplicate value: {\"name\":\"r\",\"firstAvailable\":[{\"name\":\"s\",\"deviceClassName\":\"\",\"allocationMode\":\"ExactCount\",\"count\":1}]}";
    assert!(said.iter().any(|text| text == twice), "{said:?}");
}

/// Responses of kube-apiserver 1.37.1.
#[test]
fn attributes_of_constraints_have_a_domain_and_a_name() {
    let told = |attribute: &str| -> Vec<String> {
        let claim = json!({"spec": {"devices": {
            "requests": [{"name": "r", "exactly": {"deviceClassName": "dc", "allocationMode": "ExactCount", "count": 1}}],
            "constraints": [{"requests": ["r"], "matchAttribute": "d.example.com/x", "distinctAttribute": attribute}],
        }}});
        let errors = super::claim(&claim);
        let field = "spec.devices.constraints[0].distinctAttribute: ";
        errors.iter().map(|e| e.to_string().replace(field, "")).collect()
    };
    assert_eq!(
        told("/"),
        [
            "Invalid value: \"\": prefix must not be empty",
            "Invalid value: \"\": name must not be empty"
        ]
    );
    let alone = json!({"spec": {"devices": {
        "requests": [{"name": "r", "exactly": {"deviceClassName": "dc", "allocationMode": "ExactCount", "count": 1}}],
        "constraints": [{"requests": ["r"], "matchAttribute": "d.example.com/"}],
    }}});
    assert_eq!(
        super::claim(&alone)[0].to_string(),
        "spec.devices.constraints[0].matchAttribute: Invalid value: \"\": name must not be empty"
    );
    let told = told("../x");
    let start = "Invalid value: \"..\": prefix: a lowercase RFC 1123 subdomain must consist of";
    assert!(told.len() == 1 && told[0].starts_with(start), "{told:?}");
}

#[test]
fn tolerations_say_what_they_bear() {
    let claim = json!({"spec": {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "c", "allocationMode": "All",
        "tolerations": [{"key": "a b", "operator": "Exists", "value": "x"}, {"operator": "Same", "effect": "Other"}, {}]}}]}}});
    let said: Vec<String> = super::claim(&claim).iter().map(ToString::to_string).collect();
    let at = "spec.devices.requests[0].exactly.tolerations";
    assert!(
        said[0].starts_with(&format!(
            "{at}[0].key: Invalid value: \"a b\": name part must consist of"
        ))
    );
    assert_eq!(
        said[1..],
        [
            format!("{at}[0].value: Invalid value: \"x\": must be empty for operator `Exists`"),
            format!(
                "{at}[1].operator: Unsupported value: \"Same\": supported values: \"Equal\", \"Exists\""
            ),
            format!(
                "{at}[1].effect: Unsupported value: \"Other\": supported values: \"NoExecute\", \"NoSchedule\", \"None\""
            ),
            format!("{at}[2].operator: Required value"),
        ]
    );
}

#[test]
fn constraints_name_requests() {
    let claim = |name: &str| {
        json!({"spec": {"devices": {
            "requests": [{"name": "r", "exactly": {"deviceClassName": "c", "allocationMode": "ExactCount", "count": 1}}],
            "constraints": [{"requests": [name], "matchAttribute": "d.example.com/x"}],
        }}})
    };
    assert!(super::claim(&claim("r")).is_empty());
    let errors = super::claim(&claim("s"));
    assert_eq!(errors[0].field.to_string(), "spec.devices.constraints[0].requests[0]");
    assert!(errors[0].detail.starts_with("must be the name of a request in the claim"));
}
