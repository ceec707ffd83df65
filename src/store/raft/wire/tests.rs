//! Messages there and back, cut off anywhere, and what the frame says.

use std::collections::{BTreeMap, BTreeSet};

use super::*;
use crate::contract::{KeyValue, OpResponse, RangeResponse, Revision, TxnResponse};
use crate::log::{Batch, Membership, Payload};

fn id(term: u64, index: u64) -> LogId {
    LogId::new_term_index(term, index)
}

fn envelope() -> Envelope {
    Envelope {
        cluster: ClusterId(*b"0123456789abcdef"),
        from: 1,
        to: 300,
        address: Address::new("a:1"),
    }
}

fn membership() -> Membership {
    let nodes = BTreeMap::from([(1, Address::new("a:1")), (300, Address::new("b:1"))]);
    Membership::new(vec![BTreeSet::from([1, 300])], nodes).unwrap()
}

fn commands() -> LogEntry {
    let command = Command::LeaseGrant { id: 7, ttl: 60 };
    let mut encoded = Vec::new();
    Batch::encode(&command, &mut Vec::new(), &mut encoded);
    LogEntry {
        log_id: id(2, 6),
        payload: Payload::Normal(Batch::new(vec![command], encoded, 9, true)),
    }
}

fn requests() -> Vec<Request> {
    let vote = Vote::new_committed(2, 1);
    let entries = vec![
        LogEntry { log_id: id(2, 5), payload: Payload::Blank },
        commands(),
        LogEntry { log_id: id(2, 7), payload: Payload::Membership(membership()) },
    ];
    let append = AppendEntriesRequest {
        vote,
        prev_log_id: Some(id(1, 4)),
        entries,
        leader_commit: Some(id(1, 3)),
    };
    let mut ask = VoteRequest::new(Vote::new(3, 1), Some(id(2, 7)));
    ask.leadership_transfer = true;
    let applied = Applied {
        id: Some(id(2, 7)),
        membership: StoredMembership::new(Some(id(2, 7)), membership()),
    };
    let data = Bytes::from_static(b"piece");
    vec![
        Request::Append(append),
        Request::Vote(ask.clone()),
        Request::PreVote(ask),
        Request::Transfer(TransferLeaderRequest::new(vote, 300, None)),
        Request::Chunk(Chunk { vote, applied, total: 9, offset: 4, checksum: 5, data }),
        Request::Propose(vec![Command::Compact(5), Command::LeaseRevoke { id: -1 }]),
        Request::ReadIndex,
        Request::KeepAlive(-7),
        Request::Remaining(-7),
        Request::Change(Change::Add(9, Address::new("c:1"))),
        Request::Change(Change::Promote(vec![9, 10])),
        Request::Change(Change::Remove(9)),
    ]
}

fn answers() -> Vec<Response> {
    let vote = Vote::new_committed(2, 1);
    let kv = KeyValue {
        key: "k".into(),
        value: "v".into(),
        create_revision: Revision(2),
        mod_revision: Revision(3),
        version: 2,
        lease: -1,
    };
    let range =
        RangeResponse { kvs: vec![kv.clone()], count: 5, more: true, revision: Revision(3) };
    let nested = TxnResponse { succeeded: false, responses: vec![], revision: Revision(4) };
    let response = TxnResponse {
        succeeded: true,
        responses: vec![
            OpResponse::Range(range),
            OpResponse::Put(Some(kv.clone())),
            OpResponse::Put(None),
            OpResponse::Delete(1, vec![kv]),
            OpResponse::Txn(nested),
        ],
        revision: Revision(4),
    };
    let mut outcomes = vec![Ok(Outcome::Done(Revision(9))), Ok(Outcome::Txn(response))];
    outcomes.extend(
        [
            StoreError::Compacted { requested: 1, oldest: 2 },
            StoreError::Future { requested: 3, newest: 2 },
            StoreError::TooLarge { size: 5, limit: 4 },
            StoreError::Overrun,
            StoreError::LeaseNotFound,
            StoreError::LeaseExists,
            StoreError::LeaseTtlTooLarge,
            StoreError::DuplicateKey,
            StoreError::Invalid("i".to_owned()),
            StoreError::NoSpace("n".to_owned()),
            StoreError::Unavailable("u".to_owned()),
        ]
        .map(Err),
    );
    let moved = TransferLeaderError::VoteChanged { expected: vote, actual: Vote::new(3, 300) };
    let late = TransferLeaderError::LogNotFlushed { expected: Some(id(2, 7)), actual: None };
    vec![
        Response::Append(AppendEntriesResponse::Success),
        Response::Append(AppendEntriesResponse::PartialSuccess(Some(id(2, 6)))),
        Response::Append(AppendEntriesResponse::Conflict),
        Response::Append(AppendEntriesResponse::HigherVote(vote)),
        Response::Vote(VoteResponse { vote, vote_granted: true, last_log_id: Some(id(2, 7)) }),
        Response::Transfer(Ok(())),
        Response::Transfer(Err(moved)),
        Response::Transfer(Err(late)),
        Response::Have(1 << 40),
        Response::Installed(vote),
        Response::Proposed(12, outcomes),
        Response::ReadAt(12),
        Response::KeptAlive(60),
        Response::Remains(60, -1),
        Response::Refused(StoreError::NotCaughtUp(300)),
        Response::Refused(StoreError::KeyNotFound),
        Response::Changed,
        Response::Removed,
        Response::NotLeader(None),
        Response::NotLeader(Some(300)),
        Response::Refused(StoreError::LeaseNotFound),
    ]
}

