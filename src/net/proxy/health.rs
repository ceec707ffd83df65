//! Serves health checks of load balancers: whether this node has endpoints of a Service
//! (`healthCheckNodePort`) and whether its proxy works.

mod proxy;

use std::collections::HashMap;
use std::net::Ipv6Addr;
use std::sync::Arc;
use std::time::Duration;

use base::{Kind, Shutdown, Tasks};
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

pub(crate) use proxy::Health;
pub(crate) use proxy::serve as serve_proxy;

/// Load balancers send one request at a time; more connections than this are an attack or a
/// mistake.
const CONNECTIONS_MAX: usize = 64;
/// Longest request head read.
const HEAD_MAX: usize = 4096;
const DEADLINE: Duration = Duration::from_secs(5);

#[derive(Debug)]
struct Check {
    port: u16,
    local: Arc<Mutex<usize>>,
    stop: Shutdown,
}

/// The listeners: one per Service with a health check node port.
#[derive(Debug)]
pub(crate) struct HealthChecks {
    tasks: Tasks,
    health: Arc<Health>,
    checks: Mutex<HashMap<(String, String), Check>>,
}

fn answer(namespace: &str, name: &str, local: usize, healthy: bool) -> String {
    let service = serde_json::json!({"namespace": namespace, "name": name});
    let body = serde_json::json!({
        "service": service, "localEndpoints": local, "serviceProxyHealthy": healthy,
    });
    let weight = format!("X-Load-Balancing-Endpoint-Weight: {local}\r\n");
    response(local > 0 && healthy, &weight, &body)
}

/// A whole HTTP response: 200 or 503 with a JSON body; `more` is further header lines.
fn response(good: bool, more: &str, body: &serde_json::Value) -> String {
    let status = if good { "200 OK" } else { "503 Service Unavailable" };
    let body = body.to_string();
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nX-Content-Type-Options: nosniff\r\n\
         {more}Content-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    )
}

/// Reads one request and responds; `answer` maps the path to the response.
async fn serve(mut stream: TcpStream, answer: impl FnOnce(&str) -> String) -> std::io::Result<()> {
    let mut head = Vec::new();
    while !head.windows(4).any(|w| w == b"\r\n\r\n") {
        if head.len() > HEAD_MAX || stream.read_buf(&mut head).await? == 0 {
            return Ok(());
        }
    }
    let head = String::from_utf8_lossy(&head);
    let target = head.split(' ').nth(1).unwrap_or_default();
    let text = answer(target.split('?').next().unwrap_or_default());
    stream.write_all(text.as_bytes()).await?;
    stream.shutdown().await
}

/// Accepts until `stop`, within the connection limit; `answer` maps a path to the response.
async fn accept(
    listener: TcpListener,
    tasks: Tasks,
    stop: Shutdown,
    answer: impl Fn(&str) -> String + Clone + Send + Sync + 'static,
) {
    let limit = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let Ok(permit) = Arc::clone(&limit).acquire_owned().await else { return };
        let accepted = tokio::select! {
            () = stop.requested() => return,
            accepted = listener.accept() => accepted,
        };
        let Ok((stream, _)) = accepted else { continue };
        let answer = answer.clone();
        tasks.spawn(Kind::Request, "health-check", async move {
            let _permit = permit;
            let _ = tokio::time::timeout(DEADLINE, serve(stream, |path| answer(path))).await;
            Ok::<(), std::convert::Infallible>(())
        });
    }
}

impl HealthChecks {
    pub(crate) fn new(tasks: Tasks, health: Arc<Health>) -> Self {
        Self { tasks, health, checks: Mutex::default() }
    }

    /// Sets the health check port of a Service (`None`: no listener) and its number of endpoints on
    /// this node.
    pub(crate) fn set(&self, namespace: &str, name: &str, port: Option<u16>, local: usize) {
        let key = (namespace.to_owned(), name.to_owned());
        let mut checks = self.checks.lock();
        if let Some(check) = checks.get(&key) {
            if Some(check.port) == port {
                *check.local.lock() = local;
                return;
            }
            check.stop.request();
            checks.remove(&key);
        }
        let Some(port) = port else { return };
        let stop = self.tasks.shutdown().child();
        let count = Arc::new(Mutex::new(local));
        let (tasks, health) = (self.tasks.clone(), Arc::clone(&self.health));
        let run = listen(tasks, key.clone(), port, (Arc::clone(&count), health), stop.clone());
        self.tasks.spawn(Kind::Request, "health-check-node-port", run);
        checks.insert(key, Check { port, local: count, stop });
    }
}

async fn listen(
    tasks: Tasks,
    (namespace, name): (String, String),
    port: u16,
    (local, health): (Arc<Mutex<usize>>, Arc<Health>),
    stop: Shutdown,
) -> Result<(), String> {
    let listener = match TcpListener::bind((Ipv6Addr::UNSPECIFIED, port)).await {
        Ok(listener) => listener,
        Err(_) => TcpListener::bind(("0.0.0.0", port)).await.map_err(|e| {
            format!("cannot listen on health check node port {port} of {namespace}/{name}: {e}")
        })?,
    };
    accept(listener, tasks, stop, move |_| {
        answer(&namespace, &name, *local.lock(), health.is_healthy())
    })
    .await;
    Ok(())
}
