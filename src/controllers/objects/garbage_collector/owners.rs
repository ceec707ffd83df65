//! Owner references: where the owner can be, and the text about one that cannot be an owner. Pure.

use api::Gvr;
use api::k8s::apimachinery::pkg::apis::meta::v1::OwnerReference;

use crate::framework::served_resources::ResourcesByKind;

/// The owners of one object by their state.
#[derive(Debug, Default)]
pub(super) struct Classified {
    /// They exist.
    pub(super) solid: Vec<OwnerReference>,
    /// They do not exist.
    pub(super) dangling: Vec<OwnerReference>,
    /// They are being deleted in the foreground and wait for their dependents.
    pub(super) waiting: Vec<OwnerReference>,
}

/// Where the owner that a reference names can be.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum OwnerLocation {
    /// In this namespace, which is empty for a cluster-scoped kind.
    In(Gvr, String),
    /// No served API has the kind, so whether the owner exists cannot be decided.
    UnservedKind,
    /// The dependent is cluster-scoped and the owner is not: the reference does not name a
    /// namespace.
    NamespacedOwnerOfClusterScoped,
}

/// The owner of a dependent in `namespace`.
pub(super) fn owner_location(
    kinds: &ResourcesByKind,
    owner: &OwnerReference,
    namespace: &str,
) -> OwnerLocation {
    let group = owner.api_version.split_once('/').map_or("", |(group, _)| group).to_owned();
    match kinds.get(&(group, owner.kind.clone())) {
        None => OwnerLocation::UnservedKind,
        Some((_, true)) if namespace.is_empty() => OwnerLocation::NamespacedOwnerOfClusterScoped,
        Some((gvr, true)) => OwnerLocation::In(gvr.clone(), namespace.to_owned()),
        Some((gvr, false)) => OwnerLocation::In(gvr.clone(), String::new()),
    }
}

/// Message of the event `OwnerRefInvalidNamespace`.
pub(super) fn invalid_namespace(owner: &OwnerReference, namespace: &str) -> String {
    let OwnerReference { api_version, kind, name, uid, .. } = owner;
    let owner = format!("[{api_version}/{kind}, namespace: {namespace}, name: {name}, uid: {uid}]");
    format!("ownerRef {owner} does not exist in namespace {namespace:?}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner(api_version: &str, kind: &str) -> OwnerReference {
        OwnerReference {
            api_version: api_version.into(),
            kind: kind.into(),
            name: "o".into(),
            uid: "u".into(),
            ..OwnerReference::default()
        }
    }

    #[test]
    fn an_owner_is_looked_up_in_the_scope_of_its_kind() {
        let (maps, nodes) = (Gvr::new("", "v1", "configmaps"), Gvr::new("", "v1", "nodes"));
        let kinds = ResourcesByKind::from([
            ((String::new(), "ConfigMap".to_owned()), (maps.clone(), true)),
            ((String::new(), "Node".to_owned()), (nodes.clone(), false)),
        ]);
        let find =
            |kind: &str, namespace: &str| owner_location(&kinds, &owner("v1", kind), namespace);
        assert_eq!(find("ConfigMap", "a"), OwnerLocation::In(maps, "a".into()));
        assert_eq!(find("Node", "a"), OwnerLocation::In(nodes.clone(), String::new()));
        assert_eq!(find("Node", ""), OwnerLocation::In(nodes, String::new()));
        assert_eq!(find("ConfigMap", ""), OwnerLocation::NamespacedOwnerOfClusterScoped);
        let foreign = owner("example.com/v1", "ConfigMap");
        assert_eq!(owner_location(&kinds, &foreign, "a"), OwnerLocation::UnservedKind);
    }

    #[test]
    fn the_event_names_the_reference_and_the_namespace_of_the_dependent() {
        assert_eq!(
            invalid_namespace(&owner("apps/v1", "Deployment"), "b"),
            "ownerRef [apps/v1/Deployment, namespace: b, name: o, uid: u] does not exist in \
                namespace \"b\""
        );
    }
}
