//! Plugins that upstream does not enable by default, enabled by `--profile=hardened`:
//! DenyServiceExternalIPs and EventRateLimit.

use std::collections::HashMap;

use api::Status;
use api::value::{get, items, str_in};
use async_trait::async_trait;
use parking_lot::Mutex;
use serde_json::Value;
use tokio::time::Instant;

use super::{Operation, Plugin, Request};

/// DenyServiceExternalIPs: users that can create Services must not redirect the traffic of
/// arbitrary addresses (CVE-2020-8554).
pub struct DenyServiceExternalIps;

#[async_trait]
impl Plugin for DenyServiceExternalIps {
    fn name(&self) -> &'static str {
        "DenyServiceExternalIPs"
    }

    async fn validate(&self, request: &Request<'_>, object: Option<&Value>) -> Result<(), Status> {
        let Some(service) =
            object.filter(|_| request.is("", "services") && request.subresource.is_empty())
        else {
            return Ok(());
        };
        let old = request.old.filter(|_| request.operation == Operation::Update);
        let had = old.map_or(&[] as &[Value], |old| items(get(old, "spec"), "externalIPs"));
        if items(get(service, "spec"), "externalIPs").iter().all(|ip| had.contains(ip)) {
            return Ok(());
        }
        Err(request.forbidden(object, "Use of external IPs is denied by admission control"))
    }
}

/// The burst of events per namespace.
const BURST: f64 = 1000.0;
/// The rate of events per namespace, per second.
const RATE: f64 = 100.0;
/// The number of namespaces with a bucket (upstream's `defaultCacheSize`).
const REMEMBERED_MAX: usize = 4096;

/// EventRateLimit with one limit of type Namespace.
#[derive(Default)]
pub struct EventRateLimit(Mutex<HashMap<String, Bucket>>);

/// The token bucket of a namespace.
struct Bucket {
    left: f64,
    at: Instant,
}

impl Bucket {
    fn left(&self, now: Instant) -> f64 {
        (self.left + now.duration_since(self.at).as_secs_f64() * RATE).min(BURST)
    }
}

impl EventRateLimit {
    fn take(&self, namespace: &str, now: Instant) -> bool {
        let mut all = self.0.lock();
        if all.len() >= REMEMBERED_MAX && !all.contains_key(namespace) {
            // A full bucket is the same as no bucket.
            all.retain(|_, bucket| bucket.left(now) < BURST);
            if all.len() >= REMEMBERED_MAX {
                all.clear();
            }
        }
        let bucket = all.entry(namespace.to_owned()).or_insert(Bucket { left: BURST, at: now });
        let left = bucket.left(now);
        let may = left >= 1.0;
        *bucket = Bucket { left: if may { left - 1.0 } else { left }, at: now };
        may
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
        let own = object.map(|event| str_in(event, &["metadata", "namespace"])).unwrap_or_default();
        let namespace = if request.namespace.is_empty() { own } else { request.namespace };
        if self.take(namespace, base::clock::now()) {
            return Ok(());
        }
        let text = format!("limit reached on type Namespace for key {namespace}");
        Err(Status::failure(429, "TooManyRequests", text))
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Ask, admit, creates};
    use super::*;
    use api::Gvr;
    use serde_json::json;
    use std::time::Duration;

    fn service(ips: &[&str]) -> Value {
        json!({"metadata": {"name": "s"}, "spec": {"externalIPs": ips}})
    }

    /// C2.2, C3.9: CVE-2020-8554; upstream's message, and its exception for addresses that the old
    /// object has.
    #[tokio::test]
    async fn new_external_ips_are_rejected() {
        let gvr = Gvr::new("", "v1", "services");
        let plugin = DenyServiceExternalIps;
        let made = |ips: &[&str]| admit(&plugin, creates(&gvr, "Service"), service(ips));
        assert!(made(&[]).await.is_ok());
        let refusal = made(&["192.0.2.1"]).await.unwrap_err();
        assert_eq!(
            (refusal.code, refusal.message.as_str()),
            (
                403,
                "services \"s\" is forbidden: Use of external IPs is denied by admission control"
            )
        );
        let changed = |old: &[&str], new: &[&str]| {
            let ask = Ask {
                operation: Operation::Update,
                old: Some(service(old)),
                ..creates(&gvr, "Service")
            };
            admit(&plugin, ask, service(new))
        };
        assert!(changed(&["192.0.2.1", "192.0.2.2"], &["192.0.2.2"]).await.is_ok());
        assert!(changed(&["192.0.2.1"], &["192.0.2.1", "192.0.2.2"]).await.is_err());
    }

    /// C3.9: the event rate limit applies to each namespace separately.
    #[tokio::test]
    async fn events_are_limited_per_namespace() {
        let (plugin, now) = (EventRateLimit::default(), base::clock::now());
        assert_eq!((0..1100).filter(|_| plugin.take("a", now)).count(), 1000);
        assert!(plugin.take("b", now));
        let later = now + Duration::from_millis(105);
        assert_eq!((0..1100).filter(|_| plugin.take("a", later)).count(), 10);
        let many = |i: i32| plugin.take(&i.to_string(), later);
        assert!((0..5000).all(many));
        assert!(plugin.0.lock().len() <= REMEMBERED_MAX);
        while plugin.take("a", later) {}
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
}
