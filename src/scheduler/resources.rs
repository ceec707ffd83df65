//! Amounts of resources: CPU in thousandths of a core, the rest in whole units.

use std::collections::BTreeMap;

use api::k8s::apimachinery::pkg::api::resource::Quantity;

/// Requests that scores assume for a container without any (`schedutil.DefaultMilliCPURequest`,
/// `DefaultMemoryRequest`).
const DEFAULT_MILLI_CPU: i64 = 100;
const DEFAULT_MEMORY: i64 = 200 * 1024 * 1024;

/// An amount of each resource.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Resources {
    pub(crate) milli_cpu: i64,
    pub(crate) memory: i64,
    pub(crate) ephemeral_storage: i64,
    pub(crate) pods: i64,
    pub(crate) others: BTreeMap<String, i64>,
}

fn amount(name: &str, quantity: &Quantity) -> i64 {
    let Ok(parsed) = api::quantity::Quantity::parse(&quantity.0) else { return 0 };
    if name == "cpu" { parsed.milli_value() } else { parsed.value() }
}

impl Resources {
    pub(crate) fn from_list(list: Option<&BTreeMap<String, Quantity>>) -> Self {
        let mut out = Self::default();
        for (name, quantity) in list.into_iter().flatten() {
            out.set(name, amount(name, quantity));
        }
        out
    }

    fn slot(&mut self, name: &str) -> &mut i64 {
        match name {
            "cpu" => &mut self.milli_cpu,
            "memory" => &mut self.memory,
            "ephemeral-storage" => &mut self.ephemeral_storage,
            "pods" => &mut self.pods,
            other => self.others.entry(other.to_owned()).or_default(),
        }
    }

    fn set(&mut self, name: &str, value: i64) {
        *self.slot(name) = value;
    }

    pub(crate) fn get(&self, name: &str) -> i64 {
        match name {
            "cpu" => self.milli_cpu,
            "memory" => self.memory,
            "ephemeral-storage" => self.ephemeral_storage,
            "pods" => self.pods,
            other => self.others.get(other).copied().unwrap_or(0),
        }
    }

    /// Every resource with its amount, in a fixed order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, i64)> {
        let named = [
            ("cpu", self.milli_cpu),
            ("memory", self.memory),
            ("ephemeral-storage", self.ephemeral_storage),
        ];
        named.into_iter().chain(self.others.iter().map(|(name, value)| (name.as_str(), *value)))
    }

    pub(crate) fn add(&mut self, other: &Self) {
        for (name, value) in other.iter() {
            *self.slot(name) += value;
        }
        self.pods += other.pods;
    }

    pub(crate) fn subtract(&mut self, other: &Self) {
        for (name, value) in other.iter() {
            *self.slot(name) -= value;
        }
        self.pods -= other.pods;
    }

    /// The greater of both, resource by resource.
    pub(crate) fn max(&mut self, other: &Self) {
        for (name, value) in other.iter() {
            let slot = self.slot(name);
            *slot = (*slot).max(value);
        }
    }

    /// CPU and memory of one container for scoring, with defaults for missing requests.
    pub(crate) fn non_zero(list: Option<&BTreeMap<String, Quantity>>) -> (i64, i64) {
        let stated = |name: &str| list.and_then(|l| l.get(name)).map(|q| amount(name, q));
        (stated("cpu").unwrap_or(DEFAULT_MILLI_CPU), stated("memory").unwrap_or(DEFAULT_MEMORY))
    }
}
