//! ConfigMaps and Secrets that pods of this node use: each watched by name while in use, as the
//! Node authorizer allows.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use crate::pods::pod::Pod;
use api::{Gvr, Object, WatchEvent};
use base::{Backoff, Kind, Shutdown, Tasks};
use client::{Client, Scope};
use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::{Notify, watch};

/// How long to wait for the first read of ConfigMaps and Secrets.
pub(crate) const OBJECTS_WAIT: Duration = Duration::from_secs(2);

/// Kind of an object that a pod may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum ObjectKind {
    ConfigMap,
    Secret,
}

/// Kind, namespace and name of an object.
pub(crate) type ObjectReference = (ObjectKind, String, String);

/// Returns the ConfigMaps and Secrets that a pod refers to in volumes, variables and pull secrets.
pub(crate) fn references(pod: &Pod) -> BTreeSet<ObjectReference> {
    let namespace = pod.namespace().to_owned();
    let mut out = BTreeSet::new();
    let mut add = |source: ObjectKind, name: &str| {
        if !name.is_empty() {
            out.insert((source, namespace.clone(), name.to_owned()));
        }
    };
    for volume in pod.spec().volumes.iter().flatten() {
        if let Some(source) = &volume.config_map {
            add(ObjectKind::ConfigMap, &source.name);
        }
        if let Some(source) = &volume.secret {
            add(ObjectKind::Secret, source.secret_name.as_deref().unwrap_or_default());
        }
        for source in volume.projected.iter().flat_map(|p| p.sources.iter().flatten()) {
            if let Some(source) = &source.config_map {
                add(ObjectKind::ConfigMap, &source.name);
            }
            if let Some(source) = &source.secret {
                add(ObjectKind::Secret, &source.name);
            }
        }
    }
    for member in &pod.containers {
        for source in member.container.env_from.iter().flatten() {
            if let Some(source) = &source.config_map_ref {
                add(ObjectKind::ConfigMap, &source.name);
            }
            if let Some(source) = &source.secret_ref {
                add(ObjectKind::Secret, &source.name);
            }
        }
        for source in member.container.env.iter().flatten().filter_map(|e| e.value_from.as_ref()) {
            if let Some(source) = &source.config_map_key_ref {
                add(ObjectKind::ConfigMap, &source.name);
            }
            if let Some(source) = &source.secret_key_ref {
                add(ObjectKind::Secret, &source.name);
            }
        }
    }
    for secret in pod.spec().image_pull_secrets.iter().flatten() {
        add(ObjectKind::Secret, &secret.name);
    }
    out
}

/// The cached state of an object.
#[derive(Debug, Clone)]
pub(crate) enum CachedObject {
    /// Not read yet; the last error, if any.
    Unknown(String),
    Missing,
    Present(Arc<Object>),
}

#[derive(Debug)]
struct WatchedObject {
    users: BTreeSet<Arc<str>>,
    value: watch::Sender<CachedObject>,
    stop: Shutdown,
}

#[derive(Debug)]
struct Inner {
    client: Client,
    tasks: Tasks,
    entries: Mutex<HashMap<ObjectReference, WatchedObject>>,
    wakes: Mutex<HashMap<Arc<str>, Arc<Notify>>>,
}

/// The objects in use; cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct ReferencedObjects(Arc<Inner>);

impl ReferencedObjects {
    pub(crate) fn new(client: Client, tasks: Tasks) -> Self {
        Self(Arc::new(Inner { client, tasks, entries: Mutex::default(), wakes: Mutex::default() }))
    }

    /// Replaces the objects that a pod uses: new objects are watched, and a change of any wakes the
    /// pod.
    pub(crate) fn set_references(
        &self,
        uid: &Arc<str>,
        wake: &Arc<Notify>,
        wanted: &BTreeSet<ObjectReference>,
    ) {
        let mut entries = self.0.entries.lock();
        entries.retain(|reference, entry| {
            if !wanted.contains(reference) {
                entry.users.remove(uid);
            }
            if entry.users.is_empty() {
                entry.stop.request();
            }
            !entry.users.is_empty()
        });
        for reference in wanted {
            let entry = entries.entry(reference.clone()).or_insert_with(|| self.start(reference));
            entry.users.insert(Arc::clone(uid));
        }
        drop(entries);
        let mut wakes = self.0.wakes.lock();
        if wanted.is_empty() {
            wakes.remove(uid);
        } else {
            wakes.insert(Arc::clone(uid), Arc::clone(wake));
        }
    }

    /// Returns the cached state.
    pub(crate) fn get(&self, reference: &ObjectReference) -> CachedObject {
        let entries = self.0.entries.lock();
        entries.get(reference).map_or(CachedObject::Missing, |e| e.value.borrow().clone())
    }

    /// Waits until all objects of a pod are read, or `limit` passes.
    pub(crate) async fn wait_until_read(
        &self,
        wanted: &BTreeSet<ObjectReference>,
        limit: Duration,
    ) {
        let receivers: Vec<watch::Receiver<CachedObject>> = {
            let entries = self.0.entries.lock();
            wanted.iter().filter_map(|r| entries.get(r)).map(|e| e.value.subscribe()).collect()
        };
        let all = async {
            for mut receiver in receivers {
                let _ = receiver.wait_for(|found| !matches!(found, CachedObject::Unknown(_))).await;
            }
        };
        let _ = tokio::time::timeout(limit, all).await;
    }

