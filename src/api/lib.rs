//! Kubernetes objects, pure: the schema table, codecs, patches, defaults, validation, selectors.
//!
//! No I/O, no tokio, no HTTP server, no store. Objects are `serde_json::Value` while they are
//! worked on and [`Object`] (bytes and a small header) everywhere else; typed structs come from
//! `k8s-openapi` through [`k8s`].

pub mod codec;
pub mod custom;
pub mod defaults;
pub mod expressions;
pub mod field;
pub mod fields;
pub mod image;
pub mod node_labels;
pub mod object;
pub mod openapi;
pub mod patch;
pub mod quantity;
pub mod schema;
pub mod selector;
pub mod status;
pub mod unsupported;
pub mod uri;
pub mod validation;
pub mod value;
#[cfg(test)]
mod wire_test;

pub use k8s_openapi as k8s;
pub use kinds::Typed;
pub use object::{Gvk, Gvr, Object, ObjectKey, WatchEvent};
pub use quantity::Quantity;
pub use status::Status;
