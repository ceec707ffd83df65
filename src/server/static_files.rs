//! Serves `server/static` of the data directory at `/static/` without authentication, as k3s:
//! charts and other files that machines download. Requests are those of Go's `http.FileServer`,
//! but folders have no listing and links do not leave the folder.

mod range;

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use api::k8s::jiff::Timestamp;
use api::k8s::jiff::fmt::rfc2822;
use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures::stream;
use http::{HeaderMap, HeaderValue, StatusCode, header};
use nix::fcntl::OFlag;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use range::{ByteRange, Requested};

/// The folder in the data directory.
pub(crate) const FOLDER: &str = "server/static";
/// Begin of the paths.
pub(crate) const PREFIX: &str = "/static/";
/// The route of all paths.
pub(crate) const ROUTE: &str = "/static/{*path}";
/// The file of a folder.
const INDEX: &str = "index.html";
/// Bytes that are read at once, which each download holds in memory.
const CHUNK_BYTES: u64 = 64 << 10;
/// Concurrent downloads: they need no credentials.
const DOWNLOADS_MAX: usize = 64;
/// Flags of `open`: no link, and no wait for the writer of a FIFO.
const OPEN_FLAGS: OFlag = OFlag::O_NOFOLLOW.union(OFlag::O_NONBLOCK);

/// The served folder.
pub(crate) struct StaticFiles {
    folder: PathBuf,
    downloads: Arc<Semaphore>,
}

impl StaticFiles {
    /// Serves `folder`, which need not exist.
    pub(crate) fn new(folder: &Path) -> Self {
        Self { folder: folder.to_owned(), downloads: Arc::new(Semaphore::new(DOWNLOADS_MAX)) }
    }
}

/// An opened file.
struct StaticFile {
    file: File,
    size: u64,
    modified: Timestamp,
    content_type: &'static str,
}

impl StaticFile {
    /// Opens a file below the folder; `None` if there is none. Blocks.
    fn open(folder: &Path, path: &str) -> Option<Self> {
        let relative = Path::new(path);
        if !relative.components().all(|part| matches!(part, Component::Normal(_))) {
            return None;
        }
        let folder = std::fs::canonicalize(folder).ok()?;
        let mut target = std::fs::canonicalize(folder.join(relative)).ok()?;
        if target.is_dir() {
            target = std::fs::canonicalize(target.join(INDEX)).ok()?;
        }
        if !target.starts_with(&folder) {
            return None;
        }
        let file = std::fs::OpenOptions::new()
            .read(true)
            .custom_flags(OPEN_FLAGS.bits())
            .open(&target)
            .ok()?;
        let metadata = file.metadata().ok().filter(std::fs::Metadata::is_file)?;
        Some(Self {
            file,
            size: metadata.len(),
            modified: Timestamp::from_second(metadata.mtime()).ok()?,
            content_type: content_type(&target),
        })
    }

    /// A tag that changes with size and time.
    fn tag(&self) -> String {
        format!("\"{:x}-{:x}\"", self.modified.as_second(), self.size)
    }

    /// Whether the client has this version, by its conditional headers.
    fn is_known(&self, headers: &HeaderMap) -> bool {
        if let Some(tags) = text(headers, &header::IF_NONE_MATCH) {
            let own = self.tag();
            return tags
                .split(',')
                .map(str::trim)
                .any(|tag| tag == "*" || tag.strip_prefix("W/").unwrap_or(tag) == own);
        }
        text(headers, &header::IF_MODIFIED_SINCE)
            .and_then(parse_date)
            .is_some_and(|since| self.modified <= since)
    }

    /// The requested range. A condition that does not hold asks for the whole file.
    fn range(&self, headers: &HeaderMap) -> Requested {
        let condition = text(headers, &header::IF_RANGE);
        let holds = condition.is_none_or(|condition| {
            condition == self.tag() || parse_date(condition) == Some(self.modified)
        });
        let range = text(headers, &header::RANGE).filter(|_| holds);
        range.map_or(Requested::Whole, |range| range::parse(range, self.size))
    }
}

fn text<'a>(headers: &'a HeaderMap, name: &header::HeaderName) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

fn parse_date(text: &str) -> Option<Timestamp> {
    rfc2822::parse(text).ok().map(|zoned| zoned.timestamp())
}

