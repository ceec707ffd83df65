//! Writes changed scopes rarely and in batches, because writes wear out flash storage.

use std::sync::Arc;
use std::time::Duration;

use base::{Shutdown, clock};
use tokio::time::Instant;

use super::memory::{self, PREFIX, file_name};
use super::{CachedScope, Shared};

/// Changes within this time are written together.
const GATHER: Duration = Duration::from_secs(1);
/// Burst and rate of written bytes per scope: frequent changes are written rarely, at most 88 MB
/// per file and day.
const BURST: f64 = 2_097_152.0;
const PER_SECOND: f64 = 1024.0;
/// Overhead of a write in bytes: the file system's blocks.
const OVERHEAD: f64 = 8192.0;
/// Maximum size of a cached scope in bytes: agents are small machines.
const FILE_MAX: usize = 16 << 20;
/// Maximum number of cached scopes; a node has a few, and those of its pods.
const SCOPES_MAX: usize = 4096;
/// Delay after a failed write.
const AGAIN: Duration = Duration::from_secs(60);
/// Scopes that were not read within this time since the start belong to deleted pods.
const SETTLED: Duration = Duration::from_secs(600);

/// The pending write of a scope and its earliest time.
#[derive(Debug)]
pub(super) struct CacheFile {
    due: Option<Instant>,
    tokens: f64,
    at: Instant,
    /// Size of the file in bytes.
    size: usize,
    is_logged: bool,
}

impl CacheFile {
    pub(super) fn new(size: usize) -> Self {
        Self { due: None, tokens: BURST, at: clock::now(), size, is_logged: false }
    }

    /// Records a change; returns whether the due time changed.
    pub(super) fn change(&mut self, now: Instant) -> bool {
        if self.due.is_some() {
            return false;
        }
        self.refill(now);
        let wait = (-self.tokens / PER_SECOND).max(0.0);
        self.due = Some(now + GATHER.max(Duration::from_secs_f64(wait)));
        true
    }

    fn refill(&mut self, now: Instant) {
        let earned = (now - self.at).as_secs_f64() * PER_SECOND;
        self.tokens = (self.tokens + earned).min(BURST);
        self.at = now;
    }

    fn wrote(&mut self, size: usize, now: Instant) {
        self.refill(now);
        self.size = size;
        #[expect(clippy::cast_precision_loss, reason = "sizes are far below 2^52")]
        let cost = size as f64 + OVERHEAD;
        self.tokens -= cost;
    }
}

/// Writes until shutdown, then writes what is pending.
pub(super) async fn run(
    shared: Arc<Shared>,
    shutdown: Shutdown,
) -> Result<(), std::convert::Infallible> {
    let mut tidy_at = Some(clock::now() + SETTLED);
    loop {
        let entries: Vec<Arc<CachedScope>> = shared.entries.lock().values().cloned().collect();
        let due = entries.iter().filter_map(|e| e.cache_file.lock().due).min();
        let next = [due, tidy_at].into_iter().flatten().min();
        tokio::select! {
            () = shutdown.requested() => break,
            () = shared.changed.notified() => {}
            () = until(next) => {}
        }
        forget(&shared).await;
        let now = clock::now();
        for entry in entries {
            let is_due = entry.cache_file.lock().due.is_some_and(|at| at <= now);
            if is_due {
                write(&shared, &entry).await;
            }
        }
        if tidy_at.is_some_and(|at| at <= now) {
            // A node that starts without a server knows other nodes' pods only from this file.
            tidy_at = if *shared.link.borrow() {
                tidy(&shared).await;
                None
            } else {
                Some(now + SETTLED)
            };
        }
    }
    let entries: Vec<Arc<CachedScope>> = shared.entries.lock().values().cloned().collect();
    for entry in entries {
        let waits = entry.cache_file.lock().due.is_some();
        if waits {
            write(&shared, &entry).await;
        }
    }
    Ok(())
}

async fn until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

async fn write(shared: &Shared, entry: &Arc<CachedScope>) {
    entry.cache_file.lock().due = None;
    let Some((revision, objects)) = entry.memory.lock().snapshot() else { return };
    let size: usize = objects.iter().map(|o| o.raw().len()).sum();
    if size > FILE_MAX
        || (entry.cache_file.lock().size == 0 && shared.directory.names().len() > SCOPES_MAX)
    {
        let was_logged = std::mem::replace(&mut entry.cache_file.lock().is_logged, true);
        if !was_logged {
            tracing::warn!(gvr = %entry.scope.gvr, size, limit = FILE_MAX, "too large for the offline cache");
        }
        return;
    }
    let (directory, about) = (Arc::clone(&shared.directory), Arc::clone(entry));
    let written = base::tasks::blocking(move || {
        let content = memory::encode(&about.scope, revision, &objects);
        directory.write(&about.file, &content).map(|()| content.len())
    });
    let now = clock::now();
    match written.await {
        Ok(Ok(size)) => entry.cache_file.lock().wrote(size, now),
        Ok(Err(error)) => {
            let mut cache_file = entry.cache_file.lock();
            if !std::mem::replace(&mut cache_file.is_logged, true) {
                tracing::warn!(gvr = %entry.scope.gvr, %error, "cannot write the offline cache, retrying");
            }
            cache_file.due = Some(now + AGAIN);
        }
        Err(error) => tracing::warn!(%error, "cannot write the offline cache"),
    }
}

/// Removes the files of scopes without watchers, unless they are watched again.
async fn forget(shared: &Shared) {
    let gone = std::mem::take(&mut *shared.gone.lock());
    let names: Vec<String> = {
        let entries = shared.entries.lock();
        gone.iter().filter(|s| !entries.contains_key(*s)).map(file_name).collect()
    };
    remove(shared, names).await;
}

/// Removes scopes that were not read since the start. A runtime class is only read when a pod is
/// created.
async fn tidy(shared: &Shared) {
    let used: Vec<String> = shared.entries.lock().values().map(|e| e.file.clone()).collect();
    let classes = format!("{PREFIX}runtimeclasses-");
    let unused = shared.directory.names().into_iter().map(|(name, _)| name);
    let unused = unused.filter(|n| n.starts_with(PREFIX) && !n.starts_with(&classes));
    remove(shared, unused.filter(|n| !used.contains(n)).collect()).await;
}

async fn remove(shared: &Shared, names: Vec<String>) {
    if names.is_empty() {
        return;
    }
    let directory = Arc::clone(&shared.directory);
    let removed = base::tasks::blocking(move || {
        for name in names {
            if let Err(error) = directory.remove(&name) {
                tracing::warn!(%error, "cannot remove unused files of the offline cache");
            }
        }
    });
    if let Err(error) = removed.await {
        tracing::warn!(%error, "cannot remove unused files of the offline cache");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frequent_changes_are_written_rarely() {
        let start = clock::now();
        let mut now = start;
        let (mut cache_file, mut bytes) = (CacheFile::new(0), 0);
        while now - start < Duration::from_secs(24 * 3600) {
            assert!(cache_file.change(now) && !cache_file.change(now));
            let due = cache_file.due.take().unwrap();
            assert!(due - now >= GATHER);
            now = due;
            cache_file.wrote(1_000_000, now);
            bytes += 1_000_000;
        }
        // 1024 B/s and the initial burst.
        assert!((80_000_000..95_000_000).contains(&bytes), "{bytes}");
    }
}
