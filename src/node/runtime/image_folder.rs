//! The folder of images (`agent/images`): archives dropped into it are imported, lists of names
//! (`.txt`) are pulled, at the start and while the node runs. Its images are pinned; those of a
//! removed file are unpinned at the next start, as in k3s.

mod files;
mod pinned;
mod record;

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use base::{Backoff, Problems, Shutdown};
use proto::runtime::v1 as cri;

use self::files::{FileKind, FileState};
use self::record::{FileRecord, Record};
use super::containerd::import::{self, ImportError};
use super::containerd::pins::{self, StoredImage};
use super::images::name;
use super::registries::Registries;
use super::{Runtime, RuntimeError};
use crate::file_watcher::{FileChange, FileWatcher};

pub(crate) use self::pinned::PinnedImages;

/// Delay before the first further try of a pull or import that can succeed later, and its limit.
const RETRY_INITIAL: Duration = Duration::from_secs(10);
const RETRY_MAX: Duration = Duration::from_secs(300);

/// Why a file's images are not all present.
#[derive(Debug, thiserror::Error)]
enum FolderError {
    #[error(transparent)]
    Import(#[from] ImportError),
    #[error("containerd does not answer: {0}")]
    Containerd(#[from] tonic::Status),
    #[error("cannot read it: {0}")]
    Read(#[from] std::io::Error),
    #[error("{}", .0.iter().map(|(name, error)| format!("{name}: {error}"))
        .collect::<Vec<_>>().join("; "))]
    Pull(Vec<(String, PullError)>),
}

/// Why an image of a list is not present.
#[derive(Debug, thiserror::Error)]
enum PullError {
    #[error("not a name of an image")]
    Name,
    #[error(transparent)]
    Runtime(#[from] RuntimeError),
}

impl FolderError {
    /// Whether another try with the same file can succeed.
    fn is_temporary(&self) -> bool {
        match self {
            Self::Import(error) => error.is_temporary(),
            Self::Containerd(_) => true,
            Self::Read(_) => false,
            Self::Pull(errors) => errors.iter().any(|(_, e)| matches!(e, PullError::Runtime(_))),
        }
    }
}

/// What the task needs.
#[derive(Debug)]
pub(crate) struct ImageFolder {
    /// The folder of archives and lists.
    pub(crate) folder: PathBuf,
    /// Directory of the record of imported files and of temporary data.
    pub(crate) data_dir: PathBuf,
    /// The socket of containerd.
    pub(crate) socket: PathBuf,
    /// Registries whose names imported images also get.
    pub(crate) extra_registries: Vec<String>,
    /// The image of sandboxes, if it is not the built-in one: pulled if no archive contains it.
    pub(crate) pause_image: Option<String>,
    pub(crate) runtime: Arc<dyn Runtime>,
    pub(crate) registries: Arc<ArcSwap<Registries>>,
    pub(crate) pinned: PinnedImages,
    pub(crate) problems: Problems,
}

/// The task's state.
#[derive(Debug)]
struct State {
    record: Record,
    /// Files to try again later.
    pending: BTreeSet<String>,
    /// The pause image could not be pulled yet.
    pause_pending: bool,
}

/// Imports the folder's files until shutdown.
pub(crate) async fn run(folder: ImageFolder, shutdown: Shutdown) -> Result<(), Infallible> {
    let mut watcher = match folder.watch() {
        Ok(watcher) => Some(watcher),
        Err(error) => {
            tracing::error!(folder = %folder.folder.display(), %error, "image folder: cannot \
                watch it; changes take effect at the next start");
            None
        }
    };
    let folders = [folder.folder.clone()];
    let mut state = State {
        record: folder.load().await,
        pending: BTreeSet::new(),
        pause_pending: folder.pause_image.is_some(),
    };
    folder.scan(&mut state).await;
    folder.unpin_others(&mut state).await;
    folder.pull_pause(&mut state).await;
    let mut backoff = Backoff::new(RETRY_INITIAL, RETRY_MAX);
    loop {
        let retry = !state.pending.is_empty() || state.pause_pending;
        let change = tokio::select! {
            () = shutdown.requested() => return Ok(()),
            change = next_change(watcher.as_mut()) => Some(change),
            waited = backoff.wait(&shutdown), if retry => {
                if !waited {
                    return Ok(());
                }
                None
            }
        };
        match change {
            Some(FileChange::Written(file)) => folder.take(&mut state, &file).await,
            Some(FileChange::Removed(file)) => folder.forget(&mut state, &file),
            Some(FileChange::Unknown) => {
                if let Some(watcher) = &mut watcher {
                    watcher.watch(&folders);
                }
                folder.scan(&mut state).await;
            }
            None => {
                for file in std::mem::take(&mut state.pending) {
                    folder.take(&mut state, &file).await;
                }
                folder.pull_pause(&mut state).await;
            }
        }
        if state.pending.is_empty() && !state.pause_pending {
            backoff.reset();
        }
    }
}

async fn next_change(watcher: Option<&mut FileWatcher>) -> FileChange {
    match watcher {
        Some(watcher) => watcher.next_change().await,
        None => std::future::pending().await,
    }
}

impl ImageFolder {
    /// Creates the folder, so that files can be dropped into it, and watches it.
    fn watch(&self) -> std::io::Result<FileWatcher> {
        if !self.folder.is_dir() {
            base::fs::create_dir(&self.folder, 0o755)?;
        }
        let mut watcher = FileWatcher::new()?;
        watcher.watch(std::slice::from_ref(&self.folder));
        Ok(watcher)
    }

