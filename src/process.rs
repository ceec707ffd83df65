//! The process itself: its log, allocator, how it protects secrets, and why it ends.

pub mod allocator;
pub(crate) mod end_reason;
pub mod hardening;
pub mod logging;
#[cfg(target_env = "gnu")]
pub(crate) mod sys;
