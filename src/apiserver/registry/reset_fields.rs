//! The fields that a write through one endpoint of a resource resets (upstream's `GetResetFields`).

use std::sync::LazyLock;

use api::Gvk;
use api::fields::Set;

use super::Resource;

/// Fields that a write of the object resets when it has a `status` subresource.
static STATUS: LazyLock<Set> = LazyLock::new(|| Set::of_fields(&[&["status"]]));
/// What a write of `status` resets.
static SPEC: LazyLock<Set> = LazyLock::new(|| Set::of_fields(&[&["spec"]]));

/// The same where the status is all that may be written.
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
/// What a request for a certificate asks for is owned by no manager.
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
    // These define no reset fields, so other fields that a client sends are owned but not stored.
    let says_none = matches!(subresource, "ephemeralcontainers" | "resize");
    if says_none {
        return None;
    }
    Some(built_in(&row.spec.gvk, subresource))
}

/// What a write of a built-in kind that has a status resets (upstream's `GetResetFields` of each
/// strategy).
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
        | ("resource.k8s.io", "ResourceClaim", "status")
        | ("storage.k8s.io", "CSINode" | "VolumeAttachment", "status") => &METADATA_AND_SPEC,
        (_, _, "status") => &SPEC,
        _ => &STATUS,
    }
}