    fn record_path(&self) -> PathBuf {
        self.data_dir.join("image-imports.json")
    }

    /// Reads the record and removes the entries of files that are gone.
    async fn load(&self) -> Record {
        let (path, folder) = (self.record_path(), self.folder.clone());
        let read = move || {
            let mut record = Record::read(&path);
            record.files.retain(|file, _| folder.join(file).exists());
            record
        };
        let record = base::tasks::blocking(read).await.unwrap_or_default();
        self.pinned.replace(record.names());
        record
    }

    async fn save(&self, record: &Record) {
        self.pinned.replace(record.names());
        let (path, record) = (self.record_path(), record.clone());
        let written = base::tasks::blocking(move || record.write(&path)).await;
        if let Ok(Err(error)) = written {
            tracing::warn!(%error, "image folder: cannot record imported files, they are imported \
                again at the next start");
        }
    }

    /// Takes every file of the folder.
    async fn scan(&self, state: &mut State) {
        let folder = self.folder.clone();
        let listed = base::tasks::blocking(move || files::list(&folder)).await;
        match listed {
            Ok(Ok(files)) => {
                for file in files {
                    self.take(state, &file).await;
                }
            }
            Ok(Err(error)) => tracing::warn!(folder = %self.folder.display(), %error,
                "image folder: cannot list it"),
            Err(_) => {}
        }
    }

    fn key(&self, file: &str) -> String {
        format!("images/{}", self.folder.join(file).display())
    }

    fn report(&self, file: &str, why: &str, fix: &str) {
        let path = self.folder.join(file);
        let what = format!("cannot import images from {}: {why}", path.display());
        self.problems.put(&self.key(file), what, fix);
    }

    /// Forgets a removed file; its images stay pinned until the next start.
    fn forget(&self, state: &mut State, file: &str) {
        state.pending.remove(file);
        self.problems.clear(&self.key(file));
    }

    /// Imports a new or changed file.
    async fn take(&self, state: &mut State, file: &str) {
        let kind = match FileKind::of(file) {
            Ok(Some(kind)) => kind,
            Ok(None) => return,
            Err(why) => return self.report(file, why, "rename, convert or remove the file"),
        };
        let path = self.folder.join(file);
        let stated = path.clone();
        let now = match base::tasks::blocking(move || files::state(&stated)).await {
            Ok(Ok(Some(now))) => now,
            Ok(Ok(None)) => return self.report(file, "not a regular file", "remove it"),
            Ok(Err(error)) if error.kind() == std::io::ErrorKind::NotFound => {
                return self.forget(state, file);
            }
            Ok(Err(error)) => return self.report(file, &error.to_string(), "make it readable"),
            Err(_) => return,
        };
        match self.import(state, file, &path, kind, &now).await {
            Ok(()) => self.forget(state, file),
            Err(error) => {
                let fix = if error.is_temporary() {
                    state.pending.insert(file.to_owned());
                    "kube-lite retries; correct what the message names, or remove the file"
                } else {
                    if state.record.files.remove(file).is_some() {
                        self.save(&state.record).await;
                    }
                    "replace or remove the file; it is read again when it changes"
                };
                self.report(file, &error.to_string(), fix);
            }
        }
    }

    async fn import(
        &self,
        state: &mut State,
        file: &str,
        path: &Path,
        kind: FileKind,
        now: &FileState,
    ) -> Result<(), FolderError> {
        let stored = pins::list(&self.socket).await?;
        if let Some(known) = state.record.files.get(file)
            && known.is_current(now, registries_of(kind, &self.extra_registries), |name| {
                digest_of(&stored, name)
            })
        {
            return Ok(self.pin(&stored, known.images.keys()).await?);
        }
        let started = base::clock::now();
        let (images, failed) = match kind {
            FileKind::Archive => {
                let (socket, registries) = (&self.socket, &self.extra_registries);
                let images = import::archive(socket, path, &self.data_dir, registries).await?;
                (images, Vec::new())
            }
            FileKind::List => self.pull_list(path).await?,
        };
        let (read, names) = (now.clone(), images.len());
        let complete = failed.is_empty();
        let registries = registries_of(kind, &self.extra_registries).to_vec();
        let entry = FileRecord { state: read, complete, registries, images };
        state.record.files.insert(file.to_owned(), entry);
        self.save(&state.record).await;
        if !complete {
            return Err(FolderError::Pull(failed));
        }
        tracing::info!(file = %path.display(), names, after = ?started.elapsed(), "image folder: \
            imported images");
        Ok(())
    }

