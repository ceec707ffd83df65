//! Warnings of services (upstream's `pkg/api/service/warnings.go`).

use serde_json::Value;

use crate::field::Path;
use crate::validation::net;
use crate::value::{at, get, is_empty, items, str_at};

/// Returns the warnings of a new or updated service.
pub fn warnings(object: &Value, _: Option<&Value>) -> Vec<String> {
    const HINTS: &str = "service.kubernetes.io/topology-aware-hints";
    let (spec, path) = (get(object, "spec"), Path::new("spec"));
    let mut list = Vec::new();
    if at(object, &["metadata", "annotations"]).get(HINTS).is_some() {
        list.push(format!("annotation {HINTS} is deprecated, please use service.kubernetes.io/topology-mode instead"));
    }
    let kind = str_at(spec, "type");
    let address = str_at(spec, "clusterIP");
    let headless = kind == "ClusterIP" && address == "None";
    let mut addresses = |key: &str| {
        for (index, ip) in items(spec, key).iter().enumerate() {
            list.extend(net::ip_warning(
                &path.child(key).index(index),
                ip.as_str().unwrap_or_default(),
            ));
        }
    };
    if !address.is_empty() && address != "None" {
        addresses("clusterIPs");
    }
    if headless {
        if !str_at(spec, "loadBalancerIP").is_empty() {
            list.push("spec.loadBalancerIP is ignored for headless services".into());
        }
        if !is_empty(spec, "externalIPs") {
            list.push("spec.externalIPs is ignored for headless services".into());
        }
        if str_at(spec, "sessionAffinity") != "None" {
            list.push("spec.SessionAffinity is ignored for headless services".into());
        }
    }
    for (index, ip) in items(spec, "externalIPs").iter().enumerate() {
        list.extend(net::ip_warning(
            &path.child("externalIPs").index(index),
            ip.as_str().unwrap_or_default(),
        ));
    }
    let external = !is_empty(spec, "externalIPs");
    if external && !headless && kind != "ExternalName" {
        list.push(
            "spec.externalIPs is deprecated and may no longer be implemented in some clusters"
                .into(),
        );
    }
    let balancer = str_at(spec, "loadBalancerIP");
    if !balancer.is_empty() {
        list.extend(net::ip_warning(&path.child("loadBalancerIP"), balancer));
    }
    for (index, range) in items(spec, "loadBalancerSourceRanges").iter().enumerate() {
        let field = path.child("loadBalancerSourceRanges").index(index);
        list.extend(net::cidr_warnings(&field, range.as_str().unwrap_or_default()));
    }
    if kind == "ExternalName" && external {
        list.push("spec.externalIPs is ignored when spec.type is \"ExternalName\"".into());
    }
    if kind != "ExternalName" && !str_at(spec, "externalName").is_empty() {
        list.push("spec.externalName is ignored when spec.type is not \"ExternalName\"".into());
    }
    if str_at(spec, "trafficDistribution") == "PreferClose" {
        list.push(
            "spec.trafficDistribution: \"PreferClose\" is deprecated; use \"PreferSameZone\""
                .into(),
        );
    }
    list
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::validation::tests::same;
    use serde_json::json;

    /// `GetWarningsForService` of `pkg/api/service`.
    #[test]
    fn fields_without_effect_are_named() {
        let check = |spec: Value, expected: &[&str]| {
            same(&warnings(&json!({ "spec": spec }), None), expected);
        };
        check(json!({"type": "ClusterIP", "clusterIP": "1.2.3.4"}), &[]);
        check(json!({"type": "ClusterIP", "clusterIP": "None", "sessionAffinity": "None"}), &[]);
        check(
            json!({"type": "ClusterIP", "clusterIP": "None", "loadBalancerIP": "1.2.3.4",
                "externalIPs": ["1.2.3.4"], "sessionAffinity": "ClientIP"}),
            &[
                "spec.loadBalancerIP is ignored for headless services",
                "spec.externalIPs is ignored for headless services",
                "spec.SessionAffinity is ignored for headless services",
            ],
        );
        check(
            json!({"type": "NodePort", "externalIPs": ["1.2.3.4"]}),
            &["spec.externalIPs is deprecated and may no longer be implemented in some clusters"],
        );
        check(
            json!({"type": "ExternalName", "externalIPs": ["1.2.3.4"]}),
            &["spec.externalIPs is ignored when spec.type is \"ExternalName\""],
        );
        check(
            json!({"type": "NodePort", "externalName": "example.com"}),
            &["spec.externalName is ignored when spec.type is not \"ExternalName\""],
        );
        check(
            json!({"type": "NodePort", "trafficDistribution": "PreferClose"}),
            &["spec.trafficDistribution: \"PreferClose\" is deprecated; use \"PreferSameZone\""],
        );
        let hints = "service.kubernetes.io/topology-aware-hints";
        same(
            &warnings(&json!({"metadata": {"annotations": { hints: "auto" }}}), None),
            &["annotation service.kubernetes.io/topology-aware-hints is deprecated, \
               please use service.kubernetes.io/topology-mode instead"],
        );
    }

    /// `GetWarningsForService` of `pkg/api/service` with `GetWarningsForIP` and
    /// `GetWarningsForCIDR` of `k8s.io/apimachinery/pkg/util/validation`.
    #[test]
    fn addresses_are_written_in_their_standard_form() {
        let check = |changes: Value, expected: &[&str]| {
            let base = json!({"type": "LoadBalancer"});
            let spec = crate::validation::tests::with(&base, &changes);
            same(&warnings(&json!({ "spec": spec }), None), expected);
        };
        check(
            json!({"clusterIP": "2001:db8:0::0", "clusterIPs": ["2001:db8:0::0"]}),
            &["spec.clusterIPs[0]: IPv6 address \"2001:db8:0::0\" \
               should be in RFC 5952 canonical format (\"2001:db8::\")"],
        );
        check(
            json!({"loadBalancerIP": "010.1.2.3"}),
            &["spec.loadBalancerIP: non-standard IP address \"010.1.2.3\" is invalid: \
               use \"10.1.2.3\""],
        );
        check(
            json!({"loadBalancerSourceRanges": ["10.0.0.0/8", "10.1.0.0/8"]}),
            &["spec.loadBalancerSourceRanges[1]: CIDR value \"10.1.0.0/8\" is ambiguous in this \
               context (should be \"10.0.0.0/8\" or \"10.1.0.0/32\"?)"],
        );
    }
}
