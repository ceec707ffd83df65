//! Every controller, in one list.

use crate::framework::context::Context;

/// Starts a controller: registers listeners, spawns workers once caches are synced.
pub type Start = fn(&Context);

/// Name (as `--controllers` of kube-controller-manager has it) and start function.
pub const ALL: &[(&str, Start)] = &[
    ("serviceaccount-token-controller", crate::auth::service_account_tokens::start),
    ("serviceaccount-controller", crate::auth::service_account::start),
    ("root-ca-certificate-publisher-controller", crate::auth::root_ca_publisher::start),
    (
        "kube-apiserver-serving-clustertrustbundle-publisher-controller",
        crate::auth::serving_trust_bundle_publisher::start,
    ),
    ("legacy-serviceaccount-token-cleaner-controller", crate::auth::legacy_token_cleaner::start),
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
    (crate::auth::bootstrap_signer::CONTROLLER, crate::auth::bootstrap_signer::start),
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

/// Controllers that run only where `--controllers` names them. Upstream's list has the
/// token-cleaner-controller, too, which runs here: tokens of `kube-lite token` expire.
pub const OFF_BY_DEFAULT: &[&str] = &[crate::auth::bootstrap_signer::CONTROLLER];

/// The controllers of upstream's kube-controller-manager, as `tests/controllers/record` writes
/// them.
const UPSTREAM: &str = include_str!("upstream.txt");

/// A controller of upstream's kube-controller-manager.
#[derive(Debug, Clone, Copy)]
pub struct Descriptor {
    /// Its name.
    pub name: &'static str,
    /// Its former names, separated by commas; `-` without any.
    aliases: &'static str,
    /// `on` or `off`: whether `--controllers=*` starts it. The tests compare it.
    #[cfg(test)]
    state: &'static str,
    /// Its feature gates with their defaults, as `aliases`.
    #[cfg(test)]
    gates: &'static str,
}

impl Descriptor {
    /// Whether `--controllers` may name it so.
    pub fn matches(&self, name: &str) -> bool {
        self.name == name || self.aliases.split(',').any(|alias| alias == name)
    }
}

/// The controllers of upstream's kube-controller-manager, by name.
pub fn upstream() -> impl Iterator<Item = Descriptor> {
    let lines = UPSTREAM.lines().filter(|line| !line.starts_with('#'));
    lines.filter_map(|line| {
        let mut words = line.split(' ');
        Some(Descriptor {
            name: words.next()?,
            aliases: words.next()?,
            #[cfg(test)]
            state: words.next()?,
            #[cfg(test)]
            gates: words.next()?,
        })
    })
}

/// Starts every controller that is not disabled.
pub fn start(context: &Context) {
    crate::metrics::begin(context.tasks.shutdown());
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    const DOCUMENT: &str = include_str!("../../docs/internals/controllers.md");

    /// The cells of the rows of the table whose head begins with this cell.
    fn table(head: &str) -> Vec<Vec<&'static str>> {
        let lines = DOCUMENT.lines().skip_while(|line| !line.starts_with(&format!("| {head} |")));
        let rows = lines.skip(2).take_while(|line| line.starts_with('|'));
        rows.map(|row| row.trim_matches('|').split('|').map(str::trim).collect()).collect()
    }

    fn is_here(name: &str) -> bool {
        ALL.iter().any(|(known, _)| *known == name)
    }

    /// Checks the last two cells of a row: the file, or why there is none, and whether the
    /// controller runs by default.
    fn check_own(name: &str, file: &str, own: &str) {
        let path = file.trim_matches('`');
        // Tests run in the folder of their crate.
        let exists = Path::new(path).is_file();
        assert_eq!(exists, is_here(name), "file of {name}: {path}");
        let want = match is_here(name) {
            false => "-",
            true if OFF_BY_DEFAULT.contains(&name) => "off",
            true => "on",
        };
        assert_eq!(own, want, "{name}");
    }

    #[test]
    fn document_has_every_controller_of_upstream() {
        let rows = table("controller of upstream");
        let names: Vec<&str> = rows.iter().map(|row| row[0]).collect();
        assert_eq!(names, upstream().map(|one| one.name).collect::<Vec<_>>());
        for (row, one) in rows.iter().zip(upstream()) {
            let [name, aliases, state, file, own] = row[..] else { panic!("{row:?}") };
            assert_eq!(aliases.replace(", ", ","), one.aliases, "{name}");
            let off = one.gates.split(',').find_map(|gate| gate.strip_suffix("=false"));
            let want = off.map_or(one.state.to_owned(), |gate| format!("off: {gate}"));
            assert_eq!(state, want, "{name}");
            check_own(name, file, own);
            // What upstream runs by default runs here.
            assert!(state != "on" || own == "on", "{name}");
        }
    }

    #[test]
    fn document_has_every_other_controller() {
        let rows = table("other controller");
        for row in &rows {
            let [name, _, file, own] = row[..] else { panic!("{row:?}") };
            check_own(name, file, own);
        }
        for (name, _) in ALL {
            let is_listed = rows.iter().any(|row| row[0] == *name);
            assert_ne!(is_listed, upstream().any(|one| one.name == *name), "{name}");
        }
    }

    #[test]
    fn controllers_have_distinct_names() {
        let mut names: Vec<&str> = ALL.iter().map(|(name, _)| *name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), ALL.len());
    }
}
