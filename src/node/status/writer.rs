//! Writes pod statuses to the API: only changes, only the latest, and the last one before a pod is
//! deleted.

mod terminations;

use api::Typed;
use std::collections::HashMap;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use api::ObjectKey;
use api::k8s::api::core::v1 as core;
use base::{Backoff, Shutdown};
use client::{Client, DeleteOptions, Patch};
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use parking_lot::Mutex;
use serde_json::{Map, Value, json};
use tokio::sync::Notify;

use self::terminations::Terminations;
use crate::pods::condition_types::{RESIZE, is_written_by_node};

/// Maximum number of simultaneous writes.
const WRITES_MAX: usize = 8;

#[derive(Debug, Clone)]
struct PodStatusEntry {
    key: ObjectKey,
    /// Uid of the object in the API (for a static pod that of its mirror pod).
    api_uid: String,
    status: core::PodStatus,
    /// The status in the API as far as it is known.
    written: core::PodStatus,
    /// Resource version of the last write; older versions are ignored.
    version: i64,
    /// The pod is removed from the node: delete the object after the status is written.
    delete: bool,
    dirty: bool,
    busy: bool,
}

#[derive(Debug, Default)]
struct Inner {
    entries: Mutex<HashMap<Arc<str>, PodStatusEntry>>,
    changed: Notify,
    terminations: Terminations,
}

/// The statuses of all pods of this node; cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct StatusWriter(Arc<Inner>);

impl StatusWriter {
    /// Sets the latest status of a pod; `known` is that of the API.
    pub(crate) fn set(
        &self,
        uid: &Arc<str>,
        key: &ObjectKey,
        api_uid: &str,
        known: Option<&core::PodStatus>,
        status: core::PodStatus,
    ) {
        let mut entries = self.0.entries.lock();
        let previous = entries.get(uid).map(|e| &e.status);
        let previous = previous.filter(|status| **status != core::PodStatus::default());
        self.0.terminations.record(previous.or(known), &status);
        let entry = entries.entry(Arc::clone(uid)).or_insert_with(|| PodStatusEntry {
            key: key.clone(),
            api_uid: api_uid.to_owned(),
            status: core::PodStatus::default(),
            written: known.cloned().unwrap_or_default(),
            version: 0,
            delete: false,
            dirty: false,
            busy: false,
        });
        if entry.status == status && entry.api_uid == api_uid {
            return;
        }
        if entry.api_uid != api_uid {
            entry.api_uid = api_uid.to_owned();
            entry.written = known.cloned().unwrap_or_default();
        }
        entry.status = status;
        entry.dirty = true;
        drop(entries);
        self.0.changed.notify_one();
    }

    /// Renders the metrics in the Prometheus text format.
    pub(crate) fn render(&self) -> String {
        self.0.terminations.render()
    }

    /// Handles the status in the API at a resource version: a status that differs from the node's
    /// is written again. After a start from the cache the known status may be outdated, and other
    /// writers may have changed it.
    pub(crate) fn on_api_status(&self, uid: &str, version: i64, status: &core::PodStatus) {
        let mut entries = self.0.entries.lock();
        let Some(entry) = entries.get_mut(uid) else { return };
        let settled = !entry.dirty && !entry.busy && entry.status != core::PodStatus::default();
        if version <= entry.version || !settled {
            return;
        }
        entry.version = version;
        if status_patch(status, &entry.status).is_none() {
            return;
        }
        entry.written = status.clone();
        entry.dirty = true;
        drop(entries);
        self.0.changed.notify_one();
    }

    /// Lets the object of a removed pod be deleted after the last status is written.
    pub(crate) fn finish(&self, uid: &Arc<str>, key: &ObjectKey, api_uid: &str) {
        let mut entries = self.0.entries.lock();
        let entry = entries.entry(Arc::clone(uid)).or_insert_with(|| PodStatusEntry {
            key: key.clone(),
            api_uid: api_uid.to_owned(),
            status: core::PodStatus::default(),
            written: core::PodStatus::default(),
            version: 0,
            delete: true,
            dirty: true,
            busy: false,
        });
        entry.delete = true;
        entry.dirty = true;
        drop(entries);
        self.0.changed.notify_one();
    }

