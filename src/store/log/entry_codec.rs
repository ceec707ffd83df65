//! The encoding of entries and memberships in the log and in checkpoints, independent of
//! openraft's.

use std::collections::{BTreeMap, BTreeSet};

use super::{Address, Batch, Kind, LogEntry, LogId, Membership, Payload, Vote, behind};
use crate::encoding::{Malformed, Put, Reader};

/// The head of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct EntryHead {
    /// Term and index.
    pub(crate) id: LogId,
    /// Number of entries known to be committed when this one was written.
    pub(crate) committed: u64,
}

/// The record kind of an entry.
fn kind_of(entry: &LogEntry) -> Kind {
    match entry.payload {
        Payload::Blank => Kind::Blank,
        Payload::Normal(_) => Kind::Commands,
        Payload::Membership(_) => Kind::Members,
    }
}

/// An entry as a record: its kind, and a function that appends the payload. `committed` is the
/// number of committed entries.
pub(crate) fn encode_entry(entry: &LogEntry, committed: u64) -> (Kind, impl FnOnce(&mut Vec<u8>)) {
    let write = move |out: &mut Vec<u8>| {
        let index = entry.log_id.index();
        out.put_u64(entry.log_id.committed_leader_id().term);
        out.put_u64(index);
        // Few entries are uncommitted, so the distance takes one byte.
        out.put_u64((index + 1).saturating_sub(committed));
        match &entry.payload {
            Payload::Blank => {}
            Payload::Normal(batch) => {
                out.put_i64(batch.ceiling());
                out.extend_from_slice(batch.encoded());
            }
            Payload::Membership(membership) => encode_membership(membership, out),
        }
    };
    (kind_of(entry), write)
}

/// Decodes the head of an entry; returns the reader after it.
///
/// # Errors
/// [`Malformed`] with the offset.
pub(crate) fn decode_head(mut reader: Reader<'_>) -> Result<(EntryHead, Reader<'_>), Malformed> {
    let (term, index, distance) = (reader.u64()?, reader.u64()?, reader.u64()?);
    let Some(committed) = index.checked_add(1).and_then(|next| next.checked_sub(distance)) else {
        return reader.malformed();
    };
    Ok((EntryHead { id: LogId::new_term_index(term, index), committed }, reader))
}

impl EntryHead {
    /// Decodes the rest of the entry.
    ///
    /// # Errors
    /// [`Malformed`] with the offset.
    pub(crate) fn body(self, kind: Kind, reader: &mut Reader<'_>) -> Result<LogEntry, Malformed> {
        let payload = match kind {
            Kind::Blank => Payload::Blank,
            Kind::Commands => Payload::Normal(Batch::decode(reader)?),
            Kind::Members => Payload::Membership(decode_membership(reader)?),
            _ => return reader.malformed(),
        };
        reader.end()?;
        Ok(LogEntry { log_id: self.id, payload })
    }
}

/// Added to the number of sets if addresses follow; a membership without addresses keeps the older
/// encoding.
const WITH_ADDRESSES: u64 = 8;

/// Appends a membership: the sets of voters (two during a change), then all members, then their
/// addresses if there are any.
pub(crate) fn encode_membership(membership: &Membership, out: &mut Vec<u8>) {
    let configs = membership.get_joint_config();
    let addressed = membership.nodes().any(|(_, address)| !address.is_unknown());
    out.put_u64(configs.len() as u64 + if addressed { WITH_ADDRESSES } else { 0 });
    for config in configs {
        out.put_u64(config.len() as u64);
        config.iter().for_each(|id| out.put_u64(*id));
    }
    out.put_u64(membership.nodes().count() as u64);
    membership.nodes().for_each(|(id, _)| out.put_u64(*id));
    if addressed {
        membership.nodes().for_each(|(_, address)| out.put_bytes(address.as_str().as_bytes()));
    }
}

/// Decodes what [`encode_membership`] wrote.
///
/// # Errors
/// [`Malformed`] with the offset, also for a voter that is not a member.
pub(crate) fn decode_membership(reader: &mut Reader<'_>) -> Result<Membership, Malformed> {
    let mut configs: Vec<BTreeSet<u64>> = Vec::new();
    let sets = reader.u64()?;
    let (sets, addressed) = match sets.checked_sub(WITH_ADDRESSES) {
        Some(sets) => (sets, true),
        None => (sets, false),
    };
    for _ in 0..sets {
        let mut config = BTreeSet::new();
        for _ in 0..reader.u64()? {
            config.insert(reader.u64()?);
        }
        configs.push(config);
    }
    let mut nodes = BTreeMap::new();
    for _ in 0..reader.u64()? {
        nodes.insert(reader.u64()?, Address::default());
    }
    if addressed {
        for address in nodes.values_mut() {
            let text = std::str::from_utf8(reader.slice()?).or_else(|_| reader.malformed())?;
            *address = Address::new(text);
        }
    }
    if configs.is_empty() && nodes.is_empty() {
        return Ok(Membership::default());
    }
    Membership::new(configs, nodes).or_else(|_| reader.malformed())
}

