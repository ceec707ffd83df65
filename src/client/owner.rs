//! Owner references and object metadata of untyped objects.

use api::Object;
use api::k8s::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use serde::Deserialize;

use crate::client::Kind;

#[derive(Deserialize)]
struct OnlyMeta {
    metadata: ObjectMeta,
}

/// The metadata of an object, without decoding the rest; `None` only for malformed metadata.
pub fn meta(object: &Object) -> Option<ObjectMeta> {
    let mut decoded: OnlyMeta = serde_json::from_slice(object.raw()).ok()?;
    decoded.metadata.resource_version = Some(object.resource_version.to_string());
    Some(decoded.metadata)
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
