//! The core group.

pub mod config_map;
pub mod namespace;
pub mod secret;
