//! Deletes the objects of a definition that is being deleted, then removes its finalizer.
//!
//! Reasons and messages are those of `pkg/controller/finalizer` of apiextensions.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use api::{Gvk, Gvr, Status};
use base::Tasks;
use base::tasks::Kind as TaskKind;
use bytes::Bytes;
use parking_lot::Mutex;
use serde_json::Value;
use store::Revision;
use store::{KeyRange, KeyValue, RangeRequest};

use super::definition::{CLEANUP, Condition, Definition};
use super::status::{self, Outcome};
use crate::registry::objects::Objects;
use crate::registry::resource::Resource;
use crate::registry::strategy::Plain;
use crate::registry::{ResourceSpec, metadata};
use crate::response::status::of_store;

/// The UIDs of definitions with a running cleanup.
pub(crate) type Running = Arc<Mutex<HashSet<Arc<str>>>>;

/// The number of objects that are read per request to the store.
const CHUNK: usize = 500;

/// Starts the cleanup of a definition, unless it is running.
pub(crate) fn start(
    objects: &Arc<Objects>,
    tasks: &Tasks,
    running: &Running,
    definition: &Definition,
) {
    let (name, uid) = (Arc::clone(definition.name()), Arc::clone(&definition.object.uid));
    if !running.lock().insert(Arc::clone(&uid)) {
        return;
    }
    let (objects, running, shutdown) =
        (Arc::clone(objects), Arc::clone(running), tasks.shutdown().clone());
    tasks.spawn(TaskKind::Request, "custom-resource-cleanup", async move {
        let mut backoff = base::Backoff::new(Duration::from_millis(100), Duration::from_secs(30));
        let cleanup = async {
            while let Err(error) = clean_up(&objects, &name, &uid).await {
                tracing::warn!(
                    definition = %name,
                    %error,
                    "cannot delete the objects of a CustomResourceDefinition, retrying"
                );
                base::clock::sleep(backoff.next_delay()).await;
            }
        };
        tokio::select! {
            () = cleanup => {}
            () = shutdown.requested() => {}
        }
        running.lock().remove(&uid);
        Ok::<(), std::convert::Infallible>(())
    });
}

/// Deletes all objects, waits until they are deleted, and removes the finalizer of the definition.
async fn clean_up(objects: &Objects, name: &str, uid: &str) -> Result<(), Status> {
    let progress = status::terminating(
        true,
        "InstanceDeletionInProgress",
        "CustomResource deletion is in progress",
    );
    let Some(definition) = write_condition(objects, name, uid, &progress, false).await? else {
        return Ok(());
    };
    let last = if overlaps_builtin(objects, &definition) {
        let message = "instances overlap with built-in resources in storage";
        status::terminating(false, "OverlappingBuiltInResource", message)
    } else if definition.has_condition("Established") {
        if let Err(error) = delete_all(objects, &definition).await {
            let message = format!("could not issue all deletes: {}", error.message);
            let failed = status::terminating(true, "InstanceDeletionFailed", &message);
            write_condition(objects, name, uid, &failed, false).await?;
            return Err(error);
        }
        wait_until_deleted(objects, &definition).await?;
        status::terminating(false, "InstanceDeletionCompleted", "removed all instances")
    } else {
        status::terminating(false, "NeverEstablished", "resource was never established")
    };
    write_condition(objects, name, uid, &last, true).await?;
    Ok(())
}

/// Sets the condition, and removes the finalizer if `is_last`. Returns `None` if the definition
/// does not exist anymore or needs no cleanup.
async fn write_condition(
    objects: &Objects,
    name: &str,
    uid: &str,
    condition: &Condition,
    is_last: bool,
) -> Result<Option<Definition>, Status> {
    let row = objects.row(&status::definitions())?;
    loop {
        let Some(current) = objects.storage().get(&row, "", name).await? else { return Ok(None) };
        let current = Arc::new(current);
        let definition = Definition::read(&current);
        let definition = definition.map_err(|e| Status::internal(&e.to_string()))?;
        if *current.uid != *uid || !definition.needs_cleanup {
            return Ok(None);
        }
        if !is_last && definition.condition("Terminating") == Some(condition) {
            return Ok(Some(definition));
        }
        let outcome = status::write(objects, &current, |value| {
            status::set_condition(value, condition);
            if is_last {
                let mut finalizers = metadata::finalizers(value);
                finalizers.retain(|f| f != CLEANUP);
                metadata::set_finalizers(value, &finalizers);
            }
        });
        // After a conflict the next iteration applies the change to the new object.
        if let Outcome::Done(_) = outcome.await? {
            return Ok(Some(definition));
        }
    }
}

