//! What every other crate stands on: tasks and shutdown, back-off, clock, files, certificates, metrics.
//!
//! Knows nothing of Kubernetes and imports no sibling.

pub mod accept;
pub mod backoff;
pub mod clock;
mod cork;
pub mod error_list;
pub mod fs;
pub mod io;
pub mod memory;
pub mod metrics;
pub mod nested;
pub mod pki;
pub mod problems;
pub mod process;
pub mod runtime;
pub mod sealed;
pub mod tasks;
mod wiped;

pub use backoff::Backoff;
pub use cork::{Cork, Hold};
pub use error_list::ErrorList;
pub use nested::Nested;
pub use problems::{Problem, Problems};
pub use sealed::Sealed;
pub use tasks::{Kind, Shutdown, Tasks};
pub use wiped::Wiped;
