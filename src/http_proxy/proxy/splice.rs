//! Large bodies pass from one socket to another within the kernel (`splice(2)`), through a pipe.
//!
//! hyper writes the body of a response from buffers. A [`Chunk::Piped`] is a buffer whose bytes are
//! in the pipe of the client's connection: hyper sees a part of [`MARKER`] in their place, and the
//! stream that hyper writes to ([`super::stream::Prefixed`]) recognizes its address and moves as
//! many bytes from the pipe to the socket. hyper writes buffers in order, as the pipe does.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, LazyLock};
use std::task::{Context, Poll, Waker, ready};

use bytes::{Buf, Bytes};
use nix::fcntl::{FcntlArg, OFlag, SpliceFFlags, fcntl, splice};
use nix::unistd::pipe2;
use parking_lot::Mutex;
use tokio::io::Interest;
use tokio::net::TcpStream;

/// Bytes of a pipe. The kernel moves pages of a socket's queue, which are seldom full.
const PIPE_BYTES: i32 = 512 * 1024;
/// Bytes that are moved at once.
const CHUNK_BYTES_MAX: usize = 256 * 1024;

/// Stands in for bytes in a pipe. It is never read or written, so it takes no memory.
static MARKER: LazyLock<Box<[u8]>> = LazyLock::new(|| vec![0; CHUNK_BYTES_MAX].into_boxed_slice());

/// Whether a buffer is a part of the marker.
pub(super) fn is_marker(buffer: &[u8]) -> bool {
    MARKER.as_ptr_range().contains(&buffer.as_ptr())
}

/// A part of the body of a response.
#[derive(Debug)]
pub(crate) enum Chunk {
    /// Bytes in memory.
    Bytes(Bytes),
    /// As many bytes in the pipe of the client's connection.
    Piped(usize),
}

impl Buf for Chunk {
    fn remaining(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Piped(length) => *length,
        }
    }

    fn chunk(&self) -> &[u8] {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Piped(length) => MARKER.get(..*length).unwrap_or(&MARKER),
        }
    }

    fn advance(&mut self, count: usize) {
        match self {
            Self::Bytes(bytes) => bytes.advance(count),
            Self::Piped(length) => *length = length.saturating_sub(count),
        }
    }
}

/// The pipe of a client's connection; made for the first large body.
#[derive(Debug, Clone, Default)]
pub(crate) struct Pipe(Arc<Mutex<Option<State>>>);

#[derive(Debug)]
struct State {
    read: OwnedFd,
    write: OwnedFd,
    /// Bytes in the pipe.
    held: usize,
    /// The body that waits for space.
    waiting: Option<Waker>,
}

impl State {
    fn new() -> io::Result<Self> {
        let (read, write) = pipe2(OFlag::O_CLOEXEC | OFlag::O_NONBLOCK)?;
        if let Err(error) = fcntl(&write, FcntlArg::F_SETPIPE_SZ(PIPE_BYTES)) {
            // The user's limit of pipes is reached: a small pipe works, too.
            tracing::debug!(%error, "ingress: a pipe keeps its size");
        }
        Ok(Self { read, write, held: 0, waiting: None })
    }
}

fn flags() -> SpliceFFlags {
    SpliceFFlags::SPLICE_F_MOVE | SpliceFFlags::SPLICE_F_NONBLOCK
}

impl Pipe {
    /// Moves up to `max` bytes from a socket into the pipe; 0 at the end of the stream.
    pub(super) fn poll_fill(
        &self,
        socket: &TcpStream,
        context: &mut Context<'_>,
        max: usize,
    ) -> Poll<io::Result<usize>> {
        let max = max.min(CHUNK_BYTES_MAX);
        loop {
            ready!(socket.poll_read_ready(context))?;
            let mut state = self.0.lock();
            let state = match &mut *state {
                Some(state) => state,
                none => none.insert(State::new()?),
            };
            if state.held > 0 {
                // The pipe may be full, which the kernel reports as it does an empty socket.
                state.waiting = Some(context.waker().clone());
                return Poll::Pending;
            }
            let moved = socket.try_io(Interest::READABLE, || {
                Ok(splice(socket, None, &state.write, None, max, flags())?)
            });
            match moved {
                Ok(count) => {
                    state.held = count;
                    return Poll::Ready(Ok(count));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }

    /// Whether bytes in the pipe wait for the client.
    pub(super) fn is_held(&self) -> bool {
        self.0.lock().as_ref().is_some_and(|state| state.held > 0)
    }

    /// Moves up to `max` bytes from the pipe to a socket.
    pub(super) fn poll_drain(
        &self,
        socket: &TcpStream,
        context: &mut Context<'_>,
        max: usize,
    ) -> Poll<io::Result<usize>> {
        loop {
            ready!(socket.poll_write_ready(context))?;
            let mut state = self.0.lock();
            let Some(state) = state.as_mut().filter(|state| state.held > 0) else {
                return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
            };
            let max = max.min(state.held);
            let moved = socket.try_io(Interest::WRITABLE, || {
                Ok(splice(&state.read, None, socket, None, max, flags())?)
            });
            match moved {
                Ok(count) => {
                    state.held = state.held.saturating_sub(count);
                    if let Some(waker) = state.waiting.take_if(|_| state.held == 0) {
                        waker.wake();
                    }
                    return Poll::Ready(Ok(count));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }
}
