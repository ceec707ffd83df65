//! Every controller, in one list.

use crate::context::Context;

/// Starts a controller: registers listeners, spawns workers once caches are synced.
pub type Start = fn(&Context);

/// Name (as `--controllers` of kube-controller-manager has it) and start function.
pub const ALL: &[(&str, Start)] = &[
    ("serviceaccount-token-controller", crate::account_tokens::start),
    ("serviceaccount-controller", crate::service_account::start),
    ("root-ca-certificate-publisher-controller", crate::root_ca::start),
    ("namespace-controller", crate::namespace::start),
    ("endpointslice-controller", crate::endpointslice::start),
    ("endpointslice-mirroring-controller", crate::endpointslice_mirroring::start),
    ("endpoints-controller", crate::endpoints::start),
    ("node-lifecycle-controller", crate::node_lifecycle::start),
    ("taint-eviction-controller", crate::taint_eviction::start),
    ("node-ipam-controller", crate::node_ipam::start),
    ("pod-garbage-collector-controller", crate::pod_gc::start),
    ("service-cidr-controller", crate::service_cidr::start),
    ("clusterrole-aggregation-controller", crate::cluster_role_aggregation::start),
    ("ephemeral-volume-controller", crate::ephemeral_volume::start),
    ("persistentvolume-binder-controller", crate::persistent_volume::start),
    ("persistentvolumeclaim-protection-controller", crate::volume_protection::start_claims),
    ("persistentvolume-protection-controller", crate::volume_protection::start_volumes),
    ("volumeattributesclass-protection-controller", crate::class_protection::start),
    ("local-path-provisioner", crate::local_path::start),
    ("resourcequota-controller", crate::resource_quota::start),
    ("token-cleaner-controller", crate::tokens::start),
    ("garbage-collector-controller", crate::gc::start),
    ("replicaset-controller", crate::replicaset::start),
    ("replicationcontroller-controller", crate::replication::start),
    ("deployment-controller", crate::deployment::start),
    ("daemonset-controller", crate::daemonset::start),
    ("statefulset-controller", crate::statefulset::start),
    ("job-controller", crate::job::start),
    ("cronjob-controller", crate::cronjob::start),
    ("horizontal-pod-autoscaler-controller", crate::horizontal::start),
    ("disruption-controller", crate::disruption::start),
    ("ttl-after-finished-controller", crate::ttl_after_finished::start),
    ("validatingadmissionpolicy-status-controller", crate::policy_status::start),
    ("certificatesigningrequest-approving-controller", crate::certificate_requests::approve::start),
    ("certificatesigningrequest-signing-controller", crate::certificate_requests::sign::start),
    ("certificatesigningrequest-cleaner-controller", crate::certificate_requests::clean::start),
    ("podcertificaterequest-cleaner-controller", crate::pod_certificate_cleaner::start),
];

/// Starts every controller that is not disabled.
pub fn start(context: &Context) {
    for (name, start) in ALL {
        if !context.config.disabled.iter().any(|d| d == name) {
            start(context);
        }
    }
}
