//! Asks two etcds the same random questions, one after another, and prints where their answers differ.
//! usage: differ URL URL OPERATIONS [SEED]   (both must be empty and used by nobody else)

use std::error::Error;
use std::fmt::Debug;
use std::io::Write;

use proto::etcdserverpb as pb;
use proto::etcdserverpb::compare::TargetUnion;
use proto::etcdserverpb::kv_client::KvClient;
use proto::etcdserverpb::lease_client::LeaseClient;
use proto::etcdserverpb::request_op::Request as Step;
use proto::etcdserverpb::watch_client::WatchClient;
use proto::etcdserverpb::watch_request::RequestUnion;
use tonic::transport::{Channel, Endpoint};
use tonic::{Response, Status};

/// Differences printed before the rest is only counted.
const PRINTED: usize = 20;

/// Marsaglia's xorshift: the same questions for the same seed.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    fn signed(&mut self, n: u64) -> i64 {
        i64::try_from(self.below(n)).unwrap_or(0)
    }

    fn key(&mut self) -> Vec<u8> {
        if self.one_in(100) {
            return Vec::new();
        }
        format!("k{}", self.below(12)).into_bytes()
    }

    fn end(&mut self) -> Vec<u8> {
        match self.below(6) {
            0 => vec![0],
            1 => format!("k{}", self.below(12)).into_bytes(),
            2 => b"l".to_vec(),
            _ => Vec::new(),
        }
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
        key: random.key().into(),
        range_end: random.end().into(),
        limit: if random.one_in(3) { random.signed(5) } else { 0 },
        revision: random.revision(newest),
        sort_order: if random.one_in(50) { 7 } else { i32::try_from(random.below(3)).unwrap_or(0) },
        // Equal versions, values and revisions come in no order of etcd's: only what is unique is sorted by.
        sort_target: 0,
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
        key: random.key().into(),
        value: if has_value {
            format!("v{}", random.below(4)).into_bytes().into()
        } else {
            Default::default()
        },
        lease: if ignore_lease && !random.one_in(10) { 0 } else { lease },
        prev_kv: random.one_in(2),
        ignore_value,
        ignore_lease,
    }
}

