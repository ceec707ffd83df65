//! Pods whose containers are all restarted by a rule, also when the agent ends meanwhile.

use std::cell::Cell;

use super::*;
use crate::runtime::ContainerEvent;

/// A pod with an init container, a sidecar, a container `source` whose exit with 42 restarts all,
/// and a container that would not be restarted on its own.
fn pod_with_rule() -> Value {
    let rule = json!({"action": "RestartAllContainers",
        "exitCodes": {"operator": "In", "values": [42]}});
    json!({"restartPolicy": "Never", "terminationGracePeriodSeconds": 30,
        "initContainers": [{"name": "init", "image": "a:1"},
            {"name": "sidecar", "image": "a:1", "restartPolicy": "Always"}],
        "containers": [
            {"name": "source", "image": "a:1", "restartPolicy": "Never",
                "restartPolicyRules": [rule]},
            {"name": "regular", "image": "a:1",
                "lifecycle": {"preStop": {"sleep": {"seconds": 20}}}}]})
}

/// The behaviour of a container that is stopped after up to two seconds, if it does not exit
/// before.
fn behaviour(runs_for: Option<u64>) -> Behaviour {
    Behaviour { runs_for, fails: 0, stops_after: 3000 }
}

fn set_behaviours(runtime: &FakeRuntime) {
    runtime.set_reliable();
    runtime.set_behaviour("init", behaviour(Some(1)));
    for name in ["sidecar", "source", "regular"] {
        runtime.set_behaviour(name, behaviour(None));
    }
}

fn all(status: &PodStatus) -> impl Iterator<Item = &core::ContainerStatus> {
    status.init_container_statuses.iter().chain(&status.container_statuses).flatten()
}

/// Whether the condition `AllContainersRestarting` has this status.
fn restarting(status: &PodStatus, wanted: &str) -> bool {
    let mut conditions = status.conditions.iter().flatten();
    conditions.any(|c| c.type_ == "AllContainersRestarting" && c.status == wanted)
}

/// Whether each container of a ready pod was restarted `count` times.
fn restarted(status: &PodStatus, count: i32) -> bool {
    is_ready(status)
        && all(status).count() == 4
        && all(status).all(|c| {
            let last = c.last_state.as_ref().and_then(|s| s.terminated.as_ref());
            c.restart_count == count && (count == 0 || last.is_some())
        })
}

#[test]
fn an_exit_that_matches_restarts_all_containers_in_their_sandbox() {
    with_pod(pod_with_rule(), async |simulation| {
        set_behaviours(&simulation.runtime);
        until(simulation, |s| restarted(s, 0) && restarting(s, "False")).await;
        for count in 1..3 {
            simulation.runtime.end("source", 42);
            until(simulation, |s| restarting(s, "True")).await;
            let took = until(simulation, |s| restarted(s, count)).await;
            // Without a preStop hook, and without a back-off.
            assert!(took < Duration::from_secs(30), "{took:?}");
            let status = simulation.handle.reported.lock().status.clone();
            assert!(restarting(&status, "False"));
            assert_eq!(status.phase.as_deref(), Some("Running"));
            for container in all(&status) {
                let last = container.last_state.clone().unwrap().terminated.unwrap();
                assert_eq!(last.reason.as_deref(), Some("RestartingAllContainers"));
                assert_eq!(last.exit_code, 137);
            }
        }
        let trace = simulation.runtime.trace();
        let sandboxes = trace.iter().filter(|line| line.contains("run_sandbox")).count();
        assert_eq!(sandboxes, 1, "{trace:?}");
        let stops: Vec<&str> =
            trace.iter().filter_map(|l| l.split_once(" stop ")).map(|l| l.1).collect();
        assert_eq!(stops.len(), 4, "{stops:?}");
        assert!(stops[0].starts_with("regular ") && stops[1].starts_with("sidecar "), "{stops:?}");
        assert!(stops.iter().all(|stop| stop.ends_with(" 2")), "{stops:?}");
        // Another exit code ends the container only.
        simulation.runtime.end("source", 1);
        until(simulation, |s| state(s, "source").terminated.is_some()).await;
        base::clock::sleep(CALM).await;
        let status = simulation.handle.reported.lock().status.clone();
        assert!(restarting(&status, "False"));
        assert!(state(&status, "regular").running.is_some());
    });
}

