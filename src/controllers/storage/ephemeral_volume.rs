//! Makes the claims of pods' ephemeral volumes; the pod owns them, so they go with it.

use std::sync::Arc;

use api::k8s::api::core::v1::{PersistentVolumeClaim, Pod, Volume};
use api::k8s::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use client::events::EventType;
use client::{Action, Change, Client, Error, EventRecorder, Informer};

use crate::framework::context::Context;
use crate::framework::keyed::Keyed;
use crate::storage::metrics;
use crate::storage::pod_claims;
use crate::storage::pod_claims::{BY_CLAIM, ephemeral_name};

struct Controller {
    client: Client,
    recorder: EventRecorder,
    pods: Informer<Pod>,
    claims: Informer<PersistentVolumeClaim>,
}

/// Starts the controller.
pub(crate) fn start(context: &Context) {
    let client = context.client("ephemeral-volume-controller");
    let recorder = context.recorder(&client, "ephemeral_volume");
    let (pods, claims) =
        (context.informers.of::<Pod>(), context.informers.of::<PersistentVolumeClaim>());
    pod_claims::index_pods(&pods);
    let mut keyed = Keyed::new();
    // A pod's volumes never change.
    keyed.watches(&pods, |change| match change {
        Change::Added(pod) if !pod_claims::claim_names(pod).is_empty() => {
            vec![(pod.key.namespace.to_string(), pod.key.name.to_string())]
        }
        Change::Added(_) | Change::Updated { .. } | Change::Deleted(_) => Vec::new(),
    });
    let users = pods.clone();
    keyed.watches(&claims, move |change| match change {
        Change::Deleted(claim) => {
            let found = users.cache().by_index(BY_CLAIM, &claim.key.to_string());
            found.iter().map(|p| (p.key.namespace.to_string(), p.key.name.to_string())).collect()
        }
        Change::Added(_) | Change::Updated { .. } => Vec::new(),
    });
    let controller = Arc::new(Controller { client, recorder, pods, claims });
    keyed.run(&context.tasks, "ephemeral-volume-controller", 5, move |(namespace, name)| {
        let controller = Arc::clone(&controller);
        async move { controller.reconcile(&namespace, &name).await }
    });
}

/// The claim of one volume.
fn claim_for(pod: &Pod, volume: &Volume) -> Option<PersistentVolumeClaim> {
    let template = volume.ephemeral.as_ref()?.volume_claim_template.as_ref()?;
    let meta = template.metadata.clone().unwrap_or_default();
    let name = pod.metadata.name.clone().unwrap_or_default();
    Some(PersistentVolumeClaim {
        metadata: ObjectMeta {
            name: Some(ephemeral_name(&name, &volume.name)),
            namespace: pod.metadata.namespace.clone(),
            annotations: meta.annotations,
            labels: meta.labels,
            owner_references: Some(vec![OwnerReference {
                api_version: "v1".into(),
                kind: "Pod".into(),
                name,
                uid: pod.metadata.uid.clone().unwrap_or_default(),
                controller: Some(true),
                block_owner_deletion: Some(true),
            }]),
            ..ObjectMeta::default()
        },
        spec: Some(template.spec.clone()),
        status: None,
    })
}

impl Controller {
    async fn reconcile(&self, namespace: &str, name: &str) -> Result<Action, Error> {
        let Some(pod) = self.pods.get(namespace, name) else { return Ok(Action::Done) };
        if pod.metadata.deletion_timestamp.is_some() {
            return Ok(Action::Done);
        }
        let volumes = pod.spec.as_ref().and_then(|s| s.volumes.as_deref()).unwrap_or_default();
        for volume in volumes {
            let Some(claim) = claim_for(&pod, volume) else { continue };
            let claim_name = claim.metadata.name.clone().unwrap_or_default();
            let foreign = match self.claims.get(namespace, &claim_name) {
                Some(have) if pod_claims::is_for(&pod, &have) => continue,
                Some(_) => Some(format!(
                    "PVC {namespace}/{claim_name} was not created for pod {namespace}/{name} (pod \
                        is not owner)"
                )),
                None => None,
            };
            let (text, error) = match foreign {
                // The deletion of the conflicting claim reconciles the pod.
                Some(text) => (text, None),
                None => {
                    let created = self.client.create(namespace, &claim).await;
                    metrics::ephemeral_claim_requested(created.is_ok());
                    match created {
                        Ok(_) => continue,
                        Err(error) if error.is_namespace_terminating() => return Ok(Action::Done),
                        Err(error) => (format!("create PVC {claim_name}: {error}"), Some(error)),
                    }
                }
            };
            let text = format!("ephemeral volume {}: {text}", volume.name);
            self.recorder.event(&pod, EventType::Warning, "FailedBinding", text);
            if let Some(error) = error {
                return Err(error);
            }
        }
        Ok(Action::Done)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_claim_belongs_to_the_pod() {
        let pod: Pod = serde_json::from_value(json!({"metadata": {"name": "p", "namespace": "n",
            "uid": "u"}, "spec": {"containers": [],
            "volumes": [{"name": "v", "ephemeral": {"volumeClaimTemplate": {
                "metadata": {"labels": {"a": "b"}},
                "spec": {"accessModes": ["ReadWriteOnce"],
                    "resources": {"requests": {"storage": "1Gi"}}}}}},
                    {"name": "w", "emptyDir": {}}]}}))
        .unwrap();
        let volumes = pod.spec.as_ref().unwrap().volumes.as_ref().unwrap();
        let claim = claim_for(&pod, &volumes[0]).unwrap();
        assert_eq!(claim.metadata.name.as_deref(), Some("p-v"));
        assert!(pod_claims::is_for(&pod, &claim));
        assert_eq!(claim.metadata.labels.unwrap()["a"], "b");
        assert!(claim_for(&pod, &volumes[1]).is_none());
    }
}
