//! Processes one file: applies its objects, or deletes them if the file is disabled or gone.

use std::collections::BTreeSet;
use std::path::Path;

use base::clock;
use client::Discovery;
use sorting::CollectOrdered as _;
use tracing::info;

use super::Controller;
use crate::addon::{Addon, VersionedKind};
use crate::applier::{self, ObjectIdentity, ResolvedManifest};
use crate::document;
use crate::error::ManifestError;
use crate::file;
use crate::folder::{Listing, ManifestFile, addon_name};
use crate::object_set::Owner;
use crate::packaged::{COMPONENTS_OF_K3S, FILES};
use crate::state;

/// The longest name of an Addon: `objectset.rio.cattle.io/owner-name` and events repeat it.
const NAME_MAX: usize = 253;

/// The result of applying a file.
struct Applied {
    /// Its objects; `None` if it was not parsed.
    objects: Option<BTreeSet<ObjectIdentity>>,
    /// Kinds that are not served.
    missing: BTreeSet<VersionedKind>,
    /// Whether the file has the definitions of the missing kinds, which are served in a moment.
    defines_missing: bool,
    /// Whether something changed.
    result: Result<bool, ManifestError>,
}

impl Applied {
    fn new(objects: Option<BTreeSet<ObjectIdentity>>, result: Result<bool, ManifestError>) -> Self {
        Self { objects, missing: BTreeSet::new(), defines_missing: false, result }
    }

    fn failed(error: impl Into<ManifestError>) -> Self {
        Self::new(None, Err(error.into()))
    }
}

impl Controller {
    /// Processes a file; returns whether that changed the cluster.
    pub(super) async fn process(&mut self, path: &Path, listing: &Listing) -> bool {
        let Some(file) = listing.files.get(path) else { return false };
        let state = self.states.entry(path.to_owned()).or_default();
        if state.fingerprint != Some(file.fingerprint) {
            state.fingerprint = Some(file.fingerprint);
            state.failure = None;
        }
        let mut applied = if file.is_disabled {
            self.disable(path, file).await
        } else {
            self.apply_file(path, file, listing).await
        };
        let state = self.states.entry(path.to_owned()).or_default();
        if let Some(objects) = applied.objects.take() {
            state.objects = objects;
        }
        match applied.result {
            Ok(changed) => {
                state.failure = None;
                state.is_applied = !file.is_disabled;
                self.problems.clear(&Self::problem_key(&file.relative));
                changed
            }
            Err(error) => {
                self.fail(path, file, (applied.missing, applied.defines_missing), &error).await;
                false
            }
        }
    }

    /// Reports an error by an event, the log and `kube-lite status`, once until it changes.
    async fn fail(
        &mut self,
        path: &Path,
        file: &ManifestFile,
        (missing, defines_missing): (BTreeSet<VersionedKind>, bool),
        error: &ManifestError,
    ) {
        let source = path.display().to_string();
        let message = error.message(&source);
        let Some(state) = self.states.get_mut(path) else { return };
        let is_quiet = defines_missing
            && state.failure.is_none()
            && matches!(error, ManifestError::MissingKinds(_));
        let is_new =
            !is_quiet && state.failure.as_ref().is_none_or(|failure| failure.message != message);
        let reported = if is_quiet { String::new() } else { message.clone() };
        let failure = state.fail(reported, error.is_retried(), clock::now());
        failure.depends_on_others = error.is_retried()
            || matches!(error, ManifestError::SameName(..) | ManifestError::SameObject { .. });
        failure.missing = missing;
        if is_new {
            let what = format!("the manifest {source} is not deployed: {error}");
            self.problems.put(&Self::problem_key(&file.relative), what, error.fix(&source));
            if let Ok(Some(addon)) = self.addons.get(&addon_name(path)).await {
                self.addons.warn(&addon, error.reason(), message);
            }
        }
    }

    async fn apply_file(&self, path: &Path, file: &ManifestFile, listing: &Listing) -> Applied {
        if let Err(error) = check_name(path, file, listing) {
            return Applied::failed(error);
        }
        let source = path.display().to_string();
        let mut addon = match self.addons.ensure(&addon_name(path), &source).await {
            Ok(addon) => addon,
            Err(error) => return Applied::failed(error),
        };
        let own = path.to_owned();
        let read = base::tasks::blocking(move || file::read(&own)).await;
        let content = match read {
            Ok(Ok(content)) => content,
            Ok(Err(error)) => return Applied::failed(error),
            Err(panic) => return Applied::failed(ManifestError::Objects(panic.to_string())),
        };
        let digest = ring::digest::digest(&ring::digest::SHA256, &content);
        let checksum = base::hex(digest.as_ref());
        let is_new = addon.checksum != checksum;
        let state = self.states.get(path);
        // The first time after the start, the objects are compared although the file is the same.
        let is_applied = state.is_some_and(|s| s.is_applied && s.failure.is_none());
        if !is_new && is_applied && addon.source == source {
            return Applied::new(None, Ok(false));
        }
        let parsed = base::tasks::blocking(move || document::parse(&content)).await;
        let objects = match parsed {
            Ok(Ok(objects)) => objects,
            Ok(Err(error)) => return Applied::failed(error),
            Err(panic) => return Applied::failed(ManifestError::Objects(panic.to_string())),
        };
        let mut discovery = Discovery::new(&self.client);
        match applier::resolve(objects, &mut discovery).await {
            Ok(manifest) => {
                let is_retry = state.is_some_and(|state| state.failure.is_some());
                let work = Work { path, source, checksum, is_new, is_retry };
                self.apply_manifest(work, manifest, &mut addon).await
            }
            Err(error) => Applied::failed(error),
        }
    }

