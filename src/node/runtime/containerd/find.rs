//! Finds containerd and an OCI runtime that can start a container on this machine.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use crate::config::RuntimeConfig;
use crate::runtime::images::pause;

/// Time limit for a program that prints its version, and for the trial container: on a slow and
/// busy machine the first start of containerd, which reads 40 MB from disk, took more than 15 s.
const TRIAL_TIMEOUT: Duration = Duration::from_secs(60);

/// Why no runtime was found.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RuntimeNotFound {
    /// The program is in none of the directories.
    #[error(
        "{program} is neither in {dirs} nor on PATH; install it (for Debian: apt-get install \
         containerd runc) or set --container-runtime-endpoint"
    )]
    Program {
        /// Name of the program.
        program: &'static str,
        /// The searched directories.
        dirs: String,
    },
    /// The program does not run, or its version cannot be parsed.
    #[error("cannot read the version of {path}: {why}")]
    Version {
        /// Path of the program.
        path: PathBuf,
        /// Its output or the error.
        why: String,
    },
    /// This version of containerd cannot group shims.
    #[error(
        "--grouped-shims needs containerd 2.2 or later, {path} is {major}.{minor}; install a \
         newer one or start without the flag"
    )]
    Ungrouped {
        /// Path of the program.
        path: PathBuf,
        /// Its major version.
        major: u32,
        /// Its minor version.
        minor: u32,
    },
}

/// Major and minor version.
pub(crate) type Version = (u32, u32);

/// The programs of the supervised runtime.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RuntimePrograms {
    pub(crate) containerd: PathBuf,
    pub(crate) version: Version,
    /// The path of crun or runc.
    pub(crate) oci_runtime: PathBuf,
    /// A known vulnerability of its version.
    pub(crate) vulnerability: Option<String>,
}

/// Returns the first executable file named `program` in `bin_dirs`, then in the directories of
/// `path`, a value of the variable `PATH`.
pub fn find_program(bin_dirs: &[PathBuf], path: &str, program: &str) -> Option<PathBuf> {
    let on_path = path.split(':').filter(|p| !p.is_empty()).map(PathBuf::from);
    bin_dirs.iter().cloned().chain(on_path).map(|dir| dir.join(program)).find(|path| {
        std::fs::metadata(path).is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
    })
}

fn search(config: &RuntimeConfig, program: &'static str) -> Option<PathBuf> {
    find_program(&config.bin_dirs, &config.path, program)
}

fn required(config: &RuntimeConfig, program: &'static str) -> Result<PathBuf, RuntimeNotFound> {
    search(config, program).ok_or_else(|| RuntimeNotFound::Program {
        program,
        dirs: config
            .bin_dirs
            .iter()
            .map(|d| d.display().to_string())
            .collect::<Vec<_>>()
            .join(", "),
    })
}

/// Finds containerd and the OCI runtime: crun if it starts a trial container (7 ms per container
/// instead of 22), else runc.
pub(crate) async fn find(config: &RuntimeConfig) -> Result<RuntimePrograms, RuntimeNotFound> {
    let containerd = required(config, "containerd")?;
    let output = run(&containerd, &["--version"]).await;
    let version = output.as_deref().ok().and_then(parse_version).ok_or_else(|| {
        let why = output.unwrap_or_else(|error| error.to_string());
        RuntimeNotFound::Version { path: containerd.clone(), why }
    })?;
    groupable(config, &containerd, version)?;
    let oci_runtime = match search(config, "crun") {
        Some(crun) => match trial(&crun, config).await {
            Ok(()) => crun,
            Err(error) => {
                let oci_runtime = required(config, "runc")?;
                tracing::info!(crun = %crun.display(), %error, "crun cannot start a container, using \
                    runc");
                oci_runtime
            }
        },
        None => required(config, "runc")?,
    };
    let printed = run(&oci_runtime, &["--version"]).await.unwrap_or_default();
    let vulnerability = crate::runc_vulnerability(&printed);
    Ok(RuntimePrograms { containerd, version, oci_runtime, vulnerability })
}

/// The shim of versions before 2.2 ignores the group annotation (containerd's release notes).
fn groupable(config: &RuntimeConfig, path: &Path, version: Version) -> Result<(), RuntimeNotFound> {
    let (major, minor) = version;
    if config.grouped_shims && version < (2, 2) {
        return Err(RuntimeNotFound::Ungrouped { path: path.to_owned(), major, minor });
    }
    Ok(())
}

