//! Gateway API: Gateways, their listeners and routes.
//!
//! [`objects`] and [`types`] are what the API has, [`model`] what it means, [`tables`] what a node
//! serves and [`status`] what the leader reports. All of that is pure.

pub mod caches;
pub mod controller;
pub mod features;
pub mod follow;
pub mod listeners;
pub mod model;
pub mod objects;
pub mod policies;
pub mod rules;
pub mod service;
pub mod status;
pub mod tables;
pub mod types;

pub use follow::run;
