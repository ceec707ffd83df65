//! The local-path provisioner: claims of its class become directories on the node of their pod.
//!
//! The controller writes the API objects; each node creates and removes its own directories, on
//! request through its kubelet API.

mod path_pattern;
mod plan;
mod settings;

use std::sync::Arc;

use api::k8s::api::core::v1::{ConfigMap, Node, PersistentVolume, PersistentVolumeClaim};
use api::k8s::api::storage::v1::StorageClass;
use bytes::Bytes;
use client::events::EventType;
use client::informer::decode;
use client::{Action, Client, Error, EventRecorder, Informer, gvr_of};
use http::Method;
use serde::Deserialize;

use self::plan::{DirectoryRequest, PROVISIONER, Volume, VolumeNode, VolumeRequest};
use self::settings::ProvisionerSettings;
use crate::framework::context::Context;
use crate::framework::keyed::Keyed;
use crate::framework::nodes;
use crate::storage::provisioning::{self, became_ready, key, metadata_key};

/// Why a directory is not made or removed, for the user.
#[derive(Debug, thiserror::Error)]
enum ProvisionError {
    #[error("node {0:?} does not exist; if it does not come back, delete the volume by hand")]
    NoNode(String),
    #[error("node {0:?} does not exist; the scheduler selects another one")]
    NodeDeleted(String),
    #[error("node {0:?} is not ready; this is tried again once it is")]
    NodeNotReady(String),
    #[error("node {node:?} answered with an unexpected path {path:?}")]
    BadPath { node: String, path: String },
    #[error("the path of the volume is not one that the provisioner made; delete both by hand")]
    ForeignPath,
    #[error("the volume does not name its node; delete it and its directory by hand")]
    UnknownNode,
    #[error("no node is ready; this is tried again once one is")]
    NoReadyNode,
    #[error("{0}")]
    Request(#[from] Error),
}

impl ProvisionError {
    /// What becomes of the key: all but errors of the connection end with a change of an object,
    /// and that wakes the key.
    fn outcome(self) -> Result<Action, Error> {
        match self {
            Self::Request(error) if error.is_retryable() => Err(error),
            _ => Ok(Action::Done),
        }
    }
}

/// The answer of a node that made a directory.
#[derive(Deserialize)]
struct DirectoryMade {
    path: String,
}

struct Provisioner {
    client: Client,
    /// Reaches kubelets, which know the API server alone.
    apiserver: Client,
    recorder: EventRecorder,
    claims: Informer<PersistentVolumeClaim>,
    volumes: Informer<PersistentVolume>,
    classes: Informer<StorageClass>,
    nodes: Informer<Node>,
    settings: Arc<ProvisionerSettings>,
}

/// Starts the controller. Keys with a namespace are claims, those without volumes.
pub(crate) fn start(context: &Context) {
    let client = context.client("local-path-provisioner");
    let apiserver = context.client("kube-apiserver");
    let recorder = context.recorder(&client, PROVISIONER);
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
            decode::<PersistentVolumeClaim>(change.object()).is_some_and(|c| plan::is_ours(&c));
        ours.then(|| key(change.object())).into_iter().collect()
    });
    keyed.watches(&volumes, |change| {
        let released =
            decode::<PersistentVolume>(change.object()).is_some_and(|v| plan::is_released(&v));
        released.then(|| key(change.object())).into_iter().collect()
    });
    provisioning::watch_classes(&mut keyed, &classes, &claims, PROVISIONER);
    let settings = Arc::new(ProvisionerSettings::new(recorder.clone()));
    let (all_claims, applied) = (claims.clone(), Arc::clone(&settings));
    keyed.watches(&informers.of::<ConfigMap>(), move |change| {
        let claims = if applied.apply(change) { all_claims.list("") } else { Vec::new() };
        claims.into_iter().filter(plan::is_ours).map(|c| metadata_key(c.metadata)).collect()
    });
    let (all_claims, all_volumes) = (claims.clone(), volumes.clone());
    keyed.watches(&nodes, move |change| {
        let node = &*change.object().key.name;
        if !became_ready(change) {
            return Vec::new();
        }
        let claims = all_claims.list("").into_iter().filter(plan::is_ours);
        let claims =
            claims.filter(|c| provisioning::selected_node(c).is_none_or(|name| name == node));
        let volumes = all_volumes.list("").into_iter().filter(plan::is_released);
        let volumes = volumes
            .filter(|v| !matches!(plan::node_of(v), Some(VolumeNode::Named(n)) if n != node));
        claims.map(|c| c.metadata).chain(volumes.map(|v| v.metadata)).map(metadata_key).collect()
    });
    let provisioner =
        Provisioner { client, apiserver, recorder, claims, volumes, classes, nodes, settings };
    let provisioner = Arc::new(provisioner);
    keyed.run(&context.tasks, "local-path-provisioner", 2, move |(namespace, name)| {
        let provisioner = Arc::clone(&provisioner);
        async move {
            match (namespace.as_str(), name.as_str()) {
                ("", volume) => provisioner.reclaim(volume).await,
                (namespace, claim) => provisioner.provision(namespace, claim).await,
            }
        }
    });
}