    /// Drops a pod that is deleted from the API.
    pub(crate) fn forget(&self, uid: &str) {
        self.0.entries.lock().remove(uid);
    }

    /// Writes until shutdown.
    pub(crate) async fn run(
        self,
        client: Client,
        shutdown: Shutdown,
    ) -> Result<(), std::convert::Infallible> {
        let mut writes = FuturesUnordered::new();
        let mut backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(10));
        let transport = Arc::clone(client.transport());
        // After a failed write no other write begins before the pause is over; running writes
        // continue.
        let mut pause: Option<Pin<Box<dyn Future<Output = ()> + Send>>> = None;
        loop {
            while pause.is_none() && writes.len() < WRITES_MAX {
                let Some((uid, entry)) = self.take_next() else { break };
                let client = client.clone();
                writes.push(async move {
                    let outcome = write(&client, &entry).await;
                    (uid, entry, outcome)
                });
            }
            tokio::select! {
                () = shutdown.requested() => return Ok(()),
                () = self.0.changed.notified(), if pause.is_none() => {}
                Some((uid, entry, outcome)) = writes.next() => {
                    let failed = outcome.is_err();
                    self.complete_write(&uid, entry, outcome);
                    if !failed {
                        backoff.reset();
                    } else if pause.is_none() {
                        let (delay, transport) = (backoff.next_delay(), Arc::clone(&transport));
                        pause = Some(Box::pin(async move {
                            let _ = tokio::time::timeout(delay, transport.back()).await;
                        }));
                    }
                }
                () = pause_over(&mut pause) => pause = None,
            }
        }
    }

    fn take_next(&self) -> Option<(Arc<str>, PodStatusEntry)> {
        let mut entries = self.0.entries.lock();
        let (uid, entry) = entries.iter_mut().find(|(_, e)| e.dirty && !e.busy)?;
        entry.dirty = false;
        entry.busy = true;
        Some((Arc::clone(uid), entry.clone()))
    }

    fn complete_write(
        &self,
        uid: &Arc<str>,
        written: PodStatusEntry,
        outcome: Result<WriteOutcome, client::Error>,
    ) {
        let mut entries = self.0.entries.lock();
        let Some(entry) = entries.get_mut(uid) else { return };
        entry.busy = false;
        match outcome {
            Ok(WriteOutcome::Gone) => {
                entries.remove(uid);
            }
            Ok(WriteOutcome::Written(version)) => {
                entry.written = written.status;
                entry.version = entry.version.max(version.unwrap_or_default());
            }
            // The API keeps its previous status.
            Ok(WriteOutcome::Rejected) => {}
            Err(error) => {
                tracing::debug!(pod = %entry.key, %error, "cannot write pod status, retrying");
                entry.dirty = true;
            }
        }
    }
}

/// Resolves when there is a pause and it is over.
async fn pause_over(pause: &mut Option<Pin<Box<dyn Future<Output = ()> + Send>>>) {
    match pause {
        Some(pause) => pause.await,
        None => std::future::pending().await,
    }
}

enum WriteOutcome {
    /// With the resource version, if there was something to write.
    Written(Option<i64>),
    /// The server rejected the status, so it is not retried; the next change includes it.
    Rejected,
    Gone,
}

async fn write(client: &Client, entry: &PodStatusEntry) -> Result<WriteOutcome, client::Error> {
    let (namespace, name) = (&*entry.key.namespace, &*entry.key.name);
    let mut version = None;
    if let Some(status) = status_patch(&entry.written, &entry.status) {
        // With the uid, the server rejects the patch for another pod of the same name.
        let patch = json!({"metadata": {"uid": entry.api_uid}, "status": status});
        let result =
            client.patch::<core::Pod>(namespace, name, "status", &Patch::Strategic(&patch)).await;
        match result {
            Ok(pod) => version = pod.metadata.resource_version.and_then(|v| v.parse().ok()),
            Err(error) if error.is_not_found() || error.is_conflict() => {
                return Ok(WriteOutcome::Gone);
            }
            Err(error) if error.is_invalid() => {
                tracing::warn!(pod = %entry.key, %error, "the API server rejected the pod status");
                if !entry.delete {
                    return Ok(WriteOutcome::Rejected);
                }
            }
            Err(error) => return Err(error),
        }
    }
    if !entry.delete {
        return Ok(WriteOutcome::Written(version));
    }
    let options =
        DeleteOptions { grace_period_seconds: Some(0), ..DeleteOptions::with_uid(&entry.api_uid) };
    match client.delete::<core::Pod>(namespace, name, &options).await {
        Ok(()) => Ok(WriteOutcome::Gone),
        Err(error) if error.is_not_found() || error.is_conflict() => Ok(WriteOutcome::Gone),
        Err(error) => Err(error),
    }
}

