//! Parameters of a workload, and their scale.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::{Context, bail};
use serde_json::Value;

/// The parameters of a workload. Upstream's `params`.
pub(crate) struct Params {
    values: BTreeMap<String, Value>,
    used: RefCell<BTreeSet<String>>,
}

impl Params {
    /// The parameters, with those that are counts divided by `scale`.
    pub(crate) fn new(
        values: &BTreeMap<String, Value>,
        operations: &[Value],
        scale: f64,
    ) -> anyhow::Result<Self> {
        if !scale.is_finite() || scale < 1.0 {
            bail!("--scale {scale}: must be 1 or more");
        }
        let mut values = values.clone();
        for (name, rounding) in counts(operations) {
            if let Some(value) = values.get_mut(&name) {
                if let Some(count) = value.as_u64() {
                    *value = divide(count, scale, rounding).into();
                }
            }
        }
        Ok(Self { values, used: RefCell::default() })
    }

    /// The parameter that `reference` names, such as `$initPods`.
    pub(crate) fn get(&self, reference: &str) -> anyhow::Result<&Value> {
        let name = reference.strip_prefix('$').with_context(|| {
            format!("{reference}: a reference to a parameter must begin with $")
        })?;
        let value = self.values.get(name);
        let value = value.with_context(|| format!("parameter {name} is undefined"))?;
        self.used.borrow_mut().insert(name.to_owned());
        Ok(value)
    }

    /// A count that is written down, or that a parameter has.
    pub(crate) fn count(&self, count: usize, param: Option<&str>) -> anyhow::Result<usize> {
        let Some(param) = param else { return Ok(count) };
        let value = self.get(param)?.as_u64();
        let value = value.with_context(|| format!("parameter {param} is not a count"))?;
        Ok(usize::try_from(value)?)
    }

    /// A duration that is written down, or that a parameter has.
    pub(crate) fn duration(
        &self,
        text: Option<&str>,
        param: Option<&str>,
    ) -> anyhow::Result<Duration> {
        let text = match param {
            Some(param) => {
                let value = self.get(param)?.as_str();
                value.with_context(|| format!("parameter {param} is not a duration"))?
            }
            None => text.unwrap_or("0s"),
        };
        parse_duration(text)
    }

    /// The parameters of a template, of which values `$name` and `$name|default` refer to the
    /// workload's. Upstream's `resolveTemplateParams`.
    pub(crate) fn resolve(
        &self,
        template: &BTreeMap<String, Value>,
    ) -> anyhow::Result<BTreeMap<String, Value>> {
        let mut resolved = template.clone();
        for value in resolved.values_mut() {
            let Some(reference) = value.as_str().filter(|text| text.starts_with('$')) else {
                continue;
            };
            let (name, default) = match reference.split_once('|') {
                Some((name, default)) => (name, Some(default)),
                None => (reference, None),
            };
            *value = match (self.get(name), default) {
                (Ok(value), _) => value.clone(),
                (Err(_), Some(default)) => api::codec::yaml::parse(default.as_bytes())
                    .with_context(|| format!("the default of {reference}"))?,
                (Err(error), None) => return Err(error),
            };
        }
        Ok(resolved)
    }

    /// A parameter of the program that plays the operations, which no operation refers to.
    pub(crate) fn own(&self, name: &str) -> Option<&Value> {
        self.get(&format!("${name}")).ok()
    }

    /// The parameters that no operation has used.
    pub(crate) fn unused(&self) -> Vec<String> {
        let used = self.used.borrow();
        self.values.keys().filter(|name| !used.contains(*name)).cloned().collect()
    }
}

/// How a divided count becomes whole.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Rounding {
    /// Of nodes: what a workload places has room.
    Up,
    Down,
}

/// The parameters that are counts of objects. Those of pods within a set are not among them: the
/// number of sets is divided already. A multiplier is a ratio.
fn counts(operations: &[Value]) -> BTreeMap<String, Rounding> {
    let mut found = BTreeMap::new();
    for operation in operations {
        let param = operation.get("countParam").and_then(Value::as_str);
        let Some(name) = param.and_then(|param| param.strip_prefix('$')) else { continue };
        let of_nodes = operation.get("opcode").is_some_and(|opcode| opcode == "createNodes");
        let rounding = found.entry(name.to_owned()).or_insert(Rounding::Down);
        if of_nodes {
            *rounding = Rounding::Up;
        }
    }
    found
}

