//! The strategy of each built-in kind.

mod admissionregistration;
mod certificate_request;
mod certificates;
mod core;
mod extensions;
mod flowcontrol;
mod networking;
mod pod;
mod pod_app_armor;
mod pod_certificate;
mod pod_fields;
mod rbac;
mod resource;
mod scheduling;
mod service;
mod storage;
mod storage_migration;
mod tls;
mod trust_bundle;
mod workloads;

use std::sync::Arc;

use api::Gvk;
use api::value::{get, int_at};
use serde_json::Value;

use super::Strategy;
use super::rules::Rules;

/// The strategy of a built-in kind; the base rules for any other kind.
pub fn strategy_for(gvk: &Gvk) -> Arc<dyn Strategy> {
    Arc::new(rules_of(&gvk.group, &gvk.version, &gvk.kind).of(&gvk.group, &gvk.version, &gvk.kind))
}

fn rules_of(group: &str, version: &str, kind: &str) -> Rules {
    match group {
        "" => core_rules(kind),
        "apps" => match kind {
            "Deployment" => workloads::DEPLOYMENT,
            "ReplicaSet" => workloads::REPLICA_SET,
            "StatefulSet" => workloads::STATEFUL_SET,
            "DaemonSet" => workloads::DAEMON_SET,
            "ControllerRevision" => workloads::CONTROLLER_REVISION,
            _ => Rules::BASE,
        },
        "batch" if kind == "Job" => workloads::JOB,
        "batch" if kind == "CronJob" => workloads::CRON_JOB,
        "autoscaling" if kind == "HorizontalPodAutoscaler" && version == "v1" => {
            workloads::AUTOSCALER_V1
        }
        "autoscaling" if kind == "HorizontalPodAutoscaler" => workloads::AUTOSCALER_V2,
        "policy" if kind == "PodDisruptionBudget" => workloads::POD_DISRUPTION_BUDGET,
        "events.k8s.io" if kind == "Event" => core::NEW_EVENT,
        "rbac.authorization.k8s.io" => match kind {
            "Role" => rbac::ROLE,
            "ClusterRole" => rbac::CLUSTER_ROLE,
            "RoleBinding" => rbac::ROLE_BINDING,
            "ClusterRoleBinding" => rbac::CLUSTER_ROLE_BINDING,
            _ => Rules::BASE,
        },
        _ => rules_of_further_groups(group, kind),
    }
}

fn core_rules(kind: &str) -> Rules {
    match kind {
        "Pod" => pod::POD,
        "Service" => service::SERVICE,
        "Namespace" => core::NAMESPACE,
        "Node" => core::NODE,
        "ConfigMap" => core::CONFIG_MAP,
        "Secret" => core::SECRET,
        "ServiceAccount" => core::SERVICE_ACCOUNT,
        "ReplicationController" => core::REPLICATION_CONTROLLER,
        "PodTemplate" => core::POD_TEMPLATE,
        "PersistentVolume" => core::PERSISTENT_VOLUME,
        "PersistentVolumeClaim" => core::PERSISTENT_VOLUME_CLAIM,
        "ResourceQuota" => core::RESOURCE_QUOTA,
        "LimitRange" => core::LIMIT_RANGE,
        "Endpoints" => core::ENDPOINTS,
        "Event" => core::EVENT,
        _ => Rules::BASE,
    }
}

fn rules_of_further_groups(group: &str, kind: &str) -> Rules {
    match (group, kind) {
        ("networking.k8s.io", "Ingress") => networking::INGRESS,
        ("networking.k8s.io", "NetworkPolicy") => networking::NETWORK_POLICY,
        ("networking.k8s.io", "IngressClass") => networking::INGRESS_CLASS,
        ("networking.k8s.io", "IPAddress") => networking::IP_ADDRESS,
        ("networking.k8s.io", "ServiceCIDR") => networking::SERVICE_CIDR,
        ("discovery.k8s.io", "EndpointSlice") => networking::ENDPOINT_SLICE,
        (
            "admissionregistration.k8s.io",
            "ValidatingWebhookConfiguration" | "MutatingWebhookConfiguration",
        ) => admissionregistration::WEBHOOKS,
        ("admissionregistration.k8s.io", "ValidatingAdmissionPolicy") => {
            admissionregistration::POLICY_WITH_STATUS
        }
        ("admissionregistration.k8s.io", "ValidatingAdmissionPolicyBinding") => {
            admissionregistration::VALIDATING_BINDING
        }
        ("admissionregistration.k8s.io", "MutatingAdmissionPolicy") => {
            admissionregistration::MUTATING_POLICY
        }
        ("admissionregistration.k8s.io", "MutatingAdmissionPolicyBinding") => {
            admissionregistration::MUTATING_BINDING
        }
        ("flowcontrol.apiserver.k8s.io", "PriorityLevelConfiguration") => {
            flowcontrol::PRIORITY_LEVEL
        }
        ("flowcontrol.apiserver.k8s.io", _) => flowcontrol::FLOW_SCHEMA,
        ("coordination.k8s.io", _) => scheduling::LEASE,
        ("node.k8s.io", "RuntimeClass") => scheduling::RUNTIME_CLASS,
        ("scheduling.k8s.io", "PriorityClass") => scheduling::PRIORITY_CLASS,
        ("storage.k8s.io", "StorageClass") => storage::STORAGE_CLASS,
        ("storage.k8s.io", "VolumeAttributesClass") => storage::ATTRIBUTES_CLASS,
        ("storage.k8s.io", "CSINode") => storage::CSI_NODE,
        ("storage.k8s.io", "CSIDriver") => storage::CSI_DRIVER,
        ("storage.k8s.io", "VolumeAttachment") => storage::VOLUME_ATTACHMENT,
        ("storage.k8s.io", "CSIStorageCapacity") => storage::CAPACITY,
        ("storagemigration.k8s.io", "StorageVersionMigration") => storage_migration::MIGRATION,
        ("resource.k8s.io", "ResourceClaim") => resource::RESOURCE_CLAIM,
        ("resource.k8s.io", "ResourceSlice") => resource::RESOURCE_SLICE,
        ("resource.k8s.io", "DeviceClass") => resource::DEVICE_CLASS,
        ("resource.k8s.io", "DeviceTaintRule") => resource::DEVICE_TAINT_RULE,
        ("resource.k8s.io", "ResourceClaimTemplate") => resource::RESOURCE_CLAIM_TEMPLATE,
        ("certificates.k8s.io", "CertificateSigningRequest") => {
            workloads::CERTIFICATE_SIGNING_REQUEST
        }
        ("certificates.k8s.io", "ClusterTrustBundle") => certificates::CLUSTER_TRUST_BUNDLE,
        ("certificates.k8s.io", "PodCertificateRequest") => certificates::POD_CERTIFICATE_REQUEST,
        ("apiextensions.k8s.io", "CustomResourceDefinition") => {
            extensions::CUSTOM_RESOURCE_DEFINITION
        }
        ("apiregistration.k8s.io", "APIService") => extensions::API_SERVICE,
        _ => Rules::BASE,
    }
}

/// The current time in the form of `metav1.Time`: UTC, whole seconds.
pub(crate) fn now() -> String {
    jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

fn status_replicas(object: &Value) -> Vec<(&'static str, String)> {
    vec![(
        "status.replicas",
        int_at(get(object, "status"), "replicas").unwrap_or_default().to_string(),
    )]
}
