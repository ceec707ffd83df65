//! Phases, conditions and container states of typical pods.

mod restart_all;

use serde_json::json;
use std::collections::HashMap;

use super::*;
use crate::cgroups::PodGroupConfig;
use crate::pods::observed::{ObservedContainer, ObservedSandbox, ObservedState};
use crate::pods::pod::PodOrigin;
use crate::pods::pod::tests::pod;

fn container(pod: &Pod, name: &str, state: ObservedState, exit_code: i32) -> ObservedContainer {
    ObservedContainer {
        started_at: 1_700_000_000_000_000_000,
        finished_at: 1_700_000_001_000_000_000,
        exit_code,
        reason: if exit_code == 0 { "Completed".into() } else { "Error".into() },
        image: "docker.io/library/x:1".into(),
        image_ref: "sha256:1".into(),
        hash: pod.container(name).unwrap().hash(),
        ..crate::pods::observed::tests::container(name, state)
    }
}

fn status_of(
    pod: &Pod,
    containers: &[(&str, ObservedState, i32)],
    waiting: &[(&str, &'static str)],
) -> core::PodStatus {
    let sandbox = ObservedSandbox {
        id: "s".into(),
        attempt: 0,
        created_at: 1,
        ready: true,
        host_network: false,
        ips: vec!["fd00::1".into(), "10.0.0.1".into()],
    };
    let observed = ObservedPod {
        sandboxes: vec![sandbox],
        containers: containers.iter().map(|(n, s, e)| container(pod, n, *s, *e)).collect(),
    };
    let waiting = waiting
        .iter()
        .map(|(n, r)| ((*n).to_owned(), WaitingReason { reason: r, message: "m".into() }))
        .collect();
    generate(
        pod,
        &StatusInput {
            observed: &observed,
            group: PodGroupConfig::default(),
            health: &HashMap::new(),
            waiting: &waiting,
            previous: &core::PodStatus::default(),
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

fn condition(status: &core::PodStatus, type_: &str) -> (String, String) {
    let c = status.conditions.iter().flatten().find(|c| c.type_ == type_).unwrap();
    (c.status.clone(), c.message.clone().or(c.reason.clone()).unwrap_or_default())
}

#[test]
fn a_running_pod_is_ready_with_its_addresses_in_the_nodes_order() {
    let p = pod(json!({"containers": [{"name": "a"}]}));
    let status = status_of(&p, &[("a", ObservedState::Running, 0)], &[]);
    assert_eq!(status.phase.as_deref(), Some("Running"));
    assert_eq!(status.pod_ip.as_deref(), Some("10.0.0.1"));
    assert_eq!(status.pod_ips.as_ref().unwrap().len(), 2);
    for type_ in
        ["Ready", "ContainersReady", "Initialized", "PodReadyToStartContainers", "PodScheduled"]
    {
        assert_eq!(condition(&status, type_), ("True".into(), String::new()), "{type_}");
    }
    let container = &status.container_statuses.unwrap()[0];
    assert_eq!(container.container_id.as_deref(), Some("containerd://id-a"));
    assert!(container.ready && container.started == Some(true));
}

#[test]
fn waiting_for_init_has_the_messages_of_upstream() {
    let p = pod(
        json!({"initContainers": [{"name": "i"}, {"name": "j"}], "containers": [{"name": "a"}]}),
    );
    let status = status_of(&p, &[("i", ObservedState::Running, 0)], &[]);
    assert_eq!(status.phase.as_deref(), Some("Pending"));
    assert_eq!(
        condition(&status, "Initialized"),
        ("False".into(), "containers with incomplete status: [i j]".into())
    );
    assert_eq!(
        condition(&status, "Ready"),
        ("False".into(), "containers with unready status: [a]".into())
    );
    let waiting = status.container_statuses.unwrap()[0].state.clone().unwrap().waiting.unwrap();
    assert_eq!(waiting.reason.as_deref(), Some("PodInitializing"));
}

#[test]
fn exits_determine_the_phase_and_back_off_shows_the_last_exit() {
    for (policy, code, phase) in [
        ("Never", 0, "Succeeded"),
        ("Never", 1, "Failed"),
        ("Always", 1, "Running"),
        ("OnFailure", 0, "Succeeded"),
    ] {
        let p = pod(json!({"restartPolicy": policy, "containers": [{"name": "a"}]}));
        assert_eq!(
            status_of(&p, &[("a", ObservedState::Exited, code)], &[]).phase.as_deref(),
            Some(phase),
            "{policy} {code}"
        );
    }
    let p = pod(json!({"containers": [{"name": "a"}]}));
    let status = status_of(&p, &[("a", ObservedState::Exited, 3)], &[("a", "CrashLoopBackOff")]);
    let container = &status.container_statuses.as_ref().unwrap()[0];
    assert_eq!(
        container.state.as_ref().unwrap().waiting.as_ref().unwrap().reason.as_deref(),
        Some("CrashLoopBackOff")
    );
    assert_eq!(container.last_state.as_ref().unwrap().terminated.as_ref().unwrap().exit_code, 3);
    assert_eq!(status.phase.as_deref(), Some("Running"));
}

#[test]
fn a_rejected_pod_has_no_container_statuses() {
    let pod = pod(json!({
        "containers": [{"name": "a", "image": "x"}], "initContainers": [{"name": "i",
        "image": "x"}],
    }));
    let verdict = PodFailure {
        reason: "UnsupportedByNode".into(),
        message: "Pod was rejected: spec.volumes[0].nfs is not supported by this node".into(),
        grace: None,
        disruption: false,
    };
    let of_pod = |pod: &Pod, decided, previous: &core::PodStatus, observed: &ObservedPod| {
        let input = StatusInput {
            observed,
            group: PodGroupConfig::default(),
            health: &HashMap::new(),
            waiting: &HashMap::new(),
            previous,
            node_ips: &[],
            terminal: true,
            failure: decided,
            deferred: None,
            resizing: None,
            recursive_read_only: true,
            runtime_name: "containerd",
            now: Timestamp::from_second(1_700_000_000).unwrap(),
        };
        generate(pod, &input)
    };
    let of = |previous: &core::PodStatus, observed: &ObservedPod| {
        of_pod(&pod, Some(&verdict), previous, observed)
    };
    let rejected = of(&core::PodStatus::default(), &ObservedPod::default());
    assert_eq!(rejected.phase.as_deref(), Some("Failed"));
    assert_eq!(rejected.reason.as_deref(), Some("UnsupportedByNode"));
    assert_eq!((&rejected.container_statuses, &rejected.init_container_statuses), (&None, &None));
    assert_eq!(of(&rejected, &ObservedPod::default()).container_statuses, None);
    // After a restart of the agent, only the phase indicates the rejection.
    let mut failed = pod.object.clone();
    failed.status = Some(rejected.clone());
    let failed = Pod::new(failed, PodOrigin::Api).unwrap();
    let after = of_pod(&failed, None, &rejected, &ObservedPod::default());
    assert_eq!((after.phase.as_deref(), after.container_statuses), (Some("Failed"), None));
    // A pod that had begun, such as an evicted one, keeps its container statuses.
    let begun = status_of(&pod, &[("a", ObservedState::Running, 0)], &[]);
    assert!(of(&begun, &ObservedPod::default()).container_statuses.is_some());
}

#[test]
fn a_pod_that_ended_before_its_start_has_failed() {
    let of = |spec| {
        let input = StatusInput {
            observed: &ObservedPod::default(),
            group: PodGroupConfig::default(),
            health: &HashMap::new(),
            waiting: &HashMap::new(),
            previous: &core::PodStatus::default(),
            node_ips: &[],
            terminal: true,
            failure: None,
            deferred: None,
            resizing: None,
            recursive_read_only: true,
            runtime_name: "containerd",
            now: Timestamp::from_second(1_700_000_000).unwrap(),
        };
        generate(&crate::pods::pod::tests::pod(spec), &input)
    };
    let ended = |statuses: &Option<Vec<core::ContainerStatus>>| {
        let ended =
            |s: &core::ContainerStatus| s.state.as_ref()?.terminated.as_ref()?.reason.clone();
        statuses.iter().flatten().map(ended).collect::<Vec<_>>()
    };
    let lost = Some("ContainerStatusUnknown".to_owned());
    let a = json!({"name": "a", "image": "i"});
    let status = of(json!({"containers": [a]}));
    assert_eq!(status.phase.as_deref(), Some("Failed"));
    assert_eq!(ended(&status.container_statuses), std::slice::from_ref(&lost));
    // The pod was not initialized.
    let inits = json!([{"name": "b", "image": "i"}, {"name": "c", "image": "i"}]);
    let status = of(json!({"containers": [a], "initContainers": inits}));
    assert_eq!(status.phase.as_deref(), Some("Failed"));
    assert_eq!(ended(&status.container_statuses), [None]);
    assert_eq!(ended(&status.init_container_statuses), [lost, None]);
}

#[test]
fn recursive_read_only_mounts_are_reported() {
    let mount =
        |mode| json!({"name": "v", "mountPath": "/v", "readOnly": true, "recursiveReadOnly": mode});
    let spec = json!({"containers": [{"name": "a", "image": "i",
        "volumeMounts": [mount("Enabled"), mount("IfPossible"), mount("Disabled")]}]});
    let status = status_of(&pod(spec), &[], &[]);
    let mounts = status.container_statuses.unwrap()[0].volume_mounts.clone().unwrap();
    let modes: Vec<_> = mounts.iter().map(|m| m.recursive_read_only.as_deref().unwrap()).collect();
    assert_eq!(modes, ["Enabled", "Enabled", "Disabled"]);
}
