//! Controllers of service accounts, tokens, certificates and cluster roles.

pub(crate) mod bootstrap_token_cleaner;
pub(crate) mod certificate_requests;
pub(crate) mod cluster_role_aggregation;
pub(crate) mod pod_certificate_cleaner;
pub(crate) mod root_ca_publisher;
pub(crate) mod service_account;
pub(crate) mod service_account_tokens;
