//! The audit trail of one request: collects its event, and delivers it at each stage.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use api::Status;
use bytes::Bytes;
use http::{HeaderMap, Request};
use parking_lot::Mutex;
use serde_json::Value;
use serde_json::value::RawValue;

use super::Audit;
use super::event::{Event, Outcome, Reference};
use super::policy::{Decision, Level, Stage};
use crate::request::RequestInfo;
use crate::request::user::User;

/// The maximum length of a recorded user agent in bytes (`maxUserAgentLength`).
const AGENT_MAX: usize = 1024;

/// Delays the last event of a long-running request until all clones are dropped.
#[derive(Clone)]
pub(crate) struct Ongoing {
    _end: Arc<EndOnDrop>,
}

impl std::fmt::Debug for Ongoing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Ongoing")
    }
}

impl Ongoing {
    /// Creates the first one for this request.
    pub(crate) fn new(trail: &Arc<Trail>) -> Self {
        Self { _end: Arc::new(EndOnDrop(Arc::clone(trail))) }
    }
}

/// Ends the request when it is dropped.
struct EndOnDrop(Arc<Trail>);

impl Drop for EndOnDrop {
    fn drop(&mut self) {
        self.0.ended();
    }
}

/// The audit trail of one request.
pub(crate) struct Trail {
    audit: Arc<Audit>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    event: Event,
    decision: Decision,
    is_decided: bool,
    /// The request was rejected before authentication: there is only one event.
    is_rejected: bool,
    is_long_running: bool,
    /// The panic message, if the handler has panicked.
    panic: Option<String>,
    is_done: bool,
}

impl Trail {
    /// Creates the trail of a request that was received now.
    pub(super) fn new<B>(audit: &Arc<Audit>, id: String, request: &Request<B>) -> Self {
        let uri = request.uri().path_and_query().map_or("/", http::uri::PathAndQuery::as_str);
        let remote = request
            .extensions()
            .get::<crate::request::remote::Remote>()
            .map(|remote| remote.0.ip());
        let event = Event {
            id,
            uri: uri.to_owned(),
            source_ips: source_ips(request.headers(), remote),
            agent: agent(request.headers()),
            received: base::clock::unix_time(),
            ..Event::default()
        };
        Self { audit: Arc::clone(audit), state: Mutex::new(State { event, ..State::default() }) }
    }

    fn begin(&self, user: Option<&User>, info: &RequestInfo) -> Level {
        let decision = self.audit.policy.decide(user, info);
        self.audit.metrics.request_level(decision.level);
        let mut state = self.state.lock();
        state.decision = decision;
        state.is_decided = true;
        state.is_long_running = info.is_long_running();
        let event = &mut state.event;
        event.level = decision.level;
        if decision.level == Level::None {
            return Level::None;
        }
        event.verb = info.verb;
        event.user = user.cloned().unwrap_or_default();
        event.reference = info.is_resource.then(|| Reference {
            resource: info.resource.clone(),
            namespace: info.namespace.clone(),
            name: info.name.clone(),
            api_group: info.group.clone(),
            api_version: info.version.clone(),
            subresource: info.subresource.clone(),
            ..Reference::default()
        });
        decision.level
    }

    /// Applies the policy after authentication, and delivers the event `RequestReceived`. Returns
    /// `false` if the request must be recorded but cannot be.
    pub(crate) async fn received(&self, user: &User, info: &RequestInfo) -> bool {
        if self.begin(Some(user), info) == Level::None {
            return true;
        }
        let is_delivered = self.emit(Stage::RequestReceived).await;
        if !is_delivered {
            self.audit.metrics.request_rejected();
            self.state.lock().is_done = true;
        }
        is_delivered
    }

    /// Records that the request is rejected before authentication.
    pub(crate) fn refused(&self, info: &RequestInfo) {
        self.begin(None, info);
        self.state.lock().is_rejected = true;
    }

    /// Records the impersonated user.
    pub(crate) fn impersonated(&self, user: &User) {
        self.record(|event| event.impersonated = Some(user.clone()));
    }

