//! The record of a store, kept outside of its directory: the store, the member, and the position
//! that the log had reached.
//!
//! The directory alone cannot distinguish an empty store from a lost one, or a log from an older
//! copy of it. The record is durable before the first write to the store is acknowledged. It is
//! updated at each start, at each new segment and at a clean stop.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::contract::ClusterId;

/// Maximum size of a record: a dozen file names with digests, with some margin.
const BYTES_MAX: usize = 64 * 1024;

/// A durable position in the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogPosition {
    /// Sequence number of the segment.
    pub segment: u64,
    /// Offset of the end of the last record.
    pub offset: u64,
    /// Checksum of that record; it covers all earlier records of the segment.
    pub checksum: u32,
}

/// Content of the record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StoreRecord {
    /// Identity of the store.
    pub store: ClusterId,
    /// Member id of this server, 16 hex digits.
    #[serde(default)]
    pub member: Option<String>,
    /// Whether the store exists. Until then a start may create it.
    pub begun: bool,
    /// When an administrator replaced another store by this one, in seconds since the epoch; 0 if
    /// never.
    #[serde(default)]
    pub replaced_at: u64,
    /// The log reached at least this position.
    #[serde(default)]
    pub log: Option<LogPosition>,
    /// Files that belong to the server of this store, with a digest of each; the store ignores
    /// them.
    #[serde(default)]
    pub files: BTreeMap<String, String>,
}

impl StoreRecord {
    /// The record of a store that does not exist yet.
    pub fn new(store: ClusterId, replaced_at: u64) -> Self {
        Self { store, member: None, begun: false, replaced_at, log: None, files: BTreeMap::new() }
    }
}

/// The file of a [`StoreRecord`].
#[derive(Debug)]
pub struct StoreRecordFile {
    path: PathBuf,
    record: Mutex<StoreRecord>,
}

impl StoreRecordFile {
    /// Reads a record; `None` if the file does not exist.
    ///
    /// # Errors
    /// The file cannot be read; `InvalidData` if its content is invalid.
    pub fn read(path: &Path) -> io::Result<Option<StoreRecord>> {
        let bytes = match base::fs::read(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            read => read?,
        };
        let invalid = |why: String| {
            let text = format!("{} is not a record of a store: {why}", path.display());
            io::Error::new(io::ErrorKind::InvalidData, text)
        };
        if bytes.len() > BYTES_MAX {
            return Err(invalid("it is too large".to_owned()));
        }
        serde_json::from_slice(&bytes).map(Some).map_err(|e| invalid(e.to_string()))
    }

    /// Writes `record` to a new file and maintains it from then on.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn create(path: &Path, record: StoreRecord) -> io::Result<Self> {
        let file = Self::open(path, record);
        file.change(|_| ())?;
        Ok(file)
    }

    /// Maintains the file that `record` was read from.
    pub fn open(path: &Path, record: StoreRecord) -> Self {
        Self { path: path.to_owned(), record: Mutex::new(record) }
    }

    /// The current record.
    pub fn record(&self) -> StoreRecord {
        self.record.lock().clone()
    }

    /// Changes the record and writes it.
    ///
    /// # Errors
    /// The file cannot be written; the record is unchanged then.
    pub fn change(&self, change: impl FnOnce(&mut StoreRecord)) -> io::Result<()> {
        let mut record = self.record.lock();
        let mut changed = record.clone();
        change(&mut changed);
        let text = serde_json::to_string_pretty(&changed)?;
        base::fs::write_atomic(&self.path, format!("{text}\n").as_bytes(), 0o600)?;
        *record = changed;
        Ok(())
    }

    /// Records that the store exists.
    ///
    /// # Errors
    /// The fact cannot be recorded and was not recorded before.
    pub(crate) fn opened(
        &self,
        store: ClusterId,
        member: u64,
        position: Option<LogPosition>,
    ) -> io::Result<()> {
        let member = Some(format!("{member:016x}"));
        {
            let record = self.record.lock();
            if record.begun && record.member == member {
                drop(record);
                if let Some(position) = position {
                    self.advance(position);
                }
                return Ok(());
            }
        }
        self.change(|record| {
            (record.store, record.member) = (store, member);
            (record.begun, record.log) = (true, position);
        })
    }

    /// Records a later position of the log. If writing fails, the record lags, which only makes it
    /// detect less.
    pub(crate) fn advance(&self, position: LogPosition) {
        if self.record.lock().log == Some(position) {
            return;
        }
        if let Err(error) = self.change(|record| record.log = Some(position)) {
            let path = self.path.display();
            tracing::warn!(%path, %error, "cannot record the position of the store's log");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_read_as_it_was_written_and_damage_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store.json");
        assert_eq!(StoreRecordFile::read(&path).unwrap(), None);
        let store = ClusterId([7; 16]);
        let file = StoreRecordFile::create(&path, StoreRecord::new(store, 5)).unwrap();
        let position = LogPosition { segment: 3, offset: 4096, checksum: 9 };
        file.opened(store, 0xab, Some(position)).unwrap();
        file.advance(LogPosition { offset: 8192, ..position });
        let read = StoreRecordFile::read(&path).unwrap().unwrap();
        assert_eq!(read, file.record());
        assert_eq!((read.begun, read.member.as_deref()), (true, Some("00000000000000ab")));
        assert_eq!(read.log.map(|log| log.offset), Some(8192));
        for damaged in ["", "\0\0\0\0", "{\"store\": \"07"] {
            std::fs::write(&path, damaged).unwrap();
            let error = StoreRecordFile::read(&path).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{damaged:?}");
        }
    }
}
