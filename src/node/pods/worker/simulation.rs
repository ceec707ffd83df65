//! Random pods with a fake runtime in simulated time: every change must follow an event or a
//! deadline, none the relist.
//!
//! A short run is part of the tests; `KUBE_LITE_SIMULATED_PODS=10000 cargo test -p node --release
//! random_pods` makes a long one, and `KUBE_LITE_SIMULATED_SEED=N` sets the first seed, for example
//! to repeat a failed one.

mod restart_all;

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use api::WatchEvent;
use api::k8s::api::core::v1::{self as core, ContainerState, PodStatus};
use async_trait::async_trait;
use base::{Kind, Shutdown, Tasks};
use bytes::Bytes;
use client::{Client, Error, Informers, Scope, Transport};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::Worker;
use crate::cgroups::Cgroups;
use crate::config::Config;
use crate::context::{ApiHandles, Node, NodeCaches, NodeIdentity, RuntimeHandles};
use crate::csi::Csi;
use crate::devices::DeviceManager;
use crate::dynamic_resources::DynamicResources;
use crate::machine::Machine;
use crate::pods::admission::supported_fields::{NodeFeatures, SelinuxFeatures};
use crate::pods::handle::{DesiredPod, WorkerHandle};
use crate::pods::pod::{Pod, PodOrigin};
use crate::resource_managers::ResourceManagers;
use crate::runtime::fake::{Behaviour, FakeRuntime, Random};
use crate::runtime::{RuntimeFeatures, RuntimeVersion};
use crate::status::pod::PodFailure;
use crate::user_namespaces::UserNamespaces;
use crate::volumes::scsi::Scsi;

/// Number of pods in the regular tests.
const PODS: u64 = 300;
/// The simulated wall clock at the start of each pod.
const EPOCH: Duration = Duration::from_secs(1_800_000_000);
/// How long a pod is left alone at the end: longer than each back-off and several relists.
const CALM: Duration = Duration::from_secs(1000);

/// Maximum number of runtime calls in the life of one pod; more indicate a busy loop.
const CALLS_MAX: u64 = 8000;

/// An API server that never answers.
#[derive(Debug)]
struct Silent;

#[async_trait]
impl Transport for Silent {
    async fn call(&self, _request: http::Request<Bytes>) -> Result<http::Response<Bytes>, Error> {
        std::future::pending().await
    }

    async fn watch(
        &self,
        _scope: &Scope,
        _resume_from: Option<i64>,
    ) -> Result<mpsc::Receiver<WatchEvent>, Error> {
        std::future::pending().await
    }
}

/// A node whose directories are in `folder`.
async fn node(folder: &Path, runtime: FakeRuntime, tasks: &Tasks) -> Arc<Node> {
    let client = Client::new(Arc::new(Silent), "simulation");
    let informers = Informers::new(client.clone(), tasks.clone());
    let address = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
    let mut config = Config::new("n", address, folder.join("data"), folder.join("run"));
    config.root_dir = folder.join("kubelet");
    config.pod_logs_dir = folder.join("pod-logs");
    config.container_logs_dir = folder.join("container-logs");
    let cgroups = Cgroups::in_folder(folder.join("cgroup"));
    let version = RuntimeVersion { name: "fake".to_owned(), version: "1".to_owned() };
    let caches = NodeCaches::new(&client, tasks, BTreeMap::new(), &config).await;
    let status_changed = Arc::clone(&caches.status_changed);
    Arc::new(Node {
        tasks: tasks.clone(),
        runtime: RuntimeHandles::new(Arc::new(runtime), version, Arc::default(), cgroups, &config),
        api: ApiHandles::new(&client, &informers, informers.of(), &config, tasks),
        csi: Csi::new(&client, &informers, informers.of(), &config, status_changed),
        selinux: Arc::default(),
        scsi: Scsi::new(&client, &config),
        dynamic_resources: DynamicResources::without_claims(
            &client,
            informers.of(),
            &config,
            tasks,
        ),
        caches,
        devices: Arc::new(DeviceManager::new(&config.root_dir, tasks)),
        resource_managers: Arc::new(ResourceManagers::inactive(&config.root_dir)),
        user_namespaces: UserNamespaces::empty(&config.root_dir),
        identity: NodeIdentity {
            config,
            machine: Machine::read(),
            features: NodeFeatures::new(RuntimeFeatures::default(), SelinuxFeatures::default()),
        },
    })
}

