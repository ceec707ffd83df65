//! Amounts of resources: CPU in thousandths of a core, the others in whole units, such as bytes.

use std::collections::BTreeMap;

use api::k8s::apimachinery::pkg::api::resource::Quantity;

/// Requests that scores assume for a container without them (`schedutil.DefaultMilliCPURequest`,
/// `DefaultMemoryRequest`), so that such containers spread over the nodes, too.
pub(crate) const DEFAULT_MILLI_CPU: i64 = 100;
pub(crate) const DEFAULT_MEMORY: i64 = 200 * 1024 * 1024;

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

    /// Adds the amounts of `other`, `pods` included.
    pub(crate) fn add(&mut self, other: &Self) {
        self.combine(other, |amount, value| *amount += value);
        self.pods += other.pods;
    }

    /// Subtracts the amounts of `other`, `pods` included.
    pub(crate) fn subtract(&mut self, other: &Self) {
        self.combine(other, |amount, value| *amount -= value);
        self.pods -= other.pods;
    }

    /// Sets each resource except `pods` to the greater amount of both.
    pub(crate) fn max(&mut self, other: &Self) {
        self.combine(other, |amount, value| *amount = (*amount).max(value));
    }

    /// Applies `change` to the amount of each resource except `pods`, with that of `other`.
    fn combine(&mut self, other: &Self, change: fn(&mut i64, i64)) {
        change(&mut self.milli_cpu, other.milli_cpu);
        change(&mut self.memory, other.memory);
        change(&mut self.ephemeral_storage, other.ephemeral_storage);
        for (name, value) in &other.others {
            match self.others.get_mut(name) {
                Some(amount) => change(amount, *value),
                None => change(self.others.entry(name.clone()).or_default(), *value),
            }
        }
    }

    /// Sets the resources of a list.
    pub(crate) fn replace(&mut self, list: &BTreeMap<String, Quantity>) {
        for (name, quantity) in list {
            self.set(name, amount(name, quantity));
        }
    }
}
