//! The node agent: runs the pods of one node through a CRI runtime and reports about them.
//!
//! [`run`] is the whole of it. Decisions (which containers to start, what a pod's status is) are pure functions over what
//! was observed; the runtime, the API server and the disk are behind thin shells.

mod admit;
mod cgroups;
pub mod config;
mod containerd;
mod digest;
mod engine;
mod events;
mod eviction;
mod folders;
mod handler;
mod housekeeping;
mod http;
mod image_name;
mod images;
mod machine;
mod manifests;
mod mirror;
mod node;
mod objects;
mod observed;
mod pause;
mod plan;
mod pod;
mod pod_certificates;
mod pods;
mod power;
mod pressure;
mod probes;
pub mod registries;
mod report;
mod resize;
mod resources;
mod run;
pub mod runtime;
mod spec;
mod status;
mod status_writer;
mod tarball;
mod tokens;
mod trust_bundles;
mod unready;
mod volumes;
mod worker;

pub use config::{Config, HttpConfig, RuntimeConfig};
pub use containerd::find::find_program;
pub use engine::runc_fault;
pub use power::{Grace, Power};
pub use run::{NodeError, run};
pub use unready::{NotReady, Unready};
