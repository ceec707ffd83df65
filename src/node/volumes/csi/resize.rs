//! What a node does to a volume whose PersistentVolume is larger than its claim says, and how the
//! claim shows it (`node_expander.go` and `resize_util.go` of upstream).

use api::Quantity;
use api::k8s::api::core::v1::{PersistentVolumeClaim, PersistentVolumeClaimCondition};
use serde_json::{Value, json};

/// Key of the size in maps of resources.
const STORAGE: &str = "storage";
/// Annotation of a claim whose volume is larger on all nodes already.
const NOT_REQUIRED: &str = "volume.kubernetes.io/node-expansion-not-required";
/// The conditions of claims that are about their size.
const CONDITIONS: [&str; 4] =
    ["FileSystemResizePending", "Resizing", "ControllerResizeError", "NodeResizeError"];

/// Reads a size from a map of resources.
fn size_of(
    resources: Option<
        &std::collections::BTreeMap<String, api::k8s::apimachinery::pkg::api::resource::Quantity>,
    >,
) -> Option<Quantity> {
    let text = resources?.get(STORAGE)?;
    Quantity::parse(&text.0).ok()
}

/// Returns the size of the volume that the status of a claim shows.
pub(super) fn claim_size(claim: &PersistentVolumeClaim) -> Option<Quantity> {
    size_of(claim.status.as_ref()?.capacity.as_ref())
}

fn resize_status(claim: &PersistentVolumeClaim) -> Option<&str> {
    let statuses = claim.status.as_ref()?.allocated_resource_statuses.as_ref()?;
    statuses.get(STORAGE).map(String::as_str)
}

/// What a node does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Resize {
    /// The controller has not done its part yet, or has given up.
    Wait,
    /// The volume has this size already.
    Done,
    /// The driver enlarges the volume on this node.
    Expand {
        size: Quantity,
        /// Whether the claim shows the progress; false if another node enlarged the volume before.
        updates_claim: bool,
        /// Whether the resizer writes the progress into claims; older ones do not.
        has_recovery: bool,
        /// A failure is final for the controller, which then attempts the size that the user wants.
        is_infeasible_on_failure: bool,
    },
}

/// Decides what to do about a claim whose volume has the size `wanted` in its PersistentVolume.
/// `failed` says that an earlier attempt of this node failed with a final error.
pub(super) fn decide(claim: &PersistentVolumeClaim, wanted: Quantity, failed: bool) -> Resize {
    let status = claim.status.as_ref();
    let allocated = status.and_then(|s| s.allocated_resources.as_ref());
    let progress = resize_status(claim).filter(|p| !p.is_empty());
    let shown = claim_size(claim).unwrap_or_else(|| Quantity::from_int(0));
    if progress.is_none() && allocated.is_none() {
        let updates_claim = shown < wanted;
        return Resize::Expand {
            size: wanted,
            updates_claim,
            has_recovery: false,
            is_infeasible_on_failure: false,
        };
    }
    let size = size_of(allocated).unwrap_or_else(|| Quantity::from_int(0));
    let spec = claim.spec.as_ref();
    let requested =
        size_of(spec.and_then(|s| s.resources.as_ref()).and_then(|r| r.requests.as_ref()));
    let expand = |updates_claim| Resize::Expand {
        size,
        updates_claim,
        has_recovery: true,
        is_infeasible_on_failure: failed && requested != Some(size),
    };
    if shown >= size && progress.is_none() {
        let modes = spec.and_then(|s| s.access_modes.as_ref()).into_iter().flatten();
        let is_shared = modes.clone().any(|mode| mode == "ReadWriteMany");
        let annotations = claim.metadata.annotations.as_ref();
        let is_required = !annotations.is_some_and(|a| a.contains_key(NOT_REQUIRED));
        return if is_shared && is_required { expand(false) } else { Resize::Done };
    }
    match progress {
        Some("NodeResizePending" | "NodeResizeInProgress") => expand(true),
        _ => Resize::Wait,
    }
}

/// The patch that shows that the node enlarges the volume.
pub(super) fn in_progress(claim: &PersistentVolumeClaim) -> Value {
    let mut patch = json!({"status": {"allocatedResourceStatuses":
        {STORAGE: "NodeResizeInProgress"}}});
    patch["metadata"]["resourceVersion"] = json!(claim.metadata.resource_version);
    patch
}

/// The patch that shows that the volume has a new size. Conditions about its size are removed.
pub(super) fn finished(claim: &PersistentVolumeClaim, size: &str) -> Value {
    let conditions: Vec<_> = conditions(claim)
        .filter(|condition| !CONDITIONS.contains(&condition.type_.as_str()))
        .collect();
    json!({
        "metadata": {"resourceVersion": claim.metadata.resource_version},
        "status": {"capacity": {STORAGE: size}, "conditions": conditions,
            "allocatedResourceStatuses": {STORAGE: null}},
    })
}

