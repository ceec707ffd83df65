//! A webhook on the loopback address, and the decision without a response. Rows are from upstream's
//! `webhook_v1_test.go` and `webhook.go`.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use base::Shutdown;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::*;
use crate::authz::config::Version;

/// Serves connections one at a time; `says` maps the number of the request to its response.
async fn server(respond: fn(usize) -> (u16, &'static str)) -> (u16, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&calls);
    // Runs as long as the test's runtime.
    Tasks::new(Shutdown::new()).spawn(base::Kind::Request, "hook", async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut request = Vec::new();
            let mut part = [0; 4096];
            // Read one request per connection: its body ends with the closing brace of the review.
            while !request.ends_with(b"}") {
                let read = stream.read(&mut part).await.unwrap();
                assert_ne!(read, 0, "the request breaks off");
                request.extend_from_slice(&part[..read]);
            }
            let (code, body) = respond(counted.fetch_add(1, Ordering::SeqCst));
            let head = format!(
                "HTTP/1.1 {code} X\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
                body.len()
            );
            stream.write_all(head.as_bytes()).await.unwrap();
        }
        Ok::<(), String>(())
    });
    (port, calls)
}

fn hook(denies_on_failure: bool, conditions: &[&str]) -> Hook {
    Hook {
        authorized_ttl: Duration::from_secs(60),
        unauthorized_ttl: Duration::ZERO,
        timeout: Duration::from_secs(3),
        version: Version::V1,
        denies_on_failure,
        kubeconfig: PathBuf::from("/hook"),
        conditions: conditions.iter().map(|text| (*text).to_owned()).collect(),
    }
}

fn webhook(port: u16, hook: &Hook) -> (Webhook, Arc<AuthorizationMetrics>) {
    let text = format!(
        "current-context: c\ncontexts: [{{name: c, context: {{cluster: k}}}}]\nclusters: [{{name: k, cluster: {{server: 'http://127.0.0.1:{port}/x'}}}}]"
    );
    let endpoint = WebhookEndpoint::of(text.as_bytes(), Path::new("/"), "x").unwrap();
    let metrics = Arc::new(AuthorizationMetrics::default());
    (Webhook::new("w", hook, endpoint, &metrics, &Tasks::new(Shutdown::new())), metrics)
}

fn pods() -> Attributes<'static> {
    Attributes { verb: "get", version: "v1", resource: "pods", ..Attributes::default() }
}

fn failed(denied: bool, error: &str) -> Decision {
    Decision::Failed(Failure { denied, reason: String::new(), error: error.to_owned() })
}

#[test]
fn responses_determine_the_decision() {
    let of = |allowed, denied| decision(Status { allowed, denied, reason: "r".into() });
    assert_eq!(of(true, false), Decision::Allow("r".into()));
    assert_eq!(of(false, true), Decision::Deny("r".into()));
    assert_eq!(of(false, false), Decision::NoOpinion("r".into()));
    let error = "webhook subject access review returned both allow and deny response";
    let both = Failure { denied: true, reason: "r".into(), error: error.into() };
    assert_eq!(of(true, true), Decision::Failed(both));
}

#[test]
fn transient_errors_are_retried() {
    let again = |code, reason, after| {
        error_response(&api::Status::failure(code, reason, "x"), after).retry_after
    };
    assert_eq!(again(500, "InternalError", None), Some(Duration::ZERO));
    assert_eq!(again(504, "Timeout", None), Some(Duration::ZERO));
    assert_eq!(again(429, "TooManyRequests", Some(2)), Some(Duration::from_secs(2)));
    assert_eq!(again(503, "ServiceUnavailable", Some(900)), Some(RETRY_AFTER_MAX));
    assert_eq!(again(503, "ServiceUnavailable", None), None);
    assert_eq!(again(403, "Forbidden", None), None);
    assert_eq!(again(400, "BadRequest", Some(1)), None);
}

