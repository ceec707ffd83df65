//! Mirror pods: the representation of static pods in the API.

use std::sync::Arc;
use std::time::Duration;

use api::k8s::api::core::v1 as core;
use api::{Object, ObjectKey};
use base::{Backoff, Shutdown};
use client::{Client, DeleteOptions, Informer, owner_reference};
use tokio::sync::{Notify, watch};

use crate::pods::pod::{HASH_ANNOTATION, MIRROR_ANNOTATION, Pod};
use crate::static_pods::sources::StaticPods;

/// A mirror pod in the API.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MirrorPod {
    pub(crate) key: ObjectKey,
    pub(crate) uid: Arc<str>,
    /// Hash of its static pod.
    pub(crate) hash: String,
    deleted: bool,
}

impl MirrorPod {
    /// Returns `None` if the pod is no mirror pod.
    pub(crate) fn from_object(object: &Object) -> Option<Self> {
        if !may_be_mirror(object) {
            return None;
        }
        let pod = Pod::from_object(object)?;
        let hash = pod.annotations()?.get(MIRROR_ANNOTATION)?.clone();
        let deleted = pod.is_deleted();
        Some(Self { key: pod.key, uid: pod.uid, hash, deleted })
    }

    /// Whether this is the mirror of this version of the pod.
    pub(crate) fn mirrors(&self, pod: &Pod) -> bool {
        self.key == pod.key && Some(self.hash.as_str()) == hash(pod)
    }
}

fn hash(pod: &Pod) -> Option<&str> {
    pod.annotations()?.get(HASH_ANNOTATION).map(String::as_str)
}

/// A check without decoding, as most pods are no mirror pods.
fn may_be_mirror(object: &Object) -> bool {
    object.raw().windows(MIRROR_ANNOTATION.len()).any(|w| w == MIRROR_ANNOTATION.as_bytes())
}

#[derive(Debug)]
enum Action {
    Create(Arc<Pod>),
    Delete(MirrorPod),
}

/// The static pods that mirror pods represent.
#[derive(Debug)]
pub(crate) struct Sources {
    /// Those of the manifests.
    pub(crate) wanted: watch::Receiver<StaticPods>,
    /// Those that run here, also while they end.
    pub(crate) running: watch::Receiver<Vec<Arc<Pod>>>,
}

/// Returns the actions after which each static pod has one mirror pod of its current content. A
/// mirror pod of earlier content stays until its pod has ended here. Unless `is_complete`, a pod
/// without a manifest may be in a source that was not read.
fn actions(
    pods: &[Arc<Pod>],
    is_complete: bool,
    running: &[Arc<Pod>],
    mirrors: &[MirrorPod],
) -> Vec<Action> {
    let is_unknown = |m: &MirrorPod| !is_complete && !pods.iter().any(|p| p.key == m.key);
    let has_pod = |m: &MirrorPod| pods.iter().chain(running).any(|p| m.mirrors(p));
    let is_stale = |m: &MirrorPod| !is_unknown(m) && !has_pod(m);
    let stale = mirrors.iter().filter(|m| m.deleted || is_stale(m)).cloned();
    let missing = pods.iter().filter(|p| !mirrors.iter().any(|m| m.key == p.key)).cloned();
    stale.map(Action::Delete).chain(missing.map(Action::Create)).collect()
}

