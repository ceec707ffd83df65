//! Tests of warnings. The expected texts are those of kube-apiserver 1.37.1.

use serde_json::json;

use super::*;

#[test]
fn doubled_parts_of_pods_are_named() {
    let spec = json!({
        "hostAliases": [{"ip": "10.1.2.3"}, {"ip": "10.1.2.3"}],
        "imagePullSecrets": [{"name": "reg"}, {"name": "reg"}, {}],
        "affinity": {
            "podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "z"}]},
            "nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [
                {"preference": {"matchExpressions": [{"key": "beta.kubernetes.io/os", "operator": "In", "values": ["linux"]}]}},
            ]},
        },
        "volumes": [{"name": "cm", "configMap": {"name": "c", "items": [{"path": "a/b"}, {"path": "a/b"}]}}],
        "containers": [{"name": "c", "ports": [
            {"name": "http", "containerPort": 80, "protocol": "TCP", "hostIP": "127.0.0.1"},
        ]}],
    });
    assert_eq!(
        pod(&json!({"metadata": {"name": "p"}, "spec": spec}), None),
        [
            "spec.affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].preference.matchExpressions[0].key: \
             beta.kubernetes.io/os is deprecated since v1.14; use \"kubernetes.io/os\" instead",
            "volume \"cm\" (ConfigMap \"c\"): overlapping paths: \"a/b\" with \"a/b\"",
            "spec.hostAliases[1].ip: duplicate ip \"10.1.2.3\"",
            "spec.imagePullSecrets[1].name: duplicate name \"reg\"",
            "spec.imagePullSecrets[2].name: invalid empty name \"\"",
            "spec.containers[0].ports[0]: hostIP set without hostPort: {Name:http HostPort:0 ContainerPort:80 Protocol:TCP HostIP:127.0.0.1}",
            "spec.affinity.podAffinity.requiredDuringSchedulingIgnoredDuringExecution[0].labelSelector: a null labelSelector results in \
             matching no pod",
        ]
    );
}

#[test]
fn templates_are_looked_at_when_they_are_new_or_change() {
    let port = json!({"containerPort": 80, "protocol": "TCP"});
    let object = json!({
        "metadata": {"name": "d", "generation": 1},
        "spec": {"template": {"spec": {"containers": [{"name": "c", "ports": [port, port]}]}}},
    });
    let want = [
        "spec.template.spec.containers[0].ports[1]: duplicate port definition with spec.template.spec.containers[0].ports[0]",
    ];
    assert_eq!(workload(&object, None), want);
    assert!(workload(&object, Some(&object)).is_empty());
    let old = json!({"metadata": {"generation": 0}});
    assert_eq!(workload(&object, Some(&old)), want);
}

#[test]
fn amounts_of_bytes_are_whole() {
    let claim = json!({"spec": {"resources": {"requests": {"storage": "1500m"}}}});
    assert_eq!(
        super::claim(&claim, None),
        [
            "spec.resources.requests[storage]: fractional byte value \"1500m\" is invalid, must be an integer"
        ]
    );
}

#[test]
fn variables_may_add_to_what_they_hide() {
    let env = |second: &str| json!({"metadata": {"name": "p"}, "spec": {"containers": [{"env": [{"name": "X", "value": "a"}, {"name": "X", "value": second}]}]}});
    assert!(pod(&env("$(X)b"), None).is_empty());
    assert_eq!(
        pod(&env("b"), None),
        [
            "spec.containers[0].env[1]: hides previous definition of \"X\", which may be dropped when using apply"
        ]
    );
}
