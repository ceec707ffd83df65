//! The HTTP proxy: connections of clients, requests to endpoints, answers without buffering.

pub(crate) mod body;
mod connection;
pub mod entry;
mod exchange;
mod headers;
mod http1;
mod mirror;
pub(crate) mod pool;
mod proxy_protocol;
mod session;
mod splice;
pub(crate) mod stream;
mod streams;
mod tcp;
mod tls;
mod udp;
mod upgrade;
pub mod upstream;

pub use connection::{Listener, serve};
pub use tls::{CertificateStore, Certificates, NoCertificate, TlsSettings};

#[cfg(test)]
mod tests;