fn static_pod(uid: &str, spec: &Value) -> Arc<Pod> {
    let metadata = json!({"name": uid, "namespace": "d", "uid": uid, "generation": 1});
    let object = serde_json::from_value(json!({"metadata": metadata, "spec": spec})).unwrap();
    Arc::new(Pod::new(object, PodOrigin::Static).unwrap())
}

fn desired(pod: Arc<Pod>) -> DesiredPod {
    DesiredPod::new(pod)
}

/// One pod with its worker and its runtime.
struct Simulation {
    runtime: FakeRuntime,
    handle: Arc<WorkerHandle>,
    node: Arc<Node>,
}

impl Simulation {
    async fn start(folder: &Path, seed: u64, pod: Arc<Pod>) -> Self {
        base::clock::simulate_wall_clock(Some(EPOCH));
        let tasks = Tasks::new(Shutdown::new());
        let (runtime, mut events) = FakeRuntime::new(seed, tasks.clone());
        let node = node(folder, runtime.clone(), &tasks).await;
        let (worker, handle) = Worker::new(Arc::clone(&node), desired(pod));
        let handle = Arc::new(handle);
        let events_to = Arc::clone(&handle);
        tasks.spawn(Kind::Request, "simulated-events", async move {
            while let Some(event) = events.recv().await {
                events_to.on_runtime_event(event);
            }
            Ok::<(), std::convert::Infallible>(())
        });
        tasks.spawn(Kind::Request, "simulated-worker", worker.run());
        Self { runtime, handle, node }
    }

    fn change_pod(&self, change: impl FnOnce(&mut core::Pod)) {
        self.handle.desired.send_modify(|desired| {
            let mut object = desired.pod.object.clone();
            object.metadata.generation = object.metadata.generation.map(|g| g + 1);
            change(&mut object);
            desired.pod = Arc::new(Pod::new(object, desired.pod.origin).unwrap());
        });
    }

    /// Marks the pod as deleted with a grace period.
    fn delete(&self, grace: i64) {
        self.change_pod(|pod| {
            let now = jiff::Timestamp::from_second(1_800_000_000).unwrap();
            pod.metadata.deletion_timestamp =
                Some(api::k8s::apimachinery::pkg::apis::meta::v1::Time(now));
            pod.metadata.deletion_grace_period_seconds = Some(grace);
        });
    }

    fn stop(&self) {
        self.node.tasks.shutdown().request();
        base::clock::simulate_wall_clock(None);
    }
}

fn probe(random: &mut Random, kind: &str, name: &str) -> Value {
    json!({"exec": {"command": [kind, name]}, "periodSeconds": 5 + random.below(40),
        "initialDelaySeconds": random.below(20), "failureThreshold": 1 + random.below(3)})
}

fn hook(random: &mut Random) -> Value {
    let exit_code = u64::from(random.chance(10));
    json!({"exec": {"command": ["hook", random.below(20).to_string(), exit_code.to_string()]}})
}

