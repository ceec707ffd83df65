//! The ETCDSnapshotFile objects of k3s (`k3s.cattle.io/v1`): one for each snapshot in the folder of
//! a server and in the bucket, as the record for `kubectl` and other programs. Names, labels and
//! fields are those of k3s (`pkg/etcd/snapshot/types.go`).

use std::collections::HashMap;

use api::Gvr;
use api::k8s::api::core::v1::ObjectReference;
use base::{Shutdown, pki};
use client::events::EventType;
use client::{Client, DeleteOptions, Error, EventRecorder, ListOptions};
use serde_json::{Value, json};
use sorting::CompactSort as _;

use super::folder::{COMPRESSED, Snapshot};

/// Label with the node that stores the file, or [`S3`].
const STORAGE_NODE: &str = "etcd.k3s.cattle.io/snapshot-storage-node";
/// The storage node of snapshots in a bucket.
const S3: &str = "s3";
const API_VERSION: &str = "k3s.cattle.io/v1";
const KIND: &str = "ETCDSnapshotFile";
/// Maximum length of the name of an object, and of a label.
const NAME_CHARACTERS_MAX: usize = 253;
const LABEL_CHARACTERS_MAX: usize = 63;
/// Length of what is added to the name of a snapshot in that of its object, as k3s counts it.
const ADDED_CHARACTERS: usize = 13;

/// What is stored: the snapshots of one folder and, if the bucket could be listed, of the bucket.
#[derive(Debug, Default)]
pub(super) struct Stored {
    /// In the folder.
    pub(super) local: Vec<Snapshot>,
    /// In the bucket, with the `spec.s3` of their objects.
    pub(super) remote: Option<(Vec<Snapshot>, Value)>,
}

/// Writes the objects.
pub(crate) struct SnapshotObjects {
    client: Client,
    events: EventRecorder,
    gvr: Gvr,
    node: String,
}

impl SnapshotObjects {
    /// Writes the objects of the snapshots of this node.
    pub(crate) fn new(client: Client, events: EventRecorder, node: &str) -> Self {
        let gvr = Gvr::new("k3s.cattle.io", "v1", "etcdsnapshotfiles");
        Self { client, events, gvr, node: node.to_owned() }
    }

