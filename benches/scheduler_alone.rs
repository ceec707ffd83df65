//! The scheduler of kube-lite in a process of its own, for measurements on any API server.

mod tls;

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context;
use base::{Shutdown, Tasks};
use clap::Parser;
use client::https::HttpsTransport;
use client::{Client, Informers};
use scheduler::config::{Configuration, parse};
use tokio::signal::unix::{SignalKind, signal};

/// Stack of a thread in bytes, as in a server.
const STACK: usize = 1 << 20;

/// Schedules the pods of an API server until it gets SIGTERM.
#[derive(Parser)]
struct Args {
    /// host:port
    #[arg(long)]
    server: String,
    /// PEM of the authorities, or the self-signed certificate, of the server
    #[arg(long)]
    ca: PathBuf,
    /// Bearer token of system:kube-scheduler
    #[arg(long)]
    token: String,
    /// File with a KubeSchedulerConfiguration
    #[arg(long)]
    config: Option<PathBuf>,
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    base::runtime::block_on(STACK, || run(args))?
}

async fn run(args: Args) -> anyhow::Result<()> {
    let mut terminated = signal(SignalKind::terminate())?;
    let configuration = match &args.config {
        Some(path) => {
            let text = std::fs::read(path).with_context(|| path.display().to_string())?;
            parse(&text).with_context(|| path.display().to_string())?
        }
        None => Configuration::default(),
    };
    let tls = tls::client_config(Some(&args.ca), &[])?;
    let transport = HttpsTransport::new(&format!("https://{}", args.server), tls, &args.token)?;
    let client = Client::new(Arc::new(transport), "kube-scheduler");
    let tasks = Tasks::new(Shutdown::new());
    scheduler::start(
        &configuration,
        client.clone(),
        &Informers::new(client, tasks.clone()),
        &tasks,
    );
    terminated.recv().await;
    Ok(())
}