fn container(random: &mut Random, name: &str, sidecar: bool, init: bool) -> Value {
    let policy = if random.chance(20) { "Always" } else { "IfNotPresent" };
    let mut out = json!({"name": name, "image": "example.com/a:1", "imagePullPolicy": policy});
    if sidecar {
        out["restartPolicy"] = json!("Always");
    }
    if !init || sidecar {
        for kind in ["startup", "readiness", "liveness"] {
            if random.chance(30) {
                out[format!("{kind}Probe")] = probe(random, kind, name);
            }
        }
        let mut lifecycle = json!({});
        for kind in ["postStart", "preStop"] {
            if random.chance(15) {
                lifecycle[kind] = hook(random);
            }
        }
        out["lifecycle"] = lifecycle;
        if random.chance(40) {
            out["resources"] = resources(random);
        }
        if random.chance(20) {
            out["resizePolicy"] =
                json!([{"resourceName": "memory", "restartPolicy": "RestartContainer"}]);
        }
    }
    out
}

fn resources(random: &mut Random) -> Value {
    let amounts = json!({"cpu": format!("{}m", 100 * (1 + random.below(5))),
        "memory": format!("{}Mi", 10 * (1 + random.below(5)))});
    json!({"requests": amounts, "limits": amounts})
}

/// A random pod and the behaviour of its containers.
fn random_pod(random: &mut Random) -> (Value, Vec<(String, Behaviour)>) {
    let mut behaviours = Vec::new();
    let mut init = Vec::new();
    let restart = ["Always", "Always", "OnFailure", "Never"][random.below(4) as usize];
    for index in 0..random.below(4) {
        let (name, sidecar) = (format!("i{index}"), random.chance(50));
        init.push(container(random, &name, sidecar, true));
        let runs_for = (!sidecar || random.chance(20)).then(|| 1 + random.below(60));
        let fails = if random.chance(30) { 40 } else { 0 };
        behaviours.push((name, Behaviour { runs_for, fails, stops_after: random.below(4000) }));
    }
    let mut main = Vec::new();
    for index in 0..1 + random.below(3) {
        let name = format!("m{index}");
        main.push(container(random, &name, false, false));
        let runs_for = random.chance(30).then(|| 1 + random.below(400));
        let behaviour = Behaviour { runs_for, fails: 50, stops_after: random.below(40_000) };
        behaviours.push((name, behaviour));
    }
    let mut spec = json!({"restartPolicy": restart, "initContainers": init, "containers": main,
        "terminationGracePeriodSeconds": random.below(40)});
    if random.chance(10) {
        spec["activeDeadlineSeconds"] = json!(30 + random.below(600));
    }
    (spec, behaviours)
}

/// Gives some pods rules that restart all of their containers. Exits of sidecars and main
/// containers match only if a disturbance causes them: there is no back-off between such restarts.
fn add_restart_rules(random: &mut Random, spec: &mut Value) {
    if !random.chance(30) {
        return;
    }
    for (list, policies) in [("initContainers", 2), ("containers", 3)] {
        for container in spec[list].as_array_mut().unwrap() {
            if !random.chance(50) {
                continue;
            }
            let is_init = list == "initContainers" && container["restartPolicy"].is_null();
            let codes = if is_init { json!([1, 42]) } else { json!([42]) };
            if container["restartPolicy"].is_null() {
                // An init container with `Always` would be a sidecar.
                let policy = ["Never", "OnFailure", "Always"][random.below(policies) as usize];
                container["restartPolicy"] = json!(policy);
            }
            container["restartPolicyRules"] = json!([{"action": "RestartAllContainers",
                "exitCodes": {"operator": "In", "values": codes}}]);
        }
    }
}

