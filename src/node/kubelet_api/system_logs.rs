//! `/logs/`: the node's log directory, read-only, with the responses of Go's `http.FileServer`,
//! which upstream's kubelet uses: a listing for a directory, a file with its ranges, redirects to
//! the canonical path.
//!
//! Symbolic links are followed, also out of the directory: `/var/log/containers` consists of links.
//! With `enableSystemLogQuery`, parameters request the log of a service or a file instead.

mod conditions;
mod content_type;
mod journal;
mod node_log_query;
mod range;

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::io::{self, Read as _};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use futures::stream;
use http::header::{
    ACCEPT_RANGES, ALLOW, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, LAST_MODIFIED, LOCATION,
    RANGE,
};
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use sorting::CompactSort as _;
use tokio::io::{AsyncReadExt, AsyncSeekExt};

use self::conditions::Condition;
use self::node_log_query::NodeLogQuery;
use self::range::Range;
use super::query::{Query, percent_decoded};
use super::response::{Body, response, text_response};
use super::state::KubeletApi;

/// The prefix of the request path before the path of the file.
const PREFIX: &str = "/logs/";
/// A directory with more entries is not listed.
const ENTRIES_MAX: usize = 1 << 16;
/// Number of bytes that determine the content type, as in Go's `sniffLen`.
const SNIFFED: u64 = 512;
/// Maximum number of bytes of a file in memory per request.
const CHUNK: u64 = 64 << 10;

/// The target of a path.
enum PathTarget {
    /// A page with all entries, and the modification time.
    Listing(Vec<u8>, i64),
    File {
        file: std::fs::File,
        size: u64,
        modified: i64,
        content_type: &'static str,
    },
    /// The canonical path, relative to the requested one.
    Redirect(String),
}

/// Serves a request whose path begins with [`PREFIX`].
pub(super) async fn serve(api: &Arc<KubeletApi>, request: &Parts) -> Response<Body> {
    if !api.node.identity.config.system_logs.handler {
        let text = "logs endpoint is disabled.\n";
        return text_response(StatusCode::METHOD_NOT_ALLOWED, text);
    }
    if request.method != Method::GET {
        let mut response = text_response(StatusCode::METHOD_NOT_ALLOWED, "Method Not Allowed");
        response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET"));
        return response;
    }
    let Some(path) = request.uri.path().strip_prefix(PREFIX) else { return not_found() };
    let config = &api.node.identity.config;
    let mut path = percent_decoded(path);
    if config.system_logs.query {
        match resolve(request.uri.query(), &path, &config.system_logs_dir).await {
            Err(error) => return text_response(error.status(), format!("{error}\n")),
            Ok(QueryTarget::Path) => {}
            Ok(QueryTarget::File(file)) => path = file.into_bytes(),
            Ok(QueryTarget::Services(query)) => return journal::serve(api, query),
        }
    }
    let root = config.system_logs_dir.clone();
    respond(root, path, request.uri.query(), &request.headers).await
}

/// What a request is about.
enum QueryTarget {
    /// The path of the request.
    Path,
    /// A file below the directory.
    File(String),
    Services(NodeLogQuery),
}

/// Why a query is refused.
#[derive(Debug, thiserror::Error)]
enum QueryError {
    #[error("{0}")]
    Parameters(String),
    #[error("path not allowed in query mode")]
    Path,
    #[error("{0}")]
    Invalid(String),
}

impl QueryError {
    fn status(&self) -> StatusCode {
        match self {
            Self::Parameters(_) => StatusCode::BAD_REQUEST,
            Self::Path | Self::Invalid(_) => StatusCode::NOT_ACCEPTABLE,
        }
    }
}