/// Returns a strategic merge patch from one status to another; `None` if they are equal.
fn status_patch(old: &core::PodStatus, new: &core::PodStatus) -> Option<Value> {
    let (Ok(Value::Object(old)), Ok(Value::Object(mut new))) = (old.to_value(), new.to_value())
    else {
        return None;
    };
    // A condition of another writer, such as a readiness gate, may have changed since this status
    // was generated: writing it would revert that change.
    if let Some(Value::Array(conditions)) = new.get_mut("conditions") {
        conditions.retain(|c| c["type"].as_str().is_some_and(is_written_by_node));
        if conditions.is_empty() {
            new.remove("conditions");
        }
    }
    let mut out = Map::new();
    for (key, before) in &old {
        match new.remove(key) {
            Some(after) if after == *before => {}
            Some(after) => {
                let value = match key.as_str() {
                    "conditions" => match merged_list("type", before, after) {
                        // All changes are of other writers.
                        Value::Array(changes) if changes.is_empty() => continue,
                        changes => changes,
                    },
                    "podIPs" | "hostIPs" => replaced(after),
                    _ => after,
                };
                out.insert(key.clone(), value);
            }
            // Fields of other writers (the scheduler, the resizer) are not removed.
            None if matches!(
                key.as_str(),
                "reason"
                    | "message"
                    | "podIP"
                    | "podIPs"
                    | "containerStatuses"
                    | "initContainerStatuses"
                    | "ephemeralContainerStatuses"
            ) =>
            {
                out.insert(key.clone(), Value::Null);
            }
            None => {}
        }
    }
    // The API may have more than is known here: a mirror pod outlives this process.
    for (key, value) in new {
        let whole = matches!(key.as_str(), "podIPs" | "hostIPs");
        out.insert(key, if whole { replaced(value) } else { value });
    }
    (!out.is_empty()).then_some(Value::Object(out))
}

/// Returns a list that replaces the existing one, even if the patch strategy merges it.
fn replaced(list: Value) -> Value {
    let Value::Array(mut items) = list else { return list };
    items.push(json!({"$patch": "replace"}));
    Value::Array(items)
}

