//! Credentials that pods mount: service account tokens, trust bundles and pod certificates.

pub(crate) mod pod_certificates;
pub(crate) mod tokens;
pub(crate) mod trust_bundles;
