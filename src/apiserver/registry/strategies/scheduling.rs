//! Rules of the kinds of coordination.k8s.io, node.k8s.io and scheduling.k8s.io.

use api::validation::{small_kinds as small, warnings};
use api::value::{get, object_mut, remove};
use serde_json::Value;

use crate::registry::rules::Rules;

pub(super) const LEASE: Rules = Rules {
    prepare: |_, object| drop_coordination(object, &Value::Null),
    prepare_change: |_, object, old| drop_coordination(object, get(old, "spec")),
    create_on_update: true,
    unconditional_update: false,
    validate: small::lease,
    validate_change: |new, _| small::lease(new),
    ..Rules::BASE
};

/// Drops the fields of coordinated leader election, which is off in 1.37, unless the old object has
/// them.
fn drop_coordination(lease: &mut Value, old: &Value) {
    if let Some(spec) = object_mut(lease, "spec") {
        for key in ["strategy", "preferredHolder"] {
            if old.get(key).is_none() {
                remove(spec, key);
            }
        }
    }
}

pub(super) const RUNTIME_CLASS: Rules = Rules {
    warnings: warnings::runtime_class,
    create_on_update: true,
    unconditional_update: false,
    validate: small::runtime_class,
    validate_change: small::runtime_class_change,
    ..Rules::BASE
};

pub(super) const PRIORITY_CLASS: Rules = Rules {
    generation: &[""],
    validate: small::priority_class,
    validate_change: small::priority_class_change,
    ..Rules::BASE
};
