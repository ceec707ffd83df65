//! Wires the node agent together and starts its tasks.

mod enforcement;
mod static_pods;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use api::k8s::api::core::v1 as core;
use base::{Backoff, Kind, Tasks};
use client::events::EventType;
use client::{Client, Informer, Informers};
use tokio::sync::{mpsc, watch};

use self::enforcement::EnforcementFailure;
use crate::cgroups::Cgroups;
use crate::config::Config;
use crate::context::{ApiHandles, Node, NodeCaches, NodeIdentity, RuntimeHandles};
use crate::csi::{Csi, CsiPluginHandler};
use crate::devices::{DeviceManager, DevicePluginHandler, pod_resources};
use crate::dynamic_resources::{DraPluginHandler, DynamicResources};
use crate::events;
use crate::eviction;
use crate::generic_devices;
use crate::housekeeping;
use crate::image_access::ImageAccess;
use crate::image_registry::{ImageRegistry, Peers, RegistryConfig};
use crate::kubelet_api;
use crate::local_driver::LocalDriver;
use crate::machine::Machine;
use crate::plugins;
use crate::pods::admission::supported_fields::{NodeFeatures, SelinuxFeatures};
use crate::pods::manager::PodManager;
use crate::pods::shutdown;
use crate::pods::table::PodTable;
use crate::resource_managers::{ResourceManagers, ResourceManagersError, cpu_sets};
use crate::runtime::containerd::config::registries_dir;
use crate::runtime::containerd::events::{EVENTS_MAX, RuntimeSignal, listen};
use crate::runtime::containerd::import;
use crate::runtime::containerd::supervise;
use crate::runtime::containerd::supervise::ContainerdHandle;
use crate::runtime::cri::CriRuntime;
use crate::runtime::image_folder::{self, ImageFolder};
use crate::runtime::registries;
use crate::runtime::{Runtime, RuntimeFeatures, RuntimeVersion};
use crate::status;
use crate::status::node::allocatable::{self, AllocatableError};
use crate::user_namespaces::{UserNamespaces, UserNamespacesError};
use crate::volumes;
use crate::volumes::scsi::Scsi;
use crate::volumes::selinux::Selinux;
use crate::volumes::shared_mount::{self, SharedMountError};

/// How long the agent waits for the runtime to answer before the start fails.
const RUNTIME_WAIT: Duration = Duration::from_secs(120);

