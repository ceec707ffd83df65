//! Brings one release to what its HelmChart says.

use std::sync::Arc;
use std::time::Duration;

use api::k8s::api::core::v1::ObjectReference;
use client::events::EventType;
use client::{Action as Next, Error};
use serde_json::Value;

use super::inputs::{HASH_PREFIX, InputError, Inputs, Reader};
use super::plan::{self, Step};
use super::spec::{ChartSpec, ConfigSpec};
use super::status::{FINALIZER, HASH, MANAGED_BY, Outcome, UNMANAGED, Writer};
use super::{AGENT, Attempts, Controller, Key, read_spec};
use crate::action::{self, Action, ActionError, Settings};
use crate::chart::{self, LoadError};
use crate::fetch::{self, FetchError};
use crate::release::{Release, Status, Storage, StorageError};

/// Delays between attempts: those of the pods of a Job.
const BACKOFF: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(360));
/// k3s's default of `backOffLimit`.
const BACK_OFF_LIMIT: u32 = 1000;

/// Key of the attempts while a release is removed.
const UNINSTALL: &str = "uninstall";

/// A chart cannot be applied.
#[derive(Debug, thiserror::Error)]
enum ApplyError {
    #[error(transparent)]
    Fetch(#[from] FetchError),
    #[error("the chart cannot be loaded: {0}")]
    Load(#[from] LoadError),
    #[error("loading the chart crashed: {0}")]
    Crashed(#[from] tokio::task::JoinError),
    #[error(transparent)]
    Action(#[from] ActionError),
    #[error(transparent)]
    Storage(#[from] StorageError),
    #[error(
        "release {0:?} failed earlier, and failurePolicy abort leaves it alone; correct it with \
         helm, or change failurePolicy"
    )]
    Aborted(String),
}

/// A HelmChart and what belongs to it.
struct Chart {
    namespace: String,
    name: String,
    object: Value,
    spec: ChartSpec,
    config: Option<ConfigSpec>,
}

impl Chart {
    fn annotation(&self, name: &str) -> Option<&str> {
        self.object.get("metadata")?.get("annotations")?.get(name)?.as_str()
    }

    fn is_deleted(&self) -> bool {
        self.object.get("metadata").is_some_and(|meta| meta.get("deletionTimestamp").is_some())
    }

    fn has_finalizer(&self) -> bool {
        let finalizers = api::value::at(&self.object, &["metadata", "finalizers"]).as_array();
        finalizers.into_iter().flatten().any(|f| f.as_str() == Some(FINALIZER))
    }

    fn job(&self) -> String {
        let action = if self.is_deleted() { "delete" } else { "install" };
        format!("helm-{action}-{}", self.name)
    }

    fn reference(&self) -> ObjectReference {
        let text = |path: &[&str]| Some(api::value::str_in(&self.object, path).to_owned());
        ObjectReference {
            api_version: Some("helm.cattle.io/v1".into()),
            kind: Some("HelmChart".into()),
            namespace: Some(self.namespace.clone()),
            name: Some(self.name.clone()),
            uid: text(&["metadata", "uid"]),
            resource_version: text(&["metadata", "resourceVersion"]),
            field_path: None,
        }
    }
}

impl Controller {
    pub(super) async fn handle(self: &Arc<Self>, key: Key) -> Result<Next, Error> {
        match key {
            Key::Definitions => {
                self.follow_definitions();
                Ok(Next::Done)
            }
            Key::Chart(namespace, name) => self.reconcile(namespace, name).await,
        }
    }

    async fn reconcile(&self, namespace: String, name: String) -> Result<Next, Error> {
        let Some(caches) = self.caches.lock().clone() else { return Ok(Next::Done) };
        caches.charts.synced().await;
        caches.configs.synced().await;
        let Some(object) = caches.charts.cache().get(&namespace, &name) else {
            self.attempts.lock().remove(&(namespace, name));
            return Ok(Next::Done);
        };
        let config = caches.configs.cache().get(&namespace, &name);
        let config = config.and_then(|config| read_spec(&config));
        let value: Value = serde_json::from_slice(&object.json())?;
        let Some(spec) = read_spec::<ChartSpec>(&object) else {
            tracing::warn!(namespace, name, "helm: cannot decode HelmChart");
            return Ok(Next::Done);
        };
        let chart = Chart { namespace, name, object: value, spec, config };
        if !self.manages(&chart).await? {
            return Ok(Next::Done);
        }
        if chart.is_deleted() { self.remove(&chart).await } else { self.apply(&chart).await }
    }

    fn writer<'a>(&'a self, chart: &'a Chart) -> Writer<'a> {
        Writer { client: &self.client, namespace: &chart.namespace, name: &chart.name }
    }

    fn event(&self, chart: &Chart, kind: EventType, reason: &str, text: String) {
        self.recorder.event_for(chart.reference(), kind, reason, text);
    }

    /// Whether the chart is this controller's; claims one that belongs to no controller.
    async fn manages(&self, chart: &Chart) -> Result<bool, Error> {
        let spec = &chart.spec;
        if spec.chart.is_empty() && spec.chart_content.is_empty()
            || chart.annotation(UNMANAGED).is_some()
        {
            return Ok(false);
        }
        match chart.annotation(MANAGED_BY) {
            Some(AGENT) if chart.has_finalizer() || chart.is_deleted() => Ok(chart.has_finalizer()),
            Some(AGENT) | None if !chart.is_deleted() => {
                // The change wakes the chart again.
                self.writer(chart).claim(&chart.object).await.map(|()| false)
            }
            _ => Ok(false),
        }
    }

    async fn remove(&self, chart: &Chart) -> Result<Next, Error> {
        if self.is_waiting(chart, UNINSTALL) {
            return Ok(Next::Done);
        }
        let target = &chart.spec.target_namespace;
        let namespace = if target.is_empty() { &chart.namespace } else { target };
        let settings = Settings {
            name: chart.name.clone(),
            namespace: namespace.clone(),
            create_namespace: false,
            timeout: Duration::from_secs(300),
            take_ownership: false,
            force_conflicts: false,
        };
        let action = Action { client: &self.client, settings: &settings };
        if let Err(error) = action::uninstall(&action).await {
            return self.failed(chart, UNINSTALL, "Uninstall failed", &error.to_string()).await;
        }
        let text = "Uninstalled HelmChart, removing its finalizer".to_owned();
        self.event(chart, EventType::Normal, "RemoveJob", text);
        tracing::info!(namespace = chart.namespace, name = chart.name, "helm: release removed");
        self.attempts.lock().remove(&(chart.namespace.clone(), chart.name.clone()));
        self.writer(chart).release(&chart.object).await?;
        Ok(Next::Done)
    }

    async fn apply(&self, chart: &Chart) -> Result<Next, Error> {
        let version = &chart.spec.helm_version;
        if !matches!(version.as_str(), "" | "v3") {
            let text = format!("Unsupported Helm version {version}: only v3 charts are supported");
            self.event(chart, EventType::Warning, "UnsupportedVersion", text);
            let text = "Only Helm v3 charts are supported".to_owned();
            let outcome = Outcome::Failed("Unsupported version", text);
            self.writer(chart).status(&chart.object, &chart.job(), &outcome).await?;
            return Ok(Next::Done);
        }
        let reader = Reader { client: &self.client, namespace: &chart.namespace };
        let inputs = match reader.read(&chart.name, &chart.spec, chart.config.as_ref()).await {
            Ok(inputs) => inputs,
            Err(InputError::Reference { cause, .. }) if cause.is_retryable() => return Err(cause),
            Err(error) => {
                // The same error again, before its next attempt is due, is the chart's own status.
                let (cause, text) = (format!("inputs: {error}"), error.to_string());
                if self.is_waiting(chart, &cause) {
                    return Ok(Next::Done);
                }
                return self.failed(chart, &cause, "Job create failed", &text).await;
            }
        };
        if chart.annotation(HASH) == Some(&inputs.hash) {
            return Ok(Next::Done);
        }
        if self.is_waiting(chart, &inputs.hash) {
            return Ok(Next::Done);
        }
        let fields = chart.spec.without_effect();
        if !fields.is_empty() {
            let text = format!(
                "no effect: spec.{}; the server process applies charts, no job runs",
                fields.join(", spec.")
            );
            self.event(chart, EventType::Normal, "FieldWithoutEffect", text);
        }
        let text = format!("Applying HelmChart from {}", chart.spec.source());
        self.event(chart, EventType::Normal, "ApplyJob", text);
        match self.apply_release(&inputs).await {
            Ok(release) => self.applied(chart, &inputs, &release).await,
            Err(error) => self.failed(chart, &inputs.hash, "Job failed", &error.to_string()).await,
        }
    }

    async fn applied(
        &self,
        chart: &Chart,
        inputs: &Inputs,
        release: &Release,
    ) -> Result<Next, Error> {
        let (name, revision) = (&release.name, release.version);
        tracing::info!(namespace = chart.namespace, name, revision, "helm: release deployed");
        self.attempts.lock().remove(&(chart.namespace.clone(), chart.name.clone()));
        let text = format!("Applied HelmChart, release {name} revision {revision}");
        let writer = self.writer(chart);
        writer.finish(&inputs.hash).await?;
        writer.status(&chart.object, &chart.job(), &Outcome::Applied(text)).await?;
        Ok(Next::Done)
    }

    /// Whether these inputs failed and their next attempt is not due; its delay is in the queue.
    fn is_waiting(&self, chart: &Chart, hash: &str) -> bool {
        let mut attempts = self.attempts.lock();
        let key = (chart.namespace.clone(), chart.name.clone());
        match attempts.get_mut(&key) {
            Some(known) if known.hash == hash => {
                known.due.is_some_and(|due| due > base::clock::now())
            }
            _ => false,
        }
    }

    /// Records a failure and plans the next attempt, up to the limit of the chart.
    async fn failed(
        &self,
        chart: &Chart,
        hash: &str,
        reason: &'static str,
        error: &str,
    ) -> Result<Next, Error> {
        let limit = chart.spec.back_off_limit.unwrap_or(BACK_OFF_LIMIT);
        let (failures, delay) = {
            let mut attempts = self.attempts.lock();
            let key = (chart.namespace.clone(), chart.name.clone());
            let known = attempts.entry(key).or_default();
            if known.hash != hash {
                *known = Attempts { hash: hash.to_owned(), ..Attempts::default() };
            }
            known.failures = known.failures.saturating_add(1);
            let factor = 1_u32.checked_shl(known.failures - 1).unwrap_or(u32::MAX);
            let delay = BACKOFF.0.saturating_mul(factor).min(BACKOFF.1);
            known.due = Some(base::clock::now() + delay);
            (known.failures, delay)
        };
        let is_last = hash.starts_with(HASH_PREFIX) && failures > limit;
        let next = if is_last {
            "no further attempt: spec.backOffLimit is reached; change the HelmChart to try again"
                .to_owned()
        } else {
            format!("next attempt in {} s", delay.as_secs())
        };
        let (namespace, name) = (&chart.namespace, &chart.name);
        tracing::warn!(namespace, name, error, next, "helm: chart not applied");
        let text = format!("{error} ({next})");
        self.event(chart, EventType::Warning, "JobFailed", text.chars().take(1000).collect());
        let writer = self.writer(chart);
        let outcome = Outcome::Failed(reason, error.to_owned());
        writer.status(&chart.object, &chart.job(), &outcome).await?;
        if is_last {
            writer.finish(hash).await?;
            return Ok(Next::Done);
        }
        Ok(Next::After(delay))
    }

    async fn apply_release(&self, inputs: &Inputs) -> Result<Release, ApplyError> {
        let archive = fetch::archive(&inputs.source, &self.network).await?;
        let chart = base::tasks::blocking(move || chart::load(&archive)).await??;
        let settings = &inputs.settings;
        let action = Action { client: &self.client, settings };
        let storage = Storage::new(self.client.clone(), &settings.namespace);
        let mut history = storage.history(&settings.name).await?;
        if let Some(last) = history.last_mut().filter(|last| last.info.status.is_pending()) {
            last.set_status(Status::Failed, "The operation was interrupted");
            storage.update(last).await?;
        }
        let last = history.last().map(|release| release.info.status);
        match plan::step(last, &inputs.failure_policy) {
            Step::Install => Ok(action::install(&action, chart, &inputs.values).await?),
            Step::Upgrade => Ok(action::upgrade(&action, chart, &inputs.values, &history).await?),
            Step::Reinstall => {
                action::uninstall(&action).await?;
                Ok(action::install(&action, chart, &inputs.values).await?)
            }
            Step::Abort => Err(ApplyError::Aborted(settings.name.clone())),
        }
    }
}
