//! Plans the restart of all containers of a pod, which a restart rule of one container requires
//! (`RestartAllContainers`): they are stopped and removed from the runtime, and the pod starts
//! again from its first init container, in the same sandbox and with the same volumes.
//!
//! From the exit until everything is removed, the pod has the condition `AllContainersRestarting`.
//! A restart of the agent continues from the condition, or, if that was not written, from the
//! container that exited, which is removed last.

use api::k8s::api::core::v1 as core;

use super::{Plan, restart_rule, sandbox_problem};
use crate::pods::condition_types::ALL_CONTAINERS_RESTARTING;
use crate::pods::observed::{ObservedContainer, ObservedPod, ObservedState};
use crate::pods::pod::{ContainerRole, Pod, PodContainer};

/// The action of a restart rule that restarts all containers of the pod.
pub(crate) const ACTION: &str = "RestartAllContainers";

/// A container to remove from the runtime.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PlannedReset {
    pub(crate) id: String,
    /// Stop it first.
    pub(crate) is_live: bool,
}

/// The containers that are restarted together; ephemeral containers stay.
fn members(pod: &Pod) -> impl Iterator<Item = &PodContainer> {
    pod.containers.iter().filter(|m| m.role != ContainerRole::Ephemeral)
}

/// Whether an exit of this container restarts all containers of its pod.
fn is_source(member: &PodContainer, container: &ObservedContainer) -> bool {
    container.state == ObservedState::Exited
        && restart_rule(member, container.exit_code).is_some_and(|rule| rule.action == ACTION)
}

/// Whether a container of the pod has a rule that restarts all of them
/// (`AllContainersCouldRestart`).
pub(crate) fn has_rule(pod: &Pod) -> bool {
    let mut rules = members(pod).flat_map(|m| m.container.restart_policy_rules.iter().flatten());
    rules.any(|rule| rule.action == ACTION)
}

/// Whether the status has the condition of a restart that is not complete.
pub(crate) fn is_marked(status: &core::PodStatus) -> bool {
    let mut conditions = status.conditions.iter().flatten();
    conditions.any(|c| c.type_ == ALL_CONTAINERS_RESTARTING && c.status == "True")
}

/// Whether the containers of the pod are being restarted (`ShouldAllContainersRestart`): its
/// previous status says so, or a container exited with a matching rule.
pub(crate) fn is_required(pod: &Pod, observed: &ObservedPod, previous: &core::PodStatus) -> bool {
    let exited = |m: &PodContainer| observed.container(m.name()).is_some_and(|c| is_source(m, c));
    is_marked(previous) || members(pod).any(exited)
}

/// Whether the runtime has no container of the pod that has to be removed
/// (`AllContainersRestartCleanedUp`).
pub(crate) fn is_cleaned_up(pod: &Pod, observed: &ObservedPod) -> bool {
    members(pod).all(|m| observed.container(m.name()).is_none())
}

