//! Kinds that the API server stores but no component of this version implements, with the missing
//! effect.

use crate::object::Gvk;

const CLUSTER_POLICIES: &str = "only NetworkPolicies of networking.k8s.io are enforced";

/// The group, the kind and the missing effect.
const KINDS: &[(&str, &str, &str)] = &[
    ("certificates.k8s.io", "CertificateSigningRequest", "this server runs no signer of that name"),
    ("networking.k8s.io", "Ingress", "no IngressClass matches it, so that no controller serves it"),
];

/// As [`KINDS`], for kinds that are served once their CustomResourceDefinitions are installed.
const CUSTOM_KINDS: &[(&str, &str, &str)] = &[
    ("policy.networking.k8s.io", "AdminNetworkPolicy", CLUSTER_POLICIES),
    ("policy.networking.k8s.io", "BaselineAdminNetworkPolicy", CLUSTER_POLICIES),
    ("policy.networking.k8s.io", "ClusterNetworkPolicy", CLUSTER_POLICIES),
];

/// Returns the missing effect for a kind that no component implements.
pub fn kind(kind: &Gvk) -> Option<&'static str> {
    let mut rows = KINDS.iter().chain(CUSTOM_KINDS);
    let found = rows.find(|(group, name, _)| *group == &*kind.group && *name == &*kind.kind);
    found.map(|(.., why)| *why)
}

/// Returns the group and the kind of every row whose kind is served from the start.
pub fn all() -> impl Iterator<Item = (&'static str, &'static str)> {
    KINDS.iter().map(|(group, kind, _)| (*group, *kind))
}