/// The media type of a file name. Other files are downloads.
fn content_type(path: &Path) -> &'static str {
    match path.extension().and_then(|e| e.to_str()).unwrap_or_default() {
        "css" => "text/css; charset=utf-8",
        "gz" | "tgz" => "application/gzip",
        "htm" | "html" => "text/html; charset=utf-8",
        "js" => "text/javascript; charset=utf-8",
        "json" => "application/json",
        "png" => "image/png",
        "sha256" | "sh" | "txt" => "text/plain; charset=utf-8",
        "svg" => "image/svg+xml",
        "yaml" | "yml" => "application/yaml",
        "zst" => "application/zstd",
        _ => "application/octet-stream",
    }
}

/// Responds to `GET` and `HEAD`.
pub(crate) async fn serve(
    State(files): State<Arc<StaticFiles>>,
    axum::extract::Path(path): axum::extract::Path<String>,
    headers: HeaderMap,
) -> Response {
    let Ok(permit) = Arc::clone(&files.downloads).try_acquire_owned() else {
        let text = "too many downloads of static files at once; try again\n";
        return (StatusCode::SERVICE_UNAVAILABLE, [(header::RETRY_AFTER, "1")], text)
            .into_response();
    };
    let folder = files.folder.clone();
    let opened = base::tasks::blocking(move || StaticFile::open(&folder, &path)).await;
    match opened.ok().flatten() {
        Some(file) => respond(file, &headers, permit),
        // The text of Go's `http.NotFound`.
        None => (StatusCode::NOT_FOUND, "404 page not found\n").into_response(),
    }
}

fn respond(file: StaticFile, headers: &HeaderMap, permit: OwnedSemaphorePermit) -> Response {
    let printer = rfc2822::DateTimePrinter::new();
    let modified = printer.timestamp_to_rfc9110_string(&file.modified).unwrap_or_default();
    let (tag, size) = (file.tag(), file.size);
    let (status, range) = match (file.is_known(headers), file.range(headers)) {
        (true, _) => (StatusCode::NOT_MODIFIED, None),
        (false, Requested::Whole) => (StatusCode::OK, Some(ByteRange::whole(size))),
        (false, Requested::Part(range)) => (StatusCode::PARTIAL_CONTENT, Some(range)),
        (false, Requested::Unsatisfiable) => (StatusCode::RANGE_NOT_SATISFIABLE, None),
    };
    let content_type = file.content_type;
    let body = range.as_ref().map_or_else(Body::empty, |range| stream(file, range, permit));
    let mut response = (status, body).into_response();
    let mut set = |name, value: &str| {
        if let Ok(value) = HeaderValue::from_str(value) {
            response.headers_mut().insert(name, value);
        }
    };
    set(header::LAST_MODIFIED, &modified);
    set(header::ETAG, &tag);
    set(header::ACCEPT_RANGES, "bytes");
    set(header::X_CONTENT_TYPE_OPTIONS, "nosniff");
    match range {
        Some(range) => {
            set(header::CONTENT_TYPE, content_type);
            set(header::CONTENT_LENGTH, &range.length.to_string());
            if status == StatusCode::PARTIAL_CONTENT {
                set(header::CONTENT_RANGE, &range.header(size));
            }
        }
        None if status == StatusCode::RANGE_NOT_SATISFIABLE => {
            set(header::CONTENT_RANGE, &format!("bytes */{size}"));
        }
        None => {}
    }
    response
}

