//! Requests that mean two things, or that cost more than they should.

use super::*;

async fn target(tasks: &Tasks) -> (Echo, SocketAddr) {
    let echo = Echo::start(tasks).await;
    let proxy = proxy(rule(&[echo.address], |_| {}), tasks, None).await;
    (echo, proxy)
}

// RFC 9112: 6.1 and 6.3 (framing), 5.1 (space before the colon), 5.2 (folded lines).
#[tokio::test]
async fn ambiguous_framing_is_refused() {
    let tasks = Tasks::new(Shutdown::new());
    let (echo, proxy) = target(&tasks).await;
    let post = |headers: &str, body: &str| {
        format!("POST / HTTP/1.1\r\nHost: a.example\r\nConnection: close\r\n{headers}\r\n{body}")
    };
    for (name, request) in [
        ("two lengths", post("Content-Length: 1\r\nContent-Length: 2\r\n", "ab")),
        ("a list of lengths", post("Content-Length: 1, 2\r\n", "ab")),
        ("a signed length", post("Content-Length: +1\r\n", "a")),
        ("a length in hexadecimal", post("Content-Length: 0x1\r\n", "a")),
        ("a length above 64 bits", post("Content-Length: 99999999999999999999\r\n", "a")),
        ("chunked is not last", post("Transfer-Encoding: chunked, gzip\r\n", "0\r\n\r\n")),
        ("another coding", post("Transfer-Encoding: xchunked\r\n", "0\r\n\r\n")),
        ("a space before the colon", post("Content-Length : 1\r\n", "a")),
        ("a folded line", post("X-A: b\r\n Content-Length: 1\r\n", "")),
        ("a control character", post("X-A: b\0c\r\n", "")),
        ("no host", "GET / HTTP/1.1\r\nConnection: close\r\n\r\n".to_owned()),
    ] {
        let answer = exchange(proxy, &request).await;
        assert!(
            answer.is_empty() || status(&answer) == StatusCode::BAD_REQUEST,
            "{name}: {answer}"
        );
    }
    assert_eq!(echo.connections.load(Ordering::SeqCst), 0, "no endpoint got a request");
}

/// A chunk's size that cannot be read ends the request: what follows is no second request.
#[tokio::test]
async fn bad_chunks_do_not_begin_another_request() {
    let tasks = Tasks::new(Shutdown::new());
    let (_echo, proxy) = target(&tasks).await;
    for chunk in ["xyz\r\n", "-1\r\n", "ffffffffffffffffff\r\n", "1\n", "5;a=\nb\r\n"] {
        let request = format!(
            "POST / HTTP/1.1\r\nHost: a.example\r\nTransfer-Encoding: chunked\r\n\r\n{chunk}\
             GET /second HTTP/1.1\r\nHost: a.example\r\nConnection: close\r\n\r\n"
        );
        let answer = exchange(proxy, &request).await;
        assert!(!answer.contains("GET /second"), "{chunk:?}: {answer}");
    }
}

#[tokio::test]
async fn heads_are_bounded() {
    let tasks = Tasks::new(Shutdown::new());
    let (echo, proxy) = target(&tasks).await;
    let many = "X-A: b\r\n".repeat(300);
    let long = format!("X-A: {}\r\n", "b".repeat(100_000));
    for (name, request) in [
        ("many fields", get("/", &many)),
        ("a long field", get("/", &long)),
        ("a long path", get(&format!("/{}", "p".repeat(100_000)), "")),
    ] {
        let mut stream = TcpStream::connect(proxy).await.unwrap();
        // The proxy may close before all is written.
        drop(stream.write_all(request.as_bytes()).await);
        let mut answer = Vec::new();
        let reading = stream.read_to_end(&mut answer);
        drop(tokio::time::timeout(Duration::from_secs(5), reading).await.expect(name));
        let text = String::from_utf8_lossy(&answer);
        let code = text.split(' ').nth(1).unwrap_or_default();
        assert!(["", "400", "414", "431"].contains(&code), "{name}: {text}");
    }
    assert_eq!(echo.connections.load(Ordering::SeqCst), 0, "no endpoint got a request");
    assert_eq!(status(&exchange(proxy, &get("/", "")).await), StatusCode::OK);
}

