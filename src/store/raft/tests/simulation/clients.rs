//! Clients: each sends one request at a time to a machine, and changes the machine if it does not
//! answer.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use super::model::{Call, Item, Items, Reply, Response};
use super::world::{Outcome, World, key, key_range, number, value, value_number};
use crate::contract::{
    Backend, Compare, KeyRange, KeyValue, Op, OpResponse, Ordering, RangeRequest, Revision,
    StoreError, Target, Txn, TxnResponse,
};
use crate::log::sim::Rng;

/// Number of keys that clients use.
pub(super) const KEYS: u8 = 8;

/// State of a client from its responses.
struct Client {
    world: World,
    number: usize,
    rng: Rng,
    modified: BTreeMap<u8, i64>,
    leases: Vec<i64>,
    newest: i64,
}

/// Starts a client.
pub(super) fn start(world: &World, number: usize, seed: u64) {
    let client = Client {
        world: world.clone(),
        number,
        rng: Rng(seed),
        modified: BTreeMap::new(),
        leases: Vec::new(),
        newest: 1,
    };
    world.spawn(world.clients(), client.run());
}

impl Client {
    async fn run(mut self) {
        let stop = self.world.clients().shutdown().clone();
        let mut machine = self.rng.below(3) as usize;
        while !stop.is_requested() {
            let pause = self.rng.below(200);
            tokio::time::sleep(Duration::from_millis(pause)).await;
            let Some(door) = self.world.door(machine, &mut self.rng) else { continue };
            machine = if self.rng.chance(10) { self.rng.below(5) as usize } else { door.machine };
            let call = self.choose();
            let record = self.world.begin(self.number, &door, &call);
            let patience = if self.rng.chance(10) { self.rng.below(300) } else { 9000 };
            let asked = perform(&door.store, &call);
            let outcome = tokio::select! {
                biased;
                () = door.gone.requested() => Outcome::Unknown("the machine is gone".to_owned()),
                outcome = tokio::time::timeout(Duration::from_millis(patience), asked) => {
                    outcome.unwrap_or_else(|_| Outcome::Unknown("no patience".to_owned()))
                }
            };
            match &outcome {
                Outcome::Reply(reply) => self.learn(&call, reply),
                Outcome::Unknown(_) => machine = self.rng.below(5) as usize,
                Outcome::Refused(_) => {
                    let uses = |lease: &i64| {
                        matches!(&call,
                            Call::Renew { lease: l } | Call::Put { lease: l, .. } if l == lease)
                    };
                    self.leases.retain(|lease| !uses(lease));
                }
            }
            self.world.end(record, outcome);
        }
    }

    fn learn(&mut self, call: &Call, reply: &Reply) {
        self.newest = self.newest.max(reply.revision);
        match (call, &reply.answer) {
            (Call::Put { key, .. } | Call::Cas { key, .. }, Response::Put(_)) => {
                self.modified.insert(*key, reply.revision);
            }
            (Call::Cas { key, .. }, Response::Differs(found)) => {
                self.modified.insert(*key, found.as_ref().map_or(0, |item| item.modified));
            }
            (Call::Read { keys, .. }, Response::Found(items)) => {
                for key in keys.clone() {
                    let found = items.get(&key).map_or(0, |item| item.modified);
                    self.modified.insert(key, found);
                }
            }
            (Call::Grant { lease, .. }, _) => self.leases.push(*lease),
            (Call::Revoke { lease }, _) => self.leases.retain(|known| known != lease),
            _ => {}
        }
    }

    fn key(&mut self) -> u8 {
        self.rng.below(u64::from(KEYS)) as u8
    }

    fn keys(&mut self) -> Range<u8> {
        let first = self.key();
        let count = 1 + self.rng.below(u64::from(KEYS - first)) as u8;
        if self.rng.chance(50) { first..first + 1 } else { first..first + count }
    }

    fn choose(&mut self) -> Call {
        let value = self.world.book().next_value();
        let lease = self.leases.last().copied();
        match self.rng.below(100) {
            0..25 => Call::Put { key: self.key(), value, lease: 0 },
            25..40 => {
                let key = self.key();
                let expected = self.modified.get(&key).copied().unwrap_or(0);
                Call::Cas { key, expected, value }
            }
            40..45 => {
                let from = self.keys();
                let key = if from.start > 0 { from.start - 1 } else { from.end % KEYS };
                if from.contains(&key) {
                    return Call::Delete { keys: from };
                }
                Call::Move { from, key, value }
            }
            45..53 => Call::Delete { keys: self.keys() },
            53..73 => Call::Read { keys: self.keys(), consistent: true },
            73..82 => Call::Read { keys: self.keys(), consistent: false },
            82..86 => {
                let back = self.rng.below(20).cast_signed();
                Call::ReadAt { keys: self.keys(), revision: (self.newest - back).max(1) }
            }
            86..87 => Call::Compact { revision: (self.newest - 15).max(1) },
            87..90 => {
                let lease = i64::try_from(value).unwrap() + 1000;
                Call::Grant { lease, ttl: 2 + self.rng.below(4).cast_signed() }
            }
            90..95 => match lease {
                Some(lease) => Call::Put { key: self.key(), value, lease },
                None => Call::Put { key: self.key(), value, lease: 0 },
            },
            95..99 => match lease {
                Some(lease) => Call::Renew { lease },
                None => Call::Read { keys: 0..KEYS, consistent: true },
            },
            _ => match lease {
                Some(lease) => Call::Revoke { lease },
                None => Call::Delete { keys: 0..KEYS },
            },
        }
    }
}

