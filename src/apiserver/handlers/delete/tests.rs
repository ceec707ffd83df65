//! Rules of deletions: grace periods (`BeforeDelete`, `podStrategy.CheckGracefulDelete`),
//! finalizers of the garbage collector (`deletionFinalizersForGarbageCollection`) and
//! preconditions.

use api::Gvr;
use api::schema::Schema;

use super::*;
use crate::registry::Registry;

fn row(group: &str, resource: &str) -> Arc<Resource> {
    let registry = Registry::builtin(Schema::builtin());
    Arc::clone(registry.row(&Gvr::new(group, "v1", resource)).unwrap())
}

fn now() -> i64 {
    i64::try_from(base::clock::unix_time().as_secs()).unwrap()
}

#[test]
fn the_grace_of_a_new_deletion_is_that_of_the_request_or_of_the_pod() {
    let running = json!({"spec": {"nodeName": "n", "terminationGracePeriodSeconds": 30}});
    let without_default = json!({"spec": {"nodeName": "n"}});
    let unscheduled = json!({"spec": {"terminationGracePeriodSeconds": 30}});
    let finished = json!({"spec": {"nodeName": "n"}, "status": {"phase": "Succeeded"}});
    let rows = [
        (&running, None, 30),
        (&running, Some(5), 5),
        (&running, Some(0), 0),
        (&running, Some(-1), 1),
        (&without_default, None, 0),
        (&unscheduled, Some(5), 0),
        (&finished, Some(5), 0),
    ];
    for (pod, requested, expected) in rows {
        let before = now();
        let Grace::Set { seconds, time } = grace_of(pod, requested, false) else {
            panic!("{pod} {requested:?}: no deletion begins");
        };
        assert_eq!(seconds, expected, "{pod} {requested:?}");
        assert!((before + expected..=now() + expected).contains(&time), "{pod} {requested:?}");
    }
}

#[test]
fn a_deletion_in_progress_is_only_shortened() {
    /// A pod that is deleted with this grace period, of which `left` seconds are left.
    fn deleting(period: Option<i64>, left: i64) -> Value {
        let time = metadata::rfc3339(now() + left);
        json!({"metadata": {"deletionTimestamp": time, "deletionGracePeriodSeconds": period}})
    }
    // Grace period, seconds left, requested period; new period and seconds until its end.
    let rows = [
        (30, 20, 5, Some((5, -5))),
        (30, 30, 5, Some((5, 5))),
        (30, 20, 0, Some((0, -10))),
        (30, 20, 30, None),
        (30, 20, 60, None),
    ];
    for (period, left, requested, expected) in rows {
        let before = now();
        let grace = grace_of(&deleting(Some(period), left), Some(requested), true);
        match (grace, expected) {
            (Grace::Pending, None) => {}
            (Grace::Set { seconds, time }, Some((_, end))) if end < 0 => {
                // The end is not moved into the past; a period other than 0 becomes 1.
                assert_eq!(seconds, i64::from(requested != 0));
                assert!((before..=now()).contains(&time));
            }
            (Grace::Set { seconds, time }, Some((new, end))) => {
                assert_eq!(seconds, new);
                assert!((before + end..=now() + end).contains(&time));
            }
            _ => panic!("{period} {left} {requested}"),
        }
    }
    assert!(matches!(grace_of(&deleting(Some(30), 20), None, true), Grace::Pending));
    // A recorded grace of 0 means that an earlier deletion failed halfway.
    assert!(matches!(grace_of(&deleting(Some(0), 0), Some(5), true), Grace::None));
    assert!(matches!(grace_of(&deleting(None, 0), Some(5), true), Grace::None));
}

