//! The controller of the built-in CSI driver `local.kube-lite.io`: what csi-provisioner,
//! csi-resizer and csi-snapshotter do for other drivers.
//!
//! The controller writes the API objects; each node stores its own volumes, on request through its
//! kubelet API.

mod node_requests;
mod plan;
mod resize;
mod snapshots;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use api::k8s::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim};
use api::k8s::api::storage::v1::StorageClass;
use api::local_driver::{ContentSource, DRIVER, Stored, VolumeRequest};
use api::uri;
use client::events::EventType;
use client::informer::decode;
use client::{Action, Client, Error, EventRecorder, Informer, gvr_of};
use http::Method;
use parking_lot::Mutex;
use serde_json::Value;

use self::node_requests::{NodeRequestError, NodeRequests};
use self::plan::{ClaimRequest, ClaimSource, Reclaim, UnsupportedClaim};
use crate::framework::context::Context;
use crate::framework::edit;
use crate::framework::keyed::{Key, Keyed, settled};
use crate::storage::provisioning::{
    self, REQUESTED_OF, annotation, became_ready, class_of, is_requested, key, metadata_key,
    selected_node, waits,
};

/// When a claim is looked at again whose source was not ready.
const SOURCE_INTERVAL: Duration = Duration::from_secs(10);

