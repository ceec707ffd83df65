//! The status of a pod whose containers are all restarted by a restart rule.

use ObservedState::{Exited, Running};
use serde_json::Value;

use super::*;
use crate::cgroups::PodGroupConfig;

/// A container by its name, state and exit code.
type Observed<'a> = (&'a str, ObservedState, i32);

/// The status that follows `previous`. Containers have a name, a state, and an exit code.
fn next(
    pod: &Pod,
    previous: &core::PodStatus,
    containers: &[(&str, ObservedState, i32)],
) -> core::PodStatus {
    let sandbox = ObservedSandbox {
        id: "s".into(),
        attempt: 0,
        created_at: 1,
        ready: true,
        host_network: false,
        ips: vec!["10.0.0.1".into()],
    };
    let observed = ObservedPod {
        sandboxes: vec![sandbox],
        containers: containers.iter().map(|(n, s, e)| container(pod, n, *s, *e)).collect(),
    };
    generate(
        pod,
        &StatusInput {
            group: PodGroupConfig::default(),
            observed: &observed,
            health: &HashMap::new(),
            waiting: &HashMap::new(),
            previous,
            node_ips: &["192.0.2.1".parse().unwrap()],
            terminal: false,
            failure: None,
            deferred: None,
            resizing: None,
            recursive_read_only: true,
            runtime_name: "containerd",
            now: Timestamp::from_second(1_700_000_100).unwrap(),
        },
    )
}