/// The bytes of a range, read in pieces away from the async workers.
fn stream(file: StaticFile, range: &ByteRange, permit: OwnedSemaphorePermit) -> Body {
    let start = (file.file, range.start, range.length, permit);
    Body::from_stream(stream::try_unfold(start, |(mut file, at, left, permit)| async move {
        if left == 0 {
            return Ok::<_, std::io::Error>(None);
        }
        let read = base::tasks::blocking(move || -> std::io::Result<_> {
            file.seek(SeekFrom::Start(at))?;
            let mut chunk = Vec::new();
            Read::by_ref(&mut file).take(left.min(CHUNK_BYTES)).read_to_end(&mut chunk)?;
            Ok((file, chunk))
        });
        let (file, chunk) = read.await.map_err(std::io::Error::other)??;
        let length = u64::try_from(chunk.len()).unwrap_or(left);
        if length == 0 {
            return Err(std::io::Error::other("the file became shorter"));
        }
        Ok(Some((Bytes::from(chunk), (file, at + length, left - length, permit))))
    }))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use axum::extract::Path as RequestPath;

    use super::*;

    struct Served {
        code: u16,
        headers: HeaderMap,
        body: String,
    }

    async fn request(folder: &Path, path: &str, headers: &[(header::HeaderName, &str)]) -> Served {
        let files = Arc::new(StaticFiles::new(folder));
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.insert(name, value.parse().unwrap());
        }
        let response = serve(State(files), RequestPath(path.to_owned()), map).await;
        let (parts, body) = response.into_parts();
        let body = axum::body::to_bytes(body, 1 << 20).await.unwrap();
        let body = String::from_utf8(body.to_vec()).unwrap();
        Served { code: parts.status.as_u16(), headers: parts.headers, body }
    }

    #[tokio::test]
    async fn files_below_the_folder_are_served_and_others_are_not() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("static");
        std::fs::create_dir_all(folder.join("charts/empty")).unwrap();
        std::fs::write(root.path().join("secret"), "x").unwrap();
        std::fs::write(folder.join("charts/a.tgz"), "chart").unwrap();
        std::fs::write(folder.join("charts/index.html"), "page").unwrap();
        symlink("charts/a.tgz", folder.join("link.tgz")).unwrap();
        symlink(root.path().join("secret"), folder.join("out")).unwrap();
        symlink(root.path(), folder.join("charts/up")).unwrap();
        for (path, code, body) in [
            ("charts/a.tgz", 200, "chart"),
            ("link.tgz", 200, "chart"),
            ("charts", 200, "page"),
            ("charts/", 200, "page"),
            ("charts/empty", 404, "404 page not found\n"),
            ("missing", 404, "404 page not found\n"),
            ("out", 404, "404 page not found\n"),
            ("charts/up/secret", 404, "404 page not found\n"),
            ("../secret", 404, "404 page not found\n"),
            ("charts/../../secret", 404, "404 page not found\n"),
            ("/etc/passwd", 404, "404 page not found\n"),
            ("a\0b", 404, "404 page not found\n"),
        ] {
            let served = request(&folder, path, &[]).await;
            assert_eq!((served.code, served.body.as_str()), (code, body), "{path:?}");
        }
        let served = request(&folder, "charts/a.tgz", &[]).await;
        assert_eq!(served.headers[header::CONTENT_TYPE], "application/gzip");
        assert_eq!(request(&root.path().join("none"), "a", &[]).await.code, 404);
    }

    #[tokio::test]
    async fn conditions_and_ranges_are_those_of_http() {
        let root = tempfile::tempdir().unwrap();
        std::fs::write(root.path().join("a.txt"), "0123456789").unwrap();
        let first = request(root.path(), "a.txt", &[]).await;
        let tag = first.headers[header::ETAG].to_str().unwrap();
        let date = first.headers[header::LAST_MODIFIED].to_str().unwrap();
        assert!(date.ends_with(" GMT"), "{date}");
        let early = "Sun, 06 Nov 1994 08:49:37 GMT";
        for (headers, code, body) in [
            (vec![(header::IF_NONE_MATCH, tag)], 304, ""),
            (vec![(header::IF_NONE_MATCH, "\"x\"")], 200, "0123456789"),
            (vec![(header::IF_MODIFIED_SINCE, date)], 304, ""),
            (vec![(header::IF_MODIFIED_SINCE, early)], 200, "0123456789"),
            (vec![(header::RANGE, "bytes=2-4")], 206, "234"),
            (vec![(header::RANGE, "bytes=8-")], 206, "89"),
            (vec![(header::RANGE, "bytes=-3")], 206, "789"),
            (vec![(header::RANGE, "bytes=10-")], 416, ""),
            (vec![(header::RANGE, "bytes=2-4"), (header::IF_RANGE, tag)], 206, "234"),
            (vec![(header::RANGE, "bytes=2-4"), (header::IF_RANGE, early)], 200, "0123456789"),
        ] {
            let served = request(root.path(), "a.txt", &headers).await;
            assert_eq!((served.code, served.body.as_str()), (code, body), "{headers:?}");
        }
        let part = request(root.path(), "a.txt", &[(header::RANGE, "bytes=2-4")]).await;
        assert_eq!(part.headers[header::CONTENT_RANGE], "bytes 2-4/10");
    }
}
