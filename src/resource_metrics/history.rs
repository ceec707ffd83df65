//! The last hour of every node and pod in bounded memory: 240 points of 15 s, 8 bytes each.

use std::collections::{HashMap, VecDeque};

use sorting::CompactSort as _;

use crate::sample::PodKey;
use crate::usage::RESOLUTION;

/// Points of a series: one hour.
pub const POINTS_MAX: usize = 240;
/// Series of all nodes and pods together, 2 KB each.
const SERIES_MAX: usize = 2048;

/// CPU and memory at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HistoryPoint {
    /// CPU in millionths of a core.
    pub cpu_micro: u32,
    /// Working set in KiB.
    pub memory_kib: u32,
}

/// A moment without a measurement.
const GAP: HistoryPoint = HistoryPoint { cpu_micro: u32::MAX, memory_kib: u32::MAX };

impl HistoryPoint {
    /// Converts nanocores and bytes; values beyond the range become its end.
    pub fn new(cpu: u64, memory: u64) -> Self {
        let bounded = |value: u64| u32::try_from(value).unwrap_or(u32::MAX - 1);
        Self { cpu_micro: bounded(cpu / 1000), memory_kib: bounded(memory / 1024) }
    }
}

/// A node or a pod.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Subject {
    /// A node by name.
    Node(String),
    /// A pod.
    Pod(PodKey),
}

/// The points of a subject, oldest first, one each 15 s; `None` is a gap.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Series {
    /// The subject.
    pub subject: Subject,
    /// Time of the last point, in seconds since the epoch.
    pub last: i64,
    /// The points.
    pub points: Vec<Option<HistoryPoint>>,
}

#[derive(Debug, Default)]
struct Ring {
    /// Number of the last point: seconds since the epoch divided by the resolution.
    tick: i64,
    points: VecDeque<HistoryPoint>,
}

impl Ring {
    fn push(&mut self, tick: i64, point: HistoryPoint) {
        let ahead = usize::try_from(tick.saturating_sub(self.tick)).unwrap_or(0);
        if ahead == 0 && !self.points.is_empty() {
            // A second measurement of the same tick, or a clock that was set back.
            self.points.pop_back();
        } else if !self.points.is_empty() {
            self.points.extend(std::iter::repeat_n(GAP, (ahead - 1).min(POINTS_MAX)));
        }
        self.tick = tick;
        self.points.push_back(point);
        let surplus = self.points.len().saturating_sub(POINTS_MAX);
        self.points.drain(..surplus);
    }
}

/// The series of all nodes and pods.
#[derive(Debug, Default)]
pub(crate) struct History(HashMap<Subject, Ring>);

fn tick_of(at: i64) -> i64 {
    at.div_euclid(RESOLUTION)
}

impl History {
    /// Adds a point at a time in nanoseconds since the epoch. A new series that does not fit
    /// replaces the one that ended first.
    pub(crate) fn push(&mut self, subject: Subject, at: i64, point: HistoryPoint) {
        if self.0.len() >= SERIES_MAX && !self.0.contains_key(&subject) {
            let oldest = self.0.iter().min_by_key(|(_, ring)| ring.tick).map(|(s, _)| s.clone());
            if let Some(oldest) = oldest {
                self.0.remove(&oldest);
            }
        }
        self.0.entry(subject).or_default().push(tick_of(at), point);
    }

    /// Drops the series that ended more than an hour before `now`.
    pub(crate) fn prune(&mut self, now: i64) {
        let kept = i64::try_from(POINTS_MAX).unwrap_or(i64::MAX);
        self.0.retain(|_, ring| tick_of(now).saturating_sub(ring.tick) <= kept);
    }

    /// The series that `wanted` selects, in the order of their subjects.
    pub(crate) fn select(&self, wanted: impl Fn(&Subject) -> bool) -> Vec<Series> {
        let mut all: Vec<Series> = self
            .0
            .iter()
            .filter(|(subject, _)| wanted(subject))
            .map(|(subject, ring)| Series {
                subject: subject.clone(),
                last: ring.tick.saturating_mul(RESOLUTION / 1_000_000_000),
                points: ring.points.iter().map(|p| (*p != GAP).then_some(*p)).collect(),
            })
            .collect();
        all.compact_sort_by(|a, b| a.subject.cmp(&b.subject));
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str) -> Subject {
        Subject::Node(name.into())
    }

    fn push(history: &mut History, name: &str, tick: i64, cpu: u64) {
        history.push(node(name), tick * RESOLUTION + 7, HistoryPoint::new(cpu * 1000, 4096));
    }

    #[test]
    fn a_series_has_a_point_for_each_tick_and_gaps_between() {
        let mut history = History::default();
        for (tick, cpu) in [(100, 1), (101, 2), (101, 3), (104, 4), (103, 5)] {
            push(&mut history, "a", tick, cpu);
        }
        let series = history.select(|_| true).remove(0);
        let cpus: Vec<_> = series.points.iter().map(|p| p.map(|p| p.cpu_micro)).collect();
        assert_eq!(cpus, [Some(1), Some(3), None, None, Some(5)]);
        assert_eq!(series.last, 103 * 15);
        assert_eq!(series.points[0].map(|p| p.memory_kib), Some(4));
    }

    #[test]
    fn a_series_covers_one_hour() {
        let mut history = History::default();
        for tick in 0..300 {
            push(&mut history, "a", tick, 1);
        }
        push(&mut history, "a", 100_000, 2);
        let points = history.select(|_| true).remove(0).points;
        assert_eq!(points.len(), POINTS_MAX);
        assert_eq!(points.iter().flatten().count(), 1);
        history.prune((100_000 + 240) * RESOLUTION);
        assert_eq!(history.0.len(), 1);
        history.prune((100_000 + 241) * RESOLUTION);
        assert!(history.0.is_empty());
    }

    #[test]
    fn the_series_that_ended_first_makes_room() {
        let mut history = History::default();
        for number in 0..SERIES_MAX {
            push(&mut history, &number.to_string(), if number == 7 { 1 } else { 2 }, 1);
        }
        push(&mut history, "new", 3, 1);
        assert_eq!(history.0.len(), SERIES_MAX);
        assert!(!history.0.contains_key(&node("7")) && history.0.contains_key(&node("new")));
    }

    #[test]
    fn values_beyond_the_range_are_not_gaps() {
        let point = HistoryPoint::new(u64::MAX, u64::MAX);
        assert_ne!(point, GAP);
    }
}
