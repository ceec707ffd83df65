//! The watches of both sides and the comparison of their events.

use std::collections::{BTreeMap, VecDeque};
use std::error::Error;

use bytes::Bytes;
use proto::etcdserverpb as pb;
use proto::mvccpb::Event;
use tonic::transport::Channel;

use crate::questions::{Random, ServerState, watch};
use crate::stream::{Received, Stream};

/// The id of the watch of all keys.
const ALL: i64 = 1000;

/// Maximum number of other watches.
const OTHERS: usize = 8;

/// A change that a watch may have to deliver.
struct Change {
    revision: i64,
    key: Bytes,
    is_put: bool,
}

impl Change {
    fn of(event: &Event) -> Option<Self> {
        let kv = event.kv.as_ref()?;
        Some(Self { revision: kv.mod_revision, key: kv.key.clone(), is_put: event.r#type == 0 })
    }
}

/// A watch that exists on both sides.
struct Running {
    request: pb::WatchCreateRequest,
    /// Its start revision.
    start: i64,
    /// Newest revision that it must have delivered.
    due: i64,
}

impl Running {
    fn wants(&self, change: &Change) -> bool {
        let (key, end) = (&self.request.key, &self.request.range_end);
        let within = match end.as_ref() {
            [] if key.is_empty() => change.key.as_ref() == [0],
            [] => change.key == key,
            [0] => change.key >= key,
            end => change.key >= key && change.key.as_ref() < end,
        };
        let filtered = self.request.filters.contains(&i32::from(!change.is_put));
        within && !filtered && change.revision >= self.start
    }

    fn record_change(&mut self, change: &Change) {
        if self.wants(change) {
            self.due = self.due.max(change.revision);
        }
    }
}

/// Two streams, one per side, with the same watches.
struct KeyValueRef {
    sides: [Stream; 2],
    running: BTreeMap<i64, Running>,
}

impl KeyValueRef {
    fn open(channels: [Channel; 2]) -> Self {
        Self { sides: channels.map(Stream::open), running: BTreeMap::new() }
    }

    /// Creates a watch on both sides; returns its id unless both refused it.
    async fn create(
        &mut self,
        requests: [pb::WatchCreateRequest; 2],
        differences: &mut Vec<String>,
    ) -> Result<Option<i64>, Box<dyn Error>> {
        let [one, other] = &mut self.sides;
        let [request, second] = requests;
        let (a, b) = tokio::try_join!(one.create(request.clone()), other.create(second))?;
        if a != b {
            differences.push(format!("{request:?}\n  one:   {a:?}\n  other: {b:?}"));
        }
        if a.canceled || b.canceled {
            return Ok(None);
        }
        let newest = a.header.map_or(0, |header| header.revision);
        let start = if request.start_revision > 0 { request.start_revision } else { newest + 1 };
        self.running.insert(a.watch_id, Running { request, start, due: 0 });
        Ok(Some(a.watch_id))
    }

    async fn cancel(
        &mut self,
        id: i64,
        differences: &mut Vec<String>,
    ) -> Result<(), Box<dyn Error>> {
        let [one, other] = &mut self.sides;
        let (a, b) = tokio::try_join!(one.cancel(id), other.cancel(id))?;
        if a != b {
            differences.push(format!("the end of a watch\n  one:   {a:?}\n  other: {b:?}"));
        }
        self.compare(differences);
        self.running.remove(&id);
        Ok(())
    }

    /// Waits until all watches have delivered their events.
    async fn reach(&mut self) -> Result<(), Box<dyn Error>> {
        let [one, other] = &mut self.sides;
        for (id, watch) in self.running.iter().filter(|(_, watch)| watch.due > 0) {
            tokio::try_join!(one.reach(*id, watch.due), other.reach(*id, watch.due))?;
        }
        Ok(())
    }

    /// Compares the received events and clears them.
    fn compare(&mut self, differences: &mut Vec<String>) -> usize {
        let [one, other] = &mut self.sides;
        let (received, others) =
            (std::mem::take(&mut one.received), std::mem::take(&mut other.received));
        if received != others {
            for id in received.keys().chain(others.keys().filter(|id| !received.contains_key(id))) {
                let nothing = Received::default();
                let (a, b) =
                    (received.get(id).unwrap_or(&nothing), others.get(id).unwrap_or(&nothing));
                if a != b {
                    let request = self.running.get(id).map(|watch| &watch.request);
                    differences.push(format!("watch {id}: {request:?}\n{}", what_differs(a, b)));
                }
            }
        }
        received.values().map(|received| received.events.len()).sum()
    }
}

fn what_differs(a: &Received, b: &Received) -> String {
    let (one, other) = (&a.events, &b.events);
    let at = one.iter().zip(other).position(|(a, b)| a != b).unwrap_or(one.len().min(other.len()));
    format!(
        "  one:   event {at} of {}: {:?}, ended {:?}\n  other: event {at} of {}: {:?}, ended {:?}",
        one.len(),
        one.get(at),
        a.canceled,
        other.len(),
        other.get(at),
        b.canceled
    )
}

/// All watches. Watches that start in the past or at the current revision receive progress
/// requests. etcd answers those for a stream only when its last watch has started and none was
/// cancelled by a compaction, so those watches use a separate stream.
pub(crate) struct Watches {
    begun: KeyValueRef,
    apart: KeyValueRef,
    history: VecDeque<Change>,
    /// Everything up to this revision was delivered and compared.
    synced: i64,
    /// Revision of the last progress request, whose answer may still arrive.
    settled: i64,
    /// Number of compared events.
    pub(crate) events: usize,
}

impl Watches {
    pub(crate) async fn open(
        channels: [Channel; 2],
        differences: &mut Vec<String>,
    ) -> Result<Self, Box<dyn Error>> {
        let begun = KeyValueRef::open(channels.clone());
        let apart = KeyValueRef::open(channels);
        let mut watches =
            Self { begun, apart, history: VecDeque::new(), synced: 1, settled: 1, events: 0 };
        let all = pb::WatchCreateRequest {
            key: vec![0].into(),
            range_end: vec![0].into(),
            prev_kv: true,
            watch_id: ALL,
            ..Default::default()
        };
        watches.begun.create([all.clone(), all], differences).await?;
        Ok(watches)
    }

    /// Waits until everything up to the newest revision was delivered, and compares it.
    pub(crate) async fn sync(
        &mut self,
        known: &ServerState,
        differences: &mut Vec<String>,
    ) -> Result<(), Box<dyn Error>> {
        if known.newest > self.synced {
            let [one, other] = &mut self.begun.sides;
            tokio::try_join!(one.reach(ALL, known.newest), other.reach(ALL, known.newest))?;
            let events = one.received.get(&ALL).map_or(&[][..], |received| &received.events);
            for change in events.iter().filter_map(Change::of) {
                for watch in self.begun.running.values_mut().chain(self.apart.running.values_mut())
                {
                    watch.record_change(&change);
                }
                self.history.push_back(change);
            }
            self.begun.reach().await?;
            self.apart.reach().await?;
            self.synced = known.newest;
        }
        self.events += self.begun.compare(differences) + self.apart.compare(differences);
        Ok(())
    }

    /// Whether a key was deleted and created again in a revision. etcd's compaction to that
    /// revision loses the key, and the next read of it terminates etcd.
    pub(crate) fn has_anew(&self, revision: i64) -> bool {
        let first = self.history.partition_point(|change| change.revision < revision);
        let of = self.history.range(first..).take_while(|change| change.revision == revision);
        let deleted: Vec<&Bytes> = of.clone().filter(|c| !c.is_put).map(|c| &c.key).collect();
        of.filter(|change| change.is_put).any(|change| deleted.contains(&&change.key))
    }

    /// Updates the watches after a compaction.
    pub(crate) fn forget(&mut self, compacted: i64) {
        let behind = self.history.partition_point(|change| change.revision < compacted);
        self.history.drain(..behind);
    }

    /// Cancels some watches, creates others, and requests progress unless nothing was written since
    /// the last request; all watches must be synced.
    pub(crate) async fn change(
        &mut self,
        random: &mut Random,
        known: &ServerState,
        differences: &mut Vec<String>,
    ) -> Result<(), Box<dyn Error>> {
        if known.newest <= self.settled {
            return Ok(());
        }
        for pair in [&mut self.begun, &mut self.apart] {
            let others: Vec<i64> = pair.running.keys().copied().filter(|id| *id != ALL).collect();
            for id in others {
                if random.one_in(3) {
                    pair.cancel(id, differences).await?;
                }
            }
        }
        for _ in 0..1 + random.below(3) {
            let id = random.signed(7);
            let request = watch(random, known, id);
            let start = request.start_revision;
            let is_compacted = start > 0 && start < known.compacted;
            let pair = if is_compacted || start > known.newest {
                &mut self.apart
            } else {
                &mut self.begun
            };
            if pair.running.len() > OTHERS {
                continue;
            }
            let Some(id) = pair.create([request.clone(), request], differences).await? else {
                continue;
            };
            if is_compacted {
                let [one, other] = &mut pair.sides;
                tokio::try_join!(one.end(id), other.end(id))?;
                pair.compare(differences);
                pair.cancel(id, differences).await?;
            } else if let Some(watch) = pair.running.get_mut(&id) {
                self.history.iter().for_each(|change| watch.record_change(change));
            }
        }
        self.wait_for_progress(known, differences).await
    }

    /// Requests progress of the watches, whose events were delivered before.
    async fn wait_for_progress(
        &mut self,
        known: &ServerState,
        differences: &mut Vec<String>,
    ) -> Result<(), Box<dyn Error>> {
        self.settled = known.newest;
        let [one, other] = &mut self.begun.sides;
        tokio::try_join!(
            one.wait_for_progress(known.newest),
            other.wait_for_progress(known.newest)
        )?;
        for (id, watch) in self.begun.running.iter().filter(|(_, watch)| watch.due > 0) {
            for (name, side) in [("one", &*one), ("other", &*other)] {
                if side.seen.get(id).is_none_or(|seen| *seen < watch.due) {
                    differences.push(format!(
                        "{name} says that watch {id} is at {}, and did not tell of {}",
                        known.newest, watch.due
                    ));
                }
            }
        }
        self.sync(known, differences).await
    }

    /// Resumes the watches on new connections, each after its last event.
    pub(crate) async fn resume(
        &mut self,
        channels: [Channel; 2],
        differences: &mut Vec<String>,
    ) -> Result<(), Box<dyn Error>> {
        // These are not resumed; events that only one side has delivered are lost with the
        // connection.
        self.apart = KeyValueRef::open(channels.clone());
        let before = std::mem::replace(&mut self.begun, KeyValueRef::open(channels));
        let [one, other] = before.sides;
        for (id, watch) in &before.running {
            let next =
                |side: &Stream| side.seen.get(id).map_or(0, |seen| *seen).max(self.synced) + 1;
            let from = |next: i64| pb::WatchCreateRequest {
                start_revision: next,
                watch_id: *id,
                ..watch.request.clone()
            };
            let requests = [from(next(&one)), from(next(&other))];
            if let Some(running) = self.begun.create(requests, differences).await?
                && let Some(running) = self.begun.running.get_mut(&running)
            {
                running.start = self.synced + 1;
                running.due = watch.due;
            }
        }
        for (new, old) in self.begun.sides.iter_mut().zip([one, other]) {
            for (id, received) in old.received {
                let new = new.received.entry(id).or_default();
                let later = std::mem::replace(&mut new.events, received.events);
                new.events.extend(later);
            }
            for (id, seen) in old.seen {
                let new = new.seen.entry(id).or_insert(seen);
                *new = (*new).max(seen);
            }
        }
        Ok(())
    }

    /// After [`Watches::resume`] and a change: waits until the watches are established again.
    pub(crate) async fn resumed(
        &mut self,
        known: &ServerState,
        differences: &mut Vec<String>,
    ) -> Result<(), Box<dyn Error>> {
        self.sync(known, differences).await?;
        self.wait_for_progress(known, differences).await
    }
}