/// Disturbs a pod in a random way.
fn disturb(simulation: &Simulation, random: &mut Random, names: &[String]) {
    let name = &names[random.below(names.len() as u64) as usize];
    let kind = ["startup", "readiness", "liveness"][random.below(3) as usize];
    let runtime = &simulation.runtime;
    match random.below(14) {
        0..=2 => runtime.set_healthy(&format!("{kind} {name}"), false),
        3..=5 => names.iter().for_each(|name| {
            for kind in ["startup", "readiness", "liveness"] {
                runtime.set_healthy(&format!("{kind} {name}"), true);
            }
        }),
        6 => runtime.end(name, [0, 1, 42][random.below(3) as usize]),
        7 => runtime.lose_sandbox(),
        8 => runtime.set_refuses_updates(random.chance(50)),
        9 => runtime.set_away(true),
        10 => simulation.change_pod(|pod| {
            let spec = pod.spec.as_mut().unwrap();
            spec.containers[0].image = Some(format!("example.com/a:{}", random.below(3)));
        }),
        11 => simulation.change_pod(|pod| {
            let value =
                json!([{"name": format!("e{}", random.below(3)), "image": "example.com/e:1"}]);
            let spec = pod.spec.as_mut().unwrap();
            spec.ephemeral_containers = serde_json::from_value(value).unwrap();
        }),
        _ => simulation.change_pod(|pod| {
            let spec = pod.spec.as_mut().unwrap();
            let all = spec.containers.iter_mut().chain(spec.init_containers.iter_mut().flatten());
            for container in all.filter(|c| c.resources.is_some()) {
                let new = serde_json::from_value(resources(random)).unwrap();
                container.resources = Some(new);
            }
        }),
    }
}

/// Ends a pod in a random way.
fn end(simulation: &Simulation, random: &mut Random) {
    match random.below(5) {
        0 => simulation.handle.desired.send_modify(|d| d.removed = true),
        1 => {
            let (reason, message) = ("Evicted".to_owned(), "short".to_owned());
            let verdict = PodFailure { reason, message, grace: Some(1), disruption: true };
            simulation.handle.desired.send_modify(|d| d.rejection = Some(verdict));
        }
        2 => simulation.handle.desired.send_modify(|d| d.halt_seconds = Some(10)),
        _ => simulation.delete(random.below(60) as i64),
    }
}

/// The outcome of a simulated pod.
#[derive(Debug, PartialEq, Eq)]
struct Outcome {
    relist_changes: u64,
    calls: u64,
    trace: Vec<String>,
}

fn simulate(folder: &Path, seed: u64) -> Outcome {
    seed_randomness(Some(seed));
    on_paused_clock(async {
        let mut random = Random::new(seed ^ 0xf00d);
        let (mut spec, behaviours) = random_pod(&mut random);
        add_restart_rules(&mut Random::new(seed ^ 0xa11), &mut spec);
        let pod = static_pod(&format!("p{seed}"), &spec);
        let simulation = Simulation::start(folder, seed, pod).await;
        for (name, behaviour) in &behaviours {
            simulation.runtime.set_behaviour(name, *behaviour);
        }
        let names: Vec<String> = behaviours.into_iter().map(|(name, _)| name).collect();
        for _ in 0..random.below(6) {
            base::clock::sleep(Duration::from_millis(random.below(200_000))).await;
            disturb(&simulation, &mut random, &names);
            if random.chance(50) {
                base::clock::sleep(Duration::from_millis(random.below(30_000))).await;
            }
            simulation.runtime.set_away(false);
        }
        base::clock::sleep(CALM).await;
        if random.chance(60) {
            end(&simulation, &mut random);
            base::clock::sleep(Duration::from_millis(random.below(20_000))).await;
            if random.chance(30) {
                simulation.delete(1);
            }
            base::clock::sleep(CALM).await;
        }
        let relist_changes = simulation.handle.reported.lock().relist_changes;
        simulation.stop();
        let runtime = &simulation.runtime;
        Outcome { relist_changes, calls: runtime.calls(), trace: runtime.trace() }
    })
}

#[expect(clippy::disallowed_methods, reason = "a simulation: back-offs follow from the seed, too")]
fn seed_randomness(seed: Option<u64>) {
    base::clock::seed_this_thread(seed);
}

/// Runs `scenario` on a paused clock that begins at [`EPOCH`].
fn on_paused_clock<T>(scenario: impl Future<Output = T>) -> T {
    let builder = &mut tokio::runtime::Builder::new_current_thread();
    builder.enable_time().start_paused(true).build().unwrap().block_on(scenario)
}

