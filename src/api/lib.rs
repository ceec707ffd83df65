//! Kubernetes API objects: the schema table, codecs, patches, defaults, validation and selectors.
//!
//! The crate has no I/O, no tokio, no HTTP server and no store. An object is a `serde_json::Value`
//! while it is processed and an [`Object`] (bytes and a small header) otherwise. [`k8s`] contains
//! the typed structs of `k8s-openapi`.

pub mod codec;
pub mod cron;
pub mod csi_translation;
pub mod custom;
pub mod defaults;
pub mod expressions;
pub mod field;
pub mod fields;
pub mod image;
pub mod local_driver;
pub mod local_path;
pub mod node_labels;
pub mod object;
pub mod openapi;
pub mod patch;
pub mod quantity;
pub mod resource_version;
pub mod schema;
pub mod selector;
pub mod status;
pub mod unsupported;
pub mod uri;
pub mod validation;
pub mod value;
#[cfg(test)]
mod wire_test;
pub mod zpages;

pub use k8s_openapi as k8s;
pub use kinds::Typed;
pub use object::{Gvk, Gvr, Object, ObjectKey, WatchEvent};
pub use quantity::Quantity;
pub use status::Status;
