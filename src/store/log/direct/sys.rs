//! The kernel's asynchronous I/O (`io_submit(2)`), which has no safe wrapper: one write at a time,
//! awaited.
//!
//! io_uring is not used: seccomp profiles of containers and many distributions forbid it, and
//! single writes are no faster.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

use nix::libc::{
    RWF_DSYNC, SYS_io_destroy, SYS_io_getevents, SYS_io_setup, SYS_io_submit, c_long, c_ulong,
    syscall,
};
use parking_lot::Mutex;

/// `IOCB_CMD_PWRITE` of `linux/aio_abi.h`.
const PWRITE: u16 = 1;

/// `struct iocb` of `linux/aio_abi.h` on little-endian machines.
#[repr(C)]
#[derive(Default)]
struct Request {
    data: u64,
    key: u32,
    flags_of_write: i32,
    opcode: u16,
    priority: i16,
    descriptor: u32,
    buffer: u64,
    bytes: u64,
    offset: i64,
    reserved: u64,
    flags: u32,
    event_descriptor: u32,
}

/// `struct io_event` of `linux/aio_abi.h`.
#[repr(C)]
#[derive(Default)]
struct Event {
    data: u64,
    request: u64,
    result: i64,
    second_result: i64,
}

/// A kernel queue.
#[derive(Debug)]
pub(super) struct Queue {
    context: c_ulong,
    /// One request at a time, so that the event belongs to the request.
    busy: Mutex<()>,
}

fn checked(result: c_long) -> io::Result<c_long> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

impl Queue {
    /// Creates a queue.
    ///
    /// # Errors
    /// The kernel has none or no more; big-endian machines are not supported.
    #[expect(unsafe_code, reason = "no safe wrapper exists")]
    pub(super) fn open() -> io::Result<Self> {
        if cfg!(target_endian = "big") {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let mut context: c_ulong = 0;
        let requests: c_long = 1;
        // SAFETY: the kernel writes one number to `context`, which lives through the call.
        checked(unsafe { syscall(SYS_io_setup, requests, &raw mut context) })?;
        Ok(Self { context, busy: Mutex::default() })
    }

    /// Writes `data` durably (`RWF_DSYNC`) and waits for it; returns the number of bytes written.
    ///
    /// # Errors
    /// The errors of `pwritev2(2)`.
    #[expect(unsafe_code, reason = "no safe wrapper exists")]
    pub(super) fn write(&self, file: &File, data: &[u8], offset: u64) -> io::Result<usize> {
        let invalid = |_| io::Error::from(io::ErrorKind::InvalidInput);
        let mut request = Request {
            flags_of_write: RWF_DSYNC,
            opcode: PWRITE,
            descriptor: u32::try_from(file.as_raw_fd()).map_err(invalid)?,
            buffer: data.as_ptr().expose_provenance() as u64,
            bytes: data.len() as u64,
            offset: i64::try_from(offset).map_err(invalid)?,
            ..Request::default()
        };
        let mut requests = [&raw mut request];
        let one: c_long = 1;
        let _busy = self.busy.lock();
        // SAFETY: the kernel copies the request before it returns. It reads `data` until the event
        // below arrives; this function always waits for that event, while `data` is borrowed and
        // `file` is open.
        let begun = unsafe { syscall(SYS_io_submit, self.context, one, requests.as_mut_ptr()) };
        if checked(begun)? != 1 {
            return Err(io::Error::from_raw_os_error(nix::libc::EAGAIN));
        }
        let mut event = Event::default();
        let forever = std::ptr::null_mut::<nix::libc::timespec>();
        loop {
            // SAFETY: the kernel writes one event to `event`, which lives through the call.
            let ended = unsafe {
                syscall(SYS_io_getevents, self.context, one, one, &raw mut event, forever)
            };
            match checked(ended) {
                Ok(1) => break,
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // The queue belongs to this process until it is dropped, so the kernel has no other
                // reason to fail; continuing would release the buffer while the kernel reads it.
                Err(error) => panic!("cannot wait for a submitted write: {error}"),
            }
        }
        match usize::try_from(event.result) {
            Ok(written) => Ok(written),
            Err(_) => {
                let code = i32::try_from(-event.result).unwrap_or(nix::libc::EIO);
                Err(io::Error::from_raw_os_error(code))
            }
        }
    }
}

impl Drop for Queue {
    #[expect(unsafe_code, reason = "no safe wrapper exists")]
    fn drop(&mut self) {
        // SAFETY: no other code has the queue, and no request is in flight.
        unsafe { syscall(SYS_io_destroy, self.context) };
    }
}
