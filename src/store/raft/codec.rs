//! How entries and memberships stand in the log and in checkpoints: our encoding, never the library's.

use std::collections::{BTreeMap, BTreeSet};

use openraft::EmptyNode;

use super::{Batch, Entry, LogId, Membership, Payload};
use crate::command::{Malformed, Put, Reader};
use crate::disk::Kind;

/// What every entry begins with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct EntryHead {
    /// Term and index.
    pub(crate) id: LogId,
    /// So many entries were known to be committed when this one was written.
    pub(crate) committed: u64,
}

/// Kind of the record that an entry is written as.
fn kind_of(entry: &Entry) -> Kind {
    match entry.payload {
        Payload::Blank => Kind::Blank,
        Payload::Normal(_) => Kind::Commands,
        Payload::Membership(_) => Kind::Members,
    }
}

/// An entry as a record: its kind, and what appends the payload. `committed` entries are known to be committed.
pub(crate) fn encode_entry(entry: &Entry, committed: u64) -> (Kind, impl FnOnce(&mut Vec<u8>)) {
    let write = move |out: &mut Vec<u8>| {
        let index = entry.log_id.index();
        out.put_u64(entry.log_id.committed_leader_id().term);
        out.put_u64(index);
        // A few at most are not committed yet, so the distance is one byte.
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

/// An entry's head, and the reader behind it.
///
/// # Errors
/// [`Malformed`] with the offset.
pub(crate) fn decode_head(payload: &[u8]) -> Result<(EntryHead, Reader<'_>), Malformed> {
    let mut reader = Reader::new(payload);
    let (term, index, distance) = (reader.u64()?, reader.u64()?, reader.u64()?);
    let Some(committed) = index.checked_add(1).and_then(|next| next.checked_sub(distance)) else {
        return reader.malformed();
    };
    Ok((EntryHead { id: LogId::new_term_index(term, index), committed }, reader))
}

impl EntryHead {
    /// The rest of the entry.
    ///
    /// # Errors
    /// [`Malformed`] with the offset.
    pub(crate) fn body(self, kind: Kind, reader: &mut Reader<'_>) -> Result<Entry, Malformed> {
        let payload = match kind {
            Kind::Blank => Payload::Blank,
            Kind::Commands => Payload::Normal(Batch::decode(reader)?),
            Kind::Members => Payload::Membership(decode_membership(reader)?),
            _ => return reader.malformed(),
        };
        reader.end()?;
        Ok(Entry { log_id: self.id, payload })
    }
}

/// Appends a membership: the sets of voters (two while it changes), then all members.
pub(crate) fn encode_membership(membership: &Membership, out: &mut Vec<u8>) {
    let configs = membership.get_joint_config();
    out.put_u64(configs.len() as u64);
    for config in configs {
        out.put_u64(config.len() as u64);
        config.iter().for_each(|id| out.put_u64(*id));
    }
    out.put_u64(membership.nodes().count() as u64);
    membership.nodes().for_each(|(id, _)| out.put_u64(*id));
}

/// Decodes what [`encode_membership`] wrote.
///
/// # Errors
/// [`Malformed`] with the offset, also for a voter that is no member.
pub(crate) fn decode_membership(reader: &mut Reader<'_>) -> Result<Membership, Malformed> {
    let mut configs: Vec<BTreeSet<u64>> = Vec::new();
    for _ in 0..reader.u64()? {
        let mut config = BTreeSet::new();
        for _ in 0..reader.u64()? {
            config.insert(reader.u64()?);
        }
        configs.push(config);
    }
    let mut nodes = BTreeMap::new();
    for _ in 0..reader.u64()? {
        nodes.insert(reader.u64()?, EmptyNode::new());
    }
    if configs.is_empty() && nodes.is_empty() {
        return Ok(Membership::default());
    }
    Membership::new(configs, nodes).or_else(|_| reader.malformed())
}

#[cfg(test)]
mod tests {
    use super::*;

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
            let entry = Entry { log_id: id, payload };
            let (kind, write) = encode_entry(&entry, 299);
            let mut bytes = Vec::new();
            write(&mut bytes);
            assert_eq!(bytes, expected);
            let (head, mut reader) = decode_head(&bytes).unwrap();
            assert_eq!(head, EntryHead { id, committed: 299 });
            let back = head.body(kind, &mut reader).unwrap();
            assert_eq!(format!("{back:?}"), format!("{entry:?}"));
            for length in 0..bytes.len() {
                let short = bytes.get(..length).unwrap();
                assert!(decode_head(short).and_then(|(h, mut r)| h.body(kind, &mut r)).is_err());
            }
        }
    }
}
