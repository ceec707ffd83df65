//! Defaults of Pods and pod templates.

use serde_json::{Value, json};

use super::pod_resources::{requests_from_limits, round};
use crate::image::means_latest;
use crate::value::{
    bool_at, default_int, default_str, default_to, ensure_object, get, has, int_at, items,
    items_mut, object_mut, remove, set, str_at,
};

const CONTAINER_LISTS: [&str; 3] = ["initContainers", "containers", "ephemeralContainers"];

/// Sets the defaults of a pod: those of its spec, and those that upstream sets for pods but not for
/// templates.
pub(super) fn pod(object: &mut Value) {
    if let Some(spec) = ensure_object(object, "spec") {
        if int_at(spec, "terminationGracePeriodSeconds").is_some_and(|s| s < 0) {
            set(spec, "terminationGracePeriodSeconds", 1);
        }
        for list in ["containers", "initContainers"] {
            items_mut(spec, list).iter_mut().for_each(requests_from_limits);
        }
        default_to(spec, "enableServiceLinks", true);
        if bool_at(spec, "hostNetwork") {
            for list in ["containers", "initContainers"] {
                items_mut(spec, list).iter_mut().for_each(host_ports);
            }
        }
        pod_spec(spec);
    }
    if let Some(status) = object_mut(object, "status") {
        pod_addresses(status);
        for key in ["initContainerStatuses", "containerStatuses", "ephemeralContainerStatuses"] {
            for container in items_mut(status, key) {
                round(container, "allocatedResources");
                if let Some(resources) = object_mut(container, "resources") {
                    round(resources, "limits");
                    round(resources, "requests");
                }
            }
        }
    }
}

/// Sets the host port of each container port on the host's network to the container port.
fn host_ports(container: &mut Value) {
    for port in items_mut(container, "ports") {
        if int_at(port, "hostPort").unwrap_or_default() == 0 {
            if let Some(number) = int_at(port, "containerPort") {
                set(port, "hostPort", number);
            }
        }
    }
}

/// Synchronizes `podIP` and the first item of `podIPs`; `podIP` takes precedence.
fn pod_addresses(status: &mut Value) {
    let single = str_at(status, "podIP").to_owned();
    let first = items(status, "podIPs").first().map(|ip| str_at(ip, "ip").to_owned());
    match first {
        Some(ip) if single.is_empty() => set(status, "podIP", ip),
        Some(ip) if ip == single => {}
        _ if single.is_empty() => {}
        _ => set(status, "podIPs", json!([{ "ip": single }])),
    }
}

/// Sets the defaults of a workload's `spec.template`. A template without `spec` receives one, like
/// Go's zero struct.
pub fn pod_template(template: &mut Value) {
    if let Some(spec) = ensure_object(template, "spec") {
        pod_spec(spec);
    }
}

/// Sets the defaults of a pod spec in a pod or a template.
pub fn pod_spec(spec: &mut Value) {
    if str_at(spec, "serviceAccountName").is_empty() {
        if let Some(alias) = get(spec, "serviceAccount").as_str().map(str::to_owned) {
            set(spec, "serviceAccountName", alias);
        }
    }
    let account = str_at(spec, "serviceAccountName").to_owned();
    if account.is_empty() {
        remove(spec, "serviceAccount");
        remove(spec, "serviceAccountName");
    } else {
        set(spec, "serviceAccount", account);
    }
    default_str(spec, "dnsPolicy", "ClusterFirst");
    default_str(spec, "restartPolicy", "Always");
    ensure_object(spec, "securityContext");
    default_to(spec, "terminationGracePeriodSeconds", 30);
    default_str(spec, "schedulerName", "default-scheduler");
    items_mut(spec, "volumes").iter_mut().for_each(volume);
    for list in CONTAINER_LISTS {
        items_mut(spec, list).iter_mut().for_each(container);
    }
    round(spec, "overhead");
    if let Some(resources) = object_mut(spec, "resources") {
        round(resources, "limits");
        round(resources, "requests");
    }
}

