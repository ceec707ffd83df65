//! Watchers that are older than the ring: the events they see, and how they return to the ring.

use super::*;
use crate::registry::objects::Objects;
use crate::registry::selection::Selection;
use crate::registry::storage::{Deletion, Written};
use crate::registry::watch_cache::{EventType, Filter};
use api::schema::Schema;
use api::{Gvr, Object};
use base::{Shutdown, Tasks};
use serde_json::json;

/// More changes than any ring keeps.
const MANY: i64 = 1500;

struct World {
    objects: Arc<Objects>,
    row: Arc<Resource>,
    tasks: Tasks,
}

fn world() -> World {
    let tasks = Tasks::new(Shutdown::new());
    let objects = Objects::new(store::open_memory_with(&tasks), None, Schema::builtin(), &tasks);
    let row = objects.row(&Gvr::new("", "v1", "configmaps")).unwrap();
    World { objects, row, tasks }
}

impl World {
    /// Creates (version 0) or changes the map; returns its new version.
    async fn write(&self, name: &str, label: &str, version: i64) -> i64 {
        let value = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name,
            "namespace": "n", "uid": "u", "labels": {"l": label}}, "data": {"a": "b".repeat(600)}});
        let storage = self.objects.storage();
        let written = match version {
            0 => storage.create(&self.row, &value).await,
            version => storage.write(&self.row, &value, version).await,
        };
        match written.unwrap() {
            Written::Done(object) => object.resource_version,
            Written::Changed(_) => panic!("{name} is not at {version}"),
        }
    }

    /// Changes the map often; returns its new version.
    async fn write_often(&self, name: &str, mut version: i64) -> i64 {
        for number in 0..MANY {
            version = self.write(name, if number % 2 == 0 { "even" } else { "odd" }, version).await;
        }
        version
    }

    async fn end(self) {
        self.tasks.shutdown().request();
        self.tasks.drain(std::time::Duration::from_secs(5)).await;
    }
}

/// Events up to this revision as `filter` sees them.
async fn seen(position: &mut Position, filter: &Filter, until: i64) -> Vec<(EventType, i64)> {
    let (mut all, row) = (Vec::new(), Arc::clone(position.row()));
    loop {
        let (events, revision) = position.next().await.unwrap();
        let seen = events.iter().filter_map(|event| event.seen_by(&row, filter));
        all.extend(seen.map(|(kind, object): (_, Arc<Object>)| (kind, object.resource_version)));
        if revision >= until {
            return all;
        }
    }
}

#[tokio::test]
async fn a_watch_from_before_the_cache_started_sees_each_event_once() {
    let world = world();
    let first = world.write("a", "x", 0).await;
    let last = world.write_often("a", first).await;
    // The cache starts now.
    let cache = world.objects.cache(&world.row);
    cache.wait_for(0).await.unwrap();
    let mut position = cache.watch_from(first, &Filter::default()).await.unwrap();
    let got = seen(&mut position, &Filter::default(), last).await;
    let want: Vec<_> = (first + 1..=last).map(|v| (EventType::Modified, v)).collect();
    assert_eq!(got, want);
    // The position is in the ring now and sees each further event once.
    let next = world.write("b", "x", 0).await;
    assert_eq!(seen(&mut position, &Filter::default(), next).await, [(EventType::Added, next)]);
    world.end().await;
}

#[tokio::test]
async fn selectors_see_the_previous_state_in_history() {
    let world = world();
    let made = world.write("a", "x", 0).await;
    let left = world.write("a", "y", made).await;
    let back = world.write("a", "x", left).await;
    let storage = world.objects.storage();
    let there = storage.get(&world.row, "n", "a").await.unwrap().unwrap();
    let Deletion::Done(gone) = storage.delete(&world.row, &there).await.unwrap() else {
        panic!("the object changed");
    };
    let cache = world.objects.cache(&world.row);
    cache.wait_for(0).await.unwrap();
    let selection = Selection::parse(&world.row, "l=x", "").unwrap();
    let filter = Filter { selection, ..Filter::default() };
    let mut position = cache.watch_from(made - 1, &filter).await.unwrap();
    assert_eq!(
        seen(&mut position, &filter, gone).await,
        [
            (EventType::Added, made),
            (EventType::Deleted, left),
            (EventType::Added, back),
            (EventType::Deleted, gone)
        ]
    );
    world.end().await;
}

#[tokio::test]
async fn a_position_older_than_the_ring_continues_from_history() {
    let world = world();
    let first = world.write("a", "x", 0).await;
    let cache = world.objects.cache(&world.row);
    cache.wait_for(first).await.unwrap();
    let named = Filter { namespace: "n".into(), name: "a".into(), ..Filter::default() };
    let (_, mut all) = cache.list_and_watch(&Filter::default());
    let (_, mut one) = cache.list_and_watch(&named);
    let last = world.write_often("a", first).await;
    cache.wait_for(last).await.unwrap();
    // Reading without waiting loses no events.
    assert_eq!(one.try_next().0.len(), 0);
    let want: Vec<_> = (first + 1..=last).map(|v| (EventType::Modified, v)).collect();
    assert_eq!(seen(&mut all, &Filter::default(), last).await, want);
    assert_eq!(seen(&mut one, &named, last).await, want);
    world.end().await;
}

#[tokio::test]
async fn compacted_revisions_are_rejected_with_the_oldest_revision() {
    let world = world();
    let first = world.write("a", "x", 0).await;
    let last = world.write_often("a", first).await;
    world.objects.storage().backend().compact(Revision(last - 5)).await.unwrap();
    let cache = world.objects.cache(&world.row);
    cache.wait_for(0).await.unwrap();
    let refused = cache.watch_from(first, &Filter::default()).await.err();
    assert_eq!(refused, Some(last - 5));
    let mut position = cache.watch_from(last - 5, &Filter::default()).await.unwrap();
    assert_eq!(seen(&mut position, &Filter::default(), last).await.len(), 5);
    world.end().await;
}
