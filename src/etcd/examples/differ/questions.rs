//! Generates random requests, deterministic by seed.

use bytes::Bytes;
use proto::etcdserverpb as pb;
use proto::etcdserverpb::compare::TargetUnion;
use proto::etcdserverpb::request_op::Request as Step;

/// Equal elements keep the order of their keys in small results: Go sorts more than twelve with
/// another algorithm.
const KEYS: [&[u8]; 12] = [
    b"k0",
    b"k1",
    b"k1\0",
    b"k1\0a",
    b"k2",
    b"k3",
    b"k4",
    b"k5",
    b"k6",
    b"k7",
    b"k\xc3\xa9",
    b"k\xff\xff",
];

/// The state that requests refer to.
#[derive(Debug, Default)]
pub(crate) struct ServerState {
    /// Newest revision.
    pub(crate) newest: i64,
    /// Revision of the last compaction.
    pub(crate) compacted: i64,
    /// Compactions whose hashes both sides have kept, oldest first.
    pub(crate) sums: Vec<i64>,
}

/// Marsaglia's xorshift; deterministic by seed.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }

    pub(crate) fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    pub(crate) fn signed(&mut self, n: u64) -> i64 {
        i64::try_from(self.below(n)).unwrap_or(0)
    }

    /// One of twelve keys, sometimes an empty one.
    pub(crate) fn key(&mut self) -> Bytes {
        if self.one_in(100) {
            return Bytes::new();
        }
        Bytes::from_static(KEYS.get(self.below(12) as usize).copied().unwrap_or(b"k0"))
    }

    pub(crate) fn end(&mut self) -> Bytes {
        match self.below(6) {
            0 => Bytes::from_static(&[0]),
            1 => self.key(),
            2 => Bytes::from_static(b"l"),
            _ => Bytes::new(),
        }
    }

    /// Most values are short; some are so long that the store keeps them in files.
    fn value(&mut self) -> Bytes {
        let number = self.below(4);
        if self.one_in(24) {
            return format!("{number}").repeat(600 + self.below(1500) as usize).into();
        }
        format!("v{number}").into()
    }

    fn revision(&mut self, newest: i64) -> i64 {
        match self.below(4) {
            0 => newest - self.signed(30),
            1 => newest + self.signed(3) - 1,
            _ => 0,
        }
    }
}

fn range(random: &mut Random, newest: i64) -> pb::RangeRequest {
    let bound = |random: &mut Random| if random.one_in(8) { newest - random.signed(40) } else { 0 };
    pb::RangeRequest {
        key: random.key(),
        range_end: random.end(),
        limit: if random.one_in(3) { random.signed(5) } else { 0 },
        revision: random.revision(newest),
        sort_order: if random.one_in(50) { 7 } else { i32::try_from(random.below(3)).unwrap_or(0) },
        sort_target: i32::try_from(random.below(5)).unwrap_or(0),
        serializable: random.one_in(4),
        keys_only: random.one_in(5),
        count_only: random.one_in(8),
        min_mod_revision: bound(random),
        max_mod_revision: bound(random),
        min_create_revision: bound(random),
        max_create_revision: bound(random),
    }
}

fn put(random: &mut Random) -> pb::PutRequest {
    let ignore_value = random.one_in(10);
    let ignore_lease = random.one_in(10);
    let has_value = !ignore_value || random.one_in(10);
    let lease = if random.one_in(4) { random.signed(6) } else { 0 };
    pb::PutRequest {
        key: random.key(),
        value: if has_value { random.value() } else { Bytes::new() },
        lease: if ignore_lease && !random.one_in(10) { 0 } else { lease },
        prev_kv: random.one_in(2),
        ignore_value,
        ignore_lease,
    }
}

fn delete(random: &mut Random) -> pb::DeleteRangeRequest {
    pb::DeleteRangeRequest { key: random.key(), range_end: random.end(), prev_kv: random.one_in(2) }
}

