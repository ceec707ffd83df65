//! Validation of VerticalPodAutoscalers (`resource/vpa/validation.go`). It reads JSON, because it
//! runs before the schema rejects values of a wrong type, which it leaves to the schema.

use api::Quantity;
use api::field::{Error, ErrorList, Path, go_quote};
use api::value::{entries, get, has, int_at, items, str_at};
use serde_json::Value;

use crate::policy::Features;

/// Update modes that are not deprecated, sorted.
const MODES: [&str; 5] = ["InPlace", "InPlaceOrRecreate", "Initial", "Off", "Recreate"];
/// The deprecated update mode.
const AUTO: &str = "Auto";
/// Resources that can be controlled.
const RESOURCES: [&str; 2] = ["cpu", "memory"];

/// The fields of a container policy that depend on the feature `PerVPAConfig`.
const PER_VPA_FIELDS: [&str; 4] = [
    "oomBumpUpRatio",
    "oomMinBumpUp",
    "memoryAggregationIntervalSeconds",
    "memoryAggregationIntervalCount",
];

/// The result of a validation.
#[derive(Debug, Default)]
pub struct Validation {
    /// Warnings for the client.
    pub warnings: Vec<String>,
    /// Errors.
    pub errors: ErrorList,
    allowed: Features,
    /// Controlled resources of the old object, which stay allowed.
    existing_resources: Vec<String>,
}

fn policies(spec: &Value) -> &[Value] {
    items(get(spec, "resourcePolicy"), "containerPolicies")
}

/// The features that the object may use: those that are on, and those that the old object uses.
fn allowed_features(features: Features, old: &Value) -> Features {
    let spec = get(old, "spec");
    let update = get(spec, "updatePolicy");
    let any = |field: &str| policies(spec).iter().any(|policy| has(policy, field));
    Features {
        cpu_startup_boost: features.cpu_startup_boost
            || has(get(spec, "startupBoost"), "cpu")
            || any("startupBoost"),
        in_place: features.in_place || str_at(update, "updateMode") == "InPlace",
        per_vpa_config: features.per_vpa_config
            || has(update, "evictAfterOOMSeconds")
            || PER_VPA_FIELDS.iter().any(|field| any(field)),
    }
}

/// Validates an autoscaler; `old` is the object before an update.
pub fn validate(autoscaler: &Value, old: Option<&Value>, features: Features) -> Validation {
    let old = old.unwrap_or(&Value::Null);
    let existing = policies(get(old, "spec")).iter().flat_map(|p| items(p, "controlledResources"));
    let mut validation = Validation {
        allowed: allowed_features(features, old),
        existing_resources: existing.filter_map(|r| r.as_str().map(str::to_owned)).collect(),
        ..Validation::default()
    };
    let (spec, path) = (get(autoscaler, "spec"), Path::new("spec"));
    if has(spec, "updatePolicy") {
        validation.update_policy(get(spec, "updatePolicy"), &path.child("updatePolicy"));
    }
    let policies_path = path.child("resourcePolicy").child("containerPolicies");
    for (index, policy) in policies(spec).iter().enumerate() {
        validation.container_policy(policy, &policies_path.index(index));
    }
    validation.startup_boost(spec, &path);
    let recommenders = items(spec, "recommenders").len();
    if recommenders > 1 {
        let path = path.child("recommenders");
        validation.errors.push(Error::too_many(&path, recommenders, 1));
    }
    validation
}

impl Validation {
    fn error(&mut self, error: Error) {
        self.errors.push(error);
    }

    fn update_policy(&mut self, policy: &Value, path: &Path) {
        let mode_path = path.child("updateMode");
        match get(policy, "updateMode") {
            Value::Null => {
                let why = "updateMode is required if UpdatePolicy is used";
                self.error(Error::required(&mode_path, why));
            }
            Value::String(mode) => self.update_mode(mode, path, &mode_path),
            _ => {}
        }
        if let Some(replicas) = int_at(policy, "minReplicas").filter(|replicas| *replicas <= 0) {
            let path = path.child("minReplicas");
            self.error(Error::invalid(&path, replicas, "minReplicas has to be positive"));
        }
        self.at_least_one(policy, "evictAfterOOMSeconds", path);
    }

    fn update_mode(&mut self, mode: &str, path: &Path, mode_path: &Path) {
        if mode == AUTO {
            let modes = MODES.join(" ");
            self.warnings.push(format!(
                "{path}: {} mode is deprecated and will be removed in a future API version. Use \
                 explicit update modes like: [{modes}]. See \
                 https://github.com/kubernetes/autoscaler/issues/8424 for more details.",
                go_quote(mode)
            ));
        } else if !MODES.contains(&mode) {
            self.error(Error::not_supported(mode_path, mode, &MODES));
        }
        if mode == "InPlace" && !self.allowed.in_place {
            let why = "in order to use UpdateMode InPlace, you must enable feature gate InPlace in \
                       the admission-controller args";
            self.error(Error::forbidden(mode_path, why));
        }
    }

    /// Whether a field that depends on `PerVPAConfig` is set and allowed.
    fn is_per_vpa(&mut self, policy: &Value, field: &str, path: &Path) -> bool {
        let is_set = has(policy, field);
        if is_set && !self.allowed.per_vpa_config {
            let why = "not supported when feature flag PerVPAConfig is disabled";
            self.error(Error::forbidden(&path.child(field), why));
            return false;
        }
        is_set
    }

    fn at_least_one(&mut self, policy: &Value, field: &str, path: &Path) {
        if !self.is_per_vpa(policy, field, path) {
            return;
        }
        if let Some(number) = int_at(policy, field).filter(|number| *number < 1) {
            let why = "must be greater than or equal to 1";
            self.error(Error::invalid(&path.child(field), number, why));
        }
    }

