//! Marks the tokens that former versions of Kubernetes generated for service accounts as invalid
//! once nothing has used them for a year, and deletes their Secrets a year after that.
//!
//! The API server records uses: see [`super::legacy_token_tracking`].

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use api::k8s::api::core::v1::{Pod, Secret, ServiceAccount};
use api::k8s::jiff::Timestamp;
use client::{Action, Client, DeleteOptions, Error, Informer, Patch};
use serde_json::{Value, json};

use super::legacy_token_tracking::{self as tracking, CONFIG_MAP, NAMESPACE};
use crate::framework::context::Context;
use crate::framework::keyed::{Keyed, settled};

/// Name of the controller.
const CONTROLLER: &str = "legacy-serviceaccount-token-cleaner-controller";
/// Service account of the controller.
const ACCOUNT: &str = "legacy-service-account-token-cleaner";
/// The type of Secrets with a token.
const TYPE: &str = "kubernetes.io/service-account-token";
/// The annotations of such a Secret that name the service account.
const ACCOUNT_NAME: &str = "kubernetes.io/service-account.name";
const ACCOUNT_UID: &str = "kubernetes.io/service-account.uid";
/// The label with the last day of use.
const LAST_USED: &str = "kubernetes.io/legacy-token-last-used";
/// The label with the day since which the API server rejects the token.
const INVALID_SINCE: &str = "kubernetes.io/legacy-token-invalid-since";
/// Time between two passes over all Secrets (`DefaultCleanerSyncInterval`): labels have days.
const INTERVAL: Duration = Duration::from_secs(24 * 60 * 60);

struct Cleaner {
    client: Client,
    secrets: Informer<Secret>,
    accounts: Informer<ServiceAccount>,
    pods: Informer<Pod>,
    period: Duration,
}

/// Starts the controller.
pub(crate) fn start(context: &Context) {
    let informers = &context.informers;
    let cleaner = Cleaner {
        client: context.client(ACCOUNT),
        secrets: informers.of(),
        accounts: informers.of(),
        pods: informers.of(),
        period: context.config.tuning.legacy_token_clean_up,
    };
    let mut keyed = Keyed::new();
    keyed.waits_for_sync(&cleaner.secrets);
    keyed.waits_for_sync(&cleaner.accounts);
    keyed.waits_for_sync(&cleaner.pods);
    keyed.queue.add(Default::default());
    let cleaner = Arc::new(cleaner);
    keyed.run(&context.tasks, CONTROLLER, 1, move |_| {
        let cleaner = Arc::clone(&cleaner);
        async move {
            cleaner.clean().await?;
            Ok::<_, Error>(Action::After(INTERVAL))
        }
    });
}

impl Cleaner {
    /// One pass over all Secrets.
    async fn clean(&self) -> Result<(), Error> {
        let map: Value = match self.client.get_value(&tracking::gvr(), NAMESPACE, CONFIG_MAP).await
        {
            Ok(map) => map,
            // The API server has not written it yet: uses are not recorded for long enough.
            Err(error) if error.is_not_found() => return Ok(()),
            Err(error) => return Err(error),
        };
        let Some(days) = Days::new(tracking::since(&map), self.period, Timestamp::now()) else {
            return Ok(());
        };
        for secret in self.secrets.list("") {
            if secret.type_.as_deref() == Some(TYPE)
                && let Some(step) = days.step(&secret)
                && self.is_generated(&secret)
                && !self.is_in_a_pod(&secret)
            {
                self.perform(&secret, step, &days).await?;
            }
        }
        Ok(())
    }

    /// The service account of the Secret lists it: Kubernetes generated the Secret.
    fn is_generated(&self, secret: &Secret) -> bool {
        let annotation = |name| secret.metadata.annotations.as_ref()?.get(name);
        let namespace = secret.metadata.namespace.as_deref().unwrap_or_default();
        let account = annotation(ACCOUNT_NAME).and_then(|name| self.accounts.get(namespace, name));
        account.is_some_and(|account| {
            lists_secret(&account, annotation(ACCOUNT_UID).map(String::as_str), secret)
        })
    }

