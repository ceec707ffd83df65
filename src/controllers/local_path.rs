//! The local-path provisioner: claims of its class become folders of the node that their pod was given.

mod plan;

use std::path::PathBuf;
use std::sync::Arc;

use api::k8s::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim};
use api::k8s::api::storage::v1::StorageClass;
use api::{Object, Typed};
use client::events::EventType;
use client::informer::decode;
use client::{Action, Client, DeleteOptions, Error, EventRecorder, Informer};
use serde_json::json;

use self::plan::{Asked, PROVISIONER, Volume};
use crate::context::Context;
use crate::keyed::{Key, Keyed, settled};

/// Name of the class that is made at start when there is none.
const CLASS: &str = "local-path";
/// Everybody may write, since nobody knows as whom a pod runs (the helper pod of the original does the same).
const MODE: u32 = 0o777;

struct Provisioner {
    client: Client,
    recorder: EventRecorder,
    claims: Informer<PersistentVolumeClaim>,
    volumes: Informer<PersistentVolume>,
    classes: Informer<StorageClass>,
    nodes: Informer<Node>,
    /// Where volumes are made.
    root: PathBuf,
    /// The node of this process, whose folders it can make.
    here: Option<String>,
}

/// Starts the controller. Keys with a namespace are claims, those without volumes; the empty one is the class.
pub(crate) fn start(context: &Context) {
    let client = context.client("local-path-provisioner");
    let recorder = context.recorder(&client, PROVISIONER);
    let informers = &context.informers;
    let (claims, volumes, classes, nodes) = (
        informers.of::<PersistentVolumeClaim>(),
        informers.of::<PersistentVolume>(),
        informers.of::<StorageClass>(),
        informers.of::<Node>(),
    );
    let mut keyed = Keyed::new();
    keyed.wakes(&claims, |change| {
        let ours =
            decode::<PersistentVolumeClaim>(change.object()).is_some_and(|c| plan::is_ours(&c));
        ours.then(|| key(change.object())).into_iter().collect()
    });
    keyed.wakes(&volumes, |change| {
        let released =
            decode::<PersistentVolume>(change.object()).is_some_and(|v| plan::is_released(&v));
        released.then(|| key(change.object())).into_iter().collect()
    });
    keyed.needs(&classes);
    keyed.needs(&nodes);
    keyed.queue.add((String::new(), String::new()));
    let (root, here) =
        (PathBuf::from(&context.config.local_storage_path), context.config.node_name.clone());
    let provisioner =
        Arc::new(Provisioner { client, recorder, claims, volumes, classes, nodes, root, here });
    keyed.run(&context.tasks, "local-path-provisioner", 2, move |(namespace, name)| {
        let provisioner = Arc::clone(&provisioner);
        async move {
            match (namespace.as_str(), name.as_str()) {
                ("", "") => provisioner.ensure_class().await,
                ("", volume) => provisioner.reclaim(volume).await,
                (namespace, claim) => provisioner.provision(namespace, claim).await,
            }
        }
    });
}

fn key(object: &Object) -> Key {
    (object.key.namespace.to_string(), object.key.name.to_string())
}

impl Provisioner {
    /// Makes the default class once per start; what an administrator made of it stays.
    async fn ensure_class(&self) -> Result<Action, Error> {
        if self.classes.cache().get("", CLASS).is_some() {
            return Ok(Action::Done);
        }
        let class: StorageClass = serde_json::from_value(json!({
            "metadata": {
                "name": CLASS,
                "annotations": {
                    "defaultVolumeType": "local",
                    "storageclass.kubernetes.io/is-default-class": "true",
                },
            },
            "provisioner": PROVISIONER,
            "reclaimPolicy": "Delete",
            "volumeBindingMode": "WaitForFirstConsumer",
        }))?;
        match self.client.create("", &class).await {
            Err(error) if error.is_already_exists() => Ok(Action::Done),
            other => other.map(|_| Action::Done),
        }
    }

