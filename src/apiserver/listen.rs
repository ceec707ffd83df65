//! Listeners, and the calls of components in the same process.

pub(crate) mod connection_limiter;
pub mod http;
pub mod in_process;
