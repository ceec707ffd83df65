//! The end of a definition: its objects are deleted, and only then its finalizer goes.
//!
//! Source of reasons and texts: `pkg/controller/finalizer` of apiextensions.

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
use crate::response::status as refusals;

/// Definitions whose objects are being deleted, by uid: each once.
pub(crate) type Running = Arc<Mutex<HashSet<Arc<str>>>>;

/// Objects read at once.
const CHUNK: usize = 500;

/// Starts the end of a definition, unless it is under way.
pub(crate) fn start(objects: &Arc<Objects>, tasks: &Tasks, running: &Running, of: &Definition) {
    let (name, uid) = (Arc::clone(of.name()), Arc::clone(&of.object.uid));
    if !running.lock().insert(Arc::clone(&uid)) {
        return;
    }
    let (objects, running, shutdown) =
        (Arc::clone(objects), Arc::clone(running), tasks.shutdown().clone());
    tasks.spawn(TaskKind::Request, "custom-resource-cleanup", async move {
        let mut backoff = base::Backoff::new(Duration::from_millis(100), Duration::from_secs(30));
        let ending = async {
            while let Err(error) = end(&objects, &name, &uid).await {
                tracing::warn!(definition = %name, %error, "its objects cannot be deleted, trying again");
                base::clock::sleep(backoff.next_delay()).await;
            }
        };
        tokio::select! {
            () = ending => {}
            () = shutdown.requested() => {}
        }
        running.lock().remove(&uid);
        Ok::<(), std::convert::Infallible>(())
    });
}

/// Deletes all objects, waits until they are gone, and lets the definition go.
async fn end(objects: &Objects, name: &str, uid: &str) -> Result<(), Status> {
    let progress = status::terminating(
        true,
        "InstanceDeletionInProgress",
        "CustomResource deletion is in progress",
    );
    let Some(definition) = say(objects, name, uid, &progress, false).await? else { return Ok(()) };
    let last = if overlaps(objects, &definition) {
        let text = "instances overlap with built-in resources in storage";
        status::terminating(false, "OverlappingBuiltInResource", text)
    } else if definition.is("Established") {
        if let Err(error) = delete_all(objects, &definition).await {
            let text = format!("could not issue all deletes: {}", error.message);
            let failed = status::terminating(true, "InstanceDeletionFailed", &text);
            say(objects, name, uid, &failed, false).await?;
            return Err(error);
        }
        wait_until_gone(objects, &definition).await?;
        status::terminating(false, "InstanceDeletionCompleted", "removed all instances")
    } else {
        status::terminating(false, "NeverEstablished", "resource was never established")
    };
    say(objects, name, uid, &last, true).await?;
    Ok(())
}

/// Sets the condition, and takes the finalizer away when `last`; nothing when the definition is
/// gone or is not to be deleted.
async fn say(
    objects: &Objects,
    name: &str,
    uid: &str,
    condition: &Condition,
    last: bool,
) -> Result<Option<Definition>, Status> {
    let row = objects.row(&status::definitions())?;
    loop {
        let Some(current) = objects.storage().get(&row, "", name).await? else { return Ok(None) };
        let current = Arc::new(current);
        let definition = Definition::read(&current).map_err(|e| Status::internal(&e))?;
        if *current.uid != *uid || !definition.cleans {
            return Ok(None);
        }
        if !last && definition.condition("Terminating") == Some(condition) {
            return Ok(Some(definition));
        }
        let outcome = status::write(objects, &current, |value| {
            status::set_condition(value, condition);
            if last {
                let mut finalizers = metadata::finalizers(value);
                finalizers.retain(|f| f != CLEANUP);
                metadata::set_finalizers(value, &finalizers);
            }
        });
        // Whoever changed it meanwhile did so once: the next round writes over that.
        if let Outcome::Done(_) = outcome.await? {
            return Ok(Some(definition));
        }
    }
}

/// Its objects would lie where those of a built-in kind do.
fn overlaps(objects: &Objects, definition: &Definition) -> bool {
    let prefix = format!("{}/{}", definition.group, definition.requested.plural);
    objects.registry().rows().any(|r| !r.spec.unstructured && *r.spec.prefix == prefix)
}

/// The row under which an object lies that was stored as this kind: nothing is converted.
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
        let found = objects.storage().backend().range(request).await;
        let found = found.map_err(|e| refusals::of_store(&e))?;
        for kv in &found.kvs {
            delete(objects, definition, &row, kv).await?;
        }
        match found.kvs.last() {
            Some(last) if found.more => range.start = [&last.key[..], b"\0"].concat().into(),
            _ => return Ok(()),
        }
    }
}

/// Deletes one object, or marks it when it has finalizers.
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

/// Waits until no object is left, told by the store.
async fn wait_until_gone(objects: &Objects, definition: &Definition) -> Result<(), Status> {
    let range = KeyRange::prefix(Bytes::from(plain_row(definition).key_prefix("")));
    let backend = objects.storage().backend();
    let count = || {
        let request = RangeRequest { count_only: true, ..RangeRequest::new(range.clone()) };
        async move { backend.range(request).await.map_err(|e| refusals::of_store(&e)) }
    };
    let mut found = count().await?;
    if found.count > 0 {
        let from = Some(Revision(found.revision.0 + 1));
        let watch = backend.watch(range.clone(), from).await;
        let mut watch = watch.map_err(|e| refusals::of_store(&e))?;
        while found.count > 0 {
            let Some(batch) = watch.batches.recv().await else {
                return Err(Status::internal("the watch of the remaining objects ended"));
            };
            let batch = batch.map_err(|e| refusals::of_store(&e))?;
            if batch.events.iter().any(|event| !event.deleted) {
                // Another server let something in that did not know yet.
                delete_all(objects, definition).await?;
            }
            found = count().await?;
        }
    }
    // Who watches the objects is to hear that they are gone before the watches end.
    for cache in objects.caches().of_prefix(&plain_row(definition).spec.prefix) {
        cache.wait_for(found.revision.0).await?;
    }
    Ok(())
}
