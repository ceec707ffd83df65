//! Simulated agents: many nodes without a runtime in one process, each with connections,
//! certificates, lease, status and watches of its own.

mod simulated {
    pub(crate) mod agent;
    pub(crate) mod api;
    pub(crate) mod measure;
}

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use base::pki::{Ca, Profile};
use base::{Kind, Shutdown, Tasks};
use clap::Parser;
use cluster::servers::{Health, Servers};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use serde_json::json;
use simulated::agent::{Agent, Fleet};
use simulated::api::{Api, Identity};

/// A phase that takes longer has failed.
const PHASE_TIMEOUT: Duration = Duration::from_secs(900);

/// Prints one line of JSON at the end of each phase: agents Ready, idle, pods Running, settled;
/// ends with its standard input.
#[derive(Parser)]
struct Args {
    /// host:port
    #[arg(long)]
    server: String,
    /// PEM of the authorities, or the self-signed certificate, of the server
    #[arg(long)]
    ca: PathBuf,
    /// PEM of the authority for clients and of its key: certificates of the agents and of an
    /// administrator are signed with it
    #[arg(long, num_args = 2, value_names = ["CERT", "KEY"])]
    client_ca: Vec<PathBuf>,
    /// Agents
    #[arg(long, default_value_t = 500)]
    count: usize,
    /// What each agent's network watches beside services, slices, address ranges and its own Node
    #[arg(long, value_name = "PATH")]
    also_watch: Vec<String>,
    /// Each agent keeps a tunnel to the server, as those of kube-lite do
    #[arg(long)]
    tunnels: bool,
    /// Seconds of idleness to measure
    #[arg(long, default_value_t = 30)]
    idle: u64,
    /// Seconds behind the pods' start until what is left of it is measured
    #[arg(long, default_value_t = 10)]
    settle: u64,
    /// Pods of one Deployment, spread over the agents
    #[arg(long, default_value_t = 0)]
    pods: usize,
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    // One thread: the agents must leave the machine to the server.
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(run(args))
}

async fn run(args: Args) -> anyhow::Result<()> {
    let [cert, key] = args.client_ca.as_slice() else { bail!("--client-ca CERT KEY is missing") };
    let ca = Ca::load_or_create(cert, key, "bench")?;
    let roots = CertificateDer::pem_file_iter(&args.ca)
        .with_context(|| format!("reading {}", args.ca.display()))?
        .collect::<Result<Vec<_>, _>>()?;
    let identity = |user: &str, group: &str| {
        Identity::new(&args.server, &roots, &ca.issue(&Profile::client(user, Some(group)))?)
    };
    let admin = identity("admin", "system:masters")?;
    let proxy = identity("system:kube-proxy", "system:node-proxier")?;
    let mut fleet = Vec::with_capacity(args.count);
    for number in 0..args.count {
        let name = format!("agent-{number}");
        let node = identity(&format!("system:node:{name}"), "system:nodes")?;
        fleet.push((name, node));
    }
    let tasks = Tasks::new(Shutdown::new());
    let shared = Arc::new(Fleet::new(args.count, args.also_watch));
    let (begin, mut tunnels) = (Instant::now(), Vec::new());
    for (number, (name, node)) in fleet.into_iter().enumerate() {
        if args.tunnels {
            tunnels.push(node.keep_tunnel(&name, &tasks)?);
        }
        let agent = Agent { number, name, node, proxy: proxy.clone(), fleet: Arc::clone(&shared) };
        tasks.spawn(Kind::Request, "agent", agent.run(tasks.clone()));
    }
    let mut ready = shared.ready.subscribe();
    let all = ready.wait_for(|n| *n >= args.count);
    tokio::time::timeout(PHASE_TIMEOUT, all)
        .await
        .with_context(|| format!("{} of {} Ready", *shared.ready.borrow(), args.count))??;
    shared.measures.print("ready", begin.elapsed(), json!({"agents": args.count}));

    let begin = Instant::now();
    tokio::time::sleep(Duration::from_secs(args.idle)).await;
    let up = |s: &&Servers| s.states().iter().all(|s| s.state == Health::Connected);
    let up = tunnels.iter().filter(up).count();
    shared.measures.print("idle", begin.elapsed(), json!({"tunnels": up}));

    if args.pods > 0 {
        let api = Api::connect(&admin, &tasks).await?;
        let begin = Instant::now();
        deployment(&api, args.pods).await?;
        let mut running = shared.running.subscribe();
        let all = running.wait_for(|n| *n >= args.pods);
        tokio::time::timeout(PHASE_TIMEOUT, all)
            .await
            .with_context(|| format!("{} of {} Running", *shared.running.borrow(), args.pods))??;
        let took = begin.elapsed();
        shared.measures.print(
            "pods",
            took,
            json!({"pods": args.pods, "most_on_one": shared.most()}),
        );
        let begin = Instant::now();
        tokio::time::sleep(Duration::from_secs(args.settle)).await;
        shared.measures.print("settled", begin.elapsed(), json!({}));
        // What the end of so many agents costs belongs to no phase: they stay until the reader has
        // looked.
        base::tasks::blocking(|| std::io::copy(&mut std::io::stdin(), &mut std::io::sink()))
            .await??;
    }
    tasks.shutdown().request();
    tasks.drain(Duration::from_secs(5)).await;
    Ok(())
}

async fn deployment(api: &Api, replicas: usize) -> anyhow::Result<()> {
    let body = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "many"}, "spec": {
        "replicas": replicas, "selector": {"matchLabels": {"app": "many"}},
        "template": {"metadata": {"labels": {"app": "many"}}, "spec": {
            "automountServiceAccountToken": false, "terminationGracePeriodSeconds": 0,
            // Agents that are here for the measurement only are taken as they come.
            "tolerations": [{"operator": "Exists"}],
            "containers": [{"name": "c", "image": "busybox:1", "command": ["sleep", "100000"]}]}}}});
    let path = "/apis/apps/v1/namespaces/default/deployments";
    let (status, answer) = api.json("POST", path, &body).await?;
    if status != 201 {
        bail!("the Deployment was not created: {status} {}", String::from_utf8_lossy(&answer));
    }
    Ok(())
}