/// Divides a count; what was not zero is at least one.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a quotient of a count and a number that is not less than one"
)]
fn divide(count: u64, scale: f64, rounding: Rounding) -> u64 {
    if count == 0 {
        return 0;
    }
    let quotient = count as f64 / scale;
    let whole = match rounding {
        Rounding::Up => quotient.ceil(),
        Rounding::Down => quotient.floor(),
    };
    (whole as u64).max(1)
}

/// Parses a duration of one number and one unit, as the files of scheduler_perf have them.
pub(crate) fn parse_duration(text: &str) -> anyhow::Result<Duration> {
    let units = [("ms", 0.001), ("s", 1.0), ("m", 60.0), ("h", 3600.0)];
    let parsed = units.iter().find_map(|(unit, seconds)| {
        let number: f64 = text.strip_suffix(unit)?.parse().ok()?;
        Duration::try_from_secs_f64(number * seconds).ok()
    });
    parsed.with_context(|| format!("{text}: a duration must be a number and ms, s, m or h"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn params(scale: f64) -> Params {
        let operations = [
            json!({"opcode": "createNodes", "countParam": "$nodes"}),
            json!({"opcode": "createAny", "countParam": "$nodes"}),
            json!({"opcode": "createPods", "countParam": "$pods", "countMultiplierParam": "$each"}),
            json!({"opcode": "createPodSets", "countParam": "$sets", "createPodsOp": {
                "opcode": "createPods", "countParam": "$podsPerSet"}}),
        ];
        let values = json!({
            "nodes": 25, "pods": 25, "none": 0, "sets": 100, "podsPerSet": 40, "each": 8,
            "numDevices": 10, "duration": "10s",
        });
        let values = serde_json::from_value(values).unwrap();
        Params::new(&values, &operations, scale).unwrap()
    }

    #[test]
    fn scale_divides_counts_of_objects_and_nothing_else() {
        let params = params(10.0);
        let count = |name| params.count(0, Some(name)).unwrap();
        assert_eq!(count("$nodes"), 3);
        assert_eq!(count("$pods"), 2);
        assert_eq!(count("$sets"), 10);
        assert_eq!(count("$podsPerSet"), 40);
        assert_eq!(count("$each"), 8);
        assert_eq!(count("$numDevices"), 10);
        assert_eq!(count("$none"), 0);
    }

    #[test]
    fn scale_leaves_at_least_one_and_one_leaves_all() {
        assert_eq!(params(1000.0).count(0, Some("$pods")).unwrap(), 1);
        assert_eq!(params(1.0).count(0, Some("$pods")).unwrap(), 25);
        assert!(Params::new(&BTreeMap::new(), &[], 0.5).is_err());
    }

    #[test]
    fn template_params_refer_to_parameters_or_their_default() {
        let params = params(1.0);
        let template = json!({
            "a": "$pods", "b": "$missing|2", "c": "$missing|", "d": "text", "e": 3,
        });
        let resolved = params.resolve(&serde_json::from_value(template).unwrap()).unwrap();
        let want = json!({"a": 25, "b": 2, "c": null, "d": "text", "e": 3});
        assert_eq!(serde_json::to_value(resolved).unwrap(), want);
        let bad = serde_json::from_value(json!({"a": "$missing"})).unwrap();
        let error = params.resolve(&bad).err().unwrap();
        assert_eq!(error.to_string(), "parameter missing is undefined");
    }

    #[test]
    fn unused_parameters_are_named() {
        let params = params(1.0);
        for name in ["$nodes", "$pods", "$sets", "$podsPerSet", "$each", "$none"] {
            params.count(0, Some(name)).unwrap();
        }
        assert_eq!(params.duration(None, Some("$duration")).unwrap(), Duration::from_secs(10));
        assert_eq!(params.unused(), ["numDevices"]);
    }

    #[test]
    fn durations_have_one_unit() {
        assert_eq!(parse_duration("0s").unwrap(), Duration::ZERO);
        assert_eq!(parse_duration("500ms").unwrap(), Duration::from_millis(500));
        assert_eq!(parse_duration("1.5m").unwrap(), Duration::from_secs(90));
        assert!(parse_duration("10").is_err());
        assert!(parse_duration("-1s").is_err());
    }
}
