//! Tests of the flags and of requests to a service that misbehaves; `tests/etcd-snapshots` tests a
//! real service.

use std::io::{Read, Write};
use std::net::TcpListener;

use ::http::StatusCode;

use super::http::error_message;
use super::*;
use crate::command_line::{Cli, Command, SnapshotCommand};

const GIVEN: [&str; 4] = [
    "--etcd-s3",
    "--etcd-s3-bucket=b",
    "--etcd-s3-access-key=AKIDEXAMPLE",
    "--etcd-s3-secret-key=wJalrXUtnFEMI",
];

fn config(
    flags: &[&str],
    lookup: impl Fn(&str) -> Option<String>,
) -> Result<Option<BucketConfig>, String> {
    let argv = ["kube-lite", "etcd-snapshot", "ls"].iter().chain(flags).map(Into::into).collect();
    let Ok(Cli { command: Command::EtcdSnapshot(args) }) = crate::command_line::parse(argv, lookup)
    else {
        panic!("{flags:?} do not parse")
    };
    let SnapshotCommand::Ls(ls) = args.command else { panic!("not ls") };
    settings::from_args(&ls.folder.s3).map_err(|command_error| command_error.to_string())
}

fn parsed(
    flags: &[&str],
    lookup: impl Fn(&str) -> Option<String>,
) -> Result<Option<Settings>, String> {
    match config(flags, lookup)? {
        Some(BucketConfig::Settings(settings)) => Ok(Some(*settings)),
        None => Ok(None),
        Some(other) => panic!("{other:?}"),
    }
}

fn of(flags: &[&str]) -> Result<Option<Settings>, String> {
    parsed(&[&GIVEN, flags].concat(), |_| None)
}

#[test]
fn endpoints_and_styles_are_those_of_the_service() {
    let endpoint = |flags: &[&str]| {
        let settings = of(flags).unwrap().unwrap();
        (settings.endpoint, settings.by_host)
    };
    let own = |url: &str, by_host| (url.to_owned(), by_host);
    assert_eq!(endpoint(&[]), own("https://s3.amazonaws.com", true));
    assert_eq!(
        endpoint(&["--etcd-s3-region=eu-west-1"]),
        own("https://s3.eu-west-1.amazonaws.com", true)
    );
    assert_eq!(endpoint(&["--etcd-s3-bucket=a.b"]), own("https://s3.amazonaws.com", false));
    assert_eq!(endpoint(&["--etcd-s3-endpoint=minio:9000"]), own("https://minio:9000", false));
    assert_eq!(
        endpoint(&["--etcd-s3-endpoint=http://minio:9000/", "--etcd-s3-insecure"]),
        own("http://minio:9000", false)
    );
    assert_eq!(
        endpoint(&["--s3-endpoint=minio", "--s3-bucket-lookup-type=dns"]),
        own("https://minio", true)
    );
    let folder = of(&["--etcd-s3-folder=/a/b/"]).unwrap().unwrap();
    assert_eq!(folder.location("x"), "s3://b/a/b/x");
    assert_eq!(format!("{folder:?}"), "s3://b/a/b/ at https://s3.amazonaws.com");
    assert_eq!(folder.timeout, Duration::from_secs(300));
}

#[test]
fn invalid_flags_are_rejected_by_name() {
    assert_eq!(parsed(&["--etcd-s3-bucket=b"], |_| None), Ok(None));
    for (flags, want) in [
        (vec!["--etcd-s3-bucket="], "--etcd-s3 needs --etcd-s3-bucket"),
        (vec!["--etcd-s3-bucket=a/b"], "--etcd-s3-bucket=a/b: is not the name of a bucket"),
        (vec!["--etcd-s3-folder=a/../b"], "--etcd-s3-folder=a/../b: must be letters"),
        (vec!["--etcd-s3-endpoint=http://x"], "add --etcd-s3-insecure"),
        (vec!["--etcd-s3-endpoint=https://x", "--etcd-s3-insecure"], "remove --etcd-s3-insecure"),
        (vec!["--etcd-s3-endpoint=user@host"], "must be HOST, HOST:PORT or a URL"),
        (vec!["--etcd-s3-endpoint-ca=/absent"], "--etcd-s3-endpoint-ca=/absent: "),
        (vec!["--etcd-s3-timeout=soon"], "--etcd-s3-timeout=soon: "),
        (vec!["--etcd-s3-timeout=0s"], "must be a second or more"),
        (vec!["--etcd-s3-access-key="], "--etcd-s3 needs --etcd-s3-access-key"),
    ] {
        let error = of(&flags).unwrap_err();
        assert!(error.contains(want) && !error.contains("wJalrXUtnFEMI"), "{flags:?}: {error}");
    }
}

