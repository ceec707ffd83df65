//! What endpoints answer over HTTP/1.1, and what reaches the client.

use super::*;

/// An endpoint that reads one head on each connection, writes the bytes, and closes if it is to.
async fn scripted(tasks: &Tasks, answer: Vec<u8>, closes: bool) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let own = tasks.clone();
    tasks.spawn(base::Kind::Request, "scripted", async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let answer = answer.clone();
            own.spawn(base::Kind::Request, "scripted-connection", async move {
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    head.push(stream.read_u8().await?);
                }
                stream.write_all(&answer).await?;
                if !closes {
                    // Holds the connection until the proxy closes it.
                    drop(stream.read(&mut [0]).await);
                }
                Ok::<(), std::io::Error>(())
            });
        }
        Ok::<(), std::io::Error>(())
    });
    address
}

async fn answer_of(answer: &str, closes: bool, request: &str) -> String {
    let tasks = Tasks::new(Shutdown::new());
    let endpoint = scripted(&tasks, answer.as_bytes().to_vec(), closes).await;
    let proxy = proxy(rule(&[endpoint], |_| {}), &tasks, None).await;
    let got = exchange(proxy, request).await;
    tasks.shutdown().request();
    got
}

fn body(answer: &str) -> &str {
    answer.split_once("\r\n\r\n").map_or("", |(_, body)| body)
}

/// RFC 9110, 15.2: interim responses come before the final one.
#[tokio::test]
async fn interim_responses_are_passed_over() {
    let answer = "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n\
        HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
    let got = answer_of(answer, false, &get("/", "")).await;
    assert_eq!((status(&got), body(&got)), (StatusCode::OK, "ok"));
    assert!(!got.contains("link"), "{got}");
}

/// RFC 9112, 6.3: a response without a length ends with its connection.
#[tokio::test]
async fn a_response_may_end_with_its_connection() {
    let got = answer_of("HTTP/1.0 200 OK\r\n\r\nuntil the end", true, &get("/", "")).await;
    // The client gets chunks, since the proxy cannot know the length.
    assert_eq!(body(&got), "D\r\nuntil the end\r\n0\r\n\r\n");
}

#[tokio::test]
async fn responses_to_head_have_a_length_and_no_body() {
    let request = get("/", "").replacen("GET", "HEAD", 1);
    let got = answer_of("HTTP/1.1 200 OK\r\nContent-Length: 77\r\n\r\n", false, &request).await;
    assert!(got.contains("content-length: 77\r\n"), "{got}");
    assert_eq!(body(&got), "");
}

/// A truncated response must not look complete.
#[tokio::test]
async fn truncated_responses_break_the_clients_connection() {
    let got =
        answer_of("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf", true, &get("/", "")).await;
    assert!(body(&got).len() < 9, "{got}");
    let chunks = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n";
    let got = answer_of(chunks, true, &get("/", "")).await;
    assert!(!got.contains("\r\n0\r\n"), "{got}");
}

#[tokio::test]
async fn responses_that_are_no_http_are_a_bad_gateway() {
    for answer in [
        "SSH-2.0-OpenSSH_9.2\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
        "HTTP/1.1 200 OK\r\nX : 1\r\n\r\n",
    ] {
        let got = answer_of(answer, true, &get("/", "")).await;
        assert_eq!(status(&got), StatusCode::BAD_GATEWAY, "{answer}");
    }
    let got = answer_of("", true, &get("/", "")).await;
    assert_eq!(status(&got), StatusCode::BAD_GATEWAY);
}

/// Bytes after a response belong to no request: the connection is not used again.
#[tokio::test]
async fn bytes_after_a_response_are_not_taken_for_the_next_one() {
    let tasks = Tasks::new(Shutdown::new());
    let answer = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokHTTP/1.1 200 OK\r\n\
        Content-Length: 5\r\n\r\nforge";
    let endpoint = scripted(&tasks, answer.into(), false).await;
    let proxy = proxy(rule(&[endpoint], |_| {}), &tasks, None).await;
    for _ in 0..3 {
        let got = exchange(proxy, &get("/", "")).await;
        assert_eq!((status(&got), body(&got)), (StatusCode::OK, "ok"));
    }
    tasks.shutdown().request();
}

/// An endpoint may refuse a body that it has not read.
#[tokio::test]
async fn an_answer_before_the_end_of_the_request_arrives() {
    let head = "POST / HTTP/1.1\r\nHost: a.example\r\nContent-Length: 1000000\r\n\r\n";
    let answer = "HTTP/1.1 413 Content Too Large\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
    let got = answer_of(answer, true, &format!("{head}only a part")).await;
    assert_eq!(status(&got), StatusCode::PAYLOAD_TOO_LARGE);
}

/// RFC 9112, 7.1: chunks of a client reach the endpoint as chunks, with their data unchanged.
#[tokio::test]
async fn chunks_of_requests_are_passed_on() {
    let tasks = Tasks::new(Shutdown::new());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = listener.local_addr().unwrap();
    let proxy = proxy(rule(&[endpoint], |_| {}), &tasks, None).await;
    let mut client = TcpStream::connect(proxy).await.unwrap();
    let head = "POST / HTTP/1.1\r\nHost: a.example\r\nTransfer-Encoding: chunked\r\n\r\n";
    client.write_all(format!("{head}3\r\nabc\r\n").as_bytes()).await.unwrap();
    let (mut server, _) = listener.accept().await.unwrap();
    let mut got = Vec::new();
    while !got.ends_with(b"\r\n\r\n3\r\nabc\r\n") {
        got.push(server.read_u8().await.unwrap());
    }
    assert!(String::from_utf8_lossy(&got).contains("\r\ntransfer-encoding: chunked\r\n"));
    // The first chunk has arrived before the client has sent the second one.
    client.write_all(b"1\r\nd\r\n0\r\n\r\n").await.unwrap();
    let mut rest = [0; 11];
    server.read_exact(&mut rest).await.unwrap();
    assert_eq!(&rest, b"1\r\nd\r\n0\r\n\r\n");
    tasks.shutdown().request();
}

/// A body that the kernel moves between the sockets arrives unchanged, also if the client reads
/// slowly, and the connections are used for the next one.
#[tokio::test]
async fn large_bodies_arrive_unchanged() {
    const BYTES: usize = 5 * 1024 * 1024 + 77;
    let tasks = Tasks::new(Shutdown::new());
    let data: Vec<u8> = (0..BYTES).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = listener.local_addr().unwrap();
    let sent = data.clone();
    tasks.spawn(base::Kind::Request, "endpoint", async move {
        let (mut stream, _) = listener.accept().await?;
        while read_request(&mut stream).await.is_some() {
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {BYTES}\r\n\r\n");
            stream.write_all(head.as_bytes()).await?;
            stream.write_all(&sent).await?;
        }
        Ok::<(), std::io::Error>(())
    });
    let proxy = proxy(rule(&[endpoint], |_| {}), &tasks, None).await;
    let mut client = TcpStream::connect(proxy).await.unwrap();
    for piece in [1 << 16, 1 << 20, 999] {
        client.write_all(b"GET / HTTP/1.1\r\nHost: a.example\r\n\r\n").await.unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(client.read_u8().await.unwrap());
        }
        let mut got = vec![0; BYTES];
        for part in got.chunks_mut(piece) {
            client.read_exact(part).await.unwrap();
            if piece == 1 << 16 {
                // The client's socket and the pipe are full most of the time.
                tokio::task::yield_now().await;
            }
        }
        assert!(got == data, "the body differs in pieces of {piece}");
    }
    tasks.shutdown().request();
}
