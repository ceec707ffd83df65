//! Properties of etcd's key space: revisions, versions, comparisons, deletions, leases, compaction.

use super::{Command, *};
use crate::contract::{
    Alarm, Compare, Event, KeyRange, Op, OpResponse, Ordering, RangeRequest, Revision, StoreError,
    Target, Txn, TxnResponse,
};

fn put(key: &str, value: &str) -> Op {
    Op::Put { key: key.to_owned().into(), value: value.to_owned().into(), lease: 0, prev_kv: true }
}

fn delete(range: KeyRange) -> Op {
    Op::Delete { range, prev_kv: true }
}

fn txn(success: Vec<Op>) -> Command {
    Command::Txn(Txn { success, ..Txn::default() })
}

fn apply(state: &mut State, command: &Command) -> Result<TxnResponse, StoreError> {
    match state.apply(command, &mut Vec::new())? {
        Outcome::Txn(response) => Ok(response),
        Outcome::Done(revision) => {
            Ok(TxnResponse { succeeded: true, responses: Vec::new(), revision })
        }
    }
}

fn written(writes: &[(&str, &str)]) -> State {
    let mut state = State::default();
    for (key, value) in writes {
        apply(&mut state, &txn(vec![put(key, value)])).unwrap();
    }
    state
}

fn values(
    state: &State,
    range: KeyRange,
    revision: i64,
) -> Result<Vec<(String, String)>, StoreError> {
    let text = |bytes: &bytes::Bytes| String::from_utf8(bytes.to_vec()).unwrap();
    let request = RangeRequest { revision: Some(Revision(revision)), ..RangeRequest::new(range) };
    Ok(state.range(&request)?.kvs.iter().map(|kv| (text(&kv.key), text(&kv.value))).collect())
}

fn all() -> KeyRange {
    KeyRange { start: [0][..].into(), end: [0][..].into() }
}

#[test]
fn the_first_write_has_revision_2_and_versions_count_from_1() {
    let state = written(&[("a", "1"), ("b", "1"), ("a", "2")]);
    assert_eq!(State::default().revision(), 1);
    let found = state.range(&RangeRequest::new(KeyRange::key("a"))).unwrap();
    assert_eq!(found.revision, Revision(4));
    let kv = &found.kvs[0];
    assert_eq!((kv.create_revision.0, kv.mod_revision.0, kv.version), (2, 4, 2));
}

#[test]
fn a_key_created_again_starts_at_version_1_with_a_new_creation() {
    let mut state = written(&[("a", "1"), ("a", "2")]);
    let gone = apply(&mut state, &txn(vec![delete(KeyRange::key("a"))])).unwrap();
    assert!(matches!(&gone.responses[0], OpResponse::Delete(1, prev) if prev[0].value == "2"));
    assert_eq!(gone.revision, Revision(4));
    apply(&mut state, &txn(vec![put("a", "3")])).unwrap();
    let kv = state.range(&RangeRequest::new(KeyRange::key("a"))).unwrap().kvs.remove(0);
    assert_eq!((kv.create_revision.0, kv.mod_revision.0, kv.version), (5, 5, 1));
    assert_eq!(values(&state, all(), 4).unwrap(), []);
}

#[test]
fn a_transaction_without_changes_takes_no_revision() {
    let mut state = written(&[("a", "1")]);
    assert_eq!(
        apply(&mut state, &txn(vec![delete(KeyRange::prefix("x"))])).unwrap().revision,
        Revision(2)
    );
    assert_eq!(apply(&mut state, &txn(vec![])).unwrap().revision, Revision(2));
}

#[test]
fn a_transaction_has_one_revision_and_reads_its_own_writes() {
    let mut state = written(&[("a", "1")]);
    let read = Op::Range(RangeRequest::new(all()));
    let response = apply(
        &mut state,
        &txn(vec![put("b", "2"), put("c", "3"), delete(KeyRange::key("a")), read]),
    )
    .unwrap();
    let OpResponse::Range(found) = &response.responses[3] else { panic!("{response:?}") };
    assert_eq!(
        found.kvs.iter().map(|kv| (kv.key.as_ref(), kv.mod_revision.0)).collect::<Vec<_>>(),
        [(&b"b"[..], 3), (b"c", 3)]
    );
    assert_eq!((response.revision.0, found.revision.0), (3, 3));
}

