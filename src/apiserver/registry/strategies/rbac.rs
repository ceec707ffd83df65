//! Rules of the kinds of rbac.authorization.k8s.io.

use api::validation::names::name_is_path_segment;
use api::validation::rbac;

use crate::registry::rules::Rules;

const RBAC: Rules = Rules { name: name_is_path_segment, create_on_update: true, ..Rules::BASE };

pub(super) const ROLE: Rules =
    Rules { validate: rbac::role, validate_change: |new, _| rbac::role(new), ..RBAC };

pub(super) const CLUSTER_ROLE: Rules = Rules {
    validate: rbac::cluster_role,
    validate_change: |new, _| rbac::cluster_role(new),
    ..RBAC
};

pub(super) const ROLE_BINDING: Rules =
    Rules { validate: rbac::role_binding, validate_change: rbac::role_binding_change, ..RBAC };

pub(super) const CLUSTER_ROLE_BINDING: Rules = Rules {
    validate: rbac::cluster_role_binding,
    validate_change: rbac::cluster_role_binding_change,
    ..RBAC
};
