//! The loop of the controller: lists the folder, applies what is due, waits for the next change.

mod process;
mod wait;

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use base::{Backoff, Kind, Problems, Shutdown, Tasks, clock};
use client::{Client, Discovery, EventRecorder};
use sorting::CollectOrdered as _;

use crate::addon::{Addons, VersionedKind};
use crate::applier;
use crate::config::Config;
use crate::document;
use crate::error::ManifestError;
use crate::folder::{self, Listing};
use crate::gateway_definitions;
use crate::packaged;
use crate::state::{self, States};
use crate::watcher::FolderWatcher;
use wait::{DefinitionWatch, Wake};

/// Component of the events, as in k3s.
const COMPONENT: &str = "deploy";
/// Delays between attempts to start: the API server may not authorize this user yet.
const START_BACKOFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(30));
/// Lists of a folder in which folders appear meanwhile.
const LISTS_MAX: usize = 5;
/// Prefix of the problems of files, and of the folder.
const PROBLEMS: &str = "manifests/";
const FOLDER_PROBLEM: &str = "manifests";

/// Starts the task of the controller.
pub(crate) fn start(config: Config, client: Client, tasks: &Tasks) {
    let recorder = EventRecorder::new(client.clone(), COMPONENT, &config.server, tasks);
    let addons = Addons::new(client.clone(), recorder, config.server.clone());
    let problems = tasks.problems().clone();
    let controller = Controller { config, client, addons, problems, states: States::new() };
    let shutdown = tasks.shutdown().clone();
    tasks.spawn(Kind::Critical, "addons", async move {
        tokio::select! {
            () = controller.run(shutdown.clone()) => {}
            () = shutdown.requested() => {}
        }
        Ok::<(), Infallible>(())
    });
}

struct Controller {
    config: Config,
    client: Client,
    addons: Addons,
    problems: Problems,
    states: States,
}

impl Controller {
    async fn run(mut self, shutdown: Shutdown) {
        let mut complete = self.stage().await;
        if !self.ensure_definitions(&shutdown).await {
            return;
        }
        let mut watcher = match FolderWatcher::new() {
            Ok(watcher) => Some(watcher),
            Err(error) => {
                self.report_folder(&format!("cannot be watched: {error}"));
                None
            }
        };
        let mut definitions = DefinitionWatch::default();
        let mut is_start = true;
        loop {
            let listing = self.list(watcher.as_mut()).await;
            if std::mem::take(&mut is_start) {
                self.delete_removed_files(&listing).await;
                self.delete_disabled_components(&listing).await;
            }
            let wake = self.round(&listing, &complete).await;
            complete = BTreeSet::new();
            let missing = self.missing_kinds();
            definitions.follow(&self.client, !missing.is_empty()).await;
            match wait::next(watcher.as_mut(), &mut definitions, &missing, wake).await {
                Wake::Files(changes) => complete = changes.complete,
                Wake::Kinds => self.retry_missing(),
                Wake::Time => {}
            }
        }
    }

    /// Writes the packaged manifests; returns their names, whose content is complete.
    async fn stage(&self) -> BTreeSet<OsString> {
        let config = self.config.clone();
        let staged = base::tasks::blocking(move || packaged::stage(&config));
        if let Ok(Err(error)) = staged.await {
            self.report_folder(&format!("lacks manifests of kube-lite: {error}"));
        }
        packaged::FILES.iter().map(|file| OsString::from(file.name)).collect_set()
    }

    fn report_folder(&self, what: &str) {
        let folder = self.config.folder.display();
        let what = format!("the manifests folder {folder} {what}");
        self.problems.put(FOLDER_PROBLEM, what, "correct it, then restart kube-lite");
    }

    /// Applies the CustomResourceDefinitions of the program until the server serves Addons.
    async fn ensure_definitions(&self, shutdown: &Shutdown) -> bool {
        let mut backoff = Backoff::new(START_BACKOFF.0, START_BACKOFF.1);
        loop {
            match self.apply_definitions().await {
                Ok(true) => return true,
                Ok(false) => {}
                Err(error) => tracing::debug!(%error, "addons: cannot apply the definitions"),
            }
            if !backoff.wait(shutdown).await {
                return false;
            }
        }
    }