/// Appends the index after an entry, 0 for none, and its term.
pub(crate) fn encode_id(id: Option<LogId>, out: &mut Vec<u8>) {
    out.put_u64(behind(id.as_ref()));
    out.put_u64(id.map_or(0, |id| id.committed_leader_id().term));
}

/// Decodes what [`encode_id`] wrote.
///
/// # Errors
/// [`Malformed`] with the offset.
pub(crate) fn decode_id(reader: &mut Reader<'_>) -> Result<Option<LogId>, Malformed> {
    let (next, term) = (reader.u64()?, reader.u64()?);
    Ok(next.checked_sub(1).map(|index| LogId::new_term_index(term, index)))
}

/// Appends a vote: 0 for none; 1, or 2 for a committed one, then term and member.
pub(crate) fn encode_vote(vote: Option<&Vote>, out: &mut Vec<u8>) {
    let Some(vote) = vote else { return out.push(0) };
    out.push(1 + u8::from(vote.is_committed()));
    out.put_u64(vote.leader_id().term);
    out.put_u64(vote.leader_id().voted_for);
}

/// Decodes what [`encode_vote`] wrote.
///
/// # Errors
/// [`Malformed`] with the offset.
pub(crate) fn decode_vote(reader: &mut Reader<'_>) -> Result<Option<Vote>, Malformed> {
    Ok(match reader.byte()? {
        0 => None,
        1 => Some(Vote::new(reader.u64()?, reader.u64()?)),
        2 => Some(Vote::new_committed(reader.u64()?, reader.u64()?)),
        _ => return reader.malformed(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_stand_behind_the_members_and_a_membership_without_any_is_as_it_always_was() {
        let decode = |bytes: &[u8]| {
            let mut reader = Reader::new(bytes);
            decode_membership(&mut reader).and_then(|members| reader.end().map(|()| members))
        };
        let plain = Membership::new_with_defaults(vec![BTreeSet::from([7])], [7]);
        let mut bytes = Vec::new();
        encode_membership(&plain, &mut bytes);
        assert_eq!(bytes, [1, 1, 7, 1, 7]);
        assert_eq!(decode(&bytes), Ok(plain));

        let nodes = BTreeMap::from([(7, Address::new("a:1")), (9, Address::default())]);
        let members = Membership::new(vec![BTreeSet::from([7])], nodes).unwrap();
        let mut bytes = Vec::new();
        encode_membership(&members, &mut bytes);
        assert_eq!(bytes, [9, 1, 7, 2, 7, 9, 3, b'a', b':', b'1', 0]);
        assert_eq!(decode(&bytes), Ok(members));
        for length in 0..bytes.len() {
            assert!(decode(&bytes[..length]).is_err());
        }
    }

    #[test]
    fn entries_survive_encoding_and_their_format_stays() {
        let id = LogId::new_term_index(3, 300);
        let members =
            Membership::new_with_defaults(vec![BTreeSet::from([1, 2]), BTreeSet::from([2])], [9]);
        for (payload, expected) in [
            (Payload::Blank, vec![3, 0xac, 2, 2]),
            (
                Payload::Membership(members),
                vec![
                    3, 0xac, 2, 2, /* sets */ 2, 2, 1, 2, 1, 2, /* members */ 3, 1, 2, 9,
                ],
            ),
        ] {
            let entry = LogEntry { log_id: id, payload };
            let (kind, write) = encode_entry(&entry, 299);
            let mut bytes = Vec::new();
            write(&mut bytes);
            assert_eq!(bytes, expected);
            let (head, mut reader) = decode_head(Reader::new(&bytes)).unwrap();
            assert_eq!(head, EntryHead { id, committed: 299 });
            let back = head.body(kind, &mut reader).unwrap();
            assert_eq!(format!("{back:?}"), format!("{entry:?}"));
            for length in 0..bytes.len() {
                let short = bytes.get(..length).unwrap();
                assert!(
                    decode_head(Reader::new(short))
                        .and_then(|(h, mut r)| h.body(kind, &mut r))
                        .is_err()
                );
            }
        }
    }
}
