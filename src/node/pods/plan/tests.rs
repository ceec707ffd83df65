//! One row per rule of the kubelet's `computePodActions`.

use serde_json::json;

use super::*;
use crate::pods::observed::ObservedSandbox;
use crate::pods::pod::tests::pod;

fn sandbox(ready: bool) -> ObservedSandbox {
    ObservedSandbox {
        id: "s".into(),
        attempt: 0,
        created_at: 1,
        ready,
        host_network: false,
        ips: vec!["10.0.0.1".into()],
    }
}

fn container(pod: &Pod, name: &str, state: ObservedState, exit_code: i32) -> ObservedContainer {
    let hash = pod.container(name).unwrap().hash();
    ObservedContainer { exit_code, hash, ..crate::pods::observed::tests::container(name, state) }
}

fn decide(pod: &Pod, containers: &[(&str, ObservedState, i32)]) -> Plan {
    let containers = containers.iter().map(|(n, s, e)| container(pod, n, *s, *e)).collect();
    plan(pod, &ObservedPod { sandboxes: vec![sandbox(true)], containers }, |_| {
        ProbeResults::default()
    })
}

#[test]
fn a_new_pod_gets_a_sandbox_and_its_first_containers() {
    let plain = pod(json!({"containers": [{"name": "a"}, {"name": "b"}]}));
    let wanted = plan(&plain, &ObservedPod::default(), |_| ProbeResults::default());
    assert_eq!(wanted, Plan { create_sandbox: Some(0), start: vec![0, 1], ..Plan::default() });
    let with_init = pod(json!({"initContainers": [{"name": "i"}], "containers": [{"name": "a"}]}));
    assert_eq!(plan(&with_init, &ObservedPod::default(), |_| ProbeResults::default()).start, [0]);
}

#[test]
fn restart_policies_apply_to_exited_containers() {
    for (policy, code, start, over) in [
        ("Always", 0, true, false),
        ("OnFailure", 0, false, true),
        ("OnFailure", 1, true, false),
        ("Never", 1, false, true),
    ] {
        let pod = pod(json!({"restartPolicy": policy, "containers": [{"name": "a"}]}));
        let plan = decide(&pod, &[("a", ObservedState::Exited, code)]);
        assert_eq!((!plan.start.is_empty(), plan.kill_pod), (start, over), "{policy} {code}");
    }
    let rules = pod(
        json!({"restartPolicy": "Never", "containers": [{"name": "a", "restartPolicy": "Never",
        "restartPolicyRules": [{"action": "Restart", "exitCodes": {"operator": "In",
        "values": [42]}}]}]}),
    );
    assert_eq!(decide(&rules, &[("a", ObservedState::Exited, 42)]).start, [0]);
    assert!(decide(&rules, &[("a", ObservedState::Exited, 1)]).kill_pod);
}

#[test]
fn init_containers_run_in_order_and_sidecars_stay() {
    let p = pod(json!({
        "initContainers": [{"name": "i"}, {"name": "s", "restartPolicy": "Always"}, {"name": "j"}],
        "containers": [{"name": "a"}],
    }));
    assert_eq!(decide(&p, &[]).start, [0]);
    assert_eq!(decide(&p, &[("i", ObservedState::Running, 0)]), Plan::default());
    assert_eq!(decide(&p, &[("i", ObservedState::Exited, 1)]).start, [0]);
    assert_eq!(decide(&p, &[("i", ObservedState::Exited, 0)]).start, [1]);
    let up = [("i", ObservedState::Exited, 0), ("s", ObservedState::Running, 0)];
    assert_eq!(decide(&p, &up).start, [2]);
    let done = [up[0], up[1], ("j", ObservedState::Exited, 0)];
    assert_eq!(decide(&p, &done).start, [3]);
    let sidecar_died =
        [up[0], ("s", ObservedState::Exited, 1), done[2], ("a", ObservedState::Running, 0)];
    assert_eq!(decide(&p, &sidecar_died).start, [1]);
    let never = pod(json!({"restartPolicy": "Never", "initContainers": [{"name": "i"}],
            "containers": [{"name": "a"}]}));
    assert!(decide(&never, &[("i", ObservedState::Exited, 1)]).kill_pod);
}

#[test]
fn failed_probes_and_new_images_replace_the_container() {
    let p = pod(json!({"containers": [{"name": "a", "image": "x:1"}]}));
    let observed = ObservedPod {
        sandboxes: vec![sandbox(true)],
        containers: vec![container(&p, "a", ObservedState::Running, 0)],
    };
    let sick = |_: &str| ProbeResults { liveness: Some(false), ..ProbeResults::default() };
    let wanted = plan(&p, &observed, sick);
    assert_eq!(wanted.kill[0].message, "Container a failed liveness probe, will be restarted");
    assert_eq!((wanted.kill[0].reason, wanted.start), (KillReason::LivenessProbe, vec![0]));
    let newer =
        pod(json!({"restartPolicy": "Never", "containers": [{"name": "a", "image": "x:2"}]}));
    assert_eq!(plan(&newer, &observed, |_| ProbeResults::default()).start, [0]);
}

#[test]
fn a_dead_sandbox_is_replaced_unless_the_pod_has_ended() {
    let observed = |p: &Pod, code| ObservedPod {
        sandboxes: vec![sandbox(false)],
        containers: vec![container(p, "a", ObservedState::Exited, code)],
    };
    let always = pod(json!({"containers": [{"name": "a"}]}));
    let wanted = plan(&always, &observed(&always, 0), |_| ProbeResults::default());
    assert_eq!((wanted.kill_pod, wanted.create_sandbox), (true, Some(1)));
    let never = pod(json!({"restartPolicy": "Never", "containers": [{"name": "a"}]}));
    assert_eq!(
        plan(&never, &observed(&never, 0), |_| ProbeResults::default()).create_sandbox,
        None
    );
}
