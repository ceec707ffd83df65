//! The ranges that addresses and node ports of Services come from.

mod ranges;

use std::collections::HashMap;

use api::Gvr;
use parking_lot::Mutex;

pub(crate) use ranges::{RANDOM_TRIES, Range, RangeError};

/// Why the ranges of Services cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ServicePoolsError {
    /// A range of addresses cannot be used.
    #[error(transparent)]
    Range(#[from] RangeError),
    /// There are no ranges, more than two, or two of the same family.
    #[error("service ranges {0:?}: give one, or one of each family")]
    Families(Vec<String>),
    /// The range of node ports is empty or begins at 0.
    #[error("node ports {first}-{last}: the first must be at least 1 and not above the last")]
    NodePorts {
        /// The first node port.
        first: u16,
        /// The last node port.
        last: u16,
    },
}

/// The ranges of Service addresses and node ports.
#[derive(Debug)]
pub(crate) struct ServicePools {
    /// One range, or two of different families; the first is the primary.
    pub(crate) ranges: Vec<Range>,
    pub(crate) ports: (u16, u16),
    /// Node ports of writes that the cache may not show yet, with the revision from which it does
    /// (0: the write is in progress).
    pub(crate) held: Mutex<HashMap<u16, i64>>,
}

impl ServicePools {
    /// Pools over these ranges of addresses in CIDR notation and this first and last node port.
    ///
    /// # Errors
    /// When a range cannot be used.
    pub(crate) fn new(cidrs: &[String], ports: (u16, u16)) -> Result<Self, ServicePoolsError> {
        let ranges = cidrs.iter().map(|cidr| Range::parse(cidr)).collect::<Result<Vec<_>, _>>()?;
        match ranges.as_slice() {
            [_] => {}
            [a, b] if a.family() != b.family() => {}
            _ => return Err(ServicePoolsError::Families(cidrs.to_vec())),
        }
        if ports.0 == 0 || ports.0 > ports.1 {
            return Err(ServicePoolsError::NodePorts { first: ports.0, last: ports.1 });
        }
        Ok(Self { ranges, ports, held: Mutex::new(HashMap::new()) })
    }

    /// Appends the metrics of allocated and free addresses per range.
    pub(crate) fn render(&self, out: &mut String, objects: &crate::registry::objects::Objects) {
        let Ok(row) = objects.row(&Gvr::new("networking.k8s.io", "v1", "ipaddresses")) else {
            return;
        };
        // A cache that is not loaded yet has the objects at the next scrape.
        let cache = objects.caches().of(&row);
        if cache.revision() == 0 {
            return;
        }
        let all = cache.list(&crate::registry::watch_cache::Filter::default(), None, 0).items;
        let allocated = |range: &Range| {
            let addresses = all.iter().filter_map(|object| object.key.name.parse().ok());
            addresses.filter(|address| range.contains(*address)).count()
        };
        let rows: Vec<_> = self.ranges.iter().map(|range| (range, allocated(range))).collect();
        for (what, help) in [("allocated", "given"), ("available", "free")] {
            let name = format!("kube_apiserver_clusterip_allocator_{what}_ips");
            let help = format!("[ALPHA] Addresses of Services that are {help}.");
            base::metrics::head(out, &name, "gauge", &help);
            for (range, allocated) in &rows {
                let free = range.capacity().saturating_sub(*allocated as u128);
                let value = if what == "allocated" { *allocated as f64 } else { free as f64 };
                let value = base::metrics::float(value);
                out.push_str(&format!("{name}{{cidr=\"{}\"}} {value}\n", range.text()));
            }
        }
    }

    /// Family of the first range.
    pub(crate) fn primary_family(&self) -> &'static str {
        self.ranges.first().map_or("IPv4", Range::family)
    }

    pub(crate) fn range(&self, family: &str) -> Option<&Range> {
        self.ranges.iter().find(|r| r.family() == family)
    }
}