#[expect(clippy::disallowed_methods, reason = "how long a run is, is the caller's choice")]
fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

#[expect(clippy::print_stdout, reason = "the count of a long run is what it is made for")]
#[test]
fn random_pods_never_change_by_the_relist_alone() {
    let folder = tempfile::tempdir().unwrap();
    let first = number("KUBE_LITE_SIMULATED_SEED").unwrap_or(0);
    let pods = number("KUBE_LITE_SIMULATED_PODS").unwrap_or(PODS);
    let (mut failed, mut busy) = (Vec::new(), Vec::new());
    for seed in first..first + pods {
        let own = folder.path().join(seed.to_string());
        let outcome = simulate(&own, seed);
        if outcome.calls > CALLS_MAX {
            busy.push((seed, outcome.calls));
        }
        if outcome.relist_changes > 0 {
            // The calls that led to it, for a repetition of this seed.
            outcome.trace.iter().for_each(|line| println!("{line}"));
            failed.push((seed, outcome.relist_changes));
        }
        let _ = std::fs::remove_dir_all(&own);
    }
    println!("{pods} random pods, {} changed by a relist alone", failed.len());
    assert!(failed.is_empty(), "seeds and their changes by a relist: {failed:?}");
    assert!(busy.is_empty(), "seeds and their calls of the runtime: {busy:?}");
}

#[test]
fn the_same_seed_gives_the_same_pod_and_the_same_calls() {
    let folder = tempfile::tempdir().unwrap();
    for seed in 0..10 {
        let first = simulate(&folder.path().join(format!("a{seed}")), seed);
        let second = simulate(&folder.path().join(format!("b{seed}")), seed);
        assert_eq!(first, second, "seed {seed}");
    }
}

/// Waits until the published status is as expected; returns the time taken.
async fn until(simulation: &Simulation, wanted: impl Fn(&PodStatus) -> bool) -> Duration {
    let begun = base::clock::now();
    while !wanted(&simulation.handle.reported.lock().status) {
        assert!(begun.elapsed() < Duration::from_secs(600), "the status does not come");
        base::clock::sleep(Duration::from_millis(50)).await;
    }
    begun.elapsed()
}

fn is_ready(status: &PodStatus) -> bool {
    status.conditions.iter().flatten().any(|c| c.type_ == "Ready" && c.status == "True")
}

fn state(status: &PodStatus, name: &str) -> ContainerState {
    let all = status.container_statuses.iter().chain(&status.init_container_statuses).flatten();
    all.filter(|c| c.name == name).find_map(|c| c.state.clone()).unwrap_or_default()
}

/// Runs a scenario with a pod of this specification.
fn with_pod(spec: Value, scenario: impl AsyncFnOnce(&Simulation)) {
    let folder = tempfile::tempdir().unwrap();
    // With this seed no runtime call fails.
    let seed = 1;
    on_paused_clock(async {
        let pod = static_pod("p", &spec);
        let simulation = Simulation::start(folder.path(), seed, pod).await;
        scenario(&simulation).await;
        simulation.stop();
    });
}

#[test]
fn main_containers_start_after_sidecars_without_delay() {
    let sidecar = |name: &str| json!({"name": name, "image": "a:1", "restartPolicy": "Always"});
    let init = json!({"name": "i", "image": "a:1"});
    for init in [json!([init, sidecar("s")]), json!([sidecar("s"), sidecar("t")])] {
        let spec = json!({"initContainers": init, "containers": [{"name": "m", "image": "a:1"}]});
        with_pod(spec, async |simulation| {
            let ends = Behaviour { runs_for: Some(1), fails: 0, stops_after: 0 };
            simulation.runtime.set_behaviour("i", ends);
            let took = until(simulation, is_ready).await;
            assert!(took < Duration::from_secs(5), "{took:?}");
        });
    }
}

