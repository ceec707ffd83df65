//! The identity of this server's store, recorded next to the store so that a lost store is
//! distinguished from one that never existed.
//!
//! A new store is created only if nothing in the data directory indicates an earlier one. Its
//! identity is chosen and recorded first, then certificates and keys are created, then the store.
//! The record states that the store exists before the first write is acknowledged.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use store::{ClusterId, StoreRecord, StoreRecordFile};

use crate::error_catalogue::{CommandError, DATA_DIR, STORE_DAMAGED, STORE_LOST};
use crate::server::config::Config;
use crate::server::members::join::{RECORD as MEMBER_RECORD, SHARED};

/// The record, below the data directory.
pub(crate) const FILE: &str = "server/store.json";

/// Files that exist only after a server or node has run. CAs and tokens may exist before the first
/// start.
const TRACES: [&str; 6] = [
    MEMBER_RECORD,
    "server/tls/serving-kube-apiserver.crt",
    "server/tls/encryption.keys",
    "agent/client-kubelet.crt",
    "agent/join.json",
    "agent/node-password",
];
/// The shared file that a running server rewrites.
const REWRITTEN: &str = "tls/encryption.keys";

/// What the data directory says about the store.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Evidence {
    record: Option<StoreRecord>,
    /// Identity in the files of the store.
    files: Option<ClusterId>,
    /// Whether there are files of a store, complete or not.
    has_files: bool,
    /// Whether this server is to join others.
    is_joining: bool,
    /// The first trace of an earlier run.
    trace: Option<&'static str>,
}

/// What the start does about the store.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Decision {
    /// Creates a store of this identity.
    Begin(StoreRecord),
    /// Uses the recorded store.
    Continue(StoreRecord),
    /// Records the existing store: an earlier release or a migration created it.
    Adopt(StoreRecord),
    /// Becomes a new member of the store of the other servers.
    Join,
}

/// The store that is missing, which is why none is created.
#[derive(Debug, Clone, PartialEq, Eq)]
enum LostStore {
    /// The recorded store.
    Recorded(StoreRecord),
    /// A store of which only a trace remains.
    Traced(&'static str),
}

fn decide(evidence: Evidence) -> Result<Decision, LostStore> {
    let Evidence { record, files, has_files, is_joining, trace } = evidence;
    match record {
        Some(record) if has_files => Ok(Decision::Continue(record)),
        _ if is_joining && !has_files => Ok(Decision::Join),
        Some(record) if record.begun => Err(LostStore::Recorded(record)),
        // The server had started to join others, and must not create a store of the same identity.
        Some(_) if trace == Some(MEMBER_RECORD) => Err(LostStore::Traced(MEMBER_RECORD)),
        Some(record) => Ok(Decision::Begin(record)),
        None => match (files, trace) {
            (Some(id), _) => Ok(Decision::Adopt(StoreRecord::new(id, 0))),
            (None, Some(trace)) => Err(LostStore::Traced(trace)),
            // An interrupted first start leaves files without a readable header and no trace.
            (None, None) => Ok(Decision::Begin(StoreRecord::new(ClusterId::random(), 0))),
        },
    }
}

/// The store of this server, as recorded.
pub(crate) struct StoreIdentity {
    file: Arc<StoreRecordFile>,
    data_dir: PathBuf,
    /// Whether a store must exist although the record does not say so yet.
    pub(crate) exists: bool,
}

impl StoreIdentity {
    /// Determines the identity before certificates and store are created. `None` for a server that
    /// joins others as a new member, which receives the identity from them, and for one with an
    /// external datastore.
    ///
    /// # Errors
    /// The store, or a file that belongs to it, is missing.
    pub(crate) fn open(config: &Config, db: &Path) -> Result<Option<Self>, CommandError> {
        if config.datastore.is_some() {
            return Ok(None);
        }
        let data_dir = &config.machine.data_dir;
        let path = data_dir.join(FILE);
        let failed = |e: io::Error| DATA_DIR.error(format!("{}: {e}", db.display()));
        let evidence = Evidence {
            record: read(&path)?,
            files: store::store_id(db).map_err(failed)?,
            has_files: store::has_store(db).map_err(failed)?,
            is_joining: config.join.is_some(),
            trace: TRACES.into_iter().find(|trace| data_dir.join(trace).exists()),
        };
        let traced = evidence.trace.is_some();
        let is_member = evidence.trace == Some(MEMBER_RECORD) && !evidence.is_joining;
        let decision = decide(evidence).map_err(|lost| lost_store_error(&lost, data_dir, db))?;
        let (record, is_new) = match decision {
            Decision::Join => return Ok(None),
            Decision::Continue(record) => (record, false),
            Decision::Adopt(record) => (record, true),
            Decision::Begin(record) => {
                let (path, store) = (db.display(), record.store);
                tracing::warn!(%path, %store, "store: no store found, creating an empty one");
                (record, true)
            }
        };
        let file = match is_new {
            true => StoreRecordFile::create(&path, record),
            false => Ok(StoreRecordFile::open(&path, record)),
        };
        let file = Arc::new(file.map_err(|e| DATA_DIR.error(e))?);
        let exists = is_member || traced && is_new && store::has_store(db).map_err(failed)?;
        Ok(Some(Self { file, data_dir: data_dir.clone(), exists }))
    }

