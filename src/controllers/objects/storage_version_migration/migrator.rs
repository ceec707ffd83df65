//! Rewrites the objects of a resource that are not newer than the recorded resource version, by
//! patches without content (upstream's `SVMController`).
//!
//! Upstream reads the objects from the caches of the garbage collector; here, their metadata is
//! listed page by page, once to count the objects and once to rewrite them, so that a migration
//! needs the memory of one page. After a restart, the objects are rewritten from the first one: a
//! rewrite of one that is stored in the current form writes nothing.

use std::cmp::Ordering;
use std::sync::Arc;
use std::time::Duration;

use api::resource_version::{NotWellFormed, compare};
use base::Shutdown;
use client::{Action, Client, Error, Informer};
use http::Method;
use serde::Deserialize;
use serde_json::{Value, json};

use super::conditions::{
    Condition, FAILED, FAILED_REASON, Progress, RUNNING, RUNNING_REASON, SUCCEEDED,
    SUCCEEDED_REASON, is_terminal, now, running_message, set_condition,
};
use super::pace::Pace;
use super::{CONTROLLER, DISCOVERY_RETRY, Lookup, find, text, write_status};
use crate::framework::context::Context;
use crate::framework::keyed::Keyed;
use crate::framework::served_resources::Served;
use api::Gvr;

/// Migrations of different resources that run at the same time.
const WORKERS: usize = 5;
/// Objects per page; their metadata is a few KB each.
const PAGE: usize = 500;
/// The media type of a list of metadata.
const METADATA: &str = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";

