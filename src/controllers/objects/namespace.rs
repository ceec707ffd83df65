//! Namespaces: empties a namespace that is being deleted, pods first, then finalizes it.

use std::time::Duration;

use api::k8s::api::core::v1::{Namespace, NamespaceCondition};
use api::k8s::apimachinery::pkg::apis::meta::v1::Time;
use api::k8s::jiff::Timestamp;
use api::{Gvr, Typed};
use client::{Action, Client, DeleteOptions, Error, ListOptions, Propagation};
use serde_json::{Value, json};

use crate::framework::context::Context;
use crate::framework::keyed::{Keyed, settled};
use crate::framework::served_resources;
use crate::framework::served_resources::{Discovery, Served};

/// The finalizer of `spec.finalizers` that this controller takes away.
const FINALIZER: &str = "kubernetes";
/// A namespace that is not empty yet is looked at again after this time, or half of the longest
/// grace period left.
const RETRY: Duration = Duration::from_secs(1);
/// A namespace whose content is deleted as far as discovery lists it is retried after this time.
const DISCOVERY_RETRY: Duration = Duration::from_secs(10);

/// Starts the controller.
pub(crate) fn start(context: &Context) {
    let client = context.client("namespace-controller");
    let namespaces = context.informers.of::<Namespace>();
    let mut keyed = Keyed::new();
    keyed.watches_self(&namespaces);
    keyed.run(&context.tasks, "namespace-controller", 10, move |(_, name)| {
        let (client, namespaces) = (client.clone(), namespaces.clone());
        async move {
            match namespaces.get("", &name) {
                Some(namespace) if namespace.metadata.deletion_timestamp.is_some() => {
                    empty(&client, &namespace).await
                }
                Some(_) | None => Ok(Action::Done),
            }
        }
    });
}

/// What was left after one round.
#[derive(Debug, Default)]
struct RemainingContent {
    /// Objects per resource.
    counts: Vec<(String, usize)>,
    /// Objects per finalizer.
    finalizers: std::collections::BTreeMap<String, usize>,
    /// Seconds until the slowest pod should be gone.
    grace: i64,
    errors: Vec<String>,
    /// Message of an incomplete discovery: objects of the missing kinds may remain.
    discovery_failure: Option<String>,
}

impl RemainingContent {
    /// Pods are deleted first, so that they never run without what they rely on, above all network
    /// policies (KEP-5080, CVE-2024-7598). After a failed list they may still exist.
    fn is_nothing(&self) -> bool {
        self.counts.is_empty() && self.errors.is_empty()
    }

    /// Nothing remains, and no kind is unknown.
    fn is_complete(&self) -> bool {
        self.is_nothing() && self.discovery_failure.is_none()
    }

    /// When to look again.
    fn retry(&self) -> Duration {
        if self.is_nothing() {
            return DISCOVERY_RETRY;
        }
        let half = u64::try_from(self.grace / 2).unwrap_or(0).min(30);
        RETRY.max(Duration::from_secs(half))
    }
}

/// The message of the condition `NamespaceDeletionDiscoveryFailure` after a partial discovery.
fn discovery_failure(discovery: &Discovery) -> Option<String> {
    let (groups, error) = discovery.failure()?;
    Some(format!("Discovery failed for some groups, {groups} failing: {error}"))
}

async fn empty(client: &Client, namespace: &Namespace) -> Result<Action, Error> {
    let name = namespace.metadata.name.as_deref().unwrap_or_default();
    let finalizers =
        namespace.spec.as_ref().and_then(|s| s.finalizers.as_deref()).unwrap_or_default();
    if !finalizers.iter().any(|f| f == FINALIZER) {
        return Ok(Action::Done);
    }
    let discovery = served_resources::discover(client).await?;
    let mut remains = RemainingContent {
        discovery_failure: discovery_failure(&discovery),
        ..RemainingContent::default()
    };
    let deletable = |s: &&Served| s.namespaced && s.can(&["list", "delete"]);
    let (pods, others): (Vec<&Served>, Vec<&Served>) = discovery
        .resources
        .iter()
        .filter(deletable)
        .partition(|s| &*s.gvr.resource == "pods" && s.gvr.group.is_empty());
    for served in pods {
        clear(client, name, served, &mut remains).await;
    }
    if remains.is_nothing() {
        for served in others {
            clear(client, name, served, &mut remains).await;
        }
    }
    if remains.is_complete() {
        let rest: Vec<&String> = finalizers.iter().filter(|f| *f != FINALIZER).collect();
        let mut body = namespace.to_value()?;
        body["spec"]["finalizers"] = json!(rest);
        let path =
            format!("{}/finalize", Client::path(&Gvr::new("", "v1", "namespaces"), "", name, ""));
        settled(
            client
                .request(
                    http::Method::PUT,
                    &path,
                    "application/json",
                    serde_json::to_vec(&body)?.into(),
                )
                .await,
        )?;
        return Ok(Action::Done);
    }
    tell(client, namespace, &remains).await?;
    Ok(Action::After(remains.retry()))
}

