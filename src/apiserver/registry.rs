//! What is served: one row per resource, one strategy per kind. A value that can be swapped at run time, no enum.

pub mod strategy;

pub use strategy::{Strategy, WriteContext};
