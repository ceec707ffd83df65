//! Which store this server has: recorded beside the store, so that what is lost is not taken for what never was.
//!
//! A store is begun only when nothing in the data directory tells of an earlier one. Its identity is chosen and recorded first,
//! then certificates and keys are made, then the store; the record says that the store was begun before the first write is
//! acknowledged.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use store::{ClusterId, StoreRecord, StoreRecordFile};

use crate::error_catalogue::{DATA_DIR, Refusal, STORE_DAMAGED, STORE_LOST};
use crate::server::config::Config;
use crate::server::members::join::{RECORD as MEMBER_RECORD, SHARED};

/// The record, below the data directory.
pub(crate) const FILE: &str = "server/store.json";

/// Files that only a server or a node that ran has made; CAs and tokens may be put there before the first start.
const TRACES: [&str; 6] = [
    MEMBER_RECORD,
    "server/tls/serving-kube-apiserver.crt",
    "server/tls/encryption.keys",
    "agent/client-kubelet.crt",
    "agent/join.json",
    "agent/node-password",
];
/// Of the files that servers share, the one that a running server rewrites.
const REWRITTEN: &str = "tls/encryption.keys";

/// What the data directory says about the store.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Evidence {
    record: Option<StoreRecord>,
    /// Identity of the store whose files are there.
    files: Option<ClusterId>,
    /// There are files of a store, whole or not.
    has_files: bool,
    /// This server is to join others.
    joins: bool,
    /// The first trace of an earlier run.
    trace: Option<&'static str>,
}

/// What a start does.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Decision {
    /// Makes a store of this identity.
    Begin(StoreRecord),
    /// Goes on with the recorded store.
    Continue(StoreRecord),
    /// Records the store that is there: an earlier release or a migration made it.
    Adopt(StoreRecord),
    /// Becomes a new member of the store of the other servers.
    Join,
}

/// Why no store is begun.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Lost {
    /// The recorded store.
    Recorded(StoreRecord),
    /// A store of which only a trace is left.
    Traced(&'static str),
}

fn decide(evidence: Evidence) -> Result<Decision, Lost> {
    let Evidence { record, files, has_files, joins, trace } = evidence;
    match record {
        Some(record) if has_files => Ok(Decision::Continue(record)),
        _ if joins && !has_files => Ok(Decision::Join),
        Some(record) if record.begun => Err(Lost::Recorded(record)),
        // It had begun to join other servers, whose store it must not begin anew.
        Some(_) if trace == Some(MEMBER_RECORD) => Err(Lost::Traced(MEMBER_RECORD)),
        Some(record) => Ok(Decision::Begin(record)),
        None => match (files, trace) {
            (Some(id), _) => Ok(Decision::Adopt(StoreRecord::new(id, 0))),
            (None, Some(trace)) => Err(Lost::Traced(trace)),
            // Files without a readable header and no trace: a first start that was interrupted.
            (None, None) => Ok(Decision::Begin(StoreRecord::new(ClusterId::random(), 0))),
        },
    }
}

/// The store of this server, as recorded.
pub(crate) struct StoreIdentity {
    file: Arc<StoreRecordFile>,
    data_dir: PathBuf,
    /// A store must be there, though the record does not say so yet.
    pub(crate) exists: bool,
}

impl StoreIdentity {
    /// Looks before certificates and store are made. `None` for a server that joins others as a new member, which learns the
    /// identity from them, and for one with an external datastore.
    ///
    /// # Errors
    /// The store is lost, or files that belong to it are.
    pub(crate) fn open(config: &Config, db: &Path) -> Result<Option<Self>, Refusal> {
        if config.datastore.is_some() {
            return Ok(None);
        }
        let data_dir = &config.machine.data_dir;
        let path = data_dir.join(FILE);
        let failed = |e: io::Error| DATA_DIR.refuse(format!("{}: {e}", db.display()));
        let evidence = Evidence {
            record: read(&path)?,
            files: store::store_id(db).map_err(failed)?,
            has_files: store::has_store(db).map_err(failed)?,
            joins: config.join.is_some(),
            trace: TRACES.into_iter().find(|trace| data_dir.join(trace).exists()),
        };
        let traced = evidence.trace.is_some();
        let is_member = evidence.trace == Some(MEMBER_RECORD) && !evidence.joins;
        let decision = decide(evidence).map_err(|lost| refuse_lost(&lost, data_dir, db))?;
        let (record, is_new) = match decision {
            Decision::Join => return Ok(None),
            Decision::Continue(record) => (record, false),
            Decision::Adopt(record) => (record, true),
            Decision::Begin(record) => {
                let (path, store) = (db.display(), record.store);
                tracing::warn!(%path, %store, "there is no store: beginning a new, empty one");
                (record, true)
            }
        };
        let file = match is_new {
            true => StoreRecordFile::create(&path, record),
            false => Ok(StoreRecordFile::open(&path, record)),
        };
        let file = Arc::new(file.map_err(|e| DATA_DIR.refuse(e))?);
        let exists = is_member || traced && is_new && store::has_store(db).map_err(failed)?;
        Ok(Some(Self { file, data_dir: data_dir.clone(), exists }))
    }

