//! The encoding of outcomes and errors, as the leader returns them for forwarded commands.

use crate::contract::{KeyValue, OpResponse, RangeResponse, Revision, StoreError, TxnResponse};
use crate::encoding::{Malformed, Put, Reader};
use crate::mvcc::Outcome;

/// Maximum nesting when decoding, as deep as transactions nest.
const MAX_DEPTH: usize = 128;

pub(super) fn encode_outcomes(outcomes: &[Result<Outcome, StoreError>], out: &mut Vec<u8>) {
    out.put_u64(outcomes.len() as u64);
    for outcome in outcomes {
        match outcome {
            Ok(Outcome::Done(revision)) => {
                out.push(0);
                out.put_i64(revision.0);
            }
            Ok(Outcome::Txn(response)) => {
                out.push(1);
                encode_txn(response, out);
            }
            Err(error) => {
                out.push(2);
                encode_error(error, out);
            }
        }
    }
}

pub(super) fn decode_outcomes(
    reader: &mut Reader<'_>,
) -> Result<Vec<Result<Outcome, StoreError>>, Malformed> {
    let mut outcomes = Vec::new();
    for _ in 0..reader.u64()? {
        outcomes.push(match reader.byte()? {
            0 => Ok(Outcome::Done(Revision(reader.i64()?))),
            1 => Ok(Outcome::Txn(decode_txn(reader, 0)?)),
            2 => Err(decode_error(reader)?),
            _ => return reader.malformed(),
        });
    }
    Ok(outcomes)
}

fn encode_txn(response: &TxnResponse, out: &mut Vec<u8>) {
    out.push(u8::from(response.succeeded));
    out.put_i64(response.revision.0);
    out.put_u64(response.responses.len() as u64);
    for response in &response.responses {
        match response {
            OpResponse::Range(range) => {
                out.push(0);
                encode_kvs(&range.kvs, out);
                out.put_u64(range.count as u64);
                out.push(u8::from(range.more));
                out.put_i64(range.revision.0);
            }
            OpResponse::Put(previous) => {
                out.push(1);
                encode_kvs(previous.as_slice(), out);
            }
            OpResponse::Delete(count, previous) => {
                out.push(2);
                out.put_u64(*count as u64);
                encode_kvs(previous, out);
            }
            OpResponse::Txn(response) => {
                out.push(3);
                encode_txn(response, out);
            }
        }
    }
}

fn decode_txn(reader: &mut Reader<'_>, depth: usize) -> Result<TxnResponse, Malformed> {
    if depth > MAX_DEPTH {
        return reader.malformed();
    }
    let succeeded = flag(reader)?;
    let revision = Revision(reader.i64()?);
    let mut responses = Vec::new();
    for _ in 0..reader.u64()? {
        responses.push(match reader.byte()? {
            0 => {
                let (kvs, count) = (decode_kvs(reader)?, reader.usize()?);
                let (more, revision) = (flag(reader)?, Revision(reader.i64()?));
                OpResponse::Range(RangeResponse { kvs, count, more, revision })
            }
            1 => {
                let mut previous = decode_kvs(reader)?;
                if previous.len() > 1 {
                    return reader.malformed();
                }
                OpResponse::Put(previous.pop())
            }
            2 => OpResponse::Delete(reader.usize()?, decode_kvs(reader)?),
            3 => OpResponse::Txn(decode_txn(reader, depth + 1)?),
            _ => return reader.malformed(),
        });
    }
    Ok(TxnResponse { succeeded, responses, revision })
}

fn encode_kvs(kvs: &[KeyValue], out: &mut Vec<u8>) {
    out.put_u64(kvs.len() as u64);
    for kv in kvs {
        out.put_bytes(&kv.key);
        out.put_bytes(&kv.value);
        out.put_i64(kv.create_revision.0);
        out.put_i64(kv.mod_revision.0);
        out.put_i64(kv.version);
        out.put_i64(kv.lease);
    }
}

fn decode_kvs(reader: &mut Reader<'_>) -> Result<Vec<KeyValue>, Malformed> {
    let mut kvs = Vec::new();
    for _ in 0..reader.u64()? {
        kvs.push(KeyValue {
            key: reader.bytes()?,
            value: reader.bytes()?,
            create_revision: Revision(reader.i64()?),
            mod_revision: Revision(reader.i64()?),
            version: reader.i64()?,
            lease: reader.i64()?,
        });
    }
    Ok(kvs)
}

pub(super) fn encode_error(error: &StoreError, out: &mut Vec<u8>) {
    let mut numbers = |tag: u8, a: i64, b: i64| {
        out.push(tag);
        out.put_i64(a);
        out.put_i64(b);
    };
    let (tag, text) = match error {
        StoreError::Compacted { requested, oldest } => return numbers(1, *requested, *oldest),
        StoreError::Future { requested, newest } => return numbers(2, *requested, *newest),
        StoreError::TooLarge { size, limit } => {
            let number = |n: &usize| i64::try_from(*n).unwrap_or(i64::MAX);
            return numbers(3, number(size), number(limit));
        }
        StoreError::Overrun => (4, ""),
        StoreError::LeaseNotFound => (5, ""),
        StoreError::LeaseExists => (6, ""),
        StoreError::LeaseTtlTooLarge => (7, ""),
        StoreError::DuplicateKey => (8, ""),
        StoreError::KeyNotFound => (12, ""),
        StoreError::Corrupt => (13, ""),
        StoreError::NotCaughtUp(member) => {
            out.push(14);
            return out.put_u64(*member);
        }
        StoreError::Invalid(text) => (9, text.as_str()),
        StoreError::NoSpace(text) => (10, text.as_str()),
        StoreError::Unavailable(text) => (11, text.as_str()),
        // A stopped peer is no reason for this member to stop.
        StoreError::Stopped(text) => (11, text.as_str()),
        // Only an external etcd returns this, which has no members here.
        StoreError::Unknown(text) => (11, text.as_str()),
    };
    out.push(tag);
    out.put_bytes(text.as_bytes());
}

pub(super) fn decode_error(reader: &mut Reader<'_>) -> Result<StoreError, Malformed> {
    let tag = reader.byte()?;
    if tag == 14 {
        return Ok(StoreError::NotCaughtUp(reader.u64()?));
    }
    if (1..=3).contains(&tag) {
        let (a, b) = (reader.i64()?, reader.i64()?);
        return Ok(match tag {
            1 => StoreError::Compacted { requested: a, oldest: b },
            2 => StoreError::Future { requested: a, newest: b },
            _ => {
                let number = |n: i64| usize::try_from(n).or_else(|_| reader.malformed());
                StoreError::TooLarge { size: number(a)?, limit: number(b)? }
            }
        });
    }
    let text = String::from_utf8(reader.slice()?.to_vec()).or_else(|_| reader.malformed())?;
    Ok(match tag {
        4 => StoreError::Overrun,
        5 => StoreError::LeaseNotFound,
        6 => StoreError::LeaseExists,
        7 => StoreError::LeaseTtlTooLarge,
        8 => StoreError::DuplicateKey,
        12 => StoreError::KeyNotFound,
        13 => StoreError::Corrupt,
        9 => StoreError::Invalid(text),
        10 => StoreError::NoSpace(text),
        11 => StoreError::Unavailable(text),
        _ => return reader.malformed(),
    })
}

pub(super) fn flag(reader: &mut Reader<'_>) -> Result<bool, Malformed> {
    match reader.byte()? {
        0 => Ok(false),
        1 => Ok(true),
        _ => reader.malformed(),
    }
}
