//! `healthCheckNodePort`: tells load balancers whether this node has endpoints of a service.

use std::collections::HashMap;
use std::net::Ipv6Addr;
use std::sync::Arc;
use std::time::Duration;

use base::{Kind, Shutdown, Tasks};
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

/// Load balancers ask one question at a time; more connections than this are an attack or a mistake.
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

/// The listeners, one per service that wants one.
#[derive(Debug)]
pub(crate) struct HealthChecks {
    tasks: Tasks,
    checks: Mutex<HashMap<(String, String), Check>>,
}

fn answer(namespace: &str, name: &str, local: usize) -> String {
    let status = if local > 0 { "200 OK" } else { "503 Service Unavailable" };
    let service = serde_json::json!({"namespace": namespace, "name": name});
    let body = serde_json::json!({
        "service": service, "localEndpoints": local, "serviceProxyHealthy": true,
    });
    let body = body.to_string();
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nX-Content-Type-Options: nosniff\r\n\
         X-Load-Balancing-Endpoint-Weight: {local}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    )
}

async fn serve(mut stream: TcpStream, answer: String) -> std::io::Result<()> {
    let mut head = Vec::new();
    while !head.windows(4).any(|w| w == b"\r\n\r\n") {
        if head.len() > HEAD_MAX || stream.read_buf(&mut head).await? == 0 {
            return Ok(());
        }
    }
    stream.write_all(answer.as_bytes()).await?;
    stream.shutdown().await
}

impl HealthChecks {
    pub(crate) fn new(tasks: Tasks) -> Self {
        Self { tasks, checks: Mutex::default() }
    }

    /// Sets the port of a service (none: no listener) and its number of endpoints on this node.
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
        let run = listen(self.tasks.clone(), key.clone(), port, Arc::clone(&count), stop.clone());
        self.tasks.spawn(Kind::Request, "health-check-node-port", run);
        checks.insert(key, Check { port, local: count, stop });
    }
}

async fn listen(
    tasks: Tasks,
    key: (String, String),
    port: u16,
    local: Arc<Mutex<usize>>,
    stop: Shutdown,
) -> Result<(), String> {
    let listener = match TcpListener::bind((Ipv6Addr::UNSPECIFIED, port)).await {
        Ok(listener) => listener,
        Err(_) => TcpListener::bind(("0.0.0.0", port)).await.map_err(|e| {
            format!("cannot listen on health check node port {port} of {}/{}: {e}", key.0, key.1)
        })?,
    };
    let limit = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let Ok(permit) = Arc::clone(&limit).acquire_owned().await else { return Ok(()) };
        let accepted = tokio::select! {
            () = stop.requested() => return Ok(()),
            accepted = listener.accept() => accepted,
        };
        let Ok((stream, _)) = accepted else { continue };
        let text = answer(&key.0, &key.1, *local.lock());
        tasks.spawn(Kind::Request, "health-check", async move {
            let _permit = permit;
            let _ = tokio::time::timeout(DEADLINE, serve(stream, text)).await;
            Ok::<(), std::convert::Infallible>(())
        });
    }
}
