//! The rules of services, by `TestValidateServiceCreate`, `TestValidateServiceUpdate` and
//! `ValidateLoadBalancerStatus` of `pkg/apis/core/validation`.

use super::*;
use crate::validation::tests::{same, with};
use serde_json::json;

/// Upstream's `makeValidService`.
fn object(changes: &Value) -> Value {
    let port = json!({"name": "p", "protocol": "TCP", "port": 8675, "targetPort": 8675});
    let spec = json!({"selector": {"key": "val"}, "sessionAffinity": "None", "type": "ClusterIP",
        "ports": [port], "internalTrafficPolicy": "Cluster"});
    json!({"metadata": {"name": "valid"}, "spec": with(&spec, changes)})
}

/// Changes that make a service one of a load balancer.
fn balancer(changes: &Value) -> Value {
    let base = json!({"type": "LoadBalancer", "allocateLoadBalancerNodePorts": true,
        "externalTrafficPolicy": "Cluster"});
    with(&base, changes)
}

fn check(changes: &Value, expected: &[&str]) {
    same(&validate(&object(changes)), expected);
}

/// `validateService`.
#[test]
fn types_decide_which_fields_are_set() {
    check(&json!({}), &[]);
    check(&balancer(&json!({})), &[]);
    check(&json!({"clusterIP": "None", "clusterIPs": ["None"], "ports": null}), &[]);
    check(&json!({"ports": null}), &["spec.ports: Required value"]);
    check(
        &json!({"type": "gibberish", "internalTrafficPolicy": null}),
        &["spec.type: Unsupported value: \"gibberish\": supported values: \"ClusterIP\", \
           \"ExternalName\", \"LoadBalancer\", \"NodePort\""],
    );
    check(
        &json!({"type": "ExternalName", "ipFamilies": ["IPv4"]}),
        &[
            "spec.ipFamilies: Forbidden: may not be set for ExternalName services",
            "spec.externalName: Required value",
        ],
    );
    check(&json!({"type": "ExternalName", "externalName": "foo.bar.example.com."}), &[]);
    check(
        &balancer(&json!({"clusterIP": "None", "clusterIPs": ["None"]})),
        &["spec.clusterIPs[0]: Invalid value: \"None\": \
           may not be set to 'None' for LoadBalancer services"],
    );
    check(
        &json!({"loadBalancerClass": "example.com/a", "allocateLoadBalancerNodePorts": false}),
        &[
            "spec.allocateLoadBalancerNodePorts: Forbidden: \
             may only be used when `type` is 'LoadBalancer'",
            "spec.loadBalancerClass: Forbidden: may only be used when `type` is 'LoadBalancer'",
        ],
    );
    check(
        &json!({"loadBalancerSourceRanges": ["1.0.0.0/8"]}),
        &["spec.LoadBalancerSourceRanges: Forbidden: \
           may only be used when `type` is 'LoadBalancer'"],
    );
}

/// `validateServicePort` and the checks of repeated ports in `validateService`.
#[test]
fn ports_are_named_and_do_not_repeat() {
    let check = |ports: Value, expected: &[&str]| check(&json!({ "ports": ports }), expected);
    let port = |changes: Value| {
        with(&json!({"name": "p", "protocol": "TCP", "port": 80, "targetPort": 80}), &changes)
    };
    check(json!([port(json!({"name": null, "targetPort": "web"}))]), &[]);
    check(json!([port(json!({})), port(json!({"name": "q", "protocol": "UDP"}))]), &[]);
    check(
        json!([port(json!({"name": null})), port(json!({"port": 81}))]),
        &["spec.ports[0].name: Required value"],
    );
    check(
        json!([port(json!({})), port(json!({"port": 81}))]),
        &["spec.ports[1].name: Duplicate value: \"p\""],
    );
    check(
        json!([port(json!({"port": 65_536, "protocol": "ICMP"}))]),
        &[
            "spec.ports[0].port: Invalid value: 65536: must be between 1 and 65535, inclusive",
            "spec.ports[0].protocol: Unsupported value: \"ICMP\": \
             supported values: \"SCTP\", \"TCP\", \"UDP\"",
        ],
    );
    check(
        json!([port(json!({"nodePort": 30_000}))]),
        &["spec.ports[0].nodePort: Forbidden: may not be used when `type` is 'ClusterIP'"],
    );
    check(
        json!([port(json!({})), port(json!({"name": "q"}))]),
        &["spec.ports[1]: Duplicate value: {\"Name\":\"\",\"Protocol\":\"TCP\",\
           \"AppProtocol\":null,\"Port\":80,\"TargetPort\":0,\"NodePort\":0}"],
    );
}

