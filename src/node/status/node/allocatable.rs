//! What the node has, and what pods can use of it.

use std::collections::BTreeMap;

use api::Quantity;

use crate::config::Config;
use crate::config::thresholds::Signal;
use crate::machine::{self, Machine};
use crate::pods::resources;

/// Quantities by resource.
pub(crate) type Amounts = BTreeMap<String, Quantity>;

/// More is reserved than there is. The text is upstream's (`validateNodeAllocatable`).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid Node Allocatable configuration. {}", .0.join(" "))]
pub struct AllocatableError(Vec<String>);

/// Returns what the machine has: processors, memory, huge pages, disk, and pods.
fn capacity(config: &Config, machine: &Machine) -> Amounts {
    let disk = machine::disk(&config.root_dir)
        .map_or(0, |disk| i64::try_from(disk.size).unwrap_or(i64::MAX));
    let cpus = u32::try_from(machine.cpus).unwrap_or(u32::MAX);
    let pods = match config.pods_per_core {
        0 => config.max_pods,
        each => config.max_pods.min(each.saturating_mul(cpus)),
    };
    let mut out = BTreeMap::from([
        ("cpu".to_owned(), Quantity::from_int(machine.cpus)),
        ("memory".to_owned(), Quantity::bytes(machine.memory)),
        ("ephemeral-storage".to_owned(), Quantity::bytes(disk)),
        ("pods".to_owned(), Quantity::from_int(i64::from(pods))),
    ]);
    for (size, count) in machine::huge_pages() {
        let name = resources::huge_page_resource(size);
        out.insert(name, Quantity::bytes(count.saturating_mul(size)));
    }
    out
}

/// What pods cannot use of a resource: what is reserved, and the hard threshold of eviction
/// (`GetNodeAllocatableReservation`).
fn reservation(config: &Config, name: &str, capacity: Quantity) -> Quantity {
    let signal = match name {
        "memory" => Some(Signal::MemoryAvailable),
        "ephemeral-storage" => Some(Signal::NodeFsAvailable),
        _ => None,
    };
    let threshold =
        signal.map_or(0, |signal| config.eviction.reservation(signal, capacity.value()));
    let reserved = config.reserved_quantity(name).unwrap_or(Quantity::ZERO);
    reserved.plus(Quantity::bytes(threshold))
}

/// Subtracts the reservations and, from the memory, the huge pages.
fn allocatable(config: &Config, capacity: &Amounts) -> Amounts {
    let left = |has: Quantity, less: Quantity| has.minus(less).max(Quantity::ZERO);
    let mut out = capacity.clone();
    for (name, amount) in &mut out {
        *amount = left(*amount, reservation(config, name, *amount));
    }
    let pages = capacity.iter().filter(|(name, _)| resources::is_huge_pages(name));
    let pages = pages.fold(Quantity::ZERO, |sum, (_, amount)| sum.plus(*amount));
    if let Some(memory) = out.get_mut("memory") {
        *memory = left(*memory, pages);
    }
    out
}

/// Returns capacity and allocatable of the machine.
pub(crate) fn capacity_and_allocatable(config: &Config, machine: &Machine) -> (Amounts, Amounts) {
    let capacity = capacity(config, machine);
    let allocatable = allocatable(config, &capacity);
    (capacity, allocatable)
}

