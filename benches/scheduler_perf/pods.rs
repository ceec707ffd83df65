//! The operation that creates pods.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use bytes::Bytes;
use futures::{StreamExt, TryStreamExt};
use http::Method;
use serde_json::{Value, json};

use crate::bindings::Selector;
use crate::cluster::{WORKERS, name_of, pods_path};
use crate::executor::Executor;
use crate::operation::CreatePods;
use crate::template::{ObjectTemplate, set};

/// How often upstream counts the scheduled pods it waits for. The interval is part of what is
/// measured: sampling goes on until then.
const WAIT_INTERVAL: Duration = Duration::from_secs(1);
/// How long upstream waits for them.
const WAIT_TIMEOUT: Duration = Duration::from_secs(600);
/// The namespaced kinds of volumes.
const CLAIMS: &str = "persistentvolumeclaims";
/// Pods that are made before other tasks have their turn.
const TURN: usize = 500;

/// The requests for one pod, in their order; the pod itself is the last.
#[derive(Clone)]
struct Batch {
    volumes: Vec<(Method, String, Bytes)>,
    pod: Bytes,
}

/// A createPods with its parameters resolved.
pub(crate) struct Pods<'a> {
    op: &'a CreatePods,
    namespace: String,
    count: usize,
    duration: Option<Duration>,
    template: ObjectTemplate,
    has_signature: bool,
    batch_size: usize,
    volumes: Option<(Value, Value)>,
}

impl<'a> Pods<'a> {
    /// Resolves the parameters of the operation and reads its templates.
    pub(crate) fn resolve(
        executor: &Executor<'_>,
        op_index: usize,
        op: &'a CreatePods,
    ) -> anyhow::Result<Self> {
        let params = executor.params;
        let mut count = params.count(op.count, op.count_param.as_deref())?;
        if let Some(param) = &op.count_multiplier_param {
            count = count.saturating_mul(params.count(0, Some(param))?);
        }
        let is_steady = match &op.steady_state_param {
            Some(param) => params.get(param)?.as_bool().context("steadyState is not a boolean")?,
            None => op.steady_state,
        };
        let duration = params.duration(op.duration.as_deref(), op.duration_param.as_deref())?;
        if is_steady && duration.is_zero() {
            bail!("when creating pods in a steady state, the test duration must be > 0");
        }
        let batch_size =
            params.count(op.signature_batch_size, op.signature_batch_size_param.as_deref())?;
        let template_params = params.resolve(&op.template_params)?;
        let path = op.pod_template_path.as_ref();
        let path = path.or(executor.case.default_pod_template_path.as_ref());
        let template = match path {
            Some(path) => ObjectTemplate::read(&executor.file.resolve(path), &template_params)?,
            None => ObjectTemplate::Fixed(base_pod()),
        };
        let volume = op.persistent_volume_template_path.as_ref();
        let claim = op.persistent_volume_claim_template_path.as_ref();
        let volumes = match volume.zip(claim) {
            Some((volume, claim)) => Some((
                crate::config::read_yaml(&executor.file.resolve(volume))?,
                crate::config::read_yaml(&executor.file.resolve(claim))?,
            )),
            None => None,
        };
        let namespace = op.namespace.clone().unwrap_or_else(|| format!("namespace-{op_index}"));
        let duration = is_steady.then_some(duration);
        let (has_signature, batch_size) = (path.is_some(), batch_size.max(1));
        Ok(Self { op, namespace, count, duration, template, has_signature, batch_size, volumes })
    }

    /// The requests that create pod number `index` of `count`.
    fn batch(&self, index: usize, count: usize) -> anyhow::Result<Batch> {
        let mut pod = self.template.object(index, count)?;
        set(&mut pod, &["apiVersion"], "v1".into())?;
        set(&mut pod, &["kind"], "Pod".into())?;
        if self.has_signature {
            let label = format!("signature-label-{}", index / self.batch_size);
            set(&mut pod, &["metadata", "labels", "signature"], label.into())?;
        }
        let mut volumes = Vec::new();
        if let Some((volume, claim)) = &self.volumes {
            volumes = volume_requests(volume, claim, &self.namespace, index)?;
            let source = json!([{
                "name": "vol", "persistentVolumeClaim": {"claimName": format!("pvc-{index}")},
            }]);
            set(&mut pod, &["spec", "volumes"], source)?;
        }
        Ok(Batch { volumes, pod: serde_json::to_vec(&pod)?.into() })
    }

