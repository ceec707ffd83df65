//! The arguments of plugins (`pluginConfig`).

use std::time::Duration;

use api::field::{Error, Path};
use api::k8s::api::core::v1::{NodeSelectorTerm, TopologySpreadConstraint};
use component_config::strict_config::Reader;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::integer;
use crate::plugin_args::{
    DefaultConstraints, PluginArgs, ResourceWeight, ScoredResource, ScoringStrategy,
    UtilizationPoint,
};

/// The greatest score of a point of a shape (`MaxCustomPriorityScore`).
const SHAPE_SCORE_MAX: i64 = 10;
/// Plugins without arguments.
const WITHOUT_ARGS: &[&str] = &[
    "DefaultBinder",
    "ImageLocality",
    "NodeDeclaredFeatures",
    "NodeName",
    "NodePorts",
    "NodeUnschedulable",
    "NodeVolumeLimits",
    "PrioritySort",
    "SchedulingGates",
    "TaintToleration",
    "VolumeRestrictions",
    "VolumeZone",
];

type Object = Map<String, Value>;

/// The arguments of the plugins of a profile.
pub(super) fn read(reader: &mut Reader, profile: &Object, path: &Path) -> PluginArgs {
    let mut args = PluginArgs::default();
    let mut seen: Vec<String> = Vec::new();
    for (at, config) in reader.objects(profile, "pluginConfig", path) {
        reader.known(config, &at.to_string(), &["name", "args"]);
        let name = reader.text(config, "name", &at);
        if seen.contains(&name) {
            reader.errors.push(Error::duplicate(&at, name.as_str()));
        }
        let Some((args_path, map)) = reader.object(config, "args", &at) else { continue };
        let kind = reader.text(map, "kind", &args_path);
        if !kind.is_empty() && kind != format!("{name}Args") {
            let why = "has to match plugin args";
            reader.errors.push(Error::invalid(&args_path, kind, why));
        }
        match name.as_str() {
            "DefaultPreemption" => preemption(reader, map, &args_path, &mut args),
            "DynamicResources" => dynamic_resources(reader, map, &args_path),
            "InterPodAffinity" => pod_affinity(reader, map, &args_path, &mut args),
            "NodeAffinity" => node_affinity(reader, map, &args_path, &mut args),
            "NodeResourcesBalancedAllocation" => balanced(reader, map, &args_path, &mut args),
            "NodeResourcesFit" => fit(reader, map, &args_path, &mut args),
            "PodTopologySpread" => topology_spread(reader, map, &args_path, &mut args),
            "VolumeBinding" => volume_binding(reader, map, &args_path, &mut args),
            plugin if WITHOUT_ARGS.contains(&plugin) => {
                known(reader, map, &args_path, &[]);
            }
            _ => reader.errors.push(Error::not_found(&at.child("name"), name.as_str())),
        }
        seen.push(name);
    }
    args
}

fn known(reader: &mut Reader, map: &Object, path: &Path, fields: &[&str]) {
    let all: Vec<&str> = ["apiVersion", "kind"].into_iter().chain(fields.iter().copied()).collect();
    reader.known(map, &path.to_string(), &all);
}

/// A typed value; `None` if it is absent.
fn typed<K: DeserializeOwned>(
    reader: &mut Reader,
    map: &Object,
    key: &str,
    path: &Path,
    want: &str,
) -> Option<K> {
    let value = map.get(key).filter(|value| !value.is_null())?;
    let typed = serde_json::from_value(value.clone()).ok();
    if typed.is_none() {
        reader.type_of(&path.child(key), want);
    }
    typed
}

