//! Who did what: events of requests, as a policy says, to a log and to a webhook
//! (`k8s.io/apiserver/pkg/audit` and its plugins).
//!
//! Without a policy there is no [`Audit`], and a request costs one look at an empty cell and its
//! id. With one, a [`Trail`] goes along with each request as a task-local value, so that whoever
//! knows something worth recording says it ([`annotate`]) without being handed anything.

mod builtin;
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

pub use builtin::Form;
pub use flags::{Fault, Settings};

pub(crate) use in_process_reads::Read;
pub(crate) use objects::{
    records_response, request_body, request_object, response_json, response_value,
};
pub(crate) use trail::{Ongoing, Trail};

use event::Event;
use flags::{Format, Log, Mode, Truncate, Webhook};
use hook::{Buffer, Hook};
use metrics::Counts;
use policy::{Level, Policy, Stage};

use crate::request::RequestInfo;
use crate::request::audit_id;
use crate::request::body::Body;
use crate::webhook::kubeconfig::WebhookEndpoint;

const PLUGIN_LOG: &str = "log";
const PLUGIN_WEBHOOK: &str = "webhook";
const PLUGIN_BUFFERED: &str = "buffered";
const PLUGIN_TRUNCATE: &str = "truncate";

/// Bytes of events that wait in one buffer. Upstream bounds their number alone, and events with
/// objects are large.
const HELD_BYTES_MAX: usize = 64 << 20;

/// Takes room for bytes that wait; `false` when there is none.
fn hold(held: &AtomicUsize, length: usize) -> bool {
    let room = |now: usize| now.checked_add(length).filter(|sum| *sum <= HELD_BYTES_MAX);
    held.fetch_update(Ordering::Relaxed, Ordering::Relaxed, room).is_ok()
}

/// Everything that files say, read and found good; nothing runs yet.
#[derive(Debug, Clone)]
pub struct Plan {
    policy: Policy,
    log: Option<Log>,
    webhook: Option<(Webhook, WebhookEndpoint)>,
}

impl Plan {
    /// Reads the files that settings name. `None` without a policy: nothing is recorded then, as
    /// upstream.
    ///
    /// # Errors
    /// Flag, file and field of what is wrong.
    pub fn read(settings: &Settings) -> Result<Option<Self>, String> {
        let Some(file) = &settings.policy_file else {
            if settings.log.is_some() || settings.webhook.is_some() {
                tracing::warn!(
                    "no audit policy is given, so nothing is recorded: set audit-policy-file"
                );
            }
            return Ok(None);
        };
        let wrong = |flag: &str, file: &Path, why: String| {
            format!("{flag}={}: {why}; correct the file and start again", file.display())
        };
        let text = base::fs::read(file).map_err(|e| format!("audit-policy-file: {e}"))?;
        let policy = load::policy(&text).map_err(|why| wrong("audit-policy-file", file, why))?;
        Self::of(policy, settings)
    }

    /// A plan by this policy.
    fn of(policy: Policy, settings: &Settings) -> Result<Option<Self>, String> {
        let wrong = |flag: &str, file: &Path, why: String| {
            format!("{flag}={}: {why}; correct the file and start again", file.display())
        };
        let webhook = match &settings.webhook {
            None => None,
            Some(webhook) => {
                let file = &webhook.config_file;
                let flag = "audit-webhook-config-file";
                let text = base::fs::read(file).map_err(|e| format!("{flag}: {e}"))?;
                let folder = file.parent().unwrap_or(Path::new("."));
                let place = WebhookEndpoint::of(&text, folder, "the audit webhook")
                    .map_err(|why| wrong(flag, file, why.to_string()))?;
                Some((webhook.clone(), place))
            }
        };
        if settings.log.is_none() && webhook.is_none() {
            tracing::warn!(
                "an audit policy without audit-log-path or audit-webhook-config-file records nothing"
            );
            return Ok(None);
        }
        Ok(Some(Self { policy, log: settings.log.clone(), webhook }))
    }
}

/// The policy, and where events go.
pub struct Audit {
    policy: Policy,
    outputs: Vec<Output>,
    counts: Arc<Counts>,
    tasks: Tasks,
}