    fn start(&self, reference: &ObjectReference) -> WatchedObject {
        let (source, namespace, name) = reference;
        let resource = match source {
            ObjectKind::ConfigMap => "configmaps",
            ObjectKind::Secret => "secrets",
        };
        let scope = Scope {
            namespace: namespace.clone(),
            ..Scope::all(Gvr::new("", "v1", resource)).fields(format!("metadata.name={name}"))
        };
        let stop = self.0.tasks.shutdown().child();
        let value = watch::Sender::new(CachedObject::Unknown(String::new()));
        let run = follow(self.clone(), reference.clone(), scope, value.clone(), stop.clone());
        self.0.tasks.spawn(Kind::Request, "object-watch", run);
        WatchedObject { users: BTreeSet::new(), value, stop }
    }

    fn wake_users(&self, reference: &ObjectReference) {
        let users =
            self.0.entries.lock().get(reference).map(|e| e.users.clone()).unwrap_or_default();
        let wakes = self.0.wakes.lock();
        for wake in users.iter().filter_map(|uid| wakes.get(uid)) {
            wake.notify_one();
        }
    }
}

async fn follow(
    objects: ReferencedObjects,
    reference: ObjectReference,
    scope: Scope,
    value: watch::Sender<CachedObject>,
    stop: Shutdown,
) -> Result<(), std::convert::Infallible> {
    let transport = Arc::clone(objects.0.client.transport());
    let mut backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(30));
    let mut resume = None;
    loop {
        let session = session(&objects, &reference, &scope, &value, &mut resume);
        let outcome = tokio::select! {
            () = stop.requested() => break,
            outcome = session => outcome,
        };
        match outcome {
            // The watch delivered events: resume it at once.
            Ok(true) => {
                backoff.reset();
                continue;
            }
            Ok(false) => {}
            Err(error) => {
                let expired = error.is_expired() || error.is_too_new();
                if resume.take_if(|_| expired).is_some() {
                    continue;
                }
                tracing::debug!(object = ?reference, %error, "cannot watch object");
                value.send_if_modified(|found| match found {
                    CachedObject::Unknown(last) => {
                        *last = error.to_string();
                        true
                    }
                    _ => false,
                });
            }
        }
        if !backoff.wait_or(&stop, transport.back()).await {
            break;
        }
    }
    // The process stops, or no pod of this node uses the object any longer.
    let again = objects.0.entries.lock().contains_key(&reference);
    if !again && !objects.0.tasks.shutdown().is_requested() {
        transport.forget(&scope);
    }
    Ok(())
}

/// Runs one watch to its end; returns whether it delivered an event. `resume` is the revision from
/// which the next one resumes.
async fn session(
    objects: &ReferencedObjects,
    reference: &ObjectReference,
    scope: &Scope,
    value: &watch::Sender<CachedObject>,
    resume: &mut Option<i64>,
) -> Result<bool, client::Error> {
    let mut events = objects.0.client.transport().watch(scope, *resume).await?;
    let mut listing = resume.is_none();
    let (mut exists, mut received) = (false, false);
    while let Some(event) = events.recv().await {
        received = true;
        let found = match event {
            WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                exists = true;
                if !listing {
                    *resume = Some(object.resource_version);
                }
                CachedObject::Present(object)
            }
            WatchEvent::Bookmark { revision, initial } => {
                if initial || !listing {
                    *resume = Some(revision);
                }
                let ends_list = listing && initial;
                listing &= !initial;
                if !ends_list || exists {
                    continue;
                }
                CachedObject::Missing
            }
            WatchEvent::Deleted(object) => {
                if !listing {
                    *resume = Some(object.resource_version);
                }
                CachedObject::Missing
            }
            WatchEvent::Error(status) => return Err((*status).into()),
        };
        let changed = value.send_if_modified(|now| {
            let same = match (&*now, &found) {
                (CachedObject::Present(a), CachedObject::Present(b)) => a.raw() == b.raw(),
                (CachedObject::Missing, CachedObject::Missing) => true,
                _ => false,
            };
            *now = found;
            !same
        });
        if changed {
            objects.wake_users(reference);
        }
    }
    Ok(received)
}

/// Returns the data of a ConfigMap or Secret, with `binaryData` and Secret values decoded.
pub(crate) fn data(source: ObjectKind, object: &Object) -> BTreeMap<String, Vec<u8>> {
    use base64::Engine;
    let Ok(value) = object.value() else { return BTreeMap::new() };
    let decode = |v: &Value| {
        base64::engine::general_purpose::STANDARD
            .decode(v.as_str().unwrap_or_default())
            .unwrap_or_default()
    };
    let entries =
        |field: &str| value.get(field).and_then(Value::as_object).cloned().unwrap_or_default();
    let mut out = BTreeMap::new();
    for (key, v) in entries("data") {
        let bytes = match source {
            ObjectKind::ConfigMap => v.as_str().unwrap_or_default().as_bytes().to_vec(),
            ObjectKind::Secret => decode(&v),
        };
        out.insert(key, bytes);
    }
    if source == ObjectKind::ConfigMap {
        out.extend(entries("binaryData").into_iter().map(|(k, v)| (k, decode(&v))));
    }
    out
}