/// Reads and checks the query of a request.
async fn resolve(query: Option<&str>, path: &[u8], root: &Path) -> Result<QueryTarget, QueryError> {
    let text = |errors| node_log_query::error_text(errors);
    let query = node_log_query::parse(&Query::parse(query.unwrap_or_default()))
        .map_err(|errors| QueryError::Parameters(text(errors)))?;
    let Some(query) = query else { return Ok(QueryTarget::Path) };
    if !path.is_empty() && path != b"/" {
        return Err(QueryError::Path);
    }
    let (checked, root) = (query.clone(), root.to_owned());
    let errors = base::tasks::blocking(move || checked.validate(&root)).await;
    let errors = errors.map_err(|panic| QueryError::Invalid(panic.to_string()))?;
    if !errors.is_empty() {
        return Err(QueryError::Invalid(text(errors)));
    }
    match query.files.first() {
        Some(file) => Ok(QueryTarget::File(file.clone())),
        None => Ok(QueryTarget::Services(query)),
    }
}

fn not_found() -> Response<Body> {
    text_response(StatusCode::NOT_FOUND, "404 page not found\n")
}

/// Serves a path below `root`.
async fn respond(
    root: PathBuf,
    path: Vec<u8>,
    query: Option<&str>,
    headers: &HeaderMap,
) -> Response<Body> {
    let shown = String::from_utf8_lossy(&path).into_owned();
    let found = base::tasks::blocking(move || find(&root, &path)).await;
    let found = found.unwrap_or_else(|panic| Err(io::Error::other(panic)));
    match found {
        Ok(PathTarget::Redirect(to)) => {
            let to = query.map_or_else(|| to.clone(), |query| format!("{to}?{query}"));
            redirect(&to)
        }
        Ok(PathTarget::Listing(page, modified)) => {
            if conditions::unmodified_since(headers, modified) {
                return not_modified(modified);
            }
            let mut response = response(StatusCode::OK, "text/html; charset=utf-8", page);
            set(&mut response, LAST_MODIFIED, conditions::format(modified));
            response
        }
        Ok(PathTarget::File { file, size, modified, content_type }) => {
            let file = tokio::fs::File::from_std(file);
            content(file, size, modified, content_type, headers)
        }
        Err(error) => refusal(&shown, &error),
    }
}

/// Status and text of Go's `toHTTPError`.
fn refusal(path: &str, error: &io::Error) -> Response<Body> {
    match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => not_found(),
        io::ErrorKind::PermissionDenied => text_response(StatusCode::FORBIDDEN, "403 Forbidden\n"),
        _ => {
            tracing::debug!(path, %error, "cannot serve a system log");
            text_response(StatusCode::INTERNAL_SERVER_ERROR, "500 Internal Server Error\n")
        }
    }
}

fn set(response: &mut Response<Body>, name: HeaderName, value: String) {
    if let Ok(value) = HeaderValue::try_from(value) {
        response.headers_mut().insert(name, value);
    }
}

fn redirect(to: &str) -> Response<Body> {
    let mut response = text_response(StatusCode::MOVED_PERMANENTLY, "");
    set(&mut response, LOCATION, to.to_owned());
    response
}

fn not_modified(modified: i64) -> Response<Body> {
    let mut response = text_response(StatusCode::NOT_MODIFIED, "");
    response.headers_mut().remove(CONTENT_TYPE);
    set(&mut response, LAST_MODIFIED, conditions::format(modified));
    response
}

