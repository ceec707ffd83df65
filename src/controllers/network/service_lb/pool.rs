//! Which Service has which virtual address of the pool (`--lb-pool`): the decision, without reads
//! and writes.

use std::collections::BTreeMap;
use std::net::IpAddr;

use settings::{AddressPool, Family};
use sorting::CompactSort as _;

use super::records::ServiceRecord;
use crate::framework::keyed::Key;

/// Type of the condition about addresses that a Service cannot get.
pub(super) const ADDRESS_ERROR: &str = "LoadBalancerAddressError";

/// What a Service says about its virtual addresses.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct AddressRequest {
    /// IP families in the order of `spec.ipFamilies`.
    pub(super) families: Vec<Family>,
    /// The addresses that it asks for, as text: of the annotation, else `spec.loadBalancerIP`.
    pub(super) wanted: Vec<String>,
    /// The addresses in its status.
    pub(super) current: Vec<IpAddr>,
}

/// Why a Service lacks an address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum AddressError {
    /// Not an address, or one of a family that the Service does not have.
    #[error("the requested address {0:?} is not an IP address of a family of the Service")]
    Invalid(String),
    /// Not in the pool.
    #[error("the requested address {0} is not in the pool of --lb-pool")]
    NotInPool(IpAddr),
    /// Another Service has it.
    #[error("the requested address {address} belongs to Service {owner}")]
    InUse {
        /// The address.
        address: IpAddr,
        /// `namespace/name`.
        owner: String,
    },
    /// No address is free.
    #[error("the pool of --lb-pool has no free {} address", .0.name())]
    Exhausted(Family),
}

impl AddressError {
    /// The reason of the condition.
    pub(super) fn reason(&self) -> &'static str {
        match self {
            Self::Invalid(_) => "InvalidAddress",
            Self::NotInPool(_) => "AddressNotInPool",
            Self::InUse { .. } => "AddressInUse",
            Self::Exhausted(_) => "PoolExhausted",
        }
    }
}

/// The virtual addresses of one Service.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Allocation {
    /// One per family at most, in the order of the families.
    pub(super) addresses: Vec<IpAddr>,
    /// Why a family has none; a Service that asks for addresses gets no others.
    pub(super) error: Option<AddressError>,
}

pub(super) type Allocations = BTreeMap<Key, Allocation>;

/// The addresses that a Service asks for, by family.
fn requested(request: &AddressRequest) -> Result<BTreeMap<Family, IpAddr>, AddressError> {
    let mut by_family = BTreeMap::new();
    for text in &request.wanted {
        let parsed: Option<IpAddr> = text.parse().ok();
        let ip = parsed.filter(|ip| request.families.contains(&Family::of(*ip)));
        let ip = ip.ok_or_else(|| AddressError::Invalid(text.clone()))?;
        if by_family.insert(Family::of(ip), ip).is_some() {
            return Err(AddressError::Invalid(text.clone()));
        }
    }
    Ok(by_family)
}

struct Allocator<'a> {
    pool: &'a AddressPool,
    owners: BTreeMap<IpAddr, &'a Key>,
    /// Where the search for a free address continues: all before it are taken.
    next: BTreeMap<Family, Box<dyn Iterator<Item = IpAddr> + 'a>>,
}

impl<'a> Allocator<'a> {
    fn wanted(&mut self, ip: IpAddr, key: &'a Key) -> Result<IpAddr, AddressError> {
        if !self.pool.contains(ip) {
            return Err(AddressError::NotInPool(ip));
        }
        match self.owners.get(&ip) {
            Some(owner) if *owner != key => {
                let owner = format!("{}/{}", owner.0, owner.1);
                Err(AddressError::InUse { address: ip, owner })
            }
            _ => {
                self.owners.insert(ip, key);
                Ok(ip)
            }
        }
    }

    fn free(&mut self, family: Family, key: &'a Key) -> Result<IpAddr, AddressError> {
        let pool = self.pool;
        let next = self.next.entry(family).or_insert_with(|| Box::new(pool.addresses(family)));
        let owners = &self.owners;
        let free = next.find(|ip| !owners.contains_key(ip));
        let free = free.ok_or(AddressError::Exhausted(family))?;
        self.owners.insert(free, key);
        Ok(free)
    }
}

/// Assigns addresses to all Services that use the pool. A Service keeps its address as long as it
/// may have it; of several Services that want the same address, the oldest gets it. `before` are
/// the last allocations, which may not be in the statuses yet.
pub(super) fn allocate(
    services: &BTreeMap<Key, ServiceRecord>,
    pool: &AddressPool,
    before: &Allocations,
) -> Allocations {
    let mut all: Vec<(&Key, &ServiceRecord, &AddressRequest)> = services
        .iter()
        .filter_map(|(key, service)| {
            Some((key, service, service.balanced.as_ref()?.pool_request.as_ref()?))
        })
        .collect();
    all.compact_sort_by_key(|(_, service, _)| &service.age);
    let mut allocator = Allocator { pool, owners: BTreeMap::new(), next: BTreeMap::new() };
    let mut kept: BTreeMap<(&Key, Family), IpAddr> = BTreeMap::new();
    for (key, _, request) in &all {
        let wanted = requested(request).unwrap_or_default();
        let last = before.get(*key).map(|a| a.addresses.as_slice()).unwrap_or_default();
        for ip in request.current.iter().chain(last).copied().filter(|ip| pool.contains(*ip)) {
            let family = Family::of(ip);
            let may_have = request.families.contains(&family)
                && (request.wanted.is_empty() || wanted.get(&family) == Some(&ip))
                && !kept.contains_key(&(*key, family))
                && !allocator.owners.contains_key(&ip);
            if may_have {
                allocator.owners.insert(ip, key);
                kept.insert((key, family), ip);
            }
        }
    }
    let mut allocations = Allocations::new();
    for (key, _, request) in all {
        let mut allocation = Allocation::default();
        let wanted = requested(request).unwrap_or_else(|error| {
            allocation.error = Some(error);
            BTreeMap::new()
        });
        for family in request.families.iter().copied() {
            let found = match (kept.get(&(key, family)), wanted.get(&family)) {
                (Some(ip), _) => Ok(*ip),
                (None, Some(ip)) => allocator.wanted(*ip, key),
                (None, None) if request.wanted.is_empty() => allocator.free(family, key),
                (None, None) => continue,
            };
            match found {
                Ok(ip) => allocation.addresses.push(ip),
                Err(error) => drop(allocation.error.get_or_insert(error)),
            }
        }
        allocations.insert(key.clone(), allocation);
    }
    allocations
}

