//! `containerLogs`: reads CRI log files from a given point and optionally follows them.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use base::{Backoff, Kind};
use bytes::Bytes;
use futures::stream;
use http::{Response, StatusCode};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use jiff::Timestamp;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncSeekExt, BufReader};
use tokio::sync::mpsc;

use super::query::Query;
use super::response::{Body, text_response};
use super::state::KubeletApi;
use crate::pods::observed::{ObservedContainer, ObservedState};

/// Number of lines buffered for a slow client before reading pauses.
const BUFFERED_LINES_MAX: usize = 64;
/// Maximum length of a line; the runtime splits lines at 16 KiB.
const LINE_MAX: u64 = 1 << 20;
/// Block size of the search for the last lines.
const BLOCK: u64 = 64 << 10;

#[derive(Debug, Clone)]
struct Options {
    follow: bool,
    timestamps: bool,
    since: Option<Timestamp>,
    tail: Option<usize>,
    limit: Option<usize>,
    /// `stdout`, `stderr`, or both.
    stream: Option<&'static str>,
}

/// An invalid option of a query.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
enum OptionsError {
    #[error("{0} must be a number")]
    NotANumber(&'static str),
    #[error("{0} must not be negative")]
    Negative(&'static str),
    #[error("sinceTime must be a time")]
    SinceTime,
    #[error("invalid stream type {0:?}")]
    Stream(String),
}

/// Reads the options of a query.
fn options(query: &Query) -> Result<Options, OptionsError> {
    let number = |name: &'static str| -> Result<Option<i64>, OptionsError> {
        query.first(name).map(|v| v.parse().map_err(|_| OptionsError::NotANumber(name))).transpose()
    };
    let size = |name: &'static str| -> Result<Option<usize>, OptionsError> {
        number(name)?
            .map(|n| usize::try_from(n).map_err(|_| OptionsError::Negative(name)))
            .transpose()
    };
    let since = match (query.first("sinceTime"), number("sinceSeconds")?) {
        (Some(time), _) => Some(time.parse().map_err(|_| OptionsError::SinceTime)?),
        (None, Some(seconds)) => {
            let now = i64::try_from(base::clock::unix_time().as_secs()).unwrap_or_default();
            Timestamp::from_second(now.saturating_sub(seconds)).ok()
        }
        (None, None) => None,
    };
    let stream = match query.first("stream") {
        None | Some("All" | "") => None,
        Some("Stdout") => Some("stdout"),
        Some("Stderr") => Some("stderr"),
        Some(other) => return Err(OptionsError::Stream(other.to_owned())),
    };
    Ok(Options {
        follow: query.flag("follow"),
        timestamps: query.flag("timestamps"),
        since,
        tail: if query.first("tail") == Some("all") {
            None
        } else {
            size("tailLines")?.or(size("tail")?)
        },
        limit: size("limitBytes")?,
        stream,
    })
}

