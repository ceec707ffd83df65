//! Kinds that the API stores and nothing of this version acts on, and what does not happen.

use crate::object::Gvk;

const CSI: &str = "no storage driver (CSI) is called";
const DEVICES: &str = "devices are neither allocated nor prepared";

/// Group, kind, what does not happen.
const KINDS: &[(&str, &str, &str)] = &[
    ("certificates.k8s.io", "CertificateSigningRequest", "this server runs no signer of that name"),
    (
        "networking.k8s.io",
        "Ingress",
        "no ingress controller is part of this server, and no IngressClass matches",
    ),
    ("resource.k8s.io", "DeviceClass", DEVICES),
    ("resource.k8s.io", "DeviceTaintRule", DEVICES),
    ("resource.k8s.io", "ResourceClaim", DEVICES),
    ("resource.k8s.io", "ResourceClaimTemplate", DEVICES),
    ("resource.k8s.io", "ResourceSlice", DEVICES),
    ("storage.k8s.io", "CSIDriver", CSI),
    ("storage.k8s.io", "CSINode", CSI),
    ("storage.k8s.io", "CSIStorageCapacity", CSI),
    ("storage.k8s.io", "VolumeAttachment", CSI),
    ("storage.k8s.io", "VolumeAttributesClass", CSI),
    ("storagemigration.k8s.io", "StorageVersionMigration", "stored objects are not rewritten"),
];

/// What does not happen to objects of this kind, when nothing acts on them.
pub fn kind(kind: &Gvk) -> Option<&'static str> {
    let found =
        KINDS.iter().find(|(group, name, _)| *group == &*kind.group && *name == &*kind.kind);
    found.map(|(.., why)| *why)
}

/// Group and kind of all of them.
pub fn all() -> impl Iterator<Item = (&'static str, &'static str)> {
    KINDS.iter().map(|(group, kind, _)| (*group, *kind))
}
