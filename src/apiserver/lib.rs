//! The API server: HTTP to store, one pipeline for every kind and verb.
//!
//! request → authn → authz → handler (verb) → admission → registry (strategy) → store; back through the watch cache.

pub mod admission;
pub mod aggregator;
pub mod audit;
pub mod authn;
pub mod authz;
pub mod body;
pub mod bootstrap;
mod changes;
mod compaction;
pub mod connect;
mod context;
mod convert;
mod crowd;
mod custom;
mod deadline;
mod deprecated;
mod discovery;
pub mod encryption;
pub mod flags;
pub mod flow;
mod flow_status;
mod follow;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod handlers;
mod healthz;
pub mod in_process;
mod large_requests;
mod limits;
pub mod lookup;
mod managed;
mod meters;
mod metrics;
pub mod negotiate;
pub mod objects;
mod openapi;
pub mod registry;
pub mod request;
pub mod reviews;
pub mod seams;
pub mod security;
pub mod selection;
pub mod serve;
mod server;
pub mod spans;
mod status;
mod strict;
pub mod table;
mod track;
mod unsupported;
pub mod user;
pub mod watch_cache;
pub mod webhook;
mod wire;

pub use body::Body;
pub use deprecated::Deprecated;
pub use objects::Objects;
pub use server::{ApiServer, BuildError, Config, Parts, build};
pub use unsupported::Unused;
pub use user::User;