    fn is_in_a_pod(&self, secret: &Secret) -> bool {
        let meta = &secret.metadata;
        let pods = self.pods.cache().list(meta.namespace.as_deref().unwrap_or_default());
        let name = meta.name.as_deref().unwrap_or_default();
        pods.iter().any(|pod| pod.value().is_ok_and(|pod| mentions(&pod["spec"], name)))
    }

    async fn perform(&self, secret: &Secret, step: Step, days: &Days) -> Result<(), Error> {
        let meta = &secret.metadata;
        let namespace = meta.namespace.as_deref().unwrap_or_default();
        let name = meta.name.as_deref().unwrap_or_default();
        match step {
            Step::Invalidate => {
                tracing::info!(namespace, name, "unused service account token is invalid from now");
                let labels = BTreeMap::from([(INVALID_SINCE, &days.today)]);
                let patch = json!({"metadata": {"uid": meta.uid, "labels": labels}});
                let patch = Patch::Merge(&patch);
                settled(self.client.patch::<Secret>(namespace, name, "", &patch).await)
            }
            Step::Delete => {
                tracing::info!(namespace, name, "unused service account token is deleted");
                let resource_version = meta.resource_version.clone();
                let options = DeleteOptions { resource_version, ..DeleteOptions::default() };
                settled(self.client.delete::<Secret>(namespace, name, &options).await)
            }
        }
    }
}

/// What to do with an unused token.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    Invalidate,
    Delete,
}

/// The days of one pass, as `2026-01-31`: such texts have the order of time.
#[derive(Debug)]
struct Days {
    today: String,
    /// Tokens that were created, used or invalidated at this time or later stay as they are.
    keeps_from: Timestamp,
    keeps_from_day: String,
}

impl Days {
    /// `None` when uses are recorded for less than `period`; `since` is the day of the first
    /// record.
    fn new(since: Option<Timestamp>, period: Duration, now: Timestamp) -> Option<Self> {
        let keeps_from = now.checked_sub(period).ok()?;
        // Records are complete from the day after.
        let complete = since?.checked_add(INTERVAL).ok()?;
        (complete <= keeps_from).then(|| Self {
            today: tracking::day(now),
            keeps_from,
            keeps_from_day: tracking::day(keeps_from),
        })
    }

    /// What is due for the Secret of a generated token that no pod mounts.
    fn step(&self, secret: &Secret) -> Option<Step> {
        let meta = &secret.metadata;
        let label = |name| meta.labels.as_ref()?.get(name).map(String::as_str);
        if meta.deletion_timestamp.is_some()
            || meta.creation_timestamp.as_ref().is_some_and(|time| time.0 >= self.keeps_from)
        {
            return None;
        }
        // An unreadable day says nothing about the last use.
        if let Some(used) = label(LAST_USED)
            && (tracking::parse(used).is_none() || *used >= *self.keeps_from_day)
        {
            return None;
        }
        match label(INVALID_SINCE).filter(|day| tracking::parse(day).is_some()) {
            None => Some(Step::Invalidate),
            Some(day) if *day >= *self.keeps_from_day => None,
            Some(_) => Some(Step::Delete),
        }
    }
}

/// The account has this UID, if one is known, and lists the Secret.
fn lists_secret(account: &ServiceAccount, uid: Option<&str>, secret: &Secret) -> bool {
    let is_same =
        uid.is_none_or(|uid| uid.is_empty() || account.metadata.uid.as_deref() == Some(uid));
    let mut listed = account.secrets.iter().flatten().map(|reference| &reference.name);
    is_same && listed.any(|name| *name == secret.metadata.name)
}

