//! Plays workloads of upstream's scheduler_perf on any cluster, and measures how many pods get a
//! node per second.
//!
//! The test cases and the templates are read where they are, from the module cache of Go; what the
//! operations do is specified by `operations.go` and `executor.go` beside them.

mod connection;
mod scheduler_perf {
    pub(crate) mod any;
    pub(crate) mod background;
    pub(crate) mod bindings;
    pub(crate) mod claims;
    pub(crate) mod cluster;
    pub(crate) mod collector;
    pub(crate) mod config;
    pub(crate) mod executor;
    pub(crate) mod metrics;
    pub(crate) mod nodes;
    pub(crate) mod operation;
    pub(crate) mod params;
    pub(crate) mod pods;
    pub(crate) mod template;
    pub(crate) mod throughput;
}
mod tls;

use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Parser;
use connection::Target;
pub(crate) use scheduler_perf::{
    any, background, bindings, claims, cluster, collector, config, executor, metrics, nodes,
    operation, params, pods, template, throughput,
};
use serde_json::json;

/// How long a workload waits for pods at most, if the flag says nothing; upstream's ten minutes.
const WAIT_SECONDS: u64 = 600;

/// Plays a workload of scheduler_perf on an empty cluster and prints what it measures. As in
/// upstream's test, the admission plugins ServiceAccount, Priority and TaintNodesByCondition must
/// be off, and of the controllers only those of garbage, namespaces and resource claims on.
#[derive(Parser)]
struct Args {
    /// Print the workloads of the files below this folder, one JSON object per line
    #[arg(long, value_name = "FOLDER", conflicts_with = "config")]
    list: Option<PathBuf>,
    /// host:port
    #[arg(long, required_unless_present = "list")]
    server: Option<String>,
    /// PEM of the authorities, or the self-signed certificate, of the server
    #[arg(long)]
    ca: Option<PathBuf>,
    /// Bearer token
    #[arg(long)]
    token: Option<String>,
    /// PEM of the client certificate and its key
    #[arg(long, num_args = 2, value_names = ["CERT", "KEY"])]
    identity: Vec<PathBuf>,
    /// File with test cases, performance-config.yaml
    #[arg(long, required_unless_present = "list")]
    config: Option<PathBuf>,
    /// Name of the test case
    #[arg(long, required_unless_present = "list")]
    test_case: Option<String>,
    /// Name of the workload
    #[arg(long, required_unless_present = "list")]
    workload: Option<String>,
    /// Divides the counts of all objects
    #[arg(long, default_value_t = 1.0)]
    scale: f64,
    /// https URL of the scheduler's metrics
    #[arg(long, value_name = "URL")]
    metrics: Option<String>,
    /// PEM of the authorities, or the self-signed certificate, of that URL; by default --ca
    #[arg(long, requires = "metrics")]
    metrics_ca: Option<PathBuf>,
    /// Process whose processor time is measured; may be repeated
    #[arg(long, value_name = "PID")]
    pid: Vec<u32>,
    /// Seconds to wait for pods to be scheduled
    #[arg(long, value_name = "SECONDS", default_value_t = WAIT_SECONDS)]
    wait: u64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    if let Some(folder) = &args.list {
        return list(folder);
    }
    // One thread: the client must leave the machine to the servers that it measures.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    tokio::task::LocalSet::new().block_on(&runtime, play(args))
}

fn list(folder: &std::path::Path) -> anyhow::Result<()> {
    for path in config::find_files(folder)? {
        let file = config::read(&path)?;
        for case in &file.test_cases {
            for workload in &case.workloads {
                print(&file.describe(case, workload)?.to_string());
            }
        }
    }
    Ok(())
}

async fn play(args: Args) -> anyhow::Result<()> {
    let (Some(config), Some(test_case), Some(name), Some(server)) =
        (&args.config, &args.test_case, &args.workload, &args.server)
    else {
        bail!("--config, --test-case, --workload and --server are required");
    };
    let file = config::read(config)?;
    let (case, workload) = file.find(test_case, name)?;
    let operations = operation::parse(&case.workload_template)?;
    let params = params::Params::new(&workload.params, &case.workload_template, args.scale)?;
    let target = |address: &str, ca: Option<&PathBuf>| {
        let ca = ca.map(PathBuf::as_path);
        Target::new(address, ca, args.token.as_deref(), &args.identity, "application/json")
    };
    let metrics = match &args.metrics {
        Some(url) => {
            let (address, path) = metrics::split_url(url)?;
            let ca = args.metrics_ca.as_ref().or(args.ca.as_ref());
            Some((target(address, ca)?, path.to_owned()))
        }
        None => None,
    };
    let cluster = Rc::new(cluster::Cluster::new(target(server, args.ca.as_ref())?));
    let sources = collector::Sources { pids: args.pid.clone(), metrics };
    let wait = Duration::from_secs(args.wait);
    let executor = executor::Executor::new(&file, case, &params, cluster, sources, wait);
    let outcome = executor.run(&operations).await;
    let outcome = outcome.with_context(|| format!("{test_case}/{name}"))?;
    let threshold = file.threshold(case, workload);
    if args.json {
        let results: Vec<_> = outcome.measured.iter().map(collector::Measured::json).collect();
        let result = json!({
            "test_case": test_case, "workload": name, "scale": args.scale,
            "threshold": threshold, "results": results, "notes": outcome.notes,
        });
        print(&result.to_string());
        return Ok(());
    }
    print(&format!("{test_case}/{name}, scale 1/{}", args.scale));
    for measured in &outcome.measured {
        print(&measured.text(threshold));
    }
    for note in &outcome.notes {
        print(&format!("note: {note}"));
    }
    Ok(())
}

fn print(text: &str) {
    use std::io::Write;
    let _ = writeln!(std::io::stdout(), "{text}");
}
