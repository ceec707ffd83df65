//! Amounts of resources: CPU in thousandths of a core, the others in whole units, such as bytes.

use std::collections::BTreeMap;

use api::k8s::apimachinery::pkg::api::resource::Quantity;

/// Requests that scores assume for a container without them (`schedutil.DefaultMilliCPURequest`,
/// `DefaultMemoryRequest`), so that such containers spread over the nodes, too.
const DEFAULT_MILLI_CPU: i64 = 100;
const DEFAULT_MEMORY: i64 = 200 * 1024 * 1024;

/// An amount of each resource.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Resources {
    pub(crate) milli_cpu: i64,
    pub(crate) memory: i64,
    pub(crate) ephemeral_storage: i64,
    pub(crate) pods: i64,
    /// Huge pages and extended resources by name.
    pub(crate) others: BTreeMap<String, i64>,
}

/// Converts a quantity; an invalid one, which the API server rejects, counts as 0.
fn amount(name: &str, quantity: &Quantity) -> i64 {
    let Ok(parsed) = api::quantity::Quantity::parse(&quantity.0) else { return 0 };
    if name == "cpu" { parsed.milli_value() } else { parsed.value() }
}

impl Resources {
    /// Converts a resource list, such as `requests` or `allocatable`.
    pub(crate) fn from_list(list: Option<&BTreeMap<String, Quantity>>) -> Self {
        let mut out = Self::default();
        for (name, quantity) in list.into_iter().flatten() {
            out.set(name, amount(name, quantity));
        }
        out
    }

    /// The amount of a resource, added as 0 if it is missing.
    fn amount_mut(&mut self, name: &str) -> &mut i64 {
        match name {
            "cpu" => &mut self.milli_cpu,
            "memory" => &mut self.memory,
            "ephemeral-storage" => &mut self.ephemeral_storage,
            "pods" => &mut self.pods,
            other => self.others.entry(other.to_owned()).or_default(),
        }
    }

    fn set(&mut self, name: &str, value: i64) {
        *self.amount_mut(name) = value;
    }

    /// The amount of a resource; 0 if it is missing.
    pub(crate) fn get(&self, name: &str) -> i64 {
        match name {
            "cpu" => self.milli_cpu,
            "memory" => self.memory,
            "ephemeral-storage" => self.ephemeral_storage,
            "pods" => self.pods,
            other => self.others.get(other).copied().unwrap_or(0),
        }
    }

    /// Every resource except `pods` with its amount, in a fixed order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, i64)> {
        let named = [
            ("cpu", self.milli_cpu),
            ("memory", self.memory),
            ("ephemeral-storage", self.ephemeral_storage),
        ];
        named.into_iter().chain(self.others.iter().map(|(name, value)| (name.as_str(), *value)))
    }

    /// Adds the amounts of `other`, `pods` included.
    pub(crate) fn add(&mut self, other: &Self) {
        for (name, value) in other.iter() {
            *self.amount_mut(name) += value;
        }
        self.pods += other.pods;
    }

    /// Subtracts the amounts of `other`, `pods` included.
    pub(crate) fn subtract(&mut self, other: &Self) {
        for (name, value) in other.iter() {
            *self.amount_mut(name) -= value;
        }
        self.pods -= other.pods;
    }

    /// Sets each resource except `pods` to the greater amount of both.
    pub(crate) fn max(&mut self, other: &Self) {
        for (name, value) in other.iter() {
            let amount = self.amount_mut(name);
            *amount = (*amount).max(value);
        }
    }

    /// CPU and memory that scores assume for a container with these requests. Missing requests have
    /// defaults; an explicit request of 0 has none.
    pub(crate) fn non_zero(list: Option<&BTreeMap<String, Quantity>>) -> (i64, i64) {
        let requested = |name: &str| list.and_then(|l| l.get(name)).map(|q| amount(name, q));
        (
            requested("cpu").unwrap_or(DEFAULT_MILLI_CPU),
            requested("memory").unwrap_or(DEFAULT_MEMORY),
        )
    }
}
