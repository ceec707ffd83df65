//! PersistentVolumes and the claims bound to them: matching, phases, what becomes of volumes whose
//! claim is gone.

mod claim_side;
mod matching;
mod migration;
mod volume_side;

use std::sync::Arc;

use api::k8s::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use api::k8s::api::storage::v1::StorageClass;
use api::{Gvr, Object};
use client::informer::decode;
use client::{Action, Change, Client, Error, EventRecorder, Informer, Kind, Queue};
use serde_json::{Value, json};

use self::matching::{BIND_COMPLETED, BOUND_BY_CONTROLLER, annotation, is_bound_to};
use crate::framework::context::Context;
use crate::framework::edit;
use crate::framework::keyed::{Key, Keyed};
use crate::storage::metrics;
use crate::storage::metrics::Operations;
use crate::storage::pod_claims;
use crate::storage::pod_claims::claim_names;

/// Index of volumes by `<namespace>/<name>` of the claim that they name.
const BY_CLAIM_REF: &str = "claimRef";

struct Binder {
    client: Client,
    recorder: EventRecorder,
    volumes: Informer<PersistentVolume>,
    claims: Informer<PersistentVolumeClaim>,
    classes: Informer<StorageClass>,
    pods: Informer<Pod>,
    queue: Queue<Key>,
    operations: Arc<Operations>,
}

/// Starts the controller. Keys without a namespace are volumes, the others claims; one worker, or
/// two claims would race for one volume.
pub(crate) fn start(context: &Context) {
    let client = context.client("persistent-volume-binder");
    let recorder = context.recorder(&client, "persistentvolume-controller");
    let informers = &context.informers;
    let (volumes, claims, classes, pods) = (
        informers.of::<PersistentVolume>(),
        informers.of::<PersistentVolumeClaim>(),
        informers.of::<StorageClass>(),
        informers.of::<Pod>(),
    );
    volumes.add_index(BY_CLAIM_REF, |o| {
        claim_ref(o).map(|(n, c)| format!("{n}/{c}")).into_iter().collect()
    });
    pod_claims::index_pods(&pods);
    let mut keyed = Keyed::new();
    let (all, open) = (volumes.clone(), claims.clone());
    let operations = Arc::new(Operations::default());
    let running = Arc::clone(&operations);
    keyed.watches(&claims, move |change| {
        let claim = change.object();
        if matches!(change, Change::Deleted(_)) {
            running.forget(&claim.key.to_string());
        }
        let mut keys = vec![key(claim)];
        let naming = all.cache().by_index(BY_CLAIM_REF, &claim.key.to_string());
        keys.extend(naming.iter().map(|v| key(v)));
        keys
    });
    let waiting = open.clone();
    let running = Arc::clone(&operations);
    keyed.watches(&volumes, move |change| {
        let volume = change.object();
        if matches!(change, Change::Deleted(_)) {
            running.succeeded(&volume.key.to_string());
        }
        let mut keys = vec![key(volume)];
        match claim_ref(volume) {
            Some(claim) => keys.push(claim),
            // A free volume may be what a claim waits for.
            None => keys.extend(unbound(&waiting)),
        }
        keys
    });
    let waiting = open.clone();
    keyed.watches(&classes, move |change| match change {
        Change::Deleted(_) => Vec::new(),
        Change::Added(_) | Change::Updated { .. } => unbound(&waiting),
    });
    let waiting = open;
    keyed.watches(&pods, move |change| match change {
        // Users of a claim tell what it waits for.
        Change::Added(pod) => {
            let namespace = &pod.key.namespace;
            let open = |name: &String| waiting.get(namespace, name).is_some_and(|c| is_unbound(&c));
            let names = claim_names(pod).into_iter().filter(open);
            names.map(|name| (namespace.to_string(), name)).collect()
        }
        Change::Updated { .. } | Change::Deleted(_) => Vec::new(),
    });
    let queue = keyed.queue.clone();
    let binder = Binder { client, recorder, volumes, claims, classes, pods, queue, operations };
    let binder = Arc::new(binder);
    crate::framework::collectors::collect(&binder, Binder::count);
    keyed.run(&context.tasks, "persistentvolume-binder-controller", 1, move |(namespace, name)| {
        let binder = Arc::clone(&binder);
        async move {
            match namespace.as_str() {
                "" => binder.sync_volume(&name).await?,
                _ => binder.sync_claim(&namespace, &name).await?,
            }
            Ok::<_, Error>(Action::Done)
        }
    });
}

fn key(object: &Object) -> Key {
    (object.key.namespace.to_string(), object.key.name.to_string())
}

/// The claim that a volume names.
fn claim_ref(volume: &Object) -> Option<Key> {
    let reference = decode::<PersistentVolume>(volume)?.spec?.claim_ref?;
    Some((reference.namespace?, reference.name?))
}

fn is_unbound(claim: &PersistentVolumeClaim) -> bool {
    annotation(&claim.metadata.annotations, BIND_COMPLETED).is_none()
}

