//! Runs the program of a credential provider plugin.

use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, Command};

use super::metrics;
use super::protocol::{self, PluginRequest, PluginResponse, ResponseError};

/// How long a plugin may run, as in the kubelet.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum size of the response in bytes: credentials for a few hundred registries.
const STDOUT_MAX: u64 = 1 << 20;
/// The part of the standard error that an error contains, in bytes.
const STDERR_MAX: u64 = 4 << 10;

/// Why a plugin has no response; the texts are those of upstream.
#[derive(Debug, Clone, thiserror::Error)]
pub(super) enum PluginError {
    #[error("error execing credential provider plugin {name} for image {image}: {why}: {stderr}")]
    Exec { name: String, image: String, why: String, stderr: String },
    #[error(transparent)]
    Response(#[from] ResponseError),
}

/// The program of a plugin.
#[derive(Debug, Clone)]
pub(super) struct ExecPlugin {
    pub(super) name: String,
    /// The version of the protocol.
    pub(super) version: String,
    pub(super) program: PathBuf,
    pub(super) args: Vec<String>,
    /// Variables in addition to those of this process.
    pub(super) env: Vec<(String, String)>,
}

/// The end of a run.
struct Output {
    status: ExitStatus,
    stdout: Vec<u8>,
    stderr: Vec<u8>,
}

impl ExecPlugin {
    /// Runs the program with a request.
    pub(super) async fn call(
        &self,
        request: &PluginRequest,
    ) -> Result<PluginResponse, PluginError> {
        let started = base::clock::now();
        let outcome = self.run(request).await;
        metrics::DURATION.took(&[&self.name], started.elapsed());
        let output = outcome.inspect_err(|_| metrics::ERRORS.inc(&[&self.name]))?;
        Ok(protocol::decode(&self.version, &output)?)
    }

    fn error(&self, request: &PluginRequest, why: impl ToString, stderr: &[u8]) -> PluginError {
        PluginError::Exec {
            name: self.name.clone(),
            image: request.image.clone(),
            why: why.to_string(),
            stderr: String::from_utf8_lossy(stderr).into_owned(),
        }
    }

