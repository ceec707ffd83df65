//! Seats, and seat-seconds, the unit of fair queuing (upstream's `flowcontrol/request`).

use std::fmt;
use std::time::Duration;

/// The units per seat-second (upstream's `ssScale`).
const SCALE: f64 = 1e8;

/// An amount of work: seats times time, in units of 1e-8 seat-seconds. It wraps like Go's unsigned
/// integers; the progress meter R is decremented before that.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SeatSeconds(pub(crate) u64);

impl SeatSeconds {
    /// The largest amount.
    pub(crate) const MAX: Self = Self(u64::MAX);

    /// `seats` held for `time`, rounded.
    pub(crate) fn of(seats: f64, time: Duration) -> Self {
        let nanos = time.as_nanos() as f64;
        Self((seats * nanos / (1e9 / SCALE)).round() as u64)
    }

    /// The time that `seats` seats need for this work.
    pub(crate) fn per_seat(self, seats: f64) -> Duration {
        Duration::from_nanos((self.0 as f64 / seats * (1e9 / SCALE)) as u64)
    }

    /// Seat-seconds, for metrics.
    pub(crate) fn to_f64(self) -> f64 {
        self.0 as f64 / SCALE
    }

    pub(crate) fn plus(self, other: Self) -> Self {
        Self(self.0.wrapping_add(other.0))
    }

    pub(crate) fn minus(self, other: Self) -> Self {
        Self(self.0.wrapping_sub(other.0))
    }
}

impl fmt::Display for SeatSeconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:08}ss", self.0 / 100_000_000, self.0 % 100_000_000)
    }
}

/// The estimated seats of a request (upstream's `WorkEstimate`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Work {
    /// The seats until the response.
    pub(crate) initial: u64,
    /// The seats after the response, while watches receive the change.
    pub(crate) last: u64,
    /// The duration after the response (`AdditionalLatency`); the client does not wait for it.
    pub(crate) additional: Duration,
}

impl Work {
    /// So many seats until the response, and none after it.
    pub(crate) const fn of(seats: u64) -> Self {
        Self { initial: seats, last: 0, additional: Duration::ZERO }
    }

    /// The seats for both phases.
    pub(crate) fn seats(&self) -> u64 {
        self.initial.max(self.last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The rows of upstream's `TestSeatSecondsString` and `TestSeatSecondsPerSeat`.
    #[test]
    fn seat_seconds_are_shown_and_divided_as_upstream() {
        let of = |seats, millis| SeatSeconds::of(seats, Duration::from_millis(millis));
        for (ss, float, text) in [
            (SeatSeconds(1), 1e-8, "0.00000001ss"),
            (SeatSeconds(99_999_999), 0.999_999_99, "0.99999999ss"),
            (SeatSeconds(0), 0.0, "0.00000000ss"),
            (of(1.0, 1000), 1.0, "1.00000000ss"),
            (of(123.0, 100), 12.3, "12.30000000ss"),
            (of(1203.0, 10), 12.03, "12.03000000ss"),
        ] {
            assert_eq!((ss.to_string().as_str(), ss.to_f64()), (text, float));
        }
        for (ss, seats, millis) in [
            (of(10.0, 1000), 1.0, 10_000),
            (of(1.0, 1000), 10.0, 100),
            (of(13.0, 5), 5.0, 13),
            (of(12.0, 0), 10.0, 0),
        ] {
            assert_eq!(ss.per_seat(seats), Duration::from_millis(millis));
        }
    }
}
