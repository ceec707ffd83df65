//! Tracks the use of deprecated APIs: for the metric, audit annotations and `kube-lite status`.

use std::collections::BTreeMap;
use std::time::Duration;

use api::Gvr;
use http::HeaderMap;
use parking_lot::Mutex;

use crate::audit;
use crate::metrics::requests::DEPRECATED;
use crate::request::user::User;

/// The maximum number of rows: users can define deprecated versions with CustomResourceDefinitions.
const ROWS_MAX: usize = 1000;
/// The maximum length of a client name, in characters.
const CLIENT_MAX: usize = 64;
/// The audit annotation of such a request (`deprecatedAnnotationKey` of upstream's metrics).
const ANNOTATION: &str = "k8s.io/deprecated";

/// A deprecated API that was requested since this server started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Deprecated {
    /// The group, empty for core.
    pub group: String,
    /// The version.
    pub version: String,
    /// The resource, with the subresource after a `/`.
    pub resource: String,
    /// The number of requests.
    pub count: u64,
    /// The Unix times of the first and the last request.
    pub times: (Duration, Duration),
    /// The user of the last request.
    pub user: String,
    /// The client name in its `User-Agent`; empty without one.
    pub client: String,
}

/// The deprecated APIs that were requested, by group, version and resource.
#[derive(Debug, Default)]
pub(crate) struct DeprecatedApiUsage(Mutex<BTreeMap<[String; 3], Deprecated>>);

impl DeprecatedApiUsage {
    /// Records a request of `user` for a deprecated API.
    pub(crate) fn record(&self, gvr: &Gvr, subresource: &str, user: &User, headers: &HeaderMap) {
        audit::annotate(ANNOTATION, || "true".to_owned());
        // No served API has a removed release.
        DEPRECATED.set(&[&gvr.group, "", &gvr.resource, subresource, &gvr.version], 1.0);
        let resource = match subresource {
            "" => gvr.resource.to_string(),
            subresource => format!("{}/{subresource}", gvr.resource),
        };
        let agent = headers.get(http::header::USER_AGENT);
        let agent = agent.and_then(|agent| agent.to_str().ok()).unwrap_or_default();
        let client = agent.split(' ').next().unwrap_or_default();
        let now = base::clock::unix_time();
        let key = [gvr.group.to_string(), gvr.version.to_string(), resource];
        if is_own_component(&user.name, client) {
            return;
        }
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
        row.user.clone_from(&user.name);
        row.client = client.chars().take(CLIENT_MAX).collect();
    }

    /// All rows, ordered by group, version and resource.
    pub(crate) fn all(&self) -> Vec<Deprecated> {
        self.0.lock().values().cloned().collect()
    }
}

/// Whether the request comes from a component of this program, by its user and client name: users
/// cannot change what it uses. Another program with the same credentials has another client name.
fn is_own_component(user: &str, client: &str) -> bool {
    let component = match user {
        "system:apiserver" => "kube-apiserver",
        "system:kube-controller-manager" => "kube-controller-manager",
        "system:kube-scheduler" => "kube-scheduler",
        "system:kube-proxy" => "kube-proxy",
        user => match user.strip_prefix("system:serviceaccount:kube-system:") {
            Some(account) => account,
            None if user.starts_with("system:node:") => "kubelet",
            None => return false,
        },
    };
    client == component
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_components_are_recognized_by_user_and_client_name() {
        for (user, client, own) in [
            ("system:serviceaccount:kube-system:endpoint-controller", "endpoint-controller", true),
            ("system:serviceaccount:kube-system:endpoint-controller", "kubectl/v1.37.1", false),
            ("system:serviceaccount:kube-system:traefik", "traefik/3.0", false),
            ("system:serviceaccount:default:endpoint-controller", "endpoint-controller", false),
            ("system:kube-controller-manager", "kube-controller-manager", true),
            ("system:node:a", "kubelet", true),
            ("system:node:a", "", false),
            ("jane", "kubelet", false),
        ] {
            assert_eq!(is_own_component(user, client), own, "{user} {client}");
        }
    }
}
