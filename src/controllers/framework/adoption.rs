//! The children of an owner with a selector: finds them through indexes, adopts and releases them,
//! and maps a changed child to its owners.

use std::borrow::Borrow;
use std::sync::Arc;

use api::Object;
use api::k8s::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use client::{Change, Client, Error, Informer, Kind, controller_of, meta, owner_reference};
use sorting::CompactSort as _;

use crate::framework::controller_ref;
use crate::framework::controller_ref::ClaimDecision;
use crate::framework::keyed::Key;

/// Index of objects by the uid of their controller.
pub(crate) const BY_CONTROLLER: &str = "controller-uid";
/// Index of objects without a controller, by namespace.
const ORPHANS: &str = "orphans";

/// The uid of an object's controller, for [`BY_CONTROLLER`].
pub(crate) fn controller_uid(object: &Object) -> Vec<String> {
    meta(object).as_deref().and_then(controller_of).map(|o| o.uid.clone()).into_iter().collect()
}

fn orphan_of(object: &Object) -> Vec<String> {
    let orphan = meta(object).is_some_and(|m| controller_of(&m).is_none());
    if orphan { vec![object.key.namespace.to_string()] } else { Vec::new() }
}

/// Declares the indexes that [`claim_all`] reads.
pub(crate) fn index<C>(children: &Informer<C>) {
    children.add_index(BY_CONTROLLER, controller_uid);
    children.add_index(ORPHANS, orphan_of);
}

/// The owner's children, after adopting matching orphans (those that `adoptable` accepts) and
/// releasing what matches no longer. Sorted by name.
///
/// # Errors
/// The server's refusal of an adoption or release.
pub(crate) async fn claim_all<O: Kind, C: Kind>(
    client: &Client,
    owner: &O,
    children: &Informer<C>,
    matches: impl Fn(&ObjectMeta) -> bool,
    adoptable: impl Fn(&C) -> bool,
) -> Result<Vec<C>, Error> {
    let candidates = candidates(children, owner.metadata());
    let candidates = candidates.iter().filter_map(|object| client::informer::decode(object));
    claim(client, owner, candidates.collect(), matches, adoptable).await
}

/// The children of an owner and those without a controller in its namespace, of which [`claim`]
/// takes its own.
pub(crate) fn candidates<C>(children: &Informer<C>, owner: &ObjectMeta) -> Vec<Arc<Object>> {
    let cache = children.cache();
    let mut found = cache.by_index(BY_CONTROLLER, owner.uid.as_deref().unwrap_or_default());
    found.extend(cache.by_index(ORPHANS, owner.namespace.as_deref().unwrap_or_default()));
    found
}

/// As [`claim_all`] for candidates that the caller has decoded: at least their names, labels and
/// owners.
///
/// # Errors
/// As [`claim_all`].
pub(crate) async fn claim<O: Kind, C: Kind, D: Borrow<C> + From<C>>(
    client: &Client,
    owner: &O,
    candidates: Vec<D>,
    matches: impl Fn(&ObjectMeta) -> bool,
    adoptable: impl Fn(&C) -> bool,
) -> Result<Vec<D>, Error> {
    let owner_meta = owner.metadata();
    let uid = owner_meta.uid.as_deref().unwrap_or_default();
    let deleting = owner_meta.deletion_timestamp.is_some();
    let mut claimed = Vec::new();
    let mut owner_is_there: Option<bool> = None;
    for child in candidates {
        let child_meta = child.borrow().metadata();
        match controller_ref::decide(child_meta, uid, matches(child_meta), deleting) {
            ClaimDecision::Own => claimed.push(child),
            ClaimDecision::Release => controller_ref::release::<C>(client, child_meta, uid).await?,
            ClaimDecision::Adopt if adoptable(child.borrow()) => {
                // The cache may be old: adopt only for an owner that is really there.
                if owner_is_there.is_none() {
                    let name = owner_meta.name.as_deref().unwrap_or_default();
                    let namespace = owner_meta.namespace.as_deref().unwrap_or_default();
                    let fresh: O = client.get(namespace, name).await?;
                    let fresh = fresh.metadata();
                    owner_is_there =
                        Some(fresh.uid == owner_meta.uid && fresh.deletion_timestamp.is_none());
                }
                if owner_is_there != Some(true) {
                    continue;
                }
                match controller_ref::adopt::<C>(client, child_meta, &owner_reference(owner)).await
                {
                    Ok(adopted) => claimed.push(adopted.into()),
                    Err(error) if error.is_not_found() || error.is_invalid() => {}
                    Err(error) => return Err(error),
                }
            }
            ClaimDecision::Adopt | ClaimDecision::Ignore => {}
        }
    }
    claimed.compact_sort_by(|a: &D, b| a.borrow().metadata().name.cmp(&b.borrow().metadata().name));
    Ok(claimed)
}

/// The owners that a child's change concerns: its controller, the one before, or, for an orphan,
/// all that match it.
pub(crate) fn owners_of<O: Kind>(
    change: &Change,
    owners: &Informer<O>,
    matches: impl Fn(&O, &ObjectMeta) -> bool,
) -> Vec<Key> {
    let object = change.object();
    let Some(child) = meta(object) else { return Vec::new() };
    let namespace = object.key.namespace.to_string();
    let mut keys = Vec::new();
    if let Some(owner) = controller_of(&child) {
        if owner.kind == O::KIND && owner.api_version == O::API_VERSION {
            keys.push((namespace.clone(), owner.name.clone()));
        }
    } else if !matches!(change, Change::Deleted(_)) {
        for owner in owners.list(&namespace) {
            if matches(&owner, &child) {
                keys.push((namespace.clone(), owner.metadata().name.clone().unwrap_or_default()));
            }
        }
    }
    if let Change::Updated { old, .. } = change {
        let before = meta(old);
        let before = before.as_deref().and_then(controller_of).filter(|o| o.kind == O::KIND);
        if let Some(before) =
            before.filter(|o| controller_of(&child).is_none_or(|now| now.uid != o.uid))
        {
            keys.push((namespace, before.name.clone()));
        }
    }
    keys
}
