//! Foundations of all other crates: tasks and shutdown, backoff, clock, files, certificates,
//! metrics.
//!
//! Does not depend on Kubernetes or any other crate of the workspace.

pub mod accept;
pub mod backoff;
pub mod clock;
mod cork;
pub mod encrypted_dir;
pub mod fs;
mod hex;
pub mod http2;
pub mod inline_executor;
pub mod io;
pub mod memory;
pub mod metrics;
pub mod pki;
pub mod problems;
pub mod process;
pub mod runtime;
mod secret;
pub mod server_identity;
pub mod tasks;

pub use backoff::Backoff;
pub use cork::{Cork, Hold};
pub use encrypted_dir::EncryptedDir;
pub use hex::hex;
pub use inline_executor::InlineExecutor;
pub use problems::{Problem, Problems};
pub use secret::SecretValue;
pub use tasks::{Kind, Shutdown, Tasks};
