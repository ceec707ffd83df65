//! Defaults of the small groups: networking, storage, RBAC, discovery, scheduling, flow control,
//! custom resources and others.

use serde_json::{Value, json};

use super::{Defaulter, none};
use crate::value::{
    bool_at, default_int, default_str, default_to, ensure_object, has, is_empty, items, items_mut,
    object_mut, set, str_at,
};

const RBAC: &str = "rbac.authorization.k8s.io";

pub(super) fn defaulter(group: &str, kind: &str) -> Defaulter {
    match (group, kind) {
        ("networking.k8s.io", "NetworkPolicy") => network_policy,
        ("networking.k8s.io", "IngressClass") => |object| {
            if let Some(parameters) =
                object_mut(object, "spec").and_then(|spec| object_mut(spec, "parameters"))
            {
                default_to(parameters, "scope", "Cluster");
            }
        },
        ("discovery.k8s.io", "EndpointSlice") => |object| {
            for port in items_mut(object, "ports") {
                default_to(port, "name", "");
                default_to(port, "protocol", "TCP");
            }
        },
        (RBAC, "RoleBinding" | "ClusterRoleBinding") => role_binding,
        ("scheduling.k8s.io", "PriorityClass") => {
            |object| default_to(object, "preemptionPolicy", "PreemptLowerPriority")
        }
        ("storage.k8s.io", "StorageClass") => |object| {
            default_to(object, "reclaimPolicy", "Delete");
            default_to(object, "volumeBindingMode", "Immediate");
        },
        ("storage.k8s.io", "CSIDriver") => csi_driver,
        ("flowcontrol.apiserver.k8s.io", "FlowSchema") => |object| {
            if let Some(spec) = ensure_object(object, "spec") {
                default_int(spec, "matchingPrecedence", 1000);
            }
        },
        ("flowcontrol.apiserver.k8s.io", "PriorityLevelConfiguration") => priority_level,
        ("authentication.k8s.io", "TokenRequest") => |object| {
            if let Some(spec) = ensure_object(object, "spec") {
                default_to(spec, "expirationSeconds", 3600);
            }
        },
        ("certificates.k8s.io", "PodCertificateRequest") => |object| {
            if let Some(spec) = ensure_object(object, "spec") {
                default_to(spec, "maxExpirationSeconds", 86400);
            }
        },
        ("apiextensions.k8s.io", "CustomResourceDefinition") => custom_resource,
        ("apiregistration.k8s.io", "APIService") => |object| {
            if let Some(service) =
                object_mut(object, "spec").and_then(|spec| object_mut(spec, "service"))
            {
                default_to(service, "port", 443);
            }
        },
        ("resource.k8s.io", "ResourceClaim") => |object| {
            if let Some(spec) = object_mut(object, "spec") {
                claim(spec);
            }
        },
        ("resource.k8s.io", "ResourceClaimTemplate") => |object| {
            if let Some(spec) = object_mut(object, "spec").and_then(|spec| object_mut(spec, "spec"))
            {
                claim(spec);
            }
        },
        _ => none,
    }
}

fn network_policy(object: &mut Value) {
    let Some(spec) = ensure_object(object, "spec") else { return };
    if is_empty(spec, "policyTypes") {
        let types = if items(spec, "egress").is_empty() {
            json!(["Ingress"])
        } else {
            json!(["Ingress", "Egress"])
        };
        set(spec, "policyTypes", types);
    }
    for direction in ["ingress", "egress"] {
        for rule in items_mut(spec, direction) {
            for port in items_mut(rule, "ports") {
                default_to(port, "protocol", "TCP");
            }
        }
    }
}

fn role_binding(object: &mut Value) {
    if let Some(role) = ensure_object(object, "roleRef") {
        default_str(role, "apiGroup", RBAC);
    }
    for subject in items_mut(object, "subjects") {
        if matches!(str_at(subject, "kind"), "User" | "Group") {
            default_str(subject, "apiGroup", RBAC);
        }
    }
}

fn csi_driver(object: &mut Value) {
    let Some(spec) = ensure_object(object, "spec") else { return };
    default_to(spec, "attachRequired", true);
    default_to(spec, "fsGroupPolicy", "ReadWriteOnceWithFSType");
    for key in [
        "podInfoOnMount",
        "storageCapacity",
        "requiresRepublish",
        "seLinuxMount",
        "preventPodSchedulingIfMissing",
    ] {
        default_to(spec, key, false);
    }
    if is_empty(spec, "volumeLifecycleModes") {
        set(spec, "volumeLifecycleModes", json!(["Persistent"]));
    }
}

fn priority_level(object: &mut Value) {
    let Some(spec) = object_mut(object, "spec") else { return };
    if let Some(exempt) = object_mut(spec, "exempt") {
        default_to(exempt, "nominalConcurrencyShares", 0);
        default_to(exempt, "lendablePercent", 0);
    }
    if let Some(limited) = object_mut(spec, "limited") {
        default_to(limited, "nominalConcurrencyShares", 30);
        default_to(limited, "lendablePercent", 0);
        if let Some(queuing) = object_mut(limited, "limitResponse")
            .and_then(|response| object_mut(response, "queuing"))
        {
            default_int(queuing, "handSize", 8);
            default_int(queuing, "queues", 64);
            default_int(queuing, "queueLengthLimit", 50);
        }
    }
}

fn custom_resource(object: &mut Value) {
    let Some(spec) = ensure_object(object, "spec") else { return };
    if let Some(names) = ensure_object(spec, "names") {
        let kind = str_at(names, "kind").to_owned();
        if !kind.is_empty() {
            default_str(names, "singular", &kind.to_lowercase());
            default_str(names, "listKind", &format!("{kind}List"));
        }
    }
    if !has(spec, "conversion") {
        set(spec, "conversion", json!({"strategy": "None"}));
    }
    if let Some(service) =
        spec.pointer_mut("/conversion/webhook/clientConfig/service").filter(|s| s.is_object())
    {
        default_to(service, "port", 443);
    }
    let stored = items(spec, "versions")
        .iter()
        .find(|version| bool_at(version, "storage"))
        .map(|version| str_at(version, "name").to_owned());
    if let (Some(name), Some(status)) = (stored, ensure_object(object, "status")) {
        if is_empty(status, "storedVersions") {
            set(status, "storedVersions", json!([name]));
        }
    }
}

/// Sets the defaults of a device claim: a device request is for one device.
fn claim(spec: &mut Value) {
    let Some(devices) = object_mut(spec, "devices") else { return };
    for request in items_mut(devices, "requests") {
        if let Some(exactly) = object_mut(request, "exactly") {
            device_count(exactly);
        }
        items_mut(request, "firstAvailable").iter_mut().for_each(device_count);
    }
}

fn device_count(request: &mut Value) {
    default_str(request, "allocationMode", "ExactCount");
    if str_at(request, "allocationMode") == "ExactCount" {
        default_int(request, "count", 1);
    }
    for toleration in items_mut(request, "tolerations") {
        default_str(toleration, "operator", "Equal");
    }
}
