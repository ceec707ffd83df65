//! The responses to requests for listings, files and redirects. The expected responses are those of
//! Go's `http.FileServer`.

use http::header::{IF_MODIFIED_SINCE, IF_RANGE};
use http_body_util::BodyExt as _;

use super::*;

/// Creates a log directory, and a file `secret` outside of it. Returns the temporary directory and
/// the log directory.
fn log_directory() -> (tempfile::TempDir, PathBuf) {
    let outer = tempfile::tempdir().unwrap();
    let root = outer.path().join("log");
    for name in ["pods/d_p_u/c", "empty", "containers"] {
        std::fs::create_dir_all(root.join(name)).unwrap();
    }
    std::fs::write(outer.path().join("secret"), "outside").unwrap();
    std::fs::write(root.join("syslog"), "0123456789").unwrap();
    std::fs::write(root.join("a&b <'?> x:y"), "odd").unwrap();
    std::fs::write(root.join("btmp"), [0_u8, 1, 2]).unwrap();
    std::fs::write(root.join("pods/d_p_u/c/0.log"), "line\n").unwrap();
    std::os::unix::fs::symlink("../pods/d_p_u/c/0.log", root.join("containers/p.log")).unwrap();
    (outer, root)
}

/// Requests `path`, which may have a query. Returns the response without its body, and the body.
async fn get(root: &Path, path: &str, headers: &[(HeaderName, &str)]) -> (Response<()>, String) {
    let mut map = HeaderMap::new();
    for (name, value) in headers {
        map.insert(name, HeaderValue::from_str(value).unwrap());
    }
    let (path, query) = path.split_once('?').map_or((path, None), |(p, q)| (p, Some(q)));
    let response = respond(root.to_owned(), percent_decoded(path), query, &map).await;
    let (head, body) = response.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    (Response::from_parts(head, ()), String::from_utf8_lossy(&body).into_owned())
}

/// The value of a header; empty if it is missing.
fn header(response: &Response<()>, name: HeaderName) -> &str {
    response.headers().get(name).map_or("", |v| v.to_str().unwrap())
}

#[tokio::test]
async fn a_directory_listing_equals_the_one_of_go() {
    let (_outer, root) = log_directory();
    let (response, body) = get(&root, "", &[]).await;
    assert_eq!(response.status(), StatusCode::OK);
    assert_eq!(header(&response, CONTENT_TYPE), "text/html; charset=utf-8");
    assert_eq!(
        body,
        "<!doctype html>\n<meta name=\"viewport\" content=\"width=device-width\">\n<pre>\n\
         <a href=\"./a&b%20%3C%27%3F%3E%20x:y\">a&amp;b &lt;&#39;?&gt; x:y</a>\n\
         <a href=\"btmp\">btmp</a>\n\
         <a href=\"containers/\">containers/</a>\n\
         <a href=\"empty/\">empty/</a>\n\
         <a href=\"pods/\">pods/</a>\n\
         <a href=\"syslog\">syslog</a>\n</pre>\n"
    );
    let since = header(&response, LAST_MODIFIED).to_owned();
    let (response, body) = get(&root, "", &[(IF_MODIFIED_SINCE, &since)]).await;
    assert_eq!((response.status(), body.as_str()), (StatusCode::NOT_MODIFIED, ""));
}

#[tokio::test]
async fn paths_stay_in_the_directory_and_redirect_to_their_canonical_form() {
    let (_outer, root) = log_directory();
    for (path, status, expected) in [
        ("syslog", 200, "0123456789"),
        ("syslog?query=kubelet", 200, "0123456789"),
        ("a&b%20%3C%27%3F%3E%20x:y", 200, "odd"),
        ("pods/d_p_u/c/0.log", 200, "line\n"),
        ("containers/p.log", 200, "line\n"),
        ("empty/../syslog", 200, "0123456789"),
        ("../../../syslog", 200, "0123456789"),
        ("../secret", 404, "404 page not found\n"),
        ("%2e%2e/secret", 404, "404 page not found\n"),
        ("..%2fsecret", 404, "404 page not found\n"),
        ("none", 404, "404 page not found\n"),
        ("syslog/none", 404, "404 page not found\n"),
        ("a%00b", 500, "500 Internal Server Error\n"),
    ] {
        let (response, body) = get(&root, path, &[]).await;
        assert_eq!((response.status().as_u16(), body.as_str()), (status, expected), "{path}");
    }
    // Paths that are not canonical redirect to a relative location.
    for (path, to) in [
        ("pods", "pods/"),
        ("pods?x=y", "pods/?x=y"),
        ("syslog/", "../syslog"),
        ("index.html", "./"),
    ] {
        let (response, _) = get(&root, path, &[]).await;
        assert_eq!((response.status().as_u16(), header(&response, LOCATION)), (301, to), "{path}");
    }
}

