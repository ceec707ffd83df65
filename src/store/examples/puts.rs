//! Rate and latency of durable puts: `puts DIR WRITERS SECONDS [lazy]`, one line of results. For
//! `benches/run` and by hand.

use std::sync::Arc;
use std::time::{Duration, Instant};

use base::{Kind, Shutdown, Tasks};
use store::{Backend, Config, Durability, Op, Txn};

const VALUE_BYTES: usize = 500;

async fn write(store: Arc<dyn Backend>, writer: usize, lazy: bool, end: Instant) -> Vec<Duration> {
    let mut times = Vec::new();
    while Instant::now() < end {
        let op = Op::Put {
            key: format!("/registry/configmaps/bench/{writer}-{}", times.len() % 1000).into(),
            value: vec![b'v'; VALUE_BYTES].into(),
            lease: 0,
            prev_kv: false,
        };
        let durability = if lazy { Durability::Lazy } else { Durability::Synced };
        let txn = Txn { success: vec![op], durability, ..Txn::default() };
        let begun = Instant::now();
        if let Err(error) = store.txn(txn).await {
            tracing::error!(%error, "a put failed");
            break;
        }
        times.push(begun.elapsed());
    }
    times
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [dir, writers, seconds, rest @ ..] = arguments.as_slice() else {
        return Err("usage: puts DIR WRITERS SECONDS [lazy]".into());
    };
    let (writers, seconds): (usize, u64) = (writers.parse()?, seconds.parse()?);
    let lazy = rest.first().is_some_and(|word| word == "lazy");
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let line = runtime.block_on(async {
        let tasks = Tasks::new(Shutdown::new());
        let begun = Instant::now();
        let store = store::open(Config::new(dir), &tasks).await?;
        let opened = begun.elapsed();
        let begun = Instant::now();
        let end = begun + Duration::from_secs(seconds);
        let (done, mut written) = tokio::sync::mpsc::channel(writers.max(1));
        for n in 0..writers {
            let (store, done) = (Arc::clone(&store), done.clone());
            tasks.spawn(Kind::Request, "writer", async move {
                done.send(write(store, n, lazy, end).await).await
            });
        }
        drop(done);
        let mut times = Vec::new();
        while let Some(more) = written.recv().await {
            times.extend(more);
        }
        let rate = times.len() as f64 / begun.elapsed().as_secs_f64();
        times.sort_unstable();
        let at = |share: usize| times.get(times.len() * share / 100).copied().unwrap_or_default();
        tasks.shutdown().request();
        tasks.drain(Duration::from_secs(10)).await;
        Ok::<_, Box<dyn std::error::Error>>(format!(
            "{writers} writers: {rate:.0} puts/s, p50 {:?}, p99 {:?}, opened in {opened:?}",
            at(50),
            at(99)
        ))
    })?;
    use std::io::Write;
    writeln!(std::io::stdout(), "{line}")?;
    Ok(())
}
