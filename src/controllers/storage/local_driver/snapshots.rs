//! Snapshots, as csi-snapshotter makes them: the common snapshot controller, which the user
//! installs with the CustomResourceDefinitions, creates a VolumeSnapshotContent; the node of the
//! volume copies it.

use std::sync::Arc;
use std::time::Duration;

use api::k8s::api::core::v1::PersistentVolume;
use api::k8s::apimachinery::pkg::apis::meta::v1::Time;
use api::k8s::jiff::Timestamp;
use api::local_driver::{DRIVER, SnapshotRequest, Stored};
use api::value::is_condition_true;
use api::{Gvr, uri};
use base::Kind;
use client::{Action, Change, Client, Error, Informer, Informers, Patch, Queue, run_workers};
use http::Method;
use serde_json::{Value, json};
use tokio::sync::Notify;

use super::DriverError;
use super::node_requests::NodeRequests;
use super::plan::{self, UnsupportedClaim};
use crate::framework::context::Context;
use crate::framework::edit;
use crate::framework::keyed::settled;

const GROUP: &str = "snapshot.storage.k8s.io";
const CONTENTS: &str = "volumesnapshotcontents";
/// Finalizer of contents, which the snapshot controller adds.
const FINALIZER: &str = "snapshot.storage.kubernetes.io/volumesnapshotcontent-bound-protection";
/// Annotation of a content whose VolumeSnapshot is deleted (`shouldDelete` of csi-snapshotter).
const BEING_DELETED: &str = "snapshot.storage.kubernetes.io/volumesnapshot-being-deleted";
/// When a snapshot is attempted again that was refused.
const RETRY_INTERVAL: Duration = Duration::from_secs(60);

fn gvr(resource: &str) -> Gvr {
    Gvr::new(GROUP, "v1", resource)
}

fn text<'a>(value: &'a Value, pointer: &str) -> Option<&'a str> {
    value.pointer(pointer)?.as_str().filter(|text| !text.is_empty())
}

/// What is to be done about a content.
#[derive(Debug, PartialEq, Eq)]
enum Todo {
    Nothing,
    /// The volume is copied.
    Create {
        volume: String,
        snapshot: String,
    },
    /// The copy is deleted, if there is one, then the content. `node` is known once it exists.
    Delete {
        snapshot: String,
        node: Option<String>,
        volume: Option<String>,
    },
    /// The content is deleted, the copy stays.
    Release,
    /// A snapshot that this driver did not make.
    Refuse,
}

/// Splits the handle of a snapshot into its node and its name there.
fn split(handle: &str) -> Option<(&str, &str)> {
    handle.split_once('/').filter(|(node, name)| !node.is_empty() && !name.is_empty())
}

fn decide(content: &Value) -> Todo {
    if text(content, "/spec/driver") != Some(DRIVER) {
        return Todo::Nothing;
    }
    let snapshot =
        text(content, "/spec/volumeSnapshotRef/uid").map(|uid| format!("snapshot-{uid}"));
    let volume = text(content, "/spec/source/volumeHandle").map(str::to_owned);
    let handle = text(content, "/status/snapshotHandle").and_then(split);
    if text(content, "/metadata/deletionTimestamp").is_some() {
        let finalizers = content.pointer("/metadata/finalizers").and_then(Value::as_array);
        let annotations = content.pointer("/metadata/annotations");
        let is_unused = snapshot.is_none()
            || annotations.is_some_and(|annotations| annotations.get(BEING_DELETED).is_some());
        if !is_unused || !finalizers.into_iter().flatten().any(|f| f == FINALIZER) {
            return Todo::Nothing;
        }
        if text(content, "/spec/deletionPolicy") != Some("Delete") {
            return Todo::Release;
        }
        return match (handle, snapshot, volume) {
            (Some((node, name)), _, volume) => {
                Todo::Delete { snapshot: name.to_owned(), node: Some(node.to_owned()), volume }
            }
            // The process may have ended before the status was written.
            (None, Some(snapshot), Some(volume)) => {
                Todo::Delete { snapshot, node: None, volume: Some(volume) }
            }
            _ => Todo::Release,
        };
    }
    if content.pointer("/status/readyToUse") == Some(&Value::Bool(true)) {
        return Todo::Nothing;
    }
    match (volume, snapshot) {
        (Some(volume), Some(snapshot)) => Todo::Create { volume, snapshot },
        (Some(_), None) => Todo::Nothing,
        (None, _) => Todo::Refuse,
    }
}

