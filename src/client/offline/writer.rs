//! Writes what changed, seldom and together: flash wears out by writing.

use std::sync::Arc;
use std::time::Duration;

use base::{Shutdown, clock};
use tokio::time::Instant;

use super::memory::{self, PREFIX, file_name};
use super::{Entry, Shared};

/// What comes within this time is one write.
const GATHER: Duration = Duration::from_secs(1);
/// Bytes that may be written of one scope at once, and how many more with each second: what changes
/// all the time is written seldom, and a day of it costs one file at most 88 MB.
const BURST: f64 = 2_097_152.0;
const PER_SECOND: f64 = 1024.0;
/// What a write costs beside its bytes: the file system's own blocks.
const OVERHEAD: f64 = 8192.0;
/// A scope with more is not remembered, in bytes: agents are small machines.
const FILE_MAX: usize = 16 << 20;
/// Scopes remembered; a node has a few and those of its pods.
const SCOPES_MAX: usize = 4096;
/// After a write that failed.
const AGAIN: Duration = Duration::from_secs(60);
/// What was not asked for in this time since the start is of pods that are no more.
const SETTLED: Duration = Duration::from_secs(600);

/// What of one scope is to be written, and when it may be.
#[derive(Debug)]
pub(super) struct CacheFile {
    due: Option<Instant>,
    tokens: f64,
    at: Instant,
    /// Bytes of the file.
    size: usize,
    said: bool,
}

impl CacheFile {
    pub(super) fn new(size: usize) -> Self {
        Self { due: None, tokens: BURST, at: clock::now(), size, said: false }
    }

    /// Something changed; whether there is a new time at which it is due.
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

/// Writes until shutdown, and then what is left.
pub(super) async fn run(
    shared: Arc<Shared>,
    shutdown: Shutdown,
) -> Result<(), std::convert::Infallible> {
    let mut tidy_at = Some(clock::now() + SETTLED);
    loop {
        let entries: Vec<Arc<Entry>> = shared.entries.lock().values().cloned().collect();
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
            // Who starts while the server is away knows the pods of others only from here.
            tidy_at = if *shared.link.borrow() {
                tidy(&shared).await;
                None
            } else {
                Some(now + SETTLED)
            };
        }
    }
    let entries: Vec<Arc<Entry>> = shared.entries.lock().values().cloned().collect();
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

async fn write(shared: &Shared, entry: &Arc<Entry>) {
    entry.cache_file.lock().due = None;
    let Some((revision, objects)) = entry.memory.lock().snapshot() else { return };
    let size: usize = objects.iter().map(|o| o.raw().len()).sum();
    if size > FILE_MAX
        || (entry.cache_file.lock().size == 0 && shared.kept.names().len() > SCOPES_MAX)
    {
        let said = std::mem::replace(&mut entry.cache_file.lock().said, true);
        if !said {
            tracing::warn!(gvr = %entry.scope.gvr, size, limit = FILE_MAX, "too much to be remembered for a start without a server");
        }
        return;
    }
    let (kept, about) = (Arc::clone(&shared.kept), Arc::clone(entry));
    let written = base::tasks::blocking(move || {
        let content = memory::encode(&about.scope, revision, &objects);
        kept.write(&about.file, &content).map(|()| content.len())
    });
    let now = clock::now();
    match written.await {
        Ok(Ok(size)) => entry.cache_file.lock().wrote(size, now),
        Ok(Err(error)) => {
            let mut cache_file = entry.cache_file.lock();
            if !std::mem::replace(&mut cache_file.said, true) {
                tracing::warn!(gvr = %entry.scope.gvr, %error, "not remembered for a start without a server, trying again");
            }
            cache_file.due = Some(now + AGAIN);
        }
        Err(error) => tracing::warn!(%error, "not remembered"),
    }
}

/// Removes the files of scopes that nobody uses, unless somebody does again.
async fn forget(shared: &Shared) {
    let gone = std::mem::take(&mut *shared.gone.lock());
    let names: Vec<String> = {
        let entries = shared.entries.lock();
        gone.iter().filter(|s| !entries.contains_key(*s)).map(file_name).collect()
    };
    remove(shared, names).await;
}

/// Removes what was not asked for since the start. A runtime class is only asked for when a pod is
/// made.
async fn tidy(shared: &Shared) {
    let used: Vec<String> = shared.entries.lock().values().map(|e| e.file.clone()).collect();
    let classes = format!("{PREFIX}runtimeclasses-");
    let unused = shared.kept.names().into_iter().map(|(name, _)| name);
    let unused = unused.filter(|n| n.starts_with(PREFIX) && !n.starts_with(&classes));
    remove(shared, unused.filter(|n| !used.contains(n)).collect()).await;
}

async fn remove(shared: &Shared, names: Vec<String>) {
    if names.is_empty() {
        return;
    }
    let kept = Arc::clone(&shared.kept);
    let removed = base::tasks::blocking(move || {
        for name in names {
            if let Err(error) = kept.remove(&name) {
                tracing::warn!(%error, "what is not needed any more stays");
            }
        }
    });
    if let Err(error) = removed.await {
        tracing::warn!(%error, "what is not needed any more stays");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_changes_all_the_time_is_written_seldom() {
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
        // 1024 B/s and the burst at the beginning.
        assert!((80_000_000..95_000_000).contains(&bytes), "{bytes}");
    }
}
