//! Adoption and release: which objects a controller with a selector owns.

use api::k8s::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use client::{Client, Error, Kind, Patch, controller_of, gvr_of};
use serde_json::json;

/// What to do with one candidate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ClaimDecision {
    /// The owner controls it already.
    Own,
    /// It matches and has no controller: set the controller reference.
    Adopt,
    /// The owner controls it, but it no longer matches: remove the controller reference.
    Release,
    /// It does not concern the owner.
    Ignore,
}

/// Decides as upstream's `BaseControllerRefManager.ClaimObject`.
pub(crate) fn decide(
    object: &ObjectMeta,
    owner_uid: &str,
    matches: bool,
    owner_deleting: bool,
) -> ClaimDecision {
    match controller_of(object) {
        Some(owner) if owner.uid != owner_uid => ClaimDecision::Ignore,
        Some(_) if matches => ClaimDecision::Own,
        Some(_) if owner_deleting => ClaimDecision::Ignore,
        Some(_) => ClaimDecision::Release,
        None if owner_deleting || !matches || object.deletion_timestamp.is_some() => {
            ClaimDecision::Ignore
        }
        None => ClaimDecision::Adopt,
    }
}

/// Sets the controller reference of an orphan. `NotFound` means that it has been deleted.
pub(crate) async fn adopt<K: Kind>(
    client: &Client,
    object: &ObjectMeta,
    owner: &OwnerReference,
) -> Result<K, Error> {
    let patch = json!({"metadata": {"ownerReferences": [owner], "uid": object.uid}});
    patch_owned(client, object, &patch).await
}

/// Removes our reference. `NotFound` and `Invalid` (another uid) mean there is nothing left to do.
pub(crate) async fn release<K: Kind>(
    client: &Client,
    object: &ObjectMeta,
    owner_uid: &str,
) -> Result<(), Error> {
    let patch = json!({"metadata": {"ownerReferences": [{"$patch": "delete", "uid": owner_uid}],
        "uid": object.uid}});
    match patch_owned::<K>(client, object, &patch).await {
        Err(error) if error.is_not_found() || error.is_invalid() => Ok(()),
        other => other.map(drop),
    }
}

async fn patch_owned<K: Kind>(
    client: &Client,
    object: &ObjectMeta,
    patch: &serde_json::Value,
) -> Result<K, Error> {
    let (namespace, name) = (
        object.namespace.as_deref().unwrap_or_default(),
        object.name.as_deref().unwrap_or_default(),
    );
    let value =
        client.patch_value(&gvr_of::<K>(), namespace, name, "", &Patch::Strategic(patch)).await?;
    Ok(K::from_value(&value)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owned_by(uid: Option<&str>) -> ObjectMeta {
        let reference = |uid: &str| OwnerReference {
            uid: uid.into(),
            controller: Some(true),
            ..OwnerReference::default()
        };
        ObjectMeta { owner_references: uid.map(|u| vec![reference(u)]), ..ObjectMeta::default() }
    }

    #[test]
    fn claims_follow_owner_and_selector() {
        for (owner, matches, deleting, want) in [
            (Some("me"), true, false, ClaimDecision::Own),
            (Some("me"), false, false, ClaimDecision::Release),
            (Some("me"), false, true, ClaimDecision::Ignore),
            (Some("other"), true, false, ClaimDecision::Ignore),
            (None, true, false, ClaimDecision::Adopt),
            (None, false, false, ClaimDecision::Ignore),
            (None, true, true, ClaimDecision::Ignore),
        ] {
            assert_eq!(
                decide(&owned_by(owner), "me", matches, deleting),
                want,
                "{owner:?} {matches} {deleting}"
            );
        }
    }
}
