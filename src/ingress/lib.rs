//! The ingress controller of a node: routes compiled from objects for the HTTP proxy of the crate
//! `http_proxy`.

mod auth_secrets;
pub mod controller;
mod follow;
pub mod gateway;
mod handover;
pub mod node_endpoints;
pub mod objects;
mod sys;

pub use follow::{Config, Error, run};
pub use handover::{is_keeper_call, keeper_main};

/// The port of each node on which plain HTTP is served; the Service `kube-system/ingress` leads to
/// it.
pub const HTTP_PORT: u16 = 10080;
/// The same for HTTPS.
pub const HTTPS_PORT: u16 = 10443;