    /// Records the identity of the store that this server joins.
    ///
    /// # Errors
    /// The record cannot be written.
    pub(crate) fn join(
        config: &Config,
        store: ClusterId,
        replaced_at: u64,
    ) -> Result<Self, CommandError> {
        let data_dir = config.machine.data_dir.clone();
        let record = StoreRecord::new(store, replaced_at);
        let file = StoreRecordFile::create(&data_dir.join(FILE), record);
        let file = Arc::new(file.map_err(|e| DATA_DIR.error(e))?);
        Ok(Self { file, data_dir, exists: false })
    }

    /// The record's file, which the store keeps up to date.
    pub(crate) fn file(&self) -> Arc<StoreRecordFile> {
        Arc::clone(&self.file)
    }

    /// Identity of the store.
    pub(crate) fn store(&self) -> ClusterId {
        self.file.record().store
    }

    /// The identity of the store in the serving certificate.
    pub(crate) fn certificate_id(&self) -> base::pki::store_id::StoreId {
        let record = self.file.record();
        base::pki::store_id::StoreId {
            store: record.store.to_string(),
            replaced_at: record.replaced_at,
        }
    }

    /// Forgets the digests of the shared files, which are about to be replaced.
    ///
    /// # Errors
    /// The record cannot be written.
    pub(crate) fn forget_files(&self) -> Result<(), CommandError> {
        self.file.change(|record| record.files.clear()).map_err(|e| DATA_DIR.error(e))
    }

    /// Checks that the shared files are those of the last start. A missing file would be created
    /// again, and with another CA or key the nodes, clients and tokens of this cluster would be
    /// rejected.
    ///
    /// # Errors
    /// Names the first file that is missing or differs.
    pub(crate) fn check_files(&self) -> Result<(), CommandError> {
        let now = digests(&self.data_dir).map_err(|e| DATA_DIR.error(e))?;
        let before = self.file.record().files;
        let Some((file, is_missing)) = first_difference(&before, &now) else {
            return Ok(());
        };
        let path = self.data_dir.join("server").join(file);
        let what = if is_missing {
            "is missing, but belongs to the cluster of this server"
        } else {
            "is not the file of this server's cluster"
        };
        Err(DATA_DIR.error(format!(
            "{} {what}: restore it from a backup or copy it from another server of the cluster; to change a CA or a key, use `kube-lite certificate rotate-ca`",
            path.display()
        )))
    }

