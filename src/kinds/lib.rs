//! Typed objects of the kinds that this process itself reads and writes: the code that decodes and
//! encodes one exists once.
//!
//! Generic code is compiled in each crate that uses it, and that of a pod's fields is large: with
//! decoding by `serde` alone, controllers, scheduler, node and network had a copy each, a tenth of
//! the program.

use k8s_openapi::api::{
    admissionregistration, apps, autoscaling, batch, certificates, coordination, core, discovery,
    networking, node, policy, rbac, resource, storage,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::{Error, Value};

/// A struct whose JSON is decoded and encoded by code in this crate, not in the crate that uses it.
pub trait Typed: Sized {
    /// From JSON.
    ///
    /// # Errors
    /// When it is no JSON, or a field has another type than the struct's.
    fn from_json(json: &[u8]) -> Result<Self, Error>;

    /// As JSON.
    ///
    /// # Errors
    /// When a map's key is no text.
    fn to_json(&self) -> Result<Vec<u8>, Error>;

    /// From a value, by way of its text.
    ///
    /// # Errors
    /// When a field has another type than the struct's.
    fn from_value(value: &Value) -> Result<Self, Error> {
        Self::from_json(&serde_json::to_vec(value)?)
    }

    /// As a value, by way of its text.
    ///
    /// # Errors
    /// When a map's key is no text.
    fn to_value(&self) -> Result<Value, Error> {
        serde_json::from_slice(&self.to_json()?)
    }
}

macro_rules! typed {
    ($($kind:ty),* $(,)?) => {$(
        impl Typed for $kind {
            fn from_json(json: &[u8]) -> Result<Self, Error> {
                serde_json::from_slice(json)
            }

            fn to_json(&self) -> Result<Vec<u8>, Error> {
                serde_json::to_vec(self)
            }
        }
    )*};
}

typed!(
    ObjectMeta,
    admissionregistration::v1::ValidatingAdmissionPolicy,
    apps::v1::ControllerRevision,
    apps::v1::DaemonSet,
    apps::v1::Deployment,
    apps::v1::ReplicaSet,
    apps::v1::StatefulSet,
    autoscaling::v2::HorizontalPodAutoscaler,
    batch::v1::CronJob,
    batch::v1::Job,
    certificates::v1::CertificateSigningRequest,
    certificates::v1::PodCertificateRequest,
    coordination::v1::Lease,
    core::v1::ConfigMap,
    core::v1::Endpoints,
    core::v1::Event,
    core::v1::LimitRange,
    core::v1::Namespace,
    core::v1::Node,
    core::v1::PersistentVolume,
    core::v1::PersistentVolumeClaim,
    core::v1::Pod,
    core::v1::PodSpec,
    core::v1::PodStatus,
    core::v1::PodTemplateSpec,
    core::v1::ReplicationController,
    core::v1::ResourceQuota,
    core::v1::Secret,
    core::v1::Service,
    core::v1::ServiceAccount,
    discovery::v1::EndpointSlice,
    node::v1::RuntimeClass,
    networking::v1::Ingress,
    networking::v1::IngressClass,
    networking::v1::IPAddress,
    networking::v1::ServiceCIDR,
    policy::v1::PodDisruptionBudget,
    rbac::v1::ClusterRole,
    resource::v1::DeviceClass,
    resource::v1::DeviceTaintRule,
    resource::v1::ResourceClaim,
    resource::v1::ResourceClaimTemplate,
    resource::v1::ResourceSlice,
    storage::v1::CSIDriver,
    storage::v1::CSINode,
    storage::v1::CSIStorageCapacity,
    storage::v1::StorageClass,
    storage::v1::VolumeAttachment,
    storage::v1::VolumeAttributesClass,
);
