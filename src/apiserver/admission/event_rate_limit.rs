//! EventRateLimit: limits how many events are written, in all, or by namespace, user, or source and
//! object (upstream's `eventratelimit`).

use std::collections::HashMap;

use api::Status;
use api::value::{get, str_at, str_in};
use async_trait::async_trait;
use parking_lot::Mutex;
use serde_json::Value;
use tokio::time::Instant;

use super::{Operation, Plugin, Request};

/// The number of keys with a bucket (upstream's `defaultCacheSize`).
const CACHE_SIZE: usize = 4096;

/// What a limit counts by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LimitType {
    /// All events of the server together.
    Server,
    /// The namespace of the event.
    Namespace,
    /// The user of the request.
    User,
    /// Source and object of the event.
    SourceAndObject,
}

impl LimitType {
    /// The name in a configuration file.
    pub fn name(self) -> &'static str {
        match self {
            Self::Server => "Server",
            Self::Namespace => "Namespace",
            Self::User => "User",
            Self::SourceAndObject => "SourceAndObject",
        }
    }

    fn key(self, request: &Request<'_>, event: Option<&Value>) -> String {
        match (self, event) {
            (Self::Server, _) => String::new(),
            (Self::Namespace, event) => {
                let own = event.map(|event| str_in(event, &["metadata", "namespace"]));
                match request.namespace {
                    "" => own.unwrap_or_default().to_owned(),
                    namespace => namespace.to_owned(),
                }
            }
            (Self::User, _) => request.user.name.clone(),
            (Self::SourceAndObject, None) => String::new(),
            (Self::SourceAndObject, Some(event)) => {
                let (source, object) = (get(event, "source"), get(event, "involvedObject"));
                let fields = ["kind", "namespace", "name", "uid", "apiVersion"];
                let object = fields.map(|field| str_at(object, field));
                [[str_at(source, "component"), str_at(source, "host")].concat(), object.concat()]
                    .concat()
            }
        }
    }
}

/// One limit.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct EventLimit {
    /// What it counts by.
    pub kind: LimitType,
    /// Events per second.
    pub rate: f64,
    /// Events at once.
    pub burst: f64,
    /// Keys with a bucket.
    pub cache: usize,
}

impl EventLimit {
    /// The limit of `--profile=hardened`.
    pub const HARDENED: Self =
        Self { kind: LimitType::Namespace, rate: 100.0, burst: 1000.0, cache: CACHE_SIZE };

    /// A limit of a configuration file; a `cache` of zero is upstream's default.
    pub fn new(kind: LimitType, rate: f64, burst: f64, cache: usize) -> Self {
        Self { kind, rate, burst, cache: if cache == 0 { CACHE_SIZE } else { cache } }
    }
}

/// The token bucket of a key.
struct Bucket {
    left: f64,
    at: Instant,
}

/// A limit and its buckets.
struct Limiter {
    limit: EventLimit,
    buckets: Mutex<HashMap<String, Bucket>>,
}

impl Limiter {
    fn left(&self, bucket: &Bucket, now: Instant) -> f64 {
        let gained = now.duration_since(bucket.at).as_secs_f64() * self.limit.rate;
        (bucket.left + gained).min(self.limit.burst)
    }

    fn take(&self, key: &str, now: Instant) -> bool {
        let mut all = self.buckets.lock();
        if all.len() >= self.limit.cache && !all.contains_key(key) {
            // A full bucket is the same as no bucket.
            all.retain(|_, bucket| self.left(bucket, now) < self.limit.burst);
            if all.len() >= self.limit.cache {
                all.clear();
            }
        }
        let full = Bucket { left: self.limit.burst, at: now };
        let bucket = all.entry(key.to_owned()).or_insert(full);
        let left = self.left(bucket, now);
        let may = left >= 1.0;
        *bucket = Bucket { left: if may { left - 1.0 } else { left }, at: now };
        may
    }
}

/// The plugin.
pub struct EventRateLimit(Vec<Limiter>);

impl EventRateLimit {
    /// Applies these limits.
    pub fn new(limits: &[EventLimit]) -> Self {
        let limiter = |limit: &EventLimit| Limiter { limit: *limit, buckets: Mutex::default() };
        Self(limits.iter().map(limiter).collect())
    }
}

#[async_trait]
impl Plugin for EventRateLimit {
    fn name(&self) -> &'static str {
        "EventRateLimit"
    }

    async fn validate(&self, request: &Request<'_>, object: Option<&Value>) -> Result<(), Status> {
        let event = &*request.gvr.resource == "events"
            && matches!(&*request.gvr.group, "" | "events.k8s.io")
            && matches!(request.operation, Operation::Create | Operation::Update);
        if !event || request.dry_run {
            return Ok(());
        }
        let now = base::clock::now();
        // Every limit counts the event, as upstream.
        let mut refused = None;
        for limiter in &self.0 {
            let key = limiter.limit.kind.key(request, object);
            if !limiter.take(&key, now) {
                let kind = limiter.limit.kind.name();
                refused = Some(format!("limit reached on type {kind} for key {key}"));
            }
        }
        match refused {
            Some(text) => Err(Status::failure(429, "TooManyRequests", text)),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{admit, creates};
    use super::*;
    use api::Gvr;
    use serde_json::json;
    use std::time::Duration;

    /// C3.9: the event rate limit applies to each namespace separately.
    #[tokio::test]
    async fn events_are_limited_per_namespace() {
        let (plugin, now) = (EventRateLimit::new(&[EventLimit::HARDENED]), base::clock::now());
        let take = |key: &str, at: Instant| plugin.0[0].take(key, at);
        assert_eq!((0..1100).filter(|_| take("a", now)).count(), 1000);
        assert!(take("b", now));
        let later = now + Duration::from_millis(105);
        assert_eq!((0..1100).filter(|_| take("a", later)).count(), 10);
        assert!((0..5000).all(|i: i32| take(&i.to_string(), later)));
        assert!(plugin.0[0].buckets.lock().len() <= CACHE_SIZE);
        while take("a", later) {}
        let gvr = Gvr::new("", "v1", "events");
        let refusals = async {
            let mut refused = Vec::new();
            for _ in 0..2000 {
                refused.extend(admit(&plugin, creates(&gvr, "Event"), json!({})).await.err());
            }
            refused
        };
        let first = refusals.await.into_iter().next().unwrap();
        let text = "limit reached on type Namespace for key a";
        assert_eq!((first.code, first.message.as_str()), (429, text));
    }

    #[tokio::test]
    async fn each_type_has_its_key() {
        let gvr = Gvr::new("", "v1", "events");
        let event = || {
            json!({
                "source": {"component": "c", "host": "h"},
                "involvedObject": {"kind": "Pod", "namespace": "a", "name": "n", "uid": "u"},
            })
        };
        for (kind, want) in [
            (LimitType::Server, "limit reached on type Server for key "),
            (LimitType::SourceAndObject, "limit reached on type SourceAndObject for key chPodanu"),
        ] {
            let plugin = EventRateLimit::new(&[EventLimit::new(kind, 0.001, 1.0, 0)]);
            assert!(admit(&plugin, creates(&gvr, "Event"), event()).await.is_ok());
            let refused = admit(&plugin, creates(&gvr, "Event"), event()).await.unwrap_err();
            assert_eq!(refused.message, want);
        }
    }
}
