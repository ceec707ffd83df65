//! The fields that a write through one endpoint of a resource resets (upstream's `GetResetFields`).

use std::sync::LazyLock;

use api::Gvk;
use api::fields::Set;

use super::Resource;

/// Fields that a write of the object resets when it has a `status` subresource.
static STATUS: LazyLock<Set> = LazyLock::new(|| Set::of_fields(&[&["status"]]));
/// Fields that a write of `status` resets.
static SPEC: LazyLock<Set> = LazyLock::new(|| Set::of_fields(&[&["spec"]]));

/// Fields that a write of `status` resets when it cannot change the metadata either.
static METADATA_AND_SPEC: LazyLock<Set> =
    LazyLock::new(|| Set::of_fields(&[&["metadata"], &["spec"]]));
static POD_STATUS: LazyLock<Set> = LazyLock::new(|| {
    Set::of_fields(&[
        &["spec"],
        &["metadata", "deletionTimestamp"],
        &["metadata", "ownerReferences"],
    ])
});
static DEPLOYMENT_STATUS: LazyLock<Set> =
    LazyLock::new(|| Set::of_fields(&[&["spec"], &["metadata", "labels"]]));
/// Fields that a write of a certificate request resets: no manager owns spec and status.
static REQUEST: LazyLock<Set> = LazyLock::new(|| Set::of_fields(&[&["spec"], &["status"]]));
static REQUEST_STATUS: LazyLock<Set> =
    LazyLock::new(|| Set::of_fields(&[&["spec"], &["status", "conditions"]]));
static REQUEST_APPROVAL: LazyLock<Set> =
    LazyLock::new(|| Set::of_fields(&[&["spec"], &["status", "certificate"]]));

/// Fields that a write resets and its manager therefore cannot own.
pub(crate) fn of(row: &Resource, subresource: &str) -> Option<&'static Set> {
    if let Some(custom) = &row.spec.custom {
        return custom.reset(subresource);
    }
    row.subresource("status")?;
    // Upstream defines no reset fields for these, so that a manager owns other fields that it
    // sends, although they are not stored.
    let has_none = matches!(subresource, "ephemeralcontainers" | "resize");
    if has_none {
        return None;
    }
    Some(built_in(&row.spec.gvk, subresource))
}

/// Fields that a write of a built-in kind with a status resets (`GetResetFields` of its strategy).
pub(crate) fn built_in(kind: &Gvk, subresource: &str) -> &'static Set {
    match (&*kind.group, &*kind.kind, subresource) {
        ("certificates.k8s.io", "CertificateSigningRequest", "status") => &REQUEST_STATUS,
        ("certificates.k8s.io", "CertificateSigningRequest", "approval") => &REQUEST_APPROVAL,
        ("certificates.k8s.io", "CertificateSigningRequest", _) => &REQUEST,
        ("", "Pod", "status") => &POD_STATUS,
        ("apps", "Deployment", "status") => &DEPLOYMENT_STATUS,
        (
            "flowcontrol.apiserver.k8s.io" | "apiextensions.k8s.io" | "apiregistration.k8s.io",
            _,
            "status",
        )
        | ("certificates.k8s.io", "PodCertificateRequest", "status")
        | ("admissionregistration.k8s.io", "ValidatingAdmissionPolicy", "status")
        | ("networking.k8s.io", "ServiceCIDR", "status")
        | ("resource.k8s.io", "ResourceClaim" | "DeviceTaintRule", "status")
        | ("storage.k8s.io", "CSINode" | "VolumeAttachment", "status") => &METADATA_AND_SPEC,
        (_, _, "status") => &SPEC,
        _ => &STATUS,
    }
}
