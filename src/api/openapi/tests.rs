//! Tests of the documents with those that upstream publishes.

use super::*;

fn served() -> Vec<Served> {
    let verbs = |list: &[&str]| list.iter().map(|v| (*v).to_owned()).collect::<Vec<_>>();
    let all = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"];
    vec![
        Served {
            gvk: Gvk::new("", "v1", "Pod"),
            gvr: Gvr::new("", "v1", "pods"),
            custom: None,
            namespaced: true,
            verbs: verbs(&all),
            subresources: vec![
                ServedSubresource {
                    name: "status".into(),
                    gvk: Gvk::new("", "v1", "Pod"),
                    verbs: verbs(&["get", "patch", "update"]),
                    connect: false,
                },
                ServedSubresource {
                    name: "exec".into(),
                    gvk: Gvk::new("", "v1", "PodExecOptions"),
                    verbs: verbs(&["create", "get"]),
                    connect: true,
                },
                ServedSubresource {
                    name: "eviction".into(),
                    gvk: Gvk::new("policy", "v1", "Eviction"),
                    verbs: verbs(&["create"]),
                    connect: false,
                },
            ],
        },
        Served {
            gvk: Gvk::new("apps", "v1", "Deployment"),
            gvr: Gvr::new("apps", "v1", "deployments"),
            custom: None,
            namespaced: true,
            verbs: verbs(&all),
            subresources: vec![ServedSubresource {
                name: "scale".into(),
                gvk: Gvk::new("autoscaling", "v1", "Scale"),
                verbs: verbs(&["get", "patch", "update"]),
                connect: false,
            }],
        },
        Served {
            gvk: Gvk::new("rbac.authorization.k8s.io", "v1", "ClusterRole"),
            gvr: Gvr::new("rbac.authorization.k8s.io", "v1", "clusterroles"),
            custom: None,
            namespaced: false,
            verbs: verbs(&all),
            subresources: vec![],
        },
    ]
}

#[test]
fn writes_types_as_upstream() {
    let schema = Schema::builtin();
    let v3 = v3(&schema, &served(), "apps", "v1", "v1.37.1").unwrap();
    let types = &v3["components"]["schemas"];
    assert_eq!(
        types["io.k8s.api.apps.v1.DeploymentSpec"],
        json!({"type":"object","required":["selector","template"],"properties":{
            "minReadySeconds":{"format":"int32","type":"integer"},"paused":{"type":"boolean"},
            "progressDeadlineSeconds":{"format":"int32","type":"integer"},"replicas":{"format":"int32","type":"integer"},
            "revisionHistoryLimit":{"format":"int32","type":"integer"},
            "selector":{"$ref":"#/components/schemas/io.k8s.apimachinery.pkg.apis.meta.v1.LabelSelector"},
            "strategy":{"allOf":[{"$ref":"#/components/schemas/io.k8s.api.apps.v1.DeploymentStrategy"}],"default":{},"x-kubernetes-patch-strategy":"retainKeys"},
            "template":{"allOf":[{"$ref":"#/components/schemas/io.k8s.api.core.v1.PodTemplateSpec"}],"default":{}}}})
    );
    let port = &types["io.k8s.api.core.v1.ContainerPort"]["properties"];
    assert_eq!(
        port["protocol"],
        json!({"default":"TCP","enum":["SCTP","TCP","UDP"],"type":"string"})
    );
    assert_eq!(port["containerPort"], json!({"default":0,"format":"int32","type":"integer"}));
    assert_eq!(
        types["io.k8s.apimachinery.pkg.api.resource.Quantity"],
        json!({"oneOf":[{"type":"string"},{"type":"number"}]})
    );
    assert!(types.get("io.k8s.api.rbac.v1.ClusterRole").is_none());
}