#[tokio::test]
async fn decisions_are_cached_for_their_ttl() {
    let (port, calls) = server(|number| {
        let body = if number == 0 {
            r#"{"apiVersion":"authorization.k8s.io/v1","kind":"SubjectAccessReview","status":{"allowed":true,"reason":"yes"}}"#
        } else {
            r#"{"apiVersion":"authorization.k8s.io/v1","kind":"SubjectAccessReview","status":{"allowed":false}}"#
        };
        (200, body)
    })
    .await;
    let (webhook, _) = webhook(port, &hook(true, &[]));
    let (jane, bob) = (User::authenticated("jane", &[]), User::authenticated("bob", &[]));
    for _ in 0..3 {
        assert_eq!(webhook.authorize(&jane, &pods()).await, Decision::Allow("yes".into()));
    }
    assert_eq!(calls.load(Ordering::SeqCst), 1);
    for _ in 0..2 {
        assert_eq!(webhook.authorize(&bob, &pods()).await, Decision::NoOpinion(String::new()));
    }
    assert_eq!(calls.load(Ordering::SeqCst), 3);
    // Attributes that the client controls are too large for the cache.
    let long = "x".repeat(CACHED_BYTES_MAX);
    let large = Attributes { name: &long, ..pods() };
    webhook.authorize(&jane, &large).await;
    webhook.authorize(&jane, &large).await;
    assert_eq!(calls.load(Ordering::SeqCst), 5);
}

#[tokio::test]
async fn unmet_conditions_skip_the_webhook_and_failed_ones_follow_the_policy() {
    let fails = "request.nonResourceAttributes.path == '/x'";
    let jane = User::authenticated("jane", &[]);
    for (denies, condition, want) in [
        (true, "request.user == 'bob'", Decision::NoOpinion(String::new())),
        (
            true,
            fails,
            failed(
                true,
                &format!(
                    "cel evaluation error: expression '{fails}' resulted in error: no such key: nonResourceAttributes"
                ),
            ),
        ),
        (
            false,
            fails,
            failed(
                false,
                &format!(
                    "cel evaluation error: expression '{fails}' resulted in error: no such key: nonResourceAttributes"
                ),
            ),
        ),
    ] {
        // Nothing listens on this port: the webhook must not be called.
        let (webhook, _) = webhook(1, &hook(denies, &[condition]));
        assert_eq!(webhook.authorize(&jane, &pods()).await, want, "{condition}");
    }
}

#[tokio::test]
async fn the_failure_policy_decides_without_a_response() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    drop(listener);
    let error = format!(
        "Post \"http://127.0.0.1:{port}/x?timeout=3s\": dial tcp 127.0.0.1:{port}: connect: connection refused"
    );
    let jane = User::authenticated("jane", &[]);
    for denies in [true, false] {
        let (webhook, metrics) = webhook(port, &hook(denies, &[]));
        assert_eq!(webhook.authorize(&jane, &pods()).await, failed(denies, &error));
        let mut text = String::new();
        metrics.render(&mut text);
        assert!(text.contains(
            "apiserver_authorization_webhook_evaluations_total{name=\"w\",result=\"error\"} 1\n"
        ));
        let open = "apiserver_authorization_webhook_evaluations_fail_open_total{name=\"w\",result=\"error\"} 1\n";
        assert_eq!(text.contains(open), !denies);
    }
}

/// 500 is retried; other codes are not.
#[tokio::test]
async fn retries_have_upstreams_delays() {
    let jane = User::authenticated("jane", &[]);
    let (port, calls) =
        server(
            |number| {
                if number == 0 { (500, "{}") } else { (200, r#"{"status":{"allowed":true}}"#) }
            },
        )
        .await;
    let (hooked, _) = webhook(port, &hook(true, &[]));
    assert_eq!(hooked.authorize(&jane, &pods()).await, Decision::Allow(String::new()));
    assert_eq!(calls.load(Ordering::SeqCst), 2);
    let (port, calls) = server(|_| (403, "{}")).await;
    let (hooked, _) = webhook(port, &hook(true, &[]));
    let decision = hooked.authorize(&jane, &pods()).await;
    assert!(matches!(decision, Decision::Failed(Failure { denied: true, .. })), "{decision:?}");
    assert_eq!(calls.load(Ordering::SeqCst), 1);
}
