//! Controllers of quotas, disruption budgets and admission policies.

pub(crate) mod disruption;
pub(crate) mod resource_quota;
pub(crate) mod validating_admission_policy_status;
