//! Constraints of pods without constraints of their own: those of the configuration, with the
//! selectors of the Services and of the controller of the pod.

use api::k8s::api::core::v1::TopologySpreadConstraint;
use api::k8s::apimachinery::pkg::apis::meta::v1::LabelSelector;
use client::labels;

use crate::framework::Snapshot;
use crate::plugin_args::{DefaultConstraints, PluginArgs};
use crate::pod_info::{SpreadConstraint, spread_constraint};

/// Whether the constraints are upstream's two.
pub(super) fn are_system_defaults(args: &PluginArgs) -> bool {
    args.default_constraints == DefaultConstraints::System
}

/// Upstream's constraints (`systemDefaultConstraints`), which only affect scores.
fn system_defaults() -> [TopologySpreadConstraint; 2] {
    [("kubernetes.io/hostname", 3), ("topology.kubernetes.io/zone", 5)].map(|(key, max_skew)| {
        TopologySpreadConstraint {
            max_skew,
            topology_key: key.into(),
            when_unsatisfiable: "ScheduleAnyway".into(),
            ..TopologySpreadConstraint::default()
        }
    })
}

/// The constraints for the pod; none if no object selects it (`buildDefaultConstraints`).
pub(super) fn of_pod(snapshot: &Snapshot<'_>, is_hard: bool) -> Vec<SpreadConstraint> {
    let system = system_defaults();
    let configured = match &snapshot.args.default_constraints {
        DefaultConstraints::System => system.as_slice(),
        DefaultConstraints::List(list) => list,
    };
    let pod = snapshot.pod;
    let mut constraints: Vec<SpreadConstraint> =
        configured.iter().map(|c| spread_constraint(c, &pod.labels)).collect();
    constraints.retain(|constraint| constraint.hard == is_hard);
    if constraints.is_empty() {
        return constraints;
    }
    let selector = default_selector(snapshot);
    if labels::is_empty(&selector) {
        return Vec::new();
    }
    for constraint in &mut constraints {
        constraint.selector = Some(selector.clone());
    }
    constraints
}

/// The selector of all Services that select the pod, and of its controller
/// (`helper.DefaultSelector`).
fn default_selector(snapshot: &Snapshot<'_>) -> LabelSelector {
    let pod = snapshot.pod;
    let mut selector = LabelSelector::default();
    let pairs = selector.match_labels.get_or_insert_default();
    for service in snapshot.listers.service_selectors(&pod.namespace) {
        if labels::contains(&service, Some(&pod.labels)) {
            pairs.extend(service);
        }
    }
    let owner = pod.controller.as_ref();
    let Some(owned) = owner.and_then(|owner| snapshot.listers.selector(&pod.namespace, owner))
    else {
        return selector;
    };
    let pairs = selector.match_labels.get_or_insert_default();
    pairs.extend(owned.match_labels.into_iter().flatten());
    selector.match_expressions = owned.match_expressions;
    selector
}
