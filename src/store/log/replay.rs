//! Replays the records of the log onto the state of a checkpoint.

use bytes::Bytes;

use super::entries::{Mark, View};
use super::record::{Kind, Record, segment_name};
use super::segments::Meta;
use super::{Applied, Batch, LogEntry, OpenError, Payload, StoredMembership, behind, decode_head};
use crate::encoding::{Malformed, Reader};
use crate::mvcc::State;

/// A record that would truncate committed entries.
#[derive(Debug, thiserror::Error)]
#[error(
    "the record truncates the log at entry {next}, but the entries before {applied} are committed"
)]
pub(super) struct TruncatesCommitted {
    next: u64,
    applied: u64,
}

/// The state during the replay of the log.
#[derive(Default)]
pub(super) struct Replay {
    pub(super) state: State,
    pub(super) applied: Applied,
    pub(super) view: View,
    pub(super) meta: Meta,
    pub(super) clean: bool,
    pub(super) log_bytes: u64,
    /// Index after the checkpoint's entries.
    pub(super) checkpoint: u64,
    /// Index of the next entry.
    pub(super) next: u64,
    /// Index after the last entry of the current segment.
    pub(super) behind: u64,
}

impl Replay {
    /// Checks that nothing is missing before entry `index`.
    pub(super) fn check_next(&self, index: u64) -> Result<(), OpenError> {
        if index <= self.next {
            return Ok(());
        }
        Err(OpenError::Missing {
            file: format!("entries {} to {} of the log", self.next, index - 1),
        })
    }

    /// Applies the entries known to be committed.
    pub(super) fn apply(&mut self, committed: u64) {
        while let Some(entry) = self.view.recent.pop_before(committed) {
            self.applied.id = Some(entry.log_id);
            match &entry.payload {
                Payload::Blank => {}
                Payload::Membership(membership) => {
                    let membership = membership.clone();
                    self.applied.membership = StoredMembership::new(Some(entry.log_id), membership);
                }
                Payload::Normal(batch) => self.apply_batch(batch),
            }
        }
    }

    pub(super) fn apply_batch(&mut self, batch: &Batch) {
        let mut events = Vec::new();
        for command in batch.commands() {
            // A command that was refused originally is refused again, and has no effect.
            let _ = self.state.apply(command, &mut events);
            events.clear();
        }
    }

    pub(super) fn record(
        &mut self,
        sequence: u64,
        content: &Bytes,
        record: &Record<'_>,
    ) -> Result<(), OpenError> {
        let corrupt = |e: Malformed| OpenError::Corrupt {
            file: segment_name(sequence),
            offset: record.offset as u64,
            what: format!("its checksum matches, but the record is {e}"),
        };
        self.clean = record.kind == Kind::CleanStop;
        match record.kind {
            Kind::CleanStop => {
                self.apply(Reader::new(record.payload).u64().map_err(corrupt)?);
                Ok(())
            }
            Kind::Meta => {
                let (_, meta) = Meta::decode(record.payload).map_err(corrupt)?;
                self.check_next(meta.next)?;
                self.apply(meta.committed);
                self.meta = meta;
                Ok(())
            }
            Kind::Truncate => {
                let next = Reader::new(record.payload).u64().map_err(corrupt)?;
                self.truncate(next).map_err(|error| OpenError::Corrupt {
                    file: segment_name(sequence),
                    offset: record.offset as u64,
                    what: error.to_string(),
                })
            }
            Kind::Commands | Kind::Blank | Kind::Members => {
                let payload = Reader::sharing(content, record.payload);
                self.entry(sequence, record, payload, corrupt)
            }
            Kind::Head | Kind::Keys | Kind::End => Err(corrupt(Malformed { at: 0 })),
        }
    }

    /// Truncates the log from `next` on. If the checkpoint contains some of these indexes, it
    /// contains the entries that replaced them; they follow in the log and are skipped.
    pub(super) fn truncate(&mut self, next: u64) -> Result<(), TruncatesCommitted> {
        let applied = behind(self.applied.id.as_ref());
        if next < applied && applied > self.checkpoint {
            return Err(TruncatesCommitted { next, applied });
        }
        self.view.recent.truncate(next);
        self.view.marks.truncate(next);
        self.next = self.next.min(next).max(self.checkpoint);
        Ok(())
    }

    pub(super) fn entry(
        &mut self,
        sequence: u64,
        record: &Record<'_>,
        payload: Reader<'_>,
        corrupt: impl Fn(Malformed) -> OpenError,
    ) -> Result<(), OpenError> {
        let (head, mut reader) = decode_head(payload).map_err(&corrupt)?;
        let index = head.id.index();
        self.behind = self.behind.max(index + 1);
        let mark = Mark { sequence, offset: record.offset as u64 };
        self.view.marks.add(index, mark);
        if record.kind == Kind::Commands {
            // Also for an entry that the checkpoint contains: the ceiling is about the entries
            // after it.
            match Batch::decode_ceiling(&mut reader.clone()).map_err(&corrupt)? {
                0 => {}
                ceiling => self.meta.ceiling = ceiling,
            }
        }
        if index < self.next {
            return Ok(());
        }
        self.check_next(index)?;
        self.log_bytes += record.payload.len() as u64;
        let entry: LogEntry = head.body(record.kind, &mut reader).map_err(&corrupt)?;
        self.next = index + 1;
        self.view.recent.push(entry);
        self.apply(head.committed);
        Ok(())
    }

    /// The view of the log after its last record.
    pub(super) fn view(&mut self) -> View {
        let mut view = std::mem::take(&mut self.view);
        view.vote = self.meta.vote;
        view.committed = self.applied.id;
        view.last = view.recent.last().map(|entry| entry.log_id).or(self.applied.id);
        view.written = self.next;
        view
    }
}
