//! Serves etcd's interface over a store of its own, in the clear: what tests and benches compare with etcd.
//! usage: serve ADDRESS [DIRECTORY [QUOTA [NAME]]]   (without a directory in memory; quota in bytes, 0 is etcd's default)

use std::error::Error;
use std::io::Write;

use base::{Shutdown, Tasks};
use etcd::Etcd;
use tokio::signal::unix::{SignalKind, signal};

fn main() -> Result<(), Box<dyn Error>> {
    base::runtime::block_on(2 << 20, run)?.map_err(|error| -> Box<dyn Error> { error })
}

async fn run() -> Result<(), Box<dyn Error + Send + Sync>> {
    let mut arguments = std::env::args().skip(1);
    let address = arguments.next().ok_or("usage: serve ADDRESS [DIRECTORY [QUOTA [NAME]]]")?;
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
    let profile = store::Profile { name, client_urls: vec![format!("http://{address}")] };
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
    // What etcd's own tests wait for.
    writeln!(std::io::stdout(), "ready to serve client requests")?;
    etcd::serve(Etcd::new(backend, profile, scratch, tasks), listener, None).await?;
    Ok(())
}
