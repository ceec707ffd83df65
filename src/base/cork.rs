//! Gathers the writes of one poll: HTTP/2 flushes each larger frame before it takes the next, and a
//! system call per response costs more than the response.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Buf, BytesMut};
use parking_lot::Mutex;
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::{client, server};

use crate::io::{BoxIo, Io};

/// Maximum number of gathered bytes; with more they are written at once.
const GATHERED_MAX: usize = 32 * 1024;

/// Pieces of at least this size are not copied, but written together with the gathered bytes before
/// them.
const COPIED_MAX: usize = 4 * 1024;

/// Buffer capacity that is kept between polls.
const KEPT: usize = 4 * 1024;

/// A connection that can delay partial segments.
pub trait Hold: Io {
    /// Tells the kernel to send only full segments (`TCP_CORK`) until it is unset. Without support
    /// each write is sent separately.
    fn set_corked(&self, _on: bool) {}
}

impl Hold for TcpStream {
    fn set_corked(&self, on: bool) {
        if let Err(error) = SockRef::from(self).set_tcp_cork(on) {
            // The connection has ended, which the next write reports.
            tracing::debug!(%error, "a connection cannot be corked");
        }
    }
}

impl Hold for server::TlsStream<TcpStream> {
    fn set_corked(&self, on: bool) {
        self.get_ref().0.set_corked(on);
    }
}

/// Members send each other messages that need few writes.
impl Hold for client::TlsStream<BoxIo> {}

struct Inner {
    io: Box<dyn Hold>,
    gathered: BytesMut,
    /// Large pieces written in this poll.
    large: usize,
    held: bool,
}

impl Inner {
    /// Writes a piece that is not gathered. HTTP/2 splits a long response into frames of 16 KiB,
    /// which the kernel would push and report one by one; from the second frame of a poll on it is
    /// corked.
    fn poll_write_large(&mut self, cx: &mut Context<'_>, piece: &[u8]) -> Poll<io::Result<usize>> {
        self.large += usize::from(piece.len() > COPIED_MAX);
        if self.large > 1 && !self.held {
            self.held = true;
            self.io.set_corked(true);
        }
        self.poll_write(cx, piece)
    }

    fn let_go(&mut self) {
        self.large = 0;
        if std::mem::take(&mut self.held) {
            self.io.set_corked(false);
        }
    }

    /// Writes the gathered bytes and as much of `more` as goes with them; returns how many bytes of
    /// `more` were written, at least one unless it is empty.
    fn poll_write(&mut self, cx: &mut Context<'_>, more: &[u8]) -> Poll<io::Result<usize>> {
        loop {
            let before = self.gathered.len();
            let written = if before == 0 {
                if more.is_empty() {
                    return Poll::Ready(Ok(0));
                }
                return Pin::new(&mut self.io).poll_write(cx, more);
            } else if more.is_empty() {
                ready!(Pin::new(&mut self.io).poll_write(cx, &self.gathered))?
            } else {
                let pieces = [IoSlice::new(&self.gathered), IoSlice::new(more)];
                ready!(Pin::new(&mut self.io).poll_write_vectored(cx, &pieces))?
            };
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.gathered.advance(written.min(before));
            if written > before {
                return Poll::Ready(Ok(written - before));
            }
        }
    }

    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_write(cx, &[]))?;
        if self.gathered.capacity() > KEPT {
            self.gathered = BytesMut::new();
        }
        ready!(Pin::new(&mut self.io).poll_flush(cx))?;
        self.let_go();
        Poll::Ready(Ok(()))
    }
}

/// A connection that writes at the end of each poll of its task, by [`Cork::poll_flush`]; clones
/// share it. Used with [`InlineExecutor::drive_corked`](crate::InlineExecutor::drive_corked), which
/// knows where a poll ends.
#[derive(Clone)]
pub struct Cork(Arc<Mutex<Inner>>);

impl std::fmt::Debug for Cork {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Cork").field(&self.0.lock().gathered.len()).finish()
    }
}

impl Cork {
    /// Wraps a connection that has no other writer.
    pub fn new(io: Box<dyn Hold>) -> Self {
        let inner = Inner { io, gathered: BytesMut::new(), large: 0, held: false };
        Self(Arc::new(Mutex::new(inner)))
    }

    /// Writes the gathered bytes.
    ///
    /// # Errors
    /// Errors of the connection; the next writer receives them, too.
    pub(crate) fn poll_flush(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.lock().poll_flush(cx)
    }
}

impl AsyncRead for Cork {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0.lock().io).poll_read(cx, into)
    }
}

impl AsyncWrite for Cork {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let mut inner = self.0.lock();
        if bytes.len() > COPIED_MAX || inner.gathered.len() + bytes.len() > GATHERED_MAX {
            return inner.poll_write_large(cx, bytes);
        }
        inner.gathered.extend_from_slice(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let mut taken = 0;
        for piece in pieces {
            match self.as_mut().poll_write(cx, piece) {
                Poll::Ready(Ok(count)) => {
                    taken += count;
                    if count < piece.len() {
                        break;
                    }
                }
                // An error of earlier writes is reported first.
                _ if taken > 0 => break,
                other => return other,
            }
        }
        Poll::Ready(Ok(taken))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    /// Does nothing: the end of the poll flushes.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut inner = self.0.lock();
        ready!(inner.poll_flush(cx))?;
        Pin::new(&mut inner.io).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};