#[test]
fn limits_and_counts() {
    let state = written(&[("a/1", "x"), ("a/2", "y"), ("a/3", "z"), ("b", "w")]);
    let request = RangeRequest { limit: 2, ..RangeRequest::new(KeyRange::prefix("a/")) };
    let found = state.range(&request).unwrap();
    assert_eq!((found.kvs.len(), found.count, found.more), (2, 3, true));
    let found = state.range(&RangeRequest { count_only: true, ..request.clone() }).unwrap();
    assert_eq!((found.kvs.len(), found.count, found.more), (0, 3, false));
    let found = state.range(&RangeRequest { keys_only: true, limit: 3, ..request }).unwrap();
    assert!(found.kvs.iter().all(|kv| kv.value.is_empty()) && !found.more && found.kvs.len() == 3);
    let backwards = KeyRange { start: "b".into(), end: "a".into() };
    assert_eq!(state.range(&RangeRequest::new(backwards)).unwrap().count, 0);
}

#[test]
fn etcds_oldest_revision_is_minus_one_until_something_is_compacted() {
    let mut state = written(&[("a", "1"), ("a", "2")]);
    let read = |state: &State, revision| {
        let request =
            RangeRequest { revision: Some(Revision(revision)), ..RangeRequest::new(all()) };
        let txn = Txn { success: vec![Op::Range(request)], ..Txn::default() };
        state.read_txn(&txn).map(Option::unwrap)
    };
    let found = read(&state, -1).unwrap();
    assert!(matches!(&found.responses[..], [OpResponse::Range(all)] if all.kvs[0].value == "2"));
    assert!(matches!(read(&state, -2), Err(StoreError::Compacted { .. })));
    apply(&mut state, &Command::Compact(2)).unwrap();
    assert!(matches!(read(&state, -1), Err(StoreError::Compacted { .. })));
}

#[test]
fn comparisons_with_present_absent_and_ranges() {
    let state = written(&[("a", "1"), ("b", "2"), ("a", "3")]);
    let holds = |range: KeyRange, target: Target, ordering: Ordering| {
        let txn = Txn { compare: vec![Compare { range, target, ordering }], ..Txn::default() };
        state.read_txn(&txn).unwrap().unwrap().succeeded
    };
    let key = KeyRange::key;
    use Ordering::{Equal, Greater, Less, NotEqual};
    for (range, target, ordering, want) in [
        (key("a"), Target::ModRevision(4), Equal, true),
        (key("a"), Target::ModRevision(2), Equal, false),
        (key("a"), Target::CreateRevision(3), Less, true),
        (key("a"), Target::Version(1), Greater, true),
        (key("a"), Target::Lease(0), Equal, true),
        (key("a"), Target::Value("3".into()), Equal, true),
        (key("a"), Target::Value("2".into()), Greater, true),
        (key("none"), Target::ModRevision(0), Equal, true),
        (key("none"), Target::Version(0), NotEqual, false),
        // etcd: an absent key has no value, so any comparison with one fails.
        (key("none"), Target::Value("".into()), Equal, false),
        (key("none"), Target::Value("x".into()), NotEqual, false),
        (all(), Target::CreateRevision(1), Greater, true),
        (all(), Target::CreateRevision(2), Greater, false),
        (KeyRange::prefix("zzz"), Target::Version(0), Equal, true),
    ] {
        assert_eq!(
            holds(range.clone(), target.clone(), ordering),
            want,
            "{range:?} {ordering:?} {target:?}"
        );
    }
}

#[test]
fn nested_comparisons_see_the_state_before_the_transaction() {
    let mut state = written(&[]);
    let absent = Compare {
        range: KeyRange::key("a"),
        target: Target::Version(0),
        ordering: Ordering::Equal,
    };
    let inner = Txn { compare: vec![absent], success: vec![put("b", "inner")], ..Txn::default() };
    let response = apply(&mut state, &txn(vec![put("a", "1"), Op::Txn(inner)])).unwrap();
    assert!(matches!(&response.responses[1],
            OpResponse::Txn(t) if t.succeeded && t.revision == Revision(2)));
    assert_eq!(
        values(&state, all(), 2).unwrap(),
        [("a".into(), "1".into()), ("b".into(), "inner".into())]
    );
}