    /// Of a new member of the store of other servers.
    ///
    /// # Errors
    /// When the record cannot be written.
    pub(crate) fn join(
        config: &Config,
        store: ClusterId,
        replaced_at: u64,
    ) -> Result<Self, Refusal> {
        let data_dir = config.machine.data_dir.clone();
        let record = StoreRecord::new(store, replaced_at);
        let file = StoreRecordFile::create(&data_dir.join(FILE), record);
        let file = Arc::new(file.map_err(|e| DATA_DIR.refuse(e))?);
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

    /// What the serving certificate says of the store.
    pub(crate) fn shown(&self) -> base::pki::store_id::StoreId {
        let record = self.file.record();
        base::pki::store_id::StoreId {
            store: record.store.to_string(),
            replaced_at: record.replaced_at,
        }
    }

    /// The files of the cluster are about to be replaced.
    ///
    /// # Errors
    /// When the record cannot be written.
    pub(crate) fn forget_files(&self) -> Result<(), Refusal> {
        self.file.change(|record| record.files.clear()).map_err(|e| DATA_DIR.refuse(e))
    }

    /// The files that all servers of the cluster share are those of the last start: a missing one would be made anew, and with
    /// another one nodes, clients and tokens of this cluster are not believed.
    ///
    /// # Errors
    /// Names the first that is missing or another one.
    pub(crate) fn check_files(&self) -> Result<(), Refusal> {
        let now = digests(&self.data_dir).map_err(|e| DATA_DIR.refuse(e))?;
        let before = self.file.record().files;
        let Some((file, is_missing)) = first_difference(&before, &now) else {
            return Ok(());
        };
        let path = self.data_dir.join("server").join(file);
        let what = if is_missing {
            "is missing, though this server's cluster was made with it"
        } else {
            "is not the file that this server's cluster was made with"
        };
        Err(DATA_DIR.refuse(format!(
            "{} {what}: bring it back from a backup or from another server of the cluster; to change a CA or a key, use `kube-lite certificate rotate-ca`",
            path.display()
        )))
    }

    /// Records the files as they are now.
    ///
    /// # Errors
    /// When one cannot be read, or the record not be written.
    pub(crate) fn record_files(&self) -> Result<(), Refusal> {
        let files = digests(&self.data_dir).map_err(|e| DATA_DIR.refuse(e))?;
        if self.file.record().files == files {
            return Ok(());
        }
        self.file.change(|record| record.files = files).map_err(|e| DATA_DIR.refuse(e))
    }
}

/// The record. One that is damaged is passed over where the store itself says what it is.
fn read(path: &Path) -> Result<Option<StoreRecord>, Refusal> {
    match StoreRecordFile::read(path) {
        Err(error) if error.kind() == io::ErrorKind::InvalidData => {
            tracing::warn!(%error, "the record is written anew from the store");
            Ok(None)
        }
        read => read.map_err(|e| DATA_DIR.refuse(format!("{}: {e}", path.display()))),
    }
}

fn refuse_lost(lost: &Lost, data_dir: &Path, db: &Path) -> Refusal {
    let (db, data_dir) = (db.display(), data_dir.display());
    match lost {
        Lost::Recorded(record) => {
            let member = record.member.as_deref().unwrap_or("unknown");
            STORE_LOST.refuse(format!(
                "{db} holds no store, but this server is the member {member} of the store {}",
                record.store
            ))
        }
        Lost::Traced(trace) => STORE_LOST.refuse(format!(
            "{db} holds no store, but {data_dir}/{trace} is of a server or node that has run here"
        )),
    }
}

/// The first file that is not as it was, and whether it is missing.
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

/// SHA-256 of each file that servers share and that is there. The keys of encryption at rest are not among them: a
/// running server changes them, and the start compares them with the sealed values.
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

/// The record while a reset or a migration replaces the store: out of the way, so that an interrupted one is finished by the
/// next start, which then takes the identity from the store.
pub(crate) struct Replacing {
    path: PathBuf,
    before: Option<Vec<u8>>,
}

impl Replacing {
    /// Takes the record away.
    ///
    /// # Errors
    /// When it cannot be removed.
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

