//! The logs of services: of the journal, by journalctl, or of files for a service that has no
//! journal (upstream's `journalServer`).

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use base::Kind;
use bytes::Bytes;
use futures::stream;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Response};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use nix::errno::Errno;
use nix::fcntl::OFlag;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::net::unix::pipe;
use tokio::process::Command;
use tokio::sync::mpsc;

use super::super::response::Body;
use super::super::state::KubeletApi;
use super::node_log_query::{LogOptions, NodeLogQuery, go_text, open_beneath};

/// The program that reads the journal.
const PROGRAM: &str = "journalctl";
/// How long a query may run, as in the kubelet.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Bytes of a chunk of a body, of which the queue of a request has [`CHUNKS_MAX`].
const CHUNK: usize = 64 << 10;
/// Chunks that wait for a slow client before reading pauses.
const CHUNKS_MAX: usize = 4;
/// Maximum size of a response in bytes: more than 100,000 long lines.
const OUTPUT_MAX: usize = 256 << 20;
/// Maximum size of the list of units in bytes: tens of thousands of them.
const UNITS_MAX: u64 = 4 << 20;

/// Why a log ends early.
#[derive(Debug, thiserror::Error)]
enum LogError {
    #[error("the client is gone")]
    Client,
    #[error("the response has its maximum size; narrow the query with sinceTime or tailLines")]
    Size,
    #[error(transparent)]
    Io(#[from] std::io::Error),
}

/// The output of a query: a queue to the client, with a limit of its size.
struct Output {
    chunks: mpsc::Sender<Bytes>,
    left: usize,
}

impl Output {
    async fn send(&mut self, bytes: &[u8]) -> Result<(), LogError> {
        self.left = self.left.checked_sub(bytes.len()).ok_or(LogError::Size)?;
        let sent = self.chunks.send(Bytes::copy_from_slice(bytes)).await;
        sent.map_err(|_| LogError::Client)
    }

    async fn line(&mut self, text: String) -> Result<(), LogError> {
        self.send(format!("\n{text}\n").as_bytes()).await
    }

