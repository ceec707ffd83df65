//! How machines form a cluster: certificates and CAs, tokens, joining, calls between servers, an
//! agent's list of servers and the tunnels to them, and kubeconfig files.

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