fn txn(random: &mut Random, newest: i64, depth: u64) -> pb::TxnRequest {
    let compare = |random: &mut Random| {
        let number = random.signed(4);
        let revision = newest - random.signed(20);
        let (target, union) = match random.below(6) {
            0 => (0, TargetUnion::Version(number)),
            1 => (1, TargetUnion::CreateRevision(if random.one_in(2) { 0 } else { revision })),
            2 => (2, TargetUnion::ModRevision(if random.one_in(2) { 0 } else { revision })),
            3 => (3, TargetUnion::Value(format!("v{number}").into_bytes().into())),
            4 => (4, TargetUnion::Lease(number)),
            // A comparison target without its value.
            _ => (2, TargetUnion::Version(number)),
        };
        pb::Compare {
            result: i32::try_from(random.below(4)).unwrap_or(0),
            target,
            key: random.key(),
            range_end: if random.one_in(3) { random.end() } else { Bytes::new() },
            target_union: Some(union),
        }
    };
    let step = |random: &mut Random| pb::RequestOp {
        request: match random.below(if depth < 3 { 8 } else { 6 }) {
            0 | 1 => Some(Step::RequestRange(range(random, newest))),
            2 | 3 => Some(Step::RequestPut(put(random))),
            4 => Some(Step::RequestDeleteRange(delete(random))),
            5 if random.one_in(10) => None,
            5 => Some(Step::RequestPut(put(random))),
            _ => Some(Step::RequestTxn(txn(random, newest, depth + 1))),
        },
    };
    let many = |random: &mut Random| (0..random.below(4)).map(|_| step(random)).collect();
    let (success, failure) = (many(random), many(random));
    pb::TxnRequest {
        compare: (0..random.below(3)).map(|_| compare(random)).collect(),
        success,
        failure,
    }
}

fn has(txn: &pb::TxnRequest, found: &dyn Fn(&Step) -> bool) -> bool {
    let mut steps = txn.success.iter().chain(&txn.failure).filter_map(|op| op.request.as_ref());
    steps.any(|step| if let Step::RequestTxn(txn) = step { has(txn, found) } else { found(step) })
}

/// Whether a transaction crashes etcd: a put that keeps the value of a key that an earlier step
/// deleted, which etcd accepts if the deletion has the end `\0`.
fn is_deadly(txn: &pb::TxnRequest) -> bool {
    has(txn, &|step| matches!(step, Step::RequestDeleteRange(d) if *d.range_end == [0]))
        && has(txn, &|step| matches!(step, Step::RequestPut(p) if p.ignore_value || p.ignore_lease))
}

fn harmless_txn(random: &mut Random, newest: i64) -> pb::TxnRequest {
    loop {
        let txn = txn(random, newest, 0);
        if !is_deadly(&txn) {
            return txn;
        }
    }
}

#[derive(Debug, Clone)]
pub(crate) enum Question {
    Range(pb::RangeRequest),
    /// The same read as a stream, merged.
    Stream(pb::RangeRequest),
    Put(pb::PutRequest),
    Delete(pb::DeleteRangeRequest),
    Txn(pb::TxnRequest),
    Compact(pb::CompactionRequest),
    Grant(pb::LeaseGrantRequest),
    Revoke(pb::LeaseRevokeRequest),
    Live(pb::LeaseTimeToLiveRequest),
    Leases,
    KeepAlive(i64),
    Hash(pb::HashKvRequest),
    Alarm(pb::AlarmRequest),
    Defragment,
}

impl Question {
    /// Whether the request changes nothing.
    pub(crate) fn only_reads(&self) -> bool {
        use Question::{Hash, Leases, Live, Range, Stream};
        matches!(self, Range(_) | Stream(_) | Hash(_) | Live(_) | Leases)
    }
}

