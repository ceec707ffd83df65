//! Every controller, in one list.

use crate::framework::context::Context;

/// Starts a controller: registers listeners, spawns workers once caches are synced.
pub type Start = fn(&Context);

/// Name (as `--controllers` of kube-controller-manager has it) and start function.
pub const ALL: &[(&str, Start)] = &[
    ("serviceaccount-token-controller", crate::auth::service_account_tokens::start),
    ("serviceaccount-controller", crate::auth::service_account::start),
    ("root-ca-certificate-publisher-controller", crate::auth::root_ca_publisher::start),
    ("namespace-controller", crate::objects::namespace::start),
    ("endpointslice-controller", crate::network::endpointslice::start),
    ("endpointslice-mirroring-controller", crate::network::endpointslice_mirroring::start),
    ("endpoints-controller", crate::network::endpoints::start),
    ("node-lifecycle-controller", crate::nodes::node_lifecycle::start),
    ("cloud-node-controller", crate::nodes::cloud_node::start),
    ("taint-eviction-controller", crate::nodes::taint_eviction::start),
    ("node-ipam-controller", crate::nodes::node_ipam::start),
    ("pod-garbage-collector-controller", crate::workloads::pod_gc::start),
    ("service-cidr-controller", crate::network::service_cidr::start),
    (crate::network::service_lb::CONTROLLER, crate::network::service_lb::start),
    ("clusterrole-aggregation-controller", crate::auth::cluster_role_aggregation::start),
    ("ephemeral-volume-controller", crate::storage::ephemeral_volume::start),
    ("resourceclaim-controller", crate::devices::resource_claim::start),
    ("device-taint-eviction-controller", crate::devices::taint_eviction::start),
    ("persistentvolume-attach-detach-controller", crate::storage::attach_detach::start),
    ("persistentvolume-binder-controller", crate::storage::persistent_volume::start),
    (
        "persistentvolumeclaim-protection-controller",
        crate::storage::volume_protection::start_claims,
    ),
    ("persistentvolume-protection-controller", crate::storage::volume_protection::start_volumes),
    (
        "volumeattributesclass-protection-controller",
        crate::storage::volume_attributes_class_protection::start,
    ),
    ("persistentvolume-expander-controller", crate::storage::expand::start),
    ("local-driver", crate::storage::local_driver::start),
    ("local-path-provisioner", crate::storage::local_path_provisioner::start),
    ("resourcequota-controller", crate::policy::resource_quota::start),
    ("token-cleaner-controller", crate::auth::bootstrap_token_cleaner::start),
    ("garbage-collector-controller", crate::objects::garbage_collector::start),
    ("replicaset-controller", crate::workloads::replicaset::start),
    ("replicationcontroller-controller", crate::workloads::replicationcontroller::start),
    ("deployment-controller", crate::workloads::deployment::start),
    ("daemonset-controller", crate::workloads::daemonset::start),
    ("statefulset-controller", crate::workloads::statefulset::start),
    ("job-controller", crate::workloads::job::start),
    ("cronjob-controller", crate::workloads::cronjob::start),
    ("horizontal-pod-autoscaler-controller", crate::workloads::horizontal_pod_autoscaler::start),
    ("disruption-controller", crate::policy::disruption::start),
    ("ttl-controller", crate::nodes::ttl::start),
    ("ttl-after-finished-controller", crate::workloads::ttl_after_finished::start),
    (
        "validatingadmissionpolicy-status-controller",
        crate::policy::validating_admission_policy_status::start,
    ),
    (
        "certificatesigningrequest-approving-controller",
        crate::auth::certificate_requests::approve::start,
    ),
    (
        "certificatesigningrequest-signing-controller",
        crate::auth::certificate_requests::sign::start,
    ),
    (
        "certificatesigningrequest-cleaner-controller",
        crate::auth::certificate_requests::clean::start,
    ),
    ("podcertificaterequest-cleaner-controller", crate::auth::pod_certificate_cleaner::start),
    ("storage-version-migrator-controller", crate::objects::storage_version_migration::start),
];

/// Starts every controller that is not disabled.
pub fn start(context: &Context) {
    let is_disabled = |name: &str| context.config.disabled.iter().any(|d| d == name);
    for (name, start) in ALL {
        if !is_disabled(name) {
            start(context);
        }
    }
    if is_disabled(crate::network::service_lb::CONTROLLER) {
        crate::network::service_lb::start_release(context);
    }
}