    /// Pins these names.
    async fn pin(
        &self,
        stored: &[StoredImage],
        names: impl Iterator<Item = &String>,
    ) -> Result<(), tonic::Status> {
        for name in names {
            let found = stored.iter().find(|image| image.name() == name);
            if let Some(image) = found.filter(|image| !image.is_pinned()) {
                pins::set(&self.socket, image, true).await?;
            }
        }
        Ok(())
    }

    /// Unpins the images of files that are no longer in the folder.
    async fn unpin_others(&self, state: &mut State) {
        let stored = match pins::list(&self.socket).await {
            Ok(stored) => stored,
            Err(error) => {
                tracing::warn!(%error, "image folder: cannot list images to unpin them");
                return;
            }
        };
        let wanted = state.record.names();
        let others = stored.iter().filter(|i| i.has_import_pin() && !wanted.contains(i.name()));
        for image in others {
            if let Err(error) = pins::set(&self.socket, image, false).await {
                tracing::warn!(image = image.name(), %error, "image folder: cannot unpin image");
            }
        }
    }

    /// Pulls the images of a list that are not present; returns the digests of the present ones by
    /// name, pinned, and why others are missing.
    async fn pull_list(
        &self,
        path: &Path,
    ) -> Result<(BTreeMap<String, String>, Vec<(String, PullError)>), FolderError> {
        let path = path.to_owned();
        let read = base::tasks::blocking(move || files::names(&path)).await;
        let names = read.map_err(|e| FolderError::Read(std::io::Error::other(e)))??;
        let (mut present, mut failed) = (Vec::new(), Vec::new());
        for short in names {
            match self.ensure(&short).await {
                Ok(full) => present.push(full),
                Err(error) => failed.push((short, error)),
            }
        }
        let stored = pins::list(&self.socket).await?;
        let mut images = BTreeMap::new();
        for full in present {
            let Some(digest) = digest_of(&stored, &full) else { continue };
            // containerd stores a pulled image by tag and by digest.
            let by_digest = format!("{}@{digest}", name::split(&full).0);
            if digest_of(&stored, &by_digest).is_some() {
                images.insert(by_digest, digest.to_owned());
            }
            images.insert(full, digest.to_owned());
        }
        self.pin(&stored, images.keys()).await?;
        Ok((images, failed))
    }

    /// Pulls an image unless it is present; returns its full name.
    async fn ensure(&self, short: &str) -> Result<String, PullError> {
        if !name::is_valid(short) {
            return Err(PullError::Name);
        }
        let full = name::normalize(short);
        if self.runtime.image(&full).await?.is_some() {
            return Ok(full);
        }
        let credentials = self.registries.load().credentials(&full);
        let spec = || cri::ImageSpec { image: full.clone(), ..cri::ImageSpec::default() };
        let pull = |auth| self.runtime.pull_image(spec(), auth, cri::PodSandboxConfig::default());
        for auth in credentials {
            if pull(Some(auth)).await.is_ok() {
                return Ok(full);
            }
        }
        pull(None).await?;
        Ok(full)
    }

    /// Pulls the configured pause image. containerd pulls it for the first sandbox, too, but
    /// without credentials.
    async fn pull_pause(&self, state: &mut State) {
        let Some(image) = &self.pause_image else { return };
        match self.ensure(image).await {
            Ok(_) => {
                state.pause_pending = false;
                self.problems.clear("images/pause");
            }
            Err(error) => {
                let what = format!("cannot pull the pause image {image}: {error}");
                let fix = "kube-lite retries; correct --pause-image or registries.yaml, or put an \
                    archive with the image into the image folder";
                self.problems.put("images/pause", what, fix);
            }
        }
    }
}

/// The registries whose names the images of a file get: none for a list, which names its images.
fn registries_of(kind: FileKind, extra: &[String]) -> &[String] {
    match kind {
        FileKind::Archive => extra,
        FileKind::List => &[],
    }
}

fn digest_of<'a>(stored: &'a [StoredImage], name: &str) -> Option<&'a str> {
    stored.iter().find(|image| image.name() == name).map(StoredImage::digest)
}
