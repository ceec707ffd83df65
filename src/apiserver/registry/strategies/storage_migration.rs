//! Rules of the kind of storagemigration.k8s.io (`pkg/registry/storagemigration`).

use api::validation::storage_migration as rules;

use super::super::rules::Rules;

pub(super) const MIGRATION: Rules = Rules {
    status: Some("{}"),
    status_keeps_meta: true,
    unconditional_update: false,
    validate: rules::migration,
    validate_change: rules::migration_change,
    validate_subresource: |_, object, old| rules::migration_status(object, old),
    ..Rules::BASE
};
