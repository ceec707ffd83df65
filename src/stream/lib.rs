//! Byte streams over HTTP upgrades: exec, attach, port-forward and proxies, by SPDY/3.1 and WebSocket.
//!
//! [`upgrade`] sends and splices upgraded connections; [`bridge`] joins what a client speaks to what a runtime speaks.

pub mod io;
pub mod upgrade;

pub use io::{BoxIo, Dial, Io, Tcp};
