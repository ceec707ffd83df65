//! Configuration files and arguments of Kubernetes components: strict parsing, joined errors, and
//! files that are followed.

mod aggregate;
mod file_watcher;
pub mod flags;
pub mod strict_config;

pub use aggregate::{aggregate, aggregate_errors};
pub use file_watcher::FileWatcher;
