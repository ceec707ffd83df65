//! Owner references and object metadata of untyped objects.

use std::cell::RefCell;
use std::sync::Arc;

use api::Object;
use api::k8s::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use bytes::Bytes;
use serde::Deserialize;

use crate::client::Kind;

#[derive(Deserialize)]
struct OnlyMeta {
    metadata: ObjectMeta,
}

/// Metadata with the bytes and the version of the object that it was decoded from. The kept bytes
/// cannot be freed and replaced by others at the same address.
struct DecodedMeta {
    raw: Bytes,
    version: i64,
    meta: Arc<ObjectMeta>,
}

impl DecodedMeta {
    fn is_of(&self, object: &Object) -> bool {
        let (own, raw) = (&self.raw, object.raw());
        std::ptr::eq(own.as_ptr(), raw.as_ptr())
            && own.len() == raw.len()
            && self.version == object.resource_version
    }
}

thread_local! {
    /// The metadata that this thread decoded last, the newest first. An informer calls its
    /// listeners one after another with the same objects, before and after a change.
    static LAST: RefCell<[Option<DecodedMeta>; 2]> = const { RefCell::new([None, None]) };
}

/// The metadata of an object, without decoding the rest; `None` only for malformed metadata.
pub fn meta(object: &Object) -> Option<Arc<ObjectMeta>> {
    LAST.with_borrow_mut(|last| {
        if let Some(known) = last.iter().flatten().find(|known| known.is_of(object)) {
            return Some(Arc::clone(&known.meta));
        }
        let (raw, version) = (object.raw(), object.resource_version);
        let mut decoded: OnlyMeta = serde_json::from_slice(raw).ok()?;
        decoded.metadata.resource_version = Some(version.to_string());
        let meta = Arc::new(decoded.metadata);
        last.swap(0, 1);
        let newest = DecodedMeta { raw: raw.clone(), version, meta: Arc::clone(&meta) };
        if let Some(place) = last.first_mut() {
            *place = Some(newest);
        }
        Some(meta)
    })
}

/// The owner reference with `controller: true`.
pub fn controller_of(meta: &ObjectMeta) -> Option<&OwnerReference> {
    meta.owner_references.as_deref()?.iter().find(|o| o.controller == Some(true))
}

/// Whether the object's controller has this uid.
pub fn is_controlled_by(meta: &ObjectMeta, uid: &str) -> bool {
    controller_of(meta).is_some_and(|o| o.uid == uid)
}

/// A controller reference to `owner`, with `blockOwnerDeletion`, as upstream's
/// `metav1.NewControllerRef`.
pub fn owner_reference<K: Kind>(owner: &K) -> OwnerReference {
    let meta = owner.metadata();
    OwnerReference {
        api_version: K::API_VERSION.to_owned(),
        kind: K::KIND.to_owned(),
        name: meta.name.clone().unwrap_or_default(),
        uid: meta.uid.clone().unwrap_or_default(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    }
}