fn unbound(claims: &Informer<PersistentVolumeClaim>) -> Vec<Key> {
    let open = claims.list("").into_iter().filter(is_unbound);
    open.filter_map(|c| Some((c.metadata.namespace?, c.metadata.name?))).collect()
}

/// An object as it is in the store, and its typed view; writes go through the former, so that
/// unknown fields stay.
struct Stored<K> {
    typed: K,
    json: Value,
}

impl<K: Kind> Stored<K> {
    fn new(json: Value) -> Result<Self, Error> {
        Ok(Self { typed: K::from_value(&json)?, json })
    }

    fn cached(informer: &Informer<K>, namespace: &str, name: &str) -> Result<Option<Self>, Error> {
        let object = informer.cache().get(namespace, name);
        object.map(|o| edit::value(&o).and_then(Self::new)).transpose()
    }

    /// Changes and writes the object, or its status.
    async fn write(
        self,
        client: &Client,
        subresource: &str,
        change: impl FnOnce(&mut Value),
    ) -> Result<Self, Error> {
        let mut json = self.json;
        change(&mut json);
        let gvr: Gvr = client::gvr_of::<K>();
        Self::new(edit::put(client, &gvr, subresource, &json).await?)
    }
}

type Volume = Stored<PersistentVolume>;
type Claim = Stored<PersistentVolumeClaim>;

fn claim_phase(claim: &PersistentVolumeClaim) -> &str {
    claim.status.as_ref().and_then(|s| s.phase.as_deref()).unwrap_or_default()
}

fn volume_phase(volume: &PersistentVolume) -> &str {
    volume.status.as_ref().and_then(|s| s.phase.as_deref()).unwrap_or_default()
}

impl Binder {
    /// Counts the volumes and claims for the metrics.
    fn count(&self) {
        let (volumes, claims) = (self.volumes.cache().list(""), self.claims.cache().list(""));
        metrics::count_volumes(volumes.iter().map(|v| &**v), claims.iter().map(|c| &**c));
    }

    /// Binds both sides, the volume first; every part that is done already is left alone.
    async fn bind(&self, volume: Volume, claim: Claim) -> Result<(), Error> {
        let meta = claim.typed.metadata.clone();
        let reference = volume.typed.spec.as_ref().and_then(|s| s.claim_ref.clone());
        let same = reference.as_ref().is_some_and(|r| {
            r.name == meta.name && r.namespace == meta.namespace && r.uid == meta.uid
        });
        let own = !is_bound_to(&volume.typed, &claim.typed)
            && annotation(&volume.typed.metadata.annotations, BOUND_BY_CONTROLLER).is_none();
        let mut volume = volume;
        if !same || own {
            volume = volume
                .write(&self.client, "", |json| {
                    json["spec"]["claimRef"] = json!({
                        "apiVersion": "v1", "kind": "PersistentVolumeClaim",
                        "namespace": meta.namespace, "name": meta.name, "uid": meta.uid,
                        "resourceVersion": meta.resource_version,
                    });
                    if own {
                        json["metadata"]["annotations"][BOUND_BY_CONTROLLER] = "yes".into();
                    }
                })
                .await?;
        }
        let volume = self.volume_phase(volume, "Bound", "").await?;
        let name = volume.typed.metadata.name.clone().unwrap_or_default();
        let named = claim.typed.spec.as_ref().and_then(|s| s.volume_name.as_deref()) == Some(&name);
        let claim = if !named || is_unbound(&claim.typed) {
            claim
                .write(&self.client, "", |json| {
                    if !named {
                        json["spec"]["volumeName"] = name.into();
                        json["metadata"]["annotations"][BOUND_BY_CONTROLLER] = "yes".into();
                    }
                    json["metadata"]["annotations"][BIND_COMPLETED] = "yes".into();
                })
                .await?
        } else {
            claim
        };
        self.claim_phase(claim, "Bound", Some(&volume.typed)).await.map(drop)
    }

    /// Writes the phase of a volume, when it differs.
    async fn volume_phase(
        &self,
        volume: Volume,
        phase: &str,
        message: &str,
    ) -> Result<Volume, Error> {
        if volume_phase(&volume.typed) == phase {
            return Ok(volume);
        }
        volume
            .write(&self.client, "status", |json| {
                json["status"]["phase"] = phase.into();
                let Some(status) = json["status"].as_object_mut() else { return };
                if message.is_empty() {
                    status.remove("message");
                } else {
                    status.insert("message".into(), message.into());
                }
            })
            .await
    }

    /// Writes the phase of a claim and what its volume offers, when they differ.
    async fn claim_phase(
        &self,
        claim: Claim,
        phase: &str,
        volume: Option<&PersistentVolume>,
    ) -> Result<Claim, Error> {
        match claim_side::status(&claim.json, phase, volume)? {
            Some(status) => {
                claim.write(&self.client, "status", |json| json["status"] = status).await
            }
            None => Ok(claim),
        }
    }
}
