//! When the other end was heard last, and the verdict that it is lost.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Instant;

/// A timer that rings so much too late says that this process was stopped or starved: what came meanwhile has not been read yet.
const OVERSLEPT: Duration = Duration::from_millis(500);
/// Time to read it.
const GRACE: Duration = Duration::from_secs(2);

/// The time of the last byte, shared by the stream and who judges it.
#[derive(Debug, Clone)]
pub(super) struct LastHeard {
    start: Instant,
    millis: Arc<AtomicU64>,
}

impl LastHeard {
    pub(super) fn new() -> Self {
        Self { start: base::clock::now(), millis: Arc::default() }
    }

    fn note(&self) {
        let millis = u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.millis.store(millis, Ordering::Relaxed);
    }

    pub(super) fn at(&self) -> Instant {
        self.start + Duration::from_millis(self.millis.load(Ordering::Relaxed))
    }

    /// Resolves when nothing was heard for `silence`.
    pub(super) async fn silent(&self, silence: Duration) {
        let mut deadline = self.at() + silence;
        loop {
            tokio::time::sleep_until(deadline).await;
            match judge(self.at(), silence, deadline, base::clock::now()) {
                Some(next) => deadline = next,
                None => return,
            }
        }
    }
}

/// At `now`, woken for `deadline`: when to look again, or `None` for a loss.
fn judge(last: Instant, silence: Duration, deadline: Instant, now: Instant) -> Option<Instant> {
    if last + silence > now {
        return Some(last + silence);
    }
    (now.saturating_duration_since(deadline) > OVERSLEPT).then(|| now + GRACE)
}

/// A stream that notes when it was heard.
pub(super) struct Heard<T> {
    inner: T,
    last: LastHeard,
}

impl<T> Heard<T> {
    pub(super) fn new(inner: T, last: LastHeard) -> Self {
        Self { inner, last }
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Heard<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let polled = Pin::new(&mut self.inner).poll_read(cx, buffer);
        if buffer.filled().len() > before {
            self.last.note();
        }
        polled
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Heard<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    #[test]
    fn silence_is_a_loss_unless_this_end_was_asleep() {
        let start = base::clock::now();
        let at = |millis: u64| start + Duration::from_millis(millis);
        let silence = Duration::from_millis(5500);
        // Heard meanwhile.
        assert_eq!(judge(at(3000), silence, at(5500), at(5500)), Some(at(8500)));
        assert_eq!(judge(at(0), silence, at(5500), at(5510)), None);
        // The machine was suspended: the bytes are in the socket.
        assert_eq!(judge(at(0), silence, at(5500), at(60_000)), Some(at(62_000)));
        assert_eq!(judge(at(0), silence, at(62_000), at(62_001)), None);
    }

    #[tokio::test(start_paused = true)]
    async fn every_byte_puts_the_verdict_off() {
        let (mut there, here) = tokio::io::duplex(64);
        let last = LastHeard::new();
        let mut here = Heard::new(here, last.clone());
        let start = base::clock::now();
        let talk = async {
            for _ in 0..4 {
                base::clock::sleep(Duration::from_secs(3)).await;
                there.write_all(b"x").await.unwrap();
            }
            std::future::pending::<()>().await;
        };
        let hear = async { while here.read_u8().await.is_ok() {} };
        tokio::select! {
            () = talk => {}
            () = hear => {}
            () = last.silent(Duration::from_secs(5)) => {}
        }
        let took = start.elapsed();
        assert!(took >= Duration::from_secs(17) && took < Duration::from_secs(18), "{took:?}");
    }
}
