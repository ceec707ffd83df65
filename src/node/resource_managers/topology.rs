//! The topology manager: which NUMA nodes the resources of a container come from.

pub(crate) mod config;
pub(crate) mod hints;
