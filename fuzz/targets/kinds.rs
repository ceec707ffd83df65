//! What several fuzzers share: the built-in types, and JSON texts that stand one after the other.

use std::sync::{Arc, LazyLock};

use api::Gvk;
use api::schema::{Schema, TypeId};
use serde_json::Value;

pub static SCHEMA: LazyLock<Arc<Schema>> = LazyLock::new(Schema::builtin);

static KINDS: LazyLock<Vec<(Gvk, TypeId)>> = LazyLock::new(|| {
    let mut all: Vec<_> = SCHEMA.kinds().map(|(gvk, id)| (gvk.clone(), id)).collect();
    all.sort_by_key(|(gvk, _)| (gvk.api_version(), gvk.kind.clone()));
    all
});

/// The kind that an object names, or one that a number chooses.
pub fn kind_of(api_version: &str, kind: &str, number: usize) -> (&'static Gvk, TypeId) {
    let named = Gvk::from_api_version(api_version, kind);
    let found = KINDS.iter().find(|(gvk, _)| *gvk == named);
    let (gvk, id) = found.unwrap_or_else(|| &KINDS[number % KINDS.len()]);
    (gvk, *id)
}

/// The JSON texts of an input.
#[allow(dead_code)]
pub fn values(bytes: &[u8]) -> impl Iterator<Item = Value> + '_ {
    serde_json::Deserializer::from_slice(bytes).into_iter::<Value>().map_while(Result::ok)
}