/// Why the node agent cannot start.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// No runtime was found, or it does not start; the text says what to install.
    #[error("cannot run containers: {0}")]
    Runtime(String),
    /// A directory or cgroup cannot be written.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// The directory of the kubelet is not and cannot become a shared mount.
    #[error("error configuring root directory: {0}")]
    RootDirectory(#[from] SharedMountError),
    /// More is reserved than the machine has.
    #[error(transparent)]
    Allocatable(#[from] AllocatableError),
    /// A cgroup of the system or of Kubernetes is not limited.
    #[error(transparent)]
    Enforcement(#[from] EnforcementFailure),
    /// The CPU, memory or topology manager does not start.
    #[error(transparent)]
    ResourceManagers(#[from] ResourceManagersError),
    /// The ranges of user namespaces do not fit, or a record of them is invalid.
    #[error("create user namespace manager: {0}")]
    UserNamespaces(#[from] UserNamespacesError),
}

/// Starts the node agent: the runtime first, then tasks in `tasks` for pods, status and lease.
/// Returns once the runtime answers. The tasks run until `tasks` is shut down; pods keep running
/// after that. The API server need not be reachable.
///
/// # Errors
///
/// No usable container runtime, or directories and cgroups that cannot be written.
pub async fn run(config: Config, client: Client, tasks: Tasks) -> Result<(), NodeError> {
    create_directories(&config)?;
    let user_namespaces = UserNamespaces::start(&config).await?;
    let (socket, containerd, oci_runtime) = start_runtime(&config, &tasks).await?;
    let runtime = cri_runtime(&config, &socket, &tasks);
    let version = wait_for(&runtime, &tasks).await?;
    describe(&config, &version, oci_runtime);
    let (features, selinux) = features(&config, &runtime, &version, &user_namespaces).await?;
    let machine = Machine::read();
    let (capacity, allocatable) = allocatable::capacity_and_allocatable(&config, &machine);
    allocatable::check(&config, &capacity)?;
    let cgroups = enforcement::set_up_cgroups(&config, &machine, (&capacity, &allocatable))?;
    if containerd.is_some() {
        import_pause_image(&config, &socket, &tasks).await?;
    }
    let informers = Informers::new(client.clone(), tasks.clone());
    let (pods, own_node) = own_informers(&informers, &config.node_name);
    let own = containerd.is_some().then_some(socket.as_path());
    let handles = runtime_handles(&config, runtime, version, cgroups, own, &tasks).await?;
    let local = LocalDriver::new(&config.node_name, &config.local_storage_dir, &tasks);
    let has_volumes = local.recover().await;
    let caches = NodeCaches::new(&client, &tasks, allocatable, &config).await;
    let status_changed = Arc::clone(&caches.status_changed);
    let node = Arc::new(Node {
        tasks: tasks.clone(),
        dynamic_resources: DynamicResources::start(&client, own_node.clone(), &config, &tasks)
            .await?,
        runtime: handles,
        csi: Csi::new(&client, &informers, own_node.clone(), &config, status_changed),
        scsi: Scsi::new(&client, &config),
        selinux,
        api: ApiHandles::new(&client, &informers, own_node, &config, &tasks),
        caches,
        devices: device_manager(&config, &tasks).await?,
        resource_managers: ResourceManagers::start(&config).await?,
        user_namespaces,
        identity: NodeIdentity { config, machine, features },
    });
    node.csi.drivers.set_built_in(local);
    announce(&node);
    enforcement::limit_reserved(&node).await?;
    let (sender, signals) = mpsc::channel::<RuntimeSignal>(EVENTS_MAX);
    let events = listen(socket.clone(), sender, tasks.shutdown().clone());
    tasks.spawn(Kind::Critical, "runtime-events", events);
    spawn_status(&node, client.clone());
    spawn_plugins(&node, has_volumes);
    spawn_healthz(&node);
    let http = node.identity.config.kubelet_api.clone();
    let http = http.map(|http| kubelet_api::listener(&http).map(|l| (http, l))).transpose()?;
    if containerd.is_some() {
        spawn_registries(&node);
        spawn_image_folder(&node, socket);
    }
    let statics = static_pods::spawn(&node, client, &pods);
    let pods = PodManager::new(Arc::clone(&node), pods, statics);
    pod_resources::serve(&node, pods.table())?;
    let resources = kubelet_api::NodeResources::new(&node, pods.table());
    node.identity.config.resource_usage.node_started(Box::new(resources));
    spawn_pod_observers(&node, &pods.table());
    let shutdown = tasks.shutdown().clone();
    if let Some((config, listener)) = http {
        let serve = kubelet_api::run(node, pods.table(), config, listener, shutdown.clone());
        tasks.spawn(Kind::Critical, "kubelet-api", serve);
    }
    let lost = move || containerd.iter().for_each(|containerd| containerd.check());
    tasks.spawn(Kind::Critical, "pods", pods.run(signals, lost, shutdown));
    Ok(())
}

/// The device manager with the built-in plugin, whose devices are listed.
async fn device_manager(config: &Config, tasks: &Tasks) -> std::io::Result<Arc<DeviceManager>> {
    let built_in = generic_devices::resources(&config.devices);
    let manager = DeviceManager::start(&config.root_dir, built_in, tasks).await?;
    generic_devices::start(&manager, &config.devices, tasks).await;
    Ok(manager)
}

/// Keeps the names of the runtimes for the status.
fn describe(config: &Config, version: &RuntimeVersion, oci_runtime: Option<String>) {
    let oci_runtime = oci_runtime.map(|name| format!(" with {name}")).unwrap_or_default();
    let text = format!("{} {}{oci_runtime}", version.name, version.version);
    let _ = config.runtime_description.set(text);
}

/// Reads the features of the machine and of the runtime, and gives `user_namespaces` those of its
/// handlers.
async fn features(
    config: &Config,
    runtime: &CriRuntime,
    version: &RuntimeVersion,
    user_namespaces: &UserNamespaces,
) -> Result<(NodeFeatures, Arc<Selinux>), NodeError> {
    let status = runtime.status().await.map_err(|e| NodeError::Runtime(e.to_string()))?;
    user_namespaces.update_handlers(&status);
    let selinux = volumes::start_selinux(&config.root_dir).await;
    let labels = SelinuxFeatures::new(selinux.is_enabled(), &config.runtime);
    Ok((NodeFeatures::new(RuntimeFeatures::of(version, &status), labels), selinux))
}

/// The client of the runtime at `socket`, and of the image service if that has its own.
fn cri_runtime(config: &Config, socket: &Path, tasks: &Tasks) -> CriRuntime {
    let runtime = CriRuntime::new(socket).with_problems(tasks.problems());
    match &config.runtime.image_endpoint {
        Some(endpoint) => runtime.with_image_service(endpoint),
        None => runtime,
    }
}

/// The informers of the pods of this node and of its Node object.
fn own_informers(informers: &Informers, name: &str) -> (Informer<core::Pod>, Informer<core::Node>) {
    let pods = Client::scope::<core::Pod>().fields(format!("spec.nodeName={name}"));
    let node = Client::scope::<core::Node>().fields(format!("metadata.name={name}"));
    (informers.scoped(pods), informers.scoped(node))
}

/// Serves `/healthz` as the kubelet does on port 10248.
fn spawn_healthz(node: &Node) {
    if let Some(at) = node.identity.config.healthz {
        let serve = kubelet_api::healthz::serve(at, node.tasks.clone());
        node.tasks.spawn(Kind::Critical, "kubelet-healthz", serve);
    }
}

/// The handles of the runtime. `own` is the socket of the supervised containerd, whose images the
/// node's registry serves.
async fn runtime_handles(
    config: &Config,
    runtime: CriRuntime,
    version: RuntimeVersion,
    cgroups: Cgroups,
    own: Option<&Path>,
    tasks: &Tasks,
) -> std::io::Result<RuntimeHandles> {
    let operations = Arc::clone(runtime.operations());
    let mut handles = RuntimeHandles::new(Arc::new(runtime), version, operations, cgroups, config);
    handles.image_registry = own.map(|socket| image_registry(config, &handles, socket, tasks));
    handles.image_access = Some(image_access(config, &*handles.cri, tasks).await?);
    Ok(handles)
}

/// Opens the records of image pulls, and finishes those of pulls that an earlier process began.
async fn image_access(
    config: &Config,
    runtime: &dyn Runtime,
    tasks: &Tasks,
) -> std::io::Result<Arc<ImageAccess>> {
    let policy = config.image_verification.clone();
    let (pods, pulls) = (config.max_pods, config.image_pulls_max);
    let access = ImageAccess::open(&config.root_dir, policy, pods, pulls, tasks).await?;
    if access.has_intents() {
        match runtime.images().await {
            Ok(images) => access.finish_intents(images).await,
            Err(error) => tracing::error!(%error, "failed to list images"),
        }
    }
    Ok(access)
}

/// Creates the directories of pods and of their logs. That of the kubelet becomes a shared mount.
fn create_directories(config: &Config) -> Result<(), NodeError> {
    base::fs::create_dir(&config.root_dir, 0o750)?;
    shared_mount::make_shared(&config.root_dir)?;
    for (dir, mode) in [
        (&config.root_dir.join("pods"), 0o750),
        (&config.root_dir.join("plugins"), 0o750),
        (&plugins_registry(config), 0o750),
        (&config.pod_logs_dir, 0o755),
        (&config.container_logs_dir, 0o755),
    ] {
        base::fs::create_dir(dir, mode)?;
    }
    Ok(())
}

/// The directory in which plugins announce themselves.
fn plugins_registry(config: &Config) -> PathBuf {
    config.root_dir.join("plugins_registry")
}

/// Starts the task that registers plugins: CSI drivers, device plugins, and drivers of claims.
fn spawn_plugins(node: &Arc<Node>, has_local_volumes: bool) {
    let csi = CsiPluginHandler::new(&node.csi, &node.tasks);
    let devices = DevicePluginHandler::new(&node.devices);
    let dra = DraPluginHandler::new(&node.dynamic_resources, &node.tasks);
    let handlers: plugins::PluginHandlers = vec![Arc::new(csi), Arc::new(devices), Arc::new(dra)];
    let directory = plugins_registry(&node.identity.config);
    let problems = node.tasks.problems().clone();
    let run = plugins::run(directory, handlers, problems, node.tasks.shutdown().clone());
    node.tasks.spawn(Kind::Critical, "plugins", run);
    if has_local_volumes {
        spawn_built_in_driver(node);
    }
}

/// Starts the task that adds the built-in CSI driver to the CSINode, which may be new although this
/// node has volumes.
fn spawn_built_in_driver(node: &Arc<Node>) {
    let (csi, shutdown) = (Arc::clone(&node.csi), node.tasks.shutdown().clone());
    node.tasks.spawn(Kind::Request, "built-in-driver", async move {
        let mut backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(60));
        while let Err(error) = csi.install_built_in().await {
            tracing::debug!(%error, "cannot add the built-in driver to the CSINode");
            tokio::select! {
                () = base::clock::sleep(backoff.next_delay()) => {}
                () = shutdown.requested() => break,
            }
        }
        Ok::<(), std::convert::Infallible>(())
    });
}

/// Starts the tasks that report the statuses of pods and of the node.
fn spawn_status(node: &Arc<Node>, client: Client) {
    let shutdown = node.tasks.shutdown();
    let pods = node.api.status.clone().run(client, shutdown.clone());
    node.tasks.spawn(Kind::Critical, "pod-status", pods);
    let own = status::node::run(Arc::clone(node), shutdown.clone());
    node.tasks.spawn(Kind::Critical, "node-status", own);
}

/// The registry on the loopback interface, which also serves other nodes.
fn image_registry(
    config: &Config,
    runtime: &RuntimeHandles,
    socket: &Path,
    tasks: &Tasks,
) -> Arc<ImageRegistry> {
    let options = config.runtime.registries.options();
    let registry = RegistryConfig {
        port: options.port,
        embedded: options.embedded,
        latest: config.runtime.share_latest,
        peer_tls: config.kubelet_api.as_ref().map(|api| Arc::clone(&api.peers)),
    };
    let registries = Arc::clone(&runtime.registries);
    let nodes = config.network.as_ref().map(|informers| informers.client().clone());
    let peers = Peers::new(nodes, &config.node_name);
    ImageRegistry::new(registry, registries, socket, peers, tasks.clone())
}

/// Starts the tasks that follow the registries file of the supervised containerd and serve its
/// images.
fn spawn_registries(node: &Arc<Node>) {
    let config = &node.identity.config.runtime;
    let (sender, changed) = watch::channel(());
    if let Some(registry) = &node.runtime.image_registry {
        let serve = Arc::clone(registry).run(changed);
        node.tasks.spawn(Kind::Critical, "image-registry", serve);
    }
    let follow = registries::watch_file(
        Arc::clone(&node.runtime.registries),
        config.registries_file.clone(),
        registries_dir(config),
        sender,
        node.tasks.problems().clone(),
        node.tasks.shutdown().clone(),
    );
    node.tasks.spawn(Kind::Critical, "registries", follow);
}

/// Starts the task that imports the images of the folder into the supervised containerd.
fn spawn_image_folder(node: &Arc<Node>, socket: PathBuf) {
    let config = &node.identity.config.runtime;
    let folder = ImageFolder {
        folder: config.images_dir.clone(),
        data_dir: config.data_dir.clone(),
        runtime: Arc::new(CriRuntime::new(&socket)),
        socket,
        extra_registries: config.extra_registries.clone(),
        pause_image: config.pause_image.clone(),
        registries: Arc::clone(&node.runtime.registries),
        pinned: node.runtime.pinned.clone(),
        problems: node.tasks.problems().clone(),
    };
    let run = image_folder::run(folder, node.tasks.shutdown().clone());
    node.tasks.spawn(Kind::Critical, "image-folder", run);
}

/// Starts the tasks that act on the pods of the node as a whole: clean-up, eviction, shutdown, and
/// the CPUs of containers if they may change.
fn spawn_pod_observers(node: &Arc<Node>, pods: &PodTable) {
    let shutdown = node.tasks.shutdown();
    let tidy = housekeeping::run(Arc::clone(node), pods.clone(), shutdown.clone());
    node.tasks.spawn(Kind::Critical, "housekeeping", tidy);
    let pressure = eviction::monitor::run(Arc::clone(node), pods.clone(), shutdown.clone());
    node.tasks.spawn(Kind::Critical, "node-pressure", pressure);
    let power = shutdown::run(Arc::clone(node), pods.clone(), shutdown.clone());
    node.tasks.spawn(Kind::Critical, "node-power", power);
    if node.resource_managers.has_cpu_sets() {
        let sets = cpu_sets::run(Arc::clone(node), pods.clone(), shutdown.clone());
        node.tasks.spawn(Kind::Critical, "cpu-sets", sets);
    }
}

/// Upstream's text (`CgroupV1DeprecatedWarning`).
const CGROUP_V1_WARNING: &str = "cgroup v1 detected. cgroup v1 support is deprecated and will be \
    removed in a future release. Please migrate to cgroup v2. More information at \
    https://git.k8s.io/enhancements/keps/sig-node/5573-remove-cgroup-v1";

/// Records the events of a start.
fn announce(node: &Node) {
    node.api.events.node_event(EventType::Normal, events::STARTING, "Starting kubelet.");
    let message = "Updated Node Allocatable limit across pods";
    node.api.events.node_event(EventType::Normal, events::NODE_ALLOCATABLE_ENFORCED, message);
    if !node.runtime.cgroups.is_v2() {
        node.api.events.node_event(EventType::Warning, events::CGROUP_V1, CGROUP_V1_WARNING);
    }
}

/// Returns the runtime's socket and, for a containerd that the agent supervises, its handle and the
/// name of the OCI runtime.
async fn start_runtime(
    config: &Config,
    tasks: &Tasks,
) -> Result<(PathBuf, Option<ContainerdHandle>, Option<String>), NodeError> {
    if let Some(endpoint) = &config.runtime.endpoint {
        return Ok((endpoint.clone(), None, None));
    }
    let (mut handle, supervisor, binaries) =
        supervise::prepare(&config.runtime).await.map_err(|e| NodeError::Runtime(e.to_string()))?;
    let (containerd, oci_runtime) = (binaries.containerd.display(), binaries.oci_runtime.display());
    tracing::debug!(%containerd, %oci_runtime, "container runtime");
    if let Some(vulnerability) = &binaries.vulnerability {
        let fix =
            "install runc 1.1.12 or later, or crun, or your distribution's package with the fix";
        tasks.problems().put("runtime/engine", vulnerability, fix);
    }
    tasks.spawn(Kind::Critical, "containerd", supervisor.run(tasks.shutdown().clone()));
    tokio::time::timeout(RUNTIME_WAIT, handle.ready()).await.map_err(|_| {
        let log = config.runtime.data_dir.join("containerd.log");
        NodeError::Runtime(format!("containerd does not answer; see {}", log.display()))
    })?;
    let oci_runtime = binaries.oci_runtime.file_name().map(|n| n.to_string_lossy().into_owned());
    Ok((handle.socket().to_owned(), Some(handle), oci_runtime))
}

async fn wait_for(runtime: &CriRuntime, tasks: &Tasks) -> Result<RuntimeVersion, NodeError> {
    let mut backoff = Backoff::new(Duration::from_millis(10), Duration::from_secs(1));
    let begun = base::clock::now();
    loop {
        match runtime.version().await {
            Ok(version) => return Ok(version),
            Err(error) if begun.elapsed() > RUNTIME_WAIT => {
                return Err(NodeError::Runtime(error.to_string()));
            }
            Err(_) => {}
        }
        if !backoff.wait(tasks.shutdown()).await {
            return Err(NodeError::Runtime(
                "stopped before the container runtime was ready".to_owned(),
            ));
        }
    }
}

/// Imports the built-in pause image, unless another one is configured.
async fn import_pause_image(
    config: &Config,
    socket: &Path,
    tasks: &Tasks,
) -> Result<(), NodeError> {
    if config.runtime.pause_image.is_some() {
        return Ok(());
    }
    import::pause_image(socket).await.map_err(|e| NodeError::Runtime(e.to_string()))?;
    let runtime = CriRuntime::new(socket);
    let mut backoff = Backoff::new(Duration::from_millis(5), Duration::from_millis(200));
    // The CRI plugin learns of the image by an event, which may come later than the import.
    while runtime
        .image(crate::runtime::images::pause::IMAGE)
        .await
        .map_err(|e| NodeError::Runtime(e.to_string()))?
        .is_none()
    {
        if backoff.failures() > 50 || !backoff.wait(tasks.shutdown()).await {
            return Err(NodeError::Runtime(
                "containerd does not list the built-in pause image".to_owned(),
            ));
        }
    }
    Ok(())
}
