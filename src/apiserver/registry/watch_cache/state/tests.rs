//! Events that filters see, and positions that leave the ring.

use super::*;
use crate::registry::{Registry, ResourceSpec, strategy::Plain};
use api::Gvr;
use api::schema::Schema;
use serde_json::json;

fn row() -> Arc<Resource> {
    let mut registry = Registry::new(Arc::new(Schema::new()));
    registry.add(ResourceSpec::custom(
        Gvr::new("x.io", "v1", "things"),
        "Thing",
        true,
        Arc::new(Plain),
    ));
    Arc::clone(registry.row(&Gvr::new("x.io", "v1", "things")).unwrap())
}

fn thing(name: &str, version: i64, label: &str) -> Object {
    let value = json!({"kind": "Thing", "apiVersion": "x.io/v1", "metadata":
        {"name": name, "namespace": "n", "labels": {"l": label}, "resourceVersion": version.to_string()}});
    Object::from_value(value).unwrap()
}

fn state() -> State {
    let mut state = State::default();
    state.load(BTreeMap::new(), 1);
    state.apply(vec![("n/a".into(), Some(thing("a", 2, "x")), 2)], 2);
    state.apply(vec![("n/a".into(), Some(thing("a", 3, "y")), 3)], 3);
    state.apply(vec![("n/a".into(), None, 4)], 4);
    state
}

#[test]
fn event_types_follow_from_the_selection_before_and_after() {
    let (row, state) = (row(), state());
    let seen = |selector: &str| -> Vec<String> {
        let filter = Filter {
            selection: Selection::parse(&row, selector, "").unwrap(),
            ..Filter::default()
        };
        let (events, _, _) = state.events_from(state.sequence_after(1).unwrap(), 10).unwrap();
        let seen = events.iter().filter_map(|e| e.seen_by(&row, &filter));
        seen.map(|(t, o)| format!("{t:?} {} {}", o.resource_version, o.label("l").unwrap()))
            .collect()
    };
    assert_eq!(seen(""), ["Added 2 x", "Modified 3 y", "Deleted 4 y"]);
    assert_eq!(seen("l=x"), ["Added 2 x", "Deleted 3 x"]);
    assert_eq!(seen("l=y"), ["Added 3 y", "Deleted 4 y"]);
}

#[test]
fn a_watch_starts_after_its_revision_and_not_before_the_oldest() {
    let state = state();
    let revisions = |from: i64| -> Vec<i64> {
        let (events, _, _) = state.events_from(state.sequence_after(from).unwrap(), 10).unwrap();
        events.iter().map(|e| e.revision).collect()
    };
    assert_eq!(revisions(2), [3, 4]);
    assert_eq!(revisions(9), Vec::<i64>::new());
    assert_eq!(state.sequence_after(0), Err(1));
}

#[test]
fn a_position_older_than_the_ring_is_lost() {
    let mut state = state();
    let start = state.sequence_after(1).unwrap();
    for version in 5..i64::try_from(CAPACITY).unwrap() + 10 {
        state.apply(vec![("n/b".into(), Some(thing("b", version, "z")), version)], version);
    }
    assert!(state.events_from(start, 10).is_none());
    assert!(state.sequence_after(4).is_err());
}

#[tokio::test(start_paused = true)]
async fn the_ring_shrinks_a_minute_after_a_burst() {
    let mut state = state();
    let put = |state: &mut State, version| {
        let change = ("n/b".into(), Some(thing("b", version, "z")), version);
        state.apply(vec![change], version);
    };
    (5..405).for_each(|version| put(&mut state, version));
    tokio::time::advance(RING_AGE_MAX).await;
    put(&mut state, 405);
    assert!(state.sequence_after(4).is_ok());
    tokio::time::advance(Duration::from_secs(1)).await;
    put(&mut state, 406);
    let oldest = 406 - i64::try_from(RING_EVENTS_MIN).unwrap();
    assert_eq!(state.sequence_after(4), Err(oldest));
}

#[test]
fn pages_are_in_key_order() {
    let row = row();
    let mut state = State::default();
    state.load(BTreeMap::new(), 1);
    for name in ["c", "a", "b"] {
        state.apply(vec![(format!("n/{name}").into(), Some(thing(name, 2, "x")), 2)], 2);
    }
    let page = state.list(&row, &Filter { namespace: "n".into(), ..Filter::default() }, None, 2);
    let names: Vec<_> = page.items.iter().map(|o| o.key.name.to_string()).collect();
    assert_eq!(
        (names, page.last.as_deref(), page.remaining),
        (vec!["a".into(), "b".into()], Some("n/b"), Some(1))
    );
    let next =
        state.list(&row, &Filter { namespace: "n".into(), ..Filter::default() }, Some("n/b\0"), 2);
    assert_eq!(next.items.len(), 1);
}

#[test]
fn only_lines_of_the_newest_changes_are_kept() {
    let mut state = State::default();
    state.load(BTreeMap::new(), 1);
    let line = |text: &'static str| move || Bytes::from_static(text.as_bytes());
    let mut events = Vec::new();
    for revision in 2..2 + i64::try_from(LINES_MAX).unwrap() + 1 {
        let change = ("n/a".into(), Some(thing("a", revision, "x")), revision);
        let event = state.apply(vec![change], revision).remove(0);
        assert_eq!(event.json_line(line("first")), "first");
        events.push(event);
    }
    assert_eq!(events[0].json_line(line("second")), "second");
    assert_eq!(events[1].json_line(line("second")), "first");
    assert_eq!(events[LINES_MAX].json_line(line("second")), "first");
}