/// Why a volume is not made or removed, for the user.
#[derive(Debug, thiserror::Error)]
enum DriverError {
    #[error("{0}")]
    Unsupported(#[from] UnsupportedClaim),
    #[error("{0}")]
    Node(#[from] NodeRequestError),
    #[error("node {0:?} does not exist; the scheduler selects another one")]
    NodeDeleted(String),
    #[error("the volume does not name its node; delete it and its content by hand")]
    UnknownNode,
    #[error("{0}")]
    Api(#[from] Error),
}

impl DriverError {
    /// Whether another node may succeed.
    fn needs_other_node(&self) -> bool {
        match self {
            Self::Unsupported(UnsupportedClaim::OtherNode { .. }) | Self::NodeDeleted(_) => true,
            Self::Node(error) => error.is_no_room(),
            _ => false,
        }
    }

    fn is_in_progress(&self) -> bool {
        matches!(self, Self::Node(error) if error.is_in_progress())
    }

    /// What becomes of the key.
    fn outcome(self) -> Result<Action, Error> {
        match self {
            Self::Unsupported(UnsupportedClaim::SourceNotReady(_)) => {
                Ok(Action::After(SOURCE_INTERVAL))
            }
            Self::Node(error) => error.outcome(),
            Self::Api(error) if error.is_retryable() => Err(error),
            _ => Ok(Action::Done),
        }
    }
}

/// A volume that a node may have stored for a claim, without a PersistentVolume.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Attempt {
    volume: String,
    node: String,
}

struct Controller {
    client: Client,
    requests: Arc<NodeRequests>,
    recorder: EventRecorder,
    claims: Informer<PersistentVolumeClaim>,
    volumes: Informer<PersistentVolume>,
    classes: Informer<StorageClass>,
    /// By the keys of claims: if a claim is deleted meanwhile, its node deletes the volume.
    attempts: Mutex<BTreeMap<Key, Attempt>>,
}

fn is_of_driver(claim: &PersistentVolumeClaim) -> bool {
    annotation(&claim.metadata.annotations, REQUESTED_OF) == Some(DRIVER)
}

/// Starts the controller. Keys with a namespace are claims, those without volumes.
pub(crate) fn start(context: &Context) {
    let client = context.client("local-driver");
    let recorder = context.recorder(&client, DRIVER);
    let informers = &context.informers;
    let (claims, volumes, classes, nodes) = (
        informers.of::<PersistentVolumeClaim>(),
        informers.of::<PersistentVolume>(),
        informers.of::<StorageClass>(),
        informers.of::<Node>(),
    );
    let mut keyed = Keyed::new();
    keyed.watches(&claims, |change| {
        let ours =
            decode::<PersistentVolumeClaim>(change.object()).is_some_and(|c| is_of_driver(&c));
        ours.then(|| key(change.object())).into_iter().collect()
    });
    keyed.watches(&volumes, |change| {
        let volume = decode::<PersistentVolume>(change.object());
        let ours = volume.is_some_and(|v| plan::reclaim(&v) != Reclaim::Nothing);
        ours.then(|| key(change.object())).into_iter().collect()
    });
    provisioning::watch_classes(&mut keyed, &classes, &claims, DRIVER);
    let (all_claims, all_volumes) = (claims.clone(), volumes.clone());
    keyed.watches(&nodes, move |change| {
        if !became_ready(change) {
            return Vec::new();
        }
        let claims = all_claims.list("").into_iter().filter(is_of_driver).map(|c| c.metadata);
        let volumes = all_volumes.list("").into_iter();
        let volumes = volumes.filter(|v| plan::reclaim(v) != Reclaim::Nothing).map(|v| v.metadata);
        claims.chain(volumes).map(metadata_key).collect()
    });
    let requests = NodeRequests { apiserver: context.client("kube-apiserver"), nodes };
    let requests = Arc::new(requests);
    snapshots::start(context, &client, &requests, &volumes);
    let attempts = Mutex::default();
    let controller = Controller { client, requests, recorder, claims, volumes, classes, attempts };
    let controller = Arc::new(controller);
    keyed.run(&context.tasks, "local-driver", 2, move |(namespace, name)| {
        let controller = Arc::clone(&controller);
        async move {
            match (namespace.as_str(), name.as_str()) {
                ("", volume) => controller.reconcile_volume(volume).await,
                (namespace, claim) => controller.reconcile_claim(namespace, claim).await,
            }
        }
    });
}

impl Controller {
    async fn reconcile_claim(&self, namespace: &str, name: &str) -> Result<Action, Error> {
        let claim = self.claims.get(namespace, name);
        let Some(claim) = claim.filter(|claim| claim.metadata.deletion_timestamp.is_none()) else {
            return self.abandon(namespace, name).await;
        };
        if is_requested(&claim, DRIVER) {
            self.provision(&claim).await
        } else {
            self.attempts.lock().remove(&metadata_key(claim.metadata.clone()));
            self.resize(&claim).await
        }
    }

    /// Has a node delete what it stored for a claim that was deleted before its volume existed. A
    /// volume that exists is deleted as its policy says.
    async fn abandon(&self, namespace: &str, name: &str) -> Result<Action, Error> {
        let key = (namespace.to_owned(), name.to_owned());
        let Some(attempt) = self.attempts.lock().get(&key).cloned() else {
            return Ok(Action::Done);
        };
        match self.client.get::<PersistentVolume>("", &attempt.volume).await {
            Ok(_) => {}
            Err(error) if error.is_not_found() => {
                let path = volume_path(&attempt.volume);
                let deleted: Result<Option<Stored>, _> =
                    self.requests.send(&attempt.node, Method::DELETE, &path, &Value::Null).await;
                if let Err(error) = deleted {
                    return error.outcome();
                }
            }
            Err(error) => return Err(error),
        }
        self.attempts.lock().remove(&key);
        Ok(Action::Done)
    }

    /// Makes the volume of a claim whose node is selected.
    async fn provision(&self, claim: &PersistentVolumeClaim) -> Result<Action, Error> {
        let class = self.classes.get("", class_of(claim));
        let Some(class) = class else { return Ok(Action::Done) };
        if class.provisioner != DRIVER || waits(claim, &class) {
            return Ok(Action::Done);
        }
        let error = match self.make(claim, &class).await {
            Ok(volume) => {
                provisioning::report_success(&self.recorder, claim, &volume);
                return Ok(Action::Done);
            }
            Err(error) => error,
        };
        if !error.is_in_progress() {
            provisioning::report_failure(&self.recorder, claim, &error);
        }
        if error.needs_other_node() && selected_node(claim).is_some() {
            return provisioning::reschedule(&self.client, claim).await;
        }
        error.outcome()
    }

    /// Has the node of a claim store the volume, and creates the PersistentVolume.
    async fn make(
        &self,
        claim: &PersistentVolumeClaim,
        class: &StorageClass,
    ) -> Result<String, DriverError> {
        let request = plan::request(claim, class)?;
        let name = self.node_for(claim, &request).await?;
        let Some(node) = self.requests.nodes.get("", &name) else {
            return Err(DriverError::NodeDeleted(name));
        };
        let source = self.content(claim, &request, &name).await?;
        let path = volume_path(&request.name);
        let ClaimRequest { size, mode, fs_type, .. } = request;
        let body = VolumeRequest { size, mode, fs_type, source };
        let key = metadata_key(claim.metadata.clone());
        let attempt = Attempt { volume: request.name.clone(), node: name.clone() };
        self.attempts.lock().insert(key.clone(), attempt);
        let stored: Stored = self.requests.send(&name, Method::POST, &path, &body).await?;
        let labels = node.metadata.labels.as_ref();
        let host = labels.and_then(|labels| labels.get("kubernetes.io/hostname")).unwrap_or(&name);
        let object = plan::volume(claim, class, &request, stored, (&name, host));
        provisioning::create_volume(&self.client, &object).await?;
        self.attempts.lock().remove(&key);
        Ok(request.name)
    }

    /// The node that stores the volume: the selected one, or that of the source of a claim of a
    /// class that does not wait for pods, or any node that is ready.
    async fn node_for(
        &self,
        claim: &PersistentVolumeClaim,
        request: &ClaimRequest,
    ) -> Result<String, DriverError> {
        if let Some(node) = selected_node(claim) {
            return Ok(node.to_owned());
        }
        if let Some(source) = &request.source {
            return Ok(self.source(claim, source).await?.1);
        }
        let attempts = self.attempts.lock();
        let begun = attempts.get(&metadata_key(claim.metadata.clone()));
        if let Some(attempt) = begun.filter(|attempt| attempt.volume == request.name) {
            return Ok(attempt.node.clone());
        }
        drop(attempts);
        let node = provisioning::ready_node(&self.requests.nodes);
        let node = node.and_then(|node| node.metadata.name);
        Ok(node.ok_or_else(|| NodeRequestError::NotReady("any".to_owned()))?)
    }

    /// The source of a claim at the node that is to copy it.
    async fn content(
        &self,
        claim: &PersistentVolumeClaim,
        request: &ClaimRequest,
        selected: &str,
    ) -> Result<Option<ContentSource>, DriverError> {
        let Some(source) = &request.source else { return Ok(None) };
        let name = match source {
            ClaimSource::Claim(name) | ClaimSource::Snapshot(name) => name,
        };
        let (source, node) = self.source(claim, source).await?;
        Ok(Some(plan::on_node(source, (name, &node), selected)?))
    }

    /// The stored content that a claim names as its source, and the node that has it.
    async fn source(
        &self,
        claim: &PersistentVolumeClaim,
        source: &ClaimSource,
    ) -> Result<(ContentSource, String), DriverError> {
        let namespace = claim.metadata.namespace.as_deref().unwrap_or_default();
        match source {
            ClaimSource::Snapshot(name) => {
                let (snapshot, node) = snapshots::handle(&self.client, namespace, name).await?;
                Ok((ContentSource::Snapshot(snapshot), node))
            }
            ClaimSource::Claim(name) => {
                let foreign = || UnsupportedClaim::ForeignSource(name.clone());
                let not_ready = || UnsupportedClaim::SourceNotReady(name.clone());
                let source = self.claims.get(namespace, name).ok_or_else(not_ready)?;
                let volume = source.spec.and_then(|spec| spec.volume_name).unwrap_or_default();
                let volume = self.volumes.get("", &volume).ok_or_else(not_ready)?;
                let handle = plan::handle(&volume).ok_or_else(foreign)?.to_owned();
                let node = plan::node_of(&volume).ok_or_else(foreign)?.to_owned();
                Ok((ContentSource::Volume(handle), node))
            }
        }
    }

    /// Deletes a volume that no claim uses any longer. A volume whose node does not answer stays.
    async fn reconcile_volume(&self, name: &str) -> Result<Action, Error> {
        let Some(volume) = self.volumes.get("", name) else { return Ok(Action::Done) };
        let todo = plan::reclaim(&volume);
        if todo == Reclaim::Delete
            && let Err(error) = self.delete_content(&volume).await
        {
            if !error.is_in_progress() {
                let text = error.to_string();
                self.recorder.event(&volume, EventType::Warning, "VolumeFailedDelete", text);
            }
            return error.outcome();
        }
        if todo == Reclaim::Delete && volume.metadata.deletion_timestamp.is_none() {
            provisioning::delete_volume(&self.client, volume).await?;
        }
        if todo != Reclaim::Nothing {
            self.remove_finalizer(name).await?;
        }
        Ok(Action::Done)
    }

    async fn delete_content(&self, volume: &PersistentVolume) -> Result<(), DriverError> {
        let handle = plan::handle(volume).unwrap_or_default();
        let node = plan::node_of(volume).ok_or(DriverError::UnknownNode)?;
        let path = volume_path(handle);
        let _: Option<Stored> =
            self.requests.send(node, Method::DELETE, &path, &Value::Null).await?;
        Ok(())
    }

    async fn remove_finalizer(&self, name: &str) -> Result<(), Error> {
        let gvr = gvr_of::<PersistentVolume>();
        let mut value = match self.client.get_value(&gvr, "", name).await {
            Err(error) if error.is_not_found() => return Ok(()),
            found => found?,
        };
        if edit::remove_finalizer(&mut value, plan::FINALIZER) {
            settled(edit::put(&self.client, &gvr, "", &value).await)?;
        }
        Ok(())
    }
}

/// The path of a volume in requests to nodes.
fn volume_path(handle: &str) -> String {
    format!("volumes/{}", uri::escaped(handle))
}