/// The name and the node of the snapshot of a VolumeSnapshot.
pub(super) async fn handle(
    client: &Client,
    namespace: &str,
    name: &str,
) -> Result<(String, String), DriverError> {
    let not_ready = || UnsupportedClaim::SourceNotReady(name.to_owned());
    let found = client.get_value(&gvr("volumesnapshots"), namespace, name).await;
    let snapshot = match found {
        Err(error) if error.is_not_found() => return Err(not_ready().into()),
        found => found?,
    };
    let is_ready = snapshot.pointer("/status/readyToUse") == Some(&Value::Bool(true));
    let content = text(&snapshot, "/status/boundVolumeSnapshotContentName").filter(|_| is_ready);
    let content = client.get_value(&gvr(CONTENTS), "", content.ok_or_else(not_ready)?).await?;
    if text(&content, "/spec/driver") != Some(DRIVER) {
        return Err(UnsupportedClaim::ForeignSource(name.to_owned()).into());
    }
    let handle = text(&content, "/status/snapshotHandle").and_then(split);
    let (node, name) = handle.ok_or_else(not_ready)?;
    Ok((name.to_owned(), node.to_owned()))
}

struct Snapshots {
    client: Client,
    requests: Arc<NodeRequests>,
    volumes: Informer<PersistentVolume>,
}

/// Starts the controller; it waits until VolumeSnapshotContents are served.
pub(super) fn start(
    context: &Context,
    client: &Client,
    requests: &Arc<NodeRequests>,
    volumes: &Informer<PersistentVolume>,
) {
    let queue: Queue<String> = Queue::new();
    let (informers, own) = (context.informers.clone(), queue.clone());
    let shutdown = context.tasks.shutdown().clone();
    context.tasks.spawn(Kind::Critical, "local-driver-snapshots", async move {
        tokio::select! {
            () = follow(&informers, &own) => {}
            () = shutdown.requested() => {}
        }
        Ok::<(), std::convert::Infallible>(())
    });
    let snapshots = Snapshots {
        client: client.clone(),
        requests: Arc::clone(requests),
        volumes: volumes.clone(),
    };
    let snapshots = Arc::new(snapshots);
    run_workers(&context.tasks, "local-driver-snapshots", 1, &queue, move |name: String| {
        let snapshots = Arc::clone(&snapshots);
        async move { snapshots.reconcile(&name).await }
    });
}

/// Queues contents that change, whenever their definition is established.
async fn follow(informers: &Informers, queue: &Queue<String>) {
    let definitions = Gvr::new("apiextensions.k8s.io", "v1", "customresourcedefinitions");
    let definitions = informers.of_gvr(definitions);
    let name = format!("{CONTENTS}.{GROUP}");
    let (changed, of) = (Arc::new(Notify::new()), name.clone());
    let wake = Arc::clone(&changed);
    definitions.on_change(move |change| {
        if *change.object().key.name == *of {
            wake.notify_one();
        }
    });
    let mut uid = None;
    loop {
        let object = definitions.cache().get("", &name);
        let value = object.as_ref().and_then(|object| object.value().ok());
        if value.as_ref().is_none_or(|value| !is_condition_true(value, "Established")) {
            uid = None;
        } else if let Some(object) = object
            && uid.as_deref() != Some(&*object.uid)
        {
            uid = Some(object.uid.to_string());
            let own = queue.clone();
            informers.of_gvr(gvr(CONTENTS)).on_change(move |change| {
                if !matches!(change, Change::Deleted(_)) {
                    own.add(change.object().key.name.to_string());
                }
            });
        }
        changed.notified().await;
    }
}

impl Snapshots {
    async fn reconcile(&self, name: &str) -> Result<Action, Error> {
        let content = match self.client.get_value(&gvr(CONTENTS), "", name).await {
            Err(error) if error.is_not_found() => return Ok(Action::Done),
            found => found?,
        };
        let done = match decide(&content) {
            Todo::Nothing => return Ok(Action::Done),
            Todo::Create { volume, snapshot } => self.create(name, &volume, &snapshot).await,
            Todo::Delete { snapshot, node, volume } => {
                let node = node.or_else(|| self.node_of(&volume?));
                self.delete(content, &snapshot, node.as_deref()).await
            }
            Todo::Release => self.release(content).await.map_err(DriverError::from),
            Todo::Refuse => {
                let why = "snapshots that local.kube-lite.io did not make are not supported";
                return self.show_error(name, why).await.map(|()| Action::Done);
            }
        };
        let Err(error) = done else { return Ok(Action::Done) };
        if error.is_in_progress() {
            return error.outcome();
        }
        self.show_error(name, &error.to_string()).await?;
        match error.outcome()? {
            Action::Done => Ok(Action::After(RETRY_INTERVAL)),
            after @ Action::After(_) => Ok(after),
        }
    }

    fn node_of(&self, handle: &str) -> Option<String> {
        plan::node_of(&self.volumes.get("", handle)?).map(str::to_owned)
    }

