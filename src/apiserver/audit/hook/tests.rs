//! Tests of deliveries to a receiver in this process.

use super::*;
use base::accept::{Accepted, accept};
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use std::sync::atomic::AtomicU32;
use tokio::net::TcpListener;

struct Receiver {
    bodies: mpsc::Receiver<(String, serde_json::Value)>,
    port: u16,
    tasks: Tasks,
}

/// Starts a receiver that responds `failures` times with 503, then with 200 and an empty body.
async fn receiver(failures: u32) -> Receiver {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let (sender, bodies) = mpsc::channel(64);
    let tasks = Tasks::new(Shutdown::new());
    let left = Arc::new(AtomicU32::new(failures));
    let owner = tasks.clone();
    tasks.spawn(Kind::Request, "receiver", async move {
        let shutdown = owner.shutdown().clone();
        accept(&listener, "test", 16, &shutdown, |accepted| {
            let (sender, left) = (sender.clone(), Arc::clone(&left));
            owner.spawn(Kind::Request, "connection", async move {
                let Accepted { stream, place: _place, .. } = accepted;
                let service = hyper::service::service_fn(move |request: Request<Incoming>| {
                    let (sender, left) = (sender.clone(), Arc::clone(&left));
                    async move {
                        let target = request.uri().to_string();
                        let body = request.into_body().collect().await.unwrap().to_bytes();
                        let fails = left
                            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| {
                                n.checked_sub(1)
                            })
                            .is_ok();
                        let mut response = Response::new(Full::new(Bytes::new()));
                        if fails {
                            *response.status_mut() = http::StatusCode::SERVICE_UNAVAILABLE;
                        } else {
                            let body = serde_json::from_slice(&body).unwrap();
                            sender.send((target, body)).await.unwrap();
                        }
                        Ok::<_, std::convert::Infallible>(response)
                    }
                });
                let served = hyper::server::conn::http1::Builder::new()
                    .serve_connection(TokioIo::new(stream), service);
                served.await.map_err(|e| e.to_string())
            });
        })
        .await;
        Ok::<(), String>(())
    });
    Receiver { bodies, port, tasks }
}

fn hook(port: u16, metrics: &Arc<AuditMetrics>, tasks: &Tasks) -> Arc<Hook> {
    let text = format!(
        "current-context: c\ncontexts: [{{name: c, context: {{cluster: k}}}}]\n\
         clusters: [{{name: k, cluster: {{server: 'http://127.0.0.1:{port}/in'}}}}]"
    );
    let endpoint = WebhookEndpoint::of(text.as_bytes(), std::path::Path::new("/"), "x").unwrap();
    let arguments = ["audit-webhook-config-file=x", "audit-webhook-initial-backoff=1ms"];
    let flags = crate::audit::flags::AuditFlags::parse(&arguments.map(str::to_owned)).unwrap();
    Arc::new(Hook::new(endpoint, &flags.webhook.unwrap(), metrics, tasks))
}

fn batch(buffer_size: usize, max_size: usize, max_wait: Duration) -> Batch {
    Batch { buffer_size, max_size, max_wait, throttle: None }
}

fn error_metrics(metrics: &AuditMetrics) -> String {
    let mut text = String::new();
    metrics.render(&mut text);
    text.lines().filter(|l| l.starts_with("apiserver_audit_error_total{")).collect()
}

const ONE: Bytes = Bytes::from_static(br#"{"auditID":"1"}"#);
const TWO: Bytes = Bytes::from_static(br#"{"auditID":"2"}"#);

#[tokio::test]
async fn a_delivery_is_retried_after_failures() {
    let mut receiver_end = receiver(2).await;
    let metrics = Arc::new(AuditMetrics::default());
    let hook = hook(receiver_end.port, &metrics, &receiver_end.tasks);
    hook.send(&[ONE, TWO]).await.unwrap();
    let (target, body) = receiver_end.bodies.recv().await.unwrap();
    assert_eq!(target, "/in?timeout=30s");
    assert_eq!(
        body,
        serde_json::json!({"kind": "EventList", "apiVersion": "audit.k8s.io/v1", "metadata": {}, "items": [{"auditID": "1"}, {"auditID": "2"}]})
    );
    assert_eq!(error_metrics(&metrics), "");
}

#[tokio::test]
async fn the_fifth_failure_is_the_last_and_is_counted() {
    let receiver_end = receiver(5).await;
    let metrics = Arc::new(AuditMetrics::default());
    let hook = hook(receiver_end.port, &metrics, &receiver_end.tasks);
    let error = hook.send(&[ONE, TWO]).await.unwrap_err();
    let port = receiver_end.port;
    assert_eq!(
        error.to_string(),
        format!(
            "Post \"http://127.0.0.1:{port}/in\": the server responded with the status code 503"
        )
    );
    assert_eq!(error_metrics(&metrics), "apiserver_audit_error_total{plugin=\"webhook\"} 2");
    hook.send(&[ONE]).await.unwrap();
}

#[tokio::test]
async fn a_batch_is_sent_when_it_is_full_or_after_max_wait() {
    let mut receiver_end = receiver(0).await;
    let metrics = Arc::new(AuditMetrics::default());
    let hook = hook(receiver_end.port, &metrics, &receiver_end.tasks);
    let long =
        EventBuffer::start(&hook, batch(10, 2, Duration::from_secs(3600)), &receiver_end.tasks);
    assert!(long.offer(ONE) && long.offer(TWO));
    let (_, body) = receiver_end.bodies.recv().await.unwrap();
    assert_eq!(body["items"].as_array().unwrap().len(), 2);
    let short =
        EventBuffer::start(&hook, batch(10, 100, Duration::from_millis(5)), &receiver_end.tasks);
    assert!(short.offer(ONE));
    let (_, body) = receiver_end.bodies.recv().await.unwrap();
    assert_eq!(body["items"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn pending_events_are_sent_at_shutdown() {
    let mut receiver_end = receiver(0).await;
    let metrics = Arc::new(AuditMetrics::default());
    let stage = Tasks::new(Shutdown::new());
    let hook = hook(receiver_end.port, &metrics, &stage);
    let buffer = EventBuffer::start(&hook, batch(10, 100, Duration::from_secs(3600)), &stage);
    assert!(buffer.offer(ONE) && buffer.offer(TWO));
    stage.shutdown().request();
    let mut came = 0;
    while came < 2 {
        came += receiver_end.bodies.recv().await.unwrap().1["items"].as_array().unwrap().len();
    }
    assert_eq!(stage.drain(Duration::from_secs(60)).await, Vec::<&str>::new());
    assert!(!buffer.offer(ONE));
}

#[tokio::test]
async fn a_full_buffer_rejects_events() {
    // The receiving end is kept open and never read.
    let (sender, _receiver) = mpsc::channel(1);
    let buffer = EventBuffer { sender, pending_bytes: Arc::default() };
    assert!(buffer.offer(ONE));
    assert!(!buffer.offer(TWO));
    assert_eq!(buffer.pending_bytes.load(Ordering::Relaxed), ONE.len());
}

#[tokio::test(start_paused = true)]
async fn the_token_bucket_limits_the_rate() {
    let shutdown = Shutdown::new();
    let mut tokens = TokenBucket::new(10.0, 2);
    let began = base::clock::now();
    for _ in 0..4 {
        tokens.take(&shutdown).await;
    }
    let took = base::clock::now().duration_since(began);
    assert!(took >= Duration::from_millis(199) && took < Duration::from_millis(230), "{took:?}");
}