/// Serves the log of a container.
pub(super) async fn serve(
    api: &Arc<KubeletApi>,
    namespace: &str,
    pod: &str,
    container: &str,
    query: &Query,
) -> Response<Body> {
    let options = match options(query) {
        Ok(options) => options,
        Err(error) => return text_response(StatusCode::BAD_REQUEST, error.to_string()),
    };
    let Some((wanted, handle)) = api.table.find(namespace, pod) else {
        return text_response(StatusCode::NOT_FOUND, format!("pod {pod:?} does not exist"));
    };
    if wanted.container(container).is_none() {
        return text_response(
            StatusCode::NOT_FOUND,
            format!("container {container:?} not found in pod {pod:?}"),
        );
    }
    let observed = Arc::clone(&handle.reported.lock().observed);
    let mut of_name = observed
        .containers
        .iter()
        .filter(|c| c.name == container && c.state != ObservedState::Created);
    let found: Option<&ObservedContainer> =
        if query.flag("previous") { of_name.nth(1) } else { of_name.next() };
    let Some(found) = found else {
        let message = if query.flag("previous") {
            format!("previous terminated container {container:?} in pod {pod:?} not found")
        } else {
            format!("container {container:?} in pod {pod:?} is waiting to start: ContainerCreating")
        };
        return text_response(StatusCode::BAD_REQUEST, message);
    };
    let (path, id) = (PathBuf::from(&found.log_path), found.id.clone());
    let file = match tokio::fs::File::open(&path).await {
        Ok(file) => file,
        Err(error) => return text_response(StatusCode::BAD_REQUEST, unreadable(&path, &error)),
    };
    let container_name = format!("container {container} of pod {namespace}/{pod}");
    let (sender, receiver) = mpsc::channel::<Bytes>(BUFFERED_LINES_MAX);
    let api_ = Arc::clone(api);
    api.node.tasks.spawn(Kind::Request, "logs", async move {
        let shutdown = api_.node.tasks.shutdown().clone();
        tokio::select! {
            () = shutdown.requested() => Ok(()),
            () = sender.closed() => Ok(()),
            outcome = send(&api_, file, &path, &id, options, &sender) => outcome
                .map_err(|error| format!("{container_name}: {}", unreadable(&path, &error))),
        }
    });
    let frames = stream::unfold(receiver, |mut receiver| async move {
        receiver.recv().await.map(|bytes| (Ok(Frame::data(bytes)), receiver))
    });
    let mut response = Response::new(BodyExt::boxed(StreamBody::new(frames)));
    response.headers_mut().insert("content-type", http::HeaderValue::from_static("text/plain"));
    response
}

/// Why a log file cannot be read, in the text that upstream's clients expect.
fn unreadable(path: &Path, error: &std::io::Error) -> String {
    let shown = path.display();
    if error.kind() == std::io::ErrorKind::NotFound {
        let why = format!("lstat {shown}: no such file or directory");
        return format!("failed to try resolving symlinks in path \"{shown}\": {why}");
    }
    format!("failed to read log file \"{shown}\": {error}")
}

async fn send(
    api: &KubeletApi,
    mut file: tokio::fs::File,
    path: &Path,
    id: &str,
    options: Options,
    sender: &mpsc::Sender<Bytes>,
) -> std::io::Result<()> {
    let start = match options.tail {
        Some(lines) => tail_offset(&mut file, lines).await?,
        None => 0,
    };
    file.seek(std::io::SeekFrom::Start(start)).await?;
    let mut reader = BufReader::new(file);
    let mut left = options.limit.unwrap_or(usize::MAX);
    let mut line = Vec::new();
    let mut changes = if options.follow { Some(watch(path)?) } else { None };
    loop {
        // The rest of an incomplete line follows with the next write.
        let read = (&mut reader).take(LINE_MAX).read_until(b'\n', &mut line).await?;
        if line.last() == Some(&b'\n') {
            if let Some(mut out) = format_line(&line, &options) {
                out.truncate(left);
                left -= out.len();
                if !out.is_empty() && sender.send(out.into()).await.is_err() || left == 0 {
                    return Ok(());
                }
            }
            line.clear();
            continue;
        }
        if read > 0 {
            continue;
        }
        let Some(changes) = &mut changes else { return Ok(()) };
        if let Some(fresh) = reopen_rotated(path, &mut reader).await? {
            reader = BufReader::new(fresh);
            continue;
        }
        let running = api
            .node
            .runtime
            .cri
            .container_status(id)
            .await
            .is_ok_and(|s| s.state() == proto::runtime::v1::ContainerState::ContainerRunning);
        if !running && reader.fill_buf().await?.is_empty() {
            return Ok(());
        }
        changes.next().await;
    }
}

/// Wakes when the log file may have changed.
struct LogWatcher {
    stream: inotify::EventStream<Vec<u8>>,
}

impl LogWatcher {
    async fn next(&mut self) {
        use futures::StreamExt;
        // The end of a container writes nothing to the log, so check again after a second.
        let _ = tokio::time::timeout(Duration::from_secs(1), self.stream.next()).await;
    }
}

fn watch(path: &Path) -> std::io::Result<LogWatcher> {
    let inotify = inotify::Inotify::init()?;
    let folder = path.parent().unwrap_or(Path::new("/"));
    let mask =
        inotify::WatchMask::MODIFY | inotify::WatchMask::CREATE | inotify::WatchMask::MOVED_TO;
    inotify.watches().add(folder, mask)?;
    Ok(LogWatcher { stream: inotify.into_event_stream(vec![0; 4096])? })
}

