//! Starts the tasks of static pods.

use std::sync::Arc;

use api::k8s::api::core::v1 as core;
use base::Kind;
use client::{Client, Informer};
use tokio::sync::watch;

use crate::context::Node;
use crate::pods::pod::Pod;
use crate::static_pods::manifests::{self, ManifestReader};
use crate::static_pods::sources::{StaticPodPublisher, StaticPods};
use crate::static_pods::{mirror, url};

/// Starts the tasks that read static pods and keep their mirror pods. Returns the static pods, and
/// where the pod manager publishes those that run here.
pub(super) fn spawn(
    node: &Arc<Node>,
    client: Client,
    pods: &Informer<core::Pod>,
) -> (watch::Receiver<StaticPods>, watch::Sender<Vec<Arc<Pod>>>) {
    let (config, shutdown) = (&node.identity.config, node.tasks.shutdown());
    let (name, problems) = (&config.node_name, node.tasks.problems());
    let url = config.static_pod_url.clone();
    let (publisher, statics) = StaticPodPublisher::new(url.is_some(), problems.clone());
    let folders = ManifestReader::new(config.manifest_dirs.clone(), name.clone());
    let read = manifests::run(folders, publisher.clone(), problems.clone(), shutdown.clone());
    node.tasks.spawn(Kind::Critical, "static-pods", read);
    if let Some(url) = url {
        let read = url::run(url, name.clone(), publisher, problems.clone(), shutdown.clone());
        node.tasks.spawn(Kind::Critical, "static-pod-url", read);
    }
    let (running, receiver) = watch::channel(Vec::new());
    let sources = mirror::Sources { wanted: statics.clone(), running: receiver };
    let mirrors = mirror::run(client, name.clone(), pods.clone(), sources, shutdown.clone());
    node.tasks.spawn(Kind::Critical, "mirror-pods", mirrors);
    (statics, running)
}
