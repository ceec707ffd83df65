//! The node agent: runs the pods of one node through a CRI runtime and reports their status.
//!
//! [`run`] is the entry point. Decisions (which containers to start, what the status of a pod is)
//! are pure functions of observed state; the runtime, the API server and the disk are accessed by
//! thin layers.

mod agent;
mod cgroups;
pub mod config;
mod context;
mod credentials;
mod csi;
mod devices;
mod digest;
mod dynamic_resources;
mod events;
mod eviction;
mod file_watcher;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod generic_devices;
mod housekeeping;
mod image_access;
mod image_credentials;
mod image_registry;
mod kubelet_api;
mod local_driver;
mod machine;
mod machine_shutdown;
mod plugins;
mod pods;
mod priority;
mod probes;
mod resource_managers;
mod resource_usage;
pub mod runtime;
mod static_pods;
mod status;
mod user_namespaces;
mod volume_usage;
mod volumes;

pub use agent::{NodeError, run};
pub use config::enforcement::{EnforcementError, NodeAllocatableEnforcement, ReservedCgroup};
pub use config::memory::{MemoryConfig, MemoryReservation, SwapBehavior};
pub use config::thresholds::{EvictionThresholds, ThresholdError, ThresholdTexts};
pub use config::{
    Config, KubeletApiConfig, ProcessFamilies, RESTART_DELAY_MAX, RuntimeConfig, SupervisorMetrics,
    SystemLogsConfig,
};
pub use generic_devices::selector::{DeviceSelection, InvalidDevice};
pub use image_access::policy::{ImageAllowlist, ImageVerification, ImageVerificationError};
pub use image_credentials::InvalidProviders;
pub use image_credentials::provider_config::{
    CredentialProviderError, CredentialProviders, ProviderFileError,
};
pub use machine_shutdown::{MachineShutdown, PriorityGracePeriod, ShutdownGracePeriod};
pub use resource_managers::ResourceManagersError;
pub use resource_managers::config as resource_manager_config;
pub use resource_managers::cpu_set::CpuSet;
pub use resource_usage::{ResourceUsage, ResourceUsageError};
pub use runtime::containerd::find::find_program;
pub use runtime::containerd::snapshotter::{Snapshotter, UnsupportedSnapshotter};
pub use runtime::images::name::{is_valid as is_image_name, normalize as full_image_name};
pub use runtime::oci_runtime::runc_vulnerability;
pub use static_pods::url_config::{InvalidStaticPodUrl, StaticPodUrl};
pub use status::node::allocatable::AllocatableError;
pub use status::not_ready::{NotReadyPodUids, NotReadyPods};
pub use user_namespaces::UserNamespacesError;
pub use user_namespaces::id_range::IDS_PER_POD;
