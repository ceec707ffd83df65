//! The log in memory: entries that are not applied yet, and the positions on disk of all others.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::ops::Range;

use parking_lot::Mutex;

use super::files::{Disk, DiskFile};
use super::record::{HEAD, Head, Kind, segment_name};
use super::{LogEntry, LogId, Vote, behind, decode_head, entry_bytes};
use crate::encoding::Reader;

/// Bytes of log between two marks: the maximum to read over to find an entry.
const MARK_BYTES: u64 = 64 * 1024;

/// Bytes per read: two records per system call would dominate the cost.
const READ_BYTES: usize = 64 * 1024;

/// Bytes of applied entries that stay in memory if there are other members: slower ones receive the
/// newest entries shortly after they are applied here.
const KEPT_BYTES: usize = 64 * 1024;

/// Position of an entry's record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Mark {
    pub(crate) sequence: u64,
    pub(crate) offset: u64,
}

/// Positions of entries, sparse. Between two marks, entries are adjacent on disk.
#[derive(Debug, Default)]
pub(crate) struct Marks {
    by_index: BTreeMap<u64, Mark>,
    /// The next entry gets a mark regardless of the distance.
    broken: bool,
}

impl Marks {
    /// Records the position of an entry.
    pub(crate) fn add(&mut self, index: u64, mark: Mark) {
        let near = |(_, last): (&u64, &Mark)| {
            last.sequence == mark.sequence && mark.offset < last.offset.saturating_add(MARK_BYTES)
        };
        if self.broken || !self.by_index.last_key_value().is_some_and(near) {
            self.by_index.insert(index, mark);
            self.broken = false;
        }
    }

    /// Removes the entries from `index` on.
    pub(crate) fn truncate(&mut self, index: u64) {
        self.by_index.split_off(&index);
        self.broken = true;
    }

    /// Removes everything in segments before `sequence`.
    pub(crate) fn purge(&mut self, sequence: u64) {
        self.by_index.retain(|_, mark| mark.sequence >= sequence);
    }

    /// The pieces of the log that hold `range`: start position and range of entries.
    fn pieces(&self, range: &Range<u64>) -> Vec<(Mark, Range<u64>)> {
        let first = self.by_index.range(..=range.start).next_back().map(|(index, _)| *index);
        let from = first.unwrap_or(range.start);
        let marks: Vec<(u64, Mark)> =
            self.by_index.range(from..range.end.max(from)).map(|(i, m)| (*i, *m)).collect();
        let ends = marks.iter().skip(1).map(|(index, _)| *index).chain([range.end]);
        marks
            .iter()
            .zip(ends)
            .map(|((begin, mark), end)| (*mark, (*begin).max(range.start)..end))
            .collect()
    }
}

/// Consecutive entries and their size in bytes.
#[derive(Debug, Default)]
pub(crate) struct Recent {
    entries: VecDeque<LogEntry>,
    bytes: usize,
}

impl Recent {
    pub(crate) fn iter(&self) -> impl Iterator<Item = &LogEntry> {
        self.entries.iter()
    }

    fn first(&self) -> Option<u64> {
        self.entries.front().map(|entry| entry.log_id.index())
    }

    pub(crate) fn last(&self) -> Option<&LogEntry> {
        self.entries.back()
    }

    pub(crate) fn push(&mut self, entry: LogEntry) {
        self.bytes += entry_bytes(&entry);
        self.entries.push_back(entry);
    }

    /// Removes and returns the first entry if it is before `index`.
    pub(crate) fn pop_before(&mut self, index: u64) -> Option<LogEntry> {
        let entry = self.entries.pop_front_if(|entry| entry.log_id.index() < index)?;
        self.bytes -= entry_bytes(&entry);
        Some(entry)
    }

    /// Removes the entries from `index` on.
    pub(crate) fn truncate(&mut self, index: u64) {
        while let Some(entry) = self.entries.pop_back_if(|entry| entry.log_id.index() >= index) {
            self.bytes -= entry_bytes(&entry);
        }
    }
}

/// The state of the log in memory.
#[derive(Debug, Default)]
pub(crate) struct View {
    pub(crate) vote: Option<Vote>,
    /// Newest committed entry known.
    pub(crate) committed: Option<LogId>,
    /// Newest purged entry.
    pub(crate) purged: Option<LogId>,
    pub(crate) last: Option<LogId>,
    /// The newest entries, at least all that are not applied.
    pub(crate) recent: Recent,
    pub(crate) marks: Marks,
    /// Index after the last entry with a position on disk.
    pub(crate) written: u64,
}

/// The view, shared by the log store, its readers and the writer.
#[derive(Debug, Default)]
pub(crate) struct Entries(pub(crate) Mutex<View>);

/// Entries found in memory, and the positions of the rest.
pub(crate) struct Located {
    pieces: Vec<(Mark, Range<u64>)>,
    recent: Vec<LogEntry>,
}

impl Entries {
    /// Appends entries.
    pub(crate) fn append(&self, entries: &[LogEntry]) {
        let mut view = self.0.lock();
        entries.iter().cloned().for_each(|entry| view.recent.push(entry));
        if let Some(last) = entries.last() {
            view.last = Some(last.log_id);
        }
    }

    /// Drops applied entries that can be read from disk; the newest ones only if no `others` need
    /// them.
    pub(crate) fn applied(&self, applied: &LogId, others: bool) {
        let mut view = self.0.lock();
        let end = (applied.index() + 1).min(view.written);
        let keep = if others { KEPT_BYTES } else { 0 };
        while view.recent.bytes > keep && view.recent.pop_before(end).is_some() {}
        if view.recent.entries.len() < 64 {
            view.recent.entries.shrink_to(64);
        }
    }