    use super::*;

    impl Hold for DuplexStream {}

    /// A connection that records its writes and whether it was corked.
    #[derive(Clone, Default)]
    struct RecordingConnection(Arc<Mutex<Vec<Result<usize, bool>>>>);

    impl Hold for RecordingConnection {
        fn set_corked(&self, on: bool) {
            self.0.lock().push(Err(on));
        }
    }

    impl AsyncRead for RecordingConnection {
        fn poll_read(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
            _: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    impl AsyncWrite for RecordingConnection {
        fn poll_write(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
            bytes: &[u8],
        ) -> Poll<io::Result<usize>> {
            self.0.lock().push(Ok(bytes.len()));
            Poll::Ready(Ok(bytes.len()))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    #[tokio::test]
    async fn of_several_large_pieces_the_kernel_is_told_that_more_comes_until_the_turn_ends() {
        let told = RecordingConnection::default();
        let mut cork = Cork::new(Box::new(told.clone()));
        let done = || std::mem::take(&mut *told.0.lock());
        let (small, large) = (vec![0; 100], vec![0; 16_000]);
        cork.write_all(&large).await.unwrap();
        turn(&cork).await;
        assert_eq!(done(), [Ok(16_000)], "one alone goes out as it is");
        for piece in [&large, &large, &large, &small] {
            cork.write_all(piece).await.unwrap();
        }
        assert_eq!(done(), [Ok(16_000), Err(true), Ok(16_000), Ok(16_000)]);
        turn(&cork).await;
        assert_eq!(done(), [Ok(100), Err(false)]);
        cork.write_all(&small).await.unwrap();
        turn(&cork).await;
        assert_eq!(done(), [Ok(100)]);
        for piece in [&large, &large] {
            cork.write_all(piece).await.unwrap();
        }
        cork.shutdown().await.unwrap();
        assert_eq!(done(), [Ok(16_000), Err(true), Ok(16_000), Err(false)], "also at the end");
    }

    /// A connection with a buffer of this size, and its peer.
    fn corked(room: usize) -> (Cork, DuplexStream) {
        let (near, far) = duplex(room);
        (Cork::new(Box::new(near)), far)
    }

    async fn turn(cork: &Cork) {
        std::future::poll_fn(|cx| cork.poll_flush(cx)).await.unwrap();
    }

    /// Pieces of these lengths, with no two equal adjacent bytes.
    fn pieces(lengths: &[usize]) -> Vec<Vec<u8>> {
        let mut next = (0..=250_u8).cycle();
        lengths.iter().map(|length| next.by_ref().take(*length).collect()).collect()
    }

    #[tokio::test]
    async fn small_pieces_go_at_the_end_of_the_turn() {
        let (mut cork, mut far) = corked(1 << 20);
        cork.write_all(b"one ").await.unwrap();
        let both = [IoSlice::new(b"two "), IoSlice::new(b"three")];
        assert_eq!(cork.write_vectored(&both).await.unwrap(), 9);
        cork.flush().await.unwrap();
        let mut came = [0; 32];
        let early = std::time::Duration::from_millis(1);
        assert!(tokio::time::timeout(early, far.read(&mut came)).await.is_err());
        turn(&cork).await;
        let count = far.read(&mut came).await.unwrap();
        assert_eq!(&came[..count], b"one two three");
    }

    #[tokio::test]
    async fn all_bytes_come_in_their_order_whatever_their_sizes_and_the_room() {
        let pieces = pieces(&[9, 300, 5000, 1, 4096, 4097, 16_384, 30_000, 2, 4000, 70_000, 13]);
        let all = pieces.concat();
        for room in [1, 7, 4096, 20_000, 1 << 20] {
            let (mut cork, mut far) = corked(room);
            let write = async {
                for (n, piece) in pieces.iter().enumerate() {
                    cork.write_all(piece).await.unwrap();
                    if n % 4 == 3 {
                        turn(&cork).await;
                    }
                }
                // Shutdown writes the rest.
                cork.shutdown().await.unwrap();
                drop(cork);
            };
            let mut came = Vec::new();
            let (read, ()) = tokio::join!(far.read_to_end(&mut came), write);
            assert_eq!(read.unwrap(), all.len(), "room for {room}");
            assert!(came == all, "room for {room}");
        }
    }

    #[tokio::test]
    async fn no_more_than_a_bound_is_gathered() {
        let (mut cork, far) = corked(64);
        let many = async {
            for _ in 0..GATHERED_MAX {
                cork.write_all(b"0123456789").await.unwrap();
            }
        };
        let wait = std::time::Duration::from_millis(20);
        assert!(tokio::time::timeout(wait, many).await.is_err(), "it waits for the other end");
        assert!(cork.0.lock().gathered.len() <= GATHERED_MAX);
        drop(far);
        assert!(cork.write_all(&[0; GATHERED_MAX]).await.is_err());
    }
}