impl std::fmt::Debug for Audit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Audit").field("policy", &self.policy).finish_non_exhaustive()
    }
}

/// One way out.
struct Output {
    mode: Mode,
    truncate: Option<Truncate>,
    target: Target,
}

enum Target {
    Log(log::Writer, Format),
    Hook(Arc<Hook>),
    Batches(Buffer),
}

impl Audit {
    /// Opens the log and starts what writes and sends. `tasks` must end behind everything that
    /// serves requests: what they say at their end is then still written.
    ///
    /// # Errors
    /// Flag and file of what cannot be used.
    pub async fn start(plan: Plan, tasks: &Tasks) -> Result<Arc<Self>, String> {
        let counts = Arc::new(Counts::default());
        let mut outputs = Vec::new();
        if let Some(settings) = &plan.log {
            let writer = log::Writer::start(settings, &counts, tasks).map_err(|e| {
                format!("audit-log-path: {e}; give a file in a folder that can be written to")
            })?;
            outputs.push(Output {
                mode: settings.output.mode,
                truncate: settings.output.truncate,
                target: Target::Log(writer, settings.format),
            });
        }
        if let Some((settings, place)) = &plan.webhook {
            let hook = Arc::new(Hook::new(place.clone(), settings, &counts, tasks));
            let file = settings.config_file.display();
            hook.check().await.map_err(|why| {
                format!("audit-webhook-config-file={file}: {why}; correct the file and start again")
            })?;
            let mode = settings.output.mode;
            let target = if mode == Mode::Batch {
                Target::Batches(Buffer::start(&hook, settings.output.batch.clone(), tasks))
            } else {
                Target::Hook(hook)
            };
            outputs.push(Output { mode, truncate: settings.output.truncate, target });
        }
        Ok(Arc::new(Self { policy: plan.policy, outputs, counts, tasks: tasks.clone() }))
    }

    /// Lines for `/metrics`.
    pub(crate) fn render(&self, out: &mut String) {
        self.counts.render(out);
    }

    /// What goes along with a request from its first moment on; the id is the client's own where it
    /// brings one.
    pub(crate) fn trail<B>(self: &Arc<Self>, request: &Request<B>) -> Arc<Trail> {
        let id = String::from_utf8_lossy(audit_id::of(request).as_bytes()).into_owned();
        Arc::new(Trail::new(self, id, request))
    }

    /// The bytes of an event for each output that takes it.
    fn prepare(&self, event: &Event, stage: Stage, at: Duration) -> Vec<(usize, Bytes)> {
        let mut prepared = Vec::with_capacity(self.outputs.len());
        for (index, output) in self.outputs.iter().enumerate() {
            match output.render(event, stage, at) {
                Ok(bytes) => prepared.push((index, bytes)),
                Err(why) => self.counts.error(PLUGIN_TRUNCATE, 1, why),
            }
        }
        prepared
    }

    /// Hands an event over as each output's mode says; `false` when one that must have it has not.
    async fn deliver(&self, prepared: Vec<(usize, Bytes)>) -> bool {
        let mut taken = true;
        for (index, bytes) in prepared {
            let Some(output) = self.outputs.get(index) else { continue };
            let outcome = match (&output.target, output.mode) {
                (Target::Log(writer, _), Mode::Batch) => {
                    self.buffered(writer.offer(bytes));
                    Ok(())
                }
                (Target::Log(writer, _), _) => writer.write(bytes).await,
                (Target::Batches(buffer), _) => {
                    self.buffered(buffer.offer(bytes));
                    Ok(())
                }
                (Target::Hook(hook), _) => hook.send(&[bytes]).await,
            };
            taken &= outcome.is_ok() || output.mode != Mode::BlockingStrict;
        }
        taken
    }

    fn buffered(&self, taken: bool) {
        if !taken {
            self.counts.error(PLUGIN_BUFFERED, 1, "audit buffer queue blocked");
        }
    }

