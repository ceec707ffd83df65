//! The storage group.

use api::validation::storage as rules;
use api::value::{ensure_object, get, semantic_equal, set};

use super::super::rules::Rules;

pub(super) const STORAGE_CLASS: Rules =
    Rules { validate: rules::class, validate_change: rules::class_change, ..Rules::BASE };

pub(super) const ATTRIBUTES_CLASS: Rules = Rules {
    validate: rules::attributes_class,
    validate_change: rules::attributes_class_change,
    ..Rules::BASE
};

pub(super) const CAPACITY: Rules = Rules {
    unconditional_update: false,
    validate: rules::capacity,
    validate_change: rules::capacity_change,
    ..Rules::BASE
};

pub(super) const CSI_NODE: Rules = Rules {
    validate: rules::node,
    validate_change: rules::node_change,
    validate_subresource: rules::node_status,
    status: Some("{}"),
    status_keeps_meta: true,
    unconditional_update: false,
    ..Rules::BASE
};

pub(super) const VOLUME_ATTACHMENT: Rules = Rules {
    validate: rules::attachment,
    validate_change: rules::attachment_change,
    status: Some(r#"{"attached":false}"#),
    status_keeps_meta: true,
    unconditional_update: false,
    ..Rules::BASE
};

pub(super) const CSI_DRIVER: Rules = Rules {
    validate: rules::driver,
    validate_change: rules::driver_change,
    unconditional_update: false,
    prepare_change: |_, object, old| {
        let (new, was) = (get(object, "spec"), get(old, "spec"));
        let watched = [
            "podInfoOnMount",
            "storageCapacity",
            "tokenRequests",
            "requiresRepublish",
            "seLinuxMount",
            "nodeAllocatableUpdatePeriodSeconds",
            "serviceAccountTokenInSecrets",
            "preventPodSchedulingIfMissing",
        ];
        if watched.iter().any(|key| !semantic_equal(get(new, key), get(was, key))) {
            let generation =
                api::value::int_at(get(old, "metadata"), "generation").unwrap_or_default() + 1;
            if let Some(meta) = ensure_object(object, "metadata") {
                set(meta, "generation", generation);
            }
        }
    },
    ..Rules::BASE
};
