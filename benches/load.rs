//! The lean client of the benchmarks: N keep-alive HTTP/1.1 connections over TLS that do one kind
//! of request for some seconds.

mod connection;
mod tls;

use std::cell::RefCell;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use bytes::Bytes;
use clap::{Parser, ValueEnum};
use connection::{REQUEST_TIMEOUT, Target};
use http::Method;
use http_body_util::BodyExt;

/// One worker and the latencies it measured.
type Worker = std::pin::Pin<Box<dyn Future<Output = anyhow::Result<Vec<u64>>>>>;

/// Objects that `get` reads and `list` returns.
const OBJECTS: u64 = 500;
/// A kind of its own, with a schema as operators have them: some dozens of described fields.
const FIELDS: usize = 40;
/// Between two writes whose events are timed: all watchers have read by then.
const PACE: Duration = Duration::from_millis(100);
/// Bytes of data in one ConfigMap, as in the figures published for etcd.
const VALUE_BYTES: usize = 256;

#[derive(Parser)]
struct Args {
    /// What to do
    #[arg(value_enum)]
    kind: Kind,
    /// host:port
    #[arg(long)]
    server: String,
    /// PEM of the authorities, or the self-signed certificate, of the server
    #[arg(long)]
    ca: PathBuf,
    /// Bearer token
    #[arg(long)]
    token: Option<String>,
    /// PEM of the client certificate and its key
    #[arg(long, num_args = 2, value_names = ["CERT", "KEY"])]
    identity: Vec<PathBuf>,
    /// Connections
    #[arg(long, default_value_t = 32)]
    connections: usize,
    /// Seconds to measure for
    #[arg(long, default_value_t = 3.0)]
    seconds: f64,
    /// Objects that fill-pods and fill-kinds make
    #[arg(long, default_value_t = 10_000)]
    count: u64,
    /// How answers are asked for
    #[arg(long, value_enum, default_value = "json")]
    answers: Answers,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Answers {
    Json,
    Protobuf,
    /// As kubectl get asks
    Table,
}

impl Answers {
    fn accept(self) -> &'static str {
        match self {
            Self::Json => "application/json",
            Self::Protobuf => "application/vnd.kubernetes.protobuf",
            Self::Table => "application/json;as=Table;v=v1;g=meta.k8s.io",
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Kind {
    /// Wait for the first 200 on /readyz, connecting again and again
    Ready,
    /// Make the objects that get and list read
    Fill,
    /// Create ConfigMaps of 256 bytes
    Create,
    /// Read single ConfigMaps
    Get,
    /// Replace the ConfigMaps that fill has made, whatever their version
    Update,
    /// Change a key of them by a merge patch
    Patch,
    /// List 500 ConfigMaps
    List,
    /// One connection writes at its own pace, the others watch: events delivered
    Watch,
    /// One connection writes ten objects a second, the others watch: from the request's begin to
    /// each event's arrival
    Seen,
    /// Make the pods that list-pods reads; nothing schedules them
    FillPods,
    /// List the pods
    ListPods,
    /// List the pods of a node that has none
    SelectPods,
    /// Make custom kinds, and wait until each is served
    FillKinds,
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    // One thread: the client must leave the machine to the server it measures.
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(run(args))
}

async fn run(args: Args) -> anyhow::Result<()> {
    let (token, accept) = (args.token.as_deref(), args.answers.accept());
    let target = Target::new(&args.server, Some(&args.ca), token, &args.identity, accept)?;
    let run = format!("{:x}", std::process::id());
    let span = Duration::from_secs_f64(args.seconds);
    match args.kind {
        Kind::Ready => wait_until_ready(&target).await,
        Kind::Fill => create_config_maps(&target).await,
        Kind::Watch => watch(&target, args.connections, span, &run, None).await,
        Kind::Seen => watch(&target, args.connections, span, &run, Some(PACE)).await,
        Kind::FillPods => fill_pods(&target, args.connections, args.count).await,
        Kind::FillKinds => fill_kinds(&target, args.connections, args.count).await,
        Kind::Create
        | Kind::Get
        | Kind::Update
        | Kind::Patch
        | Kind::List
        | Kind::ListPods
        | Kind::SelectPods => send_requests(&target, args.kind, args.connections, span, &run).await,
    }
}

/// Measures the time until `/readyz` answers with 200.
async fn wait_until_ready(target: &Target) -> anyhow::Result<()> {
    let begin = Instant::now();
    while ready(target).await.is_err() {
        if begin.elapsed() > REQUEST_TIMEOUT {
            bail!("no 200 on /readyz in {REQUEST_TIMEOUT:?}");
        }
        // A server that starts announces nothing, so the client has to poll.
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    print(&format!("{{\"ready_ms\":{:.1}}}", begin.elapsed().as_secs_f64() * 1e3));
    Ok(())
}

async fn ready(target: &Target) -> anyhow::Result<()> {
    let mut sender = target.connect().await?;
    match target.send(&mut sender, Method::GET, "/readyz", Bytes::new()).await? {
        (200, _) => Ok(()),
        (status, _) => bail!("status {status}"),
    }
}

/// Creates the ConfigMaps that the other kinds of requests read and change.
async fn create_config_maps(target: &Target) -> anyhow::Result<()> {
    let mut sender = target.connect().await?;
    for n in 0..OBJECTS {
        let body = config_map(&format!("bench-{n}"));
        let (status, _) = target.send(&mut sender, Method::POST, PATH, body).await?;
        if status != 201 && status != 409 {
            bail!("creating bench-{n}: status {status}");
        }
    }
    Ok(())
}

/// Sends requests of one kind on all connections for the time `span` and reports their latencies.
async fn send_requests(
    target: &Target,
    kind: Kind,
    connections: usize,
    span: Duration,
    run: &str,
) -> anyhow::Result<()> {
    let mut workers = Vec::new();
    let counter = Arc::new(AtomicU64::new(0));
    let mut senders = Vec::new();
    for _ in 0..connections {
        senders.push(target.connect().await?);
    }
    let begin = Instant::now();
    for mut sender in senders {
        let (target, counter, run) = (target.clone(), Arc::clone(&counter), run.to_owned());
        workers.push(async move {
            let mut times = Vec::new();
            while begin.elapsed() < span {
                let n = counter.fetch_add(1, Ordering::Relaxed);
                let (method, path, body, expected) = request(kind, n, &run);
                let sent = Instant::now();
                let (status, _) = target.send(&mut sender, method, &path, body).await?;
                if status != expected {
                    bail!("{path}: status {status}, not {expected}");
                }
                times.push(u64::try_from(sent.elapsed().as_micros()).unwrap_or(u64::MAX));
            }
            Ok::<_, anyhow::Error>(times)
        });
    }
    let all = join(workers).await;
    let took = begin.elapsed();
    let mut times = Vec::new();
    for outcome in all {
        times.extend(outcome?);
    }
    report(&mut times, took)
}

/// Returns request number `n` of a kind: method, path, body and expected status.
fn request(kind: Kind, n: u64, run: &str) -> (Method, String, Bytes, u16) {
    // A prime, so that consecutive requests do not hit neighbouring objects.
    let name = format!("bench-{}", n * 7919 % OBJECTS);
    let get = |path: String| (Method::GET, path, Bytes::new(), 200);
    match kind {
        Kind::Create => (Method::POST, PATH.to_owned(), config_map(&format!("c{run}-{n}")), 201),
        Kind::Update => (Method::PUT, format!("{PATH}/{name}"), changed(&name, n), 200),
        Kind::Patch => {
            let patch = format!(r#"{{"data":{{"changed":"{n}"}}}}"#);
            (Method::PATCH, format!("{PATH}/{name}"), patch.into(), 200)
        }
        Kind::ListPods => get(POD_PATH.to_owned()),
        Kind::SelectPods => get(format!("{POD_PATH}?fieldSelector=spec.nodeName%3Dnobody")),
        Kind::List => get(format!("{PATH}?labelSelector=bench%3Dfill")),
        _ => get(format!("{PATH}/{name}")),
    }
}

/// Where the objects live.
const PATH: &str = "/api/v1/namespaces/default/configmaps";
/// Where the pods live.
const POD_PATH: &str = "/api/v1/namespaces/default/pods";
/// Where definitions of custom kinds live.
const KIND_PATH: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

/// Creates `count` objects, each connection its share of them; `made` says where the object of a
/// number goes, what it is, and where it is read once it is there.
async fn fill(
    target: &Target,
    connections: usize,
    count: u64,
    made: fn(u64) -> (&'static str, Bytes, Option<String>),
) -> anyhow::Result<()> {
    let mut workers: Vec<Worker> = Vec::new();
    for first in 0..connections {
        let (target, mut sender) = (target.clone(), target.connect().await?);
        workers.push(Box::pin(async move {
            for n in (first as u64..count).step_by(connections) {
                let begin = Instant::now();
                let (path, object, read) = made(n);
                loop {
                    let (status, body) =
                        target.send(&mut sender, Method::POST, path, object.clone()).await?;
                    match status {
                        201 | 409 => break,
                        // The namespace's service account comes a moment after its namespace.
                        403 if begin.elapsed() < REQUEST_TIMEOUT => {
                            tokio::time::sleep(PACE).await;
                        }
                        _ => bail!("{path}: status {status}: {}", String::from_utf8_lossy(&body)),
                    }
                }
                let Some(read) = read else { continue };
                // A kind is served some time after it is defined; nothing tells a client when.
                while target.send(&mut sender, Method::GET, &read, Bytes::new()).await?.0 != 200 {
                    if begin.elapsed() > REQUEST_TIMEOUT {
                        bail!("{read}: not served in {REQUEST_TIMEOUT:?}");
                    }
                    tokio::time::sleep(PACE / 10).await;
                }
            }
            Ok(Vec::new())
        }));
    }
    for outcome in join(workers).await {
        outcome?;
    }
    Ok(())
}

async fn fill_pods(target: &Target, connections: usize, count: u64) -> anyhow::Result<()> {
    fill(target, connections, count, |n| (POD_PATH, pod(n), None)).await
}

async fn fill_kinds(target: &Target, connections: usize, count: u64) -> anyhow::Result<()> {
    fill(target, connections, count, |n| {
        let read = format!("/apis/bench.example.com/v1/namespaces/default/things{n}");
        (KIND_PATH, custom_kind(n), Some(read))
    })
    .await
}

/// The definition of a custom kind of that number.
fn custom_kind(number: u64) -> Bytes {
    let fields = (0..FIELDS).map(|n| {
        let description = "What this field of the thing is for, in the words of its authors.";
        (
            format!("field{n}"),
            serde_json::json!({ "type": "string", "description": description, "maxLength": 64 }),
        )
    });
    let spec = serde_json::json!({ "type": "object", "properties": fields.collect::<serde_json::Map<_, _>>() });
    serde_json::json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": { "name": format!("things{number}.bench.example.com") },
        "spec": {
            "group": "bench.example.com", "scope": "Namespaced",
            "names": { "plural": format!("things{number}"), "singular": format!("thing{number}"), "kind": format!("Thing{number}"), "listKind": format!("Thing{number}List") },
            "versions": [{
                "name": "v1", "served": true, "storage": true, "subresources": { "status": {} },
                "schema": { "openAPIV3Schema": { "type": "object", "properties": { "spec": spec, "status": { "type": "object", "x-kubernetes-preserve-unknown-fields": true } } } }
            }]
        }
    })
    .to_string()
    .into()
}

/// A pod as small ones are, for a scheduler that is not there.
fn pod(number: u64) -> Bytes {
    format!(
        r#"{{"apiVersion":"v1","kind":"Pod","metadata":{{"name":"pod-{number}","labels":{{"app":"bench","number":"{number}"}}}},"spec":{{"schedulerName":"nobody","automountServiceAccountToken":false,"containers":[{{"name":"c","image":"busybox:1","command":["sleep","100000"],"resources":{{"requests":{{"cpu":"10m","memory":"16Mi"}}}}}}]}}}}"#
    )
    .into()
}

fn config_map(name: &str) -> Bytes {
    let label = if name.starts_with("bench-") { "fill" } else { "create" };
    format!(
        r#"{{"apiVersion":"v1","kind":"ConfigMap","metadata":{{"name":"{name}","labels":{{"bench":"{label}"}}}},"data":{{"k":"{}"}}}}"#,
        "x".repeat(VALUE_BYTES)
    )
    .into()
}

/// The ConfigMap of that name with another value.
fn changed(name: &str, number: u64) -> Bytes {
    let object = config_map(name);
    String::from_utf8_lossy(&object).replacen("\"k\":\"x", &format!("\"k\":\"{number}"), 1).into()
}

/// Drives all at once on this thread.
async fn join<F>(workers: Vec<F>) -> Vec<anyhow::Result<Vec<u64>>>
where
    F: Future<Output = anyhow::Result<Vec<u64>>> + 'static,
{
    let local = tokio::task::LocalSet::new();
    local
        .run_until(async {
            let handles: Vec<_> = workers.into_iter().map(tokio::task::spawn_local).collect();
            let mut out = Vec::new();
            for handle in handles {
                out.push(handle.await.unwrap_or_else(|e| Err(e.into())));
            }
            out
        })
        .await
}

fn report(times: &mut [u64], took: Duration) -> anyhow::Result<()> {
    times.sort_unstable();
    let at =
        |share: f64| times.get((times.len() as f64 * share) as usize).copied().unwrap_or_default();
    let count = times.len();
    if count == 0 {
        bail!("no request was answered");
    }
    print(&format!(
        "{{\"count\":{count},\"rate\":{:.0},\"p50_us\":{},\"p99_us\":{}}}",
        count as f64 / took.as_secs_f64(),
        at(0.5),
        at(0.99)
    ));
    Ok(())
}

/// `connections` watchers; one writer creates objects one after another, each is seen by all. With
/// a pace the writer rests after each object, and the output is how long it took to be seen.
async fn watch(
    target: &Target,
    connections: usize,
    span: Duration,
    run: &str,
    pace: Option<Duration>,
) -> anyhow::Result<()> {
    let begin = Instant::now();
    let sent: Rc<RefCell<Vec<Instant>>> = Rc::default();
    let mut workers: Vec<Worker> = Vec::new();
    let written = Arc::new(AtomicU64::new(0));
    // A thousand connections take some seconds to make, and the first watch begins before the last.
    let seconds = span.as_secs() + 1 + connections as u64 / 100;
    for _ in 0..connections {
        let mut sender = target.connect().await?;
        let path = format!(
            "{PATH}?watch=1&labelSelector=bench%3Dcreate&timeoutSeconds={seconds}&resourceVersion="
        );
        let (_, list) =
            target.send(&mut sender, Method::GET, &format!("{PATH}?limit=1"), Bytes::new()).await?;
        let list: serde_json::Value = serde_json::from_slice(&list)?;
        let version = list["metadata"]["resourceVersion"]
            .as_str()
            .context("a list without resourceVersion")?
            .to_owned();
        let request = target.request(Method::GET, &format!("{path}{version}"), Bytes::new())?;
        let response = sender.send_request(request).await?;
        let sent = Rc::clone(&sent);
        workers.push(Box::pin(async move {
            // The connection is closed when its sender goes.
            let _sender = sender;
            let mut body = response.into_body();
            let mut seen = Vec::new();
            while let Some(Ok(frame)) = body.frame().await {
                let newlines =
                    frame.data_ref().map_or(0, |d| d.iter().filter(|b| **b == b'\n').count());
                let now = Instant::now();
                for _ in 0..newlines {
                    let since = sent.borrow().get(seen.len()).map(|sent| now - *sent);
                    seen.push(u64::try_from(since.unwrap_or_default().as_micros())?);
                }
            }
            Ok(seen)
        }));
    }
    let (own, counter, run) = (target.clone(), Arc::clone(&written), run.to_owned());
    let mut sender = own.connect().await?;
    let started = Instant::now();
    workers.push(Box::pin(async move {
        while started.elapsed() < span {
            let n = counter.fetch_add(1, Ordering::Relaxed);
            sent.borrow_mut().push(Instant::now());
            let (status, _) = own
                .send(&mut sender, Method::POST, PATH, config_map(&format!("w{run}-{n}")))
                .await?;
            if status != 201 {
                bail!("create for the watchers: status {status}");
            }
            if let Some(pace) = pace {
                tokio::time::sleep(pace).await;
            }
        }
        Ok(Vec::new())
    }));
    let mut times = Vec::new();
    for outcome in join(workers).await {
        times.extend(outcome?);
    }
    let events = times.len() as u64;
    let written = written.load(Ordering::Relaxed);
    let expected = written * connections as u64;
    if events < expected {
        bail!("{events} of {expected} events were delivered in {:?}", begin.elapsed());
    }
    report(&mut times, span)
}

fn print(text: &str) {
    use std::io::Write;
    let _ = writeln!(std::io::stdout(), "{text}");
}