    async fn apply_manifest(
        &self,
        work: Work<'_>,
        mut manifest: ResolvedManifest,
        addon: &mut Addon,
    ) -> Applied {
        let missing = std::mem::take(&mut manifest.missing);
        let mut conflict = None;
        // Another file keeps its object; the rest of this one is applied.
        manifest.objects.retain(|object| {
            let other = state::owner_of(&self.states, work.path, &object.identity);
            if let Some(other) = other {
                conflict.get_or_insert_with(|| ManifestError::SameObject {
                    object: object.identity.describe(),
                    other: other.display().to_string(),
                });
            }
            other.is_none()
        });
        let objects: BTreeSet<_> =
            manifest.objects.iter().map(|o| o.identity.clone()).collect_set();
        let defines = |kind| manifest.objects.iter().any(|object| object.defines(kind));
        let defines_missing = !missing.is_empty() && missing.iter().all(defines);
        let result = self.apply_objects(&work, manifest, addon, &objects, conflict, &missing).await;
        Applied { objects: Some(objects), missing, defines_missing, result }
    }

    async fn apply_objects(
        &self,
        work: &Work<'_>,
        manifest: ResolvedManifest,
        addon: &mut Addon,
        objects: &BTreeSet<ObjectIdentity>,
        conflict: Option<ManifestError>,
        missing: &BTreeSet<VersionedKind>,
    ) -> Result<bool, ManifestError> {
        self.addons.add_kinds(addon, &manifest.kinds).await?;
        if work.is_new && !work.is_retry {
            let text = format!("Applying manifest at {:?}", work.source);
            self.addons.normal(addon, "ApplyingManifest", text);
        }
        let owner = Owner::new(&addon.name);
        let outcome = applier::apply(&self.client, Some(&owner), manifest.objects).await;
        if let Some(error) = outcome.error() {
            return Err(ManifestError::Objects(error));
        }
        if let Some(conflict) = conflict {
            return Err(conflict);
        }
        if !missing.is_empty() {
            return Err(ManifestError::MissingKinds(list_kinds(missing)));
        }
        let mut discovery = Discovery::new(&self.client);
        let (pruned, used) =
            applier::prune(&self.client, &owner, &addon.kinds, objects, &mut discovery).await?;
        if let Some(error) = pruned.error() {
            return Err(ManifestError::Objects(error));
        }
        if let Some(namespace) = used.into_iter().next() {
            return Err(ManifestError::NamespaceInUse(namespace));
        }
        let changed = outcome.changed + pruned.changed;
        self.addons.set_applied(addon, &work.source, &work.checksum, &manifest.kinds).await?;
        if work.is_new {
            let text = format!("Applied manifest at {:?}", work.source);
            self.addons.normal(addon, "AppliedManifest", text);
        }
        if work.is_new || changed > 0 {
            info!(
                file = work.source,
                objects = objects.len(),
                changed = outcome.changed,
                deleted = pruned.changed,
                "addons: applied manifest"
            );
        }
        Ok(work.is_new || changed > 0)
    }

    /// Deletes the objects of a disabled file, the file and its Addon.
    async fn disable(&self, path: &Path, file: &ManifestFile) -> Applied {
        let kinds = {
            let own = path.to_owned();
            let parsed =
                base::tasks::blocking(move || document::parse(&file::read(&own).ok()?).ok()).await;
            let objects = parsed.ok().flatten().unwrap_or_default();
            objects.into_iter().map(|o| VersionedKind { api_version: o.api_version, kind: o.kind })
        };
        let own = (!file.is_linked).then(|| path.to_owned());
        let result = async {
            let addon = self.addons.get(&addon_name(path)).await?;
            self.delete_objects(&addon_name(path), addon.as_ref(), kinds.collect()).await?;
            if let Some(own) = own {
                let removed = base::tasks::blocking(move || std::fs::remove_file(own)).await;
                if let Ok(Err(error)) = removed {
                    return Err(ManifestError::Read(error.into()));
                }
            }
            self.delete_addon(addon.as_ref(), path).await?;
            Ok(true)
        };
        Applied::new(Some(BTreeSet::new()), result.await)
    }

