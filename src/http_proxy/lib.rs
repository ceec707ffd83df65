//! The HTTP proxy of a node, without Kubernetes objects: the crate `ingress` compiles those into
//! routes.
//!
//! [`routes`] is pure: a table for each listener, exchanged as a whole. [`backend`] holds what
//! changes without a new table: endpoints and their connections. [`proxy`] serves clients.

pub mod backend;
pub mod proxy;
pub mod routes;
