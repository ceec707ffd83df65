//! A function of the C library without a safe wrapper.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use nix::libc;

/// Binds a packet socket to frames of a kind on one link.
#[expect(unsafe_code, reason = "nix has no constructor of this address")]
pub(super) fn bind_packets(socket: &OwnedFd, index: u32, kind: u16) -> io::Result<()> {
    // SAFETY: all fields are integers or arrays of them, for which zeros are valid.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = u16::try_from(libc::AF_PACKET).unwrap_or(0);
    address.sll_protocol = kind.to_be();
    address.sll_ifindex = i32::try_from(index).map_err(io::Error::other)?;
    let length = libc::socklen_t::try_from(size_of::<libc::sockaddr_ll>()).unwrap_or(0);
    // SAFETY: the pointer is to a `sockaddr_ll` of that length, which the call only reads.
    let done =
        unsafe { libc::bind(socket.as_raw_fd(), std::ptr::from_ref(&address).cast(), length) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
