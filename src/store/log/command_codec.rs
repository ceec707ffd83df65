//! The encoding of commands in the log: a tag byte, then the fields in order.
//!
//! A change of the encoding needs a new log format.

use crate::contract::{
    Alarm, Compare, KeyRange, Op, Ordering, Profile, RangeRequest, Revision, Target, Txn,
};
use crate::encoding::{Malformed, Put, Reader};
use crate::mvcc::Command;

const TXN: u8 = 1;
const COMPACT: u8 = 2;
const LEASE_GRANT: u8 = 3;
const LEASE_REVOKE: u8 = 4;
const RAISE: u8 = 5;
const ALARM: u8 = 6;
const DESCRIBE: u8 = 7;

/// A limit above the deepest accepted nesting, so that no input can exhaust the stack.
const MAX_DEPTH: usize = 128;

impl Command {
    /// Appends the encoding.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Txn(txn) => {
                out.push(TXN);
                encode_txn(txn, out);
            }
            Self::Compact(revision) => {
                out.push(COMPACT);
                out.put_i64(*revision);
            }
            Self::LeaseGrant { id, ttl } => {
                out.push(LEASE_GRANT);
                out.put_i64(*id);
                out.put_i64(*ttl);
            }
            Self::LeaseRevoke { id } => {
                out.push(LEASE_REVOKE);
                out.put_i64(*id);
            }
            Self::Raise { revision } => {
                out.push(RAISE);
                out.put_i64(*revision);
            }
            Self::Alarm { member, alarm, raised } => {
                out.push(ALARM);
                encode_alarm(*member, *alarm, out);
                out.push(u8::from(*raised));
            }
            Self::SetProfile { member, profile } => {
                out.push(DESCRIBE);
                encode_profile(*member, profile, out);
            }
        }
    }

    /// Decodes what [`Command::encode`] wrote.
    ///
    /// # Errors
    /// [`Malformed`] with the offset.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        Self::read(Reader::new(bytes))
    }

    /// As [`Command::decode`], for the unread rest of a reader.
    ///
    /// # Errors
    /// [`Malformed`] with the offset.
    pub(crate) fn read(mut reader: Reader<'_>) -> Result<Self, Malformed> {
        let command = match reader.byte()? {
            TXN => Self::Txn(decode_txn(&mut reader, 0)?),
            COMPACT => Self::Compact(reader.i64()?),
            LEASE_GRANT => Self::LeaseGrant { id: reader.i64()?, ttl: reader.i64()? },
            LEASE_REVOKE => Self::LeaseRevoke { id: reader.i64()? },
            RAISE => Self::Raise { revision: reader.i64()? },
            ALARM => {
                let (member, alarm) = decode_alarm(&mut reader)?;
                let raised = match reader.byte()? {
                    0 => false,
                    1 => true,
                    _ => return reader.malformed(),
                };
                Self::Alarm { member, alarm, raised }
            }
            DESCRIBE => {
                let (member, profile) = decode_profile(&mut reader)?;
                Self::SetProfile { member, profile }
            }
            _ => return Err(Malformed { at: 0 }),
        };
        reader.end()?;
        Ok(command)
    }
}

/// Appends an alarm.
pub(crate) fn encode_alarm(member: u64, alarm: Alarm, out: &mut Vec<u8>) {
    out.put_u64(member);
    out.put_i64(i64::from(alarm.0));
}

/// Decodes what [`encode_alarm`] wrote.
///
/// # Errors
/// [`Malformed`] with the offset.
pub(crate) fn decode_alarm(reader: &mut Reader<'_>) -> Result<(u64, Alarm), Malformed> {
    let member = reader.u64()?;
    let alarm = i32::try_from(reader.i64()?).or_else(|_| reader.malformed())?;
    Ok((member, Alarm(alarm)))
}

/// Appends a profile.
pub(crate) fn encode_profile(member: u64, profile: &Profile, out: &mut Vec<u8>) {
    out.put_u64(member);
    out.put_bytes(profile.name.as_bytes());
    out.put_u64(profile.client_urls.len() as u64);
    profile.client_urls.iter().for_each(|url| out.put_bytes(url.as_bytes()));
}