impl Provisioner {
    async fn provision(&self, namespace: &str, name: &str) -> Result<Action, Error> {
        let Some(claim) = self.claims.get(namespace, name) else { return Ok(Action::Done) };
        if !plan::is_ours(&claim) || claim.metadata.deletion_timestamp.is_some() {
            return Ok(Action::Done);
        }
        let class = self.classes.get("", provisioning::class_of(&claim));
        let Some(class) = class else { return Ok(Action::Done) };
        if class.provisioner != PROVISIONER || provisioning::waits(&claim, &class) {
            return Ok(Action::Done);
        }
        let failed = |why: &dyn std::fmt::Display| {
            provisioning::report_failure(&self.recorder, &claim, why);
        };
        if let Some(node) = provisioning::selected_node(&claim)
            && self.nodes.cache().get("", node).is_none()
        {
            failed(&ProvisionError::NodeDeleted(node.to_owned()));
            return provisioning::reschedule(&self.client, &claim).await;
        }
        let request = self.settings.with(|config| plan::request(&claim, &class, config));
        let request = match request {
            Ok(Ok(request)) => request,
            // Only another claim, class or ConfigMap helps. The change of the claim or of the
            // ConfigMap wakes this key.
            Ok(Err(why)) => {
                failed(&why);
                return Ok(Action::Done);
            }
            Err(why) => {
                failed(&why);
                return Ok(Action::Done);
            }
        };
        match self.make(&claim, request).await {
            Ok(volume) => {
                provisioning::report_success(&self.recorder, &claim, &volume);
                Ok(Action::Done)
            }
            Err(error) => {
                failed(&error);
                error.outcome()
            }
        }
    }

    /// The Node object, if the node is ready to serve requests.
    fn ready_node(&self, name: &str) -> Result<Node, ProvisionError> {
        let node = self.nodes.get("", name).ok_or_else(|| ProvisionError::NoNode(name.into()))?;
        match nodes::ready(&node) {
            Some("True") => Ok(node),
            _ => Err(ProvisionError::NodeNotReady(name.into())),
        }
    }

    /// A ready node: for a directory that every node reaches.
    fn any_ready_node(&self) -> Result<Node, ProvisionError> {
        provisioning::ready_node(&self.nodes).ok_or(ProvisionError::NoReadyNode)
    }

    /// The ready node that holds the directory of a volume, or reaches it.
    fn node_of(&self, volume: &PersistentVolume) -> Result<Node, ProvisionError> {
        match plan::node_of(volume).ok_or(ProvisionError::UnknownNode)? {
            VolumeNode::Named(name) => self.ready_node(name),
            VolumeNode::Shared(name) => {
                let made_it = name.and_then(|name| self.ready_node(name).ok());
                made_it.map_or_else(|| self.any_ready_node(), Ok)
            }
            VolumeNode::Labelled { key, value } => {
                let has_label = |node: &Node| {
                    let labels = node.metadata.labels.as_ref();
                    labels.and_then(|labels| labels.get(key)).is_some_and(|label| label == value)
                };
                let node = self.nodes.list("").into_iter().find(has_label);
                let name = node.and_then(|node| node.metadata.name);
                self.ready_node(&name.ok_or_else(|| ProvisionError::NoNode(value.to_owned()))?)
            }
        }
    }

    /// Makes the directory on its node, and the volume.
    async fn make(
        &self,
        claim: &PersistentVolumeClaim,
        mut request: VolumeRequest,
    ) -> Result<String, ProvisionError> {
        let node = match request.node.as_str() {
            "" => self.any_ready_node()?,
            name => self.ready_node(name)?,
        };
        request.node = node.metadata.name.clone().unwrap_or_default();
        let labels = node.metadata.labels.as_ref();
        let label = labels.and_then(|l| l.get(&request.affinity_key)).unwrap_or(&request.node);
        let url = directory_url(&request.node, &request.directory);
        let DirectoryMade { path } =
            serde_json::from_slice(&self.kubelet(Method::POST, &url).await?)
                .map_err(Error::from)?;
        if !plan::is_directory(&path, &request.directory) {
            return Err(ProvisionError::BadPath { node: request.node.clone(), path });
        }
        let Volume { name, object } = plan::volume(claim, &request, &path, label);
        provisioning::create_volume(&self.client, &object).await?;
        Ok(name)
    }

