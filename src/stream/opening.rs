//! A time limit for the first bytes of a connection.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Bytes that identify the protocol (the preface of HTTP/2, RFC 9113, section 3.4; no request of
/// HTTP/1.1 is shorter).
const FIRST: usize = 24;

type Limit = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A stream whose peer has a limited time for its first bytes.
///
/// Servers limit the time for headers only once they know the version of HTTP. A client that
/// completes the TLS handshake and sends nothing would occupy a connection slot forever.
pub struct Opening<S> {
    stream: S,
    /// Until the first bytes have arrived: the deadline and the number of missing bytes.
    awaited: Option<(Limit, usize)>,
}

impl<S> Opening<S> {
    /// Requires the first bytes within `limit`.
    pub fn new(stream: S, limit: Duration) -> Self {
        Self { stream, awaited: Some((Box::pin(base::clock::sleep(limit)), FIRST)) }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Opening<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buf);
        let Some((limit, missing)) = &mut self.awaited else { return read };
        let come = buf.filled().len().saturating_sub(before);
        *missing = missing.saturating_sub(come);
        if *missing == 0 {
            self.awaited = None;
            return read;
        }
        if read.is_pending() && limit.as_mut().poll(cx).is_ready() {
            let why = "the first bytes of a request did not come in time";
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, why)));
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Opening<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    const LIMIT: Duration = Duration::from_millis(100);

    /// C3.5, C3.20: silent and slow clients are disconnected; a client that has sent its first
    /// bytes is not.
    #[tokio::test]
    async fn first_bytes_after_the_deadline_are_an_error() {
        for begun in ["", "GET / HTTP/1.1\r\n"] {
            let (mut client, server) = tokio::io::duplex(1024);
            client.write_all(begun.as_bytes()).await.unwrap();
            let mut opening = Opening::new(server, LIMIT);
            let mut heard = Vec::new();
            let error = opening.read_to_end(&mut heard).await.unwrap_err();
            assert_eq!((error.kind(), heard.len()), (io::ErrorKind::TimedOut, begun.len()));
        }
        let (mut client, server) = tokio::io::duplex(1024);
        client.write_all(b"GET /healthz HTTP/1.1\r\nHost: a\r\n").await.unwrap();
        let mut opening = Opening::new(server, Duration::ZERO);
        let mut heard = [0; 1024];
        assert_eq!(opening.read(&mut heard).await.unwrap(), 32);
        drop(client);
        assert_eq!(opening.read(&mut heard).await.unwrap(), 0);
    }
}