/// Opens the new file at the path once the log was rotated.
async fn reopen_rotated(
    path: &Path,
    reader: &mut BufReader<tokio::fs::File>,
) -> std::io::Result<Option<tokio::fs::File>> {
    use std::os::unix::fs::MetadataExt;
    let open = reader.get_ref().metadata().await?;
    let mut backoff = Backoff::new(Duration::from_millis(10), Duration::from_millis(100));
    let _ = backoff.next_delay();
    match tokio::fs::metadata(path).await {
        Ok(now) if now.ino() != open.ino() => Ok(Some(tokio::fs::File::open(path).await?)),
        _ => Ok(None),
    }
}

/// Offset of the last `lines` lines.
async fn tail_offset(file: &mut tokio::fs::File, lines: usize) -> std::io::Result<u64> {
    let length = file.metadata().await?.len();
    if lines == 0 {
        return Ok(length);
    }
    let (mut end, mut found) = (length, 0);
    let mut block = Vec::new();
    while end > 0 {
        let from = end.saturating_sub(BLOCK);
        file.seek(std::io::SeekFrom::Start(from)).await?;
        block.clear();
        (&mut *file).take(end - from).read_to_end(&mut block).await?;
        for (index, byte) in block.iter().enumerate().rev() {
            let at = from + index as u64;
            // The newline that ends the file does not start a line.
            if *byte == b'\n' && at + 1 < length {
                found += 1;
                if found == lines {
                    return Ok(at + 1);
                }
            }
        }
        end = from;
    }
    Ok(0)
}

/// Formats a log line `<time> <stream> <tag> <text>` for the client; a partial line is sent without
/// its newline.
fn format_line(line: &[u8], options: &Options) -> Option<Vec<u8>> {
    let mut parts = line.splitn(4, |b| *b == b' ');
    let (time, stream, tag, content) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    if options.stream.is_some_and(|wanted| wanted.as_bytes() != stream) {
        return None;
    }
    if let Some(since) = options.since {
        let at: Timestamp = std::str::from_utf8(time).ok()?.parse().ok()?;
        if at < since {
            return None;
        }
    }
    let mut out = Vec::with_capacity(line.len());
    if options.timestamps {
        out.extend_from_slice(time);
        out.push(b' ');
    }
    out.extend_from_slice(content);
    if tag.first() == Some(&b'P') && out.last() == Some(&b'\n') {
        out.pop();
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_log_is_named() {
        let path = Path::new("/var/log/pods/d_p_u/a/0.log");
        let error = std::io::Error::from(std::io::ErrorKind::NotFound);
        assert_eq!(
            unreadable(path, &error),
            "failed to try resolving symlinks in path \"/var/log/pods/d_p_u/a/0.log\": lstat \
             /var/log/pods/d_p_u/a/0.log: no such file or directory"
        );
    }

    #[tokio::test]
    async fn lines_are_selected_by_tail_time_and_stream() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let content = "2026-01-01T00:00:00Z stdout F one\n2026-01-01T00:00:01Z stderr P tw\n\
            2026-01-01T00:00:02Z stderr F o\n";
        std::fs::write(file.path(), content).unwrap();
        let mut open = tokio::fs::File::open(file.path()).await.unwrap();
        let at = tail_offset(&mut open, 2).await.unwrap();
        assert!(content[usize::try_from(at).unwrap()..].starts_with("2026-01-01T00:00:01Z"));
        assert_eq!(tail_offset(&mut open, 9).await.unwrap(), 0);
        let of = |text: &str| {
            let options = options(&Query::parse(text)).unwrap();
            let lines =
                content.split_inclusive('\n').filter_map(|l| format_line(l.as_bytes(), &options));
            String::from_utf8(lines.flatten().collect()).unwrap()
        };
        assert_eq!(of(""), "one\ntwo\n");
        assert_eq!(of("stream=Stdout&timestamps=true"), "2026-01-01T00:00:00Z one\n");
        assert_eq!(of("sinceTime=2026-01-01T00:00:02Z"), "o\n");
        assert!(options(&Query::parse("tailLines=-1")).is_err());
    }
}
