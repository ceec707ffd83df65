//! Controllers of service accounts, tokens, certificates and cluster roles.

pub(crate) mod bootstrap_signer;
pub(crate) mod bootstrap_token_cleaner;
pub(crate) mod certificate_requests;
pub(crate) mod cluster_role_aggregation;
pub(crate) mod legacy_token_cleaner;
pub mod legacy_token_tracking;
pub(crate) mod metrics;
pub(crate) mod pod_certificate_cleaner;
pub(crate) mod root_ca_publisher;
pub(crate) mod service_account;
pub(crate) mod service_account_tokens;
pub(crate) mod serving_trust_bundle_publisher;
