//! Opens a data directory as a [`Backend`].

use std::path::PathBuf;
use std::sync::Arc;

use base::Tasks;
use base::tasks::blocking;
use futures::future::BoxFuture;

use crate::contract::{Backend, ClusterId};
use crate::local::store::{LocalStore, StoreOptions};
use crate::log::{
    Directory, Disk, DiskWork, ExpectedStore, Identity, Lock, OpenError, recover_expecting,
};
use crate::raft;
use crate::raft::{MemberOptions, Members};
use crate::reset::finish as finish_reset;
use crate::store_record::StoreRecordFile;

/// Options for opening a store.
#[derive(Debug, Clone)]
pub struct Config {
    /// Data directory; created with mode 0700 if missing.
    pub dir: PathBuf,
    /// Expected cluster; `None` accepts any, and generates an identity for an empty directory.
    pub cluster: Option<ClusterId>,
    /// Record of the store outside of its directory. Without it, or while it does not say that the
    /// store exists, an empty directory becomes a new store.
    pub record: Option<Arc<StoreRecordFile>>,
    /// The store must exist, whatever the record says: an empty directory is an error.
    pub exists: bool,
    /// Whether [`crate::Durability::Lazy`] is honoured; otherwise every write is synced before it
    /// is acknowledged.
    pub lazy: bool,
    /// Limit in bytes for keys and values; a write beyond it raises the alarm NOSPACE. `None` is no
    /// limit.
    pub quota: Option<u64>,
}

/// etcd's default quota (`DefaultQuotaBytes`): 2 GiB.
pub const DEFAULT_QUOTA_BYTES: u64 = 2 * 1024 * 1024 * 1024;

impl Config {
    /// The defaults for `dir`.
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self {
            dir: dir.into(),
            cluster: None,
            record: None,
            exists: false,
            lazy: true,
            quota: Some(DEFAULT_QUOTA_BYTES),
        }
    }
}

/// The future of an opening store. It is boxed because an unboxed future is compiled in the crate
/// that polls it: the store and its consensus would then be optimized for size, as the program is.
pub type OpenFuture<'a, T> = BoxFuture<'a, Result<T, OpenError>>;

/// Opens or creates the store in a directory; resolves once it leads and has applied its whole log.
/// When `tasks` shuts down, its tasks end in order and everything is on disk; `tasks` must shut
/// down after all writers.
///
/// # Errors
/// See [`OpenError`]. On error the directory is unchanged, except that interrupted operations of an
/// earlier process were completed.
#[inline(never)]
pub fn open(config: Config, tasks: &Tasks) -> OpenFuture<'_, Arc<dyn Backend>> {
    Box::pin(async { Ok(open_with(config, None, tasks).await?.0) })
}

/// As [`open`], as a member of a cluster. Unless this member is the only voter, it resolves as soon
/// as it can answer other members; the store is [`crate::StoreError::Unavailable`] until there is a
/// leader.
///
/// # Errors
/// As [`open`].
#[inline(never)]
pub fn open_member(
    config: Config,
    member_options: MemberOptions,
    tasks: &Tasks,
) -> OpenFuture<'_, (Arc<dyn Backend>, Arc<Members>)> {
    Box::pin(open_with(config, Some(member_options), tasks))
}

async fn open_with(
    config: Config,
    member_options: Option<MemberOptions>,
    tasks: &Tasks,
) -> Result<(Arc<dyn Backend>, Arc<Members>), OpenError> {
    let join = member_options.as_ref().is_some_and(|member_options| member_options.join);
    if join && config.cluster.is_none() {
        let text = "a joining member requires the cluster id";
        let source = std::io::Error::new(std::io::ErrorKind::InvalidInput, text);
        return Err(OpenError::Io { action: "open", file: "the store".to_owned(), source });
    }
    let identity = if join { Identity::Joining } else { Identity::First };
    let quota = config.quota;
    let options = raft::Options { lazy: config.lazy, work: DiskWork::Threads, member_options };
    let opened = blocking(move || {
        base::fs::create_dir(&config.dir, 0o700)
            .map_err(OpenError::io("create", "the directory"))?;
        let lock = Lock::take(&config.dir)?;
        finish_reset(&config.dir).map_err(OpenError::io("finish", "a reset"))?;
        let disk: Arc<dyn Disk> = Arc::new(Directory::new(config.dir));
        let record = config.record.as_ref().map(|file| file.record());
        let known = ExpectedStore::new(record.as_ref(), config.exists);
        let mut recovered = recover_expecting(&disk, config.cluster, identity, &known)?;
        if let Some(file) = config.record {
            let log = &recovered.log;
            // Recorded before the first write is acknowledged.
            let opened = file.opened(log.cluster(), log.meta.node, log.position());
            opened.map_err(OpenError::io("write the record of", "the store"))?;
            recovered.log.record = Some(file);
        }
        Ok((recovered, lock))
    });
    let failed = |panic| OpenError::Io {
        action: "read",
        file: "the files".to_owned(),
        source: std::io::Error::other(panic),
    };
    let (recovered, lock) = opened.await.map_err(failed)??;
    let started = raft::start(recovered, options, Some(lock), tasks).await?;
    let raft::Started { shared, engine, members } = started;
    let limits = StoreOptions { members: Some(Arc::<Members>::clone(&members)), quota };
    Ok((LocalStore::start(shared, engine, limits, tasks), members))
}

#[cfg(test)]
mod damage;
#[cfg(test)]
mod tests;