/// The patch that shows that the node cannot enlarge the volume; `now` in the form of the API.
pub(super) fn failed(
    claim: &PersistentVolumeClaim,
    error: &str,
    is_infeasible: bool,
    now: &str,
) -> Value {
    let new = json!({"type": "NodeResizeError", "status": "True", "lastTransitionTime": now,
        "message": format!("failed to expand pvc with {error}")});
    let mut list: Vec<Value> = Vec::new();
    let mut is_known = false;
    for condition in conditions(claim) {
        let is_same = condition.type_ == "NodeResizeError";
        is_known |= is_same;
        list.push(if is_same && condition.status != "True" {
            new.clone()
        } else {
            json!(condition)
        });
    }
    if !is_known {
        list.push(new);
    }
    let mut patch = json!({"status": {"conditions": list}});
    if is_infeasible {
        patch["status"]["allocatedResourceStatuses"] = json!({STORAGE: "NodeResizeInfeasible"});
    }
    patch
}

fn conditions(
    claim: &PersistentVolumeClaim,
) -> impl Iterator<Item = &PersistentVolumeClaimCondition> {
    claim.status.as_ref().and_then(|s| s.conditions.as_ref()).into_iter().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(value: Value) -> PersistentVolumeClaim {
        serde_json::from_value(value).unwrap()
    }

    fn gib(count: i64) -> Quantity {
        Quantity::parse(&format!("{count}Gi")).unwrap()
    }

    /// Cases of `TestNodeExpander`.
    #[test]
    fn the_node_acts_once_the_controller_has_done_its_part() {
        let of = |progress: Value, allocated: Value, shown: &str, modes: Value, notes: Value| {
            claim(json!({"metadata": {"annotations": notes},
                "spec": {"accessModes": modes, "resources": {"requests": {"storage": "2Gi"}}},
                "status": {"capacity": {"storage": shown}, "allocatedResources": allocated,
                    "allocatedResourceStatuses": progress}}))
        };
        let (once, many) = (json!(["ReadWriteOnce"]), json!(["ReadWriteMany"]));
        let two = json!({"storage": "2Gi"});
        let in_state = |state: &str| {
            of(json!({"storage": state}), two.clone(), "1Gi", once.clone(), json!({}))
        };
        let expand = |updates_claim| Resize::Expand {
            size: gib(2),
            updates_claim,
            has_recovery: true,
            is_infeasible_on_failure: false,
        };
        assert_eq!(decide(&in_state("NodeResizePending"), gib(2), false), expand(true));
        assert_eq!(decide(&in_state("NodeResizeInProgress"), gib(2), true), expand(true));
        for state in ["ControllerResizeInProgress", "NodeResizeInfeasible"] {
            assert_eq!(decide(&in_state(state), gib(2), false), Resize::Wait, "{state}");
        }
        let done = |modes: &Value, notes: Value| {
            decide(&of(Value::Null, two.clone(), "2Gi", modes.clone(), notes), gib(2), false)
        };
        assert_eq!(done(&once, json!({})), Resize::Done);
        assert_eq!(done(&many, json!({})), expand(false), "on each node");
        assert_eq!(done(&many, json!({NOT_REQUIRED: "true"})), Resize::Done);
    }

    #[test]
    fn a_failure_is_infeasible_if_the_user_wants_another_size_by_now() {
        let claim = claim(json!({"metadata": {},
            "spec": {"resources": {"requests": {"storage": "1500Mi"}}},
            "status": {"capacity": {"storage": "1Gi"}, "allocatedResources": {"storage": "2Gi"},
                "allocatedResourceStatuses": {"storage": "NodeResizePending"}}}));
        let is_infeasible = |failed| match decide(&claim, gib(2), failed) {
            Resize::Expand { is_infeasible_on_failure, .. } => is_infeasible_on_failure,
            other => panic!("{other:?}"),
        };
        assert!(!is_infeasible(false));
        assert!(is_infeasible(true));
    }

    #[test]
    fn older_resizers_leave_everything_to_the_node() {
        let claim = claim(json!({"metadata": {}, "status": {"capacity": {"storage": "1Gi"}}}));
        assert_eq!(
            decide(&claim, gib(3), false),
            Resize::Expand {
                size: gib(3),
                updates_claim: true,
                has_recovery: false,
                is_infeasible_on_failure: false
            }
        );
    }

    #[test]
    fn the_claim_shows_the_outcome() {
        let condition = |type_: &str, status: &str| json!({"type": type_, "status": status, "lastTransitionTime": null});
        let claim = claim(json!({"metadata": {"resourceVersion": "7"}, "status": {"conditions":
            [condition("FileSystemResizePending", "True"), condition("Other", "True")]}}));
        let done = finished(&claim, "2Gi");
        assert_eq!(done["status"]["capacity"], json!({"storage": "2Gi"}));
        assert_eq!(done["metadata"]["resourceVersion"], "7");
        let types = |patch: &Value| {
            let all = patch["status"]["conditions"].as_array().unwrap().iter();
            all.map(|c| c["type"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(types(&done), ["Other"]);
        let bad = failed(&claim, "x", true, "2026-01-01T00:00:00Z");
        assert_eq!(types(&bad), ["FileSystemResizePending", "Other", "NodeResizeError"]);
        assert_eq!(bad["status"]["conditions"][2]["message"], "failed to expand pvc with x");
        assert_eq!(
            bad["status"]["allocatedResourceStatuses"],
            json!({"storage": "NodeResizeInfeasible"})
        );
    }
}
