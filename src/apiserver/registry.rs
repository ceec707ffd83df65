//! What is served: one row per resource, one strategy per kind. A value that can be swapped at run time, no enum.

mod builtin;
mod leases;
pub mod metadata;
pub(crate) mod reset_fields;
pub mod resource;
mod rules;
pub(crate) mod scale;
pub(crate) mod service_alloc;
pub(crate) mod service_pools;
pub mod storage;
pub mod stored_check;
pub mod strategies;
pub mod strategy;
mod transformer;
pub mod unreadable;

pub use resource::{Group, Registry, Resource, ResourceSpec, Subresource, Version};
pub use strategy::{Strategy, WriteContext};

#[cfg(test)]
mod answers_test;
#[cfg(test)]
mod growth_test;