    /// Creates the pods and waits until they are scheduled, as the operation says.
    pub(crate) async fn run(&self, executor: &Executor<'_>) -> anyhow::Result<()> {
        super::nodes::ensure_namespace(executor, &self.namespace).await?;
        // Made before anything is measured, so that making them is not part of it.
        let prepared = if self.duration.is_some() { 0 } else { self.count };
        let mut batches = Vec::with_capacity(prepared);
        for index in 0..prepared {
            batches.push(self.batch(index, self.count)?);
            if index % TURN == 0 {
                tokio::task::yield_now().await;
            }
        }
        if self.op.collect_metrics {
            let namespaces = [self.namespace.clone()];
            executor.start_collecting(&self.namespace, &namespaces, &BTreeMap::new()).await?;
        }
        match self.duration {
            Some(duration) => self.run_steadily(executor, duration).await?,
            None => {
                create_all(executor, &self.namespace, batches).await?;
                if self.op.skip_wait_to_completion {
                    executor.expect_scheduled(&self.namespace, self.count);
                } else {
                    let none = Selector::new();
                    wait_until_scheduled(executor, &self.namespace, &none, self.count).await?;
                }
            }
        }
        if self.op.collect_metrics {
            executor.stop_collecting().await?;
        }
        Ok(())
    }

    /// Keeps `count` pods waiting for the scheduler: one that is scheduled is deleted, and another
    /// is created. Upstream's `createPodsSteadily`.
    async fn run_steadily(
        &self,
        executor: &Executor<'_>,
        duration: Duration,
    ) -> anyhow::Result<()> {
        let mut names = executor.bindings.follow(&self.namespace, self.count.saturating_mul(2));
        let mut seed = Vec::with_capacity(self.count);
        for index in 0..self.count {
            seed.push(self.batch(index, self.count)?);
        }
        let another = self.batch(0, 1)?;
        let mut scheduled = 0_u64;
        let played = async {
            create_all(executor, &self.namespace, seed).await?;
            let options =
                Bytes::from_static(br#"{"gracePeriodSeconds":0,"propagationPolicy":"Background"}"#);
            while let Some(name) = names.recv().await {
                scheduled += 1;
                let path = format!("{}/{name}", pods_path(&self.namespace));
                executor.cluster.must(Method::DELETE, &path, options.clone()).await?;
                create_all(executor, &self.namespace, vec![another.clone()]).await?;
            }
            Ok::<(), anyhow::Error>(())
        };
        let ended = tokio::time::timeout(duration, played).await;
        executor.bindings.unfollow();
        if let Ok(result) = ended {
            result?;
        }
        if scheduled == 0 {
            bail!(
                "no pod at all got scheduled, either because of a problem or because the test \
                 interval was too small"
            );
        }
        Ok(())
    }
}

/// Upstream's `makeBasePod`.
fn base_pod() -> Value {
    let resources = json!({"cpu": "100m", "memory": "500Mi"});
    json!({
        "metadata": {"generateName": "pod-"},
        "spec": {"containers": [{
            "name": "pause", "image": "registry.k8s.io/pause:3.10.2",
            "ports": [{"containerPort": 80}],
            "resources": {"limits": resources, "requests": resources},
        }]},
    })
}

/// The requests for a volume and its claim, bound to each other. Upstream's
/// `CreatePodWithPersistentVolume`.
fn volume_requests(
    volume: &Value,
    claim: &Value,
    namespace: &str,
    index: usize,
) -> anyhow::Result<Vec<(Method, String, Bytes)>> {
    let (claim_name, volume_name) = (format!("pvc-{index}"), format!("{namespace}-vol-{index}"));
    let (mut claim, mut volume) = (claim.clone(), volume.clone());
    set(&mut claim, &["metadata", "name"], claim_name.as_str().into())?;
    set(&mut claim, &["spec", "volumeName"], volume_name.as_str().into())?;
    set(&mut claim, &["status", "phase"], "Bound".into())?;
    set(&mut volume, &["metadata", "name"], volume_name.as_str().into())?;
    let reference = json!({
        "kind": "PersistentVolumeClaim", "namespace": namespace, "name": claim_name,
        "apiVersion": "v1",
    });
    set(&mut volume, &["spec", "claimRef"], reference)?;
    set(&mut volume, &["status", "phase"], "Bound".into())?;
    if volume.pointer("/spec/csi").is_some() {
        set(&mut volume, &["spec", "csi", "volumeHandle"], volume_name.as_str().into())?;
    } else if volume.pointer("/spec/awsElasticBlockStore").is_some() {
        let id = format!("vol-{index}");
        set(&mut volume, &["spec", "awsElasticBlockStore", "volumeID"], id.into())?;
    }
    let (claim, volume) = (serde_json::to_vec(&claim)?, serde_json::to_vec(&volume)?);
    let (claim, volume) = (Bytes::from(claim), Bytes::from(volume));
    let claims = format!("/api/v1/namespaces/{namespace}/{CLAIMS}");
    let volumes = "/api/v1/persistentvolumes".to_owned();
    Ok(vec![
        (Method::POST, claims.clone(), claim.clone()),
        (Method::PUT, format!("{claims}/{claim_name}/status"), claim),
        (Method::POST, volumes.clone(), volume.clone()),
        (Method::PUT, format!("{volumes}/{volume_name}/status"), volume),
    ])
}

/// Creates pods with upstream's number of workers and notes when each request was sent.
async fn create_all(
    executor: &Executor<'_>,
    namespace: &str,
    batches: Vec<Batch>,
) -> anyhow::Result<()> {
    let path = pods_path(namespace);
    let path = path.as_str();
    futures::stream::iter(batches)
        .map(Ok)
        .try_for_each_concurrent(WORKERS, |batch| async move {
            for (method, path, body) in batch.volumes {
                if method == Method::POST {
                    executor.cluster.create(&path, body).await?;
                } else {
                    executor.cluster.must(method, &path, body).await?;
                }
            }
            let sent = Instant::now();
            let answer = executor.cluster.create(path, batch.pod).await?;
            let name = format!("{namespace}/{}", name_of(&answer)?);
            executor.created.borrow_mut().insert(name, sent);
            Ok(())
        })
        .await
}

/// Waits as upstream does: counts at once, and then each second.
struct Wait {
    begin: Instant,
    ticks: tokio::time::Interval,
    limit: Duration,
}

impl Wait {
    fn new(executor: &Executor<'_>) -> Self {
        Self {
            begin: Instant::now(),
            ticks: tokio::time::interval(WAIT_INTERVAL),
            limit: executor.wait_timeout.min(WAIT_TIMEOUT),
        }
    }