fn with_rule(name: &str, policy: &str) -> Value {
    json!({"name": name, "restartPolicy": policy, "restartPolicyRules":
        [{"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [42]}}]})
}

/// Phase, condition, and for each container its restart count, with its state and the reason of its
/// last exit.
fn shown(status: &core::PodStatus) -> String {
    let marked = status.conditions.iter().flatten().find(|c| c.type_ == "AllContainersRestarting");
    let of = |c: &core::ContainerStatus| {
        let state = c.state.clone().unwrap();
        let now = match (&state.running, &state.waiting, &state.terminated) {
            (Some(_), ..) => "Running".to_owned(),
            (_, Some(waiting), _) => waiting.reason.clone().unwrap_or_default(),
            (.., Some(ended)) => ended.exit_code.to_string(),
            _ => String::new(),
        };
        let last = c.last_state.as_ref().and_then(|s| s.terminated.clone());
        let last = last.map(|t| format!("({})", t.reason.unwrap_or_default()));
        format!("{} {} {now}{}", c.name, c.restart_count, last.unwrap_or_default())
    };
    let all = status.init_container_statuses.iter().chain(&status.container_statuses).flatten();
    let all: Vec<String> = all.map(of).collect();
    let phase = status.phase.as_deref().unwrap_or_default();
    format!("{phase} {}: {}", marked.map_or("-", |c| &c.status), all.join(", "))
}

/// The states of upstream's `TestConvertToAPIContainerStatuses` and
/// `TestPodPhaseWithRestartAllContainers`, one after the other.
#[test]
fn containers_are_stopped_removed_and_started_again() {
    let pod = pod(json!({"restartPolicy": "Never", "initContainers": [{"name": "i"}],
        "containers": [{"name": "a"}, with_rule("b", "Never")]}));
    let steps: [(&[Observed<'_>], &str); 8] = [
        (
            &[("i", Exited, 0), ("a", Running, 0), ("b", Running, 0)],
            "Running False: i 0 0, a 0 Running, b 0 Running",
        ),
        (
            &[("i", Exited, 0), ("a", Running, 0), ("b", Exited, 42)],
            "Running True: i 0 0, a 0 Running, b 0 42",
        ),
        (
            &[("i", Exited, 0), ("a", Exited, 137), ("b", Exited, 42)],
            "Running True: i 0 0, a 0 137, b 0 42",
        ),
        (
            &[("i", Exited, 0), ("b", Exited, 42)],
            "Running True: i 0 0, a 1 RestartingAllContainers(RestartingAllContainers), b 0 42",
        ),
        (
            &[("b", Exited, 42)],
            "Running True: i 1 RestartingAllContainers(RestartingAllContainers), \
             a 1 PodInitializing(RestartingAllContainers), b 0 42",
        ),
        (
            &[],
            "Running False: i 1 PodInitializing(RestartingAllContainers), \
             a 1 PodInitializing(RestartingAllContainers), \
             b 1 RestartingAllContainers(RestartingAllContainers)",
        ),
        (
            &[("i", Running, 0)],
            "Pending False: i 1 Running(RestartingAllContainers), \
             a 1 PodInitializing(RestartingAllContainers), \
             b 1 PodInitializing(RestartingAllContainers)",
        ),
        (
            &[("i", Exited, 0), ("a", Running, 0), ("b", Running, 0)],
            "Running False: i 1 0(RestartingAllContainers), \
             a 1 Running(RestartingAllContainers), b 1 Running(RestartingAllContainers)",
        ),
    ];
    let mut status = core::PodStatus::default();
    for (containers, wanted) in steps {
        status = next(&pod, &status, containers);
        assert_eq!(shown(&status), wanted);
        // A status that is generated again does not count again.
        if wanted.contains("False") {
            let again = next(&pod, &status, containers);
            assert_eq!(
                again.container_statuses.map(|c| c[0].restart_count),
                status.container_statuses.as_ref().map(|c| c[0].restart_count)
            );
        }
    }
    let initialized = condition(&status, "Initialized");
    assert_eq!(initialized, ("True".into(), String::new()));
}

#[test]
fn the_condition_names_the_cause_and_ends_with_the_pod() {
    let spec = pod(json!({"restartPolicy": "Never",
        "containers": [with_rule("a", "Never"), {"name": "b"}]}));
    let marked = |exit: i32| {
        let none = core::PodStatus::default();
        let status = next(&spec, &none, &[("a", Exited, exit), ("b", Exited, 0)]);
        let conditions = status.conditions.into_iter().flatten();
        let found = conditions.filter(|c| c.type_ == "AllContainersRestarting");
        let of = |c: core::PodCondition| (c.status, c.reason.unwrap_or_default(), c.message);
        found.map(of).collect::<Vec<_>>()
    };
    let message = Some("container exited with restart policy rule".to_owned());
    assert_eq!(marked(42), [("True".into(), "RestartAllContainersStarted".into(), message)]);
    assert_eq!(marked(1), [("False".into(), "PodFailed".into(), None)]);
    assert_eq!(marked(0), [("False".into(), "PodCompleted".into(), None)]);
    let plain = pod(json!({"containers": [{"name": "a"}]}));
    let status = next(&plain, &core::PodStatus::default(), &[("a", Exited, 42)]);
    assert!(shown(&status).starts_with("Running -"));
}

#[test]
fn the_exit_of_a_stopped_container_does_not_end_the_pod() {
    // The agent ended between the stop of a container and its removal.
    let spec = pod(json!({"restartPolicy": "Never", "containers": [{"name": "a"}],
        "initContainers": [with_rule("s", "Always"), {"name": "i"}]}));
    let first = next(&spec, &core::PodStatus::default(), &[("s", Exited, 42), ("i", Running, 0)]);
    assert_eq!(shown(&first), "Pending True: s 0 42, i 0 Running, a 0 PodInitializing");
    let second = next(&spec, &first, &[("s", Exited, 42), ("i", Exited, 137)]);
    assert_eq!(shown(&second), "Pending True: s 0 42, i 0 137, a 0 PodInitializing");
    let cleaned = next(&spec, &second, &[]);
    assert_eq!(
        shown(&cleaned),
        "Pending False: s 1 RestartingAllContainers(RestartingAllContainers), \
         i 1 RestartingAllContainers(RestartingAllContainers), a 0 PodInitializing"
    );
    // Without a restart, the same exit does.
    let failed = next(&spec, &core::PodStatus::default(), &[("s", Exited, 1), ("i", Exited, 137)]);
    assert!(shown(&failed).starts_with("Failed False"));
}

#[test]
fn an_instance_that_the_runtime_does_not_count_is_counted() {
    let spec = pod(json!({"containers": [{"name": "a"}]}));
    let old = |id: &str| {
        let ended = json!({"exitCode": 1, "containerID": id});
        serde_json::from_value(
            json!({"containerStatuses": [{"name": "a", "image": "", "imageID": "",
            "ready": false, "restartCount": 5, "containerID": id,
            "state": {"terminated": ended}}]}),
        )
        .unwrap()
    };
    let count = |old: core::PodStatus| {
        next(&spec, &old, &[("a", Running, 0)]).container_statuses.unwrap()[0].restart_count
    };
    assert_eq!(count(old("containerd://before")), 6);
    assert_eq!(count(old("containerd://id-a")), 5);
}