fn item(kv: &KeyValue) -> (u8, Item) {
    let item = Item {
        value: value_number(&kv.value),
        create: kv.create_revision.0,
        modified: kv.mod_revision.0,
        version: kv.version,
        lease: kv.lease,
    };
    (u8::try_from(number(&kv.key)).unwrap(), item)
}

fn items<'a>(kvs: impl IntoIterator<Item = &'a KeyValue>) -> Items {
    kvs.into_iter().map(item).collect()
}

fn put(number: u8, text: u64, lease: i64) -> Op {
    Op::Put { key: key(number).into(), value: value(text).into(), lease, prev_kv: true }
}

fn delete(keys: &Range<u8>) -> Op {
    Op::Delete { range: key_range(keys), prev_kv: true }
}

fn txn(call: &Call) -> Option<Txn> {
    let success = match call {
        Call::Put { key, value, lease } => vec![put(*key, *value, *lease)],
        Call::Cas { key: number, expected, value } => {
            let compare = Compare {
                range: KeyRange::key(key(*number)),
                target: Target::ModRevision(*expected),
                ordering: Ordering::Equal,
            };
            let read = RangeRequest::new(KeyRange::key(key(*number)));
            return Some(Txn {
                compare: vec![compare],
                success: vec![put(*number, *value, 0)],
                failure: vec![Op::Range(read)],
                ..Txn::default()
            });
        }
        Call::Move { from, key, value } => vec![delete(from), put(*key, *value, 0)],
        Call::Delete { keys } => vec![delete(keys)],
        _ => return None,
    };
    Some(Txn { success, ..Txn::default() })
}

fn answer(response: &TxnResponse) -> Response {
    let before = |before: &Option<KeyValue>| before.as_ref().map(|kv| item(kv).1);
    match &response.responses[..] {
        [OpResponse::Put(kv)] => Response::Put(before(kv)),
        [OpResponse::Range(found)] => Response::Differs(found.kvs.first().map(|kv| item(kv).1)),
        [OpResponse::Delete(_, gone)] => Response::Deleted(items(gone)),
        [OpResponse::Delete(_, gone), OpResponse::Put(kv)] => {
            Response::Moved(items(gone), before(kv))
        }
        other => panic!("answered to something else: {other:?}"),
    }
}

async fn ask(store: &Arc<dyn Backend>, call: &Call) -> Result<Reply, StoreError> {
    if let Some(txn) = txn(call) {
        let response = store.txn(txn).await?;
        return Ok(Reply { revision: response.revision.0, answer: answer(&response) });
    }
    let done = |revision| Reply { revision, answer: Response::Done };
    match call {
        Call::Read { keys, consistent } => {
            if *consistent {
                store.read_index().await?;
            }
            let found = store.range(RangeRequest::new(key_range(keys))).await?;
            Ok(Reply { revision: found.revision.0, answer: Response::Found(items(&found.kvs)) })
        }
        Call::ReadAt { keys, revision } => {
            let request = RangeRequest::new(key_range(keys));
            let request = RangeRequest { revision: Some(Revision(*revision)), ..request };
            let found = store.range(request).await?;
            Ok(Reply { revision: found.revision.0, answer: Response::Found(items(&found.kvs)) })
        }
        Call::Grant { lease, ttl } => store.lease_grant(*lease, *ttl).await.map(|_| done(0)),
        Call::Renew { lease } => store.lease_keep_alive(*lease).await.map(|_| done(0)),
        Call::Revoke { lease } => store.lease_revoke(*lease).await.map(|r| done(r.0)),
        Call::Compact { revision } => store.compact(Revision(*revision)).await.map(|()| done(0)),
        _ => unreachable!("{call:?} is a transaction"),
    }
}

/// Sends a request; returns the outcome.
pub(super) async fn perform(store: &Arc<dyn Backend>, call: &Call) -> Outcome {
    match ask(store, call).await {
        Ok(reply) => Outcome::Reply(reply),
        Err(
            error @ (StoreError::Unavailable(_) | StoreError::Stopped(_) | StoreError::Overrun),
        ) => Outcome::Unknown(error.to_string()),
        Err(error) => Outcome::Refused(error.to_string()),
    }
}