fn preemption(reader: &mut Reader, map: &Object, path: &Path, args: &mut PluginArgs) {
    const PERCENTAGE: &str = "minCandidateNodesPercentage";
    const ABSOLUTE: &str = "minCandidateNodesAbsolute";
    known(reader, map, path, &[PERCENTAGE, ABSOLUTE]);
    let percentage = integer(reader, map, PERCENTAGE, path).unwrap_or(10);
    let absolute = integer(reader, map, ABSOLUTE, path).unwrap_or(100);
    let mut invalid = |field: &str, value: i64, why: &str| {
        reader.errors.push(Error::invalid(&path.child(field), value, why));
    };
    if !(0..=100).contains(&percentage) {
        invalid(PERCENTAGE, percentage, "not in valid range [0, 100]");
    }
    if absolute < 0 {
        invalid(ABSOLUTE, absolute, "not in valid range [0, inf)");
    }
    if percentage == 0 && absolute == 0 {
        let why = |other: &str| format!("cannot be zero at the same time as {other}");
        invalid(PERCENTAGE, 0, &why(ABSOLUTE));
        invalid(ABSOLUTE, 0, &why(PERCENTAGE));
    }
    args.min_candidate_nodes_percentage = usize::try_from(percentage).unwrap_or_default();
    args.min_candidate_nodes_absolute = usize::try_from(absolute).unwrap_or_default();
}

/// Upstream's two timeouts: kube-lite has others for them.
fn dynamic_resources(reader: &mut Reader, map: &Object, path: &Path) {
    known(reader, map, path, &["filterTimeout", "bindingTimeout"]);
    for field in ["filterTimeout", "bindingTimeout"] {
        if map.contains_key(field) {
            let why = "kube-lite has a fixed timeout here; remove the field";
            reader.errors.push(Error::forbidden(&path.child(field), why));
        }
    }
}

fn pod_affinity(reader: &mut Reader, map: &Object, path: &Path, args: &mut PluginArgs) {
    const WEIGHT: &str = "hardPodAffinityWeight";
    const IGNORE: &str = "ignorePreferredTermsOfExistingPods";
    known(reader, map, path, &[WEIGHT, IGNORE]);
    let weight = integer(reader, map, WEIGHT, path).unwrap_or(1);
    if !(0..=100).contains(&weight) {
        let at = path.child(WEIGHT);
        reader.errors.push(Error::invalid(&at, weight, "not in valid range [0, 100]"));
    }
    args.hard_pod_affinity_weight = weight;
    let ignore = reader.boolean(map, IGNORE, path);
    args.ignore_preferred_terms_of_existing_pods = ignore.unwrap_or(false);
}

fn node_affinity(reader: &mut Reader, map: &Object, path: &Path, args: &mut PluginArgs) {
    const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
    const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";
    known(reader, map, path, &["addedAffinity"]);
    let Some((path, map)) = reader.object(map, "addedAffinity", path) else { return };
    reader.known(map, &path.to_string(), &[REQUIRED, PREFERRED]);
    if let Some((at, required)) = reader.object(map, REQUIRED, &path) {
        let terms: Option<Vec<NodeSelectorTerm>> =
            typed(reader, required, "nodeSelectorTerms", &at, "a list of node selector terms");
        args.added_required_nodes = Some(terms.unwrap_or_default());
    }
    for (at, preferred) in reader.objects(map, PREFERRED, &path) {
        let weight = integer(reader, preferred, "weight", &at).unwrap_or(0);
        let term = typed(reader, preferred, "preference", &at, "a node selector term");
        args.added_preferred_nodes.extend(term.map(|term| (weight, term)));
    }
}

/// The resources of a list; the default ones if it is empty. A weight of 0 means 1.
fn resources(
    reader: &mut Reader,
    map: &Object,
    path: &Path,
    default: &[ResourceWeight],
) -> Vec<ResourceWeight> {
    let mut resources = Vec::new();
    for (at, resource) in reader.objects(map, "resources", path) {
        reader.known(resource, &at.to_string(), &["name", "weight"]);
        let name = reader.text(resource, "name", &at);
        let weight = integer(reader, resource, "weight", &at).filter(|weight| *weight != 0);
        let resource = ScoredResource::new(&name);
        resources.push(ResourceWeight { resource, weight: weight.unwrap_or(1) });
    }
    if resources.is_empty() { default.to_vec() } else { resources }
}

