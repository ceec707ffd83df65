//! Controllers of claims, volumes and their protection.

pub(crate) mod attach_detach;
pub(crate) mod ephemeral_volume;
pub(crate) mod expand;
pub(crate) mod local_driver;
pub(crate) mod local_path_provisioner;
pub(crate) mod metrics;
pub(crate) mod persistent_volume;
pub(crate) mod pod_claims;
mod provisioning;
pub(crate) mod volume_attributes_class_protection;
pub(crate) mod volume_protection;
