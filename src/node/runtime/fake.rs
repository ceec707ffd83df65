//! A container runtime in memory for simulations: a seed determines how containers run, fail and
//! end, in tokio's time.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use base::{Kind, Tasks};
use parking_lot::Mutex;
use proto::runtime::v1 as cri;
use tokio::sync::mpsc;

use super::{
    ContainerEvent, ContainerEventKind, ExecOutput, ImageFileSystems, Runtime, RuntimeError,
    RuntimeVersion, StreamingRequest,
};
use crate::pods::observed::label;

/// Maximum number of queued events, which a simulated pod never reaches.
const EVENTS_MAX: usize = 4096;

/// A pseudorandom number generator.
#[derive(Debug, Clone)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5851_f42d_4c95_7f2d)
    }

    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        // xorshift64*.
        let mut x = self.0.max(1);
        x ^= x >> 12;
        x ^= x << 25;
        x ^= x >> 27;
        self.0 = x;
        (x.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % limit.max(1)
    }

    /// Returns true with a probability of `percent`.
    pub(crate) fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    fn millis(&mut self, limit: u64) -> Duration {
        Duration::from_millis(self.below(limit))
    }
}

/// The behaviour of containers with one name.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Behaviour {
    /// Maximum run time in seconds; `None` for a container that does not exit.
    pub(crate) runs_for: Option<u64>,
    /// Percentage of exits with an error.
    pub(crate) fails: u64,
    /// Maximum time from the stop signal to the exit, in milliseconds.
    pub(crate) stops_after: u64,
}

#[derive(Debug)]
struct Sandbox {
    status: cri::PodSandboxStatus,
}

#[derive(Debug)]
struct Container {
    sandbox: String,
    name: String,
    status: cri::ContainerStatus,
}

#[derive(Debug)]
struct State {
    random: Random,
    next_id: u64,
    sandboxes: Vec<Sandbox>,
    containers: Vec<Container>,
    behaviours: HashMap<String, Behaviour>,
    /// Commands of failing probes.
    unhealthy: HashSet<String>,
    /// Calls fail as unavailable.
    away: bool,
    /// Updates of resources fail.
    refuses_updates: bool,
    /// No sandbox and no container fails to be created or started.
    is_reliable: bool,
    calls: u64,
    /// Calls that changed something, to compare two runs.
    trace: Vec<String>,
}

/// The runtime; cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct FakeRuntime {
    state: Arc<Mutex<State>>,
    events: mpsc::Sender<ContainerEvent>,
    tasks: Tasks,
}

fn nanos() -> i64 {
    i64::try_from(base::clock::unix_time().as_nanos()).unwrap_or(i64::MAX)
}

fn error(code: tonic::Code, message: &str) -> RuntimeError {
    RuntimeError { operation: "fake", code, message: message.to_owned() }
}

/// Returns how long the listing lags behind an announced exit: usually not at all.
fn listing_lag(random: &mut Random) -> Duration {
    match random.below(100) {
        // As containerd, while it deletes the tasks of a hundred containers that end at a time.
        0 => random.millis(40_000),
        1..5 => random.millis(3000),
        5..30 => random.millis(200),
        _ => Duration::ZERO,
    }
}

impl FakeRuntime {
    /// Creates a runtime and the stream of its events.
    pub(crate) fn new(seed: u64, tasks: Tasks) -> (Self, mpsc::Receiver<ContainerEvent>) {
        let (events, receiver) = mpsc::channel(EVENTS_MAX);
        let state = State {
            random: Random::new(seed),
            next_id: 0,
            sandboxes: Vec::new(),
            containers: Vec::new(),
            behaviours: HashMap::new(),
            unhealthy: HashSet::new(),
            away: false,
            refuses_updates: false,
            is_reliable: false,
            calls: 0,
            trace: Vec::new(),
        };
        (Self { state: Arc::new(Mutex::new(state)), events, tasks }, receiver)
    }

    pub(crate) fn set_behaviour(&self, name: &str, behaviour: Behaviour) {
        self.state.lock().behaviours.insert(name.to_owned(), behaviour);
    }