#[test]
fn a_running_init_container_that_is_stopped_does_not_fail_the_pod() {
    let mut spec = pod_with_rule();
    let rules = spec["containers"][0]["restartPolicyRules"].take();
    spec["containers"][0] = json!({"name": "source", "image": "a:1"});
    let list = spec["initContainers"].as_array_mut().unwrap();
    list.reverse();
    list[0]["restartPolicyRules"] = rules;
    with_pod(spec, async |simulation| {
        set_behaviours(&simulation.runtime);
        simulation.runtime.set_behaviour("init", behaviour(None));
        until(simulation, |s| state(s, "init").running.is_some()).await;
        simulation.runtime.set_behaviour("init", behaviour(Some(1)));
        simulation.runtime.end("sidecar", 42);
        until(simulation, is_ready).await;
        let status = simulation.handle.reported.lock().status.clone();
        let counts: Vec<i32> = all(&status).map(|c| c.restart_count).collect();
        // The main containers had not started.
        assert_eq!(counts, [1, 1, 0, 0]);
    });
}

/// Runs a worker until the status is as expected. The worker ends wherever it is then, as with the
/// end of the agent.
async fn run_until(
    node: &Arc<Node>,
    events: &mut mpsc::Receiver<ContainerEvent>,
    pod: Arc<Pod>,
    wanted: impl Fn(&PodStatus) -> bool,
) -> PodStatus {
    let (worker, handle) = Worker::new(Arc::clone(node), desired(pod));
    let begun = base::clock::now();
    let follow = async {
        loop {
            let status = handle.reported.lock().status.clone();
            if wanted(&status) {
                return status;
            }
            assert!(begun.elapsed() < Duration::from_secs(600), "the status does not come");
            tokio::select! {
                biased;
                event = events.recv() => if let Some(event) = event {
                    handle.on_runtime_event(event);
                },
                () = base::clock::sleep(Duration::from_millis(20)) => {}
            }
        }
    };
    tokio::select! {
        biased;
        status = follow => status,
        _ = worker.run() => panic!("the worker ended"),
    }
}

/// Ends the agent `after` the exit of `source`. The status is known to the next process if
/// `is_known`: that of a static pod is not.
fn restart_agent(after: Duration, is_known: bool) -> PodStatus {
    let folder = tempfile::tempdir().unwrap();
    on_paused_clock(async {
        base::clock::simulate_wall_clock(Some(EPOCH));
        let tasks = Tasks::new(Shutdown::new());
        let (runtime, mut events) = FakeRuntime::new(1, tasks.clone());
        let node = node(folder.path(), runtime.clone(), &tasks).await;
        set_behaviours(&runtime);
        let with_status = |status: Option<PodStatus>| {
            let mut object = static_pod("p", &pod_with_rule()).object.clone();
            object.status = status.filter(|_| is_known);
            // A static pod starts without Services, which are not listed here.
            Arc::new(Pod::new(object, PodOrigin::Static).unwrap())
        };
        let pod = with_status(None);
        let status = run_until(&node, &mut events, pod, |s| restarted(s, 0)).await;
        runtime.end("source", 42);
        let (begun, marked) = (base::clock::now(), Cell::new(false));
        let pod = with_status(Some(status));
        let status = run_until(&node, &mut events, pod, |s| {
            marked.set(marked.get() || restarting(s, "True"));
            marked.get() && begun.elapsed() >= after
        });
        let pod = with_status(Some(status.await));
        // A container that was created and not started counts as an instance.
        let status = run_until(&node, &mut events, pod, |s| {
            is_ready(s) && all(s).all(|c| (1..=2).contains(&c.restart_count))
        });
        let status = status.await;
        tasks.shutdown().request();
        base::clock::simulate_wall_clock(None);
        status
    })
}

#[test]
fn a_restart_goes_on_after_the_end_of_the_agent() {
    for after in (0..60).map(|step| Duration::from_millis(step * 100)) {
        for is_known in [true, false] {
            let status = restart_agent(after, is_known);
            assert_eq!(status.phase.as_deref(), Some("Running"), "{after:?} {is_known}");
            assert!(restarting(&status, "False"), "{after:?} {is_known}");
        }
    }
}
