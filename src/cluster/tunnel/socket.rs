//! Socket options of tunnels, which carry little data over lossy links.

use std::os::fd::AsFd;

use nix::sys::socket::{setsockopt, sockopt::TcpUserTimeout};
use nix::{libc, setsockopt_impl, sockopt_impl};

sockopt_impl!(
    /// `TCP_THIN_LINEAR_TIMEOUTS`: the first six retransmissions use a constant interval when few
    /// packets are in flight.
    ThinLinearTimeouts,
    SetOnly,
    libc::IPPROTO_TCP,
    libc::TCP_THIN_LINEAR_TIMEOUTS,
    bool
);

/// `TCP_RTO_MAX_MS` of `linux/tcp.h`, since Linux 6.15.
const TCP_RTO_MAX_MS: libc::c_int = 44;

sockopt_impl!(
    /// The longest retransmission interval, in milliseconds, at least 1000.
    RtoMax,
    SetOnly,
    libc::IPPROTO_TCP,
    TCP_RTO_MAX_MS,
    u32
);

/// `TCP_USER_TIMEOUT` in milliseconds: the kernel closes a connection with data unacknowledged for
/// this long. Only a backstop: silence is detected earlier.
const USER_TIMEOUT_MS: u32 = 60_000;
/// The minimum that the kernel accepts.
const RTO_MAX_MS: u32 = 1000;

/// Makes the kernel retransmit lost packets early and often. Set on a listener, it applies to all
/// accepted connections. An option that the kernel lacks is skipped.
pub fn set_keepalive(socket: &impl AsFd) {
    if let Err(error) = setsockopt(socket, ThinLinearTimeouts, &true) {
        tracing::debug!(%error, "TCP_THIN_LINEAR_TIMEOUTS cannot be set");
    }
    if let Err(error) = setsockopt(socket, RtoMax, &RTO_MAX_MS) {
        tracing::debug!(%error, "TCP_RTO_MAX_MS cannot be set");
    }
}

/// Sets the options of the agent's end of a tunnel.
pub(crate) fn set_tunnel_options(socket: &impl AsFd) {
    set_keepalive(socket);
    if let Err(error) = setsockopt(socket, TcpUserTimeout, &USER_TIMEOUT_MS) {
        tracing::debug!(%error, "TCP_USER_TIMEOUT cannot be set");
    }
}
