//! Exponential backoff with jitter and a limit, used for all retries.

use std::time::Duration;

use crate::clock;
use crate::tasks::Shutdown;

/// Delays `initial`, `initial × 2`, … up to `max`, each with up to 10 % of jitter added.
#[derive(Debug, Clone)]
pub struct Backoff {
    initial: Duration,
    max: Duration,
    failures: u32,
}

impl Backoff {
    /// Creates a backoff that starts at `initial` and never exceeds `max` by more than its jitter.
    pub fn new(initial: Duration, max: Duration) -> Self {
        Self { initial, max, failures: 0 }
    }

    /// The next delay; each call doubles it.
    pub fn next_delay(&mut self) -> Duration {
        let factor = 2_u32.saturating_pow(self.failures.min(30));
        self.failures = self.failures.saturating_add(1);
        let base = self.initial.saturating_mul(factor).min(self.max);
        base + base.mul_f64(clock::random_f64() * 0.1)
    }

    /// Starts again from `initial`, after a success.
    pub fn reset(&mut self) {
        self.failures = 0;
    }

    /// The number of delays since the last reset.
    pub fn failures(&self) -> u32 {
        self.failures
    }

    /// Waits for the next delay; returns `false` if shutdown came first.
    pub async fn wait(&mut self, shutdown: &Shutdown) -> bool {
        self.wait_or(shutdown, std::future::pending()).await
    }

    /// As [`Backoff::wait`], but at most until `sooner` resolves.
    pub async fn wait_or(&mut self, shutdown: &Shutdown, sooner: impl Future<Output = ()>) -> bool {
        let delay = self.next_delay();
        tokio::select! {
            biased;
            () = clock::sleep(delay) => true,
            () = sooner => true,
            () = shutdown.requested() => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doubles_up_to_the_cap_and_starts_again_after_reset() {
        let mut backoff = Backoff::new(Duration::from_millis(10), Duration::from_millis(35));
        for want in [10, 20, 35, 35] {
            let got = backoff.next_delay();
            let want = Duration::from_millis(want);
            assert!(got >= want && got <= want + want.mul_f64(0.1), "{got:?} for {want:?}");
        }
        backoff.reset();
        assert!(backoff.next_delay() < Duration::from_millis(12));
    }
}