fn container(container: &mut Value) {
    let policy = if means_latest(str_at(container, "image")) { "Always" } else { "IfNotPresent" };
    default_str(container, "imagePullPolicy", policy);
    default_str(container, "terminationMessagePath", "/dev/termination-log");
    default_str(container, "terminationMessagePolicy", "File");
    for variable in items_mut(container, "env") {
        if let Some(field) = variable.get_mut("valueFrom").and_then(|v| v.get_mut("fieldRef")) {
            default_str(field, "apiVersion", "v1");
        }
    }
    for port in items_mut(container, "ports") {
        default_str(port, "protocol", "TCP");
    }
    if let Some(resources) = object_mut(container, "resources") {
        round(resources, "limits");
        round(resources, "requests");
    }
    for key in ["livenessProbe", "readinessProbe", "startupProbe"] {
        if let Some(probe) = object_mut(container, key) {
            default_int(probe, "timeoutSeconds", 1);
            default_int(probe, "periodSeconds", 10);
            default_int(probe, "successThreshold", 1);
            default_int(probe, "failureThreshold", 3);
            http_get(probe);
            if let Some(grpc) = object_mut(probe, "grpc") {
                default_to(grpc, "service", "");
            }
        }
    }
    if let Some(lifecycle) = object_mut(container, "lifecycle") {
        for key in ["postStart", "preStop"] {
            if let Some(hook) = object_mut(lifecycle, key) {
                http_get(hook);
            }
        }
    }
}

fn http_get(handler: &mut Value) {
    if let Some(action) = object_mut(handler, "httpGet") {
        default_str(action, "path", "/");
        default_str(action, "scheme", "HTTP");
    }
}

fn volume(volume: &mut Value) {
    let bare = volume
        .as_object()
        .is_some_and(|map| map.iter().all(|(key, v)| key == "name" || v.is_null()));
    if bare {
        set(volume, "emptyDir", json!({}));
    }
    for key in ["secret", "configMap", "downwardAPI", "projected"] {
        if let Some(source) = object_mut(volume, key) {
            default_to(source, "defaultMode", 420); // 0644
        }
    }
    if let Some(host) = object_mut(volume, "hostPath") {
        default_to(host, "type", "");
    }
    if let Some(source) = object_mut(volume, "downwardAPI") {
        downward_fields(source);
    }
    if let Some(projected) = object_mut(volume, "projected") {
        for source in items_mut(projected, "sources") {
            if let Some(downward) = object_mut(source, "downwardAPI") {
                downward_fields(downward);
            }
            if let Some(token) = object_mut(source, "serviceAccountToken") {
                default_to(token, "expirationSeconds", 3600);
            }
        }
    }
    if let Some(image) = object_mut(volume, "image") {
        let policy =
            if means_latest(str_at(image, "reference")) { "Always" } else { "IfNotPresent" };
        default_str(image, "pullPolicy", policy);
    }
    if let Some(spec) = volume.pointer_mut("/ephemeral/volumeClaimTemplate/spec") {
        claim_spec(spec);
    }
}

fn downward_fields(source: &mut Value) {
    for item in items_mut(source, "items") {
        if let Some(field) = object_mut(item, "fieldRef") {
            default_str(field, "apiVersion", "v1");
        }
    }
}

/// Sets the defaults of a PersistentVolumeClaim's spec.
pub(super) fn claim_spec(spec: &mut Value) {
    default_to(spec, "volumeMode", "Filesystem");
    if has(spec, "resources") {
        if let Some(resources) = object_mut(spec, "resources") {
            round(resources, "limits");
            round(resources, "requests");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fills_a_minimal_pod() {
        let mut object = json!({"spec": {"containers": [{"name": "c", "image": "nginx", "resources": {"limits": {"cpu": "1"}}}]}});
        pod(&mut object);
        assert_eq!(
            object["spec"],
            json!({
                "containers": [{
                    "name": "c", "image": "nginx", "imagePullPolicy": "Always",
                    "resources": {"limits": {"cpu": "1"}, "requests": {"cpu": "1"}},
                    "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File",
                }],
                "dnsPolicy": "ClusterFirst", "restartPolicy": "Always", "securityContext": {}, "schedulerName": "default-scheduler",
                "terminationGracePeriodSeconds": 30, "enableServiceLinks": true,
            })
        );
    }
}