    /// Returns the standard output of a successful run.
    async fn run(&self, request: &PluginRequest) -> Result<Vec<u8>, PluginError> {
        let child = Command::new(&self.program)
            .args(&self.args)
            .envs(self.env.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .kill_on_drop(true)
            .spawn();
        let mut group = match child {
            Ok(child) => ProcessGroup(child),
            Err(error) => {
                let why = format!("fork/exec {}: {error}", self.program.display());
                return Err(self.error(request, why, b""));
            }
        };
        let input = protocol::encode(&self.version, request);
        let output = match tokio::time::timeout(TIMEOUT, group.communicate(input)).await {
            Err(_) => return Err(self.error(request, "context deadline exceeded", b"")),
            Ok(Err(error)) => return Err(self.error(request, error, b"")),
            Ok(Ok(output)) => output,
        };
        if !output.status.success() {
            return Err(self.error(request, status_text(output.status), &output.stderr));
        }
        if u64::try_from(output.stdout.len()).is_ok_and(|size| size > STDOUT_MAX) {
            return Err(self.error(request, "the response is larger than 1 MiB", &output.stderr));
        }
        Ok(output.stdout)
    }
}

/// The state of a process as Go prints it.
pub(crate) fn status_text(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit status {code}"),
        (None, Some(signal)) => {
            let name = Signal::try_from(signal).map_or("unknown", Signal::as_str);
            format!("signal: {name}")
        }
        (None, None) => status.to_string(),
    }
}

/// A program with the processes that it started, which end with this value.
struct ProcessGroup(Child);

impl ProcessGroup {
    /// Writes the input and waits for the end of the program and of its output.
    async fn communicate(&mut self, input: Vec<u8>) -> std::io::Result<Output> {
        let child = &mut self.0;
        let (stdin, stdout, stderr) =
            (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let write = async {
            if let Some(mut stdin) = stdin {
                // A plugin need not read its request.
                let _ = stdin.write_all(&input).await;
            }
        };
        let (_, stdout, stderr, status) = tokio::join!(
            write,
            read_bounded(stdout, STDOUT_MAX + 1),
            read_bounded(stderr, STDERR_MAX),
            child.wait()
        );
        Ok(Output { status: status?, stdout: stdout?, stderr: stderr? })
    }
}

/// Reads to the end and keeps the first `max` bytes.
async fn read_bounded(from: Option<impl AsyncRead + Unpin>, max: u64) -> std::io::Result<Vec<u8>> {
    let mut kept = Vec::new();
    if let Some(mut from) = from {
        (&mut from).take(max).read_to_end(&mut kept).await?;
        tokio::io::copy(&mut from, &mut tokio::io::sink()).await?;
    }
    Ok(kept)
}

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        // Before the program is waited for, no other group can have its id.
        if let Some(id) = self.0.id().and_then(|id| i32::try_from(id).ok()) {
            let _ = killpg(Pid::from_raw(id), Signal::SIGKILL);
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;

    const V1: &str = "credentialprovider.kubelet.k8s.io/v1";

    /// Writes a shell script as the program of a plugin.
    pub(in crate::image_credentials) fn script(path: &Path, body: &str) {
        // Another thread may start a process while the file is open for writing, which would make
        // the script busy: it is written by another program.
        let status = std::process::Command::new("sh")
            .args(["-c", "printf '%s' \"$1\" >\"$2\"", "sh", &format!("#!/bin/sh\n{body}\n")])
            .arg(path)
            .status();
        assert!(status.unwrap().success());
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }

    async fn run(body: &str) -> Result<PluginResponse, PluginError> {
        let root = tempfile::tempdir().unwrap();
        let program = root.path().join("p");
        script(&program, body);
        let plugin = ExecPlugin {
            name: "p".to_owned(),
            version: V1.to_owned(),
            program,
            args: vec!["get".to_owned()],
            env: vec![("PASSWORD".to_owned(), "secret".to_owned())],
        };
        let request = PluginRequest { image: "r.io/a".to_owned(), ..PluginRequest::default() };
        plugin.call(&request).await
    }

    #[tokio::test]
    async fn a_plugin_gets_arguments_variables_and_the_request() {
        let body = format!(
            "read line; case $1$line in 'get{{'*r.io/a*) ;; *) exit 3;; esac\n\
             echo '{{\"kind\":\"CredentialProviderResponse\",\"apiVersion\":\"{V1}\",\
             \"cacheKeyType\":\"Image\",\"auth\":{{\"r.io\":{{\"username\":\"u\",\"password\":\"'\
             $PASSWORD'\"}}}}}}'"
        );
        let response = run(&body).await.unwrap();
        assert_eq!(response.logins["r.io"].password, "secret");
    }

    #[tokio::test]
    async fn a_failed_run_names_plugin_image_and_reason() {
        let start = "error execing credential provider plugin p for image r.io/a: ";
        let error = |error: PluginError| error.to_string();
        let text = error(run("echo no >&2; exit 2").await.unwrap_err());
        assert_eq!(text, format!("{start}exit status 2: no\n"));
        let text = error(run("kill -9 $$").await.unwrap_err());
        assert_eq!(text, format!("{start}signal: SIGKILL: "));
        let text = error(run("head -c 2000000 /dev/zero").await.unwrap_err());
        assert_eq!(text, format!("{start}the response is larger than 1 MiB: "));
        let text = error(run("echo '{}'").await.unwrap_err());
        assert!(text.ends_with("actual apiVersion:"), "{text}");
    }

    #[tokio::test]
    async fn a_dropped_run_ends_the_processes_that_the_program_started() {
        let root = tempfile::tempdir().unwrap();
        let file = root.path().join("pid");
        let body = format!("sleep 600 & echo $! >{}; wait", file.display());
        let id = async {
            loop {
                let id = std::fs::read_to_string(&file).unwrap_or_default();
                if id.ends_with('\n') {
                    return id;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let id = tokio::select! {
            _ = run(&body) => panic!("the plugin does not answer"),
            id = id => id,
        };
        let stat = format!("/proc/{}/stat", id.trim());
        let is_running = || std::fs::read_to_string(&stat).is_ok_and(|s| !s.contains(" Z "));
        for _ in 0..100 {
            if !is_running() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("the process still runs");
    }
}