    fn is_over(&self) -> bool {
        self.begin.elapsed() > self.limit
    }
}

/// Waits until so many pods have a node.
pub(crate) async fn wait_until_scheduled(
    executor: &Executor<'_>,
    namespace: &str,
    selector: &Selector,
    want: usize,
) -> anyhow::Result<()> {
    let mut wait = Wait::new(executor);
    loop {
        wait.ticks.tick().await;
        let scheduled = executor.bindings.scheduled(namespace, selector)?;
        if scheduled >= want {
            return Ok(());
        }
        if wait.is_over() {
            bail!(
                "{scheduled} of {want} pods in namespace {namespace} were scheduled in {:.0?}{}",
                wait.begin.elapsed(),
                executor.why_pending(namespace).await
            );
        }
    }
}

/// Waits until the scheduler has tried each pod.
pub(crate) async fn wait_until_attempted(
    executor: &Executor<'_>,
    namespace: &str,
    selector: &Selector,
    want: usize,
) -> anyhow::Result<()> {
    let mut wait = Wait::new(executor);
    loop {
        wait.ticks.tick().await;
        let pods = executor.cluster.list(&pods_path(namespace), &select(selector)).await?;
        let attempted = pods.iter().filter(|pod| is_attempted(pod)).count();
        if attempted >= want {
            return Ok(());
        }
        if wait.is_over() {
            bail!("{attempted} of {want} pods in namespace {namespace} were attempted");
        }
    }
}

/// The part of a query that selects labels.
pub(crate) fn select(selector: &Selector) -> String {
    if selector.is_empty() {
        return String::new();
    }
    let terms: Vec<String> = selector
        .iter()
        .map(|(key, value)| format!("{key}%3D{value}").replace('/', "%2F"))
        .collect();
    format!("&labelSelector={}", terms.join("%2C"))
}

/// Whether a pod has a node, or the condition that the scheduler, or a gate, sets.
fn is_attempted(pod: &Value) -> bool {
    let conditions = pod.pointer("/status/conditions").and_then(Value::as_array);
    pod.pointer("/spec/nodeName").is_some()
        || conditions
            .is_some_and(|all| all.iter().any(|condition| condition["type"] == "PodScheduled"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn volumes_and_claims_are_bound_to_each_other() {
        let (volume, claim) = (json!({"spec": {"csi": {"driver": "d"}}}), json!({}));
        let requests = volume_requests(&volume, &claim, "ns", 4).unwrap();
        let object = |at: usize| -> Value { serde_json::from_slice(&requests[at].2).unwrap() };
        assert_eq!(object(0)["spec"]["volumeName"], "ns-vol-4");
        assert_eq!(object(2)["metadata"]["name"], "ns-vol-4");
        assert_eq!(object(2)["spec"]["claimRef"]["name"], "pvc-4");
        assert_eq!(object(2)["spec"]["csi"]["volumeHandle"], "ns-vol-4");
        assert_eq!(requests[1].1, "/api/v1/namespaces/ns/persistentvolumeclaims/pvc-4/status");
        assert_eq!(requests[3].1, "/api/v1/persistentvolumes/ns-vol-4/status");
    }

    #[test]
    fn pods_are_attempted_with_a_node_or_a_condition() {
        assert!(is_attempted(&json!({"spec": {"nodeName": "n"}})));
        let tried = json!({"spec": {}, "status": {"conditions": [{"type": "PodScheduled"}]}});
        assert!(is_attempted(&tried));
        assert!(!is_attempted(&json!({"spec": {}, "status": {"conditions": [{"type": "Ready"}]}})));
    }

    #[test]
    fn selectors_are_escaped() {
        let selector = Selector::from([("a/b".to_owned(), "c".to_owned())]);
        assert_eq!(select(&selector), "&labelSelector=a%2Fb%3Dc");
        assert_eq!(select(&Selector::new()), "");
    }
}
