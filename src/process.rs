//! The process: its log, its allocator, the protection of secrets, and the reason for its end.

pub mod allocator;
pub(crate) mod end_reason;
pub mod hardening;
pub mod logging;
#[cfg(target_env = "gnu")]
pub(crate) mod sys;
