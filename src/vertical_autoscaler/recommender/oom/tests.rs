//! The cases of upstream's `observer_test.go`.

use super::*;
use serde_json::{Value, json};

/// 2018-02-23T13:38:48Z.
const AT: i64 = 1_519_393_128;

/// A pod with a container of this status, and the requests of memory in spec and status.
fn pod(mut status: Value, in_spec: Option<&str>, in_status: Option<&str>) -> Arc<Object> {
    let requests = |memory: Option<&str>| match memory {
        Some(memory) => json!({"requests": {"memory": memory}}),
        None => json!({}),
    };
    status["name"] = "c".into();
    if in_status.is_some() {
        status["resources"] = requests(in_status);
    }
    let object = Object::from_value(json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": "n", "name": "p"},
        "spec": {"containers": [{"name": "c", "resources": requests(in_spec)}]},
        "status": {"containerStatuses": [status]},
    }));
    Arc::new(object.unwrap())
}

fn ended(reason: &str) -> Value {
    json!({"terminated": {"finishedAt": "2018-02-23T13:38:48Z", "reason": reason}})
}

fn running(restarts: i64, last: Value) -> Value {
    let state = json!({"running": {"startedAt": "2018-02-23T13:38:50Z"}});
    json!({"restartCount": restarts, "state": state, "lastState": last})
}

/// The memory of the kill that a change shows.
fn memory(old: &Arc<Object>, new: &Arc<Object>) -> Option<i64> {
    let mut kills = of_change(old, new);
    let kill = kills.pop()?;
    assert!(kills.is_empty());
    let expected = OomKill {
        namespace: "n".to_owned(),
        pod: "p".to_owned(),
        container: "c".to_owned(),
        at: AT,
        memory: kill.memory,
    };
    assert_eq!(kill, expected);
    Some(kill.memory)
}

#[test]
fn a_kill_counts_once() {
    let oom = || json!({"state": ended("OOMKilled")});
    let crash_loop = json!({"restartCount": 3, "state": {"waiting": {"reason": "CrashLoopBackOff"}},
        "lastState": ended("OOMKilled")});
    let failed = |restarts: i64| json!({"restartCount": restarts, "state": ended("Error")});
    let again = json!({"restartCount": 1, "state": ended("OOMKilled")});
    let unknown = json!({"state": {"terminated": {"finishedAt": "2018-02-23T13:38:48Z"}}});
    let oomed = || running(1, ended("OOMKilled"));
    for (what, old, new, expected) in [
        ("it ended", json!({}), oom(), Some(1024)),
        ("it runs again", running(0, json!({})), oomed(), Some(1024)),
        ("it ended again at once", failed(0), again, Some(1024)),
        ("it ended for another reason", json!({}), failed(0), None),
        (
            "it runs again after another end",
            running(0, json!({})),
            running(1, ended("Error")),
            None,
        ),
        ("it waited, which was seen", crash_loop, running(4, ended("OOMKilled")), None),
        ("nothing changed", oomed(), oomed(), None),
        ("only the reason is new", unknown, oom(), None),
    ] {
        let (old, new) = (pod(old, Some("1024"), None), pod(new, Some("1024"), None));
        assert_eq!(memory(&old, &new), expected, "{what}");
    }
}

#[test]
fn the_request_is_that_in_effect_when_the_container_was_killed() {
    let oom = || json!({"state": ended("OOMKilled")});
    let old = |status| pod(json!({}), Some("1024"), status);
    assert_eq!(memory(&old(None), &pod(oom(), None, None)), Some(0));
    assert_eq!(memory(&old(None), &pod(oom(), Some("1024"), Some("2048"))), Some(2048));
    let before = pod(running(0, json!({})), Some("1024"), Some("2048"));
    let after = pod(running(1, ended("OOMKilled")), Some("1024"), Some("4096"));
    assert_eq!(memory(&before, &after), Some(2048));
}

#[test]
fn an_eviction_for_memory_is_a_kill_of_each_offending_container() {
    let found = |containers: &str, usages: &str, resources: &str, reason: &str, kind: &str| {
        let event = json!({
            "metadata": {"creationTimestamp": "2018-02-23T13:38:48Z", "annotations": {
                "offending_containers": containers, "offending_containers_usage": usages,
                "starved_resource": resources}},
            "involvedObject": {"kind": kind, "namespace": "n", "name": "p"}, "reason": reason,
        });
        let kills = of_event(&serde_json::to_vec(&event).unwrap());
        let shown = kills.iter().map(|kill| {
            assert_eq!((&*kill.namespace, &*kill.pod, kill.at), ("n", "p", AT));
            format!("{}={}", kill.container, kill.memory)
        });
        shown.collect::<Vec<_>>().join(" ")
    };
    let pod =
        |containers, usages, resources| found(containers, usages, resources, "Evicted", "Pod");
    assert_eq!(pod("c", "1024Ki", "memory"), "c=1048576");
    assert_eq!(pod("c,d", "1024Ki,2048Ki", "memory,memory"), "c=1048576 d=2097152");
    assert_eq!(pod("c,d", "1024Ki,2048Ki", "memory,evictable"), "c=1048576");
    assert_eq!(pod("c,d", "1024Ki,2048Ki", "memory"), "");
    assert_eq!(pod("c", "much", "memory"), "");
    assert_eq!(found("c", "1Ki", "memory", "Killing", "Pod"), "");
    assert_eq!(found("c", "1Ki", "memory", "Evicted", "Node"), "");
    assert!(of_event(b"no JSON").is_empty());
}

#[test]
fn kills_are_recorded_while_active_and_bounded() {
    let kills = OomKills::default();
    let old = pod(json!({}), Some("1024"), None);
    let new = pod(json!({"state": ended("OOMKilled")}), Some("1024"), None);
    let change = Change::Updated { old, new };
    kills.on_pod(&change);
    assert!(kills.take().is_empty());
    kills.record(true);
    for _ in 0..=KILLS_MAX {
        kills.on_pod(&change);
    }
    kills.record(true);
    assert_eq!(kills.take().len(), KILLS_MAX);
    kills.on_pod(&change);
    kills.record(false);
    kills.record(true);
    assert!(kills.take().is_empty());
}