#[tokio::test]
async fn a_file_is_served_with_its_type_length_ranges_and_conditions() {
    let (_outer, root) = log_directory();
    let (response, _) = get(&root, "syslog", &[]).await;
    assert_eq!(header(&response, CONTENT_TYPE), "text/plain; charset=utf-8");
    assert_eq!(header(&response, CONTENT_LENGTH), "10");
    assert_eq!(header(&response, ACCEPT_RANGES), "bytes");
    let modified = header(&response, LAST_MODIFIED).to_owned();
    assert!(modified.ends_with(" GMT"), "{modified}");
    let (response, _) = get(&root, "btmp", &[]).await;
    assert_eq!(header(&response, CONTENT_TYPE), "application/octet-stream");
    let (response, body) = get(&root, "syslog", &[(RANGE, "bytes=-4")]).await;
    assert_eq!((response.status().as_u16(), body.as_str()), (206, "6789"));
    assert_eq!(header(&response, CONTENT_RANGE), "bytes 6-9/10");
    assert_eq!(header(&response, CONTENT_LENGTH), "4");
    let (response, body) = get(&root, "syslog", &[(RANGE, "bytes=0-1,8-")]).await;
    assert_eq!(response.status(), StatusCode::PARTIAL_CONTENT);
    assert_eq!(header(&response, CONTENT_LENGTH), body.len().to_string());
    let boundary = header(&response, CONTENT_TYPE).rsplit_once('=').unwrap().1.to_owned();
    // One part of the multipart body of a response with several ranges.
    let part = |range: &str, text: &str| {
        format!(
            "--{boundary}\r\nContent-Range: bytes {range}/10\r\n\
             Content-Type: text/plain; charset=utf-8\r\n\r\n{text}\r\n"
        )
    };
    assert_eq!(body, format!("{}{}--{boundary}--\r\n", part("0-1", "01"), part("8-9", "89")));
    let (response, body) = get(&root, "syslog", &[(RANGE, "bytes=10-")]).await;
    assert_eq!((response.status().as_u16(), header(&response, CONTENT_RANGE)), (416, "bytes */10"));
    assert_eq!(body, "invalid range: failed to overlap\n");
    // The range applies to an older version of the file: the response is the whole file.
    let outdated_range = [(RANGE, "bytes=0-1"), (IF_RANGE, "Thu, 01 Jan 1970 00:00:00 GMT")];
    let (response, body) = get(&root, "syslog", &outdated_range).await;
    assert_eq!((response.status().as_u16(), body.as_str()), (200, "0123456789"));
    let (response, _) = get(&root, "syslog", &[(IF_MODIFIED_SINCE, &modified)]).await;
    assert_eq!(response.status(), StatusCode::NOT_MODIFIED);
}

#[tokio::test]
async fn a_file_larger_than_a_chunk_is_served_whole() {
    let (_outer, root) = log_directory();
    // More than four chunks of 64 KiB.
    let large: String = (0..50_000).map(|i| format!("{i}\n")).collect();
    std::fs::write(root.join("large"), &large).unwrap();
    let (response, body) = get(&root, "large", &[]).await;
    assert_eq!(header(&response, CONTENT_LENGTH), large.len().to_string());
    assert!(body == large, "the body is not the file");
}

#[tokio::test]
async fn a_query_is_about_services_or_one_file() {
    let (_outer, root) = log_directory();
    let status = |query, path| {
        let root = root.clone();
        async move {
            match resolve(Some(query), path, &root).await {
                Ok(QueryTarget::Path) => "path".to_owned(),
                Ok(QueryTarget::File(file)) => file,
                Ok(QueryTarget::Services(query)) => query.services.join(" "),
                Err(error) => format!("{} {error}", error.status().as_u16()),
            }
        }
    };
    assert_eq!(status("pretty=true", b"syslog").await, "path");
    assert_eq!(status("query=kubelet&query=b", b"").await, "kubelet b");
    assert_eq!(status("query=./syslog", b"").await, "./syslog");
    let refused = status("query=kubelet", b"syslog").await;
    assert_eq!(refused, "406 path not allowed in query mode");
    let invalid = status("query=kubelet&boot=x", b"").await;
    assert!(invalid.starts_with("400 boot: Invalid value: "), "{invalid}");
    let invalid = status("query=kubelet&boot=1", b"").await;
    assert_eq!(invalid, "406 boot: Invalid value: 1: must be less than 1");
}

/// A program may create a FIFO in the log directory; opening it would wait for a writer.
#[tokio::test]
async fn a_fifo_is_refused_without_waiting_for_a_writer() {
    let (_outer, root) = log_directory();
    nix::unistd::mkfifo(&root.join("pipe"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    let (response, _) = get(&root, "pipe", &[]).await;
    assert_eq!(response.status(), StatusCode::INTERNAL_SERVER_ERROR);
}