/// Decodes what [`encode_profile`] wrote.
///
/// # Errors
/// [`Malformed`] with the offset.
pub(crate) fn decode_profile(reader: &mut Reader<'_>) -> Result<(u64, Profile), Malformed> {
    let text = |reader: &mut Reader<'_>| -> Result<String, Malformed> {
        let text = std::str::from_utf8(reader.slice()?).or_else(|_| reader.malformed())?;
        Ok(text.to_owned())
    };
    let (member, name) = (reader.u64()?, text(reader)?);
    let mut profile = Profile { name, client_urls: Vec::new() };
    for _ in 0..reader.u64()? {
        profile.client_urls.push(text(reader)?);
    }
    Ok((member, profile))
}

fn encode_range(range: &KeyRange, out: &mut Vec<u8>) {
    out.put_bytes(&range.start);
    out.put_bytes(&range.end);
}

fn decode_range(reader: &mut Reader<'_>) -> Result<KeyRange, Malformed> {
    Ok(KeyRange { start: reader.bytes()?, end: reader.bytes()? })
}

fn encode_txn(txn: &Txn, out: &mut Vec<u8>) {
    out.put_u64(txn.compare.len() as u64);
    for compare in &txn.compare {
        encode_range(&compare.range, out);
        out.push(match compare.ordering {
            Ordering::Equal => 0,
            Ordering::NotEqual => 1,
            Ordering::Greater => 2,
            Ordering::Less => 3,
        });
        let (tag, number) = match &compare.target {
            Target::ModRevision(n) => (0, *n),
            Target::CreateRevision(n) => (1, *n),
            Target::Version(n) => (2, *n),
            Target::Lease(n) => (3, *n),
            Target::Value(value) => {
                out.push(4);
                out.put_bytes(value);
                continue;
            }
        };
        out.push(tag);
        out.put_i64(number);
    }
    for ops in [&txn.success, &txn.failure] {
        out.put_u64(ops.len() as u64);
        ops.iter().for_each(|op| encode_op(op, out));
    }
}

fn encode_op(op: &Op, out: &mut Vec<u8>) {
    match op {
        Op::Range(request) => {
            out.push(0);
            encode_range(&request.range, out);
            out.put_i64(request.revision.map_or(0, |r| r.0));
            out.put_u64(request.limit as u64);
            out.push(u8::from(request.keys_only) | u8::from(request.count_only) << 1);
        }
        Op::Put { key, value, lease, prev_kv } => {
            out.push(1 | u8::from(*prev_kv) << 4);
            out.put_bytes(key);
            out.put_bytes(value);
            out.put_i64(*lease);
        }
        Op::Update { key, value, lease, prev_kv } => {
            let kept = u8::from(value.is_none()) | u8::from(lease.is_none()) << 1;
            out.push(4 | u8::from(*prev_kv) << 4);
            out.put_bytes(key);
            out.push(kept);
            if let Some(value) = value {
                out.put_bytes(value);
            }
            if let Some(lease) = lease {
                out.put_i64(*lease);
            }
        }
        Op::Delete { range, prev_kv } => {
            out.push(2 | u8::from(*prev_kv) << 4);
            encode_range(range, out);
        }
        Op::Txn(txn) => {
            out.push(3);
            encode_txn(txn, out);
        }
    }
}

fn decode_txn(reader: &mut Reader<'_>, depth: usize) -> Result<Txn, Malformed> {
    if depth > MAX_DEPTH {
        return reader.malformed();
    }
    let mut txn = Txn::default();
    for _ in 0..reader.usize()? {
        let range = decode_range(reader)?;
        let ordering = match reader.byte()? {
            0 => Ordering::Equal,
            1 => Ordering::NotEqual,
            2 => Ordering::Greater,
            3 => Ordering::Less,
            _ => return reader.malformed(),
        };
        let target = match reader.byte()? {
            0 => Target::ModRevision(reader.i64()?),
            1 => Target::CreateRevision(reader.i64()?),
            2 => Target::Version(reader.i64()?),
            3 => Target::Lease(reader.i64()?),
            4 => Target::Value(reader.bytes()?),
            _ => return reader.malformed(),
        };
        txn.compare.push(Compare { range, target, ordering });
    }
    for ops in [&mut txn.success, &mut txn.failure] {
        for _ in 0..reader.usize()? {
            ops.push(decode_op(reader, depth)?);
        }
    }
    Ok(txn)
}

