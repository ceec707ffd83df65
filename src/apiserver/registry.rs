//! What is served: one row per resource, one strategy per kind. A value that can be swapped at run time, no enum.

mod rules;
pub mod strategies;
pub mod strategy;

pub use strategy::{Strategy, WriteContext};