/// `ValidateServiceClusterIPsRelatedFields`.
#[test]
fn cluster_addresses_fit_each_other_and_their_families() {
    let check = |ips: Value, families: Value, expected: &[&str]| {
        let first = ips[0].clone();
        let changes = json!({"clusterIP": first, "clusterIPs": ips, "ipFamilies": families});
        check(&changes, expected);
    };
    check(json!(["1.2.3.4", "2001::1"]), json!(["IPv4", "IPv6"]), &[]);
    check(
        json!(["1.2.3.4"]),
        json!(["IPv6"]),
        &["spec.clusterIPs[0]: Invalid value: \"1.2.3.4\": \
           expected an IPv6 value as indicated by `ipFamilies[0]`"],
    );
    check(
        json!(["1.2.3.4", "1.2.3.5"]),
        json!(["IPv4"]),
        &["spec.clusterIPs: Invalid value: [\"1.2.3.4\",\"1.2.3.5\"]: \
           may specify no more than one IP for each IP family"],
    );
    check(
        json!(["None", "1.2.3.4"]),
        json!(["IPv4"]),
        &["spec.clusterIPs: Invalid value: [\"None\",\"1.2.3.4\"]: \
           'None' must be the first and only value"],
    );
    check(
        json!(["1.2.3.4"]),
        json!(["IPv4", "IPv4"]),
        &["spec.ipFamilies[1]: Duplicate value: \"IPv4\""],
    );
    same(
        &validate(&object(&json!({"clusterIP": "1.2.3.4", "clusterIPs": ["1.2.3.5"]}))),
        &["spec.clusterIPs: Invalid value: [\"1.2.3.5\"]: first value must match `clusterIP`"],
    );
    same(
        &validate(&object(&json!({"clusterIPs": ["1.2.3.5"]}))),
        &["spec.clusterIPs: Invalid value: [\"1.2.3.5\"]: \
           must be empty when `clusterIP` is not specified"],
    );
}