/// The revision of a hash request.
fn summed(random: &mut Random, known: &ServerState) -> i64 {
    let ServerState { newest, compacted, ref sums } = *known;
    // For revisions of compactions the hash is that of the compaction.
    if !sums.is_empty() && random.one_in(4) {
        return sums.get(random.below(sums.len() as u64) as usize).copied().unwrap_or(0);
    }
    match newest - compacted {
        2.. if random.one_in(2) => {
            newest - random.signed((newest - compacted).min(30).unsigned_abs())
        }
        _ => 0,
    }
}

/// Generates the next request.
pub(crate) fn question(random: &mut Random, known: &ServerState) -> Question {
    let newest = known.newest;
    match random.below(44) {
        0 => {
            let mut request = range(random, newest);
            // With a target and no order etcd sorts each piece separately, and counts the keys
            // after the last one of a piece.
            if request.sort_order == 0 {
                request.sort_target = 0;
            }
            Question::Stream(request)
        }
        1..=11 => Question::Range(range(random, newest)),
        12..=21 => Question::Put(put(random)),
        22..=24 => Question::Delete(delete(random)),
        25..=33 => Question::Txn(harmless_txn(random, newest)),
        34 if random.one_in(5) => Question::Compact(pb::CompactionRequest {
            // An etcd without compactions accepts 0, and then returns the hash of an empty store
            // for the newest revision.
            revision: match newest - random.signed(60) + 5 {
                0 => 1,
                revision => revision,
            },
            // Otherwise hashes depend on the progress of etcd's compaction.
            physical: true,
        }),
        34 | 35 => Question::Grant(pb::LeaseGrantRequest {
            ttl: if random.one_in(20) { 9_000_000_001 } else { 100_000 + random.signed(10) },
            id: 1 + random.signed(5),
        }),
        36 => Question::Revoke(pb::LeaseRevokeRequest { id: random.signed(6) }),
        40 if random.one_in(4) => Question::KeepAlive(random.signed(6)),
        40 if random.one_in(100) => Question::Defragment,
        41 => Question::Hash(pb::HashKvRequest { revision: summed(random, known) }),
        42 if random.one_in(40) => Question::Alarm(pb::AlarmRequest {
            action: i32::try_from(random.below(3)).unwrap_or(0),
            member_id: 1 + random.below(2),
            alarm: i32::try_from(random.below(2)).unwrap_or(0),
        }),
        // An alarm is disarmed at once: it would refuse nearly all following requests.
        42 | 43 => Question::Alarm(no_alarm(1 + random.below(2))),
        37 | 38 => Question::Live(pb::LeaseTimeToLiveRequest { id: random.signed(6), keys: true }),
        _ => Question::Leases,
    }
}

/// Disarms a member's NOSPACE alarm.
pub(crate) fn no_alarm(member_id: u64) -> pb::AlarmRequest {
    pb::AlarmRequest { action: 2, member_id, alarm: 1 }
}

/// A watch; id 0 lets the server choose.
pub(crate) fn watch(random: &mut Random, known: &ServerState, id: i64) -> pb::WatchCreateRequest {
    let ServerState { newest, compacted, .. } = *known;
    let (key, range_end) = (random.key(), random.end());
    let start_revision = match random.below(8) {
        0 => newest + 1 + random.signed(20),
        1..=4 => newest - random.signed(40),
        5 => compacted + random.signed(3) - 1,
        6 if random.one_in(8) => -1,
        _ => 0,
    };
    pb::WatchCreateRequest {
        key,
        range_end,
        start_revision,
        progress_notify: false,
        filters: match random.below(6) {
            0 => vec![0],
            1 => vec![1],
            2 if random.one_in(4) => vec![0, 1],
            _ => Vec::new(),
        },
        // For etcd the version before the revision of a compaction is compacted; our store still
        // has it.
        prev_kv: start_revision != compacted && random.one_in(2),
        watch_id: id,
        fragment: random.one_in(2),
    }
}
