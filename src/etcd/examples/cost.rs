//! Measures the CPU time that the server uses per operation. Clients run in another thread and the
//! number of operations is fixed, so that other load on the machine has little influence. Without
//! the address and process of another server, the example starts one with a store in memory.
//!
//! Usage: `cost get|put|event COUNT [http://ADDRESS PID]`. An `event` is the delivery of one change
//! to one of 1000 watches on ten streams.

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

/// An error that ends the measurement.
type BoxError = Box<dyn Error + Send + Sync>;

/// Number of connections of `get` and `put`.
const CONNECTIONS: usize = 8;
/// Number of concurrent requests of `get` and `put`.
const CLIENTS: usize = 64;
/// Number of watch streams, each on a connection of its own.
const STREAMS: usize = 10;
/// Number of watches on all streams together.
const WATCHES: u64 = 1000;
/// Number of keys of `get` and `put`.
const KEYS: u64 = 10_000;

/// Starts a server in a separate thread; returns its address and the path of the thread's CPU
/// statistics.
fn server() -> Result<(String, String), BoxError> {
    let (sender, receiver) = mpsc::channel();
    let serve = move || -> Result<(), BoxError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
            let address = format!("http://{}", listener.local_addr()?);
            let thread = std::fs::read_link("/proc/thread-self")?;
            sender.send((address, format!("/proc/{}", thread.display())))?;
            let tasks = Tasks::new(Shutdown::new());
            let store = store::open_memory_with(&tasks);
            let profile = store::Profile { name: "cost".to_owned(), client_urls: Vec::new() };
            let etcd = Etcd::new(store, profile, std::env::temp_dir(), tasks);
            etcd::serve(etcd, listener, None).await?;
            Ok::<_, BoxError>(())
        })
    };
    std::thread::spawn(move || {
        if let Err(error) = serve() {
            let _ = writeln!(std::io::stderr(), "cost: cannot serve: {error}");
        }
    });
    Ok(receiver.recv()?)
}

/// Returns the CPU time of a thread, or of all threads of a process, in nanoseconds. `proc_path` is
/// its directory under `/proc`.
fn cpu_nanos(proc_path: &str) -> Result<u64, BoxError> {
    let of_thread = |path: std::path::PathBuf| -> Result<u64, BoxError> {
        let text = std::fs::read_to_string(path.join("schedstat"))?;
        Ok(text.split(' ').next().unwrap_or_default().parse()?)
    };
    let Ok(threads) = std::fs::read_dir(format!("{proc_path}/task")) else {
        return of_thread(proc_path.into());
    };
    threads.map(|thread| of_thread(thread?.path())).sum()
}

async fn connect(address: &str) -> Result<Channel, BoxError> {
    Ok(Endpoint::from_shared(address.to_owned())?.connect().await?)
}

/// A request that writes 256 bytes.
fn put(key: u64) -> pb::PutRequest {
    let key = format!("k{key:07}").into();
    pb::PutRequest { key, value: vec![b'x'; 256].into(), ..Default::default() }
}

/// Sends `count` reads or writes and waits for the responses.
async fn send_requests(address: &str, is_write: bool, count: u64) -> Result<(), BoxError> {
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
                // Visits all keys in a scattered order: 7919 is a prime.
                let key = number * 7919 % KEYS;
                if is_write {
                    kv.put(put(key)).await?;
                } else {
                    let key = format!("k{key:07}").into();
                    kv.range(pb::RangeRequest { key, ..Default::default() }).await?;
                }
            }
            Ok::<_, BoxError>(())
        }
    });
    futures::future::try_join_all(clients).await?;
    Ok(())
}

/// Opens watches of the same key, and changes the key until they have received `count` events
/// together. Returns the CPU nanoseconds per event.
async fn events(address: &str, thread: &str, count: u64) -> Result<u64, BoxError> {
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
    let mut responses = stream::select_all(streams);
    // Each watch is confirmed by a response.
    for _ in 0..WATCHES {
        responses.next().await.ok_or("the watches ended")??;
    }
    let mut kv = KvClient::new(connect(address).await?);
    let (cpu_before, mut written, mut received) = (cpu_nanos(thread)?, 0, 0);
    while written * WATCHES < count {
        kv.put(put(0)).await?;
        written += 1;
        // At most four writes are ahead of the received events, as in `benches/store`.
        while received + 4 * WATCHES < written * WATCHES {
            received += responses.next().await.ok_or("the watches ended")??.events.len() as u64;
        }
    }
    while received < written * WATCHES {
        received += responses.next().await.ok_or("the watches ended")??.events.len() as u64;
    }
    Ok((cpu_nanos(thread)? - cpu_before) / received)
}

fn main() -> Result<(), BoxError> {
    let mut arguments = std::env::args().skip(1);
    let usage = "usage: cost get|put|event COUNT [http://ADDRESS PID]";
    let operation = arguments.next().ok_or(usage)?;
    let count: u64 = arguments.next().ok_or(usage)?.parse()?;
    let (address, thread) = match (arguments.next(), arguments.next()) {
        (Some(address), Some(process)) => (address, format!("/proc/{process}")),
        _ => server()?,
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let nanos = runtime.block_on(async {
        match operation.as_str() {
            "get" | "put" => {
                send_requests(&address, true, KEYS).await?;
                let cpu_before = cpu_nanos(&thread)?;
                send_requests(&address, operation == "put", count).await?;
                Ok((cpu_nanos(&thread)? - cpu_before) / count)
            }
            "event" => events(&address, &thread, count).await,
            _ => Err(BoxError::from(usage)),
        }
    })?;
    writeln!(
        std::io::stdout(),
        "{operation}: {nanos} ns of CPU time per operation, {count} operations"
    )?;
    Ok(())
}