#[test]
fn every_reference_leads_somewhere() {
    let schema = Schema::builtin();
    fn check(document: &Value, at: &Value) {
        match at {
            Value::Object(map) => {
                if let Some(Value::String(target)) = map.get("$ref") {
                    assert!(document.pointer(target.trim_start_matches('#')).is_some(), "{target}");
                }
                map.values().for_each(|v| check(document, v));
            }
            Value::Array(list) => list.iter().for_each(|v| check(document, v)),
            _ => {}
        }
    }
    let mut documents = vec![v2(&schema, &served(), "v1.37.1")];
    documents.extend(
        [("", "v1"), ("apps", "v1"), ("rbac.authorization.k8s.io", "v1")]
            .map(|(g, v)| v3(&schema, &served(), g, v, "v1.37.1").unwrap()),
    );
    for document in documents {
        check(&document, &document);
    }
    assert!(v3(&schema, &served(), "batch", "v1", "v1.37.1").is_none());
}

#[test]
fn every_document_has_a_protobuf_form() {
    let schema = Schema::builtin();
    assert!(v2_protobuf(&v2(&schema, &served(), "v1.37.1")).unwrap().len() > 10_000);
    for (group, version) in [("", "v1"), ("apps", "v1"), ("rbac.authorization.k8s.io", "v1")] {
        v3_protobuf(&v3(&schema, &served(), group, version, "v1.37.1").unwrap()).unwrap();
    }
}

#[test]
fn names_operations_as_upstream() {
    let schema = Schema::builtin();
    let document = v2(&schema, &served(), "v1.37.1");
    for (path, method, id, action) in [
        ("/api/v1/namespaces/{namespace}/pods", "get", "listCoreV1NamespacedPod", "list"),
        (
            "/api/v1/namespaces/{namespace}/pods",
            "delete",
            "deleteCoreV1CollectionNamespacedPod",
            "deletecollection",
        ),
        ("/api/v1/pods", "get", "listCoreV1PodForAllNamespaces", "list"),
        (
            "/api/v1/namespaces/{namespace}/pods/{name}/status",
            "put",
            "replaceCoreV1NamespacedPodStatus",
            "put",
        ),
        (
            "/api/v1/namespaces/{namespace}/pods/{name}/exec",
            "post",
            "connectCoreV1PostNamespacedPodExec",
            "connect",
        ),
        (
            "/api/v1/namespaces/{namespace}/pods/{name}/eviction",
            "post",
            "createCoreV1NamespacedPodEviction",
            "post",
        ),
        (
            "/apis/apps/v1/namespaces/{namespace}/deployments/{name}/scale",
            "patch",
            "patchAppsV1NamespacedDeploymentScale",
            "patch",
        ),
        (
            "/apis/rbac.authorization.k8s.io/v1/clusterroles/{name}",
            "delete",
            "deleteRbacAuthorizationV1ClusterRole",
            "delete",
        ),
        (
            "/apis/apps/v1/watch/namespaces/{namespace}/deployments",
            "get",
            "watchAppsV1NamespacedDeploymentList",
            "watchlist",
        ),
    ] {
        let operation = &document["paths"][path][method];
        assert_eq!(
            (operation["operationId"].as_str(), operation["x-kubernetes-action"].as_str()),
            (Some(id), Some(action)),
            "{path}"
        );
    }
    let patch =
        &document["paths"]["/apis/apps/v1/namespaces/{namespace}/deployments/{name}"]["patch"];
    assert!(patch["parameters"].as_array().unwrap().iter().any(|p| p["name"] == "fieldValidation"));
    assert_eq!(
        patch["x-kubernetes-group-version-kind"],
        json!({"group":"apps","kind":"Deployment","version":"v1"})
    );
    let pod = &document["definitions"]["io.k8s.api.core.v1.Pod"]["x-kubernetes-group-version-kind"];
    assert_eq!(pod, &json!([{"group":"","kind":"Pod","version":"v1"}]));
}

