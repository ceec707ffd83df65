//! The LimitRanges of a namespace, merged to one item per type (`pkg/utils/limitrange`).

use api::Quantity;
use api::value::{get, has, items, str_at};
use serde_json::Value;

use super::amounts::{Amounts, CPU, MEMORY, read};

/// An item that has the same effect as all items of its type.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LimitItem {
    /// The greatest of the minimums.
    pub min: Option<Amounts>,
    /// The least of the maximums.
    pub max: Option<Amounts>,
    /// The default limits of the last item that has some.
    pub default: Option<Amounts>,
}

/// The merged items of a namespace.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LimitRanges {
    /// For containers.
    pub container: Option<LimitItem>,
    /// For pods.
    pub pod: Option<LimitItem>,
}

impl LimitRanges {
    /// Merges the LimitRanges of one namespace.
    pub fn merge<'a>(ranges: impl Iterator<Item = &'a Value>) -> Self {
        let mut merged = Self::default();
        for item in ranges.flat_map(|range| items(get(range, "spec"), "limits")) {
            if !["max", "min", "default"].iter().any(|field| has(item, field)) {
                continue;
            }
            let target = match str_at(item, "type") {
                "Container" => merged.container.get_or_insert_default(),
                "Pod" => merged.pod.get_or_insert_default(),
                _ => continue,
            };
            if let Some(default) = read(item, "default") {
                target.default = Some(default);
            }
            tighten(&mut target.max, read(item, "max"), Quantity::min);
            tighten(&mut target.min, read(item, "min"), Quantity::max);
        }
        merged
    }
}

/// Adds the amounts of CPU and memory of a further item; `pick` chooses between two amounts.
fn tighten(
    target: &mut Option<Amounts>,
    further: Option<Amounts>,
    pick: fn(Quantity, Quantity) -> Quantity,
) {
    let Some(further) = further else { return };
    let Some(target) = target else {
        *target = Some(further);
        return;
    };
    for name in [CPU, MEMORY] {
        if let Some(amount) = further.get(name) {
            let both = target.get(name).map_or(*amount, |own| pick(*own, *amount));
            target.insert(name.to_owned(), both);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn item(value: Value) -> LimitItem {
        LimitItem {
            min: read(&value, "min"),
            max: read(&value, "max"),
            default: read(&value, "default"),
        }
    }

    /// `TestUpdateResourceLimits`.
    #[test]
    fn items_are_merged_by_type() {
        let range = |limits: Value| json!({"spec": {"limits": limits}});
        let merge = |ranges: &[Value]| LimitRanges::merge(ranges.iter());
        assert_eq!(merge(&[]), LimitRanges::default());
        assert_eq!(merge(&[range(json!([{"type": "Container"}]))]), LimitRanges::default());

        let two = [
            range(json!([{"type": "Container", "max": {"cpu": "2", "memory": "1Gi"},
                "min": {"cpu": "100m"}, "default": {"cpu": "1"}},
                {"type": "Pod", "max": {"cpu": "10"}}])),
            range(json!([{"type": "Container", "max": {"cpu": "3", "memory": "500M"},
                "min": {"cpu": "200m", "memory": "10M"}},
                {"type": "PersistentVolumeClaim", "max": {"storage": "1Gi"}}])),
        ];
        let merged = merge(&two);
        let container = json!({"max": {"cpu": "2", "memory": "500M"},
            "min": {"cpu": "200m", "memory": "10M"}, "default": {"cpu": "1"}});
        assert_eq!(merged.container, Some(item(container)));
        assert_eq!(merged.pod, Some(item(json!({"max": {"cpu": "10"}}))));
    }
}
