//! The ranges that addresses and node ports of Services come from.

mod ranges;

use std::collections::HashMap;

use api::Gvr;
use parking_lot::Mutex;

pub(crate) use ranges::{RANDOM_TRIES, Range};

/// Allocator of Service addresses and node ports.
#[derive(Debug)]
pub(crate) struct Services {
    pub(crate) ranges: Vec<Range>,
    pub(crate) ports: (u16, u16),
    /// Node ports of writes that the cache may not show yet, with the revision behind which it does
    /// (0: still under way).
    pub(crate) held: Mutex<HashMap<u16, i64>>,
}

impl Services {
    /// Over these ranges: one, or two of different families.
    ///
    /// # Errors
    /// A sentence that names the range that cannot be used.
    pub(crate) fn new(cidrs: &[String], ports: (u16, u16)) -> Result<Self, String> {
        let ranges = cidrs.iter().map(|cidr| Range::parse(cidr)).collect::<Result<Vec<_>, _>>()?;
        match ranges.as_slice() {
            [_] => {}
            [a, b] if a.family() != b.family() => {}
            _ => return Err(format!("service ranges {cidrs:?}: give one, or one of each family")),
        }
        if ports.0 == 0 || ports.0 > ports.1 {
            return Err(format!(
                "node ports {}-{}: the first must be at least 1 and not above the last",
                ports.0, ports.1
            ));
        }
        Ok(Self { ranges, ports, held: Mutex::new(HashMap::new()) })
    }

    /// Appends how many addresses of each range are given and free.
    pub(crate) fn render(&self, out: &mut String, objects: &crate::registry::objects::Objects) {
        let Ok(row) = objects.row(&Gvr::new("networking.k8s.io", "v1", "ipaddresses")) else {
            return;
        };
        // It is loaded for the next look where nothing else needs it.
        let cache = objects.caches().of(&row);
        if cache.revision() == 0 {
            return;
        }
        let all = cache.list(&crate::registry::watch_cache::Filter::default(), None, 0).items;
        let given = |range: &Range| {
            let addresses = all.iter().filter_map(|object| object.key.name.parse().ok());
            addresses.filter(|address| range.holds(*address)).count()
        };
        let rows: Vec<_> = self.ranges.iter().map(|range| (range, given(range))).collect();
        for (what, help) in [("allocated", "given"), ("available", "free")] {
            let name = format!("kube_apiserver_clusterip_allocator_{what}_ips");
            let help = format!("[ALPHA] Addresses of Services that are {help}.");
            base::metrics::head(out, &name, "gauge", &help);
            for (range, given) in &rows {
                let free = range.room().saturating_sub(*given as u128);
                let value = if what == "allocated" { *given as f64 } else { free as f64 };
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
