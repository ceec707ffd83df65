//! A bound for the first bytes of a connection.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Bytes by which a server knows what is spoken (the preface of HTTP/2, RFC 9113, section 3.4; no
/// request of HTTP/1.1 is shorter).
const FIRST: usize = 24;

type Limit = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A stream whose peer has a limited time for its first bytes.
///
/// Servers bound the time for headers only once they know which version of HTTP is spoken. Whoever
/// ends a TLS handshake and says nothing would hold one of few places for ever.
pub struct Opening<S> {
    stream: S,
    /// Until the first bytes are there: the end of the time, and how many are to come.
    awaited: Option<(Limit, usize)>,
}

impl<S> Opening<S> {
    /// The first bytes have to come within `limit`.
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

    /// C3.5, C3.20: who says nothing, or drips, is hung up on; who has begun is not.
    #[tokio::test]
    async fn the_first_bytes_have_a_time() {
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
