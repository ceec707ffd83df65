//! The node agent: runs the pods of one node through a CRI runtime and reports their status.
//!
//! [`run`] is the entry point. Decisions (which containers to start, what the status of a pod is)
//! are pure functions of observed state; the runtime, the API server and the disk are accessed by
//! thin layers.

mod agent;
mod cgroups;
pub mod config;
mod context;
pub(crate) mod credentials;
mod digest;
mod events;
pub(crate) mod eviction;
mod file_watcher;
mod housekeeping;
mod kubelet_api;
mod machine;
mod machine_shutdown;
pub(crate) mod pods;
mod probes;
pub mod runtime;
pub(crate) mod static_pods;
pub(crate) mod status;
mod volumes;

pub use agent::{NodeError, run};
pub use config::{Config, KubeletApiConfig, RuntimeConfig};
pub use machine_shutdown::{MachineShutdown, ShutdownGracePeriod};
pub use runtime::containerd::find::find_program;
pub use runtime::oci_runtime::runc_vulnerability;
pub use status::not_ready::{NotReadyPodUids, NotReadyPods};
