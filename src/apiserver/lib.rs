//! The API server: HTTP to store, one pipeline for every kind and verb.
//!
//! request → authn → authz → handler (verb) → admission → registry (strategy) → store; back through the watch cache.

pub mod admission;
pub mod authn;
pub mod authz;
pub mod bootstrap;
pub mod lookup;
pub mod registry;
pub mod table;
pub mod user;

pub use user::User;
