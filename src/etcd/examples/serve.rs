//! Serves etcd's interface over a store of its own, in the clear: what tests and benches compare with etcd.
//! usage: serve ADDRESS [DIRECTORY]   (without a directory in memory)

use std::error::Error;

use base::{Shutdown, Tasks};
use etcd::{Etcd, Identity};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let address = arguments.next().ok_or("usage: serve ADDRESS [DIRECTORY]")?;
    let listener = tokio::net::TcpListener::bind(&address).await?;
    let tasks = Tasks::new(Shutdown::new());
    let directory = arguments.next();
    let scratch = directory.clone().map_or_else(std::env::temp_dir, Into::into);
    let backend = match directory {
        Some(directory) => store::open(store::Config::new(directory), &tasks).await?,
        None => store::open_memory_with(&tasks),
    };
    let client_urls = vec![format!("http://{address}")];
    let identity = Identity { cluster: 1, member: 1, name: "default".to_owned(), client_urls };
    let shutdown = tasks.shutdown().clone();
    tasks.spawn(base::Kind::Request, "signals", async move {
        tokio::signal::ctrl_c().await?;
        shutdown.request();
        Ok::<(), std::io::Error>(())
    });
    etcd::serve(Etcd::new(backend, identity, scratch, tasks), listener, None).await?;
    Ok(())
}
