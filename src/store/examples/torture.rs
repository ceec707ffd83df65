//! Records acknowledged writes and checks that they exist: for `tests/simulation/disk`.
//!
//! `torture DIR write WRITERS COUNT` puts until that many are acknowledged (0: without end), one
//! line `KEY NUMBER REVISION` each. `torture DIR check` reads such lines and prints the missing
//! ones. `torture DIR free` deletes and compacts.

use std::collections::BTreeMap;
use std::io::{BufRead, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use base::{Shutdown, Tasks};
use store::{Backend, Config, KeyRange, Op, RangeRequest, Revision, StoreError, Txn};

type Failure = Box<dyn std::error::Error + Send + Sync>;

const PREFIX: &str = "/torture/";

/// Sizes around the boundaries of sectors and pages.
const SIZES: [usize; 6] = [10, 480, 512, 1500, 4096, 20_000];

fn value(number: u64) -> String {
    let size = SIZES[number as usize % SIZES.len()];
    format!("{number} {}", "v".repeat(size))
}

fn number(value: &[u8]) -> Result<u64, Failure> {
    Ok(std::str::from_utf8(value)?.split(' ').next().unwrap_or_default().parse()?)
}

async fn newest(store: &Arc<dyn Backend>, key: &str) -> Result<u64, Failure> {
    let found = store.range(RangeRequest::new(KeyRange::key(key.to_owned()))).await?;
    found.kvs.first().map_or(Ok(0), |kv| number(&kv.value))
}

async fn write(
    store: Arc<dyn Backend>,
    writer: usize,
    left: Arc<AtomicU64>,
) -> Result<(), Failure> {
    let key = format!("{PREFIX}{writer}");
    let mut next = newest(&store, &key).await? + 1;
    while left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)).is_ok() {
        let (at, value) = (key.clone().into(), value(next).into());
        let op = Op::Put { key: at, value, lease: 0, prev_kv: false };
        let answer = store.txn(Txn { success: vec![op], ..Txn::default() }).await?;
        // A single write, so that a line is complete or missing.
        let line = format!("{key} {next} {}\n", answer.revision.0);
        std::io::stdout().write_all(line.as_bytes())?;
        next += 1;
    }
    Ok(())
}

async fn check(store: &Arc<dyn Backend>) -> Result<String, Failure> {
    let mut last: BTreeMap<String, u64> = BTreeMap::new();
    let (mut seen, mut compacted, mut lost) = (0, 0, Vec::new());
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let [key, number_, revision] = line.split(' ').collect::<Vec<_>>()[..] else {
            continue;
        };
        let (wanted, revision): (u64, i64) = (number_.parse()?, revision.parse()?);
        seen += 1;
        let known = last.entry(key.to_owned()).or_default();
        *known = wanted.max(*known);
        let request = RangeRequest::new(KeyRange::key(key.to_owned()));
        let request = RangeRequest { revision: Some(Revision(revision)), ..request };
        match store.range(request).await {
            Ok(found) => match found.kvs.first() {
                Some(kv) if kv.mod_revision.0 == revision && kv.value == value(wanted) => {}
                other => lost.push(format!("{line}: {:?}", other.map(|kv| kv.mod_revision))),
            },
            Err(StoreError::Compacted { .. }) => compacted += 1,
            Err(error) => lost.push(format!("{line}: {error}")),
        }
    }
    for (key, wanted) in last {
        let found = newest(store, &key).await?;
        if found < wanted {
            lost.push(format!("{key} is at {found}, {wanted} was acknowledged"));
        }
    }
    if lost.is_empty() {
        return Ok(format!("{seen} acknowledged ({compacted} compacted since), all are there"));
    }
    lost.truncate(10);
    Err(format!("of {seen} acknowledged are lost: {lost:?}").into())
}

/// Frees space, as an administrator of a full disk would.
async fn free(store: &Arc<dyn Backend>) -> Result<String, Failure> {
    let first = format!("{PREFIX}filler/1");
    let all = KeyRange::prefix(format!("{PREFIX}filler/"));
    let rest = KeyRange { start: format!("{first}\0").into(), end: all.end };
    let delete = |range| {
        let op = Op::Delete { range, prev_kv: false };
        store.txn(Txn { success: vec![op], ..Txn::default() })
    };
    delete(rest).await?;
    // A compaction keeps the deletions of its own revision, for watches that start there.
    let answer = delete(KeyRange::key(first)).await?;
    match store.compact(answer.revision).await {
        Ok(()) | Err(StoreError::Compacted { .. }) => {}
        Err(error) => return Err(error.into()),
    }
    Ok(format!("freed at revision {}", answer.revision.0))
}

/// Writes until there is no space, frees some, and writes again.
async fn fill(store: &Arc<dyn Backend>) -> Result<String, Failure> {
    let (mut written, mut number) = (0, 0_u64);
    let full = loop {
        number += 1;
        let key = format!("{PREFIX}filler/{number}").into();
        let op = Op::Put { key, value: vec![b'f'; 100_000].into(), lease: 0, prev_kv: false };
        match store.txn(Txn { success: vec![op], ..Txn::default() }).await {
            Ok(_) => written += 1,
            Err(error @ StoreError::NoSpace(_)) => break error,
            Err(error) => return Err(format!("instead of refusing: {error}").into()),
        }
    };
    let found =
        store.range(RangeRequest::new(KeyRange::prefix(format!("{PREFIX}filler/")))).await?;
    if found.count != written {
        return Err(format!("{} of {written} are read when it is full", found.count).into());
    }
    let freed = free(store).await?;
    Ok(format!("{written} written until: {full}; {freed}"))
}

async fn run(arguments: &[String]) -> Result<String, Failure> {
    let [dir, verb, rest @ ..] = arguments else {
        return Err("usage: torture DIR write WRITERS COUNT | check | fill | free".into());
    };
    let tasks = Tasks::new(Shutdown::new());
    let store = store::open(Config::new(dir), &tasks).await?;
    let done = match verb.as_str() {
        "write" => {
            let [writers, count] = rest else { return Err("write WRITERS COUNT".into()) };
            let count: u64 = count.parse()?;
            let left = Arc::new(AtomicU64::new(if count == 0 { u64::MAX } else { count }));
            let writers: usize = writers.parse()?;
            let all = (0..writers).map(|n| write(Arc::clone(&store), n, Arc::clone(&left)));
            futures::future::try_join_all(all).await.map(|_| String::new())
        }
        "check" => check(&store).await,
        "fill" => fill(&store).await,
        "free" => free(&store).await,
        other => Err(format!("what is {other}?").into()),
    };
    tasks.shutdown().request();
    tasks.drain(std::time::Duration::from_secs(10)).await;
    match tasks.fault() {
        Some(fault) if done.is_ok() => Err(fault.into()),
        _ => done,
    }
}

fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let line = runtime.block_on(run(&arguments))?;
    writeln!(std::io::stdout(), "{line}")?;
    Ok(())
}
