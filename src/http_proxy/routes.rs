//! The routes of a listener: immutable, compiled from objects, exchanged as a whole.

pub mod affinity;
pub mod auth;
pub mod canary;
pub mod cors;
pub mod edits;
pub mod hosts;
pub mod path;
pub mod pattern;

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, request};
use regex::Regex;
use settings::Cidr;

use crate::backend::{Backend, Split};
use affinity::Affinity;
use auth::BasicAuth;
use canary::Canary;
use cors::Cors;
use edits::{HeaderEdits, Redirect, Rewrite};
use hosts::{HostMap, WildcardLabels};
use path::{PathMap, PathMatch};

/// Compares the value of a header or of a query parameter.
#[derive(Debug, Clone)]
pub enum ValueMatch {
    /// Equal, case sensitive.
    Exact(String),
    /// The expression matches the whole value.
    Regex(Regex),
}

impl ValueMatch {
    fn matches(&self, value: &str) -> bool {
        match self {
            Self::Exact(wanted) => wanted == value,
            Self::Regex(regex) => regex.is_match(value),
        }
    }
}

/// What a rule requires of a request beyond host and path; all must hold.
#[derive(Debug, Clone, Default)]
pub struct Conditions {
    /// The method.
    pub method: Option<Method>,
    /// Headers; the values of a repeated field are joined by commas (RFC 9110, 5.2).
    pub headers: Vec<(HeaderName, ValueMatch)>,
    /// Query parameters; of a repeated parameter the first counts.
    pub queries: Vec<(String, ValueMatch)>,
}

impl Conditions {
    fn hold(&self, request: &request::Parts) -> bool {
        self.method.as_ref().is_none_or(|method| *method == request.method)
            && self.headers.iter().all(|(name, wanted)| {
                header(&request.headers, name).is_some_and(|value| wanted.matches(&value))
            })
            && self.queries.iter().all(|(name, wanted)| {
                let query = request.uri.query().unwrap_or_default();
                parameter(query, name).is_some_and(|value| wanted.matches(&value))
            })
    }

    /// Conditions that come earlier win: a method, then more headers, then more parameters (the
    /// order of `HTTPRouteRule.matches`).
    fn rank(&self) -> (bool, std::cmp::Reverse<usize>, std::cmp::Reverse<usize>) {
        let count = |length| std::cmp::Reverse(length);
        (self.method.is_none(), count(self.headers.len()), count(self.queries.len()))
    }
}

fn header<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<Cow<'a, str>> {
    let mut values = headers.get_all(name).iter().filter_map(|value| value.to_str().ok());
    let first = values.next()?;
    let rest: Vec<&str> = values.collect();
    if rest.is_empty() {
        return Some(first.into());
    }
    Some(format!("{first},{}", rest.join(",")).into())
}

/// The first value of a query parameter, decoded.
fn parameter<'a>(query: &'a str, name: &str) -> Option<Cow<'a, str>> {
    let mut pairs = query.split('&').map(|pair| pair.split_once('=').unwrap_or((pair, "")));
    let (_, value) = pairs.find(|(key, _)| decoded(key) == name)?;
    Some(decoded(value))
}

/// A form-encoded text; invalid escapes stay as they are.
fn decoded(text: &str) -> Cow<'_, str> {
    if !text.contains(['%', '+']) {
        return text.into();
    }
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while let Some(byte) = bytes.get(at) {
        let escape = text.get(at + 1..at + 3).filter(|_| *byte == b'%');
        match escape.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(value) => {
                out.push(value);
                at += 3;
            }
            None => {
                out.push(if *byte == b'+' { b' ' } else { *byte });
                at += 1;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned().into()
}

/// How long parts of an exchange may take; `None` is unlimited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timeouts {
    /// From the request's head to the response's head, over all attempts.
    pub request: Option<Duration>,
    /// The same for one attempt.
    pub backend: Option<Duration>,
    /// Within an attempt, from the last part of the request's body to the response's head (nginx's
    /// `proxy_read_timeout`); it may take twice as long until it is noticed.
    pub read: Option<Duration>,
    /// Between two parts of the response's body; unlimited without `proxy-read-timeout`, so that
    /// streams of events may pause.
    pub pause: Option<Duration>,
    /// For a new connection to an endpoint.
    pub connect: Duration,
}

impl Default for Timeouts {
    /// nginx's defaults: 60 s for the response. A connection inside the cluster takes 5 s at most,
    /// so that the next endpoint is tried soon.
    fn default() -> Self {
        Self {
            request: None,
            backend: None,
            read: Some(Duration::from_secs(60)),
            pause: None,
            connect: Duration::from_secs(5),
        }
    }
}