    /// Lets a probe command succeed or fail.
    pub(crate) fn set_healthy(&self, command: &str, healthy: bool) {
        let mut state = self.state.lock();
        if healthy {
            state.unhealthy.remove(command);
        } else {
            state.unhealthy.insert(command.to_owned());
        }
    }

    pub(crate) fn set_away(&self, away: bool) {
        self.state.lock().away = away;
    }

    pub(crate) fn set_refuses_updates(&self, refuses: bool) {
        self.state.lock().refuses_updates = refuses;
    }

    /// Lets each sandbox and container be created and started.
    pub(crate) fn set_reliable(&self) {
        self.state.lock().is_reliable = true;
    }

    /// Number of calls so far.
    pub(crate) fn calls(&self) -> u64 {
        self.state.lock().calls
    }

    pub(crate) fn trace(&self) -> Vec<String> {
        self.state.lock().trace.clone()
    }

    /// Ends the running container of a name as if its process had exited.
    pub(crate) fn end(&self, name: &str, exit_code: i32) {
        let id = {
            let state = self.state.lock();
            let running = |c: &&Container| {
                c.name == name && c.status.state() == cri::ContainerState::ContainerRunning
            };
            state.containers.iter().find(running).map(|c| c.status.id.clone())
        };
        if let Some(id) = id {
            self.exit(&id, exit_code);
        }
    }

    /// Ends the newest sandbox with its containers. The listing may lag behind the event.
    pub(crate) fn lose_sandbox(&self) {
        let (id, lag) = {
            let mut state = self.state.lock();
            let Some(sandbox) = state.sandboxes.last() else { return };
            let id = sandbox.status.id.clone();
            (id, listing_lag(&mut state.random))
        };
        for container in self.of_sandbox(&id) {
            self.exit(&container, 137);
        }
        self.announce(&id);
        self.after(lag, move |own| {
            let mut state = own.state.lock();
            if let Some(sandbox) = state.sandboxes.iter_mut().find(|s| s.status.id == id) {
                sandbox.status.set_state(cri::PodSandboxState::SandboxNotready);
            }
        });
    }

    /// Calls `act` after a pause, or at once.
    fn after(&self, pause: Duration, act: impl FnOnce(&Self) + Send + 'static) {
        if pause.is_zero() {
            return act(self);
        }
        let own = self.clone();
        self.tasks.spawn(Kind::Request, "fake-lag", async move {
            base::clock::sleep(pause).await;
            act(&own);
            Ok::<(), std::convert::Infallible>(())
        });
    }

    fn of_sandbox(&self, id: &str) -> Vec<String> {
        let state = self.state.lock();
        let of = state.containers.iter().filter(|c| c.sandbox == id);
        of.map(|c| c.status.id.clone()).collect()
    }

    fn announce(&self, id: &str) {
        let event = ContainerEvent { id: id.to_owned(), kind: ContainerEventKind::Exited };
        self.events.try_send(event).expect("a simulated pod has few events at once");
    }

    /// Ends a container. The listing may lag behind the event.
    fn exit(&self, id: &str, exit_code: i32) {
        let lag = {
            let mut state = self.state.lock();
            let running = |c: &Container| {
                c.status.id == id && c.status.state() == cri::ContainerState::ContainerRunning
            };
            if !state.containers.iter().any(running) {
                return;
            }
            listing_lag(&mut state.random)
        };
        self.announce(id);
        let id = id.to_owned();
        self.after(lag, move |own| own.set_exited(&id, exit_code));
    }

    fn set_exited(&self, id: &str, exit_code: i32) {
        let mut state = self.state.lock();
        let container = state.containers.iter_mut().find(|c| c.status.id == id);
        let running =
            |c: &&mut Container| c.status.state() == cri::ContainerState::ContainerRunning;
        let Some(container) = container.filter(running) else { return };
        container.status.set_state(cri::ContainerState::ContainerExited);
        container.status.finished_at = nanos();
        container.status.exit_code = exit_code;
    }

