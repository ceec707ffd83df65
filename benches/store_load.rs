//! The lean client of `benches/store`: one kind of etcd request for some seconds, on one thread,
//! with requests in flight on few connections.
//!
//! Prints one line of JSON with rates and latencies, and what client and server used of CPU and
//! disk in just that time.

mod store_load {
    pub(crate) mod http2;
    pub(crate) mod messages;
    pub(crate) mod process;
    pub(crate) mod unary;
    pub(crate) mod watching;
}
mod tls;

use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::{Parser, ValueEnum};
use rustls::pki_types::ServerName;
use tokio_rustls::TlsConnector;

use store_load::http2::Target;
use store_load::process::Usage;
use store_load::{http2, messages, unary, watching};

/// A request without an answer by then has failed.
pub(crate) const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

#[derive(Parser)]
pub(crate) struct Args {
    /// What to do
    #[arg(value_enum)]
    pub(crate) kind: Kind,
    /// host:port
    #[arg(long)]
    server: String,
    /// PEM of the authority; with it TLS is spoken
    #[arg(long)]
    ca: Option<PathBuf>,
    /// PEM of the client's certificate and its key
    #[arg(long, num_args = 2, value_names = ["CERT", "KEY"], requires = "ca")]
    identity: Vec<PathBuf>,
    /// Processes whose CPU and writes are counted: the server's
    #[arg(long = "process", value_name = "PID")]
    processes: Vec<u32>,
    /// Connections
    #[arg(long, default_value_t = 8)]
    pub(crate) connections: usize,
    /// Requests in flight, or watches, over all connections
    #[arg(long, default_value_t = 64)]
    pub(crate) clients: usize,
    /// Seconds to measure for
    #[arg(long, default_value_t = 3.0)]
    pub(crate) seconds: f64,
    /// Seconds before that in which nothing is counted
    #[arg(long, default_value_t = 0.3)]
    pub(crate) warm: f64,
    /// Keys that are written or read
    #[arg(long, default_value_t = 10_000)]
    pub(crate) keys: u64,
    /// Bytes of a value
    #[arg(long, default_value_t = 256)]
    pub(crate) value: usize,
    /// Begin of all keys
    #[arg(long, default_value = "k")]
    pub(crate) prefix: String,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kind {
    /// Wait for the first answer to a linearizable read, connecting again and again
    Ready,
    /// Write each key once, as fast as that goes
    Fill,
    /// Put
    Put,
    /// Get one key, linearizable
    Get,
    /// Get one key of what the member itself knows
    GetSerializable,
    /// Get all keys of the prefix in one answer, linearizable
    List,
    /// Pairs of a get and a put that takes place if the key is still the same
    Swap,
    /// Watches of one key, which is written by one client: events delivered
    Watch,
    /// One put at a time with a rest of 250 ms after each: bytes written per put
    Isolated,
    /// One put at a time, again and again after failures: the longest time without an accepted one
    Gap,
}

/// What was measured.
#[derive(Default)]
pub(crate) struct Measured {
    /// Of each counted operation, in nanoseconds.
    pub(crate) times: Vec<u64>,
    pub(crate) count: u64,
    pub(crate) took: Duration,
    pub(crate) server: Usage,
    pub(crate) client_ns: u64,
    /// Longest time between two accepted writes, and failed ones.
    pub(crate) gap: Option<(Duration, u64)>,
}

/// What was used up to a moment.
pub(crate) struct Mark {
    at: Instant,
    server: Usage,
    client_ns: u64,
}

impl Mark {
    pub(crate) fn now(args: &Args) -> anyhow::Result<Self> {
        let (server, client_ns) = (Usage::of(&args.processes)?, Usage::own()?);
        Ok(Self { at: Instant::now(), server, client_ns })
    }

    /// What was used since.
    pub(crate) fn until_now(&self, args: &Args) -> anyhow::Result<Measured> {
        let now = Self::now(args)?;
        Ok(Measured {
            took: now.at - self.at,
            server: Usage {
                cpu_ns: now.server.cpu_ns.saturating_sub(self.server.cpu_ns),
                written: now.server.written.saturating_sub(self.server.written),
            },
            client_ns: now.client_ns.saturating_sub(self.client_ns),
            ..Measured::default()
        })
    }
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    // One thread: it can be given one processor, and the server the other.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let line = runtime.block_on(run(&args))?;
    writeln!(std::io::stdout(), "{line}")?;
    Ok(())
}

async fn run(args: &Args) -> anyhow::Result<serde_json::Value> {
    let target = target(args)?;
    let mut measured = match args.kind {
        Kind::Ready => {
            let begin = Instant::now();
            while unary::probe(&target).await.is_err() {
                if begin.elapsed() > REQUEST_TIMEOUT {
                    bail!("no answer to a read in {REQUEST_TIMEOUT:?}");
                }
                // A server that starts announces nothing: asking again is all a client can do.
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            return Ok(serde_json::json!({ "ready_ms": begin.elapsed().as_secs_f64() * 1e3 }));
        }
        Kind::Watch => watching::run(args, &target).await?,
        Kind::Isolated => unary::isolated(args, &target).await?,
        Kind::Gap => unary::gap(args, &target).await?,
        Kind::Fill => unary::fill(args, &target).await?,
        _ => unary::run(args, &target).await?,
    };
    measured.times.sort_unstable();
    let times = &measured.times;
    let at = |share: f64| times.get((times.len() as f64 * share) as usize).copied().unwrap_or(0);
    if measured.count == 0 {
        bail!("nothing was answered");
    }
    let count = measured.count as f64;
    let mut line = serde_json::json!({
        "count": measured.count,
        "seconds": measured.took.as_secs_f64(),
        "rate": count / measured.took.as_secs_f64(),
        "p50_us": at(0.5) as f64 / 1e3,
        "p99_us": at(0.99) as f64 / 1e3,
        "server_us": measured.server.cpu_ns as f64 / 1e3 / count,
        "client_us": measured.client_ns as f64 / 1e3 / count,
        "written": measured.server.written as f64 / count,
    });
    if let Some((gap, failed)) = measured.gap {
        line["gap_ms"] = (gap.as_secs_f64() * 1e3).into();
        line["failed"] = failed.into();
    }
    Ok(line)
}

fn target(args: &Args) -> anyhow::Result<Target> {
    let Some(ca) = &args.ca else {
        return Ok(Target { address: args.server.clone(), tls: None });
    };
    let mut tls = tls::client_config(Some(ca), &args.identity)?;
    tls.alpn_protocols = vec![b"h2".to_vec()];
    let host = args.server.rsplit_once(':').context("--server is host:port")?.0.to_owned();
    let name = ServerName::try_from(host)?;
    Ok(Target {
        address: args.server.clone(),
        tls: Some((TlsConnector::from(Arc::new(tls)), name)),
    })
}
