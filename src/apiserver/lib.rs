//! The API server: HTTP to store, one pipeline for every kind and verb.
//!
//! request → authn → authz → handler (verb) → admission → registry (strategy) → store; back through
//! the watch cache.

pub mod admission;
pub mod aggregator;
pub mod audit;
pub mod authn;
pub mod authz;
pub mod bootstrap;
pub mod connect;
mod crd;
mod deprecated_apis;
mod discovery;
mod filters;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod handlers;
pub mod interfaces;
pub mod listen;
mod metrics;
pub mod priority_and_fairness;
pub mod registry;
pub mod request;
pub mod request_tracing;
pub mod response;
pub mod reviews;
pub mod security;
mod serialization;
mod server;
mod state;
pub(crate) mod write;

pub use deprecated_apis::Deprecated;
pub use registry::objects::Objects;
pub use registry::unsupported::Unused;
pub use request::body::Body;
pub use request::user::User;
pub use server::{BuildError, build};
pub use state::{ApiServer, Config, Parts};