#[test]
fn the_index_changes_with_what_is_served() {
    let schema = Schema::builtin();
    let before = v3_index(&schema, &served(), "v1.37.1");
    assert!(
        before["paths"]["apis/apps/v1"]["serverRelativeURL"]
            .as_str()
            .unwrap()
            .starts_with("/openapi/v3/apis/apps/v1?hash=")
    );
    assert!(before["paths"]["api/v1"].is_object());
    let mut fewer = served();
    fewer[1].subresources.clear();
    let after = v3_index(&schema, &fewer, "v1.37.1");
    assert_ne!(before["paths"]["apis/apps/v1"], after["paths"]["apis/apps/v1"]);
    assert_eq!(before["paths"]["api/v1"], after["paths"]["api/v1"]);
}

/// Compares all types with upstream's published documents in the folder of `KUBE_LITE_OPENAPI`.
#[test]
fn agrees_with_published_types() {
    #[allow(
        clippy::disallowed_methods,
        reason = "where the documents are is the caller's business"
    )]
    let Ok(path) = std::env::var("KUBE_LITE_OPENAPI") else { return };
    let schema = Schema::builtin();
    let kinds = definitions::Kinds::new();
    let mut differences = Vec::new();
    for (file, version) in [
        ("swagger.json", Version::V2),
        ("v3/api__v1_openapi.json", Version::V3),
        ("v3/apis__apps__v1_openapi.json", Version::V3),
        ("v3/apis__apiextensions.k8s.io__v1_openapi.json", Version::V3),
        ("v3/apis__resource.k8s.io__v1_openapi.json", Version::V3),
    ] {
        let text = std::fs::read_to_string(format!("{path}/{file}")).unwrap();
        let mut document: Value = serde_json::from_str(&text).unwrap();
        let types = if version == Version::V2 {
            document["definitions"].take()
        } else {
            document["components"]["schemas"].take()
        };
        for (name, mut published) in types.as_object().unwrap().clone() {
            let Some(id) = schema.by_name(&name) else { continue };
            let mut ours = definitions::definition(&schema, id, version, &kinds);
            remove_uncompared(&mut published);
            remove_uncompared(&mut ours);
            if ours != published {
                differences.push(format!("{file} {name}: {}", difference(&ours, &published)));
            }
        }
    }
    assert!(
        differences.is_empty(),
        "{} differences\n{}",
        differences.len(),
        differences.join("\n")
    );
}

/// Removes the fields that the test does not compare.
fn remove_uncompared(value: &mut Value) {
    match value {
        Value::Object(map) => {
            if map.get("description").is_some_and(Value::is_string) {
                map.remove("description");
            }
            // The table has no unions, and omits extensions with their default value.
            let is_default = |v: &Value| v == "granular" || v == "replace";
            for extension in ["x-kubernetes-map-type", "x-kubernetes-patch-strategy"] {
                if map.get(extension).is_some_and(is_default) {
                    map.remove(extension);
                }
            }
            if map.get("format").is_some_and(|f| f == "byte") {
                map.remove("x-kubernetes-list-type");
            }
            // The published documents omit enums.
            if map.get("enum").is_some_and(Value::is_array) {
                map.remove("enum");
            }
            map.remove("x-kubernetes-unions");
            map.remove("x-kubernetes-group-version-kind");
            map.values_mut().for_each(remove_uncompared);
            if map.len() == 1
                && let Some(Value::Array(list)) = map.get("allOf")
                && let [single] = list.as_slice()
            {
                *value = single.clone();
            }
        }
        Value::Array(list) => list.iter_mut().for_each(remove_uncompared),
        _ => {}
    }
}

/// Describes the difference between two definitions.
fn difference(ours: &Value, published: &Value) -> String {
    let properties = |v: &Value| v["properties"].as_object().cloned().unwrap_or_default();
    let (a, b) = (properties(ours), properties(published));
    let fields: Vec<String> = a
        .keys()
        .chain(b.keys().filter(|k| !a.contains_key(*k)))
        .filter(|k| a.get(*k) != b.get(*k))
        .map(|k| {
            let of = |all: &serde_json::Map<String, Value>| all.get(k).cloned().unwrap_or_default();
            format!("\n   {k}: {} / {}", of(&a), of(&b))
        })
        .collect();
    format!("required {} / {}{}", ours["required"], published["required"], fields.concat())
}
