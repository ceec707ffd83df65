//! Certificates of servers and nodes, joining, files that clients read.

pub mod certs;
pub mod kubeconfig;