/// Deletes all objects of one resource and counts what stays.
async fn clear(client: &Client, namespace: &str, served: &Served, remains: &mut RemainingContent) {
    let gvr = &served.gvr;
    match delete_all(client, namespace, served).await {
        Ok(left) if left.is_empty() => {}
        Ok(left) => {
            for object in &left {
                for finalizer in object
                    .pointer("/metadata/finalizers")
                    .and_then(Value::as_array)
                    .into_iter()
                    .flatten()
                    .filter_map(Value::as_str)
                {
                    *remains.finalizers.entry(finalizer.to_owned()).or_default() += 1;
                }
                let grace = object
                    .pointer("/metadata/deletionGracePeriodSeconds")
                    .and_then(Value::as_i64)
                    .unwrap_or(0);
                remains.grace = remains.grace.max(grace);
            }
            remains.counts.push((
                api::status::qualified(&gvr.group, &gvr.resource)
                    + if gvr.group.is_empty() { "." } else { "" },
                left.len(),
            ));
        }
        Err(error) => remains
            .errors
            .push(format!("{}: {error}", api::status::qualified(&gvr.group, &gvr.resource))),
    }
}

async fn delete_all(
    client: &Client,
    namespace: &str,
    served: &Served,
) -> Result<Vec<Value>, Error> {
    let before = client.list_values(&served.gvr, namespace, &ListOptions::default()).await?;
    if before.is_empty() {
        return Ok(before);
    }
    let options =
        DeleteOptions { propagation: Some(Propagation::Background), ..DeleteOptions::default() };
    if served.can(&["deletecollection"]) {
        client.delete_collection(&served.gvr, namespace, &options).await?;
    } else {
        for name in
            before.iter().filter_map(|o| o.pointer("/metadata/name").and_then(Value::as_str))
        {
            settled(client.delete_gvr(&served.gvr, namespace, name, &options).await)?;
        }
    }
    client.list_values(&served.gvr, namespace, &ListOptions::default()).await
}

/// The conditions upstream shows while a namespace cannot go.
fn conditions(remains: &RemainingContent, now: Timestamp) -> Vec<NamespaceCondition> {
    let condition =
        |kind: &str, bad: bool, reasons: (&str, &str), message: String| NamespaceCondition {
            type_: kind.into(),
            status: if bad { "True" } else { "False" }.into(),
            reason: Some(if bad { reasons.0 } else { reasons.1 }.into()),
            message: Some(message),
            last_transition_time: Some(Time(now)),
        };
    let failed = !remains.errors.is_empty();
    let list = |mut parts: Vec<String>| {
        parts.sort();
        parts.join(", ")
    };
    let counts = list(
        remains
            .counts
            .iter()
            .map(|(what, n)| format!("{what} has {n} resource instances"))
            .collect(),
    );
    let held = list(
        remains.finalizers.iter().map(|(f, n)| format!("{f} in {n} resource instances")).collect(),
    );
    let or = |bad: bool, text: String, fine: &str| if bad { text } else { fine.to_owned() };
    vec![
        condition(
            "NamespaceDeletionDiscoveryFailure",
            remains.discovery_failure.is_some(),
            ("DiscoveryFailed", "ResourcesDiscovered"),
            remains
                .discovery_failure
                .clone()
                .unwrap_or_else(|| "All resources successfully discovered".into()),
        ),
        condition(
            "NamespaceDeletionGroupVersionParsingFailure",
            false,
            ("GroupVersionParsingFailed", "ParsedGroupVersions"),
            "All legacy kube types successfully parsed".into(),
        ),
        condition(
            "NamespaceDeletionContentFailure",
            failed,
            ("ContentDeletionFailed", "ContentDeleted"),
            or(
                failed,
                format!(
                    "Failed to delete all resource types, {} remaining: {}",
                    remains.errors.len(),
                    remains.errors.join(", ")
                ),
                "All content successfully deleted, may be waiting on finalization",
            ),
        ),
        condition(
            "NamespaceContentRemaining",
            !remains.counts.is_empty(),
            ("SomeResourcesRemain", "ContentRemoved"),
            or(
                !remains.counts.is_empty(),
                format!("Some resources are remaining: {counts}"),
                "All content successfully removed",
            ),
        ),
        condition(
            "NamespaceFinalizersRemaining",
            !remains.finalizers.is_empty(),
            ("SomeFinalizersRemain", "ContentHasNoFinalizers"),
            or(
                !remains.finalizers.is_empty(),
                format!("Some content in the namespace has finalizers remaining: {held}"),
                "All content-preserving finalizers finished",
            ),
        ),
    ]
}

