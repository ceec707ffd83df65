//! Rules of the kinds of admissionregistration.k8s.io.

use api::validation::admission;

use crate::registry::rules::Rules;

pub(super) const WEBHOOKS: Rules = Rules {
    generation: &["webhooks"],
    unconditional_update: false,
    validate: admission::webhooks,
    validate_change: admission::webhooks_change,
    ..Rules::BASE
};

pub(super) const POLICY: Rules =
    Rules { generation: &["spec"], unconditional_update: false, ..Rules::BASE };

pub(super) const POLICY_WITH_STATUS: Rules = Rules {
    validate: admission::validating_policy,
    validate_change: admission::validating_policy_change,
    validate_subresource: admission::validating_policy_status,
    status: Some("{}"),
    generation: &["spec"],
    status_keeps_meta: true,
    unconditional_update: false,
    ..Rules::BASE
};

pub(super) const MUTATING_POLICY: Rules = Rules {
    validate: admission::mutating_policy,
    validate_change: admission::mutating_policy_change,
    ..POLICY
};

pub(super) const MUTATING_BINDING: Rules = Rules {
    validate: admission::mutating_binding,
    validate_change: |new, _| admission::mutating_binding(new),
    ..POLICY
};

pub(super) const VALIDATING_BINDING: Rules = Rules {
    validate: admission::validating_binding,
    validate_change: |new, _| admission::validating_binding(new),
    ..POLICY
};
