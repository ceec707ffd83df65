//! User namespaces of pods (`hostUsers: false`): each pod has a range of ids of the host, which is
//! recorded in its directory until it ends (`pkg/kubelet/userns`).
//!
//! Files of volumes keep the ids of the container: the runtime maps the ids of each mount.

mod allocation;
mod handlers;
pub(crate) mod id_range;
pub(crate) mod metrics;
mod record;
mod subordinate_ids;

use std::collections::HashSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use proto::runtime::v1 as cri;

use crate::config::Config;
use crate::pods::pod::Pod;
use allocation::{AllocationError, Allocations};
use handlers::{Handlers, NotSupported};
use id_range::{HostIds, IdSlots};
use record::InvalidRecord;

/// Largest record in bytes; kube-lite's has about 120.
const RECORD_MAX: u64 = 64 << 10;

/// Why the ranges of pods cannot be managed, so that the node does not start; the texts are those
/// of upstream.
#[derive(Debug, thiserror::Error)]
pub enum UserNamespacesError {
    /// The ids of the user `kubelet` cannot be had from `getsubids`.
    #[error("kubelet mappings: {0}")]
    KubeletIds(String),
    /// The ids do not suffice, or do not begin and end with a range of a pod.
    #[error("{0}")]
    Range(String),
    /// The directories of pods cannot be listed.
    #[error("read pods from disk: {0}")]
    Pods(#[source] io::Error),
    /// The record of a pod is invalid, for example of another number of ids per pod.
    #[error("record pod mappings for existing pod {uid:?}: {why}")]
    Record {
        /// The pod.
        uid: String,
        /// Why its record is invalid.
        why: String,
    },
}

/// Why a record is not used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RecordError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("the file is larger than 64 KiB")]
    TooLarge,
    #[error(transparent)]
    Invalid(#[from] InvalidRecord),
    #[error(transparent)]
    Allocation(#[from] AllocationError),
}

/// Why a range is not allocated.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CreateError {
    #[error(transparent)]
    Allocation(#[from] AllocationError),
    #[error(transparent)]
    Write(#[from] io::Error),
    #[error(transparent)]
    Json(#[from] serde_json::Error),
}

/// Why a pod has no user namespace; the texts are those of upstream.
#[derive(Debug, thiserror::Error)]
pub(crate) enum UserNamespaceError {
    #[error(transparent)]
    NotSupported(#[from] NotSupported),
    /// The record cannot be read.
    #[error(transparent)]
    Read(io::Error),
    #[error("user namespace: {0}")]
    Record(#[source] RecordError),
    #[error("create user namespace: {0}")]
    Create(#[source] CreateError),
    /// The work on the disk panicked.
    #[error(transparent)]
    Task(#[from] tokio::task::JoinError),
}

/// Whether a pod has a user namespace of its own.
pub(crate) fn is_of_pod(pod: &Pod) -> bool {
    pod.spec().host_users == Some(false)
}

/// The user namespace of a pod that shares the host's.
pub(crate) fn of_host() -> cri::UserNamespace {
    cri::UserNamespace { mode: cri::NamespaceMode::Node.into(), ..cri::UserNamespace::default() }
}

/// A user namespace with the range that begins at `host_id`.
fn with_range(host_id: u32, length: u32) -> cri::UserNamespace {
    let mapping = cri::IdMapping { host_id, container_id: 0, length };
    cri::UserNamespace {
        mode: cri::NamespaceMode::Pod.into(),
        uids: vec![mapping],
        gids: vec![mapping],
    }
}

/// The ranges of the pods of a node.
#[derive(Debug)]
pub(crate) struct UserNamespaces {
    /// `<root-dir>/pods`.
    pods_dir: PathBuf,
    /// Not locked during work on the disk: a pod has one worker, which alone writes its record.
    allocations: Mutex<Allocations>,
    handlers: ArcSwap<Handlers>,
}

impl UserNamespaces {
    /// Determines the ids of the kubelet, and reads the records of all pods.
    ///
    /// # Errors
    ///
    /// The ids do not suffice, or a record is invalid.
    pub(crate) async fn start(config: &Config) -> Result<Arc<Self>, UserNamespacesError> {
        let ids = subordinate_ids::of_kubelet(&config.runtime, config.ids_per_pod).await;
        let ids = ids.map_err(|error| UserNamespacesError::KubeletIds(error.to_string()))?;
        let (pods_dir, ids_per_pod) = (config.root_dir.join("pods"), config.ids_per_pod);
        let max_pods = config.max_pods;
        let open = move || Self::open(pods_dir, ids, ids_per_pod, max_pods);
        let opened = base::tasks::blocking(open).await;
        opened.map_err(|error| UserNamespacesError::Pods(io::Error::other(error)))?.map(Arc::new)
    }

    /// Reads the records of all pods. Blocks.
    fn open(
        pods_dir: PathBuf,
        ids: HostIds,
        ids_per_pod: u32,
        max_pods: u32,
    ) -> Result<Self, UserNamespacesError> {
        let slots = IdSlots::new(ids, ids_per_pod, max_pods);
        let slots = slots.map_err(|error| UserNamespacesError::Range(error.to_string()))?;
        let mut allocations = Allocations::new(slots);
        for uid in pods_on_disk(&pods_dir).map_err(UserNamespacesError::Pods)? {
            let text = read_record(&pods_dir.join(&uid));
            let recorded = text.and_then(|text| {
                text.map_or(Ok(()), |text| take_over(&mut allocations, &uid, &text).map(|_| ()))
            });
            recorded.map_err(|error| {
                let why = error.to_string();
                UserNamespacesError::Record { uid, why }
            })?;
        }
        Ok(Self { pods_dir, allocations: Mutex::new(allocations), handlers: ArcSwap::default() })
    }

    /// The ranges of a node without pods, for tests.
    #[cfg(test)]
    pub(crate) fn empty(root_dir: &Path) -> Arc<Self> {
        let (pods_dir, length) = (root_dir.join("pods"), id_range::IDS_PER_POD);
        let opened = Self::open(pods_dir, HostIds::all(length), length, 110);
        Arc::new(opened.unwrap())
    }

    /// Takes over which handlers of the runtime support user namespaces.
    pub(crate) fn update_handlers(&self, status: &cri::StatusResponse) {
        self.handlers.store(Arc::new(Handlers::of(status)));
    }

    /// Returns the user namespace of a pod with `hostUsers: false`; allocates its range if it has
    /// none. `handler` is that of its RuntimeClass, or empty.
    ///
    /// # Errors
    ///
    /// The handler does not support user namespaces, the record is invalid or cannot be written, or
    /// no range is free.
    pub(crate) async fn of_pod(
        self: &Arc<Self>,
        uid: &str,
        handler: &str,
    ) -> Result<cri::UserNamespace, UserNamespaceError> {
        self.handlers.load().check(handler)?;
        let (this, uid) = (Arc::clone(self), uid.to_owned());
        base::tasks::blocking(move || this.read_or_create(&uid)).await?
    }

    /// Returns the user namespace of a pod whose sandbox exists; `None` if no range is recorded.
    pub(crate) fn of_sandbox(&self, uid: &str) -> Option<cri::UserNamespace> {
        let allocations = self.allocations.lock();
        allocations.first_id(uid).map(|first| with_range(first, allocations.ids_per_pod()))
    }

    /// Reads the range of a pod from its record, or allocates one and records it. Blocks.
    fn read_or_create(&self, uid: &str) -> Result<cri::UserNamespace, UserNamespaceError> {
        let text = read_record(&self.pods_dir.join(uid)).map_err(|error| match error {
            RecordError::Io(error) => UserNamespaceError::Read(error),
            error => UserNamespaceError::Record(error),
        })?;
        let (first, length) = match text {
            Some(text) => {
                let mut allocations = self.allocations.lock();
                let first = take_over(&mut allocations, uid, &text);
                (first.map_err(UserNamespaceError::Record)?, allocations.ids_per_pod())
            }
            None => self.create(uid).map_err(UserNamespaceError::Create)?,
        };
        Ok(with_range(first, length))
    }

    /// Allocates a range and writes the record; without the record the range is free again.
    /// Returns the first id and the length. Blocks.
    fn create(&self, uid: &str) -> Result<(u32, u32), CreateError> {
        let (first, length) = {
            let mut allocations = self.allocations.lock();
            let first = allocations.allocate(uid, base::clock::random_u64())?;
            (first, allocations.ids_per_pod())
        };
        let directory = self.pods_dir.join(uid);
        let written = write_record(&directory, first, length);
        if written.is_err() {
            let _ = std::fs::remove_file(directory.join(record::FILE));
            self.allocations.lock().release(uid);
        }
        written.map(|()| (first, length))
    }

    /// Releases the range of a pod that has ended, and removes its record. Does nothing for a pod
    /// without one.
    pub(crate) async fn release(&self, uid: &str) {
        if self.allocations.lock().first_id(uid).is_none() {
            return;
        }
        let path = self.pods_dir.join(uid).join(record::FILE);
        let removed = base::tasks::blocking(move || std::fs::remove_file(path)).await;
        match removed.map_err(io::Error::other).flatten() {
            Err(error) if !is_missing(&error) => {
                tracing::warn!(uid, %error, "cannot remove the record of a user namespace");
            }
            Ok(()) | Err(_) => {}
        }
        self.allocations.lock().release(uid);
    }

    /// Releases the ranges of pods that do not exist, or whose directory is gone.
    pub(crate) async fn retain_pods(&self, exists: impl Fn(&str) -> bool) {
        let pods_dir = self.pods_dir.clone();
        let on_disk = base::tasks::blocking(move || pods_on_disk(&pods_dir)).await;
        let on_disk: HashSet<String> = match on_disk.map_err(io::Error::other).flatten() {
            Ok(on_disk) => on_disk.into_iter().collect(),
            Err(error) => {
                tracing::warn!(%error, "user namespace: read pods from disk");
                return;
            }
        };
        let orphans = self.allocations.lock().orphans(exists, |uid| on_disk.contains(uid));
        for uid in orphans {
            self.release(&uid).await;
        }
    }
}

/// Lists the uids of pods that have a directory. Blocks.
fn pods_on_disk(pods_dir: &Path) -> io::Result<Vec<String>> {
    let entries = match std::fs::read_dir(pods_dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut out = Vec::new();
    for entry in entries {
        // The uid of a pod in the API or of a manifest is text.
        out.extend(entry?.file_name().into_string().ok());
    }
    Ok(out)
}

/// Reads the record of a pod; `None` if it has none. Blocks.
fn read_record(directory: &Path) -> Result<Option<Vec<u8>>, RecordError> {
    let path = directory.join(record::FILE);
    match std::fs::metadata(&path) {
        Err(error) if is_missing(&error) => return Ok(None),
        Err(error) => return Err(error.into()),
        Ok(file) if file.len() > RECORD_MAX => return Err(RecordError::TooLarge),
        Ok(_) => {}
    }
    let text = base::fs::read(&path)?;
    Ok((!text.is_empty()).then_some(text))
}

/// Whether an error means that there is no such file, or no directory of a pod.
fn is_missing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

/// Records the range of a record that was read, and returns its first id.
fn take_over(allocations: &mut Allocations, uid: &str, text: &[u8]) -> Result<u32, RecordError> {
    let mapping = record::parse(text)?;
    allocations.record(uid, mapping.host_id, mapping.length)?;
    Ok(mapping.host_id)
}

/// Writes the record of a pod. Blocks.
fn write_record(directory: &Path, first: u32, length: u32) -> Result<(), CreateError> {
    let text = record::text(first, length)?;
    std::fs::create_dir_all(directory)?;
    Ok(base::fs::write_atomic(&directory.join(record::FILE), text.as_bytes(), 0o600)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use id_range::IDS_PER_POD;

    fn open(root: &Path, ids_per_pod: u32) -> Result<Arc<UserNamespaces>, String> {
        let pods_dir = root.join("pods");
        let opened = UserNamespaces::open(pods_dir, HostIds::all(ids_per_pod), ids_per_pod, 110);
        opened.map(Arc::new).map_err(|error| error.to_string())
    }

    fn supporting(root: &Path) -> Arc<UserNamespaces> {
        let all = open(root, IDS_PER_POD).unwrap();
        let features = cri::RuntimeHandlerFeatures {
            user_namespaces: true,
            ..cri::RuntimeHandlerFeatures::default()
        };
        all.update_handlers(&cri::StatusResponse {
            runtime_handlers: vec![cri::RuntimeHandler {
                name: String::new(),
                features: Some(features),
            }],
            ..cri::StatusResponse::default()
        });
        all
    }

    #[tokio::test]
    async fn a_pod_keeps_its_range_over_a_restart_until_it_ends() {
        let root = tempfile::tempdir().unwrap();
        let all = supporting(root.path());
        let first = all.of_pod("u1", "").await.unwrap();
        assert_eq!(first.mode(), cri::NamespaceMode::Pod);
        assert_eq!(first.uids, first.gids);
        let mapping = first.uids[0];
        assert_eq!((first.uids.len(), mapping.container_id, mapping.length), (1, 0, 65536));
        assert!(mapping.host_id >= 65536 && mapping.host_id.is_multiple_of(65536));
        assert_eq!(all.of_pod("u1", "").await.unwrap(), first);
        assert_eq!(all.of_sandbox("u1"), Some(first.clone()));
        let second = all.of_pod("u2", "").await.unwrap();
        assert_ne!(second, first);
        let path = root.path().join("pods/u1/userns");
        let text = std::fs::read_to_string(&path).unwrap();
        let range = format!(r#"[{{"hostId":{},"containerId":0,"length":65536}}]"#, mapping.host_id);
        assert_eq!(text, format!(r#"{{"uidMappings":{range},"gidMappings":{range}}}"#));

        let all = supporting(root.path());
        assert_eq!(all.of_sandbox("u1"), Some(first.clone()));
        assert_eq!(all.of_pod("u1", "").await.unwrap(), first);
        all.release("u1").await;
        assert!(!path.exists());
        assert_eq!(all.of_sandbox("u1"), None);
        assert_eq!(all.of_sandbox("u2"), Some(second));
    }

    #[tokio::test]
    async fn ranges_of_pods_that_do_not_exist_are_released() {
        let root = tempfile::tempdir().unwrap();
        let all = supporting(root.path());
        for uid in ["known", "unknown", "gone"] {
            all.of_pod(uid, "").await.unwrap();
        }
        std::fs::remove_dir_all(root.path().join("pods/gone")).unwrap();
        all.retain_pods(|uid| uid != "unknown").await;
        assert!(all.of_sandbox("known").is_some());
        assert!(root.path().join("pods/known/userns").exists());
        assert!(all.of_sandbox("unknown").is_none());
        assert!(!root.path().join("pods/unknown/userns").exists());
        assert!(all.of_sandbox("gone").is_none());
    }

    #[tokio::test]
    async fn errors_are_those_of_upstream() {
        let root = tempfile::tempdir().unwrap();
        let all = open(root.path(), IDS_PER_POD).unwrap();
        let error = all.of_pod("u1", "").await.unwrap_err().to_string();
        assert_eq!(
            error,
            "can't set `spec.hostUsers: false`, runtime does not support user namespaces"
        );
        assert!(!root.path().join("pods/u1").exists());

        let all = supporting(root.path());
        std::fs::create_dir_all(root.path().join("pods/u1")).unwrap();
        std::fs::write(root.path().join("pods/u1/userns"), "{").unwrap();
        let error = all.of_pod("u1", "").await.unwrap_err().to_string();
        let start = "user namespace: invalid user namespace mappings file: ";
        assert!(error.starts_with(start), "{error}");
        let error = open(root.path(), IDS_PER_POD).unwrap_err();
        let start = "record pod mappings for existing pod \"u1\": invalid user namespace mappings";
        assert!(error.starts_with(start), "{error}");
        std::fs::write(root.path().join("pods/u1/userns"), "").unwrap();
        assert!(open(root.path(), IDS_PER_POD).is_ok());
    }

    #[tokio::test]
    async fn another_number_of_ids_per_pod_is_refused_while_there_are_records() {
        let root = tempfile::tempdir().unwrap();
        supporting(root.path()).of_pod("u1", "").await.unwrap();
        assert_eq!(
            open(root.path(), IDS_PER_POD * 2).unwrap_err(),
            "record pod mappings for existing pod \"u1\": wrong user namespace length 65536"
        );
    }

    #[test]
    fn pods_that_cannot_be_listed_are_an_error() {
        let root = tempfile::tempdir().unwrap();
        std::fs::write(root.path().join("pods"), "").unwrap();
        let error = open(root.path(), IDS_PER_POD).unwrap_err();
        assert!(error.starts_with("read pods from disk: "), "{error}");
    }

    #[tokio::test]
    async fn a_range_without_a_record_is_free_again() {
        let root = tempfile::tempdir().unwrap();
        let all = supporting(root.path());
        std::fs::create_dir_all(root.path().join("pods")).unwrap();
        // A file in the place of the directory of the pod.
        std::fs::write(root.path().join("pods/u1"), "").unwrap();
        let error = all.of_pod("u1", "").await.unwrap_err().to_string();
        assert!(error.starts_with("create user namespace: "), "{error}");
        assert!(all.of_sandbox("u1").is_none());
    }
}
