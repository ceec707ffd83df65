//! Static pods of a URL: new, unchanged, rejected, missing and empty documents.

use std::time::Duration;

use http::StatusCode;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::*;
use crate::static_pods::document::is_of_same_document;
use crate::static_pods::document::tests::WEB;
use crate::static_pods::sources::StaticPods;

const URL: &str = "https://u:hush@m.example/pods?token=hush";

fn reader() -> UrlReader {
    let url = StaticPodUrl::new(URL, &[], Duration::from_secs(20)).unwrap();
    UrlReader::new(url.source(), "n".to_owned())
}

fn whats(reader: &UrlReader) -> Vec<String> {
    reader.problems().into_iter().map(|(_, problem)| problem.what).collect()
}

fn body(text: &str) -> Result<Bytes, FetchError> {
    Ok(Bytes::copy_from_slice(text.as_bytes()))
}

#[test]
fn an_unchanged_document_is_no_change() {
    let mut reader = reader();
    let first = reader.accept(body(WEB)).unwrap();
    assert!(reader.accept(body(WEB)).is_none());
    // Other text of the same pod.
    let same = reader.accept(body(&format!("# a comment\n{WEB}"))).unwrap();
    assert!(Arc::ptr_eq(&first[0], &same[0]));
    let other = reader.accept(body(&WEB.replace("busybox", "busybox:1"))).unwrap();
    assert_ne!(other[0].uid, first[0].uid);
}

#[test]
fn pods_keep_running_while_the_url_cannot_be_read_or_its_document_is_invalid() {
    let mut reader = reader();
    assert!(reader.accept(body(WEB)).is_some());
    assert!(reader.accept(Err(FetchError::Status(StatusCode::INTERNAL_SERVER_ERROR))).is_none());
    let failed = "the static pods of https://m.example/pods cannot be read: the server answers \
                  500 Internal Server Error";
    assert_eq!(whats(&reader), [failed]);
    assert!(reader.accept(body("kind: [")).is_none());
    assert!(
        whats(&reader)[0]
            .starts_with("the static pods of https://m.example/pods are invalid: not a valid Pod")
    );
    // The same document stays rejected.
    assert!(reader.accept(body("kind: [")).is_none());
    assert_eq!(whats(&reader).len(), 1);
    assert!(reader.accept(body(WEB)).is_some());
    assert!(whats(&reader).is_empty());
}

#[test]
fn an_empty_body_removes_the_pods_and_the_same_document_is_new_afterwards() {
    let mut reader = reader();
    let first = reader.accept(body(WEB)).unwrap();
    assert_eq!(reader.accept(body("")).map(|pods| pods.len()), Some(0));
    let want = "the static pods of https://m.example/pods are invalid: zero-length data received";
    assert_eq!(whats(&reader), [want]);
    let again = reader.accept(body(WEB)).unwrap();
    assert_eq!(first[0].uid, again[0].uid);
    assert!(!is_of_same_document(&first[0], &again[0]));
}

/// Serves `answers` one by one, and returns the requests.
async fn serve(answers: Vec<String>) -> (String, tokio::task::JoinHandle<Vec<String>>) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/pods", listener.local_addr().unwrap());
    #[expect(clippy::disallowed_methods, reason = "ends with the answers of the test")]
    let requests = tokio::spawn(async move {
        let mut requests = Vec::new();
        for answer in answers {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = vec![0; 4096];
            let length = stream.read(&mut request).await.unwrap();
            requests.push(String::from_utf8_lossy(&request[..length]).into_owned());
            stream.write_all(answer.as_bytes()).await.unwrap();
        }
        requests
    });
    (url, requests)
}

fn answer(head: &str, body: &str) -> String {
    format!("HTTP/1.1 {head}\r\nContent-Length: {}\r\n\r\n{body}", body.len())
}

#[tokio::test]
async fn documents_are_requested_with_headers_and_over_redirects() {
    let answers = vec![
        answer("302 Found\r\nLocation: /moved", ""),
        answer("200 OK", WEB),
        answer("404 Not Found", "no"),
        format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", 4 << 20),
    ];
    let (url, requests) = serve(answers).await;
    let header = [("X-Token".to_owned(), "hush".to_owned())];
    let fetcher = Fetcher::new(StaticPodUrl::new(&url, &header, Duration::from_secs(20)).unwrap());
    assert_eq!(fetcher.get().await.unwrap(), WEB);
    let error = fetcher.get().await.unwrap_err().to_string();
    assert_eq!(error, "the server answers 404 Not Found");
    assert!(fetcher.get().await.is_err(), "the body is too large or ends early");
    let requests = requests.await.unwrap();
    assert!(requests[0].starts_with("GET /pods HTTP/1.1\r\n"), "{}", requests[0]);
    assert!(requests[1].starts_with("GET /moved HTTP/1.1\r\n"), "{}", requests[1]);
    assert!(requests.iter().all(|request| request.contains("x-token: hush\r\n")));
    // Nothing listens any more.
    let error = fetcher.get().await.unwrap_err().to_string();
    assert!(error.starts_with("cannot connect to 127.0.0.1:"), "{error}");
}

#[tokio::test]
async fn the_task_publishes_pods_and_ends_at_shutdown() {
    let (url, requests) = serve(vec![answer("200 OK", WEB), answer("500 Oh", "")]).await;
    let (problems, shutdown) = (Problems::default(), Shutdown::new());
    let (publisher, mut pods) = StaticPodPublisher::new(true, problems.clone());
    publisher.publish(PodSource::Files, Vec::new());
    let url = StaticPodUrl::new(&url, &[], Duration::from_millis(1)).unwrap();
    let task = run(url, "n".to_owned(), publisher, problems.clone(), shutdown.clone());
    let check = async {
        pods.wait_for(StaticPods::is_complete).await.unwrap();
        requests.await.unwrap();
        shutdown.request();
    };
    let (ended, ()) = tokio::join!(task, check);
    ended.unwrap();
    assert_eq!(pods.borrow().pods().len(), 1, "an error keeps the pods");
}