#[test]
fn a_secret_describes_the_bucket_only_if_no_flag_or_variable_does() {
    let config = |flags: &[&str], lookup: &dyn Fn(&str) -> Option<String>| {
        let flags = [&["--etcd-s3", "--etcd-s3-config-secret=own"], flags].concat();
        config(&flags, lookup)
    };
    let none = |_: &str| None;
    let of_secret = |config: Result<Option<BucketConfig>, String>| match config {
        Ok(Some(BucketConfig::Secret(secret))) => Some((secret.name, secret.retention)),
        _ => None,
    };
    let retention = ["--etcd-s3-retention=9", "--etcd-s3-timeout=300s"];
    assert_eq!(of_secret(config(&retention, &none)), Some(("own".to_owned(), 9)));
    // Proxies of the environment apply to both.
    let proxy = |name: &str| (name == "HTTPS_PROXY").then(|| "http://p".to_owned());
    assert_eq!(of_secret(config(&[], &proxy)), Some(("own".to_owned(), 5)));
    for flag in ["--etcd-s3-region=eu-west-1", "--etcd-s3-insecure", "--etcd-s3-proxy=none"] {
        let error = config(&[flag], &none).unwrap_err();
        assert!(error.contains("--etcd-s3 needs --etcd-s3-bucket"), "{flag}: {error}");
    }
    let key = |name: &str| (name == "AWS_ACCESS_KEY_ID").then(|| "key".to_owned());
    assert!(config(&[], &key).unwrap_err().contains("--etcd-s3 needs --etcd-s3-bucket"));
    let error = config(&["--etcd-s3-config-secret=a/b"], &none).unwrap_err();
    assert!(error.contains("--etcd-s3-config-secret=a/b: is not the name of a Secret"), "{error}");
}

#[test]
fn keys_may_come_from_the_variables_of_aws() {
    let lookup = |name: &str| match name {
        "AWS_ACCESS_KEY_ID" => Some("key".to_owned()),
        "AWS_SECRET_ACCESS_KEY" => Some("secret".to_owned()),
        "AWS_SESSION_TOKEN" => Some("token".to_owned()),
        _ => None,
    };
    let settings =
        parsed(&["--etcd-s3", "--etcd-s3-bucket=b", "--etcd-s3-access-key=typed"], lookup);
    let settings = settings.unwrap().unwrap();
    assert_eq!(settings.access_key, "typed");
    assert_eq!(
        (settings.secret_key.as_str(), settings.session_token.as_str()),
        ("secret", "token")
    );
}

#[test]
fn error_messages_quote_the_service_in_one_line() {
    let body = "<Error><Code>RequestTimeTooSkewed</Code><Message>The difference\nis too \
        large.</Message></Error>";
    assert_eq!(
        error_message(StatusCode::FORBIDDEN, None, body),
        "the bucket answers 403: RequestTimeTooSkewed: The difference is too large."
    );
    assert_eq!(
        error_message(StatusCode::MOVED_PERMANENTLY, Some("eu-west-1"), ""),
        "the bucket answers 301: it is in region eu-west-1, give --etcd-s3-region=eu-west-1"
    );
    assert_eq!(error_message(StatusCode::BAD_GATEWAY, None, "<Code>"), "the bucket answers 502");
}