#[test]
fn one_key_written_twice_is_refused() {
    let nested = |then: Vec<Op>, otherwise: Vec<Op>| {
        Op::Txn(Txn { success: then, failure: otherwise, ..Txn::default() })
    };
    for (ops, refused) in [
        (vec![put("a", "1"), put("b", "1")], false),
        (vec![put("a", "1"), put("a", "2")], true),
        (vec![delete(KeyRange::prefix("a")), put("ab", "2")], true),
        (vec![delete(KeyRange::prefix("a")), delete(KeyRange::key("ab"))], false),
        (vec![put("a", "1"), nested(vec![put("a", "2")], vec![])], true),
        (vec![nested(vec![put("a", "2")], vec![put("a", "3")])], false),
        (vec![nested(vec![put("a", "2")], vec![]), nested(vec![put("a", "3")], vec![])], true),
        (vec![nested(vec![delete(KeyRange::prefix("a"))], vec![]), put("a", "1")], true),
        // etcd does not consider the open end of the range.
        (vec![nested(vec![delete(all())], vec![]), put("a", "1")], false),
    ] {
        let request = Txn { success: ops.clone(), ..Txn::default() };
        assert_eq!(
            matches!(check_conflicts(&request), Err(StoreError::DuplicateKey)),
            refused,
            "{ops:?}"
        );
    }
}

#[test]
fn a_refused_transaction_changes_nothing() {
    let mut state = written(&[("a", "1")]);
    let unknown = Op::Put { key: "b".into(), value: "2".into(), lease: 77, prev_kv: false };
    assert!(matches!(
        apply(&mut state, &txn(vec![put("a", "2"), unknown])),
        Err(StoreError::LeaseNotFound)
    ));
    let future =
        Op::Range(RangeRequest { revision: Some(Revision(9)), ..RangeRequest::new(all()) });
    let error = apply(&mut state, &txn(vec![put("a", "2"), future])).unwrap_err();
    assert!(matches!(error, StoreError::Future { requested: 9, newest: 2 }), "{error:?}");
    assert_eq!(state.revision(), 2);
    assert_eq!(values(&state, all(), 2).unwrap(), [("a".into(), "1".into())]);
}

#[test]
fn compaction_frees_at_once_and_keeps_what_later_reads_and_watches_need() {
    let mut state = written(&[("a", "11"), ("a", "22"), ("b", "33")]);
    apply(&mut state, &txn(vec![delete(KeyRange::key("b"))])).unwrap();
    apply(&mut state, &txn(vec![put("a", "44")])).unwrap();
    assert_eq!(state.size().memory, 2 + 8);
    assert!(matches!(
        apply(&mut state, &Command::Compact(7)),
        Err(StoreError::Future { requested: 7, newest: 6 })
    ));
    apply(&mut state, &Command::Compact(5)).unwrap();
    assert!(matches!(
        apply(&mut state, &Command::Compact(5)),
        Err(StoreError::Compacted { requested: 5, oldest: 5 })
    ));
    assert!(matches!(
        values(&state, all(), 4),
        Err(StoreError::Compacted { requested: 4, oldest: 5 })
    ));
    assert_eq!(values(&state, all(), 5).unwrap(), [("a".into(), "22".into())]);
    assert!(matches!(state.events(4, &all(), 10), Err(StoreError::Compacted { .. })));
    // The deletion at the compacted revision is still delivered (etcd issues 18089 and 19179), with
    // the deleted value.
    let (events, next) = state.events(5, &all(), 10).unwrap();
    let told: Vec<_> = events
        .iter()
        .map(|e| (e.kv.mod_revision.0, e.deleted, e.prev.as_ref().map(|p| p.value.clone())))
        .collect();
    assert_eq!(told, [(5, true, Some("33".into())), (6, false, Some("22".into()))]);
    assert_eq!(next, 7);
    apply(&mut state, &Command::Compact(6)).unwrap();
    assert_eq!(
        state.size().memory,
        1 + 4,
        "b is gone, a keeps 22 as the version before the change at 6"
    );
    assert_eq!(state.size().keys, 1);
}

