//! Descriptors that a Unix socket passes, which need unsafe code.

use std::io::{self, IoSliceMut};
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::os::unix::net::UnixStream;

use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg};

/// Descriptors of one message (`SCM_MAX_FD` of Linux).
pub(crate) const DESCRIPTORS_MAX: usize = 253;

/// Receives the descriptors of one message; none at the end of the connection.
#[expect(unsafe_code, reason = "no safe wrapper exists")]
pub(crate) fn receive_descriptors(stream: &UnixStream) -> io::Result<Vec<OwnedFd>> {
    let mut byte = [0];
    let mut parts = [IoSliceMut::new(&mut byte)];
    let mut space = nix::cmsg_space!([i32; DESCRIPTORS_MAX]);
    let flags = MsgFlags::MSG_CMSG_CLOEXEC;
    let message = recvmsg::<()>(stream.as_raw_fd(), &mut parts, Some(&mut space), flags)?;
    let mut received = Vec::new();
    for part in message.cmsgs()? {
        if let ControlMessageOwned::ScmRights(numbers) = part {
            // SAFETY: the kernel has made these descriptors for this call, and nothing else owns
            // them.
            received.extend(numbers.into_iter().map(|n| unsafe { OwnedFd::from_raw_fd(n) }));
        }
    }
    Ok(received)
}
