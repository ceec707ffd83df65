//! The node agent: runs the pods of one node through a CRI runtime and reports about them.
//!
//! [`run`] is the whole of it. Decisions (which containers to start, what a pod's status is) are pure functions over what
//! was observed; the runtime, the API server and the disk are behind thin shells.

pub mod config;
pub mod containerd;
mod digest;
mod image_name;
mod pause;
pub mod runtime;
mod tarball;

pub use config::{Config, HttpConfig, RuntimeConfig};