/// Checks that no more is reserved than there is.
///
/// # Errors
/// The resources of which more is reserved. A disk that cannot be read is not compared.
pub(crate) fn check(config: &Config, capacity: &Amounts) -> Result<(), AllocatableError> {
    let texts: Vec<String> = capacity
        .iter()
        .filter(|(_, amount)| !amount.is_zero())
        .map(|(name, amount)| (name, *amount, reservation(config, name, *amount)))
        .filter(|(_, amount, reserved)| reserved > amount)
        .map(|(name, amount, reserved)| {
            format!(
                "Resource {name:?} has a reservation of {reserved} but capacity of {amount}. \
                 Expected capacity >= reservation."
            )
        })
        .collect();
    if texts.is_empty() { Ok(()) } else { Err(AllocatableError(texts)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(system: &[(&str, &str)], kube: &[(&str, &str)], hard: &str) -> Config {
        let ip = std::net::Ipv4Addr::LOCALHOST.into();
        let mut out = Config::new("n", ip, "/d".into(), "/r".into());
        let of = |list: &[(&str, &str)]| -> BTreeMap<String, String> {
            list.iter().map(|(name, amount)| ((*name).to_owned(), (*amount).to_owned())).collect()
        };
        (out.reserved, out.kube_reserved) = (of(system), of(kube));
        out.eviction.set_hard(hard).unwrap();
        out
    }

    fn amounts(list: &[(&str, &str)]) -> Amounts {
        let of =
            |(name, amount): &(&str, &str)| ((*name).to_owned(), Quantity::parse(amount).unwrap());
        list.iter().map(of).collect()
    }

    /// Upstream's `TestNodeAllocatableReservationForScheduling`.
    #[test]
    fn reservations_and_hard_thresholds_are_not_allocatable() {
        let capacity = amounts(&[("cpu", "10"), ("memory", "10Gi")]);
        let kube = [("cpu", "100m"), ("memory", "100Mi")];
        let system = [("cpu", "50m"), ("memory", "50Mi")];
        let left = |config: &Config| {
            let all = allocatable(config, &capacity);
            let reserved = capacity["memory"].minus(all["memory"]).value();
            (capacity["cpu"].minus(all["cpu"]).milli_value(), reserved)
        };
        assert_eq!(left(&config(&system, &kube, "")), (150, 150 << 20));
        assert_eq!(left(&config(&system, &kube, "memory.available<100Mi")), (150, 250 << 20));
        assert_eq!(left(&config(&system, &kube, "memory.available<5%")), (150, 694_157_320));
        assert_eq!(left(&config(&[], &[], "")), (0, 0));
        assert_eq!(left(&config(&[("memory", "50Mi")], &kube, "")), (100, 150 << 20));
    }

    #[test]
    fn huge_pages_are_no_allocatable_memory() {
        let capacity = amounts(&[("memory", "1Gi"), ("hugepages-2Mi", "256Mi")]);
        let of = |capacity| allocatable(&config(&[], &[], "memory.available<256Mi"), capacity);
        assert_eq!(of(&capacity)["memory"].to_string(), "512Mi");
        assert_eq!(of(&capacity)["hugepages-2Mi"].to_string(), "256Mi");
        let most = amounts(&[("memory", "1Gi"), ("hugepages-1Gi", "1Gi")]);
        assert_eq!(of(&most)["memory"].value(), 0);
    }

    /// Upstream's `TestNodeAllocatableInputValidation`.
    #[test]
    fn more_cannot_be_reserved_than_there_is() {
        let ten = amounts(&[("cpu", "10"), ("memory", "10Gi")]);
        let half = [("cpu", "5"), ("memory", "5Gi")];
        assert_eq!(check(&config(&half, &half, ""), &ten), Ok(()));
        let over = check(&config(&half, &half, "memory.available<2Gi"), &ten).unwrap_err();
        assert_eq!(
            over.to_string(),
            "invalid Node Allocatable configuration. Resource \"memory\" has a reservation of 12Gi \
             but capacity of 10Gi. Expected capacity >= reservation."
        );
        let storage = config(&[("ephemeral-storage", "100Mi")], &[], "");
        assert_eq!(check(&storage, &amounts(&[("ephemeral-storage", "500Mi")])), Ok(()));
        assert_eq!(check(&storage, &amounts(&[("ephemeral-storage", "0")])), Ok(()));
        let storage = config(&[("ephemeral-storage", "20Gi")], &[], "nodefs.available<100Mi");
        assert!(check(&storage, &amounts(&[("ephemeral-storage", "20Gi")])).is_err());
    }
}
