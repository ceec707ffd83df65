//! The client's end of the connection.

use std::net::SocketAddr;

/// The address of the client, among the extensions of a request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Remote(pub(crate) SocketAddr);