#[test]
fn exits_are_reported_while_other_containers_still_stop() {
    let spec = json!({"terminationGracePeriodSeconds": 30, "containers": [
        {"name": "fast", "image": "a:1"},
        {"name": "slow", "image": "a:1", "lifecycle": {"preStop": {"sleep": {"seconds": 20}}}}]});
    for how in ["delete", "evict", "halt"] {
        with_pod(spec.clone(), async |simulation| {
            until(simulation, is_ready).await;
            match how {
                "delete" => simulation.delete(30),
                "halt" => simulation.handle.desired.send_modify(|d| d.halt_seconds = Some(30)),
                _ => {
                    let (reason, message) = ("Evicted".to_owned(), "short".to_owned());
                    let verdict = PodFailure { reason, message, grace: None, disruption: false };
                    simulation.handle.desired.send_modify(|d| d.rejection = Some(verdict));
                }
            }
            let ended = |s: &PodStatus| state(s, "fast").terminated.is_some();
            let took = until(simulation, ended).await;
            let status = simulation.handle.reported.lock().status.clone();
            assert!(took < Duration::from_secs(3), "{how}: {took:?}");
            assert_eq!(state(&status, "fast").terminated.unwrap().exit_code, 0, "{how}");
            assert!(state(&status, "slow").running.is_some(), "{how}");
            assert!(!is_ready(&status), "{how}");
            assert_ne!(status.phase.as_deref(), Some("Failed"), "{how}: a container still runs");
        });
    }
}

#[test]
fn readiness_turns_false_during_the_pre_stop_hook() {
    let probe = json!({"exec": {"command": ["readiness", "m"]}, "periodSeconds": 1,
        "failureThreshold": 1});
    let spec = json!({"terminationGracePeriodSeconds": 30, "containers": [{"name": "m",
        "image": "a:1", "readinessProbe": probe,
        "lifecycle": {"preStop": {"sleep": {"seconds": 20}}}}]});
    with_pod(spec, async |simulation| {
        until(simulation, is_ready).await;
        simulation.delete(30);
        base::clock::sleep(Duration::from_secs(2)).await;
        assert!(is_ready(&simulation.handle.reported.lock().status), "the probe still succeeds");
        simulation.runtime.set_healthy("readiness m", false);
        let took = until(simulation, |s| !is_ready(s)).await;
        assert!(took < Duration::from_secs(3), "{took:?}");
        assert!(state(&simulation.handle.reported.lock().status, "m").running.is_some());
    });
}

#[test]
fn a_new_generation_is_observed_with_its_resize_in_progress() {
    let spec = |cpu: &str| {
        let amounts = json!({"cpu": cpu, "memory": "20Mi"});
        let resources = json!({"requests": amounts, "limits": amounts});
        let of = |name: &str| json!({"name": name, "image": "a:1", "resources": resources});
        json!({"containers": [of("a"), of("b"), of("c")]})
    };
    with_pod(spec("100m"), async |simulation| {
        until(simulation, is_ready).await;
        simulation.runtime.set_refuses_updates(true);
        simulation.change_pod(|pod| {
            pod.spec = serde_json::from_value(spec("200m")).unwrap();
        });
        until(simulation, |s| s.observed_generation == Some(2)).await;
        let resizes =
            |s: &PodStatus| s.conditions.iter().flatten().any(|c| c.type_ == "PodResizeInProgress");
        assert!(resizes(&simulation.handle.reported.lock().status));
        simulation.runtime.set_refuses_updates(false);
        let took = until(simulation, |s| !resizes(s)).await;
        assert!(took < Duration::from_secs(90), "{took:?}");
        let updates = simulation.runtime.trace().iter().filter(|t| t.contains("update")).count();
        assert_eq!(updates, 3);
        let status = simulation.handle.reported.lock().status.clone();
        for container in status.container_statuses.iter().flatten() {
            let limits = container.resources.as_ref().and_then(|r| r.limits.as_ref());
            assert_eq!(limits.unwrap()["cpu"].0, "200m");
        }
    });
}
