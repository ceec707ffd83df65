//! The served resources, their rules and their storage: one row per resource, one strategy per
//! kind. The table of rows is a value that is swapped when custom resources are registered.

mod builtin;
pub(crate) mod compaction;
pub(crate) mod convert;
pub(crate) mod follower;
mod leases;
pub mod metadata;
pub mod objects;
pub(crate) mod reset_fields;
pub mod resource;
mod rules;
pub(crate) mod scale;
pub mod selection;
pub(crate) mod service_pools;
pub mod storage;
pub mod stored_check;
pub mod strategies;
pub mod strategy;
pub mod unreadable;
pub(crate) mod unsupported;
pub mod watch_cache;

pub use resource::{Group, Registry, Resource, ResourceSpec, Subresource, Version};
pub use strategy::{Strategy, WriteContext};

#[cfg(test)]
mod answers_test;
#[cfg(test)]
mod growth_test;