    /// Records the digests of the shared files.
    ///
    /// # Errors
    /// A file cannot be read, or the record cannot be written.
    pub(crate) fn record_files(&self) -> Result<(), CommandError> {
        let files = digests(&self.data_dir).map_err(|e| DATA_DIR.error(e))?;
        if self.file.record().files == files {
            return Ok(());
        }
        self.file.change(|record| record.files = files).map_err(|e| DATA_DIR.error(e))
    }
}

/// Reads the record. A damaged record is ignored, since the store contains its identity as well.
fn read(path: &Path) -> Result<Option<StoreRecord>, CommandError> {
    match StoreRecordFile::read(path) {
        Err(error) if error.kind() == io::ErrorKind::InvalidData => {
            tracing::warn!(%error, "store: the record of its identity is damaged, restoring it from the store");
            Ok(None)
        }
        read => read.map_err(|e| DATA_DIR.error(format!("{}: {e}", path.display()))),
    }
}

fn lost_store_error(lost: &LostStore, data_dir: &Path, db: &Path) -> CommandError {
    let (db, data_dir) = (db.display(), data_dir.display());
    match lost {
        LostStore::Recorded(record) => {
            let member = record.member.as_deref().unwrap_or("unknown");
            STORE_LOST.error(format!(
                "{db} holds no store, but this server is the member {member} of the store {}",
                record.store
            ))
        }
        LostStore::Traced(trace) => STORE_LOST.error(format!(
            "{db} holds no store, but {data_dir}/{trace} belongs to a server or node that has run here"
        )),
    }
}

/// The first file that differs, and whether it is missing.
fn first_difference<'a>(
    before: &'a BTreeMap<String, String>,
    now: &BTreeMap<String, String>,
) -> Option<(&'a str, bool)> {
    let differs = |(file, digest): (&'a String, &'a String)| match now.get(file) {
        None => Some((file.as_str(), true)),
        Some(now) => (now != digest).then_some((file.as_str(), false)),
    };
    before.iter().find_map(differs)
}

/// SHA-256 of each existing shared file, without the keys of encryption at rest: a running server
/// changes them, and the start checks that they decrypt the stored values.
fn digests(data_dir: &Path) -> io::Result<BTreeMap<String, String>> {
    let mut digests = BTreeMap::new();
    for file in SHARED.into_iter().filter(|file| *file != REWRITTEN) {
        let bytes = match base::fs::read(&data_dir.join("server").join(file)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            read => base::SecretValue::from(read?),
        };
        digests.insert(file.to_owned(), base::pki::hex_sha256(&bytes));
    }
    Ok(digests)
}

/// The record while a reset or a migration replaces the store. It is removed meanwhile, so that the
/// next start after an interruption reads the identity from the store.
pub(crate) struct RecordReplacement {
    path: PathBuf,
    before: Option<Vec<u8>>,
}

impl RecordReplacement {
    /// Removes the record.
    ///
    /// # Errors
    /// The record cannot be removed.
    pub(crate) fn begin(data_dir: &Path) -> io::Result<Self> {
        let path = data_dir.join(FILE);
        let before = match base::fs::read(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            read => Some(read?),
        };
        if before.is_some() {
            std::fs::remove_file(&path)?;
        }
        Ok(Self { path, before })
    }

    /// Records the new store, which replaces any other one.
    ///
    /// # Errors
    /// The record cannot be written.
    pub(crate) fn done(self, store: ClusterId) -> io::Result<()> {
        let now = base::clock::unix_time().as_secs();
        let record = StoreRecord { begun: true, ..StoreRecord::new(store, now) };
        StoreRecordFile::create(&self.path, record).map(drop)
    }

    /// Restores the former record.
    pub(crate) fn failed(self) {
        let Some(before) = self.before else { return };
        if let Err(error) = base::fs::write_atomic(&self.path, &before, 0o600) {
            let path = self.path.display();
            tracing::warn!(%path, %error, "store: cannot restore the record of its identity");
        }
    }
}