/// Parses `containerd github.com/containerd/containerd 1.6.20~ds1 …` or `… v2.4.1 …`.
fn parse_version(output: &str) -> Option<Version> {
    let word = output.split_whitespace().nth(2)?;
    let mut parts = word.trim_start_matches('v').split(['.', '-', '~', '+']);
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

/// Why a program did not run to success.
#[derive(Debug, thiserror::Error)]
pub(super) enum ProgramError {
    #[error("did not exit within {TRIAL_TIMEOUT:?}")]
    Timeout,
    #[error(transparent)]
    Io(#[from] std::io::Error),
    #[error("{status}: {stderr}")]
    Status { status: ExitStatus, stderr: String },
}

/// Runs a program to completion and returns its output.
pub(super) async fn run(program: &Path, arguments: &[&str]) -> Result<String, ProgramError> {
    let child = tokio::process::Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output();
    let output =
        tokio::time::timeout(TRIAL_TIMEOUT, child).await.map_err(|_| ProgramError::Timeout)??;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() {
        return Ok(text);
    }
    let stderr = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(ProgramError::Status { status: output.status, stderr })
}

/// Creates a container of the pause program with `oci_runtime` and deletes it.
async fn trial(oci_runtime: &Path, config: &RuntimeConfig) -> Result<(), ProgramError> {
    let bundle = config.run_dir.join("trial");
    let files = || -> std::io::Result<()> {
        base::fs::create_dir(&bundle.join("rootfs/proc"), 0o755)?;
        base::fs::write_atomic(&bundle.join("rootfs/pause"), &pause::program(), 0o755)?;
        base::fs::write_atomic(&bundle.join("config.json"), trial_spec().as_bytes(), 0o600)
    };
    files()?;
    let id = format!("kube-lite-trial-{}", base::clock::random_suffix(8));
    let root = bundle.join("state");
    let (root, bundle_path) = (root.to_string_lossy(), bundle.to_string_lossy());
    // The container inherits the output, so a pipe would stay open.
    let created = tokio::process::Command::new(oci_runtime)
        .args(["--root", &root, "create", "--bundle", &bundle_path, &id])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(
            std::fs::File::create(bundle.join("stderr"))
                .map_or_else(|_| Stdio::null(), Stdio::from),
        )
        .kill_on_drop(true)
        .status();
    let created = match tokio::time::timeout(TRIAL_TIMEOUT, created).await {
        Ok(Ok(status)) if status.success() => Ok(()),
        Ok(Ok(status)) => {
            let stderr = std::fs::read_to_string(bundle.join("stderr")).unwrap_or_default();
            Err(ProgramError::Status { status, stderr: stderr.trim().to_owned() })
        }
        Ok(Err(error)) => Err(error.into()),
        Err(_) => Err(ProgramError::Timeout),
    };
    if let Err(error) = run(oci_runtime, &["--root", &root, "delete", "--force", &id]).await
        && created.is_ok()
    {
        return Err(error);
    }
    let _ = std::fs::remove_dir_all(&bundle);
    created
}

fn trial_spec() -> String {
    serde_json::json!({
        "ociVersion": "1.0.2",
        "process": {
            "terminal": false, "user": {"uid": 0, "gid": 0}, "args": ["/pause"],
            "env": ["PATH=/"], "cwd": "/", "noNewPrivileges": true,
        },
        "root": {"path": "rootfs", "readonly": true},
        "mounts": [{"destination": "/proc", "type": "proc", "source": "proc"}],
        "linux": {
            "cgroupsPath": format!("/kube-lite-trial-{}", std::process::id()),
            "resources": {"cpu": {"shares": 2}, "memory": {"limit": 64 << 20}},
            "namespaces": [{"type": "pid"}, {"type": "mount"}, {"type": "ipc"},
            {"type": "network"}],
        },
    })
    .to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_of_distributions_and_releases_are_parsed() {
        let debian = "containerd github.com/containerd/containerd 1.6.20~ds1 1.6.20~ds1-1+deb12u3";
        assert_eq!(parse_version(debian), Some((1, 6)));
        assert_eq!(
            parse_version("containerd github.com/containerd/containerd/v2 v2.4.1 abc"),
            Some((2, 4))
        );
        assert_eq!(parse_version("bash: not found"), None);
    }

    #[test]
    fn grouped_shims_require_containerd_2_2() {
        let mut config =
            crate::Config::new("n1", "192.0.2.1".parse().unwrap(), "/d".into(), "/r".into())
                .runtime;
        assert!(groupable(&config, Path::new("/usr/bin/containerd"), (1, 6)).is_ok());
        config.grouped_shims = true;
        assert!(groupable(&config, Path::new("/usr/bin/containerd"), (2, 2)).is_ok());
        assert_eq!(
            groupable(&config, Path::new("/usr/bin/containerd"), (2, 1)).unwrap_err().to_string(),
            "--grouped-shims needs containerd 2.2 or later, /usr/bin/containerd is 2.1; install a \
             newer one or start without the flag"
        );
    }
}