#[test]
fn a_pinned_state_trims_when_released() {
    let mut state = written(&[("a", "1"), ("a", "2"), ("a", "3")]);
    state.pin();
    apply(&mut state, &Command::Compact(4)).unwrap();
    assert_eq!(state.export(None, 3, 100)[0].1.len(), 2);
    assert!(values(&state, all(), 3).is_err());
    state.unpin();
    assert_eq!(state.export(None, 4, 100)[0].1.len(), 2, "3 and the version before it");
}

#[test]
fn history_comes_in_whole_revisions() {
    let mut state = written(&[("a", "1")]);
    apply(&mut state, &txn(vec![put("b", "1"), put("c", "1"), put("d", "1")])).unwrap();
    apply(&mut state, &txn(vec![put("e", "1")])).unwrap();
    let (events, next) = state.events(1, &all(), 2).unwrap();
    assert_eq!((events.len(), next), (4, 4));
    let (events, next) = state.events(4, &KeyRange::key("a"), 2).unwrap();
    assert_eq!((events.len(), next), (0, 5));
}

#[test]
fn a_lease_takes_its_keys_with_it_in_one_revision() {
    let mut state = written(&[("a", "1")]);
    apply(&mut state, &Command::LeaseGrant { id: 7, ttl: 60 }).unwrap();
    assert!(matches!(
        apply(&mut state, &Command::LeaseGrant { id: 7, ttl: 60 }),
        Err(StoreError::LeaseExists)
    ));
    let leased = |key: &str| Op::Put {
        key: key.to_owned().into(),
        value: "v".into(),
        lease: 7,
        prev_kv: false,
    };
    apply(&mut state, &txn(vec![leased("x"), leased("y"), leased("z")])).unwrap();
    // A put without the lease detaches the key.
    apply(&mut state, &txn(vec![put("y", "2")])).unwrap();
    assert_eq!(apply(&mut state, &Command::LeaseRevoke { id: 7 }).unwrap().revision, Revision(5));
    assert_eq!(
        values(&state, all(), 5).unwrap(),
        [("a".into(), "1".into()), ("y".into(), "2".into())]
    );
    assert!(matches!(
        apply(&mut state, &Command::LeaseRevoke { id: 7 }),
        Err(StoreError::LeaseNotFound)
    ));
}

#[test]
fn lost_revisions_are_never_used_again_and_answer_compacted() {
    let mut state = written(&[("a", "1"), ("a", "2")]);
    apply(&mut state, &Command::Raise { revision: 100 }).unwrap();
    assert_eq!(apply(&mut state, &txn(vec![put("a", "3")])).unwrap().revision, Revision(101));
    assert!(values(&state, all(), 3).is_ok() && values(&state, all(), 100).is_ok());
    assert!(matches!(
        values(&state, all(), 4),
        Err(StoreError::Compacted { requested: 4, oldest: 100 })
    ));
    assert_eq!(state.events(4, &all(), 10).unwrap().0.len(), 1, "a watcher at 3 missed nothing");
    for lost in [5, 100] {
        assert!(
            matches!(state.events(lost, &all(), 10), Err(StoreError::Compacted { .. })),
            "{lost}"
        );
    }
    assert!(state.events(101, &all(), 10).is_ok());
}

#[test]
fn export_and_import_are_inverse() {
    let mut state = written(&[("a", "1"), ("b", "1"), ("a", "2"), ("c", "1")]);
    apply(&mut state, &Command::LeaseGrant { id: 7, ttl: 60 }).unwrap();
    apply(
        &mut state,
        &txn(vec![Op::Put { key: "l".into(), value: "v".into(), lease: 7, prev_kv: false }]),
    )
    .unwrap();
    apply(&mut state, &txn(vec![delete(KeyRange::key("b"))])).unwrap();
    apply(&mut state, &Command::Compact(3)).unwrap();
    let parts = state.export(None, state.revision(), usize::MAX);
    let mut back = State::import(
        state.revision(),
        state.compacted(),
        Vec::new(),
        ClusterData::default(),
        state.leases(),
        parts.into_iter(),
    );
    assert_eq!((back.size().keys, back.size().memory), (state.size().keys, state.size().memory));
    assert_eq!(
        format!("{:?}", back.events(3, &all(), 99)),
        format!("{:?}", state.events(3, &all(), 99))
    );
    apply(&mut back, &Command::LeaseRevoke { id: 7 }).unwrap();
    assert_eq!(
        values(&back, all(), 8).unwrap(),
        [("a".into(), "2".into()), ("c".into(), "1".into())]
    );
}