    async fn create(&self, name: &str, volume: &str, snapshot: &str) -> Result<(), DriverError> {
        let node = self.node_of(volume).ok_or(DriverError::UnknownNode)?;
        let body = SnapshotRequest { volume: volume.to_owned() };
        let path = snapshot_path(snapshot);
        let stored: Stored = self.requests.send(&node, Method::POST, &path, &body).await?;
        let patch = json!({"status": {
            "snapshotHandle": format!("{node}/{snapshot}"), "creationTime": stored.created_at,
            "readyToUse": true, "restoreSize": stored.size, "error": null}});
        let patch = Patch::Merge(&patch);
        Ok(settled(self.client.patch_value(&gvr(CONTENTS), "", name, "status", &patch).await)?)
    }

    /// Deletes the copy. Without a node there is no volume, and so no copy that nothing names.
    async fn delete(
        &self,
        content: Value,
        snapshot: &str,
        node: Option<&str>,
    ) -> Result<(), DriverError> {
        if let Some(node) = node {
            let path = snapshot_path(snapshot);
            let _: Option<Stored> =
                self.requests.send(node, Method::DELETE, &path, &Value::Null).await?;
        }
        Ok(self.release(content).await?)
    }

    /// Lets the content be deleted.
    async fn release(&self, mut content: Value) -> Result<(), Error> {
        if edit::remove_finalizer(&mut content, FINALIZER) {
            settled(edit::put(&self.client, &gvr(CONTENTS), "", &content).await)?;
        }
        Ok(())
    }

    /// Shows why there is no snapshot; the snapshot controller copies that to the VolumeSnapshot.
    async fn show_error(&self, name: &str, why: &str) -> Result<(), Error> {
        let now = Time(Timestamp::now());
        let message = format!("Failed to check and update snapshot content: {why}");
        let patch = json!({"status": {"error": {"message": message, "time": now},
            "readyToUse": false}});
        let patch = Patch::Merge(&patch);
        settled(self.client.patch_value(&gvr(CONTENTS), "", name, "status", &patch).await)
    }
}

fn snapshot_path(name: &str) -> String {
    format!("snapshots/{}", uri::escaped(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn content(metadata: Value, policy: &str, source: Value, status: Value) -> Value {
        json!({"metadata": metadata, "spec": {"driver": DRIVER, "deletionPolicy": policy,
            "volumeSnapshotRef": {"uid": "u"}, "source": source}, "status": status})
    }

    fn of_volume() -> Value {
        json!({"volumeHandle": "pvc-a"})
    }

    #[test]
    fn a_content_of_a_volume_becomes_a_snapshot_once() {
        let create = Todo::Create { volume: "pvc-a".into(), snapshot: "snapshot-u".into() };
        let new = content(json!({}), "Delete", of_volume(), Value::Null);
        assert_eq!(decide(&new), create);
        let failed = json!({"readyToUse": false, "error": {"message": "x"}});
        assert_eq!(decide(&content(json!({}), "Delete", of_volume(), failed)), create);
        let ready = json!({"readyToUse": true, "snapshotHandle": "n/snapshot-u"});
        assert_eq!(decide(&content(json!({}), "Delete", of_volume(), ready)), Todo::Nothing);
        let foreign = json!({"snapshotHandle": "s"});
        assert_eq!(decide(&content(json!({}), "Delete", foreign, Value::Null)), Todo::Refuse);
        let mut other = new;
        other["spec"]["driver"] = json!("example.com");
        assert_eq!(decide(&other), Todo::Nothing);
    }

    #[test]
    fn a_deleted_content_deletes_its_copy_as_the_policy_says() {
        let mut deleted = json!({"deletionTimestamp": "2026-01-01T00:00:00Z",
            "annotations": {BEING_DELETED: "yes"}, "finalizers": [FINALIZER]});
        let ready = json!({"readyToUse": true, "snapshotHandle": "n/snapshot-u"});
        let delete = |node: Option<&str>| Todo::Delete {
            snapshot: "snapshot-u".into(),
            node: node.map(str::to_owned),
            volume: Some("pvc-a".into()),
        };
        let of = |deleted: &Value, policy: &str, status: &Value| {
            decide(&content(deleted.clone(), policy, of_volume(), status.clone()))
        };
        assert_eq!(of(&deleted, "Delete", &ready), delete(Some("n")));
        assert_eq!(of(&deleted, "Delete", &Value::Null), delete(None));
        assert_eq!(of(&deleted, "Retain", &ready), Todo::Release);
        // The VolumeSnapshot still exists.
        deleted["annotations"] = Value::Null;
        assert_eq!(of(&deleted, "Delete", &ready), Todo::Nothing);
        let released = json!({"deletionTimestamp": "2026-01-01T00:00:00Z"});
        assert_eq!(decide(&content(released, "Delete", of_volume(), ready)), Todo::Nothing);
    }

    #[test]
    fn a_handle_has_a_node_and_a_name() {
        assert_eq!(split("n1/snapshot-u"), Some(("n1", "snapshot-u")));
        for handle in ["", "x", "/x", "x/"] {
            assert_eq!(split(handle), None, "{handle}");
        }
    }
}
