//! Byte streams over HTTP upgrades, for exec, attach, port-forward and proxies.
//!
//! [`spdy`] and [`websocket`] implement the protocols; [`upgrade`] sends requests over connections
//! of their own and relays upgraded connections; [`bridge`] translates the client's protocol to
//! that of the container runtime; [`opening`] limits the time until the first bytes of a
//! connection.

pub mod bridge;
pub mod opening;
pub mod spdy;
pub mod upgrade;
pub mod websocket;
