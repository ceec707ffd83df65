//! Byte streams over HTTP upgrades for exec, attach, port-forward and proxies, over SPDY/3.1 and
//! WebSocket.
//!
//! [`opening`] limits the time for the first bytes; [`upgrade`] sends and relays upgraded
//! connections; [`bridge`] translates the client's protocol to the runtime's.

pub mod bridge;
pub mod opening;
pub mod spdy;
pub mod upgrade;
pub mod websocket;
