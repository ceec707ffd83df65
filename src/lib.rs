//! kube-lite: Kubernetes as one small binary. This crate only reads the command line and puts the parts together.

pub mod agent;
pub mod allocator;
mod asked;
pub mod catalogue;
pub mod certificates;
pub mod cli;
pub mod etcd_env;
mod joining;
pub mod logging;
pub mod machine;
mod power;
pub mod preflight;
pub mod process;
mod renewal;
pub mod sealing;
pub mod server;
pub mod snapshots;
pub mod status;
#[cfg(target_env = "gnu")]
mod sys;
pub mod token_command;
