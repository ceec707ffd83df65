//! Audit: writes events of requests, as selected by a policy, to a log and to a webhook
//! (`k8s.io/apiserver/pkg/audit` and its plugins).
//!
//! Without a policy there is no [`Audit`], and requests only get an audit id. With one, each
//! request has a [`Trail`] in a task-local variable, so that any part of the server can add
//! annotations ([`annotate`]) without passing the trail around.

mod builtin;
mod error;
mod event;
mod flags;
mod hook;
mod in_process_reads;
mod load;
mod log;
mod metrics;
mod objects;
pub mod policy;
mod rotate;
mod trail;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use base::{Kind, Tasks};
use bytes::Bytes;
use http::{Request, Response, StatusCode};

#[cfg(feature = "fuzzing")]
pub(crate) use load::policy as fuzz_policy;

pub use builtin::Preset;
pub use error::{AuditError, PolicyError};
pub use flags::{AuditFlags, FlagError};

pub(crate) use in_process_reads::Read;
pub(crate) use objects::{
    records_response, request_body, request_object, response_json, response_value,
};
pub(crate) use trail::{Ongoing, Trail};

use event::Event;
use flags::{Format, Log, Mode, Truncate, Webhook};
use hook::{EventBuffer, Hook};
use metrics::AuditMetrics;
use policy::{Level, Policy, Stage};

use crate::request::RequestInfo;
use crate::request::audit_id;
use crate::request::body::Body;
use webhook::kubeconfig::WebhookEndpoint;

const PLUGIN_LOG: &str = "log";
const PLUGIN_WEBHOOK: &str = "webhook";
const PLUGIN_BUFFERED: &str = "buffered";
const PLUGIN_TRUNCATE: &str = "truncate";

/// The maximum size of the pending events of one buffer. Upstream limits only their number, but
/// events with objects are large.
const PENDING_BYTES_MAX: usize = 64 << 20;

/// Adds `length` bytes to `pending`; returns `false` if that exceeds the limit.
fn reserve_bytes(pending: &AtomicUsize, length: usize) -> bool {
    let add = |current: usize| current.checked_add(length).filter(|sum| *sum <= PENDING_BYTES_MAX);
    pending.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).is_ok()
}

/// The validated audit configuration, before any output is started.
#[derive(Debug, Clone)]
pub struct AuditConfig {
    policy: Policy,
    log: Option<Log>,
    webhook: Option<(Webhook, WebhookEndpoint)>,
}

impl AuditConfig {
    /// Reads the files that the flags name. `None` without a policy: then nothing is recorded, as
    /// in upstream.
    ///
    /// # Errors
    /// If a file cannot be read or is invalid.
    pub fn read(flags: &AuditFlags) -> Result<Option<Self>, AuditError> {
        let Some(file) = &flags.policy_file else {
            if flags.log.is_some() || flags.webhook.is_some() {
                tracing::warn!("no requests are recorded: audit-policy-file is not set");
            }
            return Ok(None);
        };
        let text = base::fs::read(file)
            .map_err(|source| AuditError::ReadFile { flag: "audit-policy-file", source })?;
        let policy = load::policy(&text)
            .map_err(|source| AuditError::Policy { file: file.clone(), source })?;
        Self::with_policy(policy, flags)
    }

    /// The configuration with this policy instead of the policy file.
    fn with_policy(policy: Policy, flags: &AuditFlags) -> Result<Option<Self>, AuditError> {
        let webhook = match &flags.webhook {
            None => None,
            Some(webhook) => {
                let file = &webhook.config_file;
                let text = base::fs::read(file).map_err(|source| AuditError::ReadFile {
                    flag: "audit-webhook-config-file",
                    source,
                })?;
                let folder = file.parent().unwrap_or(Path::new("."));
                let endpoint =
                    WebhookEndpoint::of(&text, folder, "the audit webhook").map_err(|why| {
                        AuditError::Kubeconfig { file: file.clone(), reason: why.to_string() }
                    })?;
                Some((webhook.clone(), endpoint))
            }
        };
        if flags.log.is_none() && webhook.is_none() {
            tracing::warn!(
                "no requests are recorded: neither audit-log-path nor audit-webhook-config-file is set"
            );
            return Ok(None);
        }
        Ok(Some(Self { policy, log: flags.log.clone(), webhook }))
    }
}

/// The policy and the outputs of events.
pub struct Audit {
    policy: Policy,
    outputs: Vec<Output>,
    metrics: Arc<AuditMetrics>,
    tasks: Tasks,
}

