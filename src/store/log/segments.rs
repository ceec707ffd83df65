//! The segmented log: staging of records, one write and one sync per batch, rolling, purging.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use super::files::{Disk, DiskFile, NotDurable, is_no_space};
use super::record::{FILE_HEADER, Kind, LOG_MAGIC, segment_name};
use super::values::FullSegments;
use super::{OpenError, RESERVE_BYTES, SEGMENT_BYTES, Vote, decode_vote, encode_vote, record};
use crate::contract::ClusterId;
use crate::encoding::{Malformed, Put, Reader};
use crate::store_record::{LogPosition, StoreRecordFile};
use crate::timing::Timing;

/// Block size that file systems write atomically.
const PAGE: u64 = 4096;

/// Smallest record without effect: its head and the longest number, a multiple of the alignment.
const FILLER_MIN: usize = record::HEAD + 16;

/// Metadata of the log. The newest record counts; every segment starts with one.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Meta {
    /// Id of this member; 0 before the first record.
    pub(crate) node: u64,
    /// Newest vote.
    pub(crate) vote: Option<Vote>,
    /// Index after the last entry before the record.
    pub(crate) next: u64,
    /// Number of entries known to be committed.
    pub(crate) committed: u64,
    /// No revision from here on was handed out; 0 if none was handed out before it was on disk.
    pub(crate) ceiling: i64,
}

impl Meta {
    /// Appends the encoding; `before` is the final checksum of the previous segment.
    pub(crate) fn encode(&self, before: u32, out: &mut Vec<u8>) {
        out.put_u64(u64::from(before));
        out.put_u64(self.node);
        encode_vote(self.vote.as_ref(), out);
        out.put_u64(self.next);
        out.put_u64(self.committed);
        out.put_i64(self.ceiling);
    }

    /// Decodes what [`Meta::encode`] wrote: the checksum and the metadata.
    pub(crate) fn decode(bytes: &[u8]) -> Result<(u32, Self), Malformed> {
        let mut reader = Reader::new(bytes);
        let before = u32::try_from(reader.u64()?).or_else(|_| reader.malformed())?;
        let node = reader.u64()?;
        let vote = decode_vote(&mut reader)?;
        let (next, committed, ceiling) = (reader.u64()?, reader.u64()?, reader.i64()?);
        reader.end().map(|()| (before, Self { node, vote, next, committed, ceiling }))
    }
}

/// The segment that is being written.
#[derive(Debug)]
pub(crate) struct Segment {
    pub(crate) sequence: u64,
    pub(crate) file: Box<dyn DiskFile>,
    /// Offset of the next record.
    pub(crate) offset: u64,
    /// Durable up to this offset.
    pub(crate) synced: u64,
    /// Checksum of the last record.
    pub(crate) chain: u32,
    /// Index after its last entry; 0 without entries.
    pub(crate) behind: u64,
}

impl Segment {
    /// Creates an empty segment, durable with its name.
    pub(crate) fn create(disk: &dyn Disk, cluster: ClusterId, sequence: u64) -> io::Result<Self> {
        let name = segment_name(sequence);
        let mut file = disk.create(&name, SEGMENT_BYTES)?;
        let header = record::file_header(LOG_MAGIC, cluster, sequence);
        let written =
            file.write_at(0, &header).and_then(|()| file.sync()).and_then(|()| disk.sync());
        if let Err(error) = written {
            // The file is useless; if this fails too, the next start detects that it was never
            // used.
            let _ = disk.remove(&name);
            return Err(error);
        }
        let start = FILE_HEADER as u64;
        Ok(Self {
            sequence,
            file,
            offset: start,
            synced: start,
            chain: record::header_chain(&header),
            behind: 0,
        })
    }

    /// Writes the first record, which carries the final checksum of the previous segment.
    pub(crate) fn begin(&mut self, meta: &Meta, before: u32) -> io::Result<()> {
        let mut first = Vec::new();
        record::append(&mut first, Kind::Meta, |out| meta.encode(before, out));
        let chain = record::seal(&mut first, self.chain, self.synced);
        self.file.write_at(self.offset, &first)?;
        self.chain = chain;
        self.offset += first.len() as u64;
        Ok(())
    }
}

/// The reason why a batch was not written.
#[derive(Debug)]
pub(crate) enum WriteError {
    /// There is no space; the log is unchanged.
    NoSpace(String),
    /// The content on disk is unknown.
    Fatal(String),
}

impl WriteError {
    fn at(action: &str, sequence: u64, error: &io::Error) -> Self {
        let text = format!("cannot {action} {}: {error}", segment_name(sequence));
        if is_no_space(error) { Self::NoSpace(text) } else { Self::Fatal(text) }
    }

    fn fatal(action: &str, sequence: u64, error: &io::Error) -> Self {
        Self::Fatal(format!("cannot {action} {}: {error}", segment_name(sequence)))
    }
}

