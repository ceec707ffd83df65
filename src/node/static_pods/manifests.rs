//! Static pods: reads manifests from directories of the machine, again whenever a directory
//! changes.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base::{Problem, Problems, Shutdown};
use sorting::CompactSort as _;

use super::document::{DOCUMENT_MAX, InvalidManifest, ManifestSource, is_equal, parse};
use super::sources::{PodSource, StaticPodPublisher};
use crate::digest::sha256;
use crate::file_watcher::FileWatcher;
use crate::pods::pod::Pod;

/// Maximum number of files that are read in a directory.
const FILES_MAX: usize = 1000;

#[derive(Debug)]
struct ManifestFile {
    digest: String,
    pod: Option<Arc<Pod>>,
    /// Why the current content is rejected.
    error: Option<String>,
}

/// The directories and their manifests.
#[derive(Debug)]
pub(crate) struct ManifestReader {
    folders: Vec<PathBuf>,
    node_name: String,
    files: BTreeMap<PathBuf, ManifestFile>,
    /// Other rejected paths of the last read, with the reasons.
    rejected: BTreeMap<PathBuf, String>,
}

/// Prefix of the keys of problem entries; the path follows.
const PROBLEMS: &str = "static-pods/file/";

impl ManifestReader {
    pub(crate) fn new(folders: Vec<PathBuf>, node_name: String) -> Self {
        Self { folders, node_name, files: BTreeMap::new(), rejected: BTreeMap::new() }
    }

    /// Returns a problem entry for each rejected file and directory.
    fn problems(&self) -> Vec<(String, Problem)> {
        let files = self.files.iter().filter_map(|(path, file)| Some((path, file.error.as_ref()?)));
        let all = files.chain(&self.rejected);
        let problem = |(path, error): (&PathBuf, &String)| {
            let what = format!("the static pod {} is invalid: {error}", path.display());
            let fix = "correct or remove the file; it is read again when it changes";
            (format!("{PROBLEMS}{}", path.display()), Problem { what, fix: fix.to_owned() })
        };
        all.map(problem).collect()
    }

    /// Forgets files that were removed: one that is there again is a new pod, also with the same
    /// content.
    fn forget(&mut self, removed: &BTreeSet<PathBuf>) {
        self.files.retain(|path, _| !removed.contains(path));
    }

    /// Reads all files. A file that becomes invalid is a problem until it changes, and its previous
    /// pod keeps running.
    pub(crate) fn read(&mut self) -> Vec<Arc<Pod>> {
        let mut found = BTreeMap::new();
        self.rejected.clear();
        for folder in self.folders.clone() {
            match list(&folder) {
                Ok((paths, rejected)) => {
                    self.rejected.extend(rejected);
                    for path in paths {
                        let previous = self.files.remove(&path);
                        if let Some(file) = self.read_file(&path, previous) {
                            found.insert(path, file);
                        }
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => {
                    self.rejected.insert(folder.clone(), format!("cannot be read: {error}"));
                    let (here, others) = std::mem::take(&mut self.files)
                        .into_iter()
                        .partition(|(path, _)| path.parent() == Some(&folder));
                    found.extend::<BTreeMap<PathBuf, ManifestFile>>(here);
                    self.files = others;
                }
            }
        }
        self.files = found;
        let mut pods: Vec<Arc<Pod>> = Vec::new();
        for (path, pod) in self.files.iter().filter_map(|(path, f)| Some((path, f.pod.as_ref()?))) {
            if pods.iter().any(|p| p.key == pod.key || p.uid == pod.uid) {
                let error = format!("another manifest contains the pod {}", pod.key);
                self.rejected.insert(path.clone(), error);
            } else {
                pods.push(Arc::clone(pod));
            }
        }
        pods
    }

    fn read_file(&self, path: &Path, previous: Option<ManifestFile>) -> Option<ManifestFile> {
        let body = match read_bounded(path) {
            Ok(body) => body,
            // Removed since the directory was listed.
            Err(InvalidManifest::Io(e)) if e.kind() == io::ErrorKind::NotFound => return None,
            Err(error) => return Some(reject_content(&error, String::new(), previous)),
        };
        let digest = sha256(&body);
        if let Some(file) = previous.as_ref()
            && file.digest == digest
        {
            return previous;
        }
        Some(match parse(&body, ManifestSource::File(path), &self.node_name) {
            Ok(pod) => {
                // Other text of the same pod is no change.
                let kept = previous.and_then(|file| file.pod).filter(|old| is_equal(old, &pod));
                let pod = kept.unwrap_or_else(|| Arc::new(pod));
                ManifestFile { digest, pod: Some(pod), error: None }
            }
            Err(error) => reject_content(&error, digest, previous),
        })
    }
}

/// Rejects the content of a file; its previous pod keeps running.
fn reject_content(
    error: &InvalidManifest,
    digest: String,
    previous: Option<ManifestFile>,
) -> ManifestFile {
    ManifestFile { digest, pod: previous.and_then(|f| f.pod), error: Some(error.to_string()) }
}

/// Rejected paths with the reasons.
type RejectedPaths = Vec<(PathBuf, String)>;

/// Lists the files of a directory, sorted and without hidden ones, and what is neither a file nor a
/// directory.
fn list(folder: &Path) -> io::Result<(Vec<PathBuf>, RejectedPaths)> {
    let (mut out, mut rejected) = (Vec::new(), Vec::new());
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let path = entry.path();
        if entry.file_name().to_string_lossy().starts_with('.') || path.is_dir() {
            continue;
        }
        if path.is_file() {
            out.push(path);
        } else {
            rejected.push((path, "not a regular file".to_owned()));
        }
    }
    out.compact_sort();
    if out.len() > FILES_MAX {
        let why = format!("only the first {FILES_MAX} of {} files are read", out.len());
        rejected.push((folder.to_owned(), why));
        out.truncate(FILES_MAX);
    }
    Ok((out, rejected))
}

fn read_bounded(path: &Path) -> Result<Vec<u8>, InvalidManifest> {
    use std::io::Read;
    let mut body = Vec::new();
    let limit = u64::try_from(DOCUMENT_MAX).unwrap_or(u64::MAX).saturating_add(1);
    std::fs::File::open(path)?.take(limit).read_to_end(&mut body)?;
    if body.len() > DOCUMENT_MAX { Err(InvalidManifest::TooLarge) } else { Ok(body) }
}

/// Publishes the static pods now and after each change, until shutdown.
pub(crate) async fn run(
    mut manifests: ManifestReader,
    publisher: StaticPodPublisher,
    problems: Problems,
    shutdown: Shutdown,
) -> Result<(), std::convert::Infallible> {
    let folders = manifests.folders.clone();
    let mut watcher = match FileWatcher::new() {
        Ok(watcher) => Some(watcher),
        Err(error) => {
            tracing::error!(%error, "cannot watch static pod manifests; changes take effect at \
                the next start");
            None
        }
    };
    loop {
        if let Some(watcher) = &mut watcher {
            watcher.watch(&folders);
        }
        let read = base::tasks::blocking(move || {
            let pods = manifests.read();
            (manifests, pods)
        });
        let Ok((back, pods)) = read.await else { return Ok(()) };
        manifests = back;
        problems.replace(PROBLEMS, manifests.problems());
        publisher.publish(PodSource::Files, pods);
        let changed = async {
            match &mut watcher {
                Some(watcher) => watcher.removed_by_changes(&folders).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = shutdown.requested() => return Ok(()),
            removed = changed => manifests.forget(&removed),
        }
    }
}

#[cfg(test)]
mod tests;
