//! The availability of an aggregated API server: determined from its Service and endpoints, then by
//! a request (upstream's `remote_available_controller.go`, with its reasons and messages).

use std::sync::Arc;
use std::time::Duration;

use api::value::{get, int_at, is_empty, items, str_at, str_in};
use base::Backoff;
use serde_json::{Value, json};

use super::Remote;
use super::remote::RemoteError;
use crate::registry::metadata;
use crate::registry::objects::Objects;
use lookup::Lookup;

/// The interval between checks without changes (upstream's resync).
const INTERVAL: Duration = Duration::from_secs(30);
/// The timeout of a check.
const CHECK_MAX: Duration = Duration::from_secs(5);
/// The maximum size of a resource list.
const RESOURCES_BYTES_MAX: usize = 4 << 20;
/// The number of attempts to write a status after conflicts.
const RETRY_MAX: usize = 5;

/// The condition `Available`, without its time.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Condition {
    status: &'static str,
    reason: &'static str,
    message: String,
}

impl Condition {
    fn no(reason: &'static str, message: String) -> Self {
        Self { status: "False", reason, message }
    }
}

/// Checks the remote on each change of its dependencies and every 30 s, and writes the condition
/// into its APIService. Ends with the remote.
pub(super) async fn watch(remote: Arc<Remote>, objects: Arc<Objects>) {
    // An unavailable remote is checked more often, as in upstream's queue.
    let mut backoff = Backoff::new(Duration::from_millis(50), INTERVAL);
    loop {
        let condition = check(&remote, &objects).await;
        let failed = condition.reason == "FailedDiscoveryCheck";
        // Update before the condition is written: a client that reads the condition may send
        // requests at once.
        let (was, is) = (remote.is_available(), condition.status == "True");
        if was && !is {
            crate::metrics::requests::APISERVICE_UNAVAILABLE.inc(&[&remote.name, condition.reason]);
        }
        remote.set_available(is);
        if is {
            remote.describe().await;
        }
        if !remote.is_ended() {
            write(&remote, &objects, &condition).await;
        }
        let pause = if failed {
            backoff.next_delay()
        } else {
            backoff.reset();
            INTERVAL
        };
        tokio::select! {
            () = remote.changed() => {}
            () = base::clock::sleep(pause) => {}
        }
        if remote.is_ended() {
            return;
        }
    }
}

async fn check(remote: &Remote, objects: &Objects) -> Condition {
    let service = objects.get(&lookup::SERVICES, &remote.namespace, &remote.service).await;
    let unknown = |reason, error: &api::Status| {
        let (service, namespace) = (&remote.service, &remote.namespace);
        let message =
            format!("service/{service} in \"{namespace}\" cannot be checked due to: {error}");
        Condition { status: "Unknown", reason, message }
    };
    let service = match service.and_then(lookup::value) {
        Ok(service) => service,
        Err(error) => return unknown("ServiceAccessError", &error),
    };
    let slices = match objects.list(&lookup::ENDPOINT_SLICES, &remote.namespace).await {
        Ok(slices) => slices,
        Err(error) => return unknown("EndpointsAccessError", &error),
    };
    let slices: Vec<Value> = slices
        .iter()
        .filter(|s| s.label("kubernetes.io/service-name") == Some(remote.service.as_str()))
        .filter_map(|s| s.value().ok())
        .collect();
    if let Some(why) = decide(remote, service.as_ref(), &slices) {
        return why;
    }
    match fetch_resources(remote).await {
        Ok(()) => {
            Condition { status: "True", reason: "Passed", message: "all checks passed".to_owned() }
        }
        Err(error) => Condition::no("FailedDiscoveryCheck", error.to_string()),
    }
}