    /// Every call takes time, and fails while the runtime is unavailable.
    async fn call(&self) -> Result<(), RuntimeError> {
        let (pause, away) = {
            let mut state = self.state.lock();
            state.calls += 1;
            (state.random.millis(15), state.away)
        };
        base::clock::sleep(pause).await;
        if away { Err(error(tonic::Code::Unavailable, "connection refused")) } else { Ok(()) }
    }

    fn note(state: &mut State, what: String) {
        let at = base::clock::unix_time().as_millis();
        state.trace.push(format!("{at} {what}"));
    }
}

#[async_trait]
impl Runtime for FakeRuntime {
    async fn version(&self) -> Result<RuntimeVersion, RuntimeError> {
        Ok(RuntimeVersion { name: "fake".to_owned(), version: "1".to_owned() })
    }

    async fn status(&self) -> Result<cri::StatusResponse, RuntimeError> {
        Ok(cri::StatusResponse::default())
    }

    async fn run_sandbox(
        &self,
        config: cri::PodSandboxConfig,
        _handler: &str,
    ) -> Result<String, RuntimeError> {
        self.call().await?;
        let mut state = self.state.lock();
        if state.random.chance(5) && !state.is_reliable {
            return Err(error(tonic::Code::Unknown, "no address left"));
        }
        state.next_id += 1;
        let id = format!("s{}", state.next_id);
        let status = cri::PodSandboxStatus {
            id: id.clone(),
            metadata: config.metadata,
            state: cri::PodSandboxState::SandboxReady.into(),
            created_at: nanos(),
            network: Some(cri::PodSandboxNetworkStatus {
                ip: "10.0.0.9".to_owned(),
                additional_ips: Vec::new(),
            }),
            labels: config.labels,
            ..cri::PodSandboxStatus::default()
        };
        state.sandboxes.push(Sandbox { status });
        Self::note(&mut state, format!("run_sandbox {id}"));
        Ok(id)
    }

    async fn stop_sandbox(&self, id: &str) -> Result<(), RuntimeError> {
        self.call().await?;
        let ready = {
            let mut state = self.state.lock();
            let sandbox = state.sandboxes.iter_mut().find(|s| s.status.id == id);
            let Some(sandbox) = sandbox else { return Ok(()) };
            let ready = sandbox.status.state() == cri::PodSandboxState::SandboxReady;
            sandbox.status.set_state(cri::PodSandboxState::SandboxNotready);
            Self::note(&mut state, format!("stop_sandbox {id}"));
            ready
        };
        for container in self.of_sandbox(id) {
            self.exit(&container, 137);
        }
        if ready {
            self.announce(id);
        }
        Ok(())
    }

    async fn remove_sandbox(&self, id: &str) -> Result<(), RuntimeError> {
        self.call().await?;
        let mut state = self.state.lock();
        state.sandboxes.retain(|s| s.status.id != id);
        state.containers.retain(|c| c.sandbox != id);
        Self::note(&mut state, format!("remove_sandbox {id}"));
        Ok(())
    }

    async fn sandboxes(&self, _uid: Option<&str>) -> Result<Vec<cri::PodSandbox>, RuntimeError> {
        self.call().await?;
        let state = self.state.lock();
        let listed =
            |s: &Sandbox| cri::PodSandbox { id: s.status.id.clone(), ..cri::PodSandbox::default() };
        Ok(state.sandboxes.iter().map(listed).collect())
    }

    async fn sandbox_status(&self, id: &str) -> Result<cri::PodSandboxStatus, RuntimeError> {
        self.call().await?;
        let state = self.state.lock();
        let found = state.sandboxes.iter().find(|s| s.status.id == id);
        found.map(|s| s.status.clone()).ok_or_else(|| error(tonic::Code::NotFound, "gone"))
    }

