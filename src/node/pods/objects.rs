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
pub(crate) enum Source {
    ConfigMap,
    Secret,
}

/// Kind, namespace and name of an object.
pub(crate) type Reference = (Source, String, String);

/// Returns the ConfigMaps and Secrets that a pod refers to in volumes, variables and pull secrets.
pub(crate) fn references(pod: &Pod) -> BTreeSet<Reference> {
    let namespace = pod.namespace().to_owned();
    let mut out = BTreeSet::new();
    let mut add = |source: Source, name: &str| {
        if !name.is_empty() {
            out.insert((source, namespace.clone(), name.to_owned()));
        }
    };
    for volume in pod.spec().volumes.iter().flatten() {
        if let Some(source) = &volume.config_map {
            add(Source::ConfigMap, &source.name);
        }
        if let Some(source) = &volume.secret {
            add(Source::Secret, source.secret_name.as_deref().unwrap_or_default());
        }
        for source in volume.projected.iter().flat_map(|p| p.sources.iter().flatten()) {
            if let Some(source) = &source.config_map {
                add(Source::ConfigMap, &source.name);
            }
            if let Some(source) = &source.secret {
                add(Source::Secret, &source.name);
            }
        }
    }
    for member in &pod.members {
        for source in member.container.env_from.iter().flatten() {
            if let Some(source) = &source.config_map_ref {
                add(Source::ConfigMap, &source.name);
            }
            if let Some(source) = &source.secret_ref {
                add(Source::Secret, &source.name);
            }
        }
        for source in member.container.env.iter().flatten().filter_map(|e| e.value_from.as_ref()) {
            if let Some(source) = &source.config_map_key_ref {
                add(Source::ConfigMap, &source.name);
            }
            if let Some(source) = &source.secret_key_ref {
                add(Source::Secret, &source.name);
            }
        }
    }
    for secret in pod.spec().image_pull_secrets.iter().flatten() {
        add(Source::Secret, &secret.name);
    }
    out
}

/// The cached state of an object.
#[derive(Debug, Clone)]
pub(crate) enum Found {
    /// Not read yet; the last error, if any.
    Unknown(String),
    Missing,
    Present(Arc<Object>),
}

#[derive(Debug)]
struct Entry {
    users: BTreeSet<Arc<str>>,
    value: watch::Sender<Found>,
    stop: Shutdown,
}

#[derive(Debug)]
struct Inner {
    client: Client,
    tasks: Tasks,
    entries: Mutex<HashMap<Reference, Entry>>,
    wakes: Mutex<HashMap<Arc<str>, Arc<Notify>>>,
}

/// The objects in use; cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Objects(Arc<Inner>);

impl Objects {
    pub(crate) fn new(client: Client, tasks: Tasks) -> Self {
        Self(Arc::new(Inner { client, tasks, entries: Mutex::default(), wakes: Mutex::default() }))
    }

    /// Replaces the objects that a pod uses: new objects are watched, and a change of any wakes the
    /// pod.
    pub(crate) fn use_all(&self, uid: &Arc<str>, wake: &Arc<Notify>, wanted: &BTreeSet<Reference>) {
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
    pub(crate) fn get(&self, reference: &Reference) -> Found {
        let entries = self.0.entries.lock();
        entries.get(reference).map_or(Found::Missing, |e| e.value.borrow().clone())
    }

    /// Waits until all objects of a pod are read, or `limit` passes.
    pub(crate) async fn known(&self, wanted: &BTreeSet<Reference>, limit: Duration) {
        let receivers: Vec<watch::Receiver<Found>> = {
            let entries = self.0.entries.lock();
            wanted.iter().filter_map(|r| entries.get(r)).map(|e| e.value.subscribe()).collect()
        };
        let all = async {
            for mut receiver in receivers {
                let _ = receiver.wait_for(|found| !matches!(found, Found::Unknown(_))).await;
            }
        };
        let _ = tokio::time::timeout(limit, all).await;
    }

    fn start(&self, reference: &Reference) -> Entry {
        let (source, namespace, name) = reference;
        let resource = match source {
            Source::ConfigMap => "configmaps",
            Source::Secret => "secrets",
        };
        let scope = Scope {
            namespace: namespace.clone(),
            ..Scope::all(Gvr::new("", "v1", resource)).fields(format!("metadata.name={name}"))
        };
        let stop = self.0.tasks.shutdown().child();
        let value = watch::Sender::new(Found::Unknown(String::new()));
        let run = follow(self.clone(), reference.clone(), scope, value.clone(), stop.clone());
        self.0.tasks.spawn(Kind::Request, "object-watch", run);
        Entry { users: BTreeSet::new(), value, stop }
    }

    fn changed(&self, reference: &Reference) {
        let users =
            self.0.entries.lock().get(reference).map(|e| e.users.clone()).unwrap_or_default();
        let wakes = self.0.wakes.lock();
        for wake in users.iter().filter_map(|uid| wakes.get(uid)) {
            wake.notify_one();
        }
    }
}

async fn follow(
    objects: Objects,
    reference: Reference,
    scope: Scope,
    value: watch::Sender<Found>,
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
                tracing::debug!(object = ?reference, %error, "cannot watch");
                value.send_if_modified(|found| match found {
                    Found::Unknown(last) => {
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
    objects: &Objects,
    reference: &Reference,
    scope: &Scope,
    value: &watch::Sender<Found>,
    resume: &mut Option<i64>,
) -> Result<bool, client::Error> {
    let mut events = objects.0.client.transport().watch(scope, *resume).await?;
    let mut listing = resume.is_none();
    let (mut seen, mut told) = (false, false);
    while let Some(event) = events.recv().await {
        told = true;
        let found = match event {
            WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                seen = true;
                if !listing {
                    *resume = Some(object.resource_version);
                }
                Found::Present(object)
            }
            WatchEvent::Bookmark { revision, initial } => {
                if initial || !listing {
                    *resume = Some(revision);
                }
                let ends_list = listing && initial;
                listing &= !initial;
                if !ends_list || seen {
                    continue;
                }
                Found::Missing
            }
            WatchEvent::Deleted(object) => {
                if !listing {
                    *resume = Some(object.resource_version);
                }
                Found::Missing
            }
            WatchEvent::Error(status) => return Err((*status).into()),
        };
        let changed = value.send_if_modified(|now| {
            let same = match (&*now, &found) {
                (Found::Present(a), Found::Present(b)) => a.raw() == b.raw(),
                (Found::Missing, Found::Missing) => true,
                _ => false,
            };
            *now = found;
            !same
        });
        if changed {
            objects.changed(reference);
        }
    }
    Ok(told)
}

/// Returns the data of a ConfigMap or Secret, with `binaryData` and Secret values decoded.
pub(crate) fn data(source: Source, object: &Object) -> BTreeMap<String, Vec<u8>> {
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
            Source::ConfigMap => v.as_str().unwrap_or_default().as_bytes().to_vec(),
            Source::Secret => decode(&v),
        };
        out.insert(key, bytes);
    }
    if source == Source::ConfigMap {
        out.extend(entries("binaryData").into_iter().map(|(k, v)| (k, decode(&v))));
    }
    out
}