/// Opens the file or directory at the path and determines the response.
fn find(root: &Path, path: &[u8]) -> io::Result<PathTarget> {
    if path == b"index.html" || path.ends_with(b"/index.html") {
        return Ok(PathTarget::Redirect("./".to_owned()));
    }
    let components = components(path);
    let mut real = root.to_owned();
    real.extend(components.iter().map(|c| OsStr::from_bytes(c)));
    let (mut file, mut metadata) = open(&real)?;
    let slash = path.is_empty() || path.ends_with(b"/");
    let base = components.last().map(|name| escape(name)).unwrap_or_default();
    if metadata.is_dir() && !slash {
        return Ok(PathTarget::Redirect(format!("{base}/")));
    }
    if !metadata.is_dir() && slash {
        return Ok(PathTarget::Redirect(format!("../{base}")));
    }
    if metadata.is_dir() {
        let index = real.join("index.html");
        match open(&index) {
            Ok((of_index, index_metadata)) if !index_metadata.is_dir() => {
                (file, metadata) = (of_index, index_metadata);
                real = index;
            }
            _ => return Ok(PathTarget::Listing(listing(&real)?, modified(&metadata))),
        }
    }
    if !metadata.is_file() {
        return Err(io::Error::other("neither a file nor a directory"));
    }
    let content_type = match real.extension().and_then(content_type::of_extension) {
        Some(known) => known,
        None => {
            let mut start = Vec::new();
            (&file).take(SNIFFED).read_to_end(&mut start)?;
            content_type::detect(&start)
        }
    };
    Ok(PathTarget::File { file, size: metadata.len(), modified: modified(&metadata), content_type })
}

/// Opens for reading; does not block on a FIFO without a writer.
fn open(path: &Path) -> io::Result<(std::fs::File, std::fs::Metadata)> {
    let flags = nix::fcntl::OFlag::O_NONBLOCK.bits();
    let file = std::fs::OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    let metadata = file.metadata()?;
    Ok((file, metadata))
}

/// Modification time in seconds since the epoch.
fn modified(metadata: &std::fs::Metadata) -> i64 {
    std::os::unix::fs::MetadataExt::mtime(metadata)
}

/// Splits a path and resolves `.`, `..` and empty segments; `..` does not lead above the root.
fn components(path: &[u8]) -> Vec<&[u8]> {
    let mut out = Vec::new();
    for part in path.split(|b| *b == b'/') {
        match part {
            b"" | b"." => {}
            b".." => {
                out.pop();
            }
            part => out.push(part),
        }
    }
    out
}

/// The page of Go's `dirList`.
fn listing(directory: &Path) -> io::Result<Vec<u8>> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(directory)? {
        if names.len() >= ENTRIES_MAX {
            return Err(io::Error::other(format!("more than {ENTRIES_MAX} entries")));
        }
        let entry = entry?;
        let mut name = entry.file_name().into_vec();
        let directory = entry.file_type().is_ok_and(|t| t.is_dir());
        names.push((name.clone(), {
            if directory {
                name.push(b'/');
            }
            name
        }));
    }
    names.compact_sort();
    let mut page =
        "<!doctype html>\n<meta name=\"viewport\" content=\"width=device-width\">\n<pre>\n"
            .to_owned();
    for (_, name) in &names {
        let text = html(&String::from_utf8_lossy(name));
        let _ = writeln!(page, "<a href=\"{}\">{text}</a>", escape(name));
    }
    page.push_str("</pre>\n");
    Ok(page.into_bytes())
}

fn html(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&#34;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
    out
}

/// Escapes a relative path as Go's `url.URL.String` does: a colon in its first segment would look
/// like a scheme.
fn escape(path: &[u8]) -> String {
    let first = path.split(|b| *b == b'/').next().unwrap_or_default();
    let mut out = if first.contains(&b':') { "./".to_owned() } else { String::new() };
    for byte in path {
        if byte.is_ascii_alphanumeric() || b"-_.~$&+,/:;=@".contains(byte) {
            out.push(char::from(*byte));
        } else {
            let _ = write!(out, "%{byte:02X}");
        }
    }
    out
}