impl std::fmt::Debug for Audit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Audit").field("policy", &self.policy).finish_non_exhaustive()
    }
}

/// One output of events.
struct Output {
    mode: Mode,
    truncate: Option<Truncate>,
    target: Target,
}

enum Target {
    Log(log::Writer, Format),
    Hook(Arc<Hook>),
    Batches(EventBuffer),
}

impl Audit {
    /// Opens the log and starts the outputs. `tasks` must end after all tasks that serve requests,
    /// so that their last events are written.
    ///
    /// # Errors
    /// If the log cannot be opened, or certificates of the webhook are unusable.
    pub async fn start(config: AuditConfig, tasks: &Tasks) -> Result<Arc<Self>, AuditError> {
        let metrics = Arc::new(AuditMetrics::default());
        let mut outputs = Vec::new();
        if let Some(log) = &config.log {
            let writer = log::Writer::start(log, &metrics, tasks).map_err(AuditError::Log)?;
            outputs.push(Output {
                mode: log.output.mode,
                truncate: log.output.truncate,
                target: Target::Log(writer, log.format),
            });
        }
        if let Some((webhook, endpoint)) = &config.webhook {
            let hook = Arc::new(Hook::new(endpoint.clone(), webhook, &metrics, tasks));
            hook.poster().check().await.map_err(|why| AuditError::Kubeconfig {
                file: webhook.config_file.clone(),
                reason: why.to_string(),
            })?;
            let mode = webhook.output.mode;
            let target = if mode == Mode::Batch {
                Target::Batches(EventBuffer::start(&hook, webhook.output.batch.clone(), tasks))
            } else {
                Target::Hook(hook)
            };
            outputs.push(Output { mode, truncate: webhook.output.truncate, target });
        }
        Ok(Arc::new(Self { policy: config.policy, outputs, metrics, tasks: tasks.clone() }))
    }

    /// Appends the metrics to `out`.
    pub(crate) fn render(&self, out: &mut String) {
        self.metrics.render(out);
    }

    /// Creates the trail of a new request. Its id is the client's if the request has one.
    pub(crate) fn trail<B>(self: &Arc<Self>, request: &Request<B>) -> Arc<Trail> {
        let id = String::from_utf8_lossy(audit_id::of(request).as_bytes()).into_owned();
        Arc::new(Trail::new(self, id, request))
    }

    /// Encodes an event for each output, by its index; events that are too large are counted.
    fn prepare(&self, event: &Event, stage: Stage, at: Duration) -> Vec<(usize, Bytes)> {
        let mut prepared = Vec::with_capacity(self.outputs.len());
        for (index, output) in self.outputs.iter().enumerate() {
            match output.render(event, stage, at) {
                Ok(bytes) => prepared.push((index, bytes)),
                Err(why) => self.metrics.events_lost(PLUGIN_TRUNCATE, 1, &why),
            }
        }
        prepared
    }

    /// Delivers an event to the outputs; returns `false` if an output in the mode `blocking-strict`
    /// has failed.
    async fn deliver(&self, prepared: Vec<(usize, Bytes)>) -> bool {
        let mut is_delivered = true;
        for (index, bytes) in prepared {
            let Some(output) = self.outputs.get(index) else { continue };
            let is_ok = match (&output.target, output.mode) {
                (Target::Log(writer, _), Mode::Batch) => {
                    self.count_if_full(writer.offer(bytes));
                    true
                }
                (Target::Log(writer, _), _) => writer.write(bytes).await.is_ok(),
                (Target::Batches(buffer), _) => {
                    self.count_if_full(buffer.offer(bytes));
                    true
                }
                (Target::Hook(hook), _) => hook.send(&[bytes]).await.is_ok(),
            };
            is_delivered &= is_ok || output.mode != Mode::BlockingStrict;
        }
        is_delivered
    }

    fn count_if_full(&self, is_buffered: bool) {
        if !is_buffered {
            self.metrics.events_lost(PLUGIN_BUFFERED, 1, &"audit buffer queue blocked");
        }
    }

    /// Delivers an event of a request that has ended. Outputs that do not block get it at once,
    /// because the server may be stopping.
    fn deliver_later(self: &Arc<Self>, mut prepared: Vec<(usize, Bytes)>) {
        prepared.retain(|(index, bytes)| {
            let output = self.outputs.get(*index);
            !output.is_some_and(|output| output.offer(bytes))
        });
        if prepared.is_empty() {
            return;
        }
        let audit = Arc::clone(self);
        self.tasks.spawn(Kind::Request, "audit event", async move {
            audit.deliver(prepared).await;
            Ok::<(), std::convert::Infallible>(())
        });
    }
}