    /// Removes the entries after `last`; returns whether there were any.
    pub(crate) fn truncate(&self, last: Option<LogId>) -> bool {
        let mut view = self.0.lock();
        let next = behind(last.as_ref());
        if next >= behind(view.last.as_ref()) {
            return false;
        }
        view.recent.truncate(next);
        view.last = last;
        true
    }

    /// Removes the entries up to `id`.
    pub(crate) fn purge(&self, id: LogId) {
        let mut view = self.0.lock();
        while view.recent.pop_before(id.index() + 1).is_some() {}
        if behind(view.last.as_ref()) <= id.index() {
            view.last = Some(id);
        }
        if view.purged < Some(id) {
            view.purged = Some(id);
        }
    }

    /// Locates the entries of `range`.
    pub(crate) fn find(&self, range: &Range<u64>) -> Located {
        let view = self.0.lock();
        let start = range.start.max(behind(view.purged.as_ref()));
        let end = range.end.min(behind(view.last.as_ref()));
        let memory = view.recent.first().unwrap_or(end);
        let on_disk = start..end.min(memory);
        let pieces = if on_disk.is_empty() { Vec::new() } else { view.marks.pieces(&on_disk) };
        let in_range = |entry: &&LogEntry| (start..end).contains(&entry.log_id.index());
        Located { pieces, recent: view.recent.iter().filter(in_range).cloned().collect() }
    }
}

impl Located {
    /// Whether something must be read from disk.
    pub(crate) fn on_disk(&self) -> bool {
        !self.pieces.is_empty()
    }

    /// The entries in order; blocks if [`Located::on_disk`].
    ///
    /// # Errors
    /// Errors of the file system; `InvalidData` for a record that does not match its checksum.
    pub(crate) fn load(self, disk: &dyn Disk) -> io::Result<Vec<LogEntry>> {
        let mut entries = Vec::new();
        for (mark, range) in self.pieces {
            read_piece(disk, mark, range, &mut entries)?;
        }
        entries.extend(self.recent);
        Ok(entries)
    }
}

/// A file and the part that was read last.
struct ReadAhead {
    file: Box<dyn DiskFile>,
    begin: u64,
    bytes: Vec<u8>,
}

impl ReadAhead {
    /// Returns `length` bytes at `offset`, fewer at the end of the file.
    fn at(&mut self, offset: u64, length: usize) -> io::Result<&[u8]> {
        let place = |begin: u64| offset.checked_sub(begin).and_then(|at| usize::try_from(at).ok());
        let held = place(self.begin).and_then(|at| Some(at..at.checked_add(length)?));
        let held = match held.filter(|held| held.end <= self.bytes.len()) {
            Some(held) => held,
            None => {
                self.bytes.resize(length.max(READ_BYTES), 0);
                let read = self.file.read_at(offset, &mut self.bytes)?;
                self.bytes.truncate(read);
                self.begin = offset;
                0..length.min(read)
            }
        };
        Ok(self.bytes.get(held).unwrap_or_default())
    }
}

/// Reads the entries `range`, which are adjacent from `mark` on.
fn read_piece(
    disk: &dyn Disk,
    mark: Mark,
    range: Range<u64>,
    entries: &mut Vec<LogEntry>,
) -> io::Result<()> {
    let name = segment_name(mark.sequence);
    let file = disk.open(&name)?;
    let mut offset = mark.offset;
    let mut ahead = ReadAhead { file, begin: 0, bytes: Vec::new() };
    let mut wanted = range.start;
    while wanted < range.end {
        let damaged = || {
            let text = format!("{name} is damaged at byte {offset}, at the start of an entry");
            io::Error::new(io::ErrorKind::InvalidData, text)
        };
        let head = Head::parse(ahead.at(offset, HEAD)?).ok_or_else(damaged)?;
        let record = ahead.at(offset, HEAD + head.length)?;
        let whole = record.get(HEAD..).filter(|payload| payload.len() == head.length);
        let payload = whole.filter(|payload| head.matches(payload)).ok_or_else(damaged)?;
        if matches!(head.kind, Kind::Commands | Kind::Blank | Kind::Members) {
            let (entry, mut reader) = decode_head(Reader::new(payload)).map_err(|_| damaged())?;
            if entry.id.index() >= wanted {
                entries.push(entry.body(head.kind, &mut reader).map_err(|_| damaged())?);
                wanted = entry.id.index() + 1;
            }
        }
        offset = (offset + (HEAD + head.length) as u64).next_multiple_of(8);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_sparse_and_a_truncated_log_is_read_from_its_new_end() {
        let mark = |sequence, offset| Mark { sequence, offset };
        let mut marks = Marks::default();
        for index in 0..10 {
            marks.add(index, mark(1, 64 + index * 16 * 1024));
        }
        let near = marks.pieces(&(1..3));
        assert_eq!(near, [(mark(1, 64), 1..3)]);
        let both = [(mark(1, 64), 3..4), (mark(1, 64 + 64 * 1024), 4..6)];
        assert_eq!(marks.pieces(&(3..6)), both);
        marks.truncate(6);
        marks.add(6, mark(1, 700_000));
        marks.add(7, mark(2, 64));
        let pieces =
            [(mark(1, 64 + 64 * 1024), 5..6), (mark(1, 700_000), 6..7), (mark(2, 64), 7..8)];
        assert_eq!(marks.pieces(&(5..8)), pieces);
        marks.purge(2);
        assert_eq!(marks.pieces(&(7..8)), [(mark(2, 64), 7..8)]);
    }
}
