//! Namespaces: empties a namespace that is being deleted, pods first, then finalizes it.

use std::time::Duration;

use api::k8s::api::core::v1::{Namespace, NamespaceCondition};
use api::k8s::apimachinery::pkg::apis::meta::v1::Time;
use api::k8s::jiff::Timestamp;
use api::{Gvr, Typed};
use client::{Action, Client, DeleteOptions, Error, ListOptions, Propagation};
use serde_json::{Value, json};
use sorting::CompactSort as _;

use crate::framework::context::Context;
use crate::framework::keyed::{Keyed, settled};
use crate::framework::served_resources;
use crate::framework::served_resources::{Discovery, Served};

/// The finalizer of `spec.finalizers` that this controller removes.
const FINALIZER: &str = "kubernetes";
/// A namespace that is not empty yet is retried after this time, or after half of the longest grace
/// period left.
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

/// What remains in a namespace after one round of deletions.
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

    /// Delay until the next attempt.
    fn retry_delay(&self) -> Duration {
        if self.is_nothing() {
            return DISCOVERY_RETRY;
        }
        let half = u64::try_from(self.grace / 2).unwrap_or(0).min(30);
        RETRY.max(Duration::from_secs(half))
    }

    /// Message of the condition `NamespaceDeletionContentFailure`.
    fn deletion_failure(&self) -> Option<String> {
        let (count, errors) = (self.errors.len(), self.errors.join(", "));
        (count > 0)
            .then(|| format!("Failed to delete all resource types, {count} remaining: {errors}"))
    }

    /// Message of the condition `NamespaceContentRemaining`.
    fn remaining_resources(&self) -> Option<String> {
        let counts =
            self.counts.iter().map(|(what, n)| format!("{what} has {n} resource instances"));
        let list = sorted_list(counts.collect());
        (!list.is_empty()).then(|| format!("Some resources are remaining: {list}"))
    }

    /// Message of the condition `NamespaceFinalizersRemaining`.
    fn remaining_finalizers(&self) -> Option<String> {
        let counts = self.finalizers.iter().map(|(f, n)| format!("{f} in {n} resource instances"));
        let list = sorted_list(counts.collect());
        (!list.is_empty())
            .then(|| format!("Some content in the namespace has finalizers remaining: {list}"))
    }
}

/// Joins the parts in alphabetical order.
fn sorted_list(mut parts: Vec<String>) -> String {
    parts.compact_sort();
    parts.join(", ")
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
        let others: Vec<&String> = finalizers.iter().filter(|f| *f != FINALIZER).collect();
        finalize(client, namespace, &others).await?;
        return Ok(Action::Done);
    }
    update_conditions(client, namespace, &remains).await?;
    Ok(Action::After(remains.retry_delay()))
}

/// Sets the finalizers of a namespace; without any, the API server removes it.
async fn finalize(
    client: &Client,
    namespace: &Namespace,
    finalizers: &[&String],
) -> Result<(), Error> {
    let name = namespace.metadata.name.as_deref().unwrap_or_default();
    let mut body = namespace.to_value()?;
    body["spec"]["finalizers"] = json!(finalizers);
    let namespaces = Gvr::new("", "v1", "namespaces");
    let path = format!("{}/finalize", Client::path(&namespaces, "", name, ""));
    let body = serde_json::to_vec(&body)?.into();
    settled(client.request(http::Method::PUT, &path, "application/json", body).await)
}

/// Deletes all objects of one resource and counts the remaining ones.
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

/// The conditions of a namespace that is being deleted (upstream's
/// `namespaceConditionUpdater.Update`).
fn conditions(remains: &RemainingContent, now: Timestamp) -> Vec<NamespaceCondition> {
    let condition = |kind: &str, reasons: (&str, &str), failure: Option<String>, success: &str| {
        let (status, reason) =
            if failure.is_some() { ("True", reasons.0) } else { ("False", reasons.1) };
        NamespaceCondition {
            type_: kind.into(),
            status: status.into(),
            reason: Some(reason.into()),
            message: Some(failure.unwrap_or_else(|| success.to_owned())),
            last_transition_time: Some(Time(now)),
        }
    };
    vec![
        condition(
            "NamespaceDeletionDiscoveryFailure",
            ("DiscoveryFailed", "ResourcesDiscovered"),
            remains.discovery_failure.clone(),
            "All resources successfully discovered",
        ),
        condition(
            "NamespaceDeletionGroupVersionParsingFailure",
            ("GroupVersionParsingFailed", "ParsedGroupVersions"),
            None,
            "All legacy kube types successfully parsed",
        ),
        condition(
            "NamespaceDeletionContentFailure",
            ("ContentDeletionFailed", "ContentDeleted"),
            remains.deletion_failure(),
            "All content successfully deleted, may be waiting on finalization",
        ),
        condition(
            "NamespaceContentRemaining",
            ("SomeResourcesRemain", "ContentRemoved"),
            remains.remaining_resources(),
            "All content successfully removed",
        ),
        condition(
            "NamespaceFinalizersRemaining",
            ("SomeFinalizersRemain", "ContentHasNoFinalizers"),
            remains.remaining_finalizers(),
            "All content-preserving finalizers finished",
        ),
    ]
}

/// Writes the conditions if one of them changed.
async fn update_conditions(
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
    fn policies_are_deleted_after_the_last_pod() {
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
        assert_eq!(remains.retry_delay(), DISCOVERY_RETRY);
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
    fn conditions_report_what_remains_with_upstreams_texts() {
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