/// The log.
#[derive(Debug)]
pub(crate) struct Log {
    disk: Arc<dyn Disk>,
    cluster: ClusterId,
    pub(crate) meta: Meta,
    current: Segment,
    /// The next segment, created ahead, so that a lack of space is known while deletions still fit.
    next: Option<Segment>,
    /// Full segments, oldest first: sequence, and index after the last entry.
    older: VecDeque<(u64, u64)>,
    staged: Vec<u8>,
    /// Index after the last staged entry; 0 without entries.
    staged_behind: u64,
    written: u64,
    /// Durations of syncs.
    pub(crate) syncs: Arc<Timing>,
    /// Segments filled since the start.
    pub(crate) full: Arc<FullSegments>,
    /// Records the position that this log has reached.
    pub(crate) record: Option<Arc<StoreRecordFile>>,
}

impl Log {
    /// A log that continues in `current`.
    pub(crate) fn new(
        disk: Arc<dyn Disk>,
        cluster: ClusterId,
        meta: Meta,
        older: VecDeque<(u64, u64)>,
        current: Segment,
        next: Option<Segment>,
    ) -> Self {
        Self {
            disk,
            cluster,
            meta,
            current,
            next,
            older,
            staged: Vec::new(),
            staged_behind: 0,
            written: 0,
            syncs: Arc::default(),
            full: Arc::default(),
            record: None,
        }
    }

    /// Creates the first segment of a new log.
    ///
    /// # Errors
    /// [`OpenError::Io`].
    pub(crate) fn create(disk: Arc<dyn Disk>, cluster: ClusterId) -> Result<Self, OpenError> {
        let current = Segment::create(disk.as_ref(), cluster, 1)
            .map_err(OpenError::io("create", &segment_name(1)))?;
        Ok(Self::new(disk, cluster, Meta::default(), VecDeque::new(), current, None))
    }

    pub(crate) fn disk(&self) -> &Arc<dyn Disk> {
        &self.disk
    }

    pub(crate) fn cluster(&self) -> ClusterId {
        self.cluster
    }

    /// Bytes written since the process started.
    pub(crate) fn written(&self) -> u64 {
        self.written
    }

    /// Bytes of all segments.
    pub(crate) fn disk_bytes(&self) -> u64 {
        SEGMENT_BYTES * (1 + self.older.len() as u64 + u64::from(self.next.is_some()))
    }

    /// Stages a record.
    pub(crate) fn stage(&mut self, kind: Kind, payload: impl FnOnce(&mut Vec<u8>)) {
        record::append(&mut self.staged, kind, payload);
    }

    /// Stages the entry `index`; returns its offset within the batch.
    pub(crate) fn stage_entry(
        &mut self,
        index: u64,
        kind: Kind,
        payload: impl FnOnce(&mut Vec<u8>),
    ) -> u64 {
        let at = self.staged.len() as u64;
        self.stage(kind, payload);
        self.staged_behind = self.staged_behind.max(index + 1);
        at
    }

    /// Stages the current [`Meta`].
    pub(crate) fn stage_meta(&mut self) {
        let meta = self.meta.clone();
        let meta = Meta { next: meta.next.max(self.staged_behind), ..meta };
        self.stage(Kind::Meta, |out| meta.encode(0, out));
    }

    /// Ends the batch with a record without effect, so that the next write starts a new page: a
    /// page shared by two batches is written twice.
    pub(crate) fn fill_page(&mut self) {
        let end = self.current.offset + self.staged.len() as u64;
        let rest = usize::try_from(end.next_multiple_of(PAGE) - end).unwrap_or(0);
        if self.staged.is_empty() || end > SEGMENT_BYTES || rest < FILLER_MIN {
            return;
        }
        let next = self.meta.next.max(self.staged_behind);
        // Truncates after the last entry, which removes nothing.
        self.stage(Kind::Truncate, |out| {
            let end = out.len() + rest - record::HEAD;
            out.put_u64(next);
            // A sector of zeros would look like one that was never written.
            out.resize(end, 0xff);
        });
    }

    /// Size of the staged batch.
    pub(crate) fn staged(&self) -> usize {
        self.staged.len()
    }

    /// Bytes left in the segment, and whether the next one exists.
    pub(crate) fn room(&self) -> (u64, bool) {
        let end = self.current.offset + self.staged.len() as u64;
        (SEGMENT_BYTES.saturating_sub(end), self.next.is_some())
    }

    /// Creates the next segment, unless the current one has room for `bytes` and the reserve.
    ///
    /// # Errors
    /// [`WriteError::NoSpace`] if it cannot be created now.
    pub(crate) fn prepare(&mut self, bytes: u64) -> Result<(), WriteError> {
        let (left, next) = self.room();
        if next || bytes.saturating_add(RESERVE_BYTES) <= left {
            return Ok(());
        }
        let sequence = self.current.sequence + 1;
        let made = Segment::create(self.disk.as_ref(), self.cluster, sequence);
        self.next = Some(made.map_err(|e| WriteError::at("make room in", sequence, &e))?);
        Ok(())
    }

    /// Discards the staged batch.
    pub(crate) fn unstage(&mut self) {
        self.staged.clear();
        self.staged_behind = 0;
        // A batch may be a megabyte once and small afterwards.
        self.staged.shrink_to(256 * 1024);
    }

