//! The built-in admission plugins in upstream's order.

use std::sync::Arc;

use api::Status;
use serde_json::Value;

use super::{Operation, Plugin, Request};
use super::{
    certificates, classes, limit_ranger, namespace, node_restriction, pod_security, pods, quota,
    service_account, storage,
};
use crate::authz::Authorizer;
use crate::authz::escalation::Escalation;
use crate::lookup::Lookup;

/// All plugins; every write passes [`Chain::mutate`] and then, after validation by its strategy, [`Chain::validate`].
pub struct Chain {
    plugins: Vec<Arc<dyn Plugin>>,
    /// Not a plugin upstream either: part of how roles and bindings are written.
    escalation: Escalation,
}

impl Chain {
    /// The chain over this view of the cluster; `authorizer` is the complete one.
    pub fn new(
        lookup: &Arc<dyn Lookup>,
        authorizer: &Arc<dyn Authorizer>,
        escalation: Escalation,
    ) -> Self {
        let look = || Arc::clone(lookup);
        let may = || Arc::clone(authorizer);
        let plugins: Vec<Arc<dyn Plugin>> = vec![
            Arc::new(namespace::NamespaceLifecycle::new(look())),
            Arc::new(limit_ranger::LimitRanger(look())),
            Arc::new(service_account::ServiceAccount::new(look())),
            Arc::new(node_restriction::NodeRestriction::new(look(), may())),
            Arc::new(pods::TaintNodesByCondition),
            Arc::new(pod_security::PodSecurity(look())),
            Arc::new(pods::Priority(look())),
            Arc::new(pods::DefaultTolerationSeconds),
            Arc::new(classes::DefaultStorageClass(look())),
            Arc::new(storage::StorageObjectInUseProtection),
            Arc::new(storage::PersistentVolumeClaimResize(look())),
            Arc::new(pods::RuntimeClass(look())),
            Arc::new(certificates::CertificateApproval(may())),
            Arc::new(certificates::CertificateSigning(may())),
            Arc::new(certificates::CertificateSubjectRestriction),
            Arc::new(classes::DefaultIngressClass(look())),
            Arc::new(pods::PodTopologyLabels(look())),
            // Webhooks and policies come here; quota stays last, so that nothing is reserved for what is refused.
            Arc::new(quota::ResourceQuota::new(look())),
        ];
        Self { plugins, escalation }
    }

    /// Names in order, as `--enable-admission-plugins` has them.
    pub fn names(&self) -> Vec<&'static str> {
        self.plugins.iter().map(|plugin| plugin.name()).collect()
    }

    /// Lets every plugin change the object, in order.
    ///
    /// # Errors
    /// The first refusal.
    pub async fn mutate(
        &self,
        request: &Request<'_>,
        object: &mut Option<Value>,
    ) -> Result<(), Status> {
        for plugin in &self.plugins {
            plugin.mutate(request, object).await?;
        }
        if let Some(object) = object
            .as_ref()
            .filter(|_| matches!(request.operation, Operation::Create | Operation::Update))
        {
            self.escalation.check(request, object).await?;
        }
        Ok(())
    }

    /// Lets every plugin judge the final object, in order.
    ///
    /// # Errors
    /// The first refusal.
    pub async fn validate(
        &self,
        request: &Request<'_>,
        object: Option<&Value>,
    ) -> Result<(), Status> {
        for plugin in &self.plugins {
            plugin.validate(request, object).await?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::authz::chain::Chain as Authorizers;
    use crate::authz::rbac::Rbac;
    use crate::lookup::testing::Fixed;

    #[test]
    fn the_order_is_upstreams() {
        let lookup: Arc<dyn Lookup> = Fixed::new(&[]);
        let authorizer: Arc<dyn Authorizer> = Arc::new(Authorizers::new(Vec::new()));
        let escalation = Escalation::new(Arc::new(Rbac::new()), Arc::clone(&authorizer));
        assert_eq!(
            Chain::new(&lookup, &authorizer, escalation).names(),
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
                "ResourceQuota",
            ]
        );
    }
}
