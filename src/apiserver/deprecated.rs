//! Which deprecated APIs are still asked for, and by whom: for the metric, the events of a request, and `kube-lite status`.

use std::collections::BTreeMap;
use std::time::Duration;

use parking_lot::Mutex;

use crate::audit;
use crate::context::Context;
use crate::meters::requests::DEPRECATED;

/// Kept: definitions of the cluster may be many, and anybody may define one.
const ROWS_MAX: usize = 1000;
/// Characters of a client's name that are kept.
const CLIENT_MAX: usize = 64;
/// What events say of such a request (`deprecatedAnnotationKey` of upstream's metrics).
const ANNOTATION: &str = "k8s.io/deprecated";

/// A deprecated API that was asked for since this server started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Deprecated {
    /// Its group, empty for the core.
    pub group: String,
    /// Its version.
    pub version: String,
    /// Its resource, with the subresource behind a `/`.
    pub resource: String,
    /// How often.
    pub count: u64,
    /// The first and the last time, as Unix times.
    pub times: (Duration, Duration),
    /// Who asked last.
    pub user: String,
    /// What program they have, as it says itself; empty where it says nothing.
    pub client: String,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Book(Mutex<BTreeMap<[String; 3], Deprecated>>);

impl Book {
    /// A request for a deprecated API, which is warned of.
    pub(crate) fn note(&self, context: &Context, warning: String) {
        audit::annotate(ANNOTATION, || "true".to_owned());
        context.warn(warning);
        let gvr = &context.row.spec.gvr;
        let subresource = context.subresource.as_ref().map_or("", |of| &*of.name);
        // No API that is served has a release in which it is gone.
        DEPRECATED.set(&[&gvr.group, "", &gvr.resource, subresource, &gvr.version], 1.0);
        let resource = match subresource {
            "" => gvr.resource.to_string(),
            subresource => format!("{}/{subresource}", gvr.resource),
        };
        let agent = context.headers.get(http::header::USER_AGENT);
        let agent = agent.and_then(|agent| agent.to_str().ok()).unwrap_or_default();
        let client = agent.split(' ').next().unwrap_or_default();
        let now = base::clock::unix_time();
        let key = [gvr.group.to_string(), gvr.version.to_string(), resource];
        let mut rows = self.0.lock();
        if rows.len() >= ROWS_MAX && !rows.contains_key(&key) {
            return;
        }
        let [group, version, resource] = key.clone();
        let row = rows.entry(key).or_insert_with(|| Deprecated {
            group,
            version,
            resource,
            count: 0,
            times: (now, now),
            user: String::new(),
            client: String::new(),
        });
        row.count += 1;
        row.times.1 = now;
        row.user.clone_from(&context.user.name);
        row.client = client.chars().take(CLIENT_MAX).collect();
    }

    /// All of them, by group, version and resource.
    pub(crate) fn all(&self) -> Vec<Deprecated> {
        self.0.lock().values().cloned().collect()
    }
}
