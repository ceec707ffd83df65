//! Watchers: a witness of all keys at each machine, with which responses are compared, and watchers
//! of clients that move between machines.

use std::ops::Range;
use std::time::Duration;

use super::clients::KEYS;
use super::world::{Door, Stream, WatchedEvent, Witnessed, World, key_range};
use crate::contract::{Revision, StoreError, WatchBatch, Watcher};
use crate::log::sim::Rng;

/// Number of earlier revisions that a machine's witness reads, to compare them with other machines.
const LOOK_BACK: i64 = 20;

/// Records every revision that a machine delivers, and checks that all deliver the same.
pub(super) fn witness(world: &World, door: Door) {
    let (spawner, world) = (world, world.clone());
    spawner.spawn(spawner.watchers(), async move {
        let mut back = LOOK_BACK;
        loop {
            let newest = world.book().newest();
            let start = (newest + 1 - back).max(2);
            match door.store.watch(key_range(&(0..KEYS)), Some(Revision(start))).await {
                Ok(watcher) => {
                    record_all(&world, &door, watcher).await;
                    back = LOOK_BACK;
                }
                Err(StoreError::Compacted { oldest, .. }) => {
                    if oldest > newest + 1 {
                        let text =
                            format!("revisions {newest} to {oldest} were delivered by no watch");
                        return world.book().blame(text);
                    }
                    back = newest + 1 - oldest;
                }
                Err(_) => return,
            }
            tokio::select! {
                biased;
                () = door.gone.requested() => return,
                () = tokio::time::sleep(Duration::from_millis(1)) => {}
            }
        }
    });
}

async fn record_all(world: &World, door: &Door, mut watcher: Watcher) {
    // Also after the machine has stopped: events in the channel were delivered before.
    while let Some(Ok(batch)) = watcher.batches.recv().await {
        world.trace().record(format_args!("{} shows up to {}", door.machine, batch.revision.0));
        record_batch(world, door.machine, &batch);
    }
}

fn record_batch(world: &World, machine: usize, batch: &WatchBatch) {
    let at = world.trace().now();
    let mut book = world.book();
    let applied_state = book.next_place();
    let seen: Vec<WatchedEvent> = batch.events.iter().map(WatchedEvent::of).collect();
    for events in seen.chunk_by(|a, b| a.revision == b.revision) {
        let mut events = events.to_vec();
        events.sort_by_key(|event| event.key);
        let revision = events[0].revision;
        match book.seen.get(&revision) {
            // The previous version may have been compacted by now.
            Some(known) if !same(&known.events, &events) => {
                let text = format!(
                    "machine {machine} shows as revision {revision} {events:?}, but it was {:?}",
                    known.events
                );
                book.blame(text);
            }
            Some(_) => {}
            None => drop(book.seen.insert(revision, Witnessed { events, applied_state, at })),
        }
    }
}

fn same(known: &[WatchedEvent], events: &[WatchedEvent]) -> bool {
    known.len() == events.len()
        && known
            .iter()
            .zip(events)
            .all(|(a, b)| *a == WatchedEvent { before: a.before, ..b.clone() })
}

/// Starts a client's watcher.
pub(super) fn start(world: &World, seed: u64) {
    let watching = world.clone();
    world.spawn(world.watchers(), async move { watch(watching, Rng(seed)).await });
}

fn begin(world: &World, keys: &Range<u8>, first: i64) -> usize {
    let mut book = world.book();
    let (keys, told) = (keys.clone(), first - 1);
    book.streams.push(Stream { keys, first, told, events: Vec::new(), ended: false });
    book.streams.len() - 1
}

async fn watch(world: World, mut rng: Rng) {
    let stop = world.watchers().shutdown().clone();
    let first = rng.below(u64::from(KEYS)) as u8;
    let keys = if rng.chance(50) { 0..KEYS } else { first..first + 1 };
    let range = key_range(&keys);
    let mut stream: Option<usize> = None;
    while !stop.is_requested() {
        let machine = rng.below(5) as usize;
        let door = world.some_door(machine, &mut rng).await;
        let start = match stream {
            Some(stream) => Some(world.book().streams[stream].told + 1),
            None if rng.chance(50) => {
                Some((world.book().newest() - rng.below(20).cast_signed()).max(1))
            }
            None => None,
        };
        world.trace().record(format_args!("watch of {keys:?} at {machine} from {start:?}"));
        match door.store.watch(range.clone(), start.map(Revision)).await {
            Ok(watcher) => {
                let stream = *stream.get_or_insert_with(|| {
                    begin(&world, &keys, start.unwrap_or_else(|| door.store.revision().0 + 1))
                });
                // Sometimes a client moves to another machine by itself.
                let stay = Duration::from_millis(if rng.chance(30) { 1500 } else { 60_000 });
                let followed = follow(&world, stream, watcher);
                tokio::select! {
                    biased;
                    () = door.gone.requested() => {}
                    () = stop.requested() => {}
                    _ = tokio::time::timeout(stay, followed) => {}
                }
            }
            Err(StoreError::Compacted { .. }) => {
                if let Some(stream) = stream.take() {
                    world.book().streams[stream].ended = true;
                }
            }
            Err(_) => {}
        }
        tokio::time::sleep(Duration::from_millis(rng.below(100))).await;
    }
}

async fn follow(world: &World, stream: usize, mut watcher: Watcher) {
    while let Some(Ok(batch)) = watcher.batches.recv().await {
        world.trace().record(format_args!(
            "watch {stream}: {} events, up to {}",
            batch.events.len(),
            batch.revision.0
        ));
        let mut book = world.book();
        let wrong = {
            let stream = &mut book.streams[stream];
            let before = stream.told;
            stream.events.extend(batch.events.iter().map(WatchedEvent::of));
            stream.told = batch.revision.0.max(before);
            (batch.revision.0 < before)
                .then(|| format!("a watch was told {before}, then {}", batch.revision.0))
        };
        if let Some(wrong) = wrong {
            book.blame(wrong);
        }
    }
}
