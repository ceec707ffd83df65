//! Operations that go on while others run: churn and deletions.

use std::rc::Rc;
use std::time::Duration;

use anyhow::Context;
use bytes::Bytes;
use http::Method;
use serde_json::Value;

use crate::any::{every, ticker};
use crate::cluster::{Cluster, name_of, pods_path};
use crate::executor::Executor;
use crate::operation::{Churn, ChurnMode, DeletePods};
use crate::pods::select;
use crate::template;

/// Between two rounds of churn, unless the operation says otherwise.
const CHURN_INTERVAL: u64 = 500;

/// What churn creates and deletes.
struct Churned {
    path: String,
    body: Bytes,
    /// The names of the objects that exist, by the round in which they are created.
    names: Vec<Option<String>>,
}

/// Creates objects at an interval, and in the mode `recreate` deletes them again, until the
/// workload ends.
pub(crate) async fn churn(
    executor: &Executor<'_>,
    op_index: usize,
    op: &Churn,
) -> anyhow::Result<()> {
    let namespace = op.namespace.clone().unwrap_or_else(|| format!("namespace-{op_index}"));
    crate::nodes::ensure_namespace(executor, &namespace).await?;
    let mut churned = Vec::new();
    for path in &op.template_paths {
        let object = crate::config::read_yaml(&executor.file.resolve(path))?;
        let resource = executor.cluster.resource(&object).await.with_context(|| path.clone())?;
        let scope = resource.is_namespaced.then_some(namespace.as_str());
        let body = Bytes::from(serde_json::to_vec(&object)?);
        let names = vec![None; if op.mode == ChurnMode::Recreate { op.number } else { 0 }];
        churned.push(Churned { path: resource.path(scope), body, names });
    }
    let interval = match op.interval_milliseconds {
        0 => CHURN_INTERVAL,
        milliseconds => milliseconds,
    };
    let (cluster, mode) = (Rc::clone(&executor.cluster), op.mode);
    let rounds = if op.number == 0 { usize::MAX } else { op.number };
    executor.spawn(async move {
        let mut ticks = every(Duration::from_millis(interval));
        for round in 0..usize::MAX {
            if mode == ChurnMode::Create && round >= rounds {
                break;
            }
            ticks.tick().await;
            for churned in &mut churned {
                churned.round(&cluster, round).await?;
            }
        }
        Ok(())
    });
    Ok(())
}

impl Churned {
    /// Creates an object, or deletes the one that was created in the same round before. An object
    /// that is refused is tried again in its next round, as upstream does.
    async fn round(&mut self, cluster: &Cluster, round: usize) -> anyhow::Result<()> {
        let slot = round.checked_rem(self.names.len()).and_then(|at| self.names.get_mut(at));
        if let Some(name) = slot.as_ref().and_then(|slot| slot.as_ref()) {
            let path = format!("{}/{name}", self.path);
            // Another one may have deleted it: pods are preempted.
            cluster.call(Method::DELETE, &path, Bytes::new()).await?;
            if let Some(slot) = slot {
                *slot = None;
            }
            return Ok(());
        }
        let (status, answer) = cluster.call(Method::POST, &self.path, self.body.clone()).await?;
        if let (201, Some(slot)) = (status, slot) {
            *slot = Some(name_of(&answer)?);
        }
        Ok(())
    }
}

/// Deletes the pods of a namespace, all at once or some per second.
pub(crate) async fn delete_pods(executor: &Executor<'_>, op: &DeletePods) -> anyhow::Result<()> {
    let (path, query) = (pods_path(&op.namespace), select(&op.label_selector));
    let pods = executor.cluster.list(&path, &query).await?;
    let names: Vec<String> = pods.iter().map(|pod| template::name(pod).to_owned()).collect();
    drop::<Vec<Value>>(pods);
    let (cluster, per_second) = (Rc::clone(&executor.cluster), op.delete_pods_per_second);
    let task = async move {
        let Some(mut ticks) = ticker(per_second) else {
            let path = format!("{path}?{}", query.trim_start_matches('&'));
            cluster.must(Method::DELETE, &path, Bytes::new()).await?;
            return Ok(());
        };
        for name in names {
            ticks.tick().await;
            let path = format!("{path}/{name}");
            let (status, answer) = cluster.call(Method::DELETE, &path, Bytes::new()).await?;
            if !matches!(status, 200 | 202 | 404) {
                return Err(crate::cluster::refused(&Method::DELETE, &path, status, &answer));
            }
        }
        Ok(())
    };
    if op.skip_wait_to_completion {
        executor.spawn(task);
        return Ok(());
    }
    task.await
}
