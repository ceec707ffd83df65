//! One container of one pod: which of its samples are new, and its memory peak of the current
//! interval (upstream's `ContainerState`).

use super::aggregate::Aggregate;

/// The greatest amount of a resource (`MaxResourceAmount`).
const AMOUNT_MAX: f64 = 1e14;

/// Why a kill for memory does not count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("OOM event will be discarded - it is too old ({0})")]
pub struct TooOld(pub i64);

/// A container of a pod.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ContainerState {
    last_cpu: Option<i64>,
    last_memory: Option<i64>,
    /// Greatest usage in the current interval, in bytes.
    memory_peak: i64,
    /// Greatest estimate from a kill for memory in the current interval, in bytes.
    oom_peak: i64,
    /// End of the current interval.
    window_end: Option<i64>,
}

/// Converts an amount: CPU in thousandths of a core, memory in bytes. The result is within zero and
/// `MaxResourceAmount`; no number is zero.
#[allow(clippy::cast_possible_truncation, reason = "bounded, and the fraction is dropped")]
pub fn amount(number: f64) -> i64 {
    number.clamp(0.0, AMOUNT_MAX) as i64
}

/// An amount as a number.
#[allow(clippy::cast_precision_loss, reason = "amounts are below 2^53")]
pub fn number(amount: i64) -> f64 {
    amount as f64
}

impl ContainerState {
    /// Adds a sample of CPU in thousandths of a core; returns whether it is a new one.
    pub fn add_cpu(&mut self, millis: i64, at: i64, aggregate: &mut Aggregate) -> bool {
        if millis < 0 || self.last_cpu.is_some_and(|last| at <= last) {
            return false;
        }
        aggregate.add_cpu(number(millis) / 1000.0, at);
        self.last_cpu = Some(at);
        true
    }

    /// Adds a sample of memory in bytes; returns whether it is not outdated.
    pub fn add_memory(&mut self, bytes: i64, at: i64, aggregate: &mut Aggregate) -> bool {
        if bytes < 0 || self.last_memory.is_some_and(|last| at < last) {
            return false;
        }
        if self.add_peak(bytes, at, aggregate) {
            self.memory_peak = bytes;
        }
        true
    }

    /// Adds a kill for memory as an estimate of what the container needs; `requested` is the
    /// request of memory in bytes at that time.
    ///
    /// # Errors
    /// The kill is more than an interval older than the last sample.
    pub fn record_oom(
        &mut self,
        requested: i64,
        at: i64,
        aggregate: &mut Aggregate,
    ) -> Result<(), TooOld> {
        let rules = aggregate.rules;
        if self.last_memory.is_some_and(|last| at < last.saturating_sub(rules.interval)) {
            return Err(TooOld(at));
        }
        // Without the estimate of an earlier kill, so that repeated kills do not add up.
        let used = requested.max(self.memory_peak);
        let needed = used
            .saturating_add(amount(rules.min_bump))
            .max(amount(number(used) * rules.bump_ratio));
        if self.add_peak(needed, at, aggregate) {
            self.oom_peak = needed;
        }
        Ok(())
    }

    /// The memory peak of the current interval with its end, if the interval has not ended.
    pub fn current_peak(&self, now: i64) -> Option<(f64, i64)> {
        let end = self.window_end.filter(|end| now < *end)?;
        Some((number(self.peak()), end))
    }

    fn peak(&self) -> i64 {
        self.memory_peak.max(self.oom_peak)
    }

    /// Adds what may be the peak of an interval; returns whether it is.
    fn add_peak(&mut self, bytes: i64, at: i64, aggregate: &mut Aggregate) -> bool {
        self.last_memory = Some(at);
        let end = self.window_end.unwrap_or(at);
        let is_peak = if at < end {
            self.window_end = Some(end);
            let old = self.peak();
            let is_higher = old != 0 && bytes > old;
            if is_higher {
                aggregate.memory.subtract(number(old), 1.0, end);
            }
            is_higher
        } else {
            let interval = aggregate.rules.interval.max(1);
            let ended = at.saturating_sub(end) / interval;
            let shift = ended.saturating_add(1).saturating_mul(interval);
            self.window_end = Some(end.saturating_add(shift));
            (self.memory_peak, self.oom_peak) = (0, 0);
            true
        };
        if is_peak {
            let end = self.window_end.unwrap_or(end);
            aggregate.memory.add(number(bytes), 1.0, end);
        }
        is_peak
    }
}

#[cfg(test)]
mod tests;