/// Why the objects of a resource cannot be counted.
#[derive(Debug, thiserror::Error)]
enum CountError {
    /// The resource version of an object is no number.
    #[error(transparent)]
    Version(#[from] NotWellFormed),
    #[error(transparent)]
    Api(#[from] Error),
}

struct Migrator {
    client: Client,
    migrations: Informer<()>,
    pace: Pace,
    shutdown: Shutdown,
}

/// Starts the workers, whose keys are migrations.
pub(super) fn start(context: &Context, client: &Client, migrations: &Informer<()>) {
    let mut keyed = Keyed::new();
    keyed.watches_self(migrations);
    let migrator = Arc::new(Migrator {
        client: client.clone(),
        migrations: migrations.clone(),
        pace: Pace::default(),
        shutdown: context.tasks.shutdown().clone(),
    });
    keyed.run(&context.tasks, CONTROLLER, WORKERS, move |(_, name)| {
        let migrator = Arc::clone(&migrator);
        async move { migrator.reconcile(&name).await }
    });
}

/// A page of the metadata of objects.
#[derive(Debug, Default, Deserialize)]
struct Page {
    #[serde(default)]
    metadata: PageMetadata,
    #[serde(default)]
    items: Option<Vec<Item>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct PageMetadata {
    #[serde(default)]
    resource_version: String,
    #[serde(default, rename = "continue")]
    next: String,
}

#[derive(Debug, Deserialize)]
struct Item {
    metadata: ItemMetadata,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ItemMetadata {
    name: String,
    #[serde(default)]
    namespace: String,
    resource_version: String,
}

/// The objects of a resource, page by page.
pub(super) struct Pages {
    path: String,
    /// The token of the next page; `None` after the last one.
    next: Option<String>,
}

impl Pages {
    /// Begins at the first object.
    pub(super) fn new(gvr: &Gvr) -> Self {
        Self { path: Client::path(gvr, "", "", ""), next: Some(String::new()) }
    }

    /// The current resource version of the resource.
    ///
    /// # Errors
    /// The server's refusal or the transport's failure.
    pub(super) async fn version(self, client: &Client) -> Result<String, Error> {
        Ok(self.read(client, 1, "").await?.metadata.resource_version)
    }

    async fn read(&self, client: &Client, limit: usize, token: &str) -> Result<Page, Error> {
        let mut path = format!("{}?limit={limit}", self.path);
        if !token.is_empty() {
            path += &format!("&continue={}", api::uri::escaped(token));
        }
        Ok(serde_json::from_slice(&client.get_as(&path, METADATA).await?)?)
    }

    /// The next page; `None` at the end. A page whose version is compacted continues at the newest
    /// version: objects that it misses or repeats are newer than the migration.
    async fn next(&mut self, client: &Client) -> Result<Option<Vec<ItemMetadata>>, Error> {
        let Some(token) = self.next.take() else { return Ok(None) };
        let page = match self.read(client, PAGE, &token).await {
            Err(error) if error.is_expired() => {
                let fresh = error.status().map(|s| s.metadata.continue_.clone());
                let Some(fresh) = fresh.filter(|f| !f.is_empty()) else { return Err(error) };
                self.read(client, PAGE, &fresh).await?
            }
            page => page?,
        };
        self.next = Some(page.metadata.next).filter(|next| !next.is_empty());
        Ok(Some(page.items.unwrap_or_default().into_iter().map(|i| i.metadata).collect()))
    }
}

/// What the answer to a rewrite means.
#[derive(Debug, PartialEq, Eq)]
enum Rewrite {
    /// The object is stored in the current form, or gone.
    Done,
    /// A retry may succeed.
    Retry,
    /// The migration fails.
    Fatal,
}

/// An object that changed meanwhile was written in the current form; one that is gone needs no
/// migration.
fn outcome(error: &Error) -> Rewrite {
    if error.is_conflict() || error.is_not_found() {
        Rewrite::Done
    } else if error.is_retryable() {
        Rewrite::Retry
    } else {
        Rewrite::Fatal
    }
}

/// The delay that the server asks for.
fn suggested_delay(error: &Error) -> Option<Duration> {
    let seconds = error.status()?.details.as_ref()?.retry_after_seconds;
    u64::try_from(seconds).ok().filter(|s| *s > 0).map(Duration::from_secs)
}

/// Sets the condition `Running` with the progress.
fn set_running(migration: &mut Value, progress: Progress, transient: Option<&str>) -> bool {
    let message = running_message(Some(progress), transient);
    let condition =
        Condition { kind: RUNNING, status: true, reason: RUNNING_REASON, message: &message };
    set_condition(migration, &condition, &now())
}

impl Migrator {
    async fn reconcile(&self, name: &str) -> Result<Action, Error> {
        let Some(object) = self.migrations.cache().get("", name) else { return Ok(Action::Done) };
        let migration = object.value()?;
        let version = text(&migration, "/status/resourceVersion").to_owned();
        if is_terminal(&migration) || version.is_empty() {
            return Ok(Action::Done);
        }
        match find(&self.client, &migration).await? {
            Lookup::Found(served) => self.migrate(migration, &served, &version).await,
            Lookup::Pending => Ok(Action::After(DISCOVERY_RETRY)),
            Lookup::Absent => {
                self.fail(migration, None, "unable to obtain GVR from discovery").await
            }
        }
    }

    async fn migrate(
        &self,
        mut migration: Value,
        served: &Served,
        version: &str,
    ) -> Result<Action, Error> {
        let mut progress = match self.count(served, version).await {
            Ok(progress) => progress,
            Err(CountError::Version(error)) => {
                return self.fail(migration, None, &error.to_string()).await;
            }
            Err(CountError::Api(error)) => return Err(error),
        };
        let mut pages = Pages::new(&served.gvr);
        while let Some(page) = pages.next(&self.client).await? {
            if !self.is_there(&migration) {
                return Ok(Action::Done);
            }
            for item in page {
                if compare(&item.resource_version, version) == Ok(Ordering::Greater) {
                    continue;
                }
                if self.shutdown.is_requested() {
                    return Ok(Action::Done);
                }
                if let Err(error) = self.rewrite(served, &item).await {
                    match outcome(&error) {
                        Rewrite::Done => {}
                        Rewrite::Retry => return self.retry(migration, progress, error).await,
                        Rewrite::Fatal => {
                            let text = error.to_string();
                            return self.fail(migration, Some(progress), &text).await;
                        }
                    }
                }
                progress.left = progress.left.saturating_sub(1);
            }
        }
        set_running(&mut migration, progress, None);
        let message = "Migration completed";
        let succeeded =
            Condition { kind: SUCCEEDED, status: true, reason: SUCCEEDED_REASON, message };
        set_condition(&mut migration, &succeeded, &now());
        write_status(&self.client, &migration).await?;
        Ok(Action::Done)
    }

    /// Whether the migration still exists.
    fn is_there(&self, migration: &Value) -> bool {
        let cached = self.migrations.cache().get("", text(migration, "/metadata/name"));
        cached.is_some_and(|cached| *cached.uid == *text(migration, "/metadata/uid"))
    }

    /// Counts all objects, and those that are to be rewritten.
    async fn count(&self, served: &Served, version: &str) -> Result<Progress, CountError> {
        let mut progress = Progress { left: 0, total: 0 };
        let mut pages = Pages::new(&served.gvr);
        while let Some(page) = pages.next(&self.client).await? {
            for item in page {
                progress.total += 1;
                match compare(&item.resource_version, version) {
                    Ok(Ordering::Greater) => {}
                    Ok(Ordering::Less | Ordering::Equal) => progress.left += 1,
                    Err(error) => return Err(error.into()),
                }
            }
        }
        Ok(progress)
    }

    /// Patches an object without a change, if it still has the listed resource version.
    async fn rewrite(&self, served: &Served, item: &ItemMetadata) -> Result<(), Error> {
        self.pace.wait().await;
        let path = Client::path(&served.gvr, &item.namespace, &item.name, "");
        let path = format!("{path}?fieldManager={CONTROLLER}");
        let patch = json!({"apiVersion": served.kind.api_version(), "kind": &*served.kind.kind,
            "metadata": {"resourceVersion": item.resource_version}});
        let body = serde_json::to_vec(&patch)?.into();
        let merge = "application/merge-patch+json";
        self.client.request(Method::PATCH, &path, merge, body).await.map(drop)
    }

    /// Shows a transient error in the condition `Running`, and begins again later.
    async fn retry(
        &self,
        mut migration: Value,
        progress: Progress,
        error: Error,
    ) -> Result<Action, Error> {
        if set_running(&mut migration, progress, Some(&error.to_string())) {
            write_status(&self.client, &migration).await?;
        }
        match suggested_delay(&error) {
            Some(delay) => Ok(Action::After(delay)),
            None => Err(error),
        }
    }

    async fn fail(
        &self,
        mut migration: Value,
        progress: Option<Progress>,
        error: &str,
    ) -> Result<Action, Error> {
        let mut message = format!("migration encountered unhandled error: {error}");
        if let Some(progress) = progress {
            message = format!("{}/{} not yet migrated. {message}", progress.left, progress.total);
            set_running(&mut migration, progress, None);
        }
        let failed =
            Condition { kind: FAILED, status: true, reason: FAILED_REASON, message: &message };
        set_condition(&mut migration, &failed, &now());
        write_status(&self.client, &migration).await?;
        Ok(Action::Done)
    }
}

#[cfg(test)]
mod tests;