/// Plans the next actions for a pod that is marked: a sandbox if it has none, or the removal of its
/// containers (`getContainersToReset`): main containers, then init containers, and last those whose
/// exit is the cause.
pub(crate) fn plan_restart_all(pod: &Pod, observed: &ObservedPod) -> Plan {
    if sandbox_problem(pod, observed).is_some() {
        let newest = observed.sandboxes.first();
        return Plan {
            kill_pod: newest.is_some(),
            create_sandbox: Some(newest.map_or(0, |s| s.attempt.saturating_add(1))),
            ..Plan::default()
        };
    }
    let (mut sources, mut others) = (Vec::new(), Vec::new());
    let is_main = |m: &&PodContainer| m.role == ContainerRole::Main;
    let ordered = members(pod).filter(is_main).chain(members(pod).filter(|m| !is_main(m)));
    for member in ordered {
        for container in observed.containers.iter().filter(|c| c.name == member.name()) {
            let is_live = container.state != ObservedState::Exited;
            let reset = PlannedReset { id: container.id.clone(), is_live };
            let list = if is_source(member, container) { &mut sources } else { &mut others };
            list.push(reset);
        }
    }
    others.append(&mut sources);
    Plan { reset: others, ..Plan::default() }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::pods::observed::ObservedSandbox;
    use crate::pods::observed::tests::container;
    use crate::pods::pod::tests::pod;

    fn with_rule(name: &str, policy: &str) -> Value {
        json!({"name": name, "restartPolicy": policy, "restartPolicyRules":
            [{"action": ACTION, "exitCodes": {"operator": "In", "values": [42]}}]})
    }

    fn sidecar(name: &str) -> Value {
        json!({"name": name, "restartPolicy": "Always"})
    }

    fn observed(containers: &[(&str, ObservedState, i32)]) -> ObservedPod {
        let sandbox = ObservedSandbox {
            id: "s".into(),
            attempt: 0,
            created_at: 1,
            ready: true,
            host_network: false,
            ips: vec!["10.0.0.1".into()],
        };
        let of = |(name, state, exit_code): &(&str, ObservedState, i32)| ObservedContainer {
            exit_code: *exit_code,
            ..container(name, *state)
        };
        ObservedPod { sandboxes: vec![sandbox], containers: containers.iter().map(of).collect() }
    }

    fn marked() -> core::PodStatus {
        let condition = json!({"type": "AllContainersRestarting", "status": "True"});
        serde_json::from_value(json!({"conditions": [condition]})).unwrap()
    }

    /// The removals, with a `!` before those that are stopped first.
    fn resets(spec: Value, containers: &[(&str, ObservedState, i32)]) -> Vec<String> {
        let plan = plan_restart_all(&pod(spec), &observed(containers));
        assert_eq!(plan, Plan { reset: plan.reset.clone(), ..Plan::default() });
        let shown = |reset: PlannedReset| {
            let name = reset.id.trim_start_matches("id-");
            if reset.is_live { format!("!{name}") } else { name.to_owned() }
        };
        plan.reset.into_iter().map(shown).collect()
    }

    /// Cases of upstream's `TestShouldAllContainersRestart`.
    #[test]
    fn a_condition_or_an_exit_with_a_matching_rule_requires_a_restart() {
        use ObservedState::{Exited, Running};
        let none = core::PodStatus::default();
        let is = |spec: Value, container: (&str, ObservedState, i32), status: &core::PodStatus| {
            is_required(&pod(spec), &observed(&[container]), status)
        };
        let plain = json!({"containers": [{"name": "a", "restartPolicy": "Never"}]});
        assert!(is(plain.clone(), ("a", Running, 0), &marked()));
        assert!(!is(plain, ("a", Exited, 42), &none));
        let main = json!({"containers": [with_rule("a", "Never")]});
        assert!(is(main.clone(), ("a", Exited, 42), &none));
        assert!(!is(main.clone(), ("a", Exited, 1), &none));
        assert!(!is(main, ("a", Running, 42), &none));
        for policy in ["Never", "Always"] {
            let init = json!({"containers": [{"name": "a"}],
                "initContainers": [with_rule("i", policy)]});
            assert!(is(init, ("i", Exited, 42), &none), "{policy}");
        }
    }

    /// Cases of upstream's `TestComputePodActionsForRestartAllContainers`.
    #[test]
    fn the_containers_that_exited_are_removed_last() {
        use ObservedState::{Created, Exited, Running, Unknown};
        let main = json!([{"name": "a"}, {"name": "b"}, {"name": "c"}]);
        let live = [("a", Running, 0), ("b", Created, 0), ("c", Unknown, 0)];
        assert_eq!(resets(json!({"containers": main}), &live), ["!a", "!b", "!c"]);
        let init = [("i", Exited, 0), ("s", Running, 0), ("j", Exited, 42)];
        let spec = json!({"containers": main,
            "initContainers": [{"name": "i"}, sidecar("s"), with_rule("j", "Never")]});
        assert_eq!(resets(spec, &init), ["i", "!s", "j"]);
        let spec = json!({"containers": main,
            "initContainers": [sidecar("s"), sidecar("t"), with_rule("u", "Always")]});
        let all = [("s", Running, 0), ("t", Running, 0), ("u", Exited, 42), ("a", Running, 0)];
        assert_eq!(resets(spec, &all), ["!a", "!s", "!t", "u"]);
        let spec = json!({"containers": [{"name": "a"}, with_rule("c", "Never"), {"name": "b"}],
            "initContainers": [sidecar("s")]});
        let all = [("c", Exited, 42), ("s", Running, 0), ("a", Running, 0), ("b", Running, 0)];
        assert_eq!(resets(spec, &all), ["!a", "!b", "!s", "c"]);
    }

    #[test]
    fn earlier_instances_are_removed_and_ephemeral_containers_stay() {
        use ObservedState::{Exited, Running};
        let spec = json!({"restartPolicy": "Always", "containers": [{"name": "a"},
            with_rule("c", "Always")], "ephemeralContainers": [{"name": "e"}]});
        let all = [
            ("a", Running, 0),
            ("c", Exited, 42),
            ("a", Exited, 9),
            ("c", Exited, 9),
            ("e", Running, 0),
        ];
        assert_eq!(resets(spec.clone(), &all), ["!a", "a", "c", "c"]);
        let spec = pod(spec);
        assert!(!is_cleaned_up(&spec, &observed(&all)));
        assert!(is_cleaned_up(&spec, &observed(&[("e", Running, 0)])));
        assert!(has_rule(&spec));
        assert!(!has_rule(&pod(json!({"containers": [{"name": "a"}]}))));
    }

    #[test]
    fn a_lost_sandbox_is_replaced_before_the_containers_are_removed() {
        let pod = pod(json!({"restartPolicy": "Never", "containers": [with_rule("a", "Never")]}));
        let mut lost = observed(&[("a", ObservedState::Exited, 42)]);
        lost.sandboxes[0].ready = false;
        let plan = plan_restart_all(&pod, &lost);
        assert_eq!(plan, Plan { kill_pod: true, create_sandbox: Some(1), ..Plan::default() });
    }
}
