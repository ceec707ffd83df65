//! The HTTP proxy: connections of clients, requests to endpoints, answers without buffering.

pub(crate) mod body;
mod connection;
mod exchange;
mod headers;
pub(crate) mod pool;
mod tls;
mod upgrade;

pub use connection::{Listener, serve};
pub use tls::{CertificateStore, Certificates, NoCertificate, TlsSettings};

#[cfg(test)]
mod tests;
