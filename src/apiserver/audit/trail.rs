//! One request on its way: what is recorded of it, gathered where it happens, and handed over stage
//! by stage.

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

/// Bytes of a user agent that are recorded (`maxUserAgentLength`).
const AGENT_MAX: usize = 1024;

/// Keeps a request that lives long in the records until all parts of it are gone.
#[derive(Clone)]
pub(crate) struct Ongoing {
    _end: Arc<End>,
}

impl std::fmt::Debug for Ongoing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Ongoing")
    }
}

impl Ongoing {
    /// Of this request.
    pub(crate) fn new(trail: &Arc<Trail>) -> Self {
        Self { _end: Arc::new(End(Arc::clone(trail))) }
    }
}

/// With the last of these the request is over.
struct End(Arc<Trail>);

impl Drop for End {
    fn drop(&mut self) {
        self.0.ended();
    }
}

/// What is known of one request.
pub(crate) struct Trail {
    audit: Arc<Audit>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    event: Event,
    decision: Decision,
    decided: bool,
    /// It was refused before anybody was found to ask: one event tells all.
    refused: bool,
    lives_long: bool,
    panicked: Option<String>,
    done: bool,
}

impl Trail {
    /// Of a request that came now.
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
        self.audit.counts.level(decision.level);
        let mut state = self.state.lock();
        state.decision = decision;
        state.decided = true;
        state.lives_long = info.is_long_running();
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

    /// Who asks is known: the policy decides. `false` when the request has to be recorded and
    /// cannot be.
    pub(crate) async fn received(&self, user: &User, info: &RequestInfo) -> bool {
        if self.begin(Some(user), info) == Level::None {
            return true;
        }
        let taken = self.emit(Stage::RequestReceived).await;
        if !taken {
            self.audit.counts.rejected();
            self.state.lock().done = true;
        }
        taken
    }

    /// The request is refused before anybody was found to ask.
    pub(crate) fn refused(&self, info: &RequestInfo) {
        self.begin(None, info);
        self.state.lock().refused = true;
    }

    /// It goes on as another user.
    pub(crate) fn impersonated(&self, user: &User) {
        self.record(|event| event.impersonated = Some(user.clone()));
    }

    /// Something that a part of the server says of the request; what was said first stands.
    pub(crate) fn annotate(&self, key: &str, value: impl FnOnce() -> String) {
        let mut state = self.state.lock();
        // Who finds out who asks speaks before the policy does.
        if state.decided && state.decision.level == Level::None {
            return;
        }
        let annotations = &mut state.event.annotations;
        if !annotations.contains_key(key) {
            annotations.insert(key.to_owned(), value());
        }
    }

    fn record(&self, note: impl FnOnce(&mut Event)) {
        let mut state = self.state.lock();
        if state.decision.level != Level::None {
            note(&mut state.event);
        }
    }

    /// The id of the request.
    pub(super) fn id(&self) -> String {
        self.state.lock().event.id.clone()
    }

    /// How much is recorded, and whether without managed fields.
    pub(crate) fn level(&self) -> (Level, bool) {
        let state = self.state.lock();
        (state.decision.level, state.decision.omit_managed_fields)
    }

    /// The object in the body: it says what the URL does not.
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

    /// What the request carries, as JSON.
    pub(crate) fn request_body(&self, json: String) {
        let raw = RawValue::from_string(json).ok();
        self.record(|event| event.request = raw);
    }

    /// The answer is this Status.
    pub(crate) fn status(&self, status: &Status) {
        self.record(|event| event.status = Some(Outcome::from(status)));
        if self.level().0 == Level::RequestResponse {
            self.response_body(
                String::from_utf8(crate::response::status::json(status)).unwrap_or_default(),
            );
        }
    }

    /// What the answer carries, as JSON.
    pub(crate) fn response_body(&self, json: String) {
        let raw = RawValue::from_string(json).ok();
        self.record(|event| event.response = raw);
    }

    /// A fault of this program ended it.
    pub(crate) fn panicked(&self, why: &str) {
        self.state.lock().panicked = Some(why.to_owned());
    }

    /// The answer is made: what is left to say is said, but for the end of what lives long, of
    /// which `true` tells.
    pub(crate) async fn answered(&self, code: u16) -> bool {
        let (last, goes_on) = {
            let mut state = self.state.lock();
            if state.done || state.decision.level == Level::None {
                state.done = true;
                return false;
            }
            if let Some(why) = state.panicked.take() {
                state.done = true;
                let mut status = Status::failure(500, "InternalError", "");
                status.message = format!("APIServer panic'd: {why}");
                state.event.status = Some(Outcome::from(&status));
                (Stage::Panic, false)
            } else {
                state.event.status.get_or_insert_default().code = code;
                let started = state.lives_long || state.refused;
                state.done = !state.lives_long || state.refused;
                let stage = if started { Stage::ResponseStarted } else { Stage::ResponseComplete };
                (stage, !state.done)
            }
        };
        self.emit(last).await;
        goes_on
    }

    /// Nothing of the request is left.
    fn ended(&self) {
        let mut stages = vec![Stage::ResponseComplete];
        {
            let mut state = self.state.lock();
            if std::mem::replace(&mut state.done, true) || state.decision.level == Level::None {
                return;
            }
            if state.event.status.is_none() {
                let mut status = Status::failure(200, "", "Connection closed early");
                status.status = "Success".to_owned();
                state.event.status = Some(Outcome::from(&status));
                if state.lives_long {
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

    /// What each backend gets of this stage.
    fn prepare(&self, stage: Stage) -> Option<Vec<(usize, Bytes)>> {
        let state = self.state.lock();
        if state.decision.omit_stages.has(stage) {
            return None;
        }
        self.audit.counts.event();
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

/// Those that proxies name, then the other end (`SourceIPs` of `k8s.io/apimachinery/pkg/util/net`).
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
    fn addresses_come_from_proxies_and_the_connection() {
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
    fn long_user_agents_are_cut() {
        assert_eq!(agent(&headers(&[("user-agent", "kubectl")])), "kubectl");
        let long = agent(&headers(&[("user-agent", &"x".repeat(1025))]));
        assert_eq!(long, format!("{}...TRUNCATED", "x".repeat(1024)));
        assert_eq!(agent(&headers(&[("user-agent", &"x".repeat(1024))])).len(), 1024);
    }
}