/// A backend that gets a copy of requests; its responses are dropped.
#[derive(Debug, Clone)]
pub struct Mirror {
    /// Where to; `None` is a backend that does not exist or is not allowed.
    pub backend: Option<Arc<Backend>>,
    /// The share of the requests: numerator and denominator.
    pub share: (u32, u32),
}

/// When a request is sent again. Requests with a body are sent once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Retry {
    /// Status codes of responses that are not passed on while attempts are left.
    pub codes: Vec<u16>,
    /// Attempts after the first one.
    pub attempts: u32,
    /// Time before another attempt.
    pub backoff: Duration,
}

/// How requests of a rule are forwarded.
#[derive(Debug, Default)]
pub struct Forward {
    /// Where to.
    pub split: Split,
    /// Changes of the request's headers.
    pub request_headers: HeaderEdits,
    /// Changes of the response's headers.
    pub response_headers: HeaderEdits,
    /// Changes of host and path.
    pub rewrite: Option<Rewrite>,
    /// Limits of time.
    pub timeouts: Timeouts,
    /// Largest body of a request in bytes; 0 is unlimited.
    pub body_bytes_max: u64,
    /// Clients that are served; empty is all.
    pub sources: Vec<Cidr>,
    /// Requests over plain HTTP are redirected to HTTPS.
    pub https_only: bool,
    /// Backends that get copies.
    pub mirrors: Vec<Mirror>,
    /// Cross-origin requests.
    pub cors: Option<Cors>,
    /// Repeated attempts.
    pub retry: Option<Retry>,
    /// Another backend for some requests.
    pub canary: Option<Canary>,
    /// Sessions.
    pub affinity: Option<Affinity>,
    /// Names and passwords of clients.
    pub auth: Option<Arc<BasicAuth>>,
    /// Instead of backends without endpoints.
    pub fallback: Option<Arc<Backend>>,
}

/// What a rule does with a request.
#[derive(Debug)]
pub enum Action {
    /// Sends it to a backend.
    Forward(Box<Forward>),
    /// Answers with a redirect.
    Redirect(Redirect),
    /// Answers with a redirect to the same place for each request.
    Location(StatusCode, HeaderValue),
    /// Answers with a status.
    Status(StatusCode),
}

/// One rule of a route.
#[derive(Debug)]
pub struct Rule {
    /// The object it comes from, `namespace/name`, for logs and metrics.
    pub source: Arc<str>,
    /// Among rules of one path and equal conditions, the smaller one wins: the creation of the
    /// object in seconds since 1970, its `namespace/name`, the position in the object.
    pub order: (i64, Arc<str>, usize),
    /// What it requires beyond host and path.
    pub conditions: Conditions,
    /// What it does.
    pub action: Action,
}

/// The routes of one listener.
#[derive(Debug)]
pub struct Routes {
    hosts: HostMap<PathMap<Arc<Rule>>>,
    /// For requests without a rule.
    default: Option<Arc<Rule>>,
    /// Rules of less specific hosts follow those of a host.
    falls_through: bool,
    /// Listeners that share the port, each with routes of its own (Gateway API's isolation).
    listeners: Option<HostMap<Arc<Routes>>>,
}

impl Routes {
    /// No routes.
    pub fn new(labels: WildcardLabels) -> Self {
        let falls_through = labels == WildcardLabels::Many;
        Self { hosts: HostMap::new(labels), default: None, falls_through, listeners: None }
    }

    /// The listeners of one port, by host: a request belongs to the one with the most specific host
    /// and never reaches the routes of another.
    pub fn of_listeners(listeners: HostMap<Arc<Routes>>) -> Self {
        Self { listeners: Some(listeners), ..Self::new(WildcardLabels::Many) }
    }

    /// Whether two host names belong to different listeners, as in a request over a TLS connection
    /// that was made for another name (RFC 9110, 15.5.20).
    pub fn is_misdirected(&self, server_name: &str, host: &str) -> bool {
        let Some(listeners) = &self.listeners else { return false };
        match (listeners.get(server_name), listeners.get(host)) {
            (Some(of_connection), Some(of_request)) => !Arc::ptr_eq(of_connection, of_request),
            (None, Some(_)) => true,
            (_, None) => false,
        }
    }

    /// Adds a rule for a host as objects write it.
    pub fn insert(&mut self, host: &str, path: &PathMatch, rule: Arc<Rule>) {
        self.hosts.entry(host, PathMap::default).insert(path, rule);
    }

    /// Sets the rule for requests without one, unless an older one has it.
    pub fn set_default(&mut self, rule: Arc<Rule>) {
        if self.default.as_ref().is_none_or(|old| rule.order < old.order) {
            self.default = Some(rule);
        }
    }

