//! Validation of the kinds of the core group (upstream's `pkg/apis/core/validation`).

pub mod claim;
pub mod config_map;
mod container_status;
mod containers;
mod env;
pub mod handlers;
mod image;
pub mod limit_range;
mod mounts;
pub mod namespace;
pub mod node;
mod old_volumes;
pub mod persistent_volume;
pub mod pod;
pub mod pod_change;
mod pod_resize;
mod pod_status;
mod projected;
pub mod quota;
pub mod replication_controller;
pub mod resources;
pub mod scheduling;
pub mod secret;
mod security;
pub mod service;
pub mod service_warnings;
pub mod volumes;
mod windows;

pub use security::{APP_ARMOR_ANNOTATION, APP_ARMOR_DEPRECATED, app_armor, app_armor_profile};