    /// Applies them; returns whether Addons are served.
    async fn apply_definitions(&self) -> Result<bool, ManifestError> {
        let mut discovery = Discovery::new(&self.client);
        let mut all = Vec::new();
        for text in packaged::DEFINITIONS {
            all.push(document::parse(text.as_bytes())?);
        }
        if !self.config.disabled.contains(gateway_definitions::COMPONENT) {
            all.push(gateway_definitions::missing(&self.client).await?);
        }
        if self.config.vertical_autoscaler {
            all.push(packaged::unpack(packaged::VERTICAL_AUTOSCALER).await?);
        }
        for objects in all {
            let manifest = applier::resolve(objects, &mut discovery).await?;
            let outcome = applier::apply(&self.client, None, manifest.objects).await;
            if let Some(error) = outcome.error() {
                return Err(ManifestError::Objects(error));
            }
        }
        let served = Discovery::new(&self.client).kind(crate::addon::API_VERSION, "Addon").await?;
        Ok(served.is_some())
    }

    /// Lists the folder and watches it and its sub-folders.
    async fn list(&self, mut watcher: Option<&mut FolderWatcher>) -> Listing {
        let mut listing = Listing::default();
        for _ in 0..LISTS_MAX {
            let (folder, disabled) = (self.config.folder.clone(), self.config.disabled.clone());
            let listed = base::tasks::blocking(move || {
                // The watch needs the folder.
                if !folder.exists() {
                    let _ = base::fs::create_dir(&folder, 0o700);
                }
                folder::list(&folder, &disabled)
            });
            let listed = listed.await.unwrap_or_default();
            let has_same_folders = listed.folders == listing.folders;
            listing = listed;
            let Some(watcher) = watcher.as_deref_mut() else { break };
            if has_same_folders {
                break;
            }
            // Files that appeared in a new folder before its watch are in the next list.
            for (folder, error) in watcher.watch(&listing.folders) {
                let source = error;
                listing.errors.push(crate::error::FolderError::Io { path: folder, source });
            }
        }
        let errors: Vec<String> = listing.errors.iter().map(ToString::to_string).collect();
        if errors.is_empty() {
            self.problems.clear("manifests-folder");
        } else {
            let what = format!("manifests are not deployed: {}", errors.join("; "));
            self.problems.put("manifests-folder", what, "correct the files or folders");
        }
        listing
    }

    /// Applies all files that are due; returns when the next one is.
    async fn round(
        &mut self,
        listing: &Listing,
        complete: &BTreeSet<OsString>,
    ) -> Option<tokio::time::Instant> {
        let time = SystemTime::UNIX_EPOCH + clock::unix_time();
        let plan = state::plan(listing, &self.states, complete, (clock::now(), time));
        for (path, state) in &mut self.states {
            if listing.files.contains_key(path) {
                state.missing_since = None;
            } else if plan.missing.contains(path) {
                state.missing_since = Some(clock::now());
            }
        }
        let mut has_changed = !plan.gone.is_empty();
        for path in &plan.due {
            has_changed |= self.process(path, listing).await;
        }
        for path in &plan.gone {
            self.forget(path, listing).await;
        }
        if has_changed {
            for path in self.dependent_failures(&plan.due) {
                self.process(&path, listing).await;
            }
        }
        let retries = self.states.values().filter_map(|state| state.failure.as_ref()?.retry_at);
        retries.chain(plan.wake).min()
    }

    /// Failed files that another one may have made applicable; not those that were just processed
    /// as the only ones.
    fn dependent_failures(&self, processed: &[PathBuf]) -> Vec<PathBuf> {
        let is_dependent = |(path, state): &(&PathBuf, &state::FileState)| {
            state.failure.as_ref().is_some_and(|failure| failure.depends_on_others)
                && processed != [(*path).clone()]
        };
        self.states.iter().filter(is_dependent).map(|(path, _)| path.clone()).collect()
    }

    fn missing_kinds(&self) -> BTreeSet<VersionedKind> {
        let failures = self.states.values().filter_map(|state| state.failure.as_ref());
        failures.flat_map(|failure| failure.missing.iter().cloned()).collect_set()
    }

    fn retry_missing(&mut self) {
        let failures = self.states.values_mut().filter_map(|state| state.failure.as_mut());
        for failure in failures.filter(|failure| !failure.missing.is_empty()) {
            failure.retry_at = Some(clock::now());
        }
    }

    fn problem_key(path: &Path) -> String {
        format!("{PROBLEMS}{}", path.display())
    }
}