/// A client that sends nothing, or only the beginning of HTTP/2's preface, is closed in time.
#[tokio::test(start_paused = true)]
async fn silent_clients_are_closed() {
    let tasks = Tasks::new(Shutdown::new());
    let (_echo, proxy) = target(&tasks).await;
    for first in ["", "P", "PRI * HTTP/2.0\r\n"] {
        let mut stream = TcpStream::connect(proxy).await.unwrap();
        stream.write_all(first.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        let reading = stream.read_to_end(&mut answer);
        tokio::time::timeout(Duration::from_secs(90), reading).await.expect(first).unwrap();
        assert!(answer.is_empty(), "{first:?}");
    }
}

/// An upload may take longer than the limit for the answer, as long as it makes progress; one that
/// stops may not.
#[tokio::test(start_paused = true)]
async fn slow_uploads_are_answered_and_stopped_ones_are_not() {
    let tasks = Tasks::new(Shutdown::new());
    let echo = Echo::start(&tasks).await;
    let limit = Some(Duration::from_secs(10));
    let proxy = proxy(rule(&[echo.address], |f| f.timeouts.read = limit), &tasks, None).await;
    let head =
        "POST / HTTP/1.1\r\nHost: a.example\r\nConnection: close\r\nContent-Length: 8\r\n\r\n";
    for (parts, expected) in [(8, StatusCode::OK), (3, StatusCode::GATEWAY_TIMEOUT)] {
        let mut stream = TcpStream::connect(proxy).await.unwrap();
        stream.write_all(head.as_bytes()).await.unwrap();
        for _ in 0..parts {
            tokio::time::sleep(Duration::from_secs(6)).await;
            stream.write_all(b"x").await.unwrap();
        }
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await.unwrap();
        assert_eq!(status(&String::from_utf8_lossy(&answer)), expected, "{parts} of 8 bytes");
    }
}

/// An endpoint may take longer than the limit for a whole body, as long as it pauses less.
#[tokio::test(start_paused = true)]
async fn a_response_that_stops_is_cut_where_a_limit_is_set() {
    let tasks = Tasks::new(Shutdown::new());
    let endpoint = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = endpoint.local_addr().unwrap();
    let own = tasks.clone();
    tasks.spawn(base::Kind::Request, "endpoint", async move {
        for pause in [6, 6, 30, 30] {
            let (mut stream, _) = endpoint.accept().await.unwrap();
            own.spawn(base::Kind::Request, "connection", async move {
                read_request(&mut stream).await;
                let head = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n";
                stream.write_all(head.as_bytes()).await.unwrap();
                for _ in 0..4 {
                    tokio::time::sleep(Duration::from_secs(pause)).await;
                    let _ = stream.write_all(b"x").await;
                }
                Ok::<(), std::convert::Infallible>(())
            });
        }
        Ok::<(), std::convert::Infallible>(())
    });
    let limit = Some(Duration::from_secs(10));
    let limited = proxy(rule(&[address], |f| f.timeouts.pause = limit), &tasks, None).await;
    let unlimited = proxy(rule(&[address], |_| {}), &tasks, None).await;
    let request = get("/", "");
    for (proxy, bytes) in [(limited, 4), (unlimited, 4), (limited, 0), (unlimited, 4)] {
        let mut stream = TcpStream::connect(proxy).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        // A body that is cut may end with a reset.
        let _ = stream.read_to_end(&mut answer).await;
        let answer = String::from_utf8_lossy(&answer);
        let body = answer.split_once("\r\n\r\n").expect("a head").1.len();
        assert_eq!(body, bytes, "{answer}");
    }
}
