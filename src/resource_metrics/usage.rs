//! From two points to a usage (metrics-server's `pkg/storage`).

use crate::sample::{Containers, Point};

/// Interval between two measurements (metrics-server's `--metric-resolution`), in nanoseconds.
pub const RESOLUTION: i64 = 15_000_000_000;
/// Least age of a container whose start is its first point (`freshContainerMinMetricsResolution`),
/// in nanoseconds: a shorter window is too imprecise.
const FRESH_MIN: i64 = 10_000_000_000;

/// Usage of a node or of a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    /// End of the window, in nanoseconds since the epoch.
    pub at: i64,
    /// Length of the window, in nanoseconds.
    pub window: i64,
    /// CPU in nanocores, averaged over the window.
    pub cpu: u64,
    /// Working set at the end of the window, in bytes.
    pub memory: u64,
}

/// Usage of the containers of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodUsage {
    /// End of the earliest window, in nanoseconds since the epoch.
    pub at: i64,
    /// Its length in nanoseconds.
    pub window: i64,
    /// The containers by name.
    pub containers: Vec<(String, Usage)>,
}

/// The point that begins the window of `new`, given the last point and the one before it: the start
/// of a container that is younger than the resolution, otherwise the last point before `new` of the
/// same run of the container.
pub(crate) fn begin(new: &Point, last: Option<&Point>, prev: Option<&Point>) -> Option<Point> {
    let age = new.at.saturating_sub(new.started);
    if new.started > 0 && (FRESH_MIN..RESOLUTION).contains(&age) {
        return Some(Point { at: new.started, cpu_ns: 0, ..*new });
    }
    // A container that started after the last point has restarted.
    let last = last.filter(|last| new.started < last.at)?;
    if new.at > last.at {
        return Some(*last);
    }
    prev.filter(|prev| prev.at < new.at).copied()
}

/// The usage between two points (`resourceUsage`); `None` if a counter decreased.
pub(crate) fn between(last: &Point, prev: &Point) -> Option<Usage> {
    let window = last.at.checked_sub(prev.at).filter(|window| *window > 0)?;
    if last.started < prev.started {
        return None;
    }
    let used = u128::from(last.cpu_ns.checked_sub(prev.cpu_ns)?);
    let cpu = used.checked_mul(1_000_000_000)?.checked_div(u128::try_from(window).ok()?)?;
    Some(Usage { at: last.at, window, cpu: u64::try_from(cpu).ok()?, memory: last.memory })
}

/// The usage of a pod; `None` unless every container has two points.
pub(crate) fn of_pod(last: &Containers, prev: &Containers) -> Option<PodUsage> {
    let mut containers = Vec::with_capacity(last.len());
    for (name, point) in last {
        if let Some(usage) = between(point, prev.get(name)?) {
            containers.push((name.clone(), usage));
        }
    }
    let earliest = containers.iter().map(|(_, usage)| usage).min_by_key(|usage| usage.at)?;
    Some(PodUsage { at: earliest.at, window: earliest.window, containers })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: i64 = 1_000_000_000;

    fn point(started: i64, at: i64, cpu_seconds: u64) -> Point {
        Point {
            started: started * SECOND,
            at: at * SECOND,
            cpu_ns: cpu_seconds * 1_000_000_000,
            memory: 4096,
        }
    }

    /// The cases of metrics-server's `pod_test.go`.
    #[test]
    fn a_window_begins_at_the_last_point_of_the_same_run() {
        let last = point(100, 200, 10);
        let prev = point(100, 185, 9);
        for (what, new, last, prev, expected) in [
            ("first point", point(100, 200, 1), None, None, None),
            ("second point", point(100, 215, 12), Some(last), Some(prev), Some(last)),
            ("same point again", last, Some(last), Some(prev), Some(prev)),
            ("older than both", point(100, 180, 8), Some(last), Some(prev), None),
            ("restarted", point(205, 208, 1), Some(last), Some(prev), None),
            ("fresh", point(203, 215, 6), None, None, Some(point(203, 203, 0))),
            (
                "fresh after a restart",
                point(203, 215, 6),
                Some(last),
                None,
                Some(point(203, 203, 0)),
            ),
            ("too fresh", point(206, 215, 6), None, None, None),
            (
                "a node, which has no start",
                point(0, 215, 6),
                Some(point(0, 200, 5)),
                None,
                Some(point(0, 200, 5)),
            ),
        ] {
            assert_eq!(begin(&new, last.as_ref(), prev.as_ref()), expected, "{what}");
        }
    }

    #[test]
    fn usage_is_the_average_over_the_window() {
        let usage = between(&point(1, 30, 9), &point(1, 15, 3)).unwrap();
        assert_eq!((usage.cpu, usage.window, usage.memory), (400_000_000, 15 * SECOND, 4096));
        assert_eq!(between(&point(1, 30, 2), &point(1, 15, 3)), None, "a counter decreased");
        assert_eq!(between(&point(1, 30, 3), &point(2, 15, 3)), None, "a start decreased");
        assert_eq!(between(&point(1, 15, 3), &point(1, 15, 3)), None, "no window");
    }

    #[test]
    fn a_pod_has_a_usage_if_all_its_containers_have_two_points() {
        let at =
            |a, b| Containers::from([("a".into(), point(1, a, 3)), ("b".into(), point(1, b, 3))]);
        let usage = of_pod(&at(30, 31), &at(15, 15)).unwrap();
        assert_eq!((usage.at, usage.window), (30 * SECOND, 15 * SECOND), "the earliest window");
        assert_eq!(usage.containers.len(), 2);
        let mut one = at(15, 15);
        one.remove("b");
        assert_eq!(of_pod(&at(30, 31), &one), None);
    }
}