#[test]
fn a_raised_alarm_refuses_what_it_is_about_until_it_ends() {
    let mut state = State::default();
    let events = &mut Vec::new();
    state.apply(&txn(vec![put("a", "1")]), events).unwrap();
    let alarm = |alarm, raised| Command::Alarm { member: 7, alarm, raised };
    state.apply(&alarm(Alarm::NOSPACE, true), events).unwrap();
    let refused = state.apply(&txn(vec![put("a", "2")]), events);
    assert!(matches!(refused, Err(StoreError::NoSpace(_))));
    let inner = Txn { failure: vec![put("b", "")], ..Txn::default() };
    let refused = state.apply(&txn(vec![Op::Txn(inner)]), events);
    assert!(matches!(refused, Err(StoreError::NoSpace(_))));
    let grant = Command::LeaseGrant { id: 1, ttl: 60 };
    assert!(matches!(state.apply(&grant, events), Err(StoreError::NoSpace(_))));
    state.apply(&txn(vec![delete(KeyRange::key("a"))]), events).unwrap();
    state.apply(&Command::Compact(3), events).unwrap();
    state.apply(&alarm(Alarm::NOSPACE, false), events).unwrap();
    state.apply(&grant, events).unwrap();

    state.apply(&alarm(Alarm::CORRUPT, true), events).unwrap();
    for command in [
        txn(vec![delete(KeyRange::key("a"))]),
        Command::LeaseRevoke { id: 1 },
        Command::LeaseGrant { id: 2, ttl: 60 },
    ] {
        assert!(matches!(state.apply(&command, events), Err(StoreError::Corrupt)), "{command:?}");
    }
    assert_eq!(state.revision(), 3);
    state.apply(&alarm(Alarm::CORRUPT, false), events).unwrap();
    state.apply(&Command::LeaseRevoke { id: 1 }, events).unwrap();
}

/// etcd does not detect that a deletion with the end `[0]` overlaps a put, and executes both in
/// order.
#[test]
fn a_key_may_be_written_and_deleted_in_one_revision_up_to_the_open_end() {
    let mut state = State::default();
    apply(&mut state, &txn(vec![put("a", "0")])).unwrap();
    let to_the_end = || delete(KeyRange { start: "a".into(), end: [0][..].into() });
    let both = txn(vec![put("a", "1"), put("n", "1"), to_the_end(), put("c", "2")]);
    if let Command::Txn(both) = &both {
        check_conflicts(both).unwrap();
    }
    let mut live = Vec::new();
    state.apply(&both, &mut live).unwrap();
    let show = |events: &[Event]| -> Vec<String> {
        let text = |bytes: &bytes::Bytes| String::from_utf8_lossy(bytes).into_owned();
        let line = |e: &Event| {
            let prev = e.prev.as_ref().map_or("-".to_owned(), |kv| text(&kv.value));
            format!(
                "{}{}={}<{prev}",
                if e.deleted { "!" } else { "" },
                text(&e.kv.key),
                text(&e.kv.value)
            )
        };
        events.iter().map(line).collect()
    };
    // The previous value is that before the revision.
    let expected = ["a=1<0", "n=1<-", "!a=<0", "!n=<-", "c=2<-"];
    assert_eq!(show(&live), expected);
    let all = KeyRange { start: "a".into(), end: [0][..].into() };
    assert_eq!(show(&state.events(3, &all, usize::MAX).unwrap().0), expected);
    let keys = state.export(None, i64::MAX, usize::MAX).into_iter();
    let back = State::import(3, 0, Vec::new(), ClusterData::default(), std::iter::empty(), keys);
    assert_eq!(show(&back.events(3, &all, usize::MAX).unwrap().0), expected);
    assert_eq!(back.range(&RangeRequest::new(all)).unwrap().count, 1);
}
