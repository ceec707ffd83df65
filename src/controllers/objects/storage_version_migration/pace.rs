//! The rate of rewrites: a bucket of tokens, as the client of upstream's controller.

use std::time::Duration;

use base::clock;
use parking_lot::Mutex;
use tokio::time::Instant;

/// Rewrites per second: 20 times the rate of kube-controller-manager's clients.
const RATE: f64 = 400.0;
/// Rewrites at one time: 100 times the burst of kube-controller-manager's clients.
const BURST: f64 = 3000.0;

/// A bucket that all workers share; full at first.
#[derive(Debug)]
pub(super) struct Pace(Mutex<Bucket>);

#[derive(Debug)]
struct Bucket {
    /// Negative while requests wait.
    tokens: f64,
    /// When `tokens` was computed; `None` before the first request.
    at: Option<Instant>,
}

impl Default for Pace {
    fn default() -> Self {
        Self(Mutex::new(Bucket { tokens: BURST, at: None }))
    }
}

impl Pace {
    /// Waits until the next rewrite is due.
    pub(super) async fn wait(&self) {
        let delay = self.reserve(clock::now());
        if !delay.is_zero() {
            clock::sleep(delay).await;
        }
    }

    /// Takes a token; returns the time until it is there.
    fn reserve(&self, now: Instant) -> Duration {
        let mut bucket = self.0.lock();
        let passed = bucket.at.map_or(Duration::ZERO, |at| now.saturating_duration_since(at));
        bucket.at = Some(now);
        bucket.tokens = (bucket.tokens + passed.as_secs_f64() * RATE).min(BURST) - 1.0;
        Duration::from_secs_f64((-bucket.tokens / RATE).max(0.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_passes_and_then_400_per_second() {
        let pace = Pace::default();
        let now = clock::now();
        for _ in 0..3000 {
            assert_eq!(pace.reserve(now), Duration::ZERO);
        }
        assert_eq!(pace.reserve(now), Duration::from_micros(2500));
        assert_eq!(pace.reserve(now), Duration::from_millis(5));
        assert_eq!(pace.reserve(now + Duration::from_secs(60)), Duration::ZERO);
    }
}
