//! The view of the cluster for authentication, authorization and admission: reads of the watch
//! cache and of the store.

#[cfg(feature = "testing")]
pub mod testing;

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use api::{Gvr, Object, Status};
use async_trait::async_trait;
use serde_json::Value;

/// Reads of the watch cache and of the store.
#[async_trait]
pub trait Lookup: Send + Sync {
    /// One object from the cache; `namespace` is empty for cluster-scoped kinds. `None` when the
    /// object does not exist or the resource is not served.
    ///
    /// # Errors
    /// When neither the cache nor the store can be read, or the object in the store cannot be read:
    /// it may exist.
    async fn get(
        &self,
        gvr: &Gvr,
        namespace: &str,
        name: &str,
    ) -> Result<Option<Arc<Object>>, Status>;

    /// One object as the store has it now, for answers that must not be stale (a missing namespace
    /// or service account).
    ///
    /// # Errors
    /// As [`Lookup::get`].
    async fn get_live(
        &self,
        gvr: &Gvr,
        namespace: &str,
        name: &str,
    ) -> Result<Option<Arc<Object>>, Status>;

    /// One object from the cache, or from the store when the cache does not have it, because it may
    /// have been created a moment ago.
    ///
    /// # Errors
    /// As [`Lookup::get`].
    async fn find(
        &self,
        gvr: &Gvr,
        namespace: &str,
        name: &str,
    ) -> Result<Option<Arc<Object>>, Status> {
        match self.get(gvr, namespace, name).await? {
            Some(found) => Ok(Some(found)),
            None => self.get_live(gvr, namespace, name).await,
        }
    }

    /// As [`Lookup::get_live`], waiting up to `patience` for an object that a controller is about
    /// to create.
    ///
    /// # Errors
    /// As [`Lookup::get`], at once.
    async fn wait_for(
        &self,
        gvr: &Gvr,
        namespace: &str,
        name: &str,
        patience: Duration,
    ) -> Result<Option<Arc<Object>>, Status> {
        let deadline = base::clock::now() + patience;
        let mut backoff = base::Backoff::new(Duration::from_millis(5), Duration::from_millis(200));
        loop {
            let found = self.get_live(gvr, namespace, name).await?;
            if found.is_some() || base::clock::now() >= deadline {
                return Ok(found);
            }
            base::clock::sleep(backoff.next_delay()).await;
        }
    }

    /// All objects of one namespace; of all namespaces when `namespace` is empty.
    ///
    /// # Errors
    /// When the cache does not load, or an object in the store cannot be read: a shorter list would
    /// limit less.
    async fn list(&self, gvr: &Gvr, namespace: &str) -> Result<Vec<Arc<Object>>, Status>;

    /// Pods with this `spec.nodeName`, by the cache's index.
    ///
    /// # Errors
    /// As [`Lookup::list`].
    async fn pods_on_node(&self, node: &str) -> Result<Vec<Arc<Object>>, Status>;
}

/// The value of an object that was looked up.
///
/// # Errors
/// When the stored value is not JSON.
pub fn value(found: Option<Arc<Object>>) -> Result<Option<Value>, Status> {
    let value = found.map(|object| object.value()).transpose();
    value.map_err(|error| Status::internal(&error.to_string()))
}

macro_rules! resources {
    ($($name:ident = $group:literal, $version:literal, $resource:literal;)*) => {
        $(
            #[doc = concat!("`", $resource, "` of group `", $group, "`.")]
            pub static $name: LazyLock<Gvr> =
                LazyLock::new(|| Gvr::new($group, $version, $resource));
        )*
    };
}

resources! {
    NAMESPACES = "", "v1", "namespaces";
    NODES = "", "v1", "nodes";
    PODS = "", "v1", "pods";
    SECRETS = "", "v1", "secrets";
    CONFIG_MAPS = "", "v1", "configmaps";
    SERVICE_ACCOUNTS = "", "v1", "serviceaccounts";
    SERVICES = "", "v1", "services";
    ENDPOINT_SLICES = "discovery.k8s.io", "v1", "endpointslices";
    LIMIT_RANGES = "", "v1", "limitranges";
    RESOURCE_QUOTAS = "", "v1", "resourcequotas";
    PERSISTENT_VOLUMES = "", "v1", "persistentvolumes";
    PERSISTENT_VOLUME_CLAIMS = "", "v1", "persistentvolumeclaims";
    STORAGE_CLASSES = "storage.k8s.io", "v1", "storageclasses";
    VOLUME_ATTACHMENTS = "storage.k8s.io", "v1", "volumeattachments";
    RUNTIME_CLASSES = "node.k8s.io", "v1", "runtimeclasses";
    INGRESSES = "networking.k8s.io", "v1", "ingresses";
    INGRESS_CLASSES = "networking.k8s.io", "v1", "ingressclasses";
    PRIORITY_CLASSES = "scheduling.k8s.io", "v1", "priorityclasses";
    CSI_DRIVERS = "storage.k8s.io", "v1", "csidrivers";
    POD_CERTIFICATE_REQUESTS = "certificates.k8s.io", "v1", "podcertificaterequests";
    DEVICE_CLASSES = "resource.k8s.io", "v1", "deviceclasses";
    RESOURCE_CLAIMS = "resource.k8s.io", "v1", "resourceclaims";
    RESOURCE_SLICES = "resource.k8s.io", "v1", "resourceslices";
    MUTATING_WEBHOOK_CONFIGURATIONS = "admissionregistration.k8s.io", "v1", "mutatingwebhookconfigurations";
    VALIDATING_WEBHOOK_CONFIGURATIONS = "admissionregistration.k8s.io", "v1", "validatingwebhookconfigurations";
    MUTATING_POLICIES = "admissionregistration.k8s.io", "v1", "mutatingadmissionpolicies";
    MUTATING_POLICY_BINDINGS = "admissionregistration.k8s.io", "v1", "mutatingadmissionpolicybindings";
    VALIDATING_POLICIES = "admissionregistration.k8s.io", "v1", "validatingadmissionpolicies";
    VALIDATING_POLICY_BINDINGS = "admissionregistration.k8s.io", "v1", "validatingadmissionpolicybindings";
    API_SERVICES = "apiregistration.k8s.io", "v1", "apiservices";
    CLUSTER_ROLES = "rbac.authorization.k8s.io", "v1", "clusterroles";
    CLUSTER_ROLE_BINDINGS = "rbac.authorization.k8s.io", "v1", "clusterrolebindings";
    ROLES = "rbac.authorization.k8s.io", "v1", "roles";
    ROLE_BINDINGS = "rbac.authorization.k8s.io", "v1", "rolebindings";
}
