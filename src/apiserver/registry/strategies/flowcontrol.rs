//! Rules of the kinds of flowcontrol.apiserver.k8s.io.

use api::validation::flow;

use crate::registry::rules::Rules;

pub(super) const FLOW: Rules = Rules {
    status: Some("{}"),
    generation: &["spec"],
    status_keeps_meta: true,
    validate_subresource: flow::status,
    ..Rules::BASE
};

pub(super) const FLOW_SCHEMA: Rules =
    Rules { validate: flow::schema, validate_change: |new, _| flow::schema(new), ..FLOW };

pub(super) const PRIORITY_LEVEL: Rules = Rules {
    validate: flow::priority_level,
    validate_change: |new, _| flow::priority_level(new),
    ..FLOW
};