/// The error of a store that cannot be opened because of its identity.
pub(crate) fn command_error_of(error: &store::OpenError) -> Option<CommandError> {
    match error {
        store::OpenError::Lost { .. } => Some(STORE_LOST.error(error)),
        store::OpenError::Older { .. } | store::OpenError::ForeignMember { .. } => {
            Some(STORE_DAMAGED.error(error))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn evidence() -> Evidence {
        Evidence { record: None, files: None, has_files: false, is_joining: false, trace: None }
    }

    fn begun() -> StoreRecord {
        StoreRecord { begun: true, ..StoreRecord::new(ClusterId([1; 16]), 0) }
    }

    #[test]
    fn a_store_is_created_only_without_traces_of_an_earlier_one() {
        assert!(matches!(decide(evidence()), Ok(Decision::Begin(_))));
        for trace in TRACES {
            let lost = decide(Evidence { trace: Some(trace), ..evidence() });
            assert_eq!(lost, Err(LostStore::Traced(trace)));
        }
        let lost = decide(Evidence { record: Some(begun()), ..evidence() });
        assert_eq!(lost, Err(LostStore::Recorded(begun())));
    }

    #[test]
    fn an_interrupted_first_start_continues_with_the_same_identity() {
        let record = StoreRecord::new(ClusterId([2; 16]), 0);
        let trace = Some("server/tls/serving-kube-apiserver.crt");
        let again = decide(Evidence { record: Some(record.clone()), trace, ..evidence() });
        assert_eq!(again, Ok(Decision::Begin(record)));
    }

    #[test]
    fn an_interrupted_join_does_not_create_a_separate_store() {
        let record = Some(StoreRecord::new(ClusterId([2; 16]), 0));
        let lost = decide(Evidence { record, trace: Some(MEMBER_RECORD), ..evidence() });
        assert_eq!(lost, Err(LostStore::Traced(MEMBER_RECORD)));
    }

    #[test]
    fn a_store_of_an_earlier_release_is_adopted() {
        let id = ClusterId([3; 16]);
        let existing =
            Evidence { files: Some(id), has_files: true, trace: Some(TRACES[1]), ..evidence() };
        assert_eq!(decide(existing), Ok(Decision::Adopt(StoreRecord::new(id, 0))));
    }

    #[test]
    fn a_member_without_its_store_joins_again_only_with_the_server_flag() {
        let is_joining = Evidence { record: Some(begun()), is_joining: true, ..evidence() };
        assert_eq!(decide(is_joining.clone()), Ok(Decision::Join));
        let whole = Evidence { has_files: true, files: Some(begun().store), ..is_joining };
        assert_eq!(decide(whole), Ok(Decision::Continue(begun())));
    }

    #[test]
    fn a_missing_or_foreign_file_of_the_cluster_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let at = |file: &str| dir.path().join("server").join(file);
        std::fs::create_dir_all(at("tls/etcd")).unwrap();
        for file in SHARED {
            std::fs::write(at(file), file).unwrap();
        }
        let before = digests(dir.path()).unwrap();
        assert_eq!(before.len(), SHARED.len() - 1);
        assert_eq!(first_difference(&before, &before), None);
        // The keys of encryption at rest are checked against the stored values instead.
        std::fs::remove_file(at(REWRITTEN)).unwrap();
        assert_eq!(first_difference(&before, &digests(dir.path()).unwrap()), None);
        std::fs::write(at("tls/service.key"), "other").unwrap();
        let now = digests(dir.path()).unwrap();
        assert_eq!(first_difference(&before, &now), Some(("tls/service.key", false)));
        std::fs::remove_file(at("tls/client-ca.key")).unwrap();
        let now = digests(dir.path()).unwrap();
        assert_eq!(first_difference(&before, &now), Some(("tls/client-ca.key", true)));
    }
}
