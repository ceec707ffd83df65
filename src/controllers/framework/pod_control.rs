//! Makes and deletes pods for a controller, with the events that users know.

use std::collections::BTreeMap;

use api::k8s::api::core::v1::{Pod, PodTemplateSpec};
use api::k8s::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use client::events::EventType;
use client::{Client, DeleteOptions, Error, EventRecorder, Kind};

/// Longest prefix of a generated name (`ValidatePodName` needs 253; the suffix has 5).
const PREFIX_MAX: usize = 248;

/// Creates and deletes pods of one controller.
#[derive(Debug, Clone)]
pub(crate) struct PodControl {
    pub(crate) client: Client,
    pub(crate) recorder: EventRecorder,
}

/// A pod from a template: labels, annotations, finalizers and spec of the template, named after the
/// owner.
pub(crate) fn pod_from_template(
    template: &PodTemplateSpec,
    owner_name: &str,
    namespace: &str,
    owner: OwnerReference,
) -> Pod {
    let meta = template.metadata.clone().unwrap_or_default();
    let mut prefix = format!("{owner_name}-");
    if prefix.len() > PREFIX_MAX {
        owner_name.clone_into(&mut prefix);
    }
    Pod {
        metadata: ObjectMeta {
            generate_name: Some(prefix),
            namespace: Some(namespace.to_owned()),
            labels: meta.labels.filter(|l: &BTreeMap<_, _>| !l.is_empty()),
            annotations: meta.annotations.filter(|a| !a.is_empty()),
            finalizers: meta.finalizers,
            owner_references: Some(vec![owner]),
            ..ObjectMeta::default()
        },
        spec: template.spec.clone(),
        status: None,
    }
}

impl PodControl {
    /// Creates a pod and records an event on the owner, except while the namespace is being
    /// deleted.
    pub(crate) async fn create<K: Kind>(&self, owner: &K, pod: &Pod) -> Result<Pod, Error> {
        let namespace = owner.metadata().namespace.as_deref().unwrap_or_default();
        match self.client.create(namespace, pod).await {
            Ok(created) => {
                let name = created.metadata.name.as_deref().unwrap_or_default();
                self.recorder.event(
                    owner,
                    EventType::Normal,
                    "SuccessfulCreate",
                    format!("Created pod: {name}"),
                );
                Ok(created)
            }
            Err(error) => {
                if !error.is_namespace_terminating() {
                    self.recorder.event(
                        owner,
                        EventType::Warning,
                        "FailedCreate",
                        format!("Error creating: {error}"),
                    );
                }
                Err(error)
            }
        }
    }

    /// Deletes a pod; one that is gone already counts as success.
    pub(crate) async fn delete<K: Kind>(&self, owner: &K, pod: &Pod) -> Result<(), Error> {
        let meta = &pod.metadata;
        let (namespace, name) = (
            meta.namespace.as_deref().unwrap_or_default(),
            meta.name.as_deref().unwrap_or_default(),
        );
        let options = DeleteOptions::with_uid(meta.uid.as_deref().unwrap_or_default());
        match self.client.delete::<Pod>(namespace, name, &options).await {
            Ok(()) => {
                self.recorder.event(
                    owner,
                    EventType::Normal,
                    "SuccessfulDelete",
                    format!("Deleted pod: {name}"),
                );
                Ok(())
            }
            Err(error) if error.is_not_found() || error.is_conflict() => Ok(()),
            Err(error) => {
                self.recorder.event(
                    owner,
                    EventType::Warning,
                    "FailedDelete",
                    format!("Error deleting: {error}"),
                );
                Err(error)
            }
        }
    }
}
