//! Failed attempts to join, counted by address, so that guessing and misconfigured machines cost
//! little.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

use base::clock;
use parking_lot::Mutex;
use tokio::time::Instant;

/// Maximum number of failures of one address within [`WINDOW`]; a machine that its service manager
/// restarts stays below.
const FAILURES_MAX: u32 = 20;
/// How long a failure counts.
const WINDOW: Duration = Duration::from_secs(60);
/// Maximum number of addresses; the oldest is dropped.
const ADDRESSES_MAX: usize = 1024;

/// Start of the window and number of failures in it, by address.
#[derive(Default)]
pub(super) struct FailedAttempts(Mutex<HashMap<IpAddr, (Instant, u32)>>);

/// The key of an address: one IPv6 subscriber has a whole /64.
fn key(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V6(v6) => IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() >> 64 << 64)),
        v4 @ IpAddr::V4(_) => v4,
    }
}

impl FailedAttempts {
    /// Counts a failure.
    pub(super) fn failed(&self, from: IpAddr) {
        self.failed_at(from, clock::now());
    }

    fn failed_at(&self, from: IpAddr, now: Instant) {
        let key = key(from);
        let mut all = self.0.lock();
        if all.len() >= ADDRESSES_MAX && !all.contains_key(&key) {
            let oldest = all.iter().min_by_key(|(_, (begin, _))| *begin).map(|(ip, _)| *ip);
            if let Some(oldest) = oldest {
                all.remove(&oldest);
            }
        }
        let entry = all.entry(key).or_insert((now, 0));
        if now.duration_since(entry.0) >= WINDOW {
            *entry = (now, 0);
        }
        entry.1 = entry.1.saturating_add(1);
    }

    /// Whether the address has failed too often.
    pub(super) fn is_blocked(&self, from: IpAddr) -> bool {
        self.is_blocked_at(from, clock::now())
    }

    fn is_blocked_at(&self, from: IpAddr, now: Instant) -> bool {
        self.0.lock().get(&key(from)).is_some_and(|(begin, failures)| {
            *failures >= FAILURES_MAX && now.duration_since(*begin) < WINDOW
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_fails_too_often_waits_a_minute_and_others_do_not() {
        let (attempts, now) = (FailedAttempts::default(), clock::now());
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        for _ in 0..FAILURES_MAX {
            assert!(!attempts.is_blocked_at(ip("2001:db8::1"), now));
            attempts.failed_at(ip("2001:db8::1"), now);
        }
        assert!(attempts.is_blocked_at(ip("2001:db8::2"), now));
        assert!(!attempts.is_blocked_at(ip("2001:db8:0:1::2"), now));
        assert!(!attempts.is_blocked_at(ip("2001:db8::2"), now + WINDOW));
        for n in 0..5000_u32 {
            attempts.failed_at(IpAddr::V4(n.into()), now);
        }
        assert_eq!(attempts.0.lock().len(), ADDRESSES_MAX);
    }
}