fn delete(random: &mut Random) -> pb::DeleteRangeRequest {
    pb::DeleteRangeRequest {
        key: random.key().into(),
        range_end: random.end().into(),
        prev_kv: random.one_in(2),
    }
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
            // A target without its value.
            _ => (2, TargetUnion::Version(number)),
        };
        pb::Compare {
            result: i32::try_from(random.below(4)).unwrap_or(0),
            target,
            key: random.key().into(),
            range_end: if random.one_in(3) { random.end().into() } else { Default::default() },
            target_union: Some(union),
        }
    };
    let step = |random: &mut Random| pb::RequestOp {
        request: match random.below(if depth < 3 { 8 } else { 6 }) {
            0 | 1 => Some(Step::RequestRange(range(random, newest))),
            2 | 3 => Some(Step::RequestPut(put(random))),
            // etcd does not see that a put and a deletion up to the end `\0` meet, and does both; here they are refused.
            4 => {
                let mut delete = delete(random);
                if *delete.range_end == [0] {
                    delete.range_end = b"l".to_vec().into();
                }
                Some(Step::RequestDeleteRange(delete))
            }
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

/// What to compare of an answer: all but who gave it.
fn text<T: Debug>(answer: Result<Response<T>, Status>) -> String {
    match answer {
        Ok(answer) => {
            let text = format!("{:?}", answer.into_inner());
            // Ids and terms are each side's own.
            ["cluster_id: ", "member_id: ", "raft_term: "].iter().fold(text, |text, field| {
                let mut parts = text.split(field);
                let first = parts.next().unwrap_or_default().to_owned();
                parts.fold(first, |all, part| {
                    let rest = part.trim_start_matches(|c: char| c.is_ascii_digit());
                    format!("{all}{field}*{rest}")
                })
            })
        }
        Err(status) => format!("{:?}: {}", status.code(), status.message()),
    }
}

struct Side {
    kv: KvClient<Channel>,
    lease: LeaseClient<Channel>,
    watch: tonic::Streaming<pb::WatchResponse>,
    _requests: tokio::sync::mpsc::Sender<pb::WatchRequest>,
}

impl Side {
    async fn connect(url: &str) -> Result<Self, Box<dyn Error>> {
        let channel = Endpoint::from_shared(url.to_owned())?.connect().await?;
        let (requests, mut receiver) = tokio::sync::mpsc::channel(4);
        let create = pb::WatchCreateRequest {
            range_end: vec![0].into(),
            key: vec![0].into(),
            prev_kv: true,
            ..Default::default()
        };
        let request_union = Some(RequestUnion::CreateRequest(create));
        requests.send(pb::WatchRequest { request_union }).await?;
        let stream = futures::stream::poll_fn(move |cx| receiver.poll_recv(cx));
        let watch = WatchClient::new(channel.clone()).watch(stream).await?.into_inner();
        let mut side = Self {
            kv: KvClient::new(channel.clone()),
            lease: LeaseClient::new(channel),
            watch,
            _requests: requests,
        };
        side.watch
            .message()
            .await?
            .filter(|first| first.created)
            .ok_or("the watch was not made")?;
        Ok(side)
    }

    async fn ask(&mut self, question: &Question) -> String {
        match question.clone() {
            Question::Range(request) => text(self.kv.range(request).await),
            Question::Put(request) => text(self.kv.put(request).await),
            Question::Delete(request) => text(self.kv.delete_range(request).await),
            Question::Txn(request) => text(self.kv.txn(request).await),
            Question::Compact(request) => text(self.kv.compact(request).await),
            Question::Grant(request) => text(self.lease.lease_grant(request).await),
            Question::Revoke(request) => text(self.lease.lease_revoke(request).await),
            Question::Live(mut request) => {
                request.keys = true;
                // The seconds left are a matter of when it was asked.
                text(self.lease.lease_time_to_live(request).await.map(|mut answer| {
                    answer.get_mut().ttl = answer.get_ref().ttl.min(0);
                    // etcd's are in the order of a Go map.
                    answer.get_mut().keys.sort();
                    answer
                }))
            }
            Question::Leases => {
                text(self.lease.lease_leases(pb::LeaseLeasesRequest {}).await.map(|mut answer| {
                    answer.get_mut().leases.sort_by_key(|lease| lease.id);
                    answer
                }))
            }
        }
    }

    /// Events up to a revision.
    async fn events(&mut self, revision: i64) -> Result<Vec<String>, Status> {
        let mut events = Vec::new();
        loop {
            let Some(batch) = self.watch.message().await? else {
                return Err(Status::unavailable("the watch has ended"));
            };
            events.extend(batch.events.iter().map(|event| format!("{event:?}")));
            let last = batch.events.last().and_then(|event| event.kv.as_ref());
            if last.is_some_and(|kv| kv.mod_revision >= revision) || batch.canceled {
                return Ok(events);
            }
        }
    }
}

#[derive(Debug, Clone)]
enum Question {
    Range(pb::RangeRequest),
    Put(pb::PutRequest),
    Delete(pb::DeleteRangeRequest),
    Txn(pb::TxnRequest),
    Compact(pb::CompactionRequest),
    Grant(pb::LeaseGrantRequest),
    Revoke(pb::LeaseRevokeRequest),
    Live(pb::LeaseTimeToLiveRequest),
    Leases,
}

fn question(random: &mut Random, newest: i64) -> Question {
    match random.below(40) {
        0..=11 => Question::Range(range(random, newest)),
        12..=21 => Question::Put(put(random)),
        22..=24 => Question::Delete(delete(random)),
        25..=33 => Question::Txn(txn(random, newest, 0)),
        34 if random.one_in(5) => Question::Compact(pb::CompactionRequest {
            revision: newest - random.signed(60) + 5,
            physical: false,
        }),
        34 | 35 => Question::Grant(pb::LeaseGrantRequest {
            ttl: if random.one_in(20) { 9_000_000_001 } else { 1000 + random.signed(10) },
            id: 1 + random.signed(5),
        }),
        36 => Question::Revoke(pb::LeaseRevokeRequest { id: random.signed(6) }),
        37 | 38 => Question::Live(pb::LeaseTimeToLiveRequest { id: random.signed(6), keys: true }),
        _ => Question::Leases,
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut out = std::io::stdout();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [one, other, operations, rest @ ..] = arguments.as_slice() else {
        return Err("usage: differ URL URL OPERATIONS [SEED]".into());
    };
    let operations: usize = operations.parse()?;
    let seed: u64 = rest.first().map_or(Ok(1), |seed| seed.parse())?;
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let (mut one, mut other) = (Side::connect(one).await?, Side::connect(other).await?);
    let (mut newest, mut differences) = (1, 0);
    let probe = pb::RangeRequest { key: b"k".to_vec().into(), ..Default::default() };
    for number in 0..operations {
        let question = question(&mut random, newest);
        let (a, b) = (one.ask(&question).await, other.ask(&question).await);
        // A transaction that lacks a key and a lease may be refused for either.
        let lacks = |answer: &str| {
            answer.ends_with("etcdserver: key not found")
                || answer.ends_with("etcdserver: requested lease not found")
        };
        if a != b && !(lacks(&a) && lacks(&b)) {
            differences += 1;
            if differences <= PRINTED {
                writeln!(
                    out,
                    "operation {number} of seed {seed}: {question:?}\n  one:   {a}\n  other: {b}"
                )?;
            }
        }
        let header = one.kv.range(probe.clone()).await?.into_inner().header;
        newest = header.map_or(newest, |header| header.revision);
    }
    // A last change that both watches must tell of.
    let last = pb::PutRequest { key: b"k-last".to_vec().into(), ..Default::default() };
    for side in [&mut one, &mut other] {
        side.kv.put(last.clone()).await?;
    }
    let (a, b) = (one.events(newest + 1).await?, other.events(newest + 1).await?);
    if a != b {
        differences += 1;
        let at = a.iter().zip(&b).position(|(a, b)| a != b).unwrap_or(a.len().min(b.len()));
        writeln!(
            out,
            "the watches differ at event {at} of {} and {}\n  one:   {:?}\n  other: {:?}",
            a.len(),
            b.len(),
            a.get(at),
            b.get(at)
        )?;
    }
    writeln!(out, "{operations} operations, {} events, {differences} differences", a.len())?;
    if differences > 0 { Err("the answers differ".into()) } else { Ok(()) }
}