    /// Creates missing objects and deletes those whose snapshot is gone. Objects of other nodes,
    /// and those of the bucket if it was not listed, stay.
    ///
    /// # Errors
    /// The API server rejects a request, or does not serve the kind (yet).
    pub(super) async fn reconcile(&self, stored: &Stored) -> Result<(), Error> {
        let mut existing = Vec::new();
        for storage in [&self.node[..], S3] {
            if storage == S3 && stored.remote.is_none() {
                continue;
            }
            let labels = format!("{STORAGE_NODE}={storage}");
            let options = ListOptions { labels: &labels, ..ListOptions::default() };
            existing.extend(self.client.list_values(&self.gvr, "", &options).await?);
        }
        let plan = plan(&self.node, &existing, stored);
        for name in &plan.delete {
            let deleted =
                self.client.delete_gvr(&self.gvr, "", name, &DeleteOptions::default()).await;
            match deleted {
                Err(error) if !error.is_not_found() => return Err(error),
                _ => tracing::debug!(name, "snapshots: deleted the object of a deleted snapshot"),
            }
        }
        for object in &plan.create {
            match self.client.post_value(&self.gvr, "", "", "", object).await {
                Ok(created) => self.record(&created),
                Err(error) if error.is_already_exists() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Records the event of k3s for a new object.
    fn record(&self, object: &Value) {
        let text = |pointer: &str| {
            object.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned()
        };
        let reference = ObjectReference {
            api_version: Some(API_VERSION.to_owned()),
            kind: Some(KIND.to_owned()),
            name: Some(text("/metadata/name")),
            uid: Some(text("/metadata/uid")),
            ..ObjectReference::default()
        };
        let (name, node) = (text("/spec/snapshotName"), text("/spec/nodeName"));
        let message = format!("Snapshot {name} saved on {node}");
        self.events.event_for(reference, EventType::Normal, "ETCDSnapshotCreated", message);
    }
}

/// Waits before another attempt while the kind is not served yet, after the start of a server.
/// `false` after the last attempt and at shutdown.
pub(super) async fn wait_for_kind(backoff: &mut base::Backoff, shutdown: &Shutdown) -> bool {
    const ATTEMPTS: u32 = 12;
    backoff.failures() < ATTEMPTS && backoff.wait(shutdown).await
}

/// The changes that make the objects equal to what is stored.
#[derive(Debug, Default, PartialEq)]
struct Plan {
    create: Vec<Value>,
    /// Names of objects.
    delete: Vec<String>,
}

/// Compares objects and snapshots by their locations.
fn plan(node: &str, existing: &[Value], stored: &Stored) -> Plan {
    let text = |object: &Value, pointer: &str| {
        object.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned()
    };
    let mut known: HashMap<String, String> = existing
        .iter()
        .map(|object| (text(object, "/spec/location"), text(object, "/metadata/name")))
        .collect();
    let mut plan = Plan::default();
    let remote =
        stored.remote.iter().flat_map(|(all, s3)| all.iter().map(move |one| (one, Some(s3))));
    for (snapshot, s3) in stored.local.iter().map(|one| (one, None)).chain(remote) {
        if known.remove(&snapshot.location).is_none() {
            plan.create.push(object(node, snapshot, s3));
        }
    }
    plan.delete = known.into_values().collect();
    plan.delete.compact_sort();
    plan
}

/// The object of a snapshot. The node of one in the bucket is this one if the name of the snapshot
/// contains its name, since other servers use the bucket as well.
fn object(node: &str, snapshot: &Snapshot, s3: Option<&Value>) -> Value {
    let is_own = s3.is_none() || snapshot.name.contains(&format!("-{node}-"));
    let source = if is_own { node } else { S3 };
    let storage = if s3.is_some() { S3 } else { node };
    let mut object = json!({
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": { "name": object_name(source, snapshot, s3.is_some()) },
        "spec": {
            "snapshotName": snapshot.name,
            "nodeName": source,
            "location": snapshot.location,
        },
        "status": {
            "size": snapshot.size.to_string(),
            "creationTime": super::rfc3339(snapshot.created),
            "readyToUse": true,
        },
    });
    if storage.len() <= LABEL_CHARACTERS_MAX
        && let Some(metadata) = object.get_mut("metadata")
    {
        metadata["labels"] = json!({ STORAGE_NODE: storage });
    }
    if let (Some(s3), Some(spec)) = (s3, object.get_mut("spec")) {
        spec["s3"] = s3.clone();
    }
    object
}

/// The name of the object of a snapshot: where it is stored, the name of the snapshot, and the
/// first digits of a hash of node and location.
fn object_name(source: &str, snapshot: &Snapshot, is_remote: bool) -> String {
    let mut name = snapshot.name.to_lowercase();
    if !is_subdomain(&name) || name.len() + ADDED_CHARACTERS > NAME_CHARACTERS_MAX {
        let host = source.split('.').next().unwrap_or_default();
        let extension = if snapshot.name.ends_with(COMPRESSED) { COMPRESSED } else { "" };
        name = format!("etcd-snapshot-{host}-{}{extension}", snapshot.created);
    }
    let prefix = if is_remote { S3 } else { "local" };
    let mut digest = pki::hex_sha256(format!("{source}{}", snapshot.location).as_bytes());
    digest.truncate(6);
    format!("{prefix}-{name}-{digest}")
}

/// Whether a text is a DNS subdomain, and so can be the name of an object.
fn is_subdomain(text: &str) -> bool {
    let is_alphanumeric = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    text.split('.').all(|label| {
        label.starts_with(is_alphanumeric)
            && label.ends_with(is_alphanumeric)
            && label.chars().all(|c| is_alphanumeric(c) || c == '-')
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot(name: &str, location: &str) -> Snapshot {
        let location = format!("{location}/{name}");
        Snapshot { name: name.to_owned(), location, size: 20, created: 1_763_800_000 }
    }

    #[test]
    fn objects_have_the_names_labels_and_fields_of_k3s() {
        let local = object("n1", &snapshot("on-demand-n1-1763800000", "file:///d"), None);
        // printf 'n1file:///d/on-demand-n1-1763800000' | sha256sum
        let digest = pki::hex_sha256(b"n1file:///d/on-demand-n1-1763800000");
        let name = format!("local-on-demand-n1-1763800000-{}", &digest[..6]);
        assert_eq!(
            local,
            json!({
                "apiVersion": "k3s.cattle.io/v1",
                "kind": "ETCDSnapshotFile",
                "metadata": {
                    "name": name,
                    "labels": { "etcd.k3s.cattle.io/snapshot-storage-node": "n1" },
                },
                "spec": {
                    "snapshotName": "on-demand-n1-1763800000",
                    "nodeName": "n1",
                    "location": "file:///d/on-demand-n1-1763800000",
                },
                "status": {
                    "size": "20",
                    "creationTime": "2025-11-22T08:26:40Z",
                    "readyToUse": true,
                },
            })
        );
        let s3 = json!({ "bucket": "b" });
        let remote = object("n1", &snapshot("On-Demand-n1-1.zip", "s3://b"), Some(&s3));
        let name = remote["metadata"]["name"].as_str().unwrap();
        assert!(name.starts_with("s3-on-demand-n1-1.zip-"), "{name}");
        assert_eq!(remote["metadata"]["labels"][STORAGE_NODE], "s3");
        assert_eq!((&remote["spec"]["nodeName"], &remote["spec"]["s3"]), (&json!("n1"), &s3));
        let foreign = object("n1", &snapshot("on-demand-n2-1", "s3://b"), Some(&s3));
        assert_eq!(foreign["spec"]["nodeName"], "s3");
        let odd = object("a.example", &snapshot("with_underscore-a-1.zip", "file:///d"), None);
        let name = odd["metadata"]["name"].as_str().unwrap();
        assert!(name.starts_with("local-etcd-snapshot-a-1763800000.zip-"), "{name}");
    }

    #[test]
    fn names_that_no_object_can_have_are_replaced() {
        for (text, is_valid) in
            [("a-1.zip", true), ("a_1", false), ("a-", false), ("a..b", false), ("-a", false)]
        {
            assert_eq!(is_subdomain(text), is_valid, "{text}");
        }
    }

    #[test]
    fn missing_objects_are_created_and_those_of_deleted_snapshots_are_deleted() {
        let kept = snapshot("a-n1-1", "file:///d");
        let existing =
            [object("n1", &kept, None), object("n1", &snapshot("gone-n1-1", "file:///d"), None)];
        let new = snapshot("b-n1-2", "file:///d");
        let stored = Stored { local: vec![kept, new.clone()], remote: None };
        let changes = plan("n1", &existing, &stored);
        assert_eq!(changes.create, [object("n1", &new, None)]);
        assert_eq!(changes.delete, [existing[1]["metadata"]["name"].as_str().unwrap()]);
        let s3 = json!({ "bucket": "b" });
        let remote = snapshot("a-n1-1", "s3://b");
        let stored = Stored { local: Vec::new(), remote: Some((vec![remote.clone()], s3.clone())) };
        let changes = plan("n1", &[], &stored);
        assert_eq!(
            changes,
            Plan { create: vec![object("n1", &remote, Some(&s3))], delete: vec![] }
        );
    }
}
