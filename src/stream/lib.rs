//! Byte streams over HTTP upgrades: exec, attach, port-forward and proxies, by SPDY/3.1 and
//! WebSocket.
//!
//! [`opening`] bounds the time for first bytes, [`upgrade`] sends and carries upgraded connections;
//! [`bridge`] joins what a client speaks to what a runtime speaks.

pub mod bridge;
pub mod opening;
pub mod spdy;
pub mod upgrade;
pub mod websocket;