fn balanced(reader: &mut Reader, map: &Object, path: &Path, args: &mut PluginArgs) {
    known(reader, map, path, &["resources"]);
    let all = resources(reader, map, path, &args.balanced_resources);
    for (index, resource) in all.iter().enumerate() {
        let at = path.child("resources").index(index);
        if all.iter().take(index).any(|other| other.resource == resource.resource) {
            reader.errors.push(Error::duplicate(&at.child("name"), resource.resource.name()));
        }
        if resource.weight != 1 {
            let error = Error::invalid(&at.child("weight"), resource.weight, "must be 1");
            reader.errors.push(error);
        }
    }
    args.balanced_resources = all;
}

fn fit(reader: &mut Reader, map: &Object, path: &Path, args: &mut PluginArgs) {
    known(reader, map, path, &["ignoredResources", "ignoredResourceGroups", "scoringStrategy"]);
    args.ignored_resources.extend(reader.strings(map, "ignoredResources", path));
    let groups = reader.strings(map, "ignoredResourceGroups", path);
    for (index, group) in groups.iter().enumerate().filter(|(_, group)| group.contains('/')) {
        let at = path.child("ignoredResourceGroups").index(index);
        let why = "resource group name can't contain '/'";
        reader.errors.push(Error::invalid(&at, group.as_str(), why));
    }
    args.ignored_resource_groups.extend(groups);
    if let Some((path, map)) = reader.object(map, "scoringStrategy", path) {
        strategy(reader, map, &path, args);
    }
}

fn strategy(reader: &mut Reader, map: &Object, path: &Path, args: &mut PluginArgs) {
    const RATIO: &str = "requestedToCapacityRatio";
    const TYPES: [&str; 3] = ["LeastAllocated", "MostAllocated", "RequestedToCapacityRatio"];
    reader.known(map, &path.to_string(), &["type", "resources", RATIO]);
    args.fit_resources = resources(reader, map, path, &args.fit_resources);
    for (index, resource) in args.fit_resources.iter().enumerate() {
        if !(1..=100).contains(&resource.weight) {
            let at = path.child("resources").index(index).child("weight");
            let why = format!(
                "resource weight of {} not in valid range (0, 100]",
                resource.resource.name()
            );
            reader.errors.push(Error::invalid(&at, resource.weight, why));
        }
    }
    let ratio = reader.object(map, RATIO, path);
    let kind = reader.text(map, "type", path);
    args.scoring_strategy = match (kind.as_str(), ratio) {
        ("LeastAllocated", None) => ScoringStrategy::LeastAllocated,
        ("MostAllocated", None) => ScoringStrategy::MostAllocated,
        ("LeastAllocated" | "MostAllocated", Some((at, _))) => {
            let why = "must be nil when type is not RequestedToCapacityRatio";
            reader.errors.push(Error::forbidden(&at, why));
            return;
        }
        ("RequestedToCapacityRatio", None) => {
            let why = "must be specified when type is RequestedToCapacityRatio";
            reader.errors.push(Error::required(&path.child(RATIO), why));
            return;
        }
        ("RequestedToCapacityRatio", Some((at, ratio))) => {
            reader.known(ratio, &at.to_string(), &["shape"]);
            ScoringStrategy::RequestedToCapacityRatio(shape(reader, ratio, &at))
        }
        (other, _) => {
            reader.errors.push(Error::not_supported(&path.child("type"), other, &TYPES));
            return;
        }
    };
}

fn shape(reader: &mut Reader, map: &Object, path: &Path) -> Vec<UtilizationPoint> {
    let given = reader.objects(map, "shape", path);
    let path = path.child("shape");
    if given.is_empty() {
        let why = "at least one point must be specified";
        reader.errors.push(Error::required(&path, why));
    }
    let mut points: Vec<UtilizationPoint> = Vec::new();
    for (at, point) in given {
        reader.known(point, &at.to_string(), &["utilization", "score"]);
        let utilization = integer(reader, point, "utilization", &at).unwrap_or(0);
        let score = integer(reader, point, "score", &at).unwrap_or(0);
        let mut invalid = |field: &str, value: i64, why: &str| {
            reader.errors.push(Error::invalid(&at.child(field), value, why));
        };
        if points.last().is_some_and(|last| last.utilization >= utilization) {
            invalid("utilization", utilization, "values must be sorted in increasing order");
        }
        if !(0..=100).contains(&utilization) {
            invalid("utilization", utilization, "not in valid range [0, 100]");
        }
        if !(0..=SHAPE_SCORE_MAX).contains(&score) {
            invalid("score", score, "not in valid range [0, 10]");
        }
        points.push(UtilizationPoint { utilization, score: score * (100 / SHAPE_SCORE_MAX) });
    }
    points
}