    async fn copy(&mut self, mut from: impl AsyncRead + Unpin) -> Result<(), LogError> {
        let mut chunk = vec![0; CHUNK];
        loop {
            let read = from.read(&mut chunk).await?;
            let Some(bytes) = chunk.get(..read).filter(|bytes| !bytes.is_empty()) else {
                return Ok(());
            };
            self.send(bytes).await?;
        }
    }
}

/// Serves the logs of the services of a query, which is valid.
pub(super) fn serve(api: &Arc<KubeletApi>, query: NodeLogQuery) -> Response<Body> {
    let (sender, receiver) = mpsc::channel::<Bytes>(CHUNKS_MAX);
    let config = &api.node.identity.config;
    let (root, path) = (config.system_logs_dir.clone(), config.runtime.path.clone());
    let shutdown = api.node.tasks.shutdown().clone();
    api.node.tasks.spawn(Kind::Request, "journal", async move {
        let mut output = Output { chunks: sender.clone(), left: OUTPUT_MAX };
        let until = base::clock::now() + TIMEOUT;
        let copy = copy(&query, &root, &path, &mut output);
        let copied = tokio::select! {
            () = shutdown.requested() => return Ok(()),
            () = sender.closed() => return Ok(()),
            copied = tokio::time::timeout_at(until, copy) => copied,
        };
        match copied {
            Ok(Ok(()) | Err(LogError::Client)) | Err(_) => {}
            Ok(Err(error)) => {
                // A client that reads nothing gets no error.
                let _ = sender.try_send(format!("\nerror: {error}\n").into());
            }
        }
        Ok::<(), std::convert::Infallible>(())
    });
    let frames = stream::unfold(receiver, |mut receiver| async move {
        receiver.recv().await.map(|bytes| (Ok(Frame::data(bytes)), receiver))
    });
    let mut response = Response::new(BodyExt::boxed(StreamBody::new(frames)));
    let kind = HeaderValue::from_static("text/plain;charset=UTF-8");
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}

/// Writes the logs of all services: first those with a journal.
async fn copy(
    query: &NodeLogQuery,
    root: &Path,
    path: &str,
    output: &mut Output,
) -> Result<(), LogError> {
    let units = units(path).await;
    let has_journal = |service: &&String| units.contains(&format!("{service}.service"));
    let (native, of_files): (Vec<&String>, Vec<&String>) =
        query.services.iter().partition(has_journal);
    if !native.is_empty() {
        let native: Vec<String> = native.into_iter().cloned().collect();
        let boot = query.options.is_current_boot();
        if let Err(error) = journal(&query.options.arguments(&native), path, output).await {
            let LogError::Io(error) = error else { return Err(error) };
            tracing::debug!(%error, "cannot run journalctl");
            if boot {
                output.line("error: journal output not available".to_owned()).await?;
            }
        }
    }
    if of_files.is_empty() {
        return Ok(());
    }
    if query.options != LogOptions::default() {
        let names = of_files.iter().map(|name| name.as_str()).collect::<Vec<_>>().join(" ");
        let text = format!(
            "options present and query resolved to log files for [{names}]\ntry without \
             specifying options"
        );
        return output.line(text).await;
    }
    for service in of_files {
        file(root, service, output).await?;
    }
    Ok(())
}

/// A command of journalctl. It gets none of the variables of this process, which may be secrets.
fn command(path: &str) -> Command {
    let mut command = Command::new(PROGRAM);
    command.env_clear().env("PATH", path).stdin(Stdio::null()).kill_on_drop(true);
    command
}

/// The units that the journal has entries of; empty if there is no journal.
async fn units(path: &str) -> String {
    let mut command = command(path);
    command.args(["--field", "_SYSTEMD_UNIT"]).stdout(Stdio::piped()).stderr(Stdio::null());
    let Ok(mut child) = command.spawn() else { return String::new() };
    let mut units = Vec::new();
    if let Some(stdout) = child.stdout.take()
        && stdout.take(UNITS_MAX).read_to_end(&mut units).await.is_err()
    {
        return String::new();
    }
    match child.wait().await {
        Ok(status) if status.success() => String::from_utf8_lossy(&units).into_owned(),
        _ => String::new(),
    }
}

/// Writes the output of journalctl, both streams in their order. Its exit status is not reported:
/// it has written why.
async fn journal(arguments: &[String], path: &str, output: &mut Output) -> Result<(), LogError> {
    let (writer, reader) = pipe::pipe()?;
    let stdout = writer.into_blocking_fd()?;
    let stderr = stdout.try_clone()?;
    let mut command = command(path);
    command.args(arguments).stdout(stdout).stderr(stderr);
    let mut child = command.spawn()?;
    // The command has the ends of the pipe that this process must not keep.
    drop(command);
    output.copy(reader).await?;
    child.wait().await?;
    Ok(())
}

/// Writes the log file of a service: `SERVICE`, `SERVICE.log` or `SERVICE/SERVICE.log`, the first
/// that exists (upstream's `heuristicsCopyFileLogs`).
async fn file(root: &Path, service: &str, output: &mut Output) -> Result<(), LogError> {
    let names = [service.to_owned(), format!("{service}.log"), format!("{service}/{service}.log")];
    for name in names {
        let root: PathBuf = root.to_owned();
        let opened = {
            let name = name.clone();
            base::tasks::blocking(move || open(&root, &name)).await
        };
        match opened.map_err(std::io::Error::other)? {
            Ok(Some(file)) => return output.copy(tokio::fs::File::from_std(file)).await,
            Ok(None) => {}
            Err(error) => {
                let why = format!("openat {name}: {}", go_text(error));
                return output.line(format!("error getting log for {service}: {why}")).await;
            }
        }
    }
    output.line(format!("log not found for {service}")).await
}

/// Opens a regular file below a directory; `None` if there is none with this name.
fn open(root: &Path, name: &str) -> Result<Option<std::fs::File>, Errno> {
    let file: OwnedFd = match open_beneath(root, name, OFlag::O_RDONLY) {
        Err(Errno::ENOENT) => return Ok(None),
        opened => opened?,
    };
    let file = std::fs::File::from(file);
    // A directory with the name of the service may contain its log. A FIFO would block.
    let is_file = file.metadata().is_ok_and(|metadata| metadata.is_file());
    Ok(is_file.then_some(file))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kubelet_api::query::Query;
    use crate::kubelet_api::system_logs::node_log_query::parse;

    /// Writes a program `journalctl` and runs a query with it. Returns the output.
    async fn run(script: Option<&str>, query: &str, root: &Path) -> String {
        let programs = tempfile::tempdir().unwrap();
        if let Some(script) = script {
            let program = programs.path().join(PROGRAM);
            std::fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
            let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
            std::fs::set_permissions(&program, mode).unwrap();
        }
        let query = parse(&Query::parse(query)).unwrap().unwrap();
        let (chunks, mut receiver) = mpsc::channel(1024);
        let mut output = Output { chunks, left: 1 << 20 };
        let path = format!("{}:/usr/bin:/bin", programs.path().display());
        copy(&query, root, &path, &mut output).await.unwrap();
        drop(output);
        let mut out = Vec::new();
        while let Some(chunk) = receiver.recv().await {
            out.extend_from_slice(&chunk);
        }
        String::from_utf8(out).unwrap()
    }

    #[tokio::test]
    async fn a_service_with_a_journal_is_read_by_journalctl() {
        let root = tempfile::tempdir().unwrap();
        let script = "case $1 in --field) echo a.service; echo b.service;; \
                      *) echo \"$@\"; echo oops >&2; exit 1;; esac";
        let both = run(Some(script), "query=a&query=b", root.path()).await;
        let expected = "--utc --no-pager --output=short-precise --unit=a --unit=b\noops\n";
        assert_eq!(both, expected);
        let mixed = run(Some(script), "query=a&query=c", root.path()).await;
        assert!(mixed.ends_with("--unit=a\noops\n\nlog not found for c\n"), "{mixed}");
    }

    #[tokio::test]
    async fn a_service_without_a_journal_has_a_file() {
        let root = tempfile::tempdir().unwrap();
        for (name, text) in [("one", "1\n"), ("two.log", "2\n")] {
            std::fs::write(root.path().join(name), text).unwrap();
        }
        std::fs::create_dir(root.path().join("three")).unwrap();
        std::fs::write(root.path().join("three/three.log"), "3\n").unwrap();
        std::os::unix::fs::symlink("/etc/passwd", root.path().join("out")).unwrap();
        let query = "query=one&query=two&query=three";
        assert_eq!(run(None, query, root.path()).await, "1\n2\n3\n");
        let text = run(None, "query=one&boot=0", root.path()).await;
        assert_eq!(
            text,
            "\noptions present and query resolved to log files for [one]\ntry without specifying \
             options\n"
        );
        let text = run(None, "query=out", root.path()).await;
        let why = "openat out: path escapes from parent";
        assert_eq!(text, format!("\nerror getting log for out: {why}\n"));
    }

    #[tokio::test]
    async fn the_size_of_a_response_is_limited() {
        let (chunks, _receiver) = mpsc::channel(4);
        let mut output = Output { chunks, left: 5 };
        output.send(b"12345").await.unwrap();
        assert!(matches!(output.send(b"6").await, Err(LogError::Size)));
    }
}
