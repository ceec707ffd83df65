//! Byte streams over HTTP upgrades: exec, attach, port-forward and proxies, by SPDY/3.1 and WebSocket.
//!
//! [`upgrade`] sends and carries upgraded connections; [`bridge`] joins what a client speaks to what a runtime speaks.

pub mod bridge;
pub mod spdy;
pub mod upgrade;
pub mod websocket;