/// Writes the conditions, when one of them changed.
async fn tell(
    client: &Client,
    namespace: &Namespace,
    remains: &RemainingContent,
) -> Result<(), Error> {
    let wanted = conditions(remains, Timestamp::now());
    let have = namespace.status.as_ref().and_then(|s| s.conditions.as_deref()).unwrap_or_default();
    let same = |w: &NamespaceCondition| {
        have.iter().any(|h| {
            h.type_ == w.type_
                && h.status == w.status
                && h.reason == w.reason
                && h.message == w.message
        })
    };
    if wanted.iter().all(same) {
        return Ok(());
    }
    let others = have.iter().filter(|h| wanted.iter().all(|w| w.type_ != h.type_));
    // A condition whose status stays the same keeps the time of its last transition.
    let kept = wanted.iter().map(|w| {
        let old = have.iter().find(|h| h.type_ == w.type_ && h.status == w.status);
        let last_transition_time = old.map_or(&w.last_transition_time, |h| &h.last_transition_time);
        NamespaceCondition { last_transition_time: last_transition_time.clone(), ..w.clone() }
    });
    let conditions = others.cloned().chain(kept).collect();
    let mut changed = namespace.clone();
    changed.status.get_or_insert_default().conditions = Some(conditions);
    // The controller's role may update the status, not patch it.
    settled(client.update_status(&changed).await)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// CVE-2024-7598.
    #[test]
    fn policies_stay_until_no_pod_is_left() {
        let some =
            RemainingContent { counts: vec![("pods.".into(), 1)], ..RemainingContent::default() };
        let unsure = RemainingContent {
            errors: vec!["pods: timeout".into()],
            ..RemainingContent::default()
        };
        assert!(
            !some.is_nothing() && !unsure.is_nothing() && RemainingContent::default().is_nothing()
        );
    }

    #[test]
    fn failed_discovery_sets_the_condition_and_keeps_the_namespace() {
        let remains =
            RemainingContent { discovery_failure: Some("x".into()), ..RemainingContent::default() };
        assert!(remains.is_nothing() && !remains.is_complete());
        assert_eq!(remains.retry(), DISCOVERY_RETRY);
        let condition = conditions(&remains, Timestamp::UNIX_EPOCH).remove(0);
        let [reason, message] = [condition.reason, condition.message].map(Option::unwrap);
        assert_eq!(
            [condition.type_, condition.status, reason, message],
            ["NamespaceDeletionDiscoveryFailure", "True", "DiscoveryFailed", "x"]
        );
        let complete = conditions(&RemainingContent::default(), Timestamp::UNIX_EPOCH).remove(0);
        assert_eq!(
            (&*complete.status, complete.reason.as_deref()),
            ("False", Some("ResourcesDiscovered"))
        );
    }

    #[test]
    fn what_remains_is_told_in_upstreams_words() {
        let remains = RemainingContent {
            counts: vec![("pods.".into(), 2)],
            finalizers: [("a/b".to_owned(), 1)].into(),
            ..RemainingContent::default()
        };
        let all = conditions(&remains, Timestamp::UNIX_EPOCH);
        let message = |kind: &str| {
            all.iter().find(|c| c.type_ == kind).and_then(|c| c.message.clone()).unwrap()
        };
        assert_eq!(
            message("NamespaceContentRemaining"),
            "Some resources are remaining: pods. has 2 resource instances"
        );
        assert_eq!(
            message("NamespaceFinalizersRemaining"),
            "Some content in the namespace has finalizers remaining: a/b in 1 resource instances"
        );
        assert_eq!(
            message("NamespaceDeletionContentFailure"),
            "All content successfully deleted, may be waiting on finalization"
        );
    }
}
