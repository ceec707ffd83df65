//! The names of the work queues in the metrics `workqueue_*`.

/// The names of the workers of controllers, and of the queue that upstream's controller has for the
/// same keys.
const NAMES: &[(&str, &str)] = &[
    ("bootstrap-signer-controller", "bootstrap_signer_queue"),
    ("certificate-approver", "certificate"),
    ("certificate-signer", "certificate"),
    ("clusterrole-aggregation-controller", "ClusterRoleAggregator"),
    ("cronjob-controller", "cronjob"),
    ("daemon-set-controller", "daemonset"),
    ("deployment-controller", "deployment"),
    ("disruption-controller", "disruption"),
    ("endpoints-controller", "endpoint"),
    ("endpointslice-controller", "endpoint_slice"),
    ("endpointslice-mirroring-controller", "endpoint_slice_mirroring"),
    ("ephemeral-volume-controller", "ephemeral_volume"),
    ("garbage-collector-controller", "garbage_collector_attempt_to_delete"),
    ("horizontal-pod-autoscaler", "horizontalpodautoscaler"),
    ("job-controller", "job"),
    (
        "kube-apiserver-serving-clustertrustbundle-publisher-controller",
        "ca_cert_publisher_cluster_trust_bundles",
    ),
    ("legacy-token-tracking", "legacy_token_tracking_controller"),
    ("namespace-controller", "namespace"),
    ("node-lifecycle-controller", "node_lifecycle_controller"),
    ("persistentvolume-attach-detach-controller", "pvcs"),
    ("persistentvolume-binder-controller", "claims"),
    ("persistentvolume-expander-controller", "volume_expand"),
    ("persistentvolume-protection-controller", "pvprotection"),
    ("persistentvolumeclaim-protection-controller", "pvcprotection"),
    ("pod-garbage-collector-controller", "orphaned_pods_nodes"),
    ("replicaset-controller", "replicaset"),
    ("replication-controller", "replicationmanager"),
    ("resourceclaim-controller", "resource_claim"),
    ("resourcequota-controller", "resourcequota_primary"),
    ("root-ca-certificate-publisher-controller", "root_ca_cert_publisher"),
    ("service-cidr-controller", "ipaddresses"),
    ("serviceaccount-controller", "serviceaccount"),
    ("serviceaccount-token-controller", "serviceaccount_tokens_service"),
    ("statefulset-controller", "statefulset"),
    ("taint-eviction-controller", "noexec_taint_pod"),
    ("token-cleaner-controller", "token_cleaner"),
    ("ttl-after-finished-controller", "ttl_jobs_to_delete"),
    ("ttl-controller", "ttlcontroller"),
    ("validatingadmissionpolicy-status-controller", "validatingadmissionpolicy-status"),
    ("volumeattributesclass-protection-controller", "vacprotection"),
];

/// The name of the queue of these workers: their own name, unless upstream's queue has another one.
pub(crate) fn of(workers: &'static str) -> &'static str {
    NAMES.iter().find(|(name, _)| *name == workers).map_or(workers, |(_, queue)| queue)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queues_have_the_names_of_upstream_or_their_own() {
        assert!(NAMES.is_sorted_by(|a, b| a.0 < b.0));
        assert_eq!(of("deployment-controller"), "deployment");
        assert_eq!(of("device-taint-eviction-controller"), "device-taint-eviction-controller");
    }
}