fn topology_spread(reader: &mut Reader, map: &Object, path: &Path, args: &mut PluginArgs) {
    const TYPE: &str = "defaultingType";
    const CONSTRAINTS: &str = "defaultConstraints";
    known(reader, map, path, &[TYPE, CONSTRAINTS]);
    let constraints: Vec<TopologySpreadConstraint> =
        typed(reader, map, CONSTRAINTS, path, "a list of topology spread constraints")
            .unwrap_or_default();
    for (index, constraint) in constraints.iter().enumerate() {
        let at = path.child(CONSTRAINTS).index(index);
        check_constraint(reader, constraint, &at);
        let is_same = |other: &&TopologySpreadConstraint| {
            other.topology_key == constraint.topology_key
                && other.when_unsatisfiable == constraint.when_unsatisfiable
        };
        if constraints.iter().take(index).any(|other| is_same(&other)) {
            let pair =
                format!("{{{}, {}}}", constraint.topology_key, constraint.when_unsatisfiable);
            reader.errors.push(Error::duplicate(&at, pair));
        }
    }
    let kind = reader.text(map, TYPE, path);
    args.default_constraints = match kind.as_str() {
        "List" => DefaultConstraints::List(constraints),
        "" | "System" if constraints.is_empty() => DefaultConstraints::System,
        "" | "System" => {
            let why = "when .defaultConstraints are not empty";
            reader.errors.push(Error::invalid(&path.child(TYPE), "System", why));
            return;
        }
        other => {
            let at = path.child(TYPE);
            reader.errors.push(Error::not_supported(&at, other, &["System", "List"]));
            return;
        }
    };
}

fn check_constraint(reader: &mut Reader, constraint: &TopologySpreadConstraint, path: &Path) {
    const ACTIONS: [&str; 2] = ["DoNotSchedule", "ScheduleAnyway"];
    if constraint.max_skew <= 0 {
        let why = "not in valid range (0, inf)";
        reader.errors.push(Error::invalid(&path.child("maxSkew"), constraint.max_skew, why));
    }
    if constraint.topology_key.is_empty() {
        reader.errors.push(Error::required(&path.child("topologyKey"), "can not be empty"));
    }
    let action = constraint.when_unsatisfiable.as_str();
    let action_path = path.child("whenUnsatisfiable");
    if action.is_empty() {
        reader.errors.push(Error::required(&action_path, "can not be empty"));
    } else if !ACTIONS.contains(&action) {
        reader.errors.push(Error::not_supported(&action_path, action, &ACTIONS));
    }
    if constraint.label_selector.is_some() {
        let why = "constraint must not define a selector, as they deduced for each pod";
        reader.errors.push(Error::forbidden(&path.child("labelSelector"), why));
    }
}

fn volume_binding(reader: &mut Reader, map: &Object, path: &Path, args: &mut PluginArgs) {
    const TIMEOUT: &str = "bindTimeoutSeconds";
    known(reader, map, path, &[TIMEOUT, "shape"]);
    let timeout = integer(reader, map, TIMEOUT, path).unwrap_or(600);
    match u64::try_from(timeout) {
        Ok(seconds) => args.bind_timeout = Duration::from_secs(seconds),
        Err(_) => {
            let why = "invalid BindTimeoutSeconds, should not be a negative value";
            reader.errors.push(Error::invalid(&path.child(TIMEOUT), timeout, why));
        }
    }
    if let Some(shape) = map.get("shape").filter(|shape| !shape.is_null()) {
        let why = "unexpected field `shape`, remove it or turn on the feature gate \
                   StorageCapacityScoring";
        reader.errors.push(Error::invalid(&path.child("shape"), shape.clone(), why));
    }
}