    /// Sorts the rules of each path; to be called once after the last insertion.
    pub fn sort(&mut self) {
        for list in self.hosts.values_mut().flat_map(PathMap::lists_mut) {
            list.sort_by(|a, b| {
                let (left, right) = (a.conditions.rank(), b.conditions.rank());
                left.cmp(&right).then_with(|| a.order.cmp(&b.order))
            });
        }
    }

    /// The rule for a request; `host` and `path` are normalized.
    pub fn find(&self, host: &str, path: &str, request: &request::Parts) -> Option<&Arc<Rule>> {
        if let Some(listeners) = &self.listeners {
            return listeners.get(host)?.find(host, path, request);
        }
        // Gateway API: a request without a rule of its host gets one of a less specific host.
        let hosts = if self.falls_through { usize::MAX } else { 1 };
        let holds = |rule: &Arc<Rule>| rule.conditions.hold(request);
        let mut of_hosts = self.hosts.matching(host).take(hosts);
        of_hosts.find_map(|paths| paths.find(path, holds)).or(self.default.as_ref())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(name: &str, created: i64, conditions: Conditions) -> Arc<Rule> {
        let source: Arc<str> = name.into();
        let action = Action::Status(StatusCode::OK);
        Arc::new(Rule {
            source: Arc::clone(&source),
            order: (created, source, 0),
            conditions,
            action,
        })
    }

    fn with_header(name: &'static str, value: &str) -> Conditions {
        let wanted = ValueMatch::Exact(value.to_owned());
        let headers = vec![(HeaderName::from_static(name), wanted)];
        Conditions { headers, ..Conditions::default() }
    }

    fn found(routes: &Routes, request: http::request::Builder) -> Option<String> {
        let (parts, ()) = request.body(()).unwrap().into_parts();
        let host = hosts::normalized(parts.uri.host().unwrap_or_default()).into_owned();
        let rule = routes.find(&host, parts.uri.path(), &parts)?;
        Some(rule.source.to_string())
    }

    // The order of `HTTPRouteRule.matches`: method, number of headers, number of parameters, the
    // older route, the first by name.
    #[test]
    fn rules_of_one_path_are_ordered_by_their_conditions_then_age_then_name() {
        let mut routes = Routes::new(WildcardLabels::Many);
        let root = PathMatch::Prefix("/".into());
        let wanted = |value: &str| ValueMatch::Exact(value.to_owned());
        let query = vec![("q".to_owned(), wanted("a b"))];
        let post = Conditions { method: Some(Method::POST), ..Conditions::default() };
        for (name, created, conditions) in [
            ("n/plain-young", 2, Conditions::default()),
            ("n/plain-b", 1, Conditions::default()),
            ("n/plain-a", 1, Conditions::default()),
            ("n/query", 9, Conditions { queries: query, ..Conditions::default() }),
            ("n/header", 9, with_header("x-kind", "blue,green")),
            ("n/post", 9, post),
        ] {
            routes.insert("a.example", &root, rule(name, created, conditions));
        }
        routes.sort();
        let get = |uri: &str| http::Request::get(uri);
        let at = "http://a.example/x";
        assert_eq!(found(&routes, get(at)).as_deref(), Some("n/plain-a"));
        assert_eq!(found(&routes, get("http://a.example/x?z&q=a%20b")).as_deref(), Some("n/query"));
        assert_eq!(
            found(&routes, get("http://a.example/x?q=b&q=a+b")).as_deref(),
            Some("n/plain-a")
        );
        let two =
            get("http://a.example/x?q=a+b").header("X-Kind", "blue").header("x-kind", "green");
        assert_eq!(found(&routes, two).as_deref(), Some("n/header"));
        let post = http::Request::post(at).header("x-kind", "blue,green");
        assert_eq!(found(&routes, post).as_deref(), Some("n/post"));
    }

    #[test]
    fn the_oldest_default_answers_what_has_no_rule() {
        let mut routes = Routes::new(WildcardLabels::One);
        let exact = PathMatch::Exact("/a".into());
        routes.insert("a.example", &exact, rule("n/a", 5, Conditions::default()));
        routes.set_default(rule("n/old", 1, Conditions::default()));
        routes.set_default(rule("n/young", 2, Conditions::default()));
        routes.sort();
        for (uri, name) in [
            ("http://a.example/a", "n/a"),
            ("http://a.example/b", "n/old"),
            ("http://b.example/a", "n/old"),
        ] {
            assert_eq!(found(&routes, http::Request::get(uri)).as_deref(), Some(name), "{uri}");
        }
    }
}