fn decode_op(reader: &mut Reader<'_>, depth: usize) -> Result<Op, Malformed> {
    let tag = reader.byte()?;
    let prev_kv = tag & 0x10 != 0;
    Ok(match tag & 0x0f {
        0 => {
            let range = decode_range(reader)?;
            let revision = Some(reader.i64()?).filter(|r| *r != 0).map(Revision);
            let limit = reader.usize()?;
            let flags = reader.byte()?;
            Op::Range(RangeRequest {
                range,
                revision,
                limit,
                keys_only: flags & 1 != 0,
                count_only: flags & 2 != 0,
            })
        }
        1 => {
            Op::Put { key: reader.bytes()?, value: reader.bytes()?, lease: reader.i64()?, prev_kv }
        }
        2 => Op::Delete { range: decode_range(reader)?, prev_kv },
        3 => Op::Txn(decode_txn(reader, depth + 1)?),
        4 => {
            let (key, kept) = (reader.bytes()?, reader.byte()?);
            if kept > 3 {
                return reader.malformed();
            }
            let value = if kept & 1 == 0 { Some(reader.bytes()?) } else { None };
            let lease = if kept & 2 == 0 { Some(reader.i64()?) } else { None };
            Op::Update { key, value, lease, prev_kv }
        }
        _ => return reader.malformed(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Command {
        let inner = Txn {
            success: vec![Op::Delete { range: KeyRange::prefix("/x/"), prev_kv: true }],
            failure: vec![Op::Range(RangeRequest {
                limit: 7,
                count_only: true,
                ..RangeRequest::new(KeyRange::key("k"))
            })],
            ..Txn::default()
        };
        Command::Txn(Txn {
            compare: vec![
                Compare {
                    range: KeyRange::key("a"),
                    target: Target::ModRevision(-3),
                    ordering: Ordering::Less,
                },
                Compare {
                    range: KeyRange::prefix("b"),
                    target: Target::Value("v".into()),
                    ordering: Ordering::NotEqual,
                },
            ],
            success: vec![
                Op::Put { key: "k".into(), value: "v".into(), lease: i64::MIN, prev_kv: true },
                Op::Update { key: "u".into(), value: None, lease: Some(3), prev_kv: true },
                Op::Update {
                    key: "w".into(),
                    value: Some("v".into()),
                    lease: None,
                    prev_kv: false,
                },
                Op::Txn(inner),
            ],
            ..Txn::default()
        })
    }

    #[test]
    fn a_command_survives_encoding() {
        for command in [
            sample(),
            Command::Compact(i64::MAX),
            Command::LeaseGrant { id: -1, ttl: 300 },
            Command::LeaseRevoke { id: 9 },
            Command::Alarm { member: u64::MAX, alarm: Alarm::NOSPACE, raised: true },
            Command::SetProfile {
                member: 7,
                profile: Profile { name: "n".to_owned(), client_urls: vec!["u".to_owned()] },
            },
        ] {
            let mut bytes = Vec::new();
            command.encode(&mut bytes);
            let back = Command::decode(&bytes).unwrap();
            assert_eq!(format!("{back:?}"), format!("{command:?}"));
        }
    }

    #[test]
    fn every_prefix_of_a_command_is_malformed_and_nothing_panics() {
        let mut bytes = Vec::new();
        sample().encode(&mut bytes);
        for length in 0..bytes.len() {
            assert!(Command::decode(&bytes[..length]).is_err(), "{length} bytes");
        }
        for index in 0..bytes.len() {
            for bit in 0..8 {
                let mut flipped = bytes.clone();
                flipped[index] ^= 1 << bit;
                let _ = Command::decode(&flipped);
            }
        }
    }

    #[test]
    fn the_encoding_of_format_1_stays() {
        let mut bytes = Vec::new();
        Command::Txn(Txn {
            success: vec![Op::Put { key: "k".into(), value: "v".into(), lease: 1, prev_kv: false }],
            ..Txn::default()
        })
        .encode(&mut bytes);
        assert_eq!(bytes, [1, 0, 1, 1, 1, b'k', 1, b'v', 2, 0]);
    }
}
