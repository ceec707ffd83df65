//! The ingress controller of a node: routes compiled from objects, and the HTTP proxy that serves
//! them.
//!
//! [`routes`] is pure: a table for each listener, exchanged as a whole. [`backend`] holds what
//! changes without a new table: endpoints and their connections. [`proxy`] serves clients.

mod auth_secrets;
pub mod backend;
pub mod controller;
mod follow;
pub mod gateway;
mod handover;
pub mod node_endpoints;
pub mod objects;
pub mod proxy;
pub mod routes;
mod sys;

pub use follow::{Config, Error, run};
pub use handover::{is_keeper_call, keeper_main};

/// The port of each node on which plain HTTP is served; the Service `kube-system/ingress` leads to
/// it.
pub const HTTP_PORT: u16 = 10080;
/// The same for HTTPS.
pub const HTTPS_PORT: u16 = 10443;