    /// One request to the kubelet API of a node.
    async fn kubelet(&self, method: Method, url: &str) -> Result<Bytes, Error> {
        self.apiserver.request(method, url, "application/json", Bytes::new()).await
    }

    /// Removes the directory of a released volume on its node, then the volume. A volume whose
    /// node does not answer stays.
    async fn reclaim(&self, name: &str) -> Result<Action, Error> {
        let Some(volume) = self.volumes.get("", name) else { return Ok(Action::Done) };
        if !plan::is_released(&volume) {
            return Ok(Action::Done);
        }
        if let Err(error) = self.remove(&volume).await {
            let text = error.to_string();
            self.recorder.event(&volume, EventType::Warning, "VolumeFailedDelete", text);
            return error.outcome();
        }
        provisioning::delete_volume(&self.client, volume).await?;
        Ok(Action::Done)
    }

    async fn remove(&self, volume: &PersistentVolume) -> Result<(), ProvisionError> {
        let directory = plan::directory(volume).ok_or(ProvisionError::ForeignPath)?;
        let node = self.node_of(volume)?.metadata.name.unwrap_or_default();
        self.kubelet(Method::DELETE, &directory_url(&node, &directory)).await?;
        Ok(())
    }
}

/// The URL of a volume directory in the kubelet API of its node.
fn directory_url(node: &str, directory: &DirectoryRequest) -> String {
    let storage = directory.storage.as_ref();
    let is_default = storage.is_some_and(|storage| storage.is_default).then(|| "true".to_owned());
    let query: Vec<String> = [
        ("storagePath", storage.map(|storage| storage.path.clone())),
        ("storageDefault", is_default),
        ("folder", directory.folder.clone()),
    ]
    .into_iter()
    .filter_map(|(name, value)| Some(format!("{name}={}", api::uri::escaped(&value?))))
    .collect();
    let query = if query.is_empty() { String::new() } else { format!("?{}", query.join("&")) };
    let name = api::uri::escaped(&directory.name);
    Client::path(&gvr_of::<Node>(), "", node, &format!("proxy/localVolumes/{name}{query}"))
}

#[cfg(test)]
mod tests {
    use api::Object;
    use api::local_path::StorageDirectory;
    use client::Change;
    use serde_json::json;

    use super::*;

    #[test]
    fn the_storage_directory_is_escaped_in_the_url() {
        let storage =
            |path: &str, is_default| Some(StorageDirectory { path: path.to_owned(), is_default });
        for (storage, folder, want) in [
            (None, None, ""),
            (storage("/var/a b", false), None, "?storagePath=%2Fvar%2Fa%20b"),
            (
                storage("/s", true),
                Some("n/c/x".to_owned()),
                "?storagePath=%2Fs&storageDefault=true&folder=n%2Fc%2Fx",
            ),
        ] {
            let name = "pvc-u_n_c".to_owned();
            let url = directory_url("n1", &DirectoryRequest { name, storage, folder });
            assert_eq!(url, format!("/api/v1/nodes/n1/proxy/localVolumes/pvc-u_n_c{want}"));
        }
    }

    #[test]
    fn only_errors_of_the_connection_are_retried() {
        let refused = |code| ProvisionError::from(Error::from(api::Status::failure(code, "", "")));
        for code in [429, 500, 503] {
            assert!(refused(code).outcome().is_err(), "{code}");
        }
        for error in
            [refused(400), refused(404), refused(409), ProvisionError::NodeNotReady("n".into())]
        {
            let text = error.to_string();
            assert!(error.outcome().is_ok(), "{text}");
        }
    }

    #[test]
    fn a_node_that_becomes_ready_wakes_its_volumes() {
        let node = |ready: &str| {
            let value = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"},
                "status": {"conditions": [{"type": "Ready", "status": ready}]}});
            Arc::new(Object::from_value(value).unwrap())
        };
        let update = |old, new| Change::Updated { old: node(old), new: node(new) };
        assert!(became_ready(&update("Unknown", "True")));
        assert!(became_ready(&Change::Added(node("True"))));
        assert!(!became_ready(&update("True", "True")));
        assert!(!became_ready(&update("True", "Unknown")));
        assert!(!became_ready(&Change::Deleted(node("True"))));
    }
}
