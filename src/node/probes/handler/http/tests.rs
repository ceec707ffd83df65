//! Redirects as the kubelet's `pkg/probe/http` follows them.

use api::k8s::apimachinery::pkg::util::intstr::IntOrString;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::*;

/// A server on 127.0.0.1 that responds to `GET /status/location` with this status and location and
/// keeps the requests. Returns its port and the requests.
async fn server() -> (u16, Arc<parking_lot::Mutex<Vec<String>>>) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let requests = Arc::new(parking_lot::Mutex::new(Vec::new()));
    let kept = Arc::clone(&requests);
    let serve = async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                if stream.read(&mut byte).await.unwrap_or(0) == 0 {
                    break;
                }
                request.extend_from_slice(&byte);
                // A TLS record gets an HTTP error, as from usual HTTP servers.
                if request == [0x16] {
                    request = b"GET /400 HTTP/1.1\r\n\r\n".to_vec();
                }
            }
            let request = String::from_utf8(request).unwrap();
            let path = request.split(' ').nth(1).unwrap_or_default().to_owned();
            kept.lock().push(request);
            let mut parts = path.trim_start_matches('/').splitn(2, '/');
            let status = parts.next().unwrap_or_default();
            let location = parts.next().map(|l| l.replace("PORT", &port.to_string()));
            let location = location.map(|l| format!("Location: {l}\r\n")).unwrap_or_default();
            let answer = format!("HTTP/1.1 {status} X\r\n{location}Content-Length: 2\r\n\r\nhi");
            let _ = stream.write_all(answer.as_bytes()).await;
        }
    };
    #[expect(clippy::disallowed_methods, reason = "a server of the test, which ends with it")]
    tokio::spawn(serve);
    (port, requests)
}

fn get(port: u16, path: &str, headers: &[(&str, &str)]) -> HttpGet {
    HttpGet {
        https: false,
        host: "127.0.0.1".to_owned(),
        port,
        path: path.to_owned(),
        headers: headers.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect(),
        host_header: Some("name.test".to_owned()),
    }
}

const LIMIT: Duration = Duration::from_secs(30);

#[tokio::test]
async fn redirects_to_the_same_host_are_followed() {
    let (port, requests) = server().await;
    let to = |path: &str| get(port, path, &[("X-A", "1")]);
    for status in [301, 302, 303, 307, 308] {
        assert_eq!(to(&format!("/{status}//200")).send(LIMIT).await.unwrap().status, 200);
    }
    let received = std::mem::take(&mut *requests.lock());
    assert_eq!(received.len(), 10);
    let last = received.last().unwrap().to_lowercase();
    assert!(last.contains("x-a: 1\r\n") && last.contains("host: name.test\r\n"), "{last}");
    assert!(last.contains(&format!("referer: http://127.0.0.1:{port}/308//200\r\n")), "{last}");
    let absolute = to("/302/http://127.0.0.1:PORT/204");
    assert_eq!(absolute.send(LIMIT).await.unwrap().status, 204);
    let last = requests.lock().last().unwrap().to_lowercase();
    assert!(last.contains(&format!("host: 127.0.0.1:{port}\r\n")), "{last}");
    // A redirect to a failure is a failure.
    assert_eq!(to("/302//500").send(LIMIT).await.unwrap().status, 500);
}

#[tokio::test]
async fn a_redirect_to_another_host_ends_the_probe_with_a_warning() {
    let (port, requests) = server().await;
    let answer = get(port, "/302/http://localhost:PORT/200", &[]).send(LIMIT).await.unwrap();
    assert_eq!(requests.lock().len(), 1);
    let warning = "Probe terminated redirects, Response body: hi";
    assert_eq!(probe_result(&answer), ProbeResult::Warning(warning.to_owned()));
    // A redirect without a target, and a location without a redirect.
    for path in ["/301", "/300//200"] {
        let answer = get(port, path, &[]).send(LIMIT).await.unwrap();
        assert_eq!(probe_result(&answer), ProbeResult::Warning(warning.to_owned()));
    }
    let failed = HttpResponse { status: 404, body: b"secret".to_vec() };
    let text = "HTTP probe failed with statuscode: 404";
    assert_eq!(probe_result(&failed), ProbeResult::Failure(text.to_owned()));
    assert_eq!(probe_result(&HttpResponse { status: 204, body: Vec::new() }), ProbeResult::Success);
}

#[tokio::test]
async fn the_tenth_redirect_is_an_error() {
    let (port, requests) = server().await;
    let chain = |n: usize| format!("{}/200", "/302/".repeat(n));
    assert_eq!(get(port, &chain(9), &[]).send(LIMIT).await.unwrap().status, 200);
    requests.lock().clear();
    let error = get(port, &chain(10), &[]).send(LIMIT).await.unwrap_err();
    assert_eq!(error.to_string(), "Get \"/200\": stopped after 10 redirects");
    assert_eq!(requests.lock().len(), 10);
}

#[tokio::test]
async fn a_server_without_tls_is_detected() {
    let (port, _) = server().await;
    let error = HttpGet { https: true, ..get(port, "/200", &[]) }.send(LIMIT).await.unwrap_err();
    assert!(error.is_plain_http, "{error}");
    let url = format!("https://127.0.0.1:{port}/200");
    let why = "http: server gave HTTP response to HTTPS client";
    assert_eq!(error.to_string(), format!("Get \"{url}\": {why}"));
}

#[tokio::test]
async fn headers_of_the_pod_replace_those_of_the_probe() {
    let container = core::Container::default();
    let runtime = crate::runtime::cri::CriRuntime::new(std::path::Path::new("/nowhere"));
    let target = HandlerTarget {
        runtime: &runtime,
        container_id: "",
        container: &container,
        pod_ip: "fd00::1",
        user_agent: "kube-probe/1.37",
    };
    let header = |name: &str, value: &str| core::HTTPHeader {
        name: name.to_owned(),
        value: value.to_owned(),
    };
    let action = |headers| core::HTTPGetAction {
        port: IntOrString::Int(80),
        http_headers: Some(headers),
        ..core::HTTPGetAction::default()
    };
    let plain = HttpGet::new(target, &action(Vec::new())).unwrap();
    let text = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    let own = [text("User-Agent", "kube-probe/1.37"), text("Accept", "*/*")];
    assert_eq!((plain.headers.as_slice(), plain.host_header.as_deref()), (&own[..], None));
    assert_eq!((plain.authority().as_str(), plain.path.as_str()), ("[fd00::1]:80", "/"));
    let headers =
        vec![header("user-agent", "x"), header("accept", ""), header("host", "h"), header("A", "")];
    let other = HttpGet::new(target, &action(headers)).unwrap();
    assert_eq!(other.headers, [text("user-agent", "x"), text("A", "")]);
    assert_eq!(other.host_header.as_deref(), Some("h"));
}
