//! Checkpoints: one object per container of an autoscaler, from which a restart continues
//! (upstream's `recommender/checkpoint`).

use std::time::Duration;

use base::clock;
use client::{Client, DeleteOptions, Error, ListOptions, Patch};
use serde_json::{Value, json};
use sorting::CompactSort as _;

use crate::model::aggregate::Aggregate;
use crate::model::checkpoint::{Checkpoint, CheckpointSpec, CheckpointStatus};
use crate::model::state::{AutoscalerKey, Observed, State};
use crate::types::{GROUP, VERSION, checkpoints};

/// Seconds between two checkpoints of an autoscaler: first one round, then twice as many each time
/// up to ten minutes. Upstream writes all of them each minute; what a crash loses here is at most
/// half of a short history or ten minutes of a long one, and flash memory is written less.
const WRITE_INTERVAL: (i64, i64) = (60, 600);
/// Time limit of the writes of one round (`--checkpoints-timeout`); the others follow in the next.
const WRITE_MAX: Duration = Duration::from_secs(60);

/// The container of a checkpoint that is due, with its content.
struct DueCheckpoint {
    container: String,
    status: CheckpointStatus,
}

/// The name of a checkpoint.
fn name(autoscaler: &str, container: &str) -> String {
    format!("{autoscaler}-{container}")
}

async fn list(client: &Client) -> Result<Vec<Value>, Error> {
    client.list_values(&checkpoints(), "", &ListOptions::default()).await
}

/// Continues with the distributions of the checkpoints of the autoscalers in `state`. A checkpoint
/// that cannot be read is skipped.
///
/// # Errors
/// The server's refusal to list checkpoints.
pub(crate) async fn load(client: &Client, state: &mut State, now: i64) -> Result<(), Error> {
    for value in list(client).await? {
        let checkpoint = match serde_json::from_value::<Checkpoint>(value) {
            Ok(checkpoint) => checkpoint,
            Err(error) => {
                tracing::warn!(%error, "vertical-pod-autoscaler: a checkpoint cannot be read");
                continue;
            }
        };
        restore(&checkpoint, state, now);
    }
    Ok(())
}

/// Continues with the distributions of one checkpoint.
fn restore(checkpoint: &Checkpoint, state: &mut State, now: i64) {
    let CheckpointSpec { autoscaler, container_name } = &checkpoint.spec;
    let namespace = checkpoint.metadata.namespace.clone().unwrap_or_default();
    let key: AutoscalerKey = (namespace, autoscaler.clone());
    let Some(observed) = state.autoscalers.get_mut(&key) else { return };
    match Aggregate::load(&checkpoint.status, now) {
        Ok(aggregate) => observed.restore(container_name, aggregate),
        Err(error) => {
            let (namespace, name) = &key;
            tracing::warn!(namespace, name, container = container_name, %error,
                "vertical-pod-autoscaler: cannot load a checkpoint");
        }
    }
}

/// The autoscalers whose checkpoints are due, the longest due first (`getVpasToCheckpoint`).
fn due(state: &State, now: i64) -> Vec<AutoscalerKey> {
    let is_due = |observed: &Observed| {
        let interval = observed.checkpoint_interval;
        observed.checkpoint_written.is_none_or(|at| now.saturating_sub(at) >= interval)
    };
    let all = state.autoscalers.iter();
    let due = all.filter(|(_, observed)| is_due(observed));
    let mut due: Vec<_> =
        due.map(|(key, observed)| (observed.checkpoint_written, key.clone())).collect();
    due.compact_sort();
    due.into_iter().map(|(_, key)| key).collect()
}

/// The checkpoints of an autoscaler.
fn content(state: &State, key: &AutoscalerKey, now: i64) -> Vec<DueCheckpoint> {
    let Some(observed) = state.autoscalers.get(key) else { return Vec::new() };
    let containers = observed.aggregates().keys();
    let content = containers.filter_map(|container| {
        let aggregate = observed.without_current_peaks(container, now)?;
        Some(DueCheckpoint { container: container.clone(), status: aggregate.save(now) })
    });
    content.collect()
}

/// Writes the checkpoints that are due. At least one autoscaler's are written.
pub(crate) async fn write(client: &Client, state: &mut State, now: i64) {
    let started = clock::now();
    for key in due(state, now) {
        for checkpoint in content(state, &key, now) {
            if let Err(error) = write_one(client, &key, &checkpoint).await {
                let (namespace, name) = &key;
                tracing::warn!(namespace, name, container = checkpoint.container, %error,
                    "vertical-pod-autoscaler: cannot save a checkpoint");
            }
        }
        if let Some(observed) = state.autoscalers.get_mut(&key) {
            observed.checkpoint_written = Some(now);
            let (first, last) = WRITE_INTERVAL;
            let next = observed.checkpoint_interval.saturating_mul(2);
            observed.checkpoint_interval = next.clamp(first, last);
        }
        if started.elapsed() >= WRITE_MAX {
            tracing::warn!("vertical-pod-autoscaler: writing checkpoints takes over a minute");
            return;
        }
    }
}

/// Replaces the status of a checkpoint, or creates it.
async fn write_one(
    client: &Client,
    (namespace, autoscaler): &AutoscalerKey,
    checkpoint: &DueCheckpoint,
) -> Result<(), Error> {
    let name = name(autoscaler, &checkpoint.container);
    let status = serde_json::to_value(&checkpoint.status)?;
    let patch = json!([{"op": "replace", "path": "/status", "value": status}]);
    let patched =
        client.patch_value(&checkpoints(), namespace, &name, "", &Patch::Json(&patch)).await;
    match patched {
        Err(error) if error.is_not_found() => {}
        other => return other.map(drop),
    }
    let object = json!({
        "apiVersion": format!("{GROUP}/{VERSION}"), "kind": "VerticalPodAutoscalerCheckpoint",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"vpaObjectName": autoscaler, "containerName": checkpoint.container},
        "status": status,
    });
    client.post_value(&checkpoints(), namespace, "", "", &object).await.map(drop)
}

/// Deletes the checkpoints without an autoscaler.
pub(crate) async fn collect(client: &Client, exists: impl Fn(&str, &str) -> bool) {
    let all = match list(client).await {
        Ok(all) => all,
        Err(error) => {
            tracing::warn!(%error, "vertical-pod-autoscaler: cannot list checkpoints");
            return;
        }
    };
    for value in all {
        let text = |path: &[&str]| api::value::str_in(&value, path);
        let namespace = text(&["metadata", "namespace"]);
        if exists(namespace, text(&["spec", "vpaObjectName"])) {
            continue;
        }
        let name = text(&["metadata", "name"]);
        let options = DeleteOptions::with_uid(text(&["metadata", "uid"]));
        match client.delete_gvr(&checkpoints(), namespace, name, &options).await {
            Ok(()) => {
                tracing::debug!(namespace, name, "vertical-pod-autoscaler: deleted a checkpoint");
            }
            Err(error) if error.is_not_found() => {}
            Err(error) => {
                tracing::warn!(namespace, name, %error,
                    "vertical-pod-autoscaler: cannot delete a checkpoint");
            }
        }
    }
}

#[cfg(test)]
mod tests;
