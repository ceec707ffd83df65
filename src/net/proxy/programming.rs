//! How long it takes from a change of a pod or Service to the rules of this node: the times that
//! the EndpointSlice controller writes into EndpointSlices.

use std::collections::HashMap;

use api::k8s::api::discovery::v1::EndpointSlice;
use api::k8s::jiff::Timestamp;

use super::metrics;
use settings::addr::Family;

const ANNOTATION: &str = "endpoints.kubernetes.io/last-change-trigger-time";

/// The changes that EndpointSlices follow.
#[derive(Debug)]
pub(super) struct Triggers {
    /// Earlier changes say nothing about this process.
    started: Timestamp,
    /// The last change per Service (`namespace/name`) and family.
    last: HashMap<(String, Family), Timestamp>,
    /// Changes whose rules are not applied yet.
    pending: Vec<(Family, Timestamp)>,
}

impl Default for Triggers {
    fn default() -> Self {
        Self { started: Timestamp::now(), last: HashMap::new(), pending: Vec::new() }
    }
}

impl Triggers {
    /// Takes the changes that a Service's slices name.
    pub(super) fn note(&mut self, service: &str, slices: &[EndpointSlice]) {
        if slices.is_empty() && !self.last.is_empty() {
            self.last.retain(|(known, _), _| known != service);
        }
        for slice in slices {
            let annotations = slice.metadata.annotations.as_ref();
            let time = annotations.and_then(|a| a.get(ANNOTATION)?.parse::<Timestamp>().ok());
            let family = Family::ALL.into_iter().find(|f| f.name() == slice.address_type);
            let (Some(time), Some(family)) = (time, family) else { continue };
            let last = self.last.get(&(service.to_owned(), family)).copied();
            if time <= last.unwrap_or(self.started) {
                continue;
            }
            self.last.insert((service.to_owned(), family), time);
            self.pending.push((family, time));
        }
    }

    /// Everything noted is applied now.
    pub(super) fn applied(&mut self) {
        if self.pending.is_empty() {
            return;
        }
        let now = Timestamp::now();
        for (family, time) in self.pending.drain(..) {
            let took = now.duration_since(time).as_secs_f64();
            metrics::PROGRAMMING.observe(&[family.name()], took.max(0.0));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn slice(family: &str, time: &str) -> EndpointSlice {
        serde_json::from_value(json!({
            "metadata": {"name": "s", "annotations": {ANNOTATION: time}},
            "addressType": family, "endpoints": [],
        }))
        .unwrap()
    }

    #[test]
    fn each_change_after_the_start_counts_once_per_family() {
        let mut triggers =
            Triggers { started: "2026-01-01T00:00:10Z".parse().unwrap(), ..Triggers::default() };
        triggers.note("n/s", &[slice("IPv4", "2026-01-01T00:00:09Z")]);
        assert!(triggers.pending.is_empty(), "before the start");
        let change = [slice("IPv4", "2026-01-01T00:00:11Z"), slice("FQDN", "2026-01-01T00:00:11Z")];
        triggers.note("n/s", &change);
        triggers.note("n/s", &change);
        assert_eq!(triggers.pending.len(), 1);
        triggers.note("n/s", &[slice("IPv6", "2026-01-01T00:00:11Z")]);
        triggers.note("n/t", &[slice("IPv4", "no time")]);
        assert_eq!(triggers.pending.len(), 2);
        triggers.applied();
        assert!(triggers.pending.is_empty());
        triggers.note("n/s", &[]);
        assert!(triggers.last.is_empty());
    }
}