/// The reason why the remote is unavailable, without a request to it.
fn decide(remote: &Remote, service: Option<&Value>, slices: &[Value]) -> Option<Condition> {
    let (name, namespace) = (&remote.service, api::field::go_quote(&remote.namespace));
    let Some(service) = service else {
        let message = format!("service/{name} in {namespace} is not present");
        return Some(Condition::no("ServiceNotFound", message));
    };
    if !matches!(str_in(service, &["spec", "type"]), "" | "ClusterIP") {
        return None;
    }
    let ports = items(get(service, "spec"), "ports");
    let Some(port) = ports.iter().find(|p| int_at(p, "port") == Some(i64::from(remote.port)))
    else {
        let port = remote.port;
        let message = format!("service/{name} in {namespace} is not listening on port {port}");
        return Some(Condition::no("ServicePortError", message));
    };
    if slices.is_empty() {
        let message = format!("cannot find endpointslices for service/{name} in {namespace}");
        return Some(Condition::no("EndpointsNotFound", message));
    }
    let port = str_at(port, "name");
    if !slices.iter().any(|slice| has_endpoint(slice, port)) {
        let port = api::field::go_quote(port);
        let message = format!(
            "endpointslices for service/{name} in {namespace} have no addresses with port name {port}"
        );
        return Some(Condition::no("MissingEndpoints", message));
    }
    None
}

fn has_endpoint(slice: &Value, port: &str) -> bool {
    let ready = |e: &Value| get(get(e, "conditions"), "ready").as_bool() != Some(false);
    items(slice, "endpoints").iter().any(ready)
        && items(slice, "ports")
            .iter()
            .any(|p| str_at(p, "name") == port && int_at(p, "port").is_some())
}

/// Requests its resource list, which is kept for discovery.
async fn fetch_resources(remote: &Remote) -> Result<(), RemoteError> {
    let path = format!("/apis/{}/{}", remote.group, remote.version);
    let response = tokio::time::timeout(CHECK_MAX, remote.get(&path, RESOURCES_BYTES_MAX)).await;
    let (_, body) = match response {
        Ok(response) => response?,
        Err(_) => return Err(RemoteError::Timeout { host: remote.host(), path }),
    };
    match serde_json::from_slice::<Value>(&body) {
        Ok(list) if !is_empty(&list, "resources") || str_at(&list, "kind") == "APIResourceList" => {
            remote.resources.store(Some(Arc::new(list)));
        }
        _ => {
            tracing::debug!(apiservice = remote.name, "the response is not a resource list");
        }
    }
    Ok(())
}

/// Writes the condition if it differs from the stored one.
async fn write(remote: &Remote, objects: &Objects, condition: &Condition) {
    for _ in 0..RETRY_MAX {
        let found = objects.get_live(&lookup::API_SERVICES, "", &remote.name).await;
        let mut object = match found.and_then(lookup::value) {
            Ok(Some(object)) => object,
            Ok(None) => return,
            Err(error) => {
                tracing::warn!(
                    apiservice = remote.name,
                    %error,
                    "cannot write the condition Available, the next check retries"
                );
                return;
            }
        };
        if !remote.is_same(&object) || !set(&mut object, condition) {
            return;
        }
        match objects.update_status(&lookup::API_SERVICES, object).await {
            Ok(_) => {
                let Condition { status, reason, message } = condition;
                tracing::info!(
                    apiservice = remote.name,
                    status,
                    reason,
                    message,
                    "the availability of an API server changed"
                );
                return;
            }
            Err(error) if error.is("Conflict") => {}
            Err(error) => {
                tracing::warn!(
                    apiservice = remote.name,
                    %error,
                    "cannot write the condition Available, the next check retries"
                );
                return;
            }
        }
    }
}

/// Sets the condition; returns whether it changed. Its time changes with its status only.
fn set(object: &mut Value, condition: &Condition) -> bool {
    let Condition { status, reason, message } = condition;
    let Some(map) = object.as_object_mut() else { return false };
    let all = map.entry("status").or_insert_with(|| json!({}));
    let Some(all) = all.as_object_mut() else { return false };
    let conditions = all.entry("conditions").or_insert_with(|| json!([]));
    let Some(conditions) = conditions.as_array_mut() else { return false };
    let there = conditions.iter().position(|c| str_at(c, "type") == "Available");
    let old = there.and_then(|at| conditions.get(at));
    let same = |key: &str, new: &str| old.is_some_and(|old| str_at(old, key) == new);
    if same("status", status) && same("reason", reason) && same("message", message) {
        return false;
    }
    let time = match old {
        Some(old) if same("status", status) => str_at(old, "lastTransitionTime").to_owned(),
        _ => metadata::now(),
    };
    let new = json!({"type": "Available", "status": status, "lastTransitionTime": time, "reason": reason, "message": message});
    match there.and_then(|at| conditions.get_mut(at)) {
        Some(slot) => *slot = new,
        None => conditions.push(new),
    }
    true
}