    async fn create_container(
        &self,
        sandbox: &str,
        config: cri::ContainerConfig,
        sandbox_config: cri::PodSandboxConfig,
    ) -> Result<String, RuntimeError> {
        self.call().await?;
        // The names of logs have restart counts, which outlive the container.
        let log = Path::new(&sandbox_config.log_directory).join(&config.log_path);
        let _ = std::fs::write(&log, "");
        let mut state = self.state.lock();
        if state.random.chance(3) && !state.is_reliable {
            return Err(error(tonic::Code::Unknown, "no space left on device"));
        }
        state.next_id += 1;
        let id = format!("c{}", state.next_id);
        let name = config.labels.get(label::CONTAINER_NAME).cloned().unwrap_or_default();
        let status = cri::ContainerStatus {
            id: id.clone(),
            metadata: config.metadata,
            state: cri::ContainerState::ContainerCreated.into(),
            created_at: nanos(),
            image: config.image,
            labels: config.labels,
            annotations: config.annotations,
            log_path: log.display().to_string(),
            ..cri::ContainerStatus::default()
        };
        Self::note(&mut state, format!("create {name} {id}"));
        state.containers.push(Container { sandbox: sandbox.to_owned(), name, status });
        Ok(id)
    }

    async fn start_container(&self, id: &str) -> Result<(), RuntimeError> {
        self.call().await?;
        let (behaviour, ends_at_once) = {
            let mut state = self.state.lock();
            if state.random.chance(3) && !state.is_reliable {
                return Err(error(tonic::Code::Unknown, "exec format error"));
            }
            let container = state.containers.iter().find(|c| c.status.id == id);
            let container = container.ok_or_else(|| error(tonic::Code::NotFound, "gone"))?;
            let behaviour = state.behaviours.get(&container.name).copied();
            let ends = behaviour.is_some_and(|b| b.runs_for.is_some());
            let at_once = ends && state.random.chance(20);
            (behaviour, at_once.then(|| state.random.millis(300)))
        };
        // The process exits before this call returns: its event comes while the container is listed
        // as created.
        if let Some(pause) = ends_at_once {
            self.announce(id);
            base::clock::sleep(pause).await;
        }
        let (end, exit_code) = {
            let mut state = self.state.lock();
            let container = state.containers.iter_mut().find(|c| c.status.id == id);
            let container = container.ok_or_else(|| error(tonic::Code::NotFound, "gone"))?;
            container.status.set_state(cri::ContainerState::ContainerRunning);
            container.status.started_at = nanos();
            let name = container.name.clone();
            Self::note(&mut state, format!("start {name} {id}"));
            let runs_for = behaviour.and_then(|b| b.runs_for);
            let end = runs_for.map(|seconds| state.random.millis(seconds * 1000 + 1));
            let fails = behaviour.is_some_and(|b| state.random.chance(b.fails));
            (end, i32::from(fails))
        };
        let id = id.to_owned();
        if ends_at_once.is_some() {
            // It is then listed as running, and only later as exited.
            let lag = listing_lag(&mut self.state.lock().random);
            self.after(lag, move |own| own.set_exited(&id, exit_code));
        } else if let Some(end) = end {
            self.after(end, move |own| own.exit(&id, exit_code));
        }
        Ok(())
    }

    async fn stop_container(&self, id: &str, grace: Duration) -> Result<(), RuntimeError> {
        self.call().await?;
        let takes = {
            let mut state = self.state.lock();
            let container = state.containers.iter().find(|c| c.status.id == id);
            let Some(container) = container else { return Ok(()) };
            let name = container.name.clone();
            Self::note(&mut state, format!("stop {name} {id} {}", grace.as_secs()));
            let limit = state.behaviours.get(&name).map_or(100, |b| b.stops_after);
            state.random.millis(limit + 1)
        };
        base::clock::sleep(takes.min(grace)).await;
        self.exit(id, if takes < grace { 0 } else { 137 });
        Ok(())
    }

    async fn remove_container(&self, id: &str) -> Result<(), RuntimeError> {
        self.call().await?;
        let mut state = self.state.lock();
        state.containers.retain(|c| c.status.id != id);
        Self::note(&mut state, format!("remove {id}"));
        Ok(())
    }