#[cfg(test)]
mod tests {
    use super::super::records::Balanced;
    use super::*;

    fn key(name: &str) -> Key {
        ("d".into(), name.into())
    }

    /// Services with their families (`4`, `6`), wanted and current addresses, from old to new.
    fn services(list: &[(&str, &str, &str, &str)]) -> BTreeMap<Key, ServiceRecord> {
        let texts =
            |list: &str| -> Vec<String> { list.split_whitespace().map(str::to_owned).collect() };
        let record =
            |(index, (name, families, wanted, current)): (usize, &(&str, &str, &str, &str))| {
                let family = |c: char| if c == '4' { Family::V4 } else { Family::V6 };
                let request = AddressRequest {
                    families: families.chars().map(family).collect(),
                    wanted: texts(wanted),
                    current: current.split_whitespace().map(|ip| ip.parse().unwrap()).collect(),
                };
                let balanced = Balanced {
                    ports: Vec::new(),
                    pool: None,
                    is_local: false,
                    pool_request: Some(request),
                };
                let age = (format!("{index:03}"), String::new());
                let record = ServiceRecord {
                    age,
                    node_ports: Vec::new(),
                    balanced: Some(balanced),
                    needs_cleanup: false,
                };
                (key(name), record)
            };
        list.iter().enumerate().map(record).collect()
    }

    fn shown(allocation: &Allocation) -> String {
        let mut all: Vec<String> = allocation.addresses.iter().map(ToString::to_string).collect();
        all.extend(allocation.error.as_ref().map(|e| format!("{}: {e}", e.reason())));
        all.join(" ")
    }

    #[test]
    fn services_get_the_addresses_that_the_rules_say() {
        let pool = AddressPool::parse(["192.0.2.10-192.0.2.12", "2001:db8::10"]).unwrap();
        for (name, list, want) in [
            (
                "the lowest free address of each family in the order of the families",
                &[("a", "4", "", ""), ("b", "64", "", "")][..],
                &["192.0.2.10", "2001:db8::10 192.0.2.11"][..],
            ),
            (
                "a Service keeps the address of its status before older ones choose",
                &[("a", "4", "", ""), ("b", "4", "", "192.0.2.10")],
                &["192.0.2.11", "192.0.2.10"],
            ),
            (
                "addresses outside the pool, of nodes or of a former pool, are replaced",
                &[("a", "4", "", "192.0.2.1")],
                &["192.0.2.10"],
            ),
            (
                "an address in two statuses stays with the older Service",
                &[("a", "4", "", "192.0.2.12"), ("b", "4", "", "192.0.2.12")],
                &["192.0.2.12", "192.0.2.10"],
            ),
            (
                "a requested address is granted, and replaces another one",
                &[("a", "4", "192.0.2.12", "192.0.2.10"), ("b", "4", "", "")],
                &["192.0.2.12", "192.0.2.10"],
            ),
            (
                "a requested address that another Service has is refused",
                &[("a", "4", "", "192.0.2.11"), ("b", "4", "192.0.2.11", "")],
                &[
                    "192.0.2.11",
                    "AddressInUse: the requested address 192.0.2.11 belongs to Service d/a",
                ],
            ),
            (
                "a requested address must be in the pool, and of a family of the Service",
                &[
                    ("a", "4", "192.0.2.99", ""),
                    ("b", "4", "2001:db8::10", ""),
                    ("c", "4", "x", ""),
                ],
                &[
                    "AddressNotInPool: the requested address 192.0.2.99 is not in the pool of \
                     --lb-pool",
                    "InvalidAddress: the requested address \"2001:db8::10\" is not an IP address of \
                     a family of the Service",
                    "InvalidAddress: the requested address \"x\" is not an IP address of a family \
                     of the Service",
                ],
            ),
            (
                "an exhausted family leaves the other one",
                &[("a", "6", "", ""), ("b", "46", "", "")],
                &[
                    "2001:db8::10",
                    "192.0.2.10 PoolExhausted: the pool of --lb-pool has no free IPv6 address",
                ],
            ),
        ] {
            let got = allocate(&services(list), &pool, &Allocations::new());
            let got: Vec<String> = list.iter().map(|(n, ..)| shown(&got[&key(n)])).collect();
            assert_eq!(got, want, "{name}");
        }
    }

    #[test]
    fn an_allocation_that_is_not_in_the_status_yet_stays() {
        let pool = AddressPool::parse(["192.0.2.10-192.0.2.12"]).unwrap();
        let first = allocate(&services(&[("b", "4", "", "")]), &pool, &Allocations::new());
        let both = services(&[("a", "4", "", ""), ("b", "4", "", "")]);
        let second = allocate(&both, &pool, &first);
        assert_eq!(shown(&second[&key("b")]), "192.0.2.10");
        assert_eq!(shown(&second[&key("a")]), "192.0.2.11");
    }
}
