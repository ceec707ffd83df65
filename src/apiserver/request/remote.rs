//! The address of the client.

use std::net::SocketAddr;

/// The address of the client, as a request extension.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Remote(pub(crate) SocketAddr);