/// Whether the objects have the same storage prefix as those of a built-in kind.
fn overlaps_builtin(objects: &Objects, definition: &Definition) -> bool {
    let prefix = format!("{}/{}", definition.group, definition.requested.plural);
    objects.registry().rows().any(|r| !r.spec.unstructured && *r.spec.prefix == prefix)
}

/// A row for an object that is stored with this version and kind: it does not convert.
fn row_as(definition: &Definition, kind: Gvk) -> Resource {
    let gvr = Gvr::new(&definition.group, &kind.version, &definition.requested.plural);
    Resource::new(ResourceSpec {
        storage: kind.clone(),
        ..ResourceSpec::custom(gvr, &kind.kind, definition.namespaced, Arc::new(Plain))
    })
}

fn plain_row(definition: &Definition) -> Resource {
    let version = definition.storage().map_or("", |v| &v.name);
    row_as(definition, Gvk::new(&definition.group, version, &definition.requested.kind))
}

async fn delete_all(objects: &Objects, definition: &Definition) -> Result<(), Status> {
    let row = plain_row(definition);
    let mut range = KeyRange::prefix(Bytes::from(row.key_prefix("")));
    loop {
        let request = RangeRequest { limit: CHUNK, ..RangeRequest::new(range.clone()) };
        let page = objects.storage().backend().range(request).await;
        let page = page.map_err(|e| of_store(&e))?;
        for kv in &page.kvs {
            delete(objects, definition, &row, kv).await?;
        }
        match page.kvs.last() {
            Some(last) if page.more => range.start = [&last.key[..], b"\0"].concat().into(),
            _ => return Ok(()),
        }
    }
}

/// Deletes one object, or marks it for deletion if it has finalizers.
async fn delete(
    objects: &Objects,
    definition: &Definition,
    row: &Resource,
    kv: &KeyValue,
) -> Result<(), Status> {
    let storage = objects.storage();
    storage.fetch(row, &[kv]).await;
    let mut current = Some(storage.decode(row, kv)?);
    while let Some(object) = current {
        let mut value = object.value().map_err(|e| Status::internal(&e.to_string()))?;
        if metadata::finalizers(&value).is_empty() {
            match storage.delete(row, &object).await? {
                crate::registry::storage::Deletion::Done(_) => return Ok(()),
                crate::registry::storage::Deletion::Changed(changed) => {
                    current = changed;
                    continue;
                }
            }
        }
        if !metadata::text(&value, "deletionTimestamp").is_empty() {
            return Ok(());
        }
        let generation = metadata::number(&value, "generation").unwrap_or(1) + 1;
        let fields = metadata::metadata_mut(&mut value);
        fields.insert("deletionTimestamp".into(), metadata::now().into());
        fields.insert("deletionGracePeriodSeconds".into(), 0.into());
        fields.insert("generation".into(), generation.into());
        let text = |key: &str| value.get(key).and_then(Value::as_str).unwrap_or_default();
        let stored = row_as(definition, Gvk::from_api_version(text("apiVersion"), text("kind")));
        match storage.write(&stored, &value, object.resource_version).await? {
            crate::registry::storage::Written::Done(_) => return Ok(()),
            crate::registry::storage::Written::Changed(changed) => current = changed,
        }
    }
    Ok(())
}

/// Watches the store until no object is left.
async fn wait_until_deleted(objects: &Objects, definition: &Definition) -> Result<(), Status> {
    let range = KeyRange::prefix(Bytes::from(plain_row(definition).key_prefix("")));
    let backend = objects.storage().backend();
    let count = || {
        let request = RangeRequest { count_only: true, ..RangeRequest::new(range.clone()) };
        async move { backend.range(request).await.map_err(|e| of_store(&e)) }
    };
    let mut remaining = count().await?;
    if remaining.count > 0 {
        let from = Some(Revision(remaining.revision.0 + 1));
        let watch = backend.watch(range.clone(), from).await;
        let mut watch = watch.map_err(|e| of_store(&e))?;
        while remaining.count > 0 {
            let Some(batch) = watch.batches.recv().await else {
                return Err(Status::internal("the watch of the remaining objects ended"));
            };
            let batch = batch.map_err(|e| of_store(&e))?;
            if batch.events.iter().any(|event| !event.deleted) {
                // Another server has created an object before it received the deletion.
                delete_all(objects, definition).await?;
            }
            remaining = count().await?;
        }
    }
    // Watchers of the objects must receive the deletions before the row is removed.
    for cache in objects.caches().of_prefix(&plain_row(definition).spec.prefix) {
        cache.wait_for(remaining.revision.0).await?;
    }
    Ok(())
}
