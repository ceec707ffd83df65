//! Checks a directory against what is known about the store from outside of it.

use super::record::{Head, Scan, segment_name};
use super::{OpenError, SEGMENT_BYTES};
use crate::store_record::{LogPosition, StoreRecord};

/// What recovery must find.
#[derive(Debug, Clone, Default)]
pub(crate) struct ExpectedStore {
    /// The store exists, so an empty directory means that it was lost.
    pub(crate) exists: bool,
    /// The member that the directory belongs to.
    pub(crate) member: Option<String>,
    /// A position that the log reached.
    pub(crate) position: Option<LogPosition>,
    /// Every segment was created at its full size.
    pub(crate) full_size: bool,
    /// A record exists from now on.
    pub(crate) recorded: bool,
}

impl ExpectedStore {
    /// The expectation from `record`, if there is one; `exists` is known from elsewhere.
    pub(crate) fn new(record: Option<&StoreRecord>, exists: bool) -> Self {
        let recorded = record.is_some();
        let Some(record) = record.filter(|record| record.begun) else {
            return Self { exists, recorded, ..Self::default() };
        };
        // A reset or a migration writes the record before the first start.
        let full_size = record.log.is_some();
        let (member, position) = (record.member.clone(), record.log);
        Self { exists: true, member, position, full_size, recorded }
    }

    /// Checks that a new store may be created; `what` is the reason it would be.
    pub(crate) fn check_new(&self, what: impl Into<String>) -> Result<(), OpenError> {
        if self.exists { Err(OpenError::Lost { what: what.into() }) } else { Ok(()) }
    }

    /// Checks that the newest segment with records is not older than the recorded one.
    pub(crate) fn check_newest(&self, newest: u64) -> Result<(), OpenError> {
        match self.position {
            Some(position) if newest < position.segment => Err(older(position)),
            _ => Ok(()),
        }
    }

    /// Checks that a segment contains what was synced to it. `last` says that the log ends in it.
    pub(crate) fn check_segment(
        &self,
        sequence: u64,
        content: &[u8],
        scan: &Scan<'_>,
        last: bool,
    ) -> Result<(), OpenError> {
        if let Some(position) = self.position.filter(|position| position.segment == sequence)
            && !reaches(content, scan, position)
        {
            return Err(older(position));
        }
        if self.full_size && last && is_cut_off(content, scan) {
            return Err(OpenError::Corrupt {
                file: segment_name(sequence),
                offset: content.len() as u64,
                what: "the file ends there, but was created at its full size".to_owned(),
            });
        }
        Ok(())
    }

    /// Checks that the directory belongs to the member.
    pub(crate) fn check_member(&self, member: u64) -> Result<(), OpenError> {
        let found = format!("{member:016x}");
        match &self.member {
            Some(expected) if *expected != found => {
                Err(OpenError::ForeignMember { found, expected: expected.clone() })
            }
            _ => Ok(()),
        }
    }
}

fn older(position: LogPosition) -> OpenError {
    OpenError::Older { file: segment_name(position.segment), offset: position.offset }
}

/// Whether a record ends at the position and has the recorded checksum.
fn reaches(content: &[u8], scan: &Scan<'_>, position: LogPosition) -> bool {
    let ends = scan.records.iter().skip(1).map(|record| record.offset).chain([scan.end]);
    scan.records.iter().zip(ends).any(|(record, end)| {
        end as u64 == position.offset
            && content
                .get(record.offset..)
                .and_then(Head::parse)
                .is_some_and(|head| head.checksum == position.checksum)
    })
}

/// Whether a segment that is shorter than it was created may have held more records. A zero head
/// after the last record proves that none followed.
fn is_cut_off(content: &[u8], scan: &Scan<'_>) -> bool {
    let room = content.len().saturating_sub(scan.end) >= super::record::HEAD;
    (content.len() as u64) < SEGMENT_BYTES && (scan.torn > 0 || !room)
}