/// A value in the specification of a pod is this text. Fields with names of Secrets are in many
/// places (volumes, environment, pull secrets); another field with the same text keeps a token for
/// longer, at worst.
fn mentions(value: &Value, name: &str) -> bool {
    match value {
        Value::String(text) => text == name,
        Value::Array(items) => items.iter().any(|item| mentions(item, name)),
        Value::Object(fields) => fields.values().any(|field| mentions(field, name)),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(day: &str) -> Timestamp {
        tracking::parse(day).unwrap()
    }

    /// Days of a pass on 2024-01-01 that keeps tokens from `keeps_from` on.
    fn days(since: &str, keeps_from: &str) -> Option<Days> {
        let now = at("2024-01-01");
        let period = Duration::try_from(now.duration_since(at(keeps_from))).unwrap();
        Days::new(tracking::parse(since), period, now)
    }

    fn secret(used: &str, invalid: &str, created: &str) -> Secret {
        let mut labels = BTreeMap::new();
        labels.extend((!used.is_empty()).then_some((LAST_USED, used)));
        labels.extend((!invalid.is_empty()).then_some((INVALID_SINCE, invalid)));
        serde_json::from_value(json!({"metadata": {"name": "token", "labels": labels,
            "creationTimestamp": format!("{created}T00:00:00Z")}}))
        .unwrap()
    }

    #[test]
    fn uses_must_be_recorded_for_the_whole_period() {
        assert!(days("2022-12-27", "2022-12-28").is_some());
        for since in ["", "2022-12-28", "2022-12-29", "2022-12-27-1"] {
            assert!(days(since, "2022-12-28").is_none(), "{since}");
        }
    }

    #[test]
    fn unused_tokens_are_invalidated_and_deleted_later() {
        let created = "2022-12-27";
        for (used, invalid, created, keeps_from, want) in [
            ("", "", "2022-12-30", "2022-12-29", None),
            ("2022-12-30", "", created, "2022-12-29", None),
            ("2022-12-27-1", "", created, "2022-12-29", None),
            ("", "", created, "2022-12-30", Some(Step::Invalidate)),
            ("", "2022-12-29-1", created, "2022-12-30", Some(Step::Invalidate)),
            ("", "2023-01-01", created, "2022-12-29", None),
            ("", "2022-12-29", created, "2023-01-01", Some(Step::Delete)),
            ("2022-12-27", "", created, "2022-12-30", Some(Step::Invalidate)),
            ("2022-12-27", "2023-05-01", created, "2022-12-30", None),
            ("2022-12-27", "2023-01-05", created, "2023-05-01", Some(Step::Delete)),
        ] {
            let days = days("2022-12-01", keeps_from).unwrap();
            let step = days.step(&secret(used, invalid, created));
            assert_eq!(step, want, "{used:?} {invalid:?} {created} {keeps_from}");
        }
        let mut deleted = secret("", "", created);
        deleted.metadata.deletion_timestamp.clone_from(&deleted.metadata.creation_timestamp);
        assert_eq!(days("2022-12-01", "2022-12-30").unwrap().step(&deleted), None);
    }

    #[test]
    fn only_tokens_that_their_account_lists_were_generated() {
        let secret = secret("", "", "2022-12-27");
        for (uid, listed, want) in [
            (Some("12345"), json!([{"name": "token"}]), true),
            (Some(""), json!([{"name": "other"}, {"name": "token"}]), true),
            (None, json!([{"name": "token"}]), true),
            (Some("123456"), json!([{"name": "token"}]), false),
            (Some("12345"), json!([]), false),
        ] {
            let account = json!({"metadata": {"name": "a", "uid": "12345"}, "secrets": listed});
            let account = serde_json::from_value(account).unwrap();
            assert_eq!(lists_secret(&account, uid, &secret), want, "{uid:?}");
        }
    }

    #[test]
    fn names_in_any_field_of_a_pod_count() {
        for (spec, want) in [
            (json!({"volumes": [{"name": "v", "secret": {"secretName": "token"}}]}), true),
            (json!({"imagePullSecrets": [{"name": "token"}]}), true),
            (json!({"containers": [{"envFrom": [{"secretRef": {"name": "token"}}]}]}), true),
            (json!({"volumes": [{"secret": {"secretName": "token-2"}}], "priority": 0}), false),
        ] {
            assert_eq!(mentions(&spec, "token"), want, "{spec}");
        }
    }
}