    /// Adds an annotation, unless the key is set.
    pub(crate) fn annotate(&self, key: &str, value: impl FnOnce() -> String) {
        let mut state = self.state.lock();
        // Authenticators add annotations before the policy is applied.
        if state.is_decided && state.decision.level == Level::None {
            return;
        }
        let annotations = &mut state.event.annotations;
        if !annotations.contains_key(key) {
            annotations.insert(key.to_owned(), value());
        }
    }

    fn record(&self, change: impl FnOnce(&mut Event)) {
        let mut state = self.state.lock();
        if state.decision.level != Level::None {
            change(&mut state.event);
        }
    }

    /// The audit id of the request.
    pub(super) fn id(&self) -> String {
        self.state.lock().event.id.clone()
    }

    /// The level, and whether `managedFields` are omitted.
    pub(crate) fn level(&self) -> (Level, bool) {
        let state = self.state.lock();
        (state.decision.level, state.decision.omit_managed_fields)
    }

    /// Completes the object reference with the object in the request body.
    pub(crate) fn request_object(&self, object: &Value) {
        let text = |key: &str| api::value::str_in(object, &["metadata", key]).to_owned();
        self.record(|event| {
            let Some(reference) = &mut event.reference else { return };
            for (slot, key) in [
                (&mut reference.namespace, "namespace"),
                (&mut reference.name, "name"),
                (&mut reference.uid, "uid"),
                (&mut reference.resource_version, "resourceVersion"),
            ] {
                if slot.is_empty() {
                    *slot = text(key);
                }
            }
        });
    }

    /// Records the object of the request, as JSON.
    pub(crate) fn request_body(&self, json: String) {
        let raw = RawValue::from_string(json).ok();
        self.record(|event| event.request = raw);
    }

    /// Records a Status as the response.
    pub(crate) fn status(&self, status: &Status) {
        self.record(|event| event.status = Some(Outcome::from(status)));
        if self.level().0 == Level::RequestResponse {
            self.response_body(
                String::from_utf8(crate::response::status::json(status)).unwrap_or_default(),
            );
        }
    }

    /// Records the object of the response, as JSON.
    pub(crate) fn response_body(&self, json: String) {
        let raw = RawValue::from_string(json).ok();
        self.record(|event| event.response = raw);
    }

    /// Records the message of a panic of the handler.
    pub(crate) fn panicked(&self, message: &str) {
        self.state.lock().panic = Some(message.to_owned());
    }

    /// Delivers the event of the response. Returns `true` if the request is long-running, so that
    /// another event follows when it ends.
    pub(crate) async fn answered(&self, code: u16) -> bool {
        let (last, is_ongoing) = {
            let mut state = self.state.lock();
            if state.is_done || state.decision.level == Level::None {
                state.is_done = true;
                return false;
            }
            if let Some(message) = state.panic.take() {
                state.is_done = true;
                let mut status = Status::failure(500, "InternalError", "");
                status.message = format!("APIServer panic'd: {message}");
                state.event.status = Some(Outcome::from(&status));
                (Stage::Panic, false)
            } else {
                state.event.status.get_or_insert_default().code = code;
                let has_started = state.is_long_running || state.is_rejected;
                state.is_done = !state.is_long_running || state.is_rejected;
                let stage =
                    if has_started { Stage::ResponseStarted } else { Stage::ResponseComplete };
                (stage, !state.is_done)
            }
        };
        self.emit(last).await;
        is_ongoing
    }

    /// Delivers the last event, unless it was delivered with the response.
    fn ended(&self) {
        let mut stages = vec![Stage::ResponseComplete];
        {
            let mut state = self.state.lock();
            if std::mem::replace(&mut state.is_done, true) || state.decision.level == Level::None {
                return;
            }
            if state.event.status.is_none() {
                let mut status = Status::failure(200, "", "Connection closed early");
                status.status = "Success".to_owned();
                state.event.status = Some(Outcome::from(&status));
                if state.is_long_running {
                    stages.insert(0, Stage::ResponseStarted);
                }
            }
        }
        for stage in stages {
            if let Some(prepared) = self.prepare(stage) {
                self.audit.deliver_later(prepared);
            }
        }
    }

