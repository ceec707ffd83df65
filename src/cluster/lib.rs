//! Certificates of servers and nodes, joining, files that clients read.

pub mod certs;
pub mod join;
pub mod kubeconfig;
pub mod password;
pub mod token;
