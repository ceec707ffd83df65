//! Operations on objects of any kind.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt};
use http::Method;

use crate::cluster::WORKERS;
use crate::executor::Executor;
use crate::nodes::ensure_namespace;
use crate::operation::{CreateAny, UpdateAny};
use crate::template::{self, ObjectTemplate};

/// Creates the objects of a template. Upstream creates one after another.
pub(crate) async fn create(executor: &Executor<'_>, op: &CreateAny) -> anyhow::Result<()> {
    let namespace = op.namespace.as_deref().filter(|name| !name.is_empty());
    if let Some(namespace) = namespace {
        ensure_namespace(executor, namespace).await?;
    }
    let count = executor.params.count(op.count.unwrap_or(1), op.count_param.as_deref())?;
    let params = executor.params.resolve(&op.template_params)?;
    let template = ObjectTemplate::read(&executor.file.resolve(&op.template_path), &params)?;
    let template = &template;
    futures::stream::iter(0..count)
        .map(Ok)
        .try_for_each_concurrent(WORKERS, |index| async move {
            let object = template.object(index, count)?;
            executor.cluster.create_any(&object, namespace).await
        })
        .await
}

/// Replaces the objects of a template and then their status, all at once or some per second.
pub(crate) async fn update(executor: &Executor<'_>, op: &UpdateAny) -> anyhow::Result<()> {
    let namespace = op.namespace.as_deref().filter(|name| !name.is_empty());
    if let Some(namespace) = namespace {
        ensure_namespace(executor, namespace).await?;
    }
    let count = executor.params.count(op.count.unwrap_or(1), op.count_param.as_deref())?;
    let path = executor.file.resolve(&op.template_path);
    let template = ObjectTemplate::read(&path, &BTreeMap::new())?;
    let mut ticks = ticker(op.update_per_second);
    for index in 0..count {
        if let Some(ticks) = &mut ticks {
            ticks.tick().await;
        }
        let object = template.object(index, count)?;
        let path = executor.cluster.path(&object, namespace).await?;
        let path = format!("{path}/{}", template::name(&object));
        let sub: String = op.subresources.iter().map(|name| format!("/{name}")).collect();
        let body = Bytes::from(serde_json::to_vec(&object)?);
        for path in [format!("{path}{sub}"), format!("{path}/status")] {
            let path = format!("{path}?fieldValidation=Strict");
            executor.cluster.must(Method::PUT, &path, body.clone()).await?;
        }
    }
    Ok(())
}

/// Ticks so many times a second, at first after one interval; `None` for zero.
pub(crate) fn ticker(per_second: u32) -> Option<tokio::time::Interval> {
    let interval = Duration::from_secs(1).checked_div(per_second)?;
    Some(every(interval))
}

/// Ticks after each interval, and drops ticks that come too fast, as Go's ticker does.
pub(crate) fn every(interval: Duration) -> tokio::time::Interval {
    let first = tokio::time::Instant::now() + interval;
    let mut ticks = tokio::time::interval_at(first, interval);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
    ticks
}