    async fn containers(&self, _uid: Option<&str>) -> Result<Vec<cri::Container>, RuntimeError> {
        self.call().await?;
        let state = self.state.lock();
        let listed = |c: &Container| cri::Container {
            id: c.status.id.clone(),
            pod_sandbox_id: c.sandbox.clone(),
            ..cri::Container::default()
        };
        Ok(state.containers.iter().map(listed).collect())
    }

    async fn container_status(&self, id: &str) -> Result<cri::ContainerStatus, RuntimeError> {
        self.call().await?;
        let state = self.state.lock();
        let found = state.containers.iter().find(|c| c.status.id == id);
        found.map(|c| c.status.clone()).ok_or_else(|| error(tonic::Code::NotFound, "gone"))
    }

    async fn update_container(
        &self,
        id: &str,
        resources: cri::LinuxContainerResources,
    ) -> Result<(), RuntimeError> {
        self.call().await?;
        let mut state = self.state.lock();
        if state.refuses_updates {
            return Err(error(tonic::Code::Unknown, "device or resource busy"));
        }
        let container = state.containers.iter_mut().find(|c| c.status.id == id);
        let container = container.ok_or_else(|| error(tonic::Code::NotFound, "gone"))?;
        let linux = Some(resources);
        container.status.resources = Some(cri::ContainerResources { linux, windows: None });
        Self::note(&mut state, format!("update {id}"));
        Ok(())
    }

    async fn exec(
        &self,
        _id: &str,
        command: &[String],
        _timeout: Duration,
    ) -> Result<ExecOutput, RuntimeError> {
        self.call().await?;
        // A hook takes the specified time.
        if let ["hook", seconds, exit_code] =
            command.iter().map(String::as_str).collect::<Vec<_>>()[..]
        {
            base::clock::sleep(Duration::from_secs(seconds.parse().unwrap_or(0))).await;
            let exit_code = exit_code.parse().unwrap_or(0);
            return Ok(ExecOutput { stdout: Vec::new(), stderr: Vec::new(), exit_code });
        }
        let fails = self.state.lock().unhealthy.contains(&command.join(" "));
        Ok(ExecOutput { stdout: Vec::new(), stderr: Vec::new(), exit_code: i32::from(fails) })
    }

    async fn streaming(&self, _request: StreamingRequest) -> Result<String, RuntimeError> {
        Err(error(tonic::Code::Unimplemented, "no streams"))
    }

    async fn reopen_log(&self, _id: &str) -> Result<(), RuntimeError> {
        Ok(())
    }

    async fn checkpoint_container(
        &self,
        _id: &str,
        _location: &str,
        _timeout: Duration,
    ) -> Result<(), RuntimeError> {
        Err(error(tonic::Code::Unimplemented, "no checkpoints"))
    }

    async fn stats(&self) -> Result<Vec<cri::ContainerStats>, RuntimeError> {
        Ok(Vec::new())
    }

    async fn pull_image(
        &self,
        image: cri::ImageSpec,
        _auth: Option<cri::AuthConfig>,
        _sandbox: cri::PodSandboxConfig,
    ) -> Result<String, RuntimeError> {
        self.call().await?;
        let (fails, takes) = {
            let mut state = self.state.lock();
            (state.random.chance(20), state.random.millis(20_000))
        };
        base::clock::sleep(takes).await;
        if fails { Err(error(tonic::Code::Unknown, "no such host")) } else { Ok(image.image) }
    }

    async fn image(&self, reference: &str) -> Result<Option<cri::Image>, RuntimeError> {
        self.call().await?;
        Ok(Some(cri::Image { id: reference.to_owned(), ..cri::Image::default() }))
    }

    async fn images(&self) -> Result<Vec<cri::Image>, RuntimeError> {
        Ok(Vec::new())
    }

    async fn remove_image(&self, _reference: &str) -> Result<(), RuntimeError> {
        Ok(())
    }

    async fn image_file_systems(&self) -> Result<ImageFileSystems, RuntimeError> {
        Ok(ImageFileSystems::default())
    }
}
