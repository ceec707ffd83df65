//! The rate limit of the API: a bucket of tokens, as Go's `rate.Limiter`.

use std::time::Duration;

use tokio::time::Instant;

/// Requests per second (`podresources.DefaultQPS`).
const RATE: f64 = 100.0;
/// Requests at one time (`podresources.DefaultBurstTokens`).
const BURST: f64 = 10.0;

/// A bucket that is full at first.
#[derive(Debug)]
pub(super) struct TokenBucket {
    tokens: f64,
    /// When `tokens` was computed; `None` before the first request.
    at: Option<Instant>,
}

impl Default for TokenBucket {
    fn default() -> Self {
        Self { tokens: BURST, at: None }
    }
}

impl TokenBucket {
    /// Takes a token; returns whether there was one.
    pub(super) fn take(&mut self, now: Instant) -> bool {
        let passed = self.at.map_or(Duration::ZERO, |at| now.saturating_duration_since(at));
        self.at = Some(now);
        self.tokens = (self.tokens + passed.as_secs_f64() * RATE).min(BURST);
        let has_token = self.tokens >= 1.0;
        if has_token {
            self.tokens -= 1.0;
        }
        has_token
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_of_ten_and_then_a_hundred_per_second_pass() {
        let mut bucket = TokenBucket::default();
        let now = base::clock::now();
        let mut taken = |at, tries| (0..tries).filter(|_| bucket.take(at)).count();
        assert_eq!(taken(now, 20), 10);
        assert_eq!(taken(now + Duration::from_millis(51), 20), 5);
        assert_eq!(taken(now + Duration::from_secs(60), 20), 10);
    }
}
