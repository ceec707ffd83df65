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