    async fn provision(&self, namespace: &str, name: &str) -> Result<Action, Error> {
        let Some(claim) = self.claims.get(namespace, name) else { return Ok(Action::Done) };
        if !plan::is_ours(&claim) || claim.metadata.deletion_timestamp.is_some() {
            return Ok(Action::Done);
        }
        let class_name = plan::class_of(&claim);
        let Some(class) = self.classes.get("", class_name) else { return Ok(Action::Done) };
        if class.provisioner != PROVISIONER || plan::waits(&claim, &class) {
            return Ok(Action::Done);
        }
        let volume = match plan::ask(&claim, &class, &self.root) {
            Ok(asked) => self.make(&claim, asked).await?,
            Err(why) => Err(why),
        };
        match volume {
            Ok(volume) => {
                let text = format!("Successfully provisioned volume {volume}");
                self.recorder.event(&claim, EventType::Normal, "ProvisioningSucceeded", text);
            }
            // Only another claim, class or node mends it, and the claim's change wakes us.
            Err(why) => {
                let text =
                    format!("failed to provision volume with StorageClass {class_name:?}: {why}");
                self.recorder.event(&claim, EventType::Warning, "ProvisioningFailed", text);
            }
        }
        Ok(Action::Done)
    }

    /// Makes the folder and its volume; the inner error is for the user.
    async fn make(
        &self,
        claim: &PersistentVolumeClaim,
        asked: Asked,
    ) -> Result<Result<String, String>, Error> {
        if self.here.as_deref() != Some(&asked.node) {
            let node = &asked.node;
            return Ok(Err(format!(
                "node {node:?} is not the node of this server; volumes on other nodes are not supported yet"
            )));
        }
        let host = self
            .nodes
            .cache()
            .get("", &asked.node)
            .and_then(|n| n.label("kubernetes.io/hostname").map(str::to_owned));
        let host = host.unwrap_or_else(|| asked.node.clone());
        let path = asked.path.clone();
        let made = base::tasks::blocking(move || base::fs::create_dir(&path, MODE)).await;
        match made {
            Ok(Ok(())) => {}
            Ok(Err(error)) => return Ok(Err(error.to_string())),
            Err(error) => return Ok(Err(error.to_string())),
        }
        let Volume { name, object } = plan::volume(claim, &asked, &host);
        let object = PersistentVolume::from_value(&object)?;
        match self.client.create("", &object).await {
            Err(error) if error.is_already_exists() => {}
            other => drop(other?),
        }
        Ok(Ok(name))
    }

    /// Removes the folder of a released volume, then the volume.
    async fn reclaim(&self, name: &str) -> Result<Action, Error> {
        let Some(volume) = self.volumes.get("", name) else { return Ok(Action::Done) };
        if !plan::is_released(&volume) {
            return Ok(Action::Done);
        }
        let fail = |why: String| {
            self.recorder.event(&volume, EventType::Warning, "VolumeFailedDelete", why);
        };
        let node = plan::node_of(&volume);
        if node.is_none() || node != self.here.as_deref() {
            fail(format!(
                "the volume lies on node {:?}, which is not the node of this server; remove its folder and the volume by hand",
                node.unwrap_or_default()
            ));
            return Ok(Action::Done);
        }
        let Some(path) = plan::folder(&volume, &self.root) else {
            fail(format!("the volume's path is no folder of its own in {}", self.root.display()));
            return Ok(Action::Done);
        };
        let removed = base::tasks::blocking(move || base::fs::remove_dir(&path)).await;
        let removed = removed.map_err(|e| e.to_string()).and_then(|r| r.map_err(|e| e.to_string()));
        if let Err(why) = removed {
            fail(why.clone());
            return Err(Error::Transport(why));
        }
        let options =
            DeleteOptions { uid: volume.metadata.uid.clone(), ..DeleteOptions::default() };
        settled(self.client.delete::<PersistentVolume>("", name, &options).await)?;
        Ok(Action::Done)
    }
}