/// Answers each connection with the next of these, after its request's head; the heads.
fn service(answers: Vec<&'static str>) -> (String, std::thread::JoinHandle<Vec<String>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("127.0.0.1:{}", listener.local_addr().unwrap().port());
    let serving = std::thread::spawn(move || {
        answers
            .into_iter()
            .map(|answer| {
                let (mut stream, _) = listener.accept().unwrap();
                let mut head = Vec::new();
                let mut byte = [0];
                while !head.ends_with(b"\r\n\r\n") && stream.read(&mut byte).unwrap() == 1 {
                    head.extend_from_slice(&byte);
                }
                let head = String::from_utf8(head).unwrap();
                let length = head.lines().find_map(|l| l.strip_prefix("content-length: "));
                let length: usize = length.map_or(0, |l| l.parse().unwrap());
                let mut body = vec![0; length];
                stream.read_exact(&mut body).unwrap();
                stream.write_all(answer.as_bytes()).unwrap();
                head + &String::from_utf8_lossy(&body)
            })
            .collect()
    });
    (endpoint, serving)
}

async fn bucket(endpoint: &str, flags: &[&str]) -> Bucket {
    let endpoint = format!("--etcd-s3-endpoint={endpoint}");
    let flags = [&["--etcd-s3-insecure", "--etcd-s3-folder=f", endpoint.as_str()], flags].concat();
    Bucket::open(of(&flags).unwrap().unwrap()).await.unwrap()
}

const OK: &str = "HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
const BUSY: &str = "HTTP/1.1 503 Slow\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
const DENIED: &str =
    "HTTP/1.1 403 No\r\ncontent-length: 25\r\nconnection: close\r\n\r\n<Code>AccessDenied</Code>";

#[tokio::test]
async fn an_upload_is_retried_after_a_transient_error_and_carries_its_checksum() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x");
    std::fs::write(&path, "123456789").unwrap();
    let (endpoint, serving) = service(vec![BUSY, OK]);
    let saved = bucket(&endpoint, &[]).await.put(&path, "on-demand-a-7").await.unwrap();
    assert_eq!(
        (saved.location.as_str(), saved.size, saved.created),
        ("s3://b/f/on-demand-a-7", 9, 7)
    );
    let asked = serving.join().unwrap();
    assert_eq!(asked.len(), 2);
    for request in &asked {
        assert!(request.starts_with("PUT /b/f/on-demand-a-7?"), "{request}");
        // The check value of CRC-32C (RFC 3720, appendix B.4, and the catalogue of CRCs): e3069283.
        assert!(request.contains("x-amz-checksum-crc32c: 4waSgw==\r\n"), "{request}");
        assert!(request.contains("X-Amz-SignedHeaders=host%3Bx-amz-checksum-crc32c"), "{request}");
        assert!(request.ends_with("\r\n\r\n123456789") && !request.contains("wJalrXUtnFEMI"));
    }
}

#[tokio::test]
async fn a_rejection_is_final_and_a_busy_service_is_given_up_after_three_attempts() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x");
    std::fs::write(&path, "x").unwrap();
    let (endpoint, serving) = service(vec![DENIED]);
    let error = bucket(&endpoint, &[]).await.put(&path, "a-1").await.unwrap_err().to_string();
    assert_eq!(error, "s3://b/f/a-1: the bucket answers 403: AccessDenied");
    assert_eq!(serving.join().unwrap().len(), 1);
    let (endpoint, serving) = service(vec![BUSY; 3]);
    let error = bucket(&endpoint, &[]).await.put(&path, "a-1").await.unwrap_err().to_string();
    assert_eq!(error, "s3://b/f/a-1: the bucket answers 503");
    assert_eq!(serving.join().unwrap().len(), 3);
}