    async fn delete_objects(
        &self,
        name: &str,
        addon: Option<&Addon>,
        mut kinds: BTreeSet<VersionedKind>,
    ) -> Result<(), ManifestError> {
        kinds.extend(addon.into_iter().flat_map(|addon| addon.kinds.iter().cloned()));
        let (owner, keep) = (Owner::new(name), BTreeSet::new());
        let mut discovery = Discovery::new(&self.client);
        let (outcome, _) =
            applier::prune(&self.client, &owner, &kinds, &keep, &mut discovery).await?;
        if let Some(error) = outcome.error() {
            return Err(ManifestError::Objects(error));
        }
        info!(addon = name, deleted = outcome.changed, "addons: deleted objects");
        Ok(())
    }

    async fn delete_addon(&self, addon: Option<&Addon>, path: &Path) -> Result<(), ManifestError> {
        let Some(addon) = addon else { return Ok(()) };
        let text = format!("Deleting manifest at {:?}", path.display().to_string());
        self.addons.normal(addon, "DeletingManifest", text);
        Ok(self.addons.delete(&addon.name).await?)
    }

    /// Forgets a file that does not exist any more. Its objects stay, unless files are pruned.
    pub(super) async fn forget(&mut self, path: &Path, listing: &Listing) {
        if let Ok(relative) = path.strip_prefix(&self.config.folder) {
            self.problems.clear(&Self::problem_key(relative));
        }
        let Some(state) = self.states.remove(path) else { return };
        if self.config.prune_deleted_files && state.is_applied {
            self.prune_file(path, listing).await;
        }
    }

    async fn prune_file(&self, path: &Path, listing: &Listing) {
        let name = addon_name(path);
        // The file was moved to another folder.
        if listing.files.keys().any(|other| addon_name(other) == name) {
            return;
        }
        let result = async {
            let addon = self.addons.get(&name).await?;
            self.delete_objects(&name, addon.as_ref(), BTreeSet::new()).await?;
            self.delete_addon(addon.as_ref(), path).await
        };
        if let Err(error) = result.await {
            tracing::warn!(file = %path.display(), %error, "addons: cannot delete the objects of a deleted file");
        }
    }

    /// With pruning: deletes the objects of files that were deleted while this server did not run.
    pub(super) async fn delete_removed_files(&self, listing: &Listing) {
        if !self.config.prune_deleted_files {
            return;
        }
        let addons = match self.addons.list().await {
            Ok(addons) => addons,
            Err(error) => return tracing::warn!(%error, "addons: cannot list Addons"),
        };
        // Another server has other files, and k3s prunes none.
        for addon in addons.iter().filter(|addon| addon.server == self.config.server) {
            let path = Path::new(&addon.source);
            if path.starts_with(&self.config.folder) && listing.is_removed(path) {
                self.prune_file(path, listing).await;
            }
        }
    }

    /// Deletes the objects of packaged manifests that are disabled and have no file.
    pub(super) async fn delete_disabled_components(&self, listing: &Listing) {
        for file in &FILES {
            let (path, relative) = (self.config.folder.join(file.name), Path::new(file.name));
            if listing.files.contains_key(&path)
                || !crate::folder::is_disabled(relative, &self.config.disabled)
            {
                continue;
            }
            let name = addon_name(relative);
            let result = async {
                let Some(addon) = self.addons.get(&name).await? else { return Ok(()) };
                self.delete_objects(&name, Some(&addon), BTreeSet::new()).await?;
                self.delete_addon(Some(&addon), &path).await
            };
            if let Err(error) = result.await {
                tracing::warn!(addon = name, %error, "addons: cannot delete the objects of a disabled component");
            }
        }
    }
}

/// A file that is applied.
struct Work<'a> {
    path: &'a Path,
    source: String,
    checksum: String,
    /// Whether its content differs from what was applied last.
    is_new: bool,
    /// Whether an earlier attempt with this content failed.
    is_retry: bool,
}

fn list_kinds(kinds: &BTreeSet<VersionedKind>) -> String {
    let texts: Vec<String> =
        kinds.iter().map(|kind| format!("{} of {}", kind.kind, kind.api_version)).collect();
    texts.join(", ")
}

/// Checks the name of a file.
fn check_name(path: &Path, file: &ManifestFile, listing: &Listing) -> Result<(), ManifestError> {
    let name = addon_name(path);
    for (component, why) in COMPONENTS_OF_K3S {
        if file.relative.starts_with(component) {
            return Err(ManifestError::Component(why));
        }
    }
    let why = api::validation::names::dns1123_subdomain(&name);
    if let Some(why) = why.into_iter().next() {
        return Err(ManifestError::Name(name, why));
    }
    if name.len() > NAME_MAX {
        return Err(ManifestError::Name(name, format!("it is longer than {NAME_MAX} bytes")));
    }
    match state::same_name(listing, path) {
        Some(other) => Err(ManifestError::SameName(other.relative.display().to_string(), name)),
        None => Ok(()),
    }
}
