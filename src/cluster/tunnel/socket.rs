//! Options of the sockets that carry tunnels: little data, much loss.

use std::os::fd::AsFd;

use nix::sys::socket::{setsockopt, sockopt::TcpUserTimeout};
use nix::{libc, setsockopt_impl, sockopt_impl};

sockopt_impl!(
    /// `TCP_THIN_LINEAR_TIMEOUTS`: the first six repetitions come at a constant interval when few
    /// packets are on their way.
    ThinLinearTimeouts,
    SetOnly,
    libc::IPPROTO_TCP,
    libc::TCP_THIN_LINEAR_TIMEOUTS,
    bool
);

/// `TCP_RTO_MAX_MS` of `linux/tcp.h`, since Linux 6.15.
const TCP_RTO_MAX_MS: libc::c_int = 44;

sockopt_impl!(
    /// The longest interval between repetitions, in milliseconds, 1000 at least.
    RtoMax,
    SetOnly,
    libc::IPPROTO_TCP,
    TCP_RTO_MAX_MS,
    u32
);

/// The kernel gives up what nobody has acknowledged for so long, in milliseconds. Only a backstop:
/// silence is noticed earlier.
const USER_TIMEOUT_MS: u32 = 60_000;
/// The least that the kernel takes.
const RTO_MAX_MS: u32 = 1000;

/// Repeats lost packets soon and often. On a listener it holds for all connections that it accepts.
/// A kernel that lacks an option does without.
pub fn set_keepalive(socket: &impl AsFd) {
    if let Err(error) = setsockopt(socket, ThinLinearTimeouts, &true) {
        tracing::debug!(%error, "TCP_THIN_LINEAR_TIMEOUTS cannot be set");
    }
    if let Err(error) = setsockopt(socket, RtoMax, &RTO_MAX_MS) {
        tracing::debug!(%error, "TCP_RTO_MAX_MS cannot be set");
    }
}

/// The agent's end of a tunnel.
pub(crate) fn tunnel(socket: &impl AsFd) {
    set_keepalive(socket);
    if let Err(error) = setsockopt(socket, TcpUserTimeout, &USER_TIMEOUT_MS) {
        tracing::debug!(%error, "TCP_USER_TIMEOUT cannot be set");
    }
}
