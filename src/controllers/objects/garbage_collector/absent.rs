//! Owners that were deleted lately, for references whose kind is no longer served.

use std::collections::VecDeque;

use api::k8s::apimachinery::pkg::apis::meta::v1::OwnerReference;

/// Size of upstream's cache of absent owners.
const ABSENT_MAX: usize = 500;

/// The whole identity of a deleted owner: a uid alone does not tell which of several references
/// meant it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct AbsentOwner {
    pub(super) group: String,
    pub(super) kind: String,
    /// Empty for a cluster-scoped owner.
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) uid: String,
}

/// The last deleted owners.
#[derive(Debug, Default)]
pub(super) struct AbsentOwners(VecDeque<AbsentOwner>);

impl AbsentOwners {
    pub(super) fn add(&mut self, owner: AbsentOwner) {
        if self.0.contains(&owner) {
            return;
        }
        if self.0.len() == ABSENT_MAX {
            self.0.pop_front();
        }
        self.0.push_back(owner);
    }

    /// The owner that a dependent in `namespace` names was deleted.
    pub(super) fn contains(&self, owner: &OwnerReference, namespace: &str) -> bool {
        let group = owner.api_version.split_once('/').map_or("", |(group, _)| group);
        self.0.iter().any(|a| {
            a.uid == owner.uid
                && a.name == owner.name
                && a.kind == owner.kind
                && a.group == group
                && (a.namespace.is_empty() || a.namespace == namespace)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_whole_identity_is_absent_and_old_ones_are_forgotten() {
        let absent = |uid: &str, namespace: &str| AbsentOwner {
            group: "g".into(),
            kind: "K".into(),
            namespace: namespace.into(),
            name: "o".into(),
            uid: uid.into(),
        };
        let owner = |uid: &str, kind: &str| OwnerReference {
            api_version: "g/v1".into(),
            kind: kind.into(),
            name: "o".into(),
            uid: uid.into(),
            ..OwnerReference::default()
        };
        let mut owners = AbsentOwners::default();
        owners.add(absent("u", "a"));
        owners.add(absent("cluster", ""));
        assert!(owners.contains(&owner("u", "K"), "a"));
        assert!(!owners.contains(&owner("u", "K"), "b"), "another namespace");
        assert!(!owners.contains(&owner("u", "L"), "a"), "another kind");
        assert!(owners.contains(&owner("cluster", "K"), "b"));
        for n in 0..ABSENT_MAX {
            owners.add(absent(&n.to_string(), "a"));
        }
        assert!(!owners.contains(&owner("u", "K"), "a"));
        assert_eq!(owners.0.len(), ABSENT_MAX);
    }
}