/// Maintains the mirror pods until shutdown.
pub(crate) async fn run(
    client: Client,
    node_name: String,
    informer: Informer<core::Pod>,
    mut sources: Sources,
    shutdown: Shutdown,
) -> Result<(), std::convert::Infallible> {
    let changed = Arc::new(Notify::new());
    let wake = Arc::clone(&changed);
    informer.on_change(move |change| {
        if may_be_mirror(change.object()) {
            wake.notify_one();
        }
    });
    tokio::select! {
        () = shutdown.requested() => return Ok(()),
        () = informer.synced() => {}
    }
    let mut backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(30));
    loop {
        let (wanted, is_complete) = {
            let current = sources.wanted.borrow_and_update();
            (current.pods(), current.is_complete())
        };
        let running = sources.running.borrow_and_update().clone();
        let mirrors: Vec<MirrorPod> =
            informer.cache().list("").iter().filter_map(|o| MirrorPod::from_object(o)).collect();
        let mut failed = false;
        for action in actions(&wanted, is_complete, &running, &mirrors) {
            if let Err(error) = apply(&client, &node_name, &action).await {
                failed = true;
                tracing::debug!(?action, %error, "cannot update mirror pod, retrying");
            }
        }
        if failed {
            if !backoff.wait_or(&shutdown, client.transport().back()).await {
                return Ok(());
            }
            continue;
        }
        backoff.reset();
        tokio::select! {
            () = shutdown.requested() => return Ok(()),
            () = changed.notified() => {}
            is_open = sources.wanted.changed() => if is_open.is_err() { return Ok(()) },
            is_open = sources.running.changed() => if is_open.is_err() { return Ok(()) },
        }
    }
}

async fn apply(client: &Client, node_name: &str, action: &Action) -> Result<(), client::Error> {
    match action {
        Action::Delete(mirror) => {
            let options = DeleteOptions {
                grace_period_seconds: Some(0),
                ..DeleteOptions::with_uid(&mirror.uid)
            };
            let (namespace, name) = (&mirror.key.namespace, &mirror.key.name);
            match client.delete::<core::Pod>(namespace, name, &options).await {
                Err(error) if !error.is_not_found() && !error.is_conflict() => Err(error),
                _ => Ok(()),
            }
        }
        Action::Create(pod) => {
            let owner: core::Node = client.get("", node_name).await?;
            let mut owner = owner_reference(&owner);
            owner.block_owner_deletion = None;
            let mut mirror = pod.object.clone();
            mirror.status = None;
            mirror.metadata.uid = None;
            mirror.metadata.owner_references = Some(vec![owner]);
            if let Some(hash) = hash(pod) {
                let annotations = mirror.metadata.annotations.get_or_insert_default();
                annotations.insert(MIRROR_ANNOTATION.to_owned(), hash.to_owned());
            }
            match client.create(pod.namespace(), &mirror).await {
                Err(error) if !error.is_already_exists() => Err(error),
                _ => Ok(()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_static_pod_has_one_mirror_pod_of_its_current_content() {
        let mut pod = crate::pods::pod::tests::pod(serde_json::json!({"containers": []}));
        pod.object.metadata.annotations = Some([(HASH_ANNOTATION.into(), "h".into())].into());
        let pods = [Arc::new(pod)];
        let mirror = |hash: &str, deleted| MirrorPod {
            key: pods[0].key.clone(),
            uid: "m".into(),
            hash: hash.into(),
            deleted,
        };
        let does = |pods: &[Arc<Pod>], mirrors: &[MirrorPod]| -> String {
            let letter = |a: &Action| match a {
                Action::Create(_) => 'c',
                Action::Delete(_) => 'd',
            };
            actions(pods, true, &[], mirrors).iter().map(letter).collect()
        };
        assert_eq!(does(&pods, &[]), "c");
        assert_eq!(does(&pods, &[mirror("h", false)]), "");
        // Recreated once the old one is deleted.
        assert_eq!(does(&pods, &[mirror("old", false)]), "d");
        assert_eq!(does(&pods, &[mirror("h", true)]), "d");
        assert_eq!(does(&[], &[mirror("h", false)]), "d");
        // Its source may not have been read.
        assert!(actions(&[], false, &[], &[mirror("h", false)]).is_empty());
        assert_eq!(actions(&pods, false, &[], &[mirror("old", false)]).len(), 1);
        // The pod ends within its grace period.
        assert!(actions(&[], true, &pods, &[mirror("h", false)]).is_empty());
        assert_eq!(actions(&[], true, &pods, &[mirror("old", false)]).len(), 1);
    }
}