impl Output {
    /// Delivers an event without waiting; returns `false` if that is impossible.
    fn offer(&self, bytes: &Bytes) -> bool {
        match &self.target {
            Target::Log(writer, _) => writer.offer(bytes.clone()),
            Target::Batches(buffer) => buffer.offer(bytes.clone()),
            Target::Hook(_) => false,
        }
    }

    /// Encodes an event in the format of this output.
    fn render(&self, event: &Event, stage: Stage, at: Duration) -> Result<Bytes, &'static str> {
        let mut json = event.json(stage, at);
        let mut cut = None;
        if let Some(limits) = self.truncate {
            if size(&json) > limits.max_event && event.level >= Level::Request {
                let small = cut.insert(event.truncated());
                json = small.json(stage, at);
            }
            // `max_batch` needs no check: it is at least `max_event`, and batches are split.
            if size(&json) > limits.max_event {
                return Err("event is too large even after truncating");
            }
        }
        Ok(match &self.target {
            Target::Log(_, Format::Json) => log_line(&json),
            Target::Log(_, Format::Legacy) => {
                let mut text = cut.as_ref().unwrap_or(event).legacy(stage);
                text.push('\n');
                text.into()
            }
            Target::Hook(_) | Target::Batches(_) => json.into(),
        })
    }
}

/// The start of an event outside a list: kind and version.
const HEAD: &[u8] = br#"{"kind":"Event","apiVersion":"audit.k8s.io/v1","#;

/// The size of an event as upstream counts it: outside a list, with a line feed.
fn size(json: &[u8]) -> usize {
    HEAD.len() + json.len()
}

fn log_line(json: &[u8]) -> Bytes {
    let mut line = Vec::with_capacity(HEAD.len() + json.len());
    line.extend_from_slice(HEAD);
    line.extend_from_slice(json.get(1..).unwrap_or_default());
    line.push(b'\n');
    line.into()
}

tokio::task_local! {
    static TRAIL: Arc<Trail>;
}

/// Adds an annotation to the events of the current request, unless the key is set. `value` is only
/// called if the request is recorded.
pub fn annotate(key: &str, value: impl FnOnce() -> String) {
    with(|trail| trail.annotate(key, value));
}

/// Like [`annotate`], but only if the request is recorded with its object.
pub(crate) fn annotate_request(key: &str, value: impl FnOnce() -> String) {
    with(|trail| {
        if trail.level().0 >= Level::Request {
            trail.annotate(key, value);
        }
    });
}

/// Adds the annotations for the decision of the authorizers and its reason.
pub(crate) fn decided(decision: &'static str, reason: &str) {
    with(|trail| {
        trail.annotate("authorization.k8s.io/decision", || decision.to_owned());
        trail.annotate("authorization.k8s.io/reason", || reason.to_owned());
    });
}

/// The response to a request that must be recorded but cannot be.
pub(crate) fn not_stored(info: &RequestInfo) -> Response<Body> {
    let path = api::field::go_quote(&info.path);
    let text = format!("Internal Server Error: {path}: failed to store audit event\n");
    crate::response::status::text(StatusCode::INTERNAL_SERVER_ERROR, text)
}

/// Sets the audit id of the current request on a request to another API server.
pub(crate) fn marked<B>(mut request: Request<B>) -> Request<B> {
    with(|trail| {
        if let Ok(id) = http::HeaderValue::try_from(trail.id()) {
            request.headers_mut().insert(audit_id::HEADER, id);
        }
    });
    request
}

/// Calls `use_trail` with the trail of the current request, if there is one.
pub(crate) fn with(use_trail: impl FnOnce(&Trail)) {
    let _ = TRAIL.try_with(|trail| use_trail(trail));
}

/// The trail of the current request.
pub(crate) fn current() -> Option<Arc<Trail>> {
    TRAIL.try_with(Arc::clone).ok()
}

/// Runs a part of a request with its trail.
pub(crate) async fn scope<F: Future>(trail: Option<Arc<Trail>>, work: F) -> F::Output {
    match trail {
        Some(trail) => TRAIL.scope(trail, work).await,
        None => work.await,
    }
}

#[cfg(test)]
mod tests;
