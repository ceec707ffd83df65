//! Asks two etcds the same random questions, one after another, and prints where their answers differ.
//! usage: differ URL URL OPERATIONS [SEED]   (both must be empty and used by nobody else)

use std::error::Error;
use std::fmt::Debug;
use std::io::Write;

use proto::etcdserverpb as pb;
use proto::etcdserverpb::compare::TargetUnion;
use proto::etcdserverpb::kv_client::KvClient;
use proto::etcdserverpb::lease_client::LeaseClient;
use proto::etcdserverpb::maintenance_client::MaintenanceClient;
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
        // What is equal comes in the order of its keys, as long as there are few: Go sorts more than twelve another way.
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

/// etcd dies of a put that keeps what a step before it deleted, which it lets happen where the deletion goes to the end `\0`.
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
    maintenance: MaintenanceClient<Channel>,
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
            lease: LeaseClient::new(channel.clone()),
            maintenance: MaintenanceClient::new(channel),
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
            Question::Hash(request) => text(self.maintenance.hash_kv(request).await),
            Question::Alarm(request) => text(self.maintenance.alarm(request).await),
            Question::KeepAlive(id) => {
                let once = futures::stream::iter([pb::LeaseKeepAliveRequest { id }]);
                match self.lease.lease_keep_alive(once).await {
                    Ok(answers) => match answers.into_inner().message().await {
                        Ok(answer) => format!("{:?}", answer.map(|answer| (answer.id, answer.ttl))),
                        Err(status) => text::<()>(Err(status)),
                    },
                    Err(status) => text::<()>(Err(status)),
                }
            }
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
    KeepAlive(i64),
    Hash(pb::HashKvRequest),
    Alarm(pb::AlarmRequest),
}

/// The next question, at the newest revision and after a compaction.
fn question(random: &mut Random, newest: i64, compacted: i64) -> Question {
    match random.below(44) {
        0..=11 => Question::Range(range(random, newest)),
        12..=21 => Question::Put(put(random)),
        22..=24 => Question::Delete(delete(random)),
        25..=33 => Question::Txn(harmless_txn(random, newest)),
        34 if random.one_in(5) => Question::Compact(pb::CompactionRequest {
            // The 0 is taken by an etcd that has not compacted yet, which then answers the checksum of nothing for the newest.
            revision: match newest - random.signed(60) + 5 {
                0 => 1,
                revision => revision,
            },
            // Otherwise checksums depend on how far etcd has come with it.
            physical: true,
        }),
        34 | 35 => Question::Grant(pb::LeaseGrantRequest {
            ttl: if random.one_in(20) { 9_000_000_001 } else { 1000 + random.signed(10) },
            id: 1 + random.signed(5),
        }),
        36 => Question::Revoke(pb::LeaseRevokeRequest { id: random.signed(6) }),
        40 if random.one_in(4) => Question::KeepAlive(random.signed(6)),
        // For the revision of a compaction etcd answers what it summed up while it compacted.
        41 => Question::Hash(pb::HashKvRequest {
            revision: match newest - compacted {
                2.. if random.one_in(2) => {
                    newest - random.signed((newest - compacted).min(30).unsigned_abs())
                }
                _ => 0,
            },
        }),
        42 if random.one_in(40) => Question::Alarm(pb::AlarmRequest {
            action: i32::try_from(random.below(3)).unwrap_or(0),
            member_id: 1 + random.below(2),
            alarm: i32::try_from(random.below(2)).unwrap_or(0),
        }),
        // An alarm does not stay: it would refuse nearly everything that follows.
        42 | 43 => Question::Alarm(pb::AlarmRequest {
            action: 2,
            member_id: 1 + random.below(2),
            alarm: 1,
        }),
        37 | 38 => Question::Live(pb::LeaseTimeToLiveRequest { id: random.signed(6), keys: true }),
        _ => Question::Leases,
    }
}

/// The revision that the header of an answer says; the first in its text.
fn revision(answer: &str) -> Option<i64> {
    let (_, behind) = answer.split_once("ResponseHeader {")?.1.split_once("revision: ")?;
    behind.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
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
    let (mut newest, mut compacted, mut differences) = (1, 0, 0);
    let begin = base::clock::now();
    for number in 0..operations {
        let question = question(&mut random, newest, compacted);
        let (a, b) = tokio::join!(one.ask(&question), other.ask(&question));
        if let Question::Compact(request) = &question
            && !a.contains("required revision")
        {
            compacted = request.revision;
        }
        if a != b {
            differences += 1;
            if differences <= PRINTED {
                writeln!(
                    out,
                    "operation {number} of seed {seed}: {question:?}\n  one:   {a}\n  other: {b}"
                )?;
            }
        }
        newest = revision(&a).unwrap_or(newest).max(newest);
    }
    // A last change that both watches must tell of.
    let last = pb::PutRequest { key: b"k-last".to_vec().into(), ..Default::default() };
    for side in [&mut one, &mut other] {
        for member_id in [1, 2] {
            let end = pb::AlarmRequest { action: 2, member_id, alarm: 1 };
            side.maintenance.alarm(end).await?;
        }
        let header = side.kv.put(last.clone()).await?.into_inner().header;
        newest = header.map_or(0, |header| header.revision);
    }
    let (a, b) = tokio::join!(one.events(newest), other.events(newest));
    let (a, b) = (a?, b?);
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
    let rate = operations as f64 / begin.elapsed().as_secs_f64();
    writeln!(
        out,
        "{operations} operations, {} events, {differences} differences, {rate:.0} operations/s",
        a.len()
    )?;
    if differences > 0 { Err("the answers differ".into()) } else { Ok(()) }
}