    async fn emit(&self, stage: Stage) -> bool {
        match self.prepare(stage) {
            Some(prepared) => self.audit.deliver(prepared).await,
            None => true,
        }
    }

    /// The encoded event of this stage for each output; `None` if the policy omits the stage.
    fn prepare(&self, stage: Stage) -> Option<Vec<(usize, Bytes)>> {
        let state = self.state.lock();
        if state.decision.omit_stages.has(stage) {
            return None;
        }
        self.audit.metrics.event_created();
        let at = match stage {
            Stage::RequestReceived => state.event.received,
            _ => base::clock::unix_time().max(state.event.received),
        };
        Some(self.audit.prepare(&state.event, stage, truncate_to_micros(at)))
    }
}

fn truncate_to_micros(time: Duration) -> Duration {
    Duration::new(time.as_secs(), time.subsec_micros() * 1000)
}

fn agent(headers: &HeaderMap) -> String {
    let Some(value) = headers.get(http::header::USER_AGENT) else { return String::new() };
    let bytes = value.as_bytes();
    match bytes.get(..AGENT_MAX).filter(|_| bytes.len() > AGENT_MAX) {
        Some(head) => format!("{}...TRUNCATED", String::from_utf8_lossy(head)),
        None => String::from_utf8_lossy(bytes).into_owned(),
    }
}

/// The addresses in the headers of proxies, then the peer address (`SourceIPs` of
/// `k8s.io/apimachinery/pkg/util/net`).
fn source_ips(headers: &HeaderMap, remote: Option<IpAddr>) -> Vec<String> {
    let text = |name| headers.get(name).and_then(|v: &http::HeaderValue| v.to_str().ok());
    let parse = |text: &str| text.trim().parse::<IpAddr>().ok().map(|ip| ip.to_canonical());
    let forwarded = text("x-forwarded-for").unwrap_or_default();
    let mut ips: Vec<IpAddr> = forwarded.split(',').filter_map(parse).collect();
    if let Some(real) = text("x-real-ip").and_then(parse).filter(|ip| !ips.contains(ip)) {
        ips.push(real);
    }
    let remote = remote.map(|ip| ip.to_canonical());
    if let Some(remote) = remote.filter(|ip| ips.last() != Some(ip)) {
        ips.push(remote);
    }
    ips.iter().map(IpAddr::to_string).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        let named = |(name, value): &(&'static str, &str)| {
            (http::HeaderName::from_static(name), value.parse().unwrap())
        };
        pairs.iter().map(named).collect()
    }

    #[test]
    fn source_ips_are_those_of_proxies_then_the_peer() {
        let remote = Some("10.0.0.9".parse().unwrap());
        let ips = |pairs: &[(&'static str, &str)]| source_ips(&headers(pairs), remote).join(" ");
        assert_eq!(ips(&[]), "10.0.0.9");
        assert_eq!(ips(&[("x-forwarded-for", "1.1.1.1, x, 2.2.2.2")]), "1.1.1.1 2.2.2.2 10.0.0.9");
        assert_eq!(
            ips(&[("x-forwarded-for", "1.1.1.1"), ("x-real-ip", "1.1.1.1")]),
            "1.1.1.1 10.0.0.9"
        );
        assert_eq!(ips(&[("x-real-ip", "3.3.3.3")]), "3.3.3.3 10.0.0.9");
        assert_eq!(ips(&[("x-forwarded-for", "::1, 10.0.0.9")]), "::1 10.0.0.9");
        assert_eq!(
            source_ips(&HeaderMap::new(), Some("::ffff:1.2.3.4".parse().unwrap())),
            ["1.2.3.4"]
        );
    }

    #[test]
    fn long_user_agents_are_truncated() {
        assert_eq!(agent(&headers(&[("user-agent", "kubectl")])), "kubectl");
        let long = agent(&headers(&[("user-agent", &"x".repeat(1025))]));
        assert_eq!(long, format!("{}...TRUNCATED", "x".repeat(1024)));
        assert_eq!(agent(&headers(&[("user-agent", &"x".repeat(1024))])).len(), 1024);
    }
}