    /// Records the store that was made, by the administrator's will in the place of any other.
    ///
    /// # Errors
    /// When the record cannot be written.
    pub(crate) fn done(self, store: ClusterId) -> io::Result<()> {
        let now = base::clock::unix_time().as_secs();
        let record = StoreRecord { begun: true, ..StoreRecord::new(store, now) };
        StoreRecordFile::create(&self.path, record).map(drop)
    }

    /// Puts the record back.
    pub(crate) fn failed(self) {
        let Some(before) = self.before else { return };
        if let Err(error) = base::fs::write_atomic(&self.path, &before, 0o600) {
            let path = self.path.display();
            tracing::warn!(%path, %error, "cannot put the record of the store back");
        }
    }
}

/// The refusal of a store that cannot be opened.
pub(crate) fn refusal_of(error: &store::OpenError) -> Option<Refusal> {
    match error {
        store::OpenError::Lost { .. } => Some(STORE_LOST.refuse(error)),
        store::OpenError::Older { .. } | store::OpenError::ForeignMember { .. } => {
            Some(STORE_DAMAGED.refuse(error))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn evidence() -> Evidence {
        Evidence { record: None, files: None, has_files: false, joins: false, trace: None }
    }

    fn begun() -> StoreRecord {
        StoreRecord { begun: true, ..StoreRecord::new(ClusterId([1; 16]), 0) }
    }

    #[test]
    fn a_store_is_begun_only_where_nothing_tells_of_an_earlier_one() {
        assert!(matches!(decide(evidence()), Ok(Decision::Begin(_))));
        for trace in TRACES {
            let lost = decide(Evidence { trace: Some(trace), ..evidence() });
            assert_eq!(lost, Err(Lost::Traced(trace)));
        }
        let lost = decide(Evidence { record: Some(begun()), ..evidence() });
        assert_eq!(lost, Err(Lost::Recorded(begun())));
    }

    #[test]
    fn a_first_start_that_was_interrupted_goes_on_with_the_same_identity() {
        let record = StoreRecord::new(ClusterId([2; 16]), 0);
        let trace = Some("server/tls/serving-kube-apiserver.crt");
        let again = decide(Evidence { record: Some(record.clone()), trace, ..evidence() });
        assert_eq!(again, Ok(Decision::Begin(record)));
    }

    #[test]
    fn a_join_that_was_interrupted_does_not_become_a_store_of_its_own() {
        let record = Some(StoreRecord::new(ClusterId([2; 16]), 0));
        let lost = decide(Evidence { record, trace: Some(MEMBER_RECORD), ..evidence() });
        assert_eq!(lost, Err(Lost::Traced(MEMBER_RECORD)));
    }

    #[test]
    fn a_store_of_an_earlier_release_is_adopted() {
        let id = ClusterId([3; 16]);
        let there =
            Evidence { files: Some(id), has_files: true, trace: Some(TRACES[1]), ..evidence() };
        assert_eq!(decide(there), Ok(Decision::Adopt(StoreRecord::new(id, 0))));
    }

    #[test]
    fn a_member_without_its_store_joins_again_only_where_it_is_told_whom() {
        let joins = Evidence { record: Some(begun()), joins: true, ..evidence() };
        assert_eq!(decide(joins.clone()), Ok(Decision::Join));
        let whole = Evidence { has_files: true, files: Some(begun().store), ..joins };
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
        // The keys of encryption at rest are judged by the values that they seal.
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