#[tokio::test]
async fn a_proxy_forwards_requests_without_tls_and_connects_the_others() {
    let flags = |proxy: &str| format!("--etcd-s3-proxy=http://me:pass@{proxy}");
    let (proxy, serving) = service(vec![OK]);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x");
    std::fs::write(&path, "x").unwrap();
    let plain = bucket("bucket.example:9000", &[&flags(&proxy)]).await;
    plain.put(&path, "a-1").await.unwrap();
    let asked = serving.join().unwrap();
    assert!(asked[0].starts_with("PUT http://bucket.example:9000/b/f/a-1?"), "{}", asked[0]);
    assert!(asked[0].contains("\r\nhost: bucket.example:9000\r\n"), "{}", asked[0]);
    // base64 of me:pass
    assert!(asked[0].contains("\r\nproxy-authorization: Basic bWU6cGFzcw==\r\n"), "{}", asked[0]);
    let denied = "HTTP/1.1 407 Proxy Authentication Required\r\n\r\n";
    let (proxy, serving) = service(vec![denied]);
    let settings = of(&["--etcd-s3-endpoint=bucket.example", &flags(&proxy)]).unwrap().unwrap();
    let error = Bucket::open(settings).await.unwrap().list().await.unwrap_err().to_string();
    let want =
        format!("s3://b/: the proxy {proxy} answers: HTTP/1.1 407 Proxy Authentication Required");
    assert_eq!(error, want);
    let asked = serving.join().unwrap();
    assert!(asked[0].starts_with("CONNECT bucket.example:443 HTTP/1.1\r\n"), "{}", asked[0]);
    assert!(asked[0].contains("\r\nProxy-Authorization: Basic bWU6cGFzcw==\r\n"), "{}", asked[0]);
}

#[tokio::test]
async fn a_truncated_download_leaves_no_file() {
    let dir = tempfile::tempdir().unwrap();
    let cut = "HTTP/1.1 200 OK\r\ncontent-length: 10\r\nconnection: close\r\n\r\n12345";
    let (endpoint, serving) = service(vec![cut; 3]);
    let error = bucket(&endpoint, &[]).await.get("a-1", dir.path()).await.unwrap_err().to_string();
    assert!(error.starts_with("s3://b/f/a-1: the answer breaks off"), "{error}");
    assert_eq!(serving.join().unwrap().len(), 3);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    let whole = "HTTP/1.1 200 OK\r\ncontent-length: 5\r\nconnection: close\r\n\r\n12345";
    let (endpoint, serving) = service(vec![cut, whole]);
    let file = bucket(&endpoint, &[]).await.get("a-1", dir.path()).await.unwrap();
    assert_eq!(std::fs::read_to_string(file).unwrap(), "12345");
    serving.join().unwrap();
    let error =
        bucket("127.0.0.1:1", &[]).await.get("../x", dir.path()).await.unwrap_err().to_string();
    assert!(error.contains("for a file add --etcd-s3=false"), "{error}");
}

#[tokio::test]
async fn lists_are_read_to_the_last_page_and_other_objects_are_skipped() {
    let answer = |body: &str| -> &'static str {
        let text = format!(
            "HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
            body.len()
        );
        Box::leak(text.into_boxed_str())
    };
    let page = |inner: &str| {
        answer(&format!(
            "<ListBucketResult \
             xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">{inner}</ListBucketResult>"
        ))
    };
    let first = page(
        "<IsTruncated>true</IsTruncated><NextContinuationToken>next</NextContinuationToken>\
        <Contents><Key>f/on-demand-a-9</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified><Size>5</Size></Contents>",
    );
    let second = page(
        "<IsTruncated>false</IsTruncated><Contents><Key>f/on-demand-a-8</Key><Size>4</Size></Contents>\
        <Contents><Key>f/.hidden</Key><Size>4</Size></Contents><Contents><Key>f/plain</Key>\
        <LastModified>1970-01-01T00:00:03Z</LastModified><Size>1</Size></Contents>",
    );
    let (endpoint, serving) = service(vec![first, second]);
    let all = bucket(&endpoint, &[]).await.list().await.unwrap();
    let all: Vec<(&str, u64, i64)> =
        all.iter().map(|s| (s.name.as_str(), s.size, s.created)).collect();
    assert_eq!(all, [("plain", 1, 3), ("on-demand-a-8", 4, 8), ("on-demand-a-9", 5, 9)]);
    let asked = serving.join().unwrap();
    assert!(asked[0].contains("prefix=f%2F") && asked[0].contains("delimiter=%2F"), "{}", asked[0]);
    assert!(asked[1].contains("continuation-token=next"), "{}", asked[1]);
}
