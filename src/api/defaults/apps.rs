//! Defaults of Deployments, DaemonSets, StatefulSets and ReplicaSets.

use serde_json::Value;

use super::core::persistent_volume_claim;
use super::pod::pod_template;
use crate::value::{default_str, default_to, ensure_object, items_mut, object_mut, set, str_at};

fn template(spec: &mut Value) {
    if let Some(template) = ensure_object(spec, "template") {
        pod_template(template);
    }
}

pub(super) fn deployment(object: &mut Value) {
    let Some(spec) = ensure_object(object, "spec") else { return };
    default_to(spec, "replicas", 1);
    if let Some(strategy) = ensure_object(spec, "strategy") {
        default_str(strategy, "type", "RollingUpdate");
        if str_at(strategy, "type") == "RollingUpdate" {
            if let Some(rolling) = ensure_object(strategy, "rollingUpdate") {
                default_to(rolling, "maxUnavailable", "25%");
                default_to(rolling, "maxSurge", "25%");
            }
        }
    }
    default_to(spec, "revisionHistoryLimit", 10);
    default_to(spec, "progressDeadlineSeconds", 600);
    template(spec);
}

/// The annotation of `apps/v1` that contains the former field `spec.templateGeneration`.
const TEMPLATE_GENERATION: &str = "deprecated.daemonset.template.generation";

pub(super) fn daemon_set(object: &mut Value) {
    // Upstream always writes the annotation, with 0 for an unset generation; the create strategy
    // sets the first generation to 1.
    if let Some(annotations) =
        ensure_object(object, "metadata").and_then(|meta| ensure_object(meta, "annotations"))
    {
        default_str(annotations, TEMPLATE_GENERATION, "0");
    }
    let Some(spec) = ensure_object(object, "spec") else { return };
    if let Some(strategy) = ensure_object(spec, "updateStrategy") {
        default_str(strategy, "type", "RollingUpdate");
        if str_at(strategy, "type") == "RollingUpdate" {
            if let Some(rolling) = ensure_object(strategy, "rollingUpdate") {
                default_to(rolling, "maxUnavailable", 1);
                default_to(rolling, "maxSurge", 0);
            }
        }
    }
    default_to(spec, "revisionHistoryLimit", 10);
    template(spec);
}

pub(super) fn stateful_set(object: &mut Value) {
    let Some(spec) = ensure_object(object, "spec") else { return };
    default_str(spec, "podManagementPolicy", "OrderedReady");
    if let Some(strategy) = ensure_object(spec, "updateStrategy") {
        if str_at(strategy, "type").is_empty() {
            default_str(strategy, "type", "RollingUpdate");
            ensure_object(strategy, "rollingUpdate");
        }
        if str_at(strategy, "type") == "RollingUpdate" {
            if let Some(rolling) = object_mut(strategy, "rollingUpdate") {
                default_to(rolling, "partition", 0);
                default_to(rolling, "maxUnavailable", 1);
            }
        }
    }
    if let Some(policy) = ensure_object(spec, "persistentVolumeClaimRetentionPolicy") {
        default_str(policy, "whenDeleted", "Retain");
        default_str(policy, "whenScaled", "Retain");
    }
    default_to(spec, "replicas", 1);
    default_to(spec, "revisionHistoryLimit", 10);
    template(spec);
    for claim in items_mut(spec, "volumeClaimTemplates") {
        // The type meta of a claim template is fixed, regardless of the client's values.
        set(claim, "apiVersion", "v1");
        set(claim, "kind", "PersistentVolumeClaim");
        persistent_volume_claim(claim);
    }
}

pub(super) fn replica_set(object: &mut Value) {
    let Some(spec) = ensure_object(object, "spec") else { return };
    default_to(spec, "replicas", 1);
    template(spec);
}