    fn container_policy(&mut self, policy: &Value, path: &Path) {
        if str_at(policy, "containerName").is_empty() {
            self.error(Error::required(&path.child("containerName"), ""));
        }
        let mode = get(policy, "mode").as_str();
        if let Some(mode) = mode.filter(|mode| !["Auto", "Off"].contains(mode)) {
            self.error(Error::not_supported(&path.child("mode"), mode, &["Auto", "Off"]));
        }
        self.allowed_amounts(policy, path);
        let values = str_at(policy, "controlledValues");
        if mode == Some("Off") && values == "RequestsAndLimits" {
            let why = "controlledValues shouldn't be specified if container scaling mode is off";
            self.error(Error::forbidden(&path.child("controlledValues"), why));
        }
        self.controlled_resources(policy, &path.child("controlledResources"));
        let [ratio, bump, seconds, count] = PER_VPA_FIELDS;
        let amount = |field: &str| Quantity::from_value(get(policy, field)).ok();
        if self.is_per_vpa(policy, ratio, path) {
            let number = amount(ratio).map(|q| Quantity::millis(q.milli_value()).as_f64());
            if let Some(number) = number.filter(|number| *number < 1.0) {
                let why = "must be greater than or equal to 1.0";
                self.error(Error::invalid(&path.child(ratio), number, why));
            }
        }
        if self.is_per_vpa(policy, bump, path) {
            if let Some(number) = amount(bump).map(|q| q.value()).filter(|number| *number < 0) {
                let why = "must be greater than or equal to 0";
                self.error(Error::invalid(&path.child(bump), number, why));
            }
        }
        self.at_least_one(policy, seconds, path);
        self.at_least_one(policy, count, path);
        self.startup_boost(policy, path);
    }

    fn allowed_amounts(&mut self, policy: &Value, path: &Path) {
        let (min_path, max_path) = (path.child("minAllowed"), path.child("maxAllowed"));
        let max_allowed = get(policy, "maxAllowed");
        for (name, min) in entries(policy, "minAllowed") {
            let Ok(min) = Quantity::from_value(min) else { continue };
            self.resolution(name, min, &min_path.key(name));
            let Some(max) = max_allowed.get(name) else { continue };
            let max = Quantity::from_value(max).ok();
            if let Some(max) = max.filter(|max| *max < min) {
                let why = format!("max resource for {name} is lower than min of \"{min}\"");
                self.error(Error::invalid(&max_path.key(name), max.to_string(), why));
            }
        }
        for (name, max) in entries(policy, "maxAllowed") {
            if let Ok(max) = Quantity::from_value(max) {
                self.resolution(name, max, &max_path.key(name));
            }
        }
    }

    fn controlled_resources(&mut self, policy: &Value, path: &Path) {
        for (index, resource) in items(policy, "controlledResources").iter().enumerate() {
            let Some(name) = resource.as_str().filter(|name| !RESOURCES.contains(name)) else {
                continue;
            };
            let path = path.index(index);
            if self.existing_resources.iter().any(|existing| existing == name) {
                self.warnings.push(format!(
                    "{path}: unsupported value {} is allowed only because it is present in the \
                     existing VPA object; supported values: \"cpu\", \"memory\"",
                    go_quote(name)
                ));
            } else {
                self.error(Error::not_supported(&path, name, &RESOURCES));
            }
        }
    }

    /// Validates the field `startupBoost` of a spec or of a container policy.
    fn startup_boost(&mut self, parent: &Value, path: &Path) {
        let (boost, path) = (get(parent, "startupBoost"), path.child("startupBoost"));
        if boost.is_null() {
            return;
        }
        if !self.allowed.cpu_startup_boost {
            let why = "in order to use startupBoost, you must enable feature gate CPUStartupBoost \
                       in the admission-controller args";
            self.error(Error::forbidden(&path, why));
            return;
        }
        let (cpu, path) = (get(boost, "cpu"), path.child("cpu"));
        if cpu.is_null() {
            return;
        }
        match str_at(cpu, "type") {
            "" => {
                let why = "must be either Factor or Quantity";
                self.error(Error::required(&path.child("type"), why));
            }
            "Factor" => match get(cpu, "factor") {
                Value::Null => {
                    let why = "required when type is Factor";
                    self.error(Error::required(&path.child("factor"), why));
                }
                factor => {
                    if let Some(factor) = factor.as_i64().filter(|factor| *factor < 1) {
                        let why = "must be >= 1 for type Factor";
                        self.error(Error::invalid(&path.child("factor"), factor, why));
                    }
                }
            },
            "Quantity" if !has(cpu, "quantity") => {
                let why = "required when type is Quantity";
                self.error(Error::required(&path.child("quantity"), why));
            }
            "Quantity" => {
                if let Ok(quantity) = Quantity::from_value(get(cpu, "quantity")) {
                    self.resolution("cpu", quantity, &path.child("quantity"));
                }
            }
            other => {
                let kinds = ["Factor", "Quantity"];
                self.error(Error::not_supported(&path.child("type"), other, &kinds));
            }
        }
    }

    fn resolution(&mut self, name: &str, amount: Quantity, path: &Path) {
        let is_whole = |whole: i64| whole == i64::MAX || Quantity::units(whole) == amount;
        let why = match name {
            "cpu" if amount.round_up_to_milli() != amount => "must be a whole number of milli CPUs",
            "memory" if !is_whole(amount.value()) => "must be a whole number of bytes",
            _ => return,
        };
        self.error(Error::invalid(path, amount.to_string(), why));
    }
}

#[cfg(test)]
mod tests;
