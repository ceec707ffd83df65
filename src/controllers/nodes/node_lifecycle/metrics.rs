//! The metrics of the controller, with upstream's names, labels and texts.

use std::collections::HashMap;
use std::time::Duration;

use base::metrics::{Family, exponential};

use super::decide::Member;

const UPDATE_BOUNDS: [f64; 8] = exponential(0.001, 4.0);

/// Nodes that got a `NoExecute` taint.
pub(super) static EVICTIONS: Family = Family::counter(
    "node_collector_evictions_total",
    "[STABLE] Number of Node evictions that happened since current instance of NodeController \
     started.",
    &["zone"],
);

static UNHEALTHY: Family = Family::gauge(
    "node_collector_unhealthy_nodes_in_zone",
    "[ALPHA] Gauge measuring number of not Ready Nodes per zones.",
    &["zone"],
);

static UPDATE_DURATION: Family = Family::histogram(
    "node_collector_update_node_health_duration_seconds",
    "[ALPHA] Duration in seconds for NodeController to update the health of a single node.",
    &[],
    &UPDATE_BOUNDS,
);

static ZONE_HEALTH: Family = Family::gauge(
    "node_collector_zone_health",
    "[ALPHA] Gauge measuring percentage of healthy nodes per zone.",
    &["zone"],
);

static ZONE_SIZE: Family = Family::gauge(
    "node_collector_zone_size",
    "[ALPHA] Gauge measuring number of registered Nodes per zones.",
    &["zone"],
);

/// The families of this controller, in the order in which they are rendered.
pub(crate) static ALL: [&Family; 5] =
    [&EVICTIONS, &UNHEALTHY, &UPDATE_DURATION, &ZONE_HEALTH, &ZONE_SIZE];

/// Records how long the update of one node took.
pub(super) fn updated(took: Duration) {
    UPDATE_DURATION.took(&[], took);
}

/// Sets the gauges of all zones; one without nodes is healthy.
pub(super) fn set_zones<'a>(
    zones: impl Iterator<Item = &'a String>,
    members: &HashMap<String, Member>,
) {
    for zone in zones {
        let of_zone = || members.values().filter(|member| member.zone == *zone);
        let (size, unready) = (of_zone().count(), of_zone().filter(|m| !m.ready).count());
        let health = if size == 0 { 1.0 } else { (size - unready) as f64 / size as f64 };
        ZONE_HEALTH.set(&[zone], health * 100.0);
        ZONE_SIZE.set(&[zone], size as f64);
        UNHEALTHY.set(&[zone], unready as f64);
        EVICTIONS.add(&[zone], 0.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zones_have_size_and_health() {
        let member = |zone: &str, ready| Member { zone: zone.to_owned(), ready };
        let members = [("a", "x", true), ("b", "x", false), ("c", "x", true), ("d", "x", true)]
            .map(|(name, zone, ready)| (name.to_owned(), member(zone, ready)));
        set_zones(["x".to_owned(), "gone".to_owned()].iter(), &members.into());
        for (zone, size, unready, health) in [("x", 4.0, 1.0, 75.0), ("gone", 0.0, 0.0, 100.0)] {
            let values = [&ZONE_SIZE, &UNHEALTHY, &ZONE_HEALTH].map(|f| f.read(&[zone]));
            assert_eq!(values, [size, unready, health], "{zone}");
        }
    }
}
