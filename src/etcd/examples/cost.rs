//! Measures the CPU time of the server's thread per operation. Clients run in another thread and
//! the number of operations is fixed, so that other load on the machine has little influence. The
//! store is in memory, unless address and process of another server are given.
//! usage: cost get|put|event COUNT [http://ADDRESS PID]   (an event is one change at one of 1000
//! watches on ten streams)

use std::error::Error;
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc;

use base::{Shutdown, Tasks};
use etcd::Etcd;
use futures::StreamExt;
use futures::stream;
use proto::etcdserverpb as pb;
use proto::etcdserverpb::kv_client::KvClient;
use proto::etcdserverpb::watch_client::WatchClient;
use proto::etcdserverpb::watch_request::RequestUnion;
use tonic::transport::{Channel, Endpoint};

type Failure = Box<dyn Error + Send + Sync>;

const CONNECTIONS: usize = 8;
const CLIENTS: usize = 64;
const STREAMS: usize = 10;
const WATCHES: u64 = 1000;
const KEYS: u64 = 10_000;

/// Starts a server in a separate thread; returns its address and the path of the thread's CPU
/// statistics.
fn server() -> Result<(String, String), Failure> {
    let (told, ready) = mpsc::channel();
    let serve = move || -> Result<(), Failure> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
            let address = format!("http://{}", listener.local_addr()?);
            let thread = std::fs::read_link("/proc/thread-self")?;
            told.send((address, format!("/proc/{}", thread.display())))?;
            let tasks = Tasks::new(Shutdown::new());
            let store = store::open_memory_with(&tasks);
            let profile = store::Profile { name: "cost".to_owned(), client_urls: Vec::new() };
            let etcd = Etcd::new(store, profile, std::env::temp_dir(), tasks);
            etcd::serve(etcd, listener, None).await?;
            Ok::<_, Failure>(())
        })
    };
    std::thread::spawn(move || {
        if let Err(error) = serve() {
            let _ = writeln!(std::io::stderr(), "the server failed: {error}");
        }
    });
    Ok(ready.recv()?)
}

/// CPU time of a thread, or of all threads of a process, in nanoseconds.
fn used(of: &str) -> Result<u64, Failure> {
    let one = |path: std::path::PathBuf| -> Result<u64, Failure> {
        let text = std::fs::read_to_string(path.join("schedstat"))?;
        Ok(text.split(' ').next().unwrap_or_default().parse()?)
    };
    let Ok(threads) = std::fs::read_dir(format!("{of}/task")) else { return one(of.into()) };
    threads.map(|thread| one(thread?.path())).sum()
}

async fn connect(address: &str) -> Result<Channel, Failure> {
    Ok(Endpoint::from_shared(address.to_owned())?.connect().await?)
}

fn put(key: u64) -> pb::PutRequest {
    let key = format!("k{key:07}").into();
    pb::PutRequest { key, value: vec![b'x'; 256].into(), ..Default::default() }
}

/// Sends requests until `count` are answered.
async fn ask(address: &str, write: bool, count: u64) -> Result<(), Failure> {
    let left = Arc::new(AtomicU64::new(count));
    let mut channels = Vec::new();
    for _ in 0..CONNECTIONS {
        channels.push(connect(address).await?);
    }
    let clients = (0..CLIENTS).map(|client| {
        let (left, channel) = (Arc::clone(&left), channels.get(client % CONNECTIONS).cloned());
        async move {
            let mut kv = KvClient::new(channel.ok_or("no connection")?);
            while let Ok(number) = left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)) {
                let key = number * 7919 % KEYS;
                if write {
                    kv.put(put(key)).await?;
                } else {
                    let key = format!("k{key:07}").into();
                    kv.range(pb::RangeRequest { key, ..Default::default() }).await?;
                }
            }
            Ok::<_, Failure>(())
        }
    });
    futures::future::try_join_all(clients).await?;
    Ok(())
}

/// Opens watches of one key each, and receives this many events over all of them.
async fn events(address: &str, thread: &str, count: u64) -> Result<u64, Failure> {
    let mut streams = Vec::new();
    for _ in 0..STREAMS {
        let create = || pb::WatchCreateRequest { key: "k0000000".into(), ..Default::default() };
        let requests = (0..WATCHES / STREAMS as u64).map(move |_| pb::WatchRequest {
            request_union: Some(RequestUnion::CreateRequest(create())),
        });
        let requests = stream::iter(requests).chain(stream::pending());
        let mut client = WatchClient::new(connect(address).await?);
        streams.push(client.watch(requests).await?.into_inner());
    }
    let mut seen = stream::select_all(streams);
    for _ in 0..WATCHES {
        seen.next().await.ok_or("the watches ended")??;
    }
    let mut kv = KvClient::new(connect(address).await?);
    let (begin, mut written, mut came) = (used(thread)?, 0, 0);
    while written * WATCHES < count {
        kv.put(put(0)).await?;
        written += 1;
        // A few requests ahead of the slowest watch, as in `benches/store`.
        while came + 4 * WATCHES < written * WATCHES {
            came += seen.next().await.ok_or("the watches ended")??.events.len() as u64;
        }
    }
    while came < written * WATCHES {
        came += seen.next().await.ok_or("the watches ended")??.events.len() as u64;
    }
    Ok((used(thread)? - begin) / came)
}

fn main() -> Result<(), Failure> {
    let mut arguments = std::env::args().skip(1);
    let usage = "usage: cost get|put|event COUNT [http://ADDRESS PID]";
    let what = arguments.next().ok_or(usage)?;
    let count: u64 = arguments.next().ok_or(usage)?.parse()?;
    let (address, thread) = match (arguments.next(), arguments.next()) {
        (Some(address), Some(process)) => (address, format!("/proc/{process}")),
        _ => server()?,
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let each = runtime.block_on(async {
        match what.as_str() {
            "get" | "put" => {
                ask(&address, true, KEYS).await?;
                let begin = used(&thread)?;
                ask(&address, what == "put", count).await?;
                Ok((used(&thread)? - begin) / count)
            }
            "event" => events(&address, &thread, count).await,
            _ => Err(Failure::from(usage)),
        }
    })?;
    writeln!(std::io::stdout(), "{what}: {each} ns of the server each, of {count}")?;
    Ok(())
}
