//! kube-lite: Kubernetes as one small binary. This crate reads the command line and connects the
//! other crates.

pub mod agent;
pub mod certificates;
pub mod command_line;
pub mod commands;
mod control_socket;
pub mod error_catalogue;
mod join;
mod k3s_metrics;
pub mod machine;
mod peer_servers;
pub mod preflight;
pub mod process;
pub mod secrets_encrypt;
pub mod server;
pub mod snapshots;
pub mod status;