    /// The same for a request that nobody waits for any more: at once where that needs no waiting,
    /// for the server may be stopping.
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
    /// Hands an event over without waiting; `false` when that cannot be.
    fn offer(&self, bytes: &Bytes) -> bool {
        match &self.target {
            Target::Log(writer, _) => writer.offer(bytes.clone()),
            Target::Batches(buffer) => buffer.offer(bytes.clone()),
            Target::Hook(_) => false,
        }
    }

    /// An event as this output wants it.
    fn render(&self, event: &Event, stage: Stage, at: Duration) -> Result<Bytes, &'static str> {
        let mut json = event.json(stage, at);
        let mut cut = None;
        if let Some(limits) = self.truncate {
            if size(&json) > limits.max_event && event.level >= Level::Request {
                let small = cut.insert(event.truncated());
                json = small.json(stage, at);
            }
            // An event that is larger than a batch may be goes alone, so that the size of a batch
            // bounds nothing more.
            if size(&json) > limits.max_event {
                return Err("event is too large even after truncating");
            }
        }
        Ok(match &self.target {
            Target::Log(_, Format::Json) => line(&json),
            Target::Log(_, Format::Legacy) => {
                let mut text = cut.as_ref().unwrap_or(event).legacy(stage);
                text.push('\n');
                text.into()
            }
            Target::Hook(_) | Target::Batches(_) => json.into(),
        })
    }
}

/// Kind and version in front of an event that stands alone.
const HEAD: &[u8] = br#"{"kind":"Event","apiVersion":"audit.k8s.io/v1","#;

/// Bytes of an event as upstream counts them: alone, with its line feed.
fn size(json: &[u8]) -> usize {
    HEAD.len() + json.len()
}

fn line(json: &[u8]) -> Bytes {
    let mut line = Vec::with_capacity(HEAD.len() + json.len());
    line.extend_from_slice(HEAD);
    line.extend_from_slice(json.get(1..).unwrap_or_default());
    line.push(b'\n');
    line.into()
}

tokio::task_local! {
    static TRAIL: Arc<Trail>;
}

/// Says something of the request under way, for its events; what was said first under a key stands.
/// Nothing happens, and the value is not made, when nobody records it.
pub fn annotate(key: &str, value: impl FnOnce() -> String) {
    with(|trail| trail.annotate(key, value));
}

/// As [`annotate`], of what is recorded with the object of the request only.
pub(crate) fn annotate_request(key: &str, value: impl FnOnce() -> String) {
    with(|trail| {
        if trail.level().0 >= Level::Request {
            trail.annotate(key, value);
        }
    });
}

/// What the authorizers say of a request, and why.
pub(crate) fn decided(decision: &'static str, reason: &str) {
    with(|trail| {
        trail.annotate("authorization.k8s.io/decision", || decision.to_owned());
        trail.annotate("authorization.k8s.io/reason", || reason.to_owned());
    });
}

/// The answer to a request that would not be recorded, where it has to be.
pub(crate) fn not_stored(info: &RequestInfo) -> Response<Body> {
    let path = api::field::go_quote(&info.path);
    let text = format!("Internal Server Error: {path}: failed to store audit event\n");
    crate::response::status::text(StatusCode::INTERNAL_SERVER_ERROR, text)
}

/// A request that goes on to another API server with the id that it has here.
pub(crate) fn marked<B>(mut request: Request<B>) -> Request<B> {
    with(|trail| {
        if let Ok(id) = http::HeaderValue::try_from(trail.id()) {
            request.headers_mut().insert(audit_id::HEADER, id);
        }
    });
    request
}

/// Looks at what is recorded of the request under way, if anything is.
pub(crate) fn with(look: impl FnOnce(&Trail)) {
    let _ = TRAIL.try_with(|trail| look(trail));
}

/// What goes along with the request under way.
pub(crate) fn current() -> Option<Arc<Trail>> {
    TRAIL.try_with(Arc::clone).ok()
}

/// Runs a part of a request with what goes along.
pub(crate) async fn scope<F: Future>(trail: Option<Arc<Trail>>, work: F) -> F::Output {
    match trail {
        Some(trail) => TRAIL.scope(trail, work).await,
        None => work.await,
    }
}

#[cfg(test)]
mod tests;
