//! Values in files: full segments and checkpoints are never written again, so their values need not
//! be kept in memory.
//!
//! A put keeps its value in memory. When its segment is full, or a checkpoint is durable, that file
//! is read once more, and the values of the state that it contains are replaced by slices of its
//! mapping. A checkpoint takes over all values, so that earlier segments and checkpoints can be
//! removed. Slices of those that are still in use, by a read of the past or a slow watch, keep
//! their disk space allocated.

use std::collections::VecDeque;
use std::io;

use bytes::{Bytes, BytesMut};
use parking_lot::{Mutex, RwLock};

use super::checkpoint::decode_keys;
use super::files::{Disk, DiskFile};
use super::record::{FILE_HEADER, HEAD, Head, Kind, segment_name};
use super::{Payload, decode_head};
use crate::encoding::Reader;
use crate::mvcc::{FileValue, Source, State, replace_all_values, replace_written_values};

/// Bytes per read; a larger record is read whole.
const CHUNK: usize = 256 * 1024;

/// Full segments whose values are still in memory: sequence, and index after the last entry.
#[derive(Debug, Default)]
pub(crate) struct FullSegments(Mutex<VecDeque<(u64, u64)>>);

impl FullSegments {
    /// Adds a segment that is durable to its end.
    pub(super) fn add(&self, sequence: u64, behind: u64) {
        self.0.lock().push_back((sequence, behind));
    }

    /// Whether there is a segment whose entries are all before `applied`.
    pub(crate) fn any(&self, applied: u64) -> bool {
        self.0.lock().front().is_some_and(|(_, behind)| *behind <= applied)
    }

    /// Takes the oldest segment whose entries are all before `applied`.
    pub(crate) fn take(&self, applied: u64) -> Option<u64> {
        self.0.lock().pop_front_if(|(_, behind)| *behind <= applied).map(|(sequence, _)| sequence)
    }
}

/// Reads the records of a file that is never written again.
struct Records {
    name: String,
    file: Box<dyn DiskFile>,
    map: Bytes,
    /// The buffer and its offset in the file.
    chunk: Bytes,
    begin: usize,
    /// Offset of the next record.
    offset: usize,
}

/// A record: kind, payload as read, and offset of the payload in the file.
type Record = (Kind, Bytes, Source);

impl Records {
    fn open(disk: &dyn Disk, name: String) -> io::Result<Self> {
        let file = disk.open(&name)?;
        let map = file.map()?;
        Ok(Self { name, file, map, chunk: Bytes::new(), begin: FILE_HEADER, offset: FILE_HEADER })
    }

    fn damaged(&self) -> io::Error {
        let text =
            format!("{} is damaged at byte {}, at the start of a record", self.name, self.offset);
        io::Error::new(io::ErrorKind::InvalidData, text)
    }

    /// `length` bytes from the next record on; fewer at the end of the file.
    fn peek(&mut self, length: usize) -> io::Result<Bytes> {
        let from = self.offset - self.begin;
        if self.chunk.len() < from.saturating_add(length) {
            let rest = self.map.len().saturating_sub(self.offset);
            let mut chunk = BytesMut::zeroed(length.max(CHUNK).min(rest));
            let read = self.file.read_at(self.offset as u64, &mut chunk)?;
            chunk.truncate(read);
            (self.chunk, self.begin) = (chunk.freeze(), self.offset);
        }
        let from = self.offset - self.begin;
        Ok(self.chunk.slice(from..from.saturating_add(length).min(self.chunk.len())))
    }

    /// The next record; `None` at the end of the written part.
    fn next(&mut self) -> io::Result<Option<Record>> {
        let head = self.peek(HEAD)?;
        if head.iter().all(|byte| *byte == 0) {
            return Ok(None);
        }
        let head = Head::parse(&head).ok_or_else(|| self.damaged())?;
        let whole = self.peek(HEAD.saturating_add(head.length))?;
        let payload = whole.slice(HEAD..);
        if payload.len() != head.length || !head.matches(&payload) {
            return Err(self.damaged());
        }
        let begin = self.offset + HEAD;
        let end = begin + head.length;
        self.offset = end.next_multiple_of(8);
        let map = (end <= self.map.len()).then(|| self.map.slice(begin..end));
        let source = map.and_then(|map| Source::new(payload.clone(), map));
        Ok(Some((head.kind, payload, source.ok_or_else(|| self.damaged())?)))
    }
}

/// The position in the file of a value that was read.
fn find(key: &Bytes, value: &Bytes, source: &Source) -> Option<FileValue> {
    let stored = source.find(value)?;
    Some(FileValue { key: key.clone(), read: value.clone(), stored })
}

/// Replaces the values of a full segment by its mapping; a removed segment has none. Nothing in it
/// was written before the revision `floor`, which advances to the start of the next segment.
///
/// # Errors
/// Errors of the file system; `InvalidData` for a damaged record. Values that were not reached stay
/// in memory.
pub(crate) fn map_segment_values(
    disk: &dyn Disk,
    sequence: u64,
    state: &RwLock<State>,
    floor: &mut i64,
) -> io::Result<()> {
    let mut records = match Records::open(disk, segment_name(sequence)) {
        // A checkpoint has replaced it meanwhile.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        opened => opened?,
    };
    let mut found = Vec::new();
    let mut bytes = 0;
    while let Some((kind, payload, source)) = records.next()? {
        if kind != Kind::Commands {
            continue;
        }
        let reader = Reader::sharing(&payload, &payload);
        let (head, mut reader) = decode_head(reader).map_err(|_| records.damaged())?;
        let entry = head.body(kind, &mut reader).map_err(|_| records.damaged())?;
        if let Payload::Normal(batch) = &entry.payload {
            for command in batch.commands() {
                command.each_put(&mut |key, value| found.extend(find(key, value, &source)));
            }
        }
        bytes += payload.len();
        if bytes >= CHUNK {
            replace_written_values(state, &found, floor);
            found.clear();
            bytes = 0;
        }
    }
    replace_written_values(state, &found, floor);
    Ok(())
}

/// Replaces all values of a durable checkpoint by its mapping, including those in other files.
///
/// # Errors
/// As [`map_segment_values`].
pub(crate) fn map_checkpoint_values(
    disk: &dyn Disk,
    name: &str,
    state: &RwLock<State>,
) -> io::Result<()> {
    let mut records = Records::open(disk, name.to_owned())?;
    let mut found = Vec::new();
    while let Some((kind, payload, source)) = records.next()? {
        if kind != Kind::Keys {
            continue;
        }
        for (key, versions) in decode_keys(&payload).map_err(|_| records.damaged())? {
            for version in versions {
                let at = (version.modified, version.sub);
                found.extend(find(&key, &version.value, &source).map(|found| (found, at)));
            }
        }
        replace_all_values(state, &found);
        found.clear();
    }
    Ok(())
}