    /// Writes the batch, durably if `sync`; the batch is empty afterwards. Returns its position:
    /// sequence and offset.
    ///
    /// # Errors
    /// After [`WriteError::NoSpace`] the log and the batch are unchanged; after
    /// [`WriteError::Fatal`] the log must not be used any more.
    pub(crate) fn write(&mut self, sync: bool) -> Result<(u64, u64), WriteError> {
        let begin = self.write_staged(sync)?;
        self.unstage();
        if sync {
            self.sync()?;
        }
        Ok(begin)
    }

    /// Writes the batch; durable at once if `sync` and everything before it is durable.
    fn write_staged(&mut self, sync: bool) -> Result<(u64, u64), WriteError> {
        if self.staged.is_empty() {
            return Ok((self.current.sequence, self.current.offset));
        }
        if self.current.offset + self.staged.len() as u64 > SEGMENT_BYTES {
            self.roll()?;
        }
        let segment = &mut self.current;
        let chain = record::seal(&mut self.staged, segment.chain, segment.synced);
        let durable = sync && segment.synced == segment.offset;
        let began = base::clock::now();
        let written = if durable {
            segment.file.write_durable(segment.offset, &self.staged)
        } else {
            segment.file.write_at(segment.offset, &self.staged).map_err(NotDurable::Unwritten)
        };
        if let Err(error) = written {
            let error = match error {
                NotDurable::Unsynced(error) => {
                    return Err(WriteError::fatal("sync", segment.sequence, &error));
                }
                NotDurable::Unwritten(error) => error,
            };
            // Part of the batch may have been written; it must be removed before anything follows.
            segment
                .file
                .cut(segment.offset, SEGMENT_BYTES)
                .map_err(|e| WriteError::fatal("cut", segment.sequence, &e))?;
            return Err(WriteError::at("write", segment.sequence, &error));
        }
        let begin = (segment.sequence, segment.offset);
        segment.chain = chain;
        segment.offset += self.staged.len() as u64;
        if durable {
            self.syncs.observe(began.elapsed());
            segment.synced = segment.offset;
        }
        segment.behind = segment.behind.max(self.staged_behind);
        self.meta.next = self.meta.next.max(self.staged_behind);
        self.written += self.staged.len() as u64;
        Ok(begin)
    }

    /// Makes everything written durable. Must not be retried after an error.
    ///
    /// # Errors
    /// [`WriteError::Fatal`] only.
    pub(crate) fn sync(&mut self) -> Result<(), WriteError> {
        let segment = &mut self.current;
        if segment.synced < segment.offset {
            let begin = base::clock::now();
            segment.file.sync().map_err(|e| WriteError::fatal("sync", segment.sequence, &e))?;
            self.syncs.observe(begin.elapsed());
            segment.synced = segment.offset;
        }
        Ok(())
    }

    /// Continues in the next segment, with everything before it durable.
    ///
    /// # Errors
    /// [`WriteError::NoSpace`] if there is no next segment and none can be created; the log is
    /// unchanged.
    fn roll(&mut self) -> Result<(), WriteError> {
        self.sync()?;
        let sequence = self.current.sequence + 1;
        let mut next = match self.next.take() {
            Some(next) => next,
            None => Segment::create(self.disk.as_ref(), self.cluster, sequence)
                .map_err(|e| WriteError::at("create", sequence, &e))?,
        };
        if let Err(error) = next.begin(&self.meta, self.current.chain) {
            next.file
                .cut(next.offset, SEGMENT_BYTES)
                .map_err(|e| WriteError::fatal("cut", sequence, &e))?;
            self.next = Some(next);
            return Err(WriteError::at("write", sequence, &error));
        }
        if self.record.is_some() {
            // Only durable content may be recorded.
            next.file.sync().map_err(|e| WriteError::fatal("sync", sequence, &e))?;
            next.synced = next.offset;
        }
        self.written += next.offset;
        self.older.push_back((self.current.sequence, self.current.behind));
        self.full.add(self.current.sequence, self.current.behind);
        self.current = next;
        self.record_position();
        Ok(())
    }

    /// The end of the log, if all of it is durable.
    pub(crate) fn position(&self) -> Option<LogPosition> {
        let Segment { sequence, offset, synced, chain, .. } = self.current;
        (offset == synced).then_some(LogPosition { segment: sequence, offset, checksum: chain })
    }

    /// Records the position of the log, if it is durable.
    pub(crate) fn record_position(&self) {
        if let (Some(record), Some(position)) = (&self.record, self.position()) {
            record.advance(position);
        }
    }

    /// Removes the oldest segments whose entries are all before `index`; returns the sequence of
    /// the oldest one left. After an error the next call removes the rest.
    ///
    /// # Errors
    /// Errors of the file system.
    pub(crate) fn purge(&mut self, index: u64) -> io::Result<u64> {
        while let Some((oldest, _)) = self.older.front().filter(|(_, behind)| *behind <= index) {
            self.disk.remove(&segment_name(*oldest))?;
            self.older.pop_front();
        }
        Ok(self.older.front().map_or(self.current.sequence, |(oldest, _)| *oldest))
    }
}
