//! Custom resources: CustomResourceDefinitions add rows to the registry at run time, and their
//! objects are validated by the schema of their version.
//!
//! One task follows the watch cache of definitions (`follower.rs`). A definition without requests
//! costs only its rows and names: the schema of a version is compiled on first use (`kind.rs`).

mod cleanup;
mod convert;
mod decode;
mod definition;
mod error;
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
    //! A version of a custom resource for tests without a server.

    use std::sync::Arc;

    use api::{Gvk, Object};
    use serde_json::json;

    use super::definition::Definition;
    use super::kind::{Family, Kind};

    /// The version `v1` or `v2` of `foos.example.com`, both without a schema; `v1` is the storage
    /// version.
    pub(crate) fn kind(version: &str) -> (Arc<Kind>, Gvk) {
        let names =
            json!({"plural": "foos", "singular": "foo", "kind": "Foo", "listKind": "FooList"});
        let versions = json!([
            {"name": "v1", "served": true, "storage": true},
            {"name": "v2", "served": true, "storage": false},
        ]);
        let object = json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {"name": "foos.example.com", "uid": "1"},
            "spec": {
                "group": "example.com", "scope": "Namespaced", "names": names, "versions": versions,
            },
        });
        let definition = Definition::read(&Arc::new(Object::from_value(object).unwrap())).unwrap();
        let family = Family::new(definition);
        let gvk = Gvk::new("example.com", version, "Foo");
        let index = usize::from(version != "v1");
        (Arc::new(Kind::new(&family, index, gvk.clone())), gvk)
    }
}
