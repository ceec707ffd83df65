//! Amounts of resources as numbers.

use std::collections::BTreeMap;

use api::Quantity;
use api::value::get;
use serde_json::Value;
use sorting::CollectOrdered as _;

use crate::types::ResourceList;

/// Amounts by resource name.
pub type Amounts = BTreeMap<String, Quantity>;

/// The resource of CPU.
pub const CPU: &str = "cpu";
/// The resource of memory.
pub const MEMORY: &str = "memory";

/// The amount of a resource, zero if it is absent (`ResourceList.Cpu()`, `ResourceList.Memory()`).
pub(crate) fn amount(amounts: Option<&Amounts>, name: &str) -> Quantity {
    amounts.and_then(|amounts| amounts.get(name)).copied().unwrap_or_default()
}

/// The amounts of an autoscaler's list. The schema has checked the texts.
pub fn parse(list: &ResourceList) -> Amounts {
    let parsed = list.iter().filter_map(|(name, q)| Some((name.clone(), q.0.parse().ok()?)));
    parsed.collect_map()
}

/// The amounts in a field of an object; `None` if the field is absent.
pub(crate) fn read(value: &Value, field: &str) -> Option<Amounts> {
    let list = get(value, field).as_object()?;
    let parsed = list.iter().filter_map(|(n, q)| Some((n.clone(), Quantity::from_value(q).ok()?)));
    Some(parsed.collect_map())
}

/// The amounts as JSON, with canonical texts.
pub(crate) fn to_json(amounts: &Amounts) -> Value {
    let entries = amounts.iter().map(|(name, q)| (name.clone(), Value::from(q.to_string())));
    Value::Object(entries.collect())
}