/// `validateServiceExternalTrafficPolicy`, `validateServiceInternalTrafficFieldsValue` and
/// `validateClientIPAffinityConfig`.
#[test]
fn traffic_policies_fit_the_type() {
    check(&json!({"internalTrafficPolicy": null}), &["spec.internalTrafficPolicy: Required value"]);
    check(
        &json!({"externalTrafficPolicy": "Local"}),
        &["spec.externalTrafficPolicy: Invalid value: \"Local\": \
           may only be set for externally-accessible services"],
    );
    check(
        &balancer(&json!({"externalTrafficPolicy": null})),
        &["spec.externalTrafficPolicy: Required value"],
    );
    check(
        &balancer(&json!({"externalTrafficPolicy": "Local"})),
        &["spec.healthCheckNodePort: Required value"],
    );
    check(
        &balancer(&json!({"healthCheckNodePort": 31_234})),
        &["spec.healthCheckNodePort: Invalid value: 31234: may only be set when `type` is \
           'LoadBalancer' and `externalTrafficPolicy` is 'Local'"],
    );
    check(
        &json!({"trafficDistribution": "Random"}),
        &["spec.trafficDistribution: Unsupported value: \"Random\": supported values: \
           \"PreferClose\", \"PreferSameZone\", \"PreferSameNode\""],
    );
    check(&json!({"sessionAffinity": null}), &["spec.sessionAffinity: Required value"]);
    check(
        &json!({"sessionAffinity": "ClientIP",
            "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 86_401}}}),
        &["spec.sessionAffinityConfig.clientIP.timeoutSeconds: Invalid value: 86401: \
           must be greater than 0 and less than 86400"],
    );
    check(
        &json!({"sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 1}}}),
        &["spec.sessionAffinityConfig: Forbidden: must not be set when session affinity is None"],
    );
    check(
        &json!({"externalIPs": ["0.0.0.0"], "externalTrafficPolicy": "Cluster"}),
        &["spec.externalIPs[0]: Invalid value: \"0.0.0.0\": may not be unspecified (0.0.0.0)"],
    );
}

/// `ValidateServiceUpdate`, with `validateUpgradeDowngradeClusterIPs` and
/// `validateLoadBalancerClassField`.
#[test]
fn addresses_and_classes_stay() {
    let check = |old: Value, new: Value, expected: &[&str]| {
        same(&validate_change(&object(&new), &object(&old)), expected);
    };
    let at = |ips: &[&str]| json!({"clusterIP": ips[0], "clusterIPs": ips});
    check(at(&["1.2.3.4"]), at(&["1.2.3.4", "2001::1"]), &[]);
    check(
        at(&["1.2.3.4"]),
        at(&["1.2.3.5"]),
        &["spec.clusterIPs[0]: Invalid value: [\"1.2.3.5\"]: may not change once set"],
    );
    check(
        at(&["1.2.3.4"]),
        json!({"clusterIPs": []}),
        &["spec.clusterIPs[0]: Invalid value: []: primary clusterIP can not be unset"],
    );
    check(
        at(&["1.2.3.4", "2001::1"]),
        with(&at(&["1.2.3.4"]), &json!({"ipFamilyPolicy": "PreferDualStack"})),
        &["spec.ipFamilyPolicy: Invalid value: \"PreferDualStack\": \
           must be set to 'SingleStack' when releasing the secondary clusterIP"],
    );
    check(
        at(&["1.2.3.4", "2001::1"]),
        with(&at(&["1.2.3.4"]), &json!({"ipFamilyPolicy": "SingleStack"})),
        &[],
    );
    check(at(&["1.2.3.4"]), json!({"type": "ExternalName", "externalName": "a.b"}), &[]);
    check(
        balancer(&json!({"loadBalancerClass": "a/b"})),
        balancer(&json!({"loadBalancerClass": "a/c"})),
        &["spec.loadBalancerClass: Invalid value: \"a/c\": may not change once set"],
    );
}

/// `ValidateLoadBalancerStatus`.
#[test]
fn addresses_of_balancers_have_a_mode() {
    let check = |kind: &str, point: Value, expected: &[&str]| {
        let status = json!({"loadBalancer": {"ingress": [point]}});
        let object = json!({"spec": {"type": kind}, "status": status});
        same(&validate_subresource("status", &object, &json!({})), expected);
    };
    const AT: &str = "status.loadBalancer.ingress";
    check("LoadBalancer", json!({"ip": "1.2.3.4", "ipMode": "VIP"}), &[]);
    check("LoadBalancer", json!({"hostname": "example.com"}), &[]);
    check(
        "ClusterIP",
        json!({"ip": "1.2.3.4", "ipMode": "VIP"}),
        &[&format!("{AT}: Forbidden: may only be used when `spec.type` is 'LoadBalancer'")],
    );
    check(
        "LoadBalancer",
        json!({"ip": "1.2.3.4"}),
        &[&format!("{AT}[0].ipMode: Required value: must be specified when `ip` is set")],
    );
    check(
        "LoadBalancer",
        json!({"hostname": "1.2.3.4", "ipMode": "VIP"}),
        &[
            &format!("{AT}[0].ipMode: Forbidden: may not be specified when `ip` is not set"),
            &format!(
                "{AT}[0].hostname: Invalid value: \"1.2.3.4\": \
                 must be a DNS name, not an IP address"
            ),
        ],
    );
    check(
        "LoadBalancer",
        json!({"ip": "1.2.3.4", "ipMode": "Other"}),
        &[&format!(
            "{AT}[0].ipMode: Unsupported value: \"Other\": supported values: \"Proxy\", \"VIP\""
        )],
    );
}