/// Returns a list that is merged by key: changed and new items, and directives for removed ones.
/// Removed fields of an item are set to null.
fn merged_list(key: &str, before: &Value, after: Value) -> Value {
    let (Value::Array(before), Value::Array(after)) = (before, after) else { return Value::Null };
    let mut out = Vec::new();
    for item in &after {
        let old = before.iter().find(|o| o.get(key) == item.get(key));
        if old == Some(item) {
            continue;
        }
        let mut item = item.clone();
        for (field, _) in old.and_then(Value::as_object).into_iter().flatten() {
            if item.get(field).is_none() {
                item[field] = Value::Null;
            }
        }
        out.push(item);
    }
    for gone in before.iter().filter(|o| !after.iter().any(|a| a.get(key) == o.get(key))) {
        let over = gone[key].as_str().is_some_and(|t| RESIZE.contains(&t));
        if over {
            out.push(json!({"$patch": "delete", key: gone[key]}));
        }
    }
    Value::Array(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rejected_status_is_written_with_the_next_change() {
        let writer = StatusWriter::default();
        let uid: Arc<str> = "u".into();
        let status = |address: &str, phase: &str| {
            let value = json!({"phase": phase, "podIP": address});
            serde_json::from_value::<core::PodStatus>(value).unwrap()
        };
        let key = ObjectKey::new("d", "p");
        writer.set(
            &uid,
            &key,
            "u",
            Some(&status("1.1.1.1", "Running")),
            status("2.2.2.2", "Running"),
        );
        let (_, entry) = writer.take_next().unwrap();
        writer.complete_write(&uid, entry, Ok(WriteOutcome::Rejected));
        assert!(writer.take_next().is_none(), "it is not tried again as it was");
        writer.set(&uid, &key, "u", None, status("2.2.2.2", "Failed"));
        let (_, entry) = writer.take_next().unwrap();
        assert_eq!(
            status_patch(&entry.written, &entry.status).unwrap(),
            json!({"phase": "Failed", "podIP": "2.2.2.2"})
        );
    }

    #[test]
    fn a_different_status_in_the_api_is_overwritten() {
        let writer = StatusWriter::default();
        let uid: Arc<str> = "u".into();
        let ready = |status: &str| {
            let value =
                json!({"phase": "Running", "conditions": [{"type": "Ready", "status": status}]});
            serde_json::from_value::<core::PodStatus>(value).unwrap()
        };
        let key = ObjectKey::new("d", "p");
        // The cached status equals the current one, but the server received another one in between.
        writer.set(&uid, &key, "u", Some(&ready("False")), ready("False"));
        let (_, entry) = writer.take_next().unwrap();
        writer.complete_write(&uid, entry, Ok(WriteOutcome::Written(None)));
        assert!(writer.take_next().is_none());
        writer.on_api_status("u", 7, &ready("False"));
        assert!(writer.take_next().is_none());
        writer.on_api_status("u", 9, &ready("True"));
        let (_, entry) = writer.take_next().unwrap();
        assert_eq!(
            status_patch(&entry.written, &entry.status).unwrap()["conditions"],
            json!([{"type": "Ready", "status": "False"}])
        );
        writer.complete_write(&uid, entry, Ok(WriteOutcome::Written(Some(10))));
        // The node's own writes are ignored when they come back, however late.
        writer.on_api_status("u", 8, &ready("True"));
        writer.on_api_status("u", 10, &ready("False"));
        assert!(writer.take_next().is_none());
    }

    #[test]
    fn a_patch_does_not_revert_readiness_gates() {
        let status = |gate: &str, ready: &str| {
            let value = json!({"phase": "Running", "conditions": [
                {"type": "k8s.io/blue-green", "status": gate}, {"type": "Ready", "status": ready},
                {"type": "DisruptionTarget", "status": gate}]});
            serde_json::from_value::<core::PodStatus>(value).unwrap()
        };
        // The gate was closed while the node still has the status generated with the open gate.
        let conditions = |old, new| status_patch(&old, &new).map(|d| d["conditions"].clone());
        assert_eq!(
            conditions(status("False", "True"), status("True", "True")),
            Some(json!([{"type": "DisruptionTarget", "status": "True"}]))
        );
        assert_eq!(
            conditions(status("False", "True"), status("False", "False")),
            Some(json!([{"type": "Ready", "status": "False"}]))
        );
        let gate_only = serde_json::from_value::<core::PodStatus>(
            json!({"conditions": [{"type": "k8s.io/blue-green", "status": "True"}]}),
        );
        assert_eq!(status_patch(&core::PodStatus::default(), &gate_only.unwrap()), None);
    }

    #[test]
    fn a_patch_contains_changes_only() {
        let status = |value: Value| serde_json::from_value::<core::PodStatus>(value).unwrap();
        let old = status(json!({"phase": "Pending", "reason": "X", "nominatedNodeName": "n",
                "podIPs": [{"ip": "1"}],
            "conditions": [{"type": "Ready", "status": "False", "reason": "R"}, {"type": "Foreign",
            "status": "True"},
                {"type": "PodResizePending", "status": "True"}]}));
        let new = status(json!({"phase": "Running", "podIPs": [{"ip": "2"}],
            "conditions": [{"type": "Ready", "status": "True"}]}));
        assert_eq!(
            status_patch(&old, &new).unwrap(),
            json!({"phase": "Running", "reason": null, "podIPs": [{"ip": "2"},
                {"$patch": "replace"}],
                "conditions": [{"type": "Ready", "status": "True", "reason": null},
                    {"$patch": "delete", "type": "PodResizePending"}]})
        );
        assert_eq!(status_patch(&new, &new), None);
        // An additional condition of another writer causes no write.
        let beside = status(json!({"phase": "Running", "podIPs": [{"ip": "2"}],
            "conditions": [{"type": "Ready", "status": "True"}, {"type": "Foreign",
            "status": "True"}]}));
        assert_eq!(status_patch(&beside, &new), None);
    }
}
