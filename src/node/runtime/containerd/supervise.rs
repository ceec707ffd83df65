//! Supervises containerd: adopts a running one or starts it, and restarts it with back-off when it
//! ends.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use base::{Backoff, Shutdown};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use sorting::CompactSort as _;
use tokio::sync::{Notify, watch};

use super::config::{MachineTraits, RUNC, registries_dir, render};
use super::customization::{Customization, CustomizationError, TemplateInput};
use super::environment::Environment;
use super::find::{RuntimeNotFound, RuntimePrograms, find};
use super::handlers::{self, RuntimeHandler};
use super::results;
use super::snapshotter::{FUSE_SOCKET, Snapshotter, SnapshotterError};
use crate::config::RuntimeConfig;
use crate::runtime::Runtime;
use crate::runtime::cri::CriRuntime;

/// A containerd that is not ready within this time is reported as an error.
const START_TIMEOUT: Duration = Duration::from_secs(60);
/// Size above which the log of containerd is truncated at a start.
const LOG_MAX: u64 = 4 << 20;

/// Why containerd cannot be supervised.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SuperviseError {
    /// A program is missing.
    #[error(transparent)]
    RuntimeNotFound(#[from] RuntimeNotFound),
    /// A file or directory cannot be written.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// The snapshotter of the flag does not work here.
    #[error(transparent)]
    Snapshotter(#[from] SnapshotterError),
    /// A template or drop-in file of the administrator cannot be used.
    #[error(transparent)]
    Customization(#[from] CustomizationError),
    /// The runtime of the flag is not installed.
    #[error("--default-runtime={wanted}: it is not installed; installed are {}", .installed.join(", "))]
    DefaultRuntime {
        /// Value of the flag.
        wanted: String,
        /// Names of the installed runtimes.
        installed: Vec<&'static str>,
    },
}

/// A handle to the supervised containerd.
#[derive(Debug, Clone)]
pub(crate) struct ContainerdHandle {
    socket: PathBuf,
    /// How often containerd became ready; zero before the first time.
    ready: watch::Receiver<u64>,
    check: Arc<Notify>,
}

impl ContainerdHandle {
    /// The gRPC socket of containerd.
    pub(crate) fn socket(&self) -> &Path {
        &self.socket
    }

    /// Resolves when containerd is ready for the first time.
    pub(crate) async fn ready(&mut self) {
        let _ = self.ready.wait_for(|n| *n > 0).await;
    }

    /// Reports a lost connection, so that the supervisor checks whether containerd still runs.
    pub(crate) fn check(&self) {
        self.check.notify_one();
    }
}

/// The supervising task.
#[derive(Debug)]
pub(crate) struct Supervisor {
    config: RuntimeConfig,
    binaries: RuntimePrograms,
    environment: Environment,
    /// Directories of shims besides that of containerd.
    shim_dirs: Vec<PathBuf>,
    socket: PathBuf,
    ready: watch::Sender<u64>,
    check: Arc<Notify>,
    /// The configuration changed since the running containerd was started.
    changed: bool,
}

/// Finds the programs and writes the configuration.
pub(crate) async fn prepare(
    config: &RuntimeConfig,
) -> Result<(ContainerdHandle, Supervisor, RuntimePrograms), SuperviseError> {
    base::fs::create_dir(&config.run_dir, 0o711)?;
    base::fs::create_dir(&config.data_dir, 0o711)?;
    let binaries = find(config).await?;
    let dir = registries_dir(config);
    crate::runtime::registries::write_hosts(&config.registries, &dir)?;
    let (dir, overlay) = (&config.data_dir, overlay_works(&config.data_dir));
    let fuse_socket = Path::new(FUSE_SOCKET);
    let machine = MachineTraits {
        snapshotter: Snapshotter::choose(config.snapshotter, overlay, dir, fuse_socket)?,
        restrict_oom_score: !scores_may_fall(),
        selinux: has_selinux(config),
    };
    let handlers = handlers::find(Path::new("/"));
    let files = Customization::read(&config.templates_dir, binaries.version)?;
    check_default_runtime(config, &handlers, &files)?;
    let environment = Environment::new(std::env::vars_os(), &config.no_proxy);
    let text = render(config, &binaries, machine, &handlers, &environment.digest(), &files);
    let snapshotter = machine.snapshotter;
    let text = files.render(text, &TemplateInput { config, handlers: &handlers, snapshotter })?;
    let changed = write_config(config, &binaries, &files, &text).await?;
    let socket = config.supervised_socket();
    let (ready, receiver) = watch::channel(0);
    let check = Arc::new(Notify::new());
    let handle =
        ContainerdHandle { socket: socket.clone(), ready: receiver, check: Arc::clone(&check) };
    let supervisor = Supervisor {
        config: config.clone(),
        binaries: binaries.clone(),
        environment,
        shim_dirs: handlers.into_iter().filter_map(|handler| handler.shim_dir).collect(),
        socket,
        ready,
        check,
        changed,
    };
    Ok((handle, supervisor, binaries))
}

/// Whether containers get SELinux labels: with `--selinux` on a kernel that has SELinux. As in k3s,
/// a flag that does not fit the kernel is reported and is no error.
fn has_selinux(config: &RuntimeConfig) -> bool {
    match (config.selinux, crate::volumes::selinux::is_enabled()) {
        (true, false) => tracing::warn!(
            "--selinux: this kernel has no SELinux, so that containers get no labels; boot with \
             selinux=1 and a policy, or remove the flag"
        ),
        (false, true) => tracing::warn!(
            "this kernel has SELinux, but kube-lite runs without --selinux: containers get no \
             labels, and pods with seLinuxOptions are rejected"
        ),
        (true, true) => return true,
        (false, false) => {}
    }
    false
}

/// Writes the configuration if it has changed and containerd accepts it, and returns whether it
/// has.
async fn write_config(
    config: &RuntimeConfig,
    programs: &RuntimePrograms,
    files: &Customization,
    text: &str,
) -> Result<bool, SuperviseError> {
    let path = config_path(config);
    if base::fs::read_to_string(&path).unwrap_or_default() == text {
        return Ok(false);
    }
    let candidate = path.with_extension("toml.new");
    base::fs::write_atomic(&candidate, text.as_bytes(), 0o600)?;
    files.check(&candidate, config, programs).await?;
    std::fs::rename(&candidate, &path)?;
    Ok(true)
}

/// Checks that the runtime of the flag is installed. That of a file of the administrator is checked
/// with these files.
fn check_default_runtime(
    config: &RuntimeConfig,
    handlers: &[RuntimeHandler],
    files: &Customization,
) -> Result<(), SuperviseError> {
    let Some(wanted) = &config.default_runtime else { return Ok(()) };
    if !files.is_empty() {
        return Ok(());
    }
    let names = [RUNC].into_iter().chain(handlers.iter().map(|handler| handler.name));
    let mut installed: Vec<&'static str> = names.collect();
    if installed.contains(&wanted.as_str()) {
        return Ok(());
    }
    installed.compact_sort();
    Err(SuperviseError::DefaultRuntime { wanted: wanted.clone(), installed })
}

fn config_path(config: &RuntimeConfig) -> PathBuf {
    config.data_dir.join("containerd.toml")
}

/// Whether overlayfs works on the file system of `dir`.
fn overlay_works(dir: &Path) -> bool {
    use nix::mount::{MntFlags, MsFlags, mount, umount2};
    let base = dir.join("overlay-trial");
    let parts = ["lower", "upper", "work", "merged"].map(|p| base.join(p));
    let made = parts.iter().all(|p| std::fs::create_dir_all(p).is_ok());
    let [lower, upper, work, merged] = &parts;
    let options = format!(
        "lowerdir={},upperdir={},workdir={}",
        lower.display(),
        upper.display(),
        work.display()
    );
    let works = made
        && mount(
            Some("overlay"),
            merged,
            Some("overlay"),
            MsFlags::empty(),
            Some(options.as_str()),
        )
        .is_ok();
    if works {
        let _ = umount2(merged, MntFlags::MNT_DETACH);
    }
    let _ = std::fs::remove_dir_all(&base);
    works
}

/// Whether the kernel allows an `oom_score_adj` below that of this process, which some containers
/// and virtual machines do not.
pub(crate) fn scores_may_fall() -> bool {
    let path = Path::new("/proc/self/oom_score_adj");
    let Some(own) = std::fs::read_to_string(path).ok().and_then(|t| t.trim().parse::<i32>().ok())
    else {
        return false;
    };
    let lower = (own - 1).max(-1000);
    let allowed = std::fs::write(path, lower.to_string()).is_ok();
    let _ = std::fs::write(path, own.to_string());
    allowed
}

impl Supervisor {
    /// Runs until shutdown. containerd keeps running after that, as do the pods.
    pub(crate) async fn run(mut self, shutdown: Shutdown) -> Result<(), std::io::Error> {
        let mut backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(30));
        while !shutdown.is_requested() {
            let child = if self.answers().await {
                if std::mem::take(&mut self.changed) {
                    tracing::info!(
                        "containerd configuration changed, restarting it; containers keep running"
                    );
                    self.terminate(&shutdown).await;
                    continue;
                }
                tracing::debug!(socket = %self.socket.display(), "containerd is running, adopting \
                    it");
                None
            } else {
                self.changed = false;
                Some(self.start()?)
            };
            let started = base::clock::now();
            self.watch(child, &shutdown).await;
            if shutdown.is_requested() {
                break;
            }
            if started.elapsed() > START_TIMEOUT {
                backoff.reset();
            }
            if !backoff.wait(&shutdown).await {
                break;
            }
        }
        Ok(())
    }

    async fn answers(&self) -> bool {
        CriRuntime::new(&self.socket).version().await.is_ok()
    }

    fn start(&self) -> Result<tokio::process::Child, std::io::Error> {
        let broken = results::remove_broken(Path::new(results::FOLDER));
        if broken > 0 {
            tracing::info!(broken, "removed corrupt results of the CNI library");
        }
        let log = self.config.data_dir.join("containerd.log");
        let keep = std::fs::metadata(&log).is_ok_and(|m| m.len() < LOG_MAX);
        let log = std::fs::OpenOptions::new()
            .create(true)
            .write(true)
            .append(keep)
            .truncate(!keep)
            .open(log)?;
        let engine_dir = self.binaries.oci_runtime.parent().unwrap_or(Path::new("/usr/bin"));
        let own_dir = self.binaries.containerd.parent().unwrap_or(Path::new("/usr/bin"));
        let mut path = format!("{}:{}", own_dir.display(), engine_dir.display());
        for dir in &self.shim_dirs {
            path.push(':');
            path.push_str(&dir.to_string_lossy());
        }
        path.push(':');
        path.push_str(&self.config.path);
        let level = self.environment.log_level.iter().flat_map(|level| ["--log-level", level]);
        let child = tokio::process::Command::new(&self.binaries.containerd)
            .arg("--config")
            .arg(config_path(&self.config))
            .args(level)
            .env_clear()
            .envs(&self.environment.variables)
            .env("PATH", path)
            // Without effect when idle; limits peaks of pulls on small nodes.
            .env("GOMEMLIMIT", "64MiB")
            .env("GOGC", "50")
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .process_group(0)
            .kill_on_drop(false)
            .spawn()
            .map_err(|e| {
                std::io::Error::new(
                    e.kind(),
                    format!("cannot start {}: {e}", self.binaries.containerd.display()),
                )
            })?;
        if let Some(pid) = child.id() {
            let _ = base::fs::write_atomic(&self.pid_file(), pid.to_string().as_bytes(), 0o600);
        }
        Ok(child)
    }

    fn pid_file(&self) -> PathBuf {
        self.config.run_dir.join("containerd.pid")
    }

    /// Stops the running containerd and waits for its end. The shims of containers keep running.
    async fn terminate(&self, shutdown: &Shutdown) {
        let pid =
            base::fs::read_to_string(&self.pid_file()).ok().and_then(|t| t.trim().parse().ok());
        let Some(pid) = pid.filter(|pid: &i32| {
            let command = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let ours = config_path(&self.config);
            String::from_utf8_lossy(&command).contains(&*ours.to_string_lossy())
        }) else {
            tracing::warn!(
                "cannot find the process of containerd to restart it; its old configuration stays \
                 in effect"
            );
            return;
        };
        let _ = kill(Pid::from_raw(pid), Signal::SIGTERM);
        let mut backoff = Backoff::new(Duration::from_millis(10), Duration::from_millis(500));
        while Path::new(&format!("/proc/{pid}")).exists() && backoff.failures() < 40 {
            if !backoff.wait(shutdown).await {
                return;
            }
        }
    }

    /// Waits until containerd is ready, then until it ends.
    async fn watch(&self, child: Option<tokio::process::Child>, shutdown: &Shutdown) {
        let mut child = child;
        let adopted = child.is_none();
        let ended = async {
            match &mut child {
                Some(child) => match child.wait().await {
                    Ok(status) => tracing::warn!(%status, "containerd exited, restarting it"),
                    Err(error) => {
                        tracing::warn!(%error, "cannot wait for containerd, restarting it")
                    }
                },
                // An adopted containerd is not a child process: a lost event stream triggers the
                // check.
                None => loop {
                    self.check.notified().await;
                    if !self.answers().await {
                        tracing::warn!("containerd exited, restarting it");
                        break;
                    }
                },
            }
        };
        let ready = async {
            let mut backoff = Backoff::new(Duration::from_millis(5), Duration::from_millis(100));
            let start = base::clock::now();
            while !(self.socket.exists() && self.answers().await) {
                if start.elapsed() > START_TIMEOUT {
                    tracing::error!(
                        log = %self.config.data_dir.join("containerd.log").display(),
                        "containerd does not answer; see its log"
                    );
                    backoff = Backoff::new(Duration::from_secs(5), Duration::from_secs(30));
                }
                if !backoff.wait(shutdown).await {
                    return;
                }
            }
            self.ready.send_modify(|n| *n += 1);
            if !adopted {
                tracing::debug!(after = ?start.elapsed(), "containerd is ready");
            }
            std::future::pending::<()>().await;
        };
        tokio::select! {
            () = ended => {}
            () = ready => {}
            () = shutdown.requested() => {}
        }
    }
}
