//! Certificates of servers and nodes, joining, the servers of an agent and the tunnels to them,
//! files that clients read.

pub mod certs;
mod guarded;
pub mod join;
pub mod kubeconfig;
pub mod password;
pub mod peers;
pub mod rotation;
pub mod servers;
pub mod token;
pub mod tunnel;
