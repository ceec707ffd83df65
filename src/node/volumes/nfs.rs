//! Volumes of the kind `nfs`, mounted by the machine's `mount` and `mount.nfs` as the kubelet does:
//! they find the protocol version and the ports of the server.

use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use api::k8s::api::core::v1::NFSVolumeSource;
use tokio::process::Command;

use super::mounts;

/// How long one attempt may take; `mount.nfs` itself gives up after two minutes.
const MOUNT_TIMEOUT: Duration = Duration::from_secs(150);
/// Bytes of the output of a program that are reported.
const MAX_OUTPUT: usize = 1000;

/// Why an NFS volume cannot be mounted.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NfsError {
    #[error("cannot run mount: {0}; install it on the node")]
    Program(#[source] std::io::Error),
    #[error(
        "cannot mount NFS volumes: the node has no mount.nfs; install nfs-common (Debian) or \
         nfs-utils"
    )]
    NoHelper,
    /// The program failed. The text is upstream's (`mount-utils`), in which a space precedes the
    /// arguments.
    #[error(
        "mount failed: {status}\nMounting command: mount\nMounting arguments:  {arguments}\n\
         Output: {output}"
    )]
    Failed { arguments: String, status: String, output: String },
    #[error("mount -t nfs {0} took longer than {MOUNT_TIMEOUT:?}; the server may not answer")]
    Timeout(String),
    #[error(transparent)]
    Io(#[from] std::io::Error),
}

impl NfsError {
    fn failed(arguments: &[String], status: ExitStatus, output: String) -> Self {
        // Upstream's command has no `--`.
        let shown: Vec<&str> =
            arguments.iter().map(String::as_str).filter(|text| *text != "--").collect();
        Self::Failed { arguments: shown.join(" "), status: status_text(status), output }
    }
}

/// Where `mount` finds the helper of a file system.
const HELPERS: [&str; 4] =
    ["/sbin/mount.nfs", "/usr/sbin/mount.nfs", "/bin/mount.nfs", "/usr/bin/mount.nfs"];

/// The status in the form of upstream.
fn status_text(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit status {code}"),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => status.to_string(),
    }
}

/// The arguments of `mount`: the options of the PersistentVolume, then `ro`.
fn arguments(source: &NFSVolumeSource, options: &[String], target: &Path) -> Vec<String> {
    let read_only = (source.read_only == Some(true)).then(|| "ro".to_owned());
    let options: Vec<String> = options.iter().cloned().chain(read_only).collect();
    let mut out = vec!["-t".to_owned(), "nfs".to_owned()];
    if !options.is_empty() {
        out.extend(["-o".to_owned(), options.join(",")]);
    }
    // A server whose name begins with a dash is no option.
    out.push("--".to_owned());
    out.push(format!("{}:{}", source.server, source.path));
    out.push(target.to_string_lossy().into_owned());
    out
}

/// Mounts the volume on `target`, which is created if missing. Does nothing if it is mounted.
///
/// # Errors
///
/// The machine cannot mount NFS, or the server refuses or does not answer.
pub(super) async fn set_up(
    source: &NFSVolumeSource,
    options: &[String],
    target: &Path,
) -> Result<(), NfsError> {
    let path = target.to_path_buf();
    let mounted = base::tasks::blocking(move || {
        if mounts::is_mount_point(&path)? {
            return Ok::<_, std::io::Error>(true);
        }
        std::fs::create_dir_all(&path)?;
        Ok(false)
    });
    if mounted.await.map_err(std::io::Error::other)?? {
        return Ok(());
    }
    if !HELPERS.iter().any(|helper| Path::new(helper).exists()) {
        return Err(NfsError::NoHelper);
    }
    let arguments = arguments(source, options, target);
    // Dropped with the pod's worker, the program is killed.
    let running =
        Command::new("mount").args(&arguments).stdin(Stdio::null()).kill_on_drop(true).output();
    let output = match tokio::time::timeout(MOUNT_TIMEOUT, running).await {
        Ok(output) => output.map_err(NfsError::Program)?,
        Err(_) => {
            let from = format!("{}:{}", source.server, source.path);
            return Err(NfsError::Timeout(from));
        }
    };
    if output.status.success() {
        return Ok(());
    }
    let mut text = String::from_utf8_lossy(&output.stderr).into_owned();
    text.push_str(&String::from_utf8_lossy(&output.stdout));
    let text: String = text.chars().take(MAX_OUTPUT).collect();
    Err(NfsError::failed(&arguments, output.status, text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_of_the_volume_come_before_read_only() {
        let source = |read_only| NFSVolumeSource {
            server: "192.0.2.1".into(),
            path: "/export".into(),
            read_only,
        };
        let of = |read_only, options: &[&str]| {
            let options: Vec<String> = options.iter().map(|o| (*o).to_owned()).collect();
            arguments(&source(read_only), &options, Path::new("/t")).join(" ")
        };
        assert_eq!(of(None, &[]), "-t nfs -- 192.0.2.1:/export /t");
        assert_eq!(
            of(Some(false), &["nfsvers=4.1"]),
            "-t nfs -o nfsvers=4.1 -- 192.0.2.1:/export /t"
        );
        assert_eq!(
            of(Some(true), &["hard", "nolock"]),
            "-t nfs -o hard,nolock,ro -- 192.0.2.1:/export /t"
        );
    }

    /// The text of `doMount` of upstream's mount-utils.
    #[test]
    fn a_failure_has_the_text_of_upstream() {
        let source = NFSVolumeSource {
            server: "192.0.2.1".into(),
            path: "/none".into(),
            ..NFSVolumeSource::default()
        };
        let arguments = arguments(&source, &["nfsvers=3".to_owned()], Path::new("/t"));
        let output = "mount.nfs: mounting 192.0.2.1:/none failed\n".to_owned();
        let error = NfsError::failed(&arguments, ExitStatus::from_raw(32 << 8), output);
        assert_eq!(
            error.to_string(),
            "mount failed: exit status 32\nMounting command: mount\nMounting arguments:  -t nfs -o \
             nfsvers=3 192.0.2.1:/none /t\nOutput: mount.nfs: mounting 192.0.2.1:/none failed\n"
        );
    }
}
