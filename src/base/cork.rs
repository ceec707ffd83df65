//! Gathers the writes of one poll of a connection's task. Without this, HTTP/2 flushes each larger
//! frame before it takes the next, and a system call per response costs more than the response.

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

/// Maximum size of a piece that is copied. Larger ones are written at once, together with the
/// gathered bytes before them.
const COPIED_MAX: usize = 4 * 1024;

/// Maximum buffer capacity that is kept between polls; a larger buffer is freed.
const KEPT_CAPACITY: usize = 4 * 1024;

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
            tracing::debug!(%error, "connection: cannot set TCP_CORK");
        }
    }
}

impl Hold for server::TlsStream<TcpStream> {
    fn set_corked(&self, on: bool) {
        self.get_ref().0.set_corked(on);
    }
}

/// Is not corked: this is a connection between members, whose messages need few writes.
impl Hold for client::TlsStream<BoxIo> {}

struct Inner {
    io: Box<dyn Hold>,
    /// Bytes to write at the end of the poll.
    gathered: BytesMut,
    /// The number of large pieces written in this poll.
    large_pieces: usize,
    /// Whether the kernel delays partial segments at present.
    is_corked: bool,
}

impl Inner {
    /// Writes a piece that is not gathered. HTTP/2 splits a long response into frames of 16 KiB,
    /// which the kernel would send one by one; from the second frame of a poll on the connection is
    /// corked.
    fn poll_write_large(&mut self, cx: &mut Context<'_>, piece: &[u8]) -> Poll<io::Result<usize>> {
        // A small piece arrives here if the buffer is full.
        self.large_pieces += usize::from(piece.len() > COPIED_MAX);
        if self.large_pieces > 1 && !self.is_corked {
            self.is_corked = true;
            self.io.set_corked(true);
        }
        self.poll_write(cx, piece)
    }

    /// Ends the poll: sends the delayed partial segment.
    fn uncork(&mut self) {
        self.large_pieces = 0;
        if std::mem::take(&mut self.is_corked) {
            self.io.set_corked(false);
        }
    }

    /// Writes the gathered bytes, and as much of `more` as the same system call accepts. Returns
    /// how many bytes of `more` were written, at least one unless it is empty.
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
        if self.gathered.capacity() > KEPT_CAPACITY {
            self.gathered = BytesMut::new();
        }
        ready!(Pin::new(&mut self.io).poll_flush(cx))?;
        self.uncork();
        Poll::Ready(Ok(()))
    }
}

/// A connection that writes at the end of each poll of its task; clones share the connection.
/// [`InlineExecutor::drive_corked`](crate::InlineExecutor::drive_corked) calls [`Cork::poll_flush`]
/// at that time.
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
        let inner = Inner { io, gathered: BytesMut::new(), large_pieces: 0, is_corked: false };
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
                // Return what was taken; the next call returns the error or waits.
                _ if taken > 0 => break,
                other => return other,
            }
        }
        Poll::Ready(Ok(taken))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    /// Does nothing: the bytes are flushed at the end of the poll.
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

    /// A connection that records its calls in order: `Ok` with the length of a write, `Err` with
    /// the argument of `set_corked`.
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
    async fn a_connection_is_corked_from_the_second_large_piece_to_the_end_of_the_poll() {
        let recording = RecordingConnection::default();
        let mut cork = Cork::new(Box::new(recording.clone()));
        let calls = || std::mem::take(&mut *recording.0.lock());
        let (small, large) = (vec![0; 100], vec![0; 16_000]);
        cork.write_all(&large).await.unwrap();
        end_poll(&cork).await;
        assert_eq!(calls(), [Ok(16_000)], "a single large piece is not corked");
        for piece in [&large, &large, &large, &small] {
            cork.write_all(piece).await.unwrap();
        }
        assert_eq!(calls(), [Ok(16_000), Err(true), Ok(16_000), Ok(16_000)]);
        end_poll(&cork).await;
        assert_eq!(calls(), [Ok(100), Err(false)]);
        cork.write_all(&small).await.unwrap();
        end_poll(&cork).await;
        assert_eq!(calls(), [Ok(100)]);
        for piece in [&large, &large] {
            cork.write_all(piece).await.unwrap();
        }
        cork.shutdown().await.unwrap();
        assert_eq!(
            calls(),
            [Ok(16_000), Err(true), Ok(16_000), Err(false)],
            "shutdown uncorks, too"
        );
    }

    /// A connection with a buffer of this size, and its peer.
    fn corked(capacity: usize) -> (Cork, DuplexStream) {
        let (near, far) = duplex(capacity);
        (Cork::new(Box::new(near)), far)
    }

    /// Does what the executor does at the end of a poll.
    async fn end_poll(cork: &Cork) {
        std::future::poll_fn(|cx| cork.poll_flush(cx)).await.unwrap();
    }

    /// Pieces of these lengths, with no two equal adjacent bytes.
    fn pieces(lengths: &[usize]) -> Vec<Vec<u8>> {
        let mut next = (0..=250_u8).cycle();
        lengths.iter().map(|length| next.by_ref().take(*length).collect()).collect()
    }

    #[tokio::test]
    async fn small_pieces_are_written_at_the_end_of_the_poll() {
        let (mut cork, mut far) = corked(1 << 20);
        cork.write_all(b"one ").await.unwrap();
        let both = [IoSlice::new(b"two "), IoSlice::new(b"three")];
        assert_eq!(cork.write_vectored(&both).await.unwrap(), 9);
        cork.flush().await.unwrap();
        let mut received = [0; 32];
        let timeout = std::time::Duration::from_millis(1);
        assert!(tokio::time::timeout(timeout, far.read(&mut received)).await.is_err());
        end_poll(&cork).await;
        let count = far.read(&mut received).await.unwrap();
        assert_eq!(&received[..count], b"one two three");
    }

    #[tokio::test]
    async fn bytes_arrive_in_order_for_all_sizes_of_pieces_and_buffers() {
        let pieces = pieces(&[9, 300, 5000, 1, 4096, 4097, 16_384, 30_000, 2, 4000, 70_000, 13]);
        let all = pieces.concat();
        for capacity in [1, 7, 4096, 20_000, 1 << 20] {
            let (mut cork, mut far) = corked(capacity);
            let write = async {
                for (n, piece) in pieces.iter().enumerate() {
                    cork.write_all(piece).await.unwrap();
                    if n % 4 == 3 {
                        end_poll(&cork).await;
                    }
                }
                // Shutdown writes the rest.
                cork.shutdown().await.unwrap();
                drop(cork);
            };
            let mut received = Vec::new();
            let (read, ()) = tokio::join!(far.read_to_end(&mut received), write);
            assert_eq!(read.unwrap(), all.len(), "buffer of {capacity} bytes");
            assert!(received == all, "buffer of {capacity} bytes");
        }
    }

    #[tokio::test]
    async fn gathered_bytes_never_exceed_gathered_max() {
        let (mut cork, far) = corked(64);
        let many = async {
            for _ in 0..GATHERED_MAX {
                cork.write_all(b"0123456789").await.unwrap();
            }
        };
        let wait = std::time::Duration::from_millis(20);
        assert!(
            tokio::time::timeout(wait, many).await.is_err(),
            "the writer waits for the other end"
        );
        assert!(cork.0.lock().gathered.len() <= GATHERED_MAX);
        drop(far);
        assert!(cork.write_all(&[0; GATHERED_MAX]).await.is_err());
    }
}
