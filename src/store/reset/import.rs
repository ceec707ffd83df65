//! Migrates the data of an external datastore to a new cluster with this server as the only voter.

use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;

use super::{
    BUMP, COMPLETE, CheckError, FOLDER, MOVED, Reset, ResetError, finish, store_files, write,
};
use crate::contract::ClusterId;
use crate::external::endpoint::Endpoint;
use crate::external::open::read_external;
use crate::log::{
    CHECKPOINT_MAGIC, Directory, Disk, FILE_HEADER, Identity, LOG_MAGIC, Lock, OpenError,
    read_file_header, recover,
};
use crate::mvcc::{Command, State};

/// Whether `dir` contains a store with data; a missing directory contains none.
///
/// # Errors
/// The directory cannot be read.
pub fn has_store(dir: &Path) -> std::io::Result<bool> {
    if !dir.exists() {
        return Ok(false);
    }
    Ok(!store_files(dir)?.is_empty() || dir.join(FOLDER).join(COMPLETE).exists())
}

/// Identity of the store in `dir`, from the newest file with a valid header; `None` if there is
/// none.
///
/// # Errors
/// The directory or a file cannot be read.
pub fn store_id(dir: &Path) -> std::io::Result<Option<ClusterId>> {
    let folder = dir.join(FOLDER);
    // The new store of an interrupted reset.
    let unfinished = [COMPLETE, MOVED].iter().any(|marker| folder.join(marker).exists());
    let places = [unfinished.then_some(folder.as_path()), Some(dir)];
    for place in places.into_iter().flatten().filter(|place| place.exists()) {
        for name in store_files(place)?.iter().rev() {
            let magic = if name.starts_with("log-") { LOG_MAGIC } else { CHECKPOINT_MAGIC };
            let mut header = Vec::new();
            let file = std::fs::File::open(place.join(name))?;
            std::io::Read::read_to_end(
                &mut std::io::Read::take(file, FILE_HEADER as u64),
                &mut header,
            )?;
            if let Ok((id, ..)) = read_file_header(name, magic, &header) {
                return Ok(Some(id));
            }
        }
    }
    Ok(None)
}

/// Copies the data of `endpoint` into a new store in `dir`, which must not contain one. `look`
/// receives each key with its value first, and may refuse them.
///
/// # Errors
/// [`ResetError`]; `dir` is unchanged then, or the next start completes the migration.
pub async fn migrate(
    endpoint: &Endpoint,
    dir: &Path,
    look: &mut (dyn FnMut(&Bytes, &Bytes) -> Result<(), CheckError> + Send),
) -> Result<Reset, ResetError> {
    let state = read_external(endpoint).await.map_err(ResetError::Datastore)?;
    import(dir, state, look)
}

fn import(
    dir: &Path,
    mut state: State,
    look: &mut (dyn FnMut(&Bytes, &Bytes) -> Result<(), CheckError> + Send),
) -> Result<Reset, ResetError> {
    let failed = |source| ResetError::Io { dir: dir.to_owned(), source };
    base::fs::create_dir(dir, 0o700).map_err(failed)?;
    let _lock = Lock::take(dir)?;
    finish(dir).map_err(failed)?;
    if !store_files(dir).map_err(failed)?.is_empty() {
        return Err(ResetError::Occupied(dir.to_owned()));
    }
    let looked = state.existing_keys().try_for_each(|(key, value)| look(&key, value));
    looked.map_err(ResetError::Unwanted)?;
    let revision = state.revision().saturating_add(BUMP);
    for command in [Command::Raise { revision }, Command::Compact(revision)] {
        let done = state.apply(&command, &mut Vec::new());
        done.map_err(|e| failed(std::io::Error::other(e)))?;
    }
    let cluster = ClusterId::random();
    let copied: Vec<(Bytes, Bytes)> =
        state.existing_keys().map(|(key, value)| (key, value.clone())).collect();
    let folder = dir.join(FOLDER);
    base::fs::remove_dir(&folder).map_err(failed)?;
    base::fs::create_dir(&folder, 0o700).map_err(failed)?;
    write(&folder, cluster, state)?;
    check(&folder, cluster, &copied)?;
    base::fs::write_atomic(&folder.join(COMPLETE), b"", 0o600).map_err(failed)?;
    finish(dir).map_err(failed)?;
    Ok(Reset { cluster, revision, keys: copied.len(), snapshot: None, old: None })
}

/// Verifies the written store.
fn check(folder: &Path, cluster: ClusterId, copied: &[(Bytes, Bytes)]) -> Result<(), ResetError> {
    let disk: Arc<dyn Disk> = Arc::new(Directory::new(folder));
    let back = recover(&disk, Some(cluster), Identity::First)?.state;
    let same = back.existing_keys().eq(copied.iter().map(|(key, value)| (key.clone(), value)));
    if same {
        return Ok(());
    }
    Err(ResetError::Open(OpenError::Corrupt {
        file: "the new store".to_owned(),
        offset: 0,
        what: "the written store does not read back correctly".to_owned(),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::{Op, Revision, Txn};
    use crate::{Config, open};

    #[tokio::test]
    async fn an_imported_store_opens_and_is_never_overwritten() {
        let mut state = State::default();
        for (key, value) in [("a", "1"), ("b", "2"), ("a", "3")] {
            let put = Op::Put { key: key.into(), value: value.into(), lease: 0, prev_kv: false };
            let txn = Txn { success: vec![put], ..Txn::default() };
            state.apply(&Command::Txn(txn), &mut Vec::new()).unwrap();
        }
        let dir = tempfile::tempdir().unwrap();
        assert!(!has_store(dir.path()).unwrap());
        let done = import(dir.path(), state, &mut |_, _| Ok(())).unwrap();
        assert_eq!((done.keys, done.revision), (2, 1_000_000_004));
        assert!(has_store(dir.path()).unwrap());
        let again = import(dir.path(), State::default(), &mut |_, _| Ok(())).unwrap_err();
        assert!(matches!(again, ResetError::Occupied(_)), "{again}");

        let tasks = base::Tasks::new(base::Shutdown::new());
        let store = open(Config::new(dir.path()), &tasks).await.unwrap();
        assert_eq!(store.compacted(), Revision(1_000_000_004));
        let range = crate::KeyRange::prefix("");
        let found = store.range(crate::RangeRequest::new(range)).await.unwrap();
        let shown: Vec<_> =
            found.kvs.iter().map(|kv| (kv.key.as_ref(), kv.value.as_ref())).collect();
        assert_eq!(shown, [(&b"a"[..], &b"3"[..]), (b"b", b"2")]);
        tasks.shutdown().request();
        assert!(tasks.drain(std::time::Duration::from_secs(5)).await.is_empty());
    }
}
