//! Detects a lost peer: the time of the last received byte and the decision that it was too long
//! ago.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::Notify;
use tokio::time::Instant;

/// A timer that fires this late means that this process was suspended or starved: received bytes
/// have not been read yet.
const OVERSLEPT: Duration = Duration::from_millis(500);
/// Time to read them.
const GRACE: Duration = Duration::from_secs(2);

/// The time of the last byte, shared by the streams and the liveness check.
#[derive(Debug, Clone)]
pub(super) struct LastActivity {
    start: Instant,
    state: Arc<ActivityState>,
}

#[derive(Debug, Default)]
struct ActivityState {
    millis: AtomicU64,
    activity: Notify,
}

impl LastActivity {
    pub(super) fn new() -> Self {
        Self { start: base::clock::now(), state: Arc::default() }
    }

    fn record(&self) {
        let millis = u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.state.millis.store(millis, Ordering::Relaxed);
        self.state.activity.notify_waiters();
    }

    pub(super) fn at(&self) -> Instant {
        self.start + Duration::from_millis(self.state.millis.load(Ordering::Relaxed))
    }

    /// Resolves when a byte arrives after `seen`.
    pub(super) async fn resumed(&self, seen: Instant) {
        while self.at() <= seen {
            let activity = self.state.activity.notified();
            // A byte before `notified` is visible here; a later one wakes the future.
            if self.at() > seen {
                return;
            }
            activity.await;
        }
    }

    /// Resolves when no byte arrived for `silence`.
    pub(super) async fn silent(&self, silence: Duration) {
        let mut deadline = self.at() + silence;
        loop {
            tokio::time::sleep_until(deadline).await;
            match next_check(self.at(), silence, deadline, base::clock::now()) {
                Some(next) => deadline = next,
                None => return,
            }
        }
    }
}

/// At `now`, woken for `deadline`: when to check again, or `None` if the peer is lost.
fn next_check(
    last: Instant,
    silence: Duration,
    deadline: Instant,
    now: Instant,
) -> Option<Instant> {
    if last + silence > now {
        return Some(last + silence);
    }
    (now.saturating_duration_since(deadline) > OVERSLEPT).then(|| now + GRACE)
}

/// A stream that records its activity: for itself and for all connections of the same machine.
pub(super) struct ActivityTracker<T> {
    inner: T,
    last: [LastActivity; 2],
}

impl<T> ActivityTracker<T> {
    pub(super) fn new(inner: T, own: LastActivity, all: LastActivity) -> Self {
        Self { inner, last: [own, all] }
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for ActivityTracker<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let polled = Pin::new(&mut self.inner).poll_read(cx, buffer);
        if buffer.filled().len() > before {
            self.last.iter().for_each(LastActivity::record);
        }
        polled
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for ActivityTracker<T> {
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
    fn silence_means_loss_unless_this_process_was_suspended() {
        let start = base::clock::now();
        let at = |millis: u64| start + Duration::from_millis(millis);
        let silence = Duration::from_millis(5500);
        // A byte arrived in the meantime.
        assert_eq!(next_check(at(3000), silence, at(5500), at(5500)), Some(at(8500)));
        assert_eq!(next_check(at(0), silence, at(5500), at(5510)), None);
        // The machine was suspended: the bytes are in the socket.
        assert_eq!(next_check(at(0), silence, at(5500), at(60_000)), Some(at(62_000)));
        assert_eq!(next_check(at(0), silence, at(62_000), at(62_001)), None);
    }

    #[tokio::test(start_paused = true)]
    async fn activity_after_silence_resolves_resumed() {
        let last = LastActivity::new();
        last.silent(Duration::from_secs(5)).await;
        let seen = last.at();
        let mut resumed = Box::pin(last.resumed(seen));
        assert!(futures::poll!(resumed.as_mut()).is_pending());
        last.record();
        resumed.await;
        last.resumed(seen).await;
    }

    #[tokio::test(start_paused = true)]
    async fn every_byte_extends_the_deadline() {
        let (mut there, here) = tokio::io::duplex(64);
        let last = LastActivity::new();
        let mut here = ActivityTracker::new(here, LastActivity::new(), last.clone());
        let start = base::clock::now();
        let talk = async {
            for _ in 0..4 {
                base::clock::sleep(Duration::from_secs(3)).await;
                there.write_all(b"x").await.unwrap();
            }
            std::future::pending::<()>().await;
        };
        let read = async { while here.read_u8().await.is_ok() {} };
        tokio::select! {
            () = talk => {}
            () = read => {}
            () = last.silent(Duration::from_secs(5)) => {}
        }
        let took = start.elapsed();
        assert!(took >= Duration::from_secs(17) && took < Duration::from_secs(18), "{took:?}");
    }
}