fn decode(bytes: &[u8]) -> Result<(Envelope, Request), Malformed> {
    let (envelope, reader) = Envelope::decode(bytes)?;
    Ok((envelope, Request::decode(reader)?))
}

#[test]
fn every_request_and_answer_survives_and_none_that_is_cut_off_does() {
    for request in requests() {
        let bytes = envelope().encode(&request);
        let (sent, back) = decode(&bytes).unwrap();
        assert_eq!(sent, envelope());
        assert_eq!(format!("{back:?}"), format!("{request:?}"));
        for length in 0..bytes.len() {
            assert!(decode(&bytes[..length]).is_err(), "{length} bytes of {request:?}");
        }
    }
    for answer in answers() {
        let bytes = answer.encode();
        assert_eq!(format!("{:?}", Response::decode(&bytes).unwrap()), format!("{answer:?}"));
        for length in 0..bytes.len() {
            assert!(Response::decode(&bytes[..length]).is_err(), "{length} bytes of {answer:?}");
        }
    }
}

#[test]
fn flipped_bits_never_panic() {
    let flip = |bytes: &[u8], decode: &dyn Fn(&[u8])| {
        for at in 0..bytes.len() * 8 {
            let mut flipped = bytes.to_vec();
            flipped[at / 8] ^= 1 << (at % 8);
            decode(&flipped);
        }
    };
    for request in requests() {
        flip(&envelope().encode(&request), &|bytes| drop(decode(bytes)));
    }
    for answer in answers() {
        flip(&answer.encode(), &|bytes| drop(Response::decode(bytes)));
    }
}

#[test]
fn the_frame_and_the_entries_stand_as_written_down() {
    let bytes = envelope().encode(&Request::KeepAlive(-7));
    let mut expected = vec![2];
    expected.extend_from_slice(b"0123456789abcdef");
    expected.extend_from_slice(&[1, 0xac, 2, 3, b'a', b':', b'1', /* tag */ 8, 13]);
    assert_eq!(bytes, expected);
    // As it was before requests had an address.
    let mut before = vec![1];
    before.extend_from_slice(b"0123456789abcdef");
    before.extend_from_slice(&[1, 0xac, 2, 8, 13]);
    let (sent, request) = decode(&before).unwrap();
    assert_eq!(sent, Envelope { address: Address::default(), ..envelope() });
    assert!(matches!(request, Request::KeepAlive(-7)));

    let append = AppendEntriesRequest {
        vote: Vote::new_committed(2, 1),
        prev_log_id: Some(id(2, 5)),
        entries: vec![commands()],
        leader_commit: None,
    };
    let bytes = envelope().encode(&Request::Append(append));
    let body = &bytes[25..];
    let head = [
        /* vote */ 2, 2, 1, /* before */ 6, 2, /* committed */ 0, 0,
        /* entries */ 1,
    ];
    // Kind, bytes; term, index, distance; ceiling; one command of three bytes: grant the lease 7
    // for 60 s.
    let entry = [1, 8, 2, 6, 0, 18, 3, 3, 14, 120];
    assert_eq!(body[..8], head);
    assert_eq!(body[8..], entry);
}

#[test]
fn another_version_and_entries_with_holes_are_malformed() {
    let mut bytes = envelope().encode(&Request::ReadIndex);
    for version in [0, 3] {
        bytes[0] = version;
        assert!(Envelope::decode(&bytes).is_err());
    }
    let append = AppendEntriesRequest {
        vote: Vote::new_committed(2, 1),
        prev_log_id: Some(id(2, 4)),
        entries: vec![commands()],
        leader_commit: None,
    };
    assert!(decode(&envelope().encode(&Request::Append(append))).is_err());
}
