//! Serves etcd's interface over a store, for tests and benchmarks that compare it with etcd.
//!
//! usage: serve ADDRESS [DIRECTORY [QUOTA [NAME [CERTIFICATES]]]]
//!
//! Without a directory the store is in memory; the quota is in bytes, 0 means etcd's default. With
//! a folder of certificates (ca.pem, server.pem, server.key) it serves TLS to clients of that CA,
//! otherwise plain text.

use std::error::Error;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use base::pki::reloadable_cert::LiveCert;
use base::pki::{Leaf, certificates, tls};
use base::{Shutdown, Tasks};
use etcd::Etcd;
use rustls::ServerConfig;
use tokio::signal::unix::{SignalKind, signal};

fn main() -> Result<(), Box<dyn Error>> {
    base::runtime::block_on(2 << 20, run)?.map_err(|error| -> Box<dyn Error> { error })
}

fn tls(folder: &Path) -> Result<Arc<ServerConfig>, Box<dyn Error + Send + Sync>> {
    let read = |name| std::fs::read_to_string(folder.join(name));
    let leaf = Leaf {
        cert_pem: read("server.pem")?,
        key_pem: read("server.key")?.into(),
        not_after: i64::MAX,
    };
    let ca = certificates(&read("ca.pem")?)?;
    let config = tls::demanding_server(LiveCert::new(&leaf)?, &ca, &["h2", "http/1.1"])?;
    Ok(Arc::new(config))
}

async fn run() -> Result<(), Box<dyn Error + Send + Sync>> {
    let mut arguments = std::env::args().skip(1);
    let address = arguments.next().ok_or("an address is missing")?;
    let listener = tokio::net::TcpListener::bind(&address).await?;
    let tasks = Tasks::new(Shutdown::new());
    let directory = arguments.next();
    let scratch = directory.clone().map_or_else(std::env::temp_dir, Into::into);
    let quota = arguments.next().map_or(Ok(0), |quota| quota.parse())?;
    let name = arguments.next().unwrap_or_else(|| "default".to_owned());
    let backend = match directory {
        Some(directory) => {
            let mut config = store::Config::new(directory);
            if quota > 0 {
                config.quota = Some(quota);
            }
            store::open(config, &tasks).await?
        }
        None => store::open_memory_with(&tasks),
    };
    let tls = arguments.next().map(|folder| tls(Path::new(&folder))).transpose()?;
    let scheme = if tls.is_some() { "https" } else { "http" };
    let profile = store::Profile { name, client_urls: vec![format!("{scheme}://{address}")] };
    let shutdown = tasks.shutdown().clone();
    let (mut interrupt, mut end) =
        (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    tasks.spawn(base::Kind::Request, "signals", async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = end.recv() => {}
        }
        shutdown.request();
        Ok::<(), std::io::Error>(())
    });
    // The line that etcd's own tests wait for.
    writeln!(std::io::stdout(), "ready to serve client requests")?;
    etcd::serve(Etcd::new(backend, profile, scratch, tasks), listener, tls).await?;
    Ok(())
}
