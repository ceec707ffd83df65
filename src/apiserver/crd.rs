//! Custom resources: definitions become rows at run time, objects go by the schema of their
//! version.
//!
//! One task follows the watch cache of CustomResourceDefinitions (`follower.rs`); a definition
//! costs its row and what was read of its names. Schemas are compiled when a version is used first
//! (`kind.rs`).

mod cleanup;
mod convert;
mod decode;
mod definition;
mod follower;
mod kind;
mod names;
mod registration;
pub(crate) mod scale;
pub(crate) mod status;
mod strategy;
mod types;

#[cfg(test)]
mod tests;

pub(crate) use decode::body as decode_body;
pub(crate) use follower::{STEP, follow};
pub(crate) use kind::{Kind, Read};
pub(crate) use registration::{LAST_VERBS, compare as compare_versions};

#[cfg(test)]
pub(crate) mod testing {
    //! A version of a custom resource without a server.

    use std::sync::Arc;

    use api::{Gvk, Object};
    use serde_json::json;

    use super::definition::Definition;
    use super::kind::{Family, Kind};

    /// The version `v1` or `v2` of `foos.example.com`, neither with a schema; `v1` is stored.
    pub(crate) fn kind(version: &str) -> (Arc<Kind>, Gvk) {
        let object = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {"name": "foos.example.com", "uid": "1"},
            "spec": {"group": "example.com", "scope": "Namespaced",
                "names": {"plural": "foos", "singular": "foo", "kind": "Foo", "listKind": "FooList"},
                "versions": [{"name": "v1", "served": true, "storage": true}, {"name": "v2", "served": true, "storage": false}]}});
        let definition = Definition::read(&Arc::new(Object::from_value(object).unwrap())).unwrap();
        let family = Family::new(definition);
        let gvk = Gvk::new("example.com", version, "Foo");
        let at = usize::from(version != "v1");
        (Arc::new(Kind::new(&family, at, gvk.clone())), gvk)
    }
}