#[test]
fn options_override_finalizers_and_finalizers_override_the_default_of_the_kind() {
    const ORPHAN: &str = "orphan";
    const FOREGROUND: &str = "foregroundDeletion";
    let config_maps = row("", "configmaps");
    let jobs = row("batch", "jobs");
    let events = row("", "events");
    let by = |policy| DeleteOptions { propagation: Some(policy), ..DeleteOptions::default() };
    let orphan = |orphan| DeleteOptions { orphan: Some(orphan), ..DeleteOptions::default() };
    let none = DeleteOptions::default();
    let rows: [(&Resource, &[&str], DeleteOptions, &[&str]); 13] = [
        (&config_maps, &[], none.clone(), &[]),
        (&config_maps, &["x"], orphan(true), &["x", ORPHAN]),
        (&config_maps, &[ORPHAN], orphan(false), &[]),
        (&config_maps, &[], by(Propagation::Orphan), &[ORPHAN]),
        (&config_maps, &[], by(Propagation::Foreground), &[FOREGROUND]),
        (&config_maps, &[FOREGROUND], by(Propagation::Background), &[]),
        (&config_maps, &[ORPHAN], by(Propagation::Foreground), &[FOREGROUND]),
        (&config_maps, &[ORPHAN], none.clone(), &[ORPHAN]),
        (&config_maps, &[FOREGROUND, "x"], none.clone(), &[FOREGROUND, "x"]),
        (&jobs, &[], none.clone(), &[ORPHAN]),
        (&jobs, &[FOREGROUND], none.clone(), &[FOREGROUND]),
        (&jobs, &[], by(Propagation::Background), &[]),
        (&events, &[ORPHAN], orphan(true), &[]),
    ];
    for (row, finalizers, options, expected) in rows {
        let mut value = json!({"metadata": {"finalizers": finalizers}});
        let has_changed = set_gc_finalizers(row, &mut value, &options);
        assert_eq!(metadata::finalizers(&value), expected, "{finalizers:?} {options:?}");
        assert_eq!(has_changed, finalizers != expected, "{finalizers:?} {options:?}");
    }
}

#[test]
fn an_object_is_marked_while_finalizers_or_grace_hold_it() {
    let config_maps = row("", "configmaps");
    let pods = row("", "pods");
    let namespaces = row("", "namespaces");
    let past = "2026-01-01T00:00:00Z";
    let scheduled = |finalizers: &[&str]| {
        json!({"metadata": {"finalizers": finalizers},
            "spec": {"nodeName": "n", "terminationGracePeriodSeconds": 30}})
    };
    let held = json!({"metadata": {"finalizers": ["x"]}});
    let held_and_marked = json!({"metadata": {"finalizers": ["x"], "deletionTimestamp": past,
        "deletionGracePeriodSeconds": 0}});
    let terminating = json!({"metadata": {"deletionTimestamp": past},
        "spec": {"finalizers": ["kubernetes"]}});
    let finalized = json!({"metadata": {"deletionTimestamp": past}, "spec": {}});
    let rows = [
        (&config_maps, json!({"metadata": {}}), None, Plan::Delete),
        (&config_maps, held, None, Plan::Mark),
        (&config_maps, held_and_marked, None, Plan::Pending),
        (&pods, scheduled(&[]), None, Plan::Mark),
        (&pods, scheduled(&[]), Some(0), Plan::MarkThenDelete),
        (&pods, scheduled(&["x"]), Some(0), Plan::Mark),
        (
            &namespaces,
            json!({"metadata": {}, "spec": {"finalizers": ["kubernetes"]}}),
            None,
            Plan::Mark,
        ),
        (&namespaces, terminating, None, Plan::Pending),
        (&namespaces, finalized, None, Plan::Delete),
    ];
    for (row, object, grace, expected) in rows {
        let options = DeleteOptions { grace, ..DeleteOptions::default() };
        let mut value = object.clone();
        assert_eq!(plan(row, &mut value, &options), expected, "{object}");
    }
}

#[test]
fn preconditions_name_the_kind_and_both_values() {
    let value = json!({"kind": "ConfigMap", "apiVersion": "v1",
        "metadata": {"name": "a", "namespace": "n", "uid": "u", "resourceVersion": "7"}});
    let found = Object::from_value(value).unwrap();
    let rows = [
        (None, None, None),
        (Some("u"), Some("7"), None),
        (
            Some("v"),
            None,
            Some(
                "the UID in the precondition (v) does not match the UID in record (u). The object might have been deleted and then recreated",
            ),
        ),
        (
            Some("u"),
            Some("6"),
            Some(
                "the ResourceVersion in the precondition (6) does not match the ResourceVersion in record (7). The object might have been modified",
            ),
        ),
    ];
    for (uid, version, expected) in rows {
        let [uid, resource_version] =
            [uid, version].map(|text: Option<&str>| text.map(str::to_owned));
        let options = DeleteOptions { uid, resource_version, ..DeleteOptions::default() };
        let refused = preconditions(&row("", "configmaps"), &found, &options).err();
        let expected = expected
            .map(|why| (409, format!("Operation cannot be fulfilled on ConfigMap \"a\": {why}")));
        assert_eq!(refused.map(|status| (status.code, status.message)), expected);
    }
}