/// Serves a file or parts of it, as Go's `serveContent` does.
fn content(
    file: tokio::fs::File,
    size: u64,
    modified: i64,
    content_type: &'static str,
    headers: &HeaderMap,
) -> Response<Body> {
    match conditions::check(headers, modified) {
        Condition::Proceed => {}
        Condition::NotModified => return not_modified(modified),
        Condition::Failed => return text_response(StatusCode::PRECONDITION_FAILED, ""),
    }
    let wanted = headers.get(RANGE).and_then(|v| v.to_str().ok());
    let wanted = wanted.filter(|_| conditions::range_is_current(headers, modified));
    let ranges = match range::parse(wanted, size) {
        Ok(ranges) => ranges,
        Err(error) => {
            let status = StatusCode::RANGE_NOT_SATISFIABLE;
            let mut response = text_response(status, format!("{error}\n"));
            if error == range::RangeError::NoOverlap {
                set(&mut response, CONTENT_RANGE, format!("bytes */{size}"));
            }
            return response;
        }
    };
    let (status, content_type, pieces) = match ranges.as_slice() {
        [] => (StatusCode::OK, content_type.to_owned(), vec![Piece::File(Range::whole(size))]),
        [one] => (StatusCode::PARTIAL_CONTENT, content_type.to_owned(), vec![Piece::File(*one)]),
        several => {
            let boundary = range::boundary();
            let pieces = multipart(several, &boundary, content_type, size);
            let content_type = format!("multipart/byteranges; boundary={boundary}");
            (StatusCode::PARTIAL_CONTENT, content_type, pieces)
        }
    };
    let length = pieces.iter().fold(0_u64, |sum, piece| sum.saturating_add(piece.length()));
    let mut response = Response::new(BodyExt::boxed(StreamBody::new(frames(file, pieces))));
    *response.status_mut() = status;
    set(&mut response, CONTENT_TYPE, content_type);
    set(&mut response, LAST_MODIFIED, conditions::format(modified));
    set(&mut response, CONTENT_LENGTH, length.to_string());
    response.headers_mut().insert(ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    if let [one] = ranges.as_slice() {
        set(&mut response, CONTENT_RANGE, one.content_range(size));
    }
    response
}

/// A part of a body: text between ranges, or a range of the file.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Piece {
    Text(String),
    File(Range),
}

impl Piece {
    fn length(&self) -> u64 {
        match self {
            Self::Text(text) => u64::try_from(text.len()).unwrap_or(u64::MAX),
            Self::File(range) => range.length,
        }
    }
}

fn multipart(ranges: &[Range], boundary: &str, content_type: &str, size: u64) -> Vec<Piece> {
    let mut out = Vec::with_capacity(ranges.len().saturating_mul(2).saturating_add(1));
    let mut before = "";
    for range in ranges {
        let content_range = range.content_range(size);
        out.push(Piece::Text(format!(
            "{before}--{boundary}\r\nContent-Range: {content_range}\r\n\
             Content-Type: {content_type}\r\n\r\n"
        )));
        out.push(Piece::File(*range));
        before = "\r\n";
    }
    out.push(Piece::Text(format!("\r\n--{boundary}--\r\n")));
    out
}

/// Streams the pieces at the pace of the client.
fn frames(
    file: tokio::fs::File,
    pieces: Vec<Piece>,
) -> impl futures::Stream<Item = io::Result<Frame<Bytes>>> + Send + Sync {
    let pieces = pieces.into_iter();
    stream::try_unfold((file, pieces, None::<Range>), |(mut file, mut pieces, open)| async move {
        let mut range = match open {
            Some(range) => range,
            None => match pieces.next() {
                None => return Ok(None),
                Some(Piece::Text(text)) => {
                    return Ok(Some((Frame::data(text.into()), (file, pieces, None))));
                }
                Some(Piece::File(range)) => {
                    file.seek(io::SeekFrom::Start(range.start)).await?;
                    range
                }
            },
        };
        let mut chunk = Vec::new();
        (&mut file).take(range.length.min(CHUNK)).read_to_end(&mut chunk).await?;
        let read = u64::try_from(chunk.len()).unwrap_or(u64::MAX);
        if read == 0 && range.length > 0 {
            // The body ends before its announced length, so that the client notices the truncated
            // log.
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        range.length = range.length.saturating_sub(read);
        let open = (range.length > 0).then_some(range);
        Ok(Some((Frame::data(chunk.into()), (file, pieces, open))))
    })
}

#[cfg(test)]
mod tests;
