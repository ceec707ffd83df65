//! The built-in admission plugins in upstream's order.

use std::sync::Arc;

use super::Plugin;
use super::configuration::AdmissionConfig;
use super::event_rate_limit::{EventLimit, EventRateLimit};
use super::{
    certificates, classes, hardening, limit_ranger, namespace, node_restriction, pod_resize,
    pod_security, pods, quota, service_account, storage,
};
use crate::authz::Authorizer;
use crate::authz::escalation::Escalation;
use lookup::Lookup;

/// All plugins in upstream's order. `authorizer` is the complete chain of authorizers; `dynamic`
/// are the plugins configured by API objects (policies, webhooks). `hardened` adds plugins that
/// upstream has and does not enable by default; `settings` adds and leaves out plugins by name.
///
/// A write passes `mutate` of all plugins, then its strategy, then `validate` of all plugins.
pub fn plugins(
    lookup: &Arc<dyn Lookup>,
    authorizer: &Arc<dyn Authorizer>,
    escalation: Escalation,
    tolerations: pods::DefaultTolerationSeconds,
    (hardened, settings): (bool, &AdmissionConfig),
    dynamic: Vec<Arc<dyn Plugin>>,
) -> Vec<Arc<dyn Plugin>> {
    let look = || Arc::clone(lookup);
    let may = || Arc::clone(authorizer);
    let mut all: Vec<Arc<dyn Plugin>> = vec![
        Arc::new(namespace::NamespaceLifecycle::new(look())),
        Arc::new(limit_ranger::LimitRanger(look())),
        Arc::new(service_account::ServiceAccount::new(look())),
        Arc::new(node_restriction::NodeRestriction::new(look(), may())),
        Arc::new(pods::TaintNodesByCondition),
        Arc::new(pod_security::PodSecurity {
            lookup: look(),
            hardened,
            config: settings.pod_security.clone(),
        }),
        Arc::new(pods::Priority(look())),
        Arc::new(tolerations),
        Arc::new(classes::DefaultStorageClass(look())),
        Arc::new(storage::StorageObjectInUseProtection),
        Arc::new(storage::PersistentVolumeClaimResize(look())),
        Arc::new(pods::RuntimeClass(look())),
        Arc::new(certificates::CertificateApproval(may())),
        Arc::new(certificates::CertificateSigning(may())),
        Arc::new(certificates::CertificateSubjectRestriction),
        Arc::new(classes::DefaultIngressClass(look())),
        Arc::new(pods::PodTopologyLabels(look())),
        Arc::new(pod_resize::PodResizeValidator(look())),
        // Not a plugin upstream, but part of the storage of roles: runs after all plugins that
        // mutate them.
        Arc::new(escalation),
    ];
    let behind = |all: &[Arc<dyn Plugin>], name: &str| {
        all.iter().position(|p| p.name() == name).map_or(all.len(), |at| at + 1)
    };
    if hardened || settings.enables("EventRateLimit") {
        let limits = settings.event_limits.as_deref().unwrap_or(&[EventLimit::HARDENED]);
        let at = behind(&all, "DefaultTolerationSeconds");
        all.insert(at, Arc::new(EventRateLimit::new(limits)));
    }
    if hardened || settings.enables("DenyServiceExternalIPs") {
        let at = behind(&all, "DefaultIngressClass");
        all.insert(at, Arc::new(hardening::DenyServiceExternalIps));
    }
    all.extend(dynamic);
    // Quota is last, so that nothing is reserved for a rejected write.
    all.push(Arc::new(quota::ResourceQuota::new(look())));
    all.retain(|plugin| !settings.disables(plugin.name()));
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::authz::chain::Chain as Authorizers;
    use crate::authz::rbac::Rbac;
    use lookup::testing::Fixed;

    #[test]
    fn plugins_are_in_upstreams_order() {
        let lookup: Arc<dyn Lookup> = Fixed::new(&[]);
        let authorizer: Arc<dyn Authorizer> = Arc::new(Authorizers::new(Vec::new()));
        let escalation = Escalation::new(Arc::new(Rbac::new()), Arc::clone(&authorizer));
        let dynamic: Vec<Arc<dyn Plugin>> = vec![Arc::new(pods::TaintNodesByCondition)];
        let settings = AdmissionConfig::default();
        let all = plugins(
            &lookup,
            &authorizer,
            escalation,
            Default::default(),
            (false, &settings),
            dynamic,
        );
        let names: Vec<&str> = all.iter().map(|plugin| plugin.name()).collect();
        assert_eq!(
            names,
            [
                "NamespaceLifecycle",
                "LimitRanger",
                "ServiceAccount",
                "NodeRestriction",
                "TaintNodesByCondition",
                "PodSecurity",
                "Priority",
                "DefaultTolerationSeconds",
                "DefaultStorageClass",
                "StorageObjectInUseProtection",
                "PersistentVolumeClaimResize",
                "RuntimeClass",
                "CertificateApproval",
                "CertificateSigning",
                "CertificateSubjectRestriction",
                "DefaultIngressClass",
                "PodTopologyLabels",
                "PodResizeValidator",
                "RBACEscalation",
                // A placeholder for policies and webhooks.
                "TaintNodesByCondition",
                "ResourceQuota",
            ]
        );
    }

    /// C3.9: the plugins of the hardened profile, at their upstream positions.
    #[test]
    fn hardened_plugins_are_in_upstreams_order() {
        let lookup: Arc<dyn Lookup> = Fixed::new(&[]);
        let authorizer: Arc<dyn Authorizer> = Arc::new(Authorizers::new(Vec::new()));
        let escalation = Escalation::new(Arc::new(Rbac::new()), Arc::clone(&authorizer));
        let settings = AdmissionConfig::default();
        let all = plugins(
            &lookup,
            &authorizer,
            escalation,
            Default::default(),
            (true, &settings),
            Vec::new(),
        );
        let names: Vec<&str> = all.iter().map(|plugin| plugin.name()).collect();
        let around = |name: &str| {
            let at = names.iter().position(|n| *n == name).unwrap();
            (names[at - 1], names[at + 1])
        };
        assert_eq!(around("EventRateLimit"), ("DefaultTolerationSeconds", "DefaultStorageClass"));
        assert_eq!(around("DenyServiceExternalIPs"), ("DefaultIngressClass", "PodTopologyLabels"));
    }

    #[test]
    fn plugins_are_added_and_left_out_by_name() {
        let lookup: Arc<dyn Lookup> = Fixed::new(&[]);
        let authorizer: Arc<dyn Authorizer> = Arc::new(Authorizers::new(Vec::new()));
        let escalation = Escalation::new(Arc::new(Rbac::new()), Arc::clone(&authorizer));
        let settings = AdmissionConfig::read(&[
            "enable-admission-plugins=DenyServiceExternalIPs".to_owned(),
            "disable-admission-plugins=LimitRanger,ResourceQuota".to_owned(),
        ])
        .unwrap();
        let settings = (false, &settings);
        let all =
            plugins(&lookup, &authorizer, escalation, Default::default(), settings, Vec::new());
        let has = |name: &str| all.iter().any(|plugin| plugin.name() == name);
        assert!(has("DenyServiceExternalIPs") && has("PodSecurity") && !has("EventRateLimit"));
        assert!(!has("LimitRanger") && !has("ResourceQuota"));
    }
}
