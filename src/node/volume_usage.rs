//! How full volumes are: the last answer about each volume, requested again after a minute.
//!
//! A request for statistics waits neither for a driver nor for a server of files: answers that are
//! due are requested in tasks, and what reads them gets the previous ones until they arrive.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use base::metrics::{DEFAULT_BOUNDS, Family};
use base::{Kind, Tasks};
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio::time::Instant;

/// How long an answer is valid (`volumeStatsAggPeriod`).
pub(crate) const KEPT_FOR: Duration = Duration::from_secs(60);
/// How long a request waits for the answers that it causes, so that the first one is not empty.
const WAIT: Duration = Duration::from_secs(1);

/// Durations of measurements by their source: a driver, or how the node measures.
pub(crate) static COLLECTION_DURATION: Family = Family::histogram(
    "kubelet_volume_metric_collection_duration_seconds",
    "[ALPHA] Duration in seconds to calculate volume stats",
    &["metric_source"],
    &DEFAULT_BOUNDS,
);

/// Bytes or inodes of a volume.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Amounts {
    pub(crate) available: u64,
    pub(crate) total: u64,
    pub(crate) used: u64,
}

/// How full a volume is. What is not measured is zero, as in upstream.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct VolumeUsage {
    pub(crate) bytes: Amounts,
    pub(crate) inodes: Amounts,
    /// Time of the measurement, in nanoseconds since the epoch.
    pub(crate) at: i64,
}

/// The measured volumes of a pod, by their names in the pod.
pub(crate) type PodUsage = HashMap<String, VolumeUsage>;

/// A volume that is to be measured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MeasuredVolume<T> {
    /// What measures it; one request at a time is made to each source.
    pub(crate) source: String,
    pub(crate) path: PathBuf,
    /// What the source needs beside the path.
    pub(crate) of: T,
}

#[derive(Debug)]
struct Answer {
    at: Instant,
    /// `None` if the source has none.
    usage: Option<VolumeUsage>,
}

#[derive(Debug, Default)]
struct CacheState {
    answers: HashMap<PathBuf, Answer>,
    /// The sources with a request that is not finished.
    busy: HashSet<String>,
}

/// The last answer about each volume; cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct UsageCache(Arc<Mutex<CacheState>>);

impl UsageCache {
    /// Returns the last answer about the volume at a path.
    pub(crate) fn get(&self, path: &Path) -> Option<VolumeUsage> {
        self.0.lock().answers.get(path).and_then(|answer| answer.usage)
    }

    /// Requests the answers that are due, with a call of `ask` for each source, and waits for them,
    /// at most a second. Answers about volumes that are not among these are dropped.
    pub(crate) async fn update<T, F>(
        &self,
        tasks: &Tasks,
        volumes: Vec<MeasuredVolume<T>>,
        ask: impl Fn(UsageRequest<T>) -> F,
    ) where
        F: Future<Output = ()> + Send + 'static,
    {
        // All senders are dropped once all requests are finished.
        let (running, mut finished) = mpsc::channel::<()>(1);
        for request in self.begin(volumes, base::clock::now()) {
            let (work, running) = (ask(request), running.clone());
            let shutdown = tasks.shutdown().clone();
            tasks.spawn(Kind::Request, "volume-usage", async move {
                let _running = running;
                tokio::select! {
                    () = shutdown.requested() => {}
                    () = work => {}
                }
                Ok::<(), Infallible>(())
            });
        }
        drop(running);
        let _ = tokio::time::timeout(WAIT, finished.recv()).await;
    }

    /// Returns the requests that are due, by source.
    fn begin<T>(&self, volumes: Vec<MeasuredVolume<T>>, now: Instant) -> Vec<UsageRequest<T>> {
        let mut state = self.0.lock();
        let listed: HashSet<&Path> = volumes.iter().map(|v| v.path.as_path()).collect();
        state.answers.retain(|path, _| listed.contains(path.as_path()));
        let mut due: BTreeMap<String, Vec<(PathBuf, T)>> = BTreeMap::new();
        for MeasuredVolume { source, path, of } in volumes {
            let is_valid = |answer: &Answer| now.saturating_duration_since(answer.at) < KEPT_FOR;
            if !state.answers.get(&path).is_some_and(is_valid) && !state.busy.contains(&source) {
                due.entry(source).or_default().push((path, of));
            }
        }
        state.busy.extend(due.keys().cloned());
        let of_source = |(source, volumes)| {
            let cache = self.clone();
            UsageRequest { cache, source, volumes, begun: now }
        };
        due.into_iter().map(of_source).collect()
    }
}

/// A request to a source. Once it is dropped, the volumes that it did not answer have no usage.
#[derive(Debug)]
pub(crate) struct UsageRequest<T> {
    cache: UsageCache,
    source: String,
    volumes: Vec<(PathBuf, T)>,
    begun: Instant,
}

impl<T> UsageRequest<T> {
    /// The source that measures the volumes.
    pub(crate) fn source(&self) -> &str {
        &self.source
    }

    /// The volumes to measure.
    pub(crate) fn volumes(&self) -> &[(PathBuf, T)] {
        &self.volumes
    }

    /// Records the answer about a volume.
    pub(crate) fn answer(&self, path: &Path, usage: VolumeUsage) {
        let answer = Answer { at: self.begun, usage: Some(usage) };
        self.cache.0.lock().answers.insert(path.to_owned(), answer);
    }
}

impl<T> Drop for UsageRequest<T> {
    fn drop(&mut self) {
        let mut state = self.cache.0.lock();
        state.busy.remove(&self.source);
        for (path, _) in &self.volumes {
            if state.answers.get(path).is_none_or(|answer| answer.at < self.begun) {
                let answer = Answer { at: self.begun, usage: None };
                state.answers.insert(path.clone(), answer);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn volume(source: &str, path: &str) -> MeasuredVolume<()> {
        MeasuredVolume { source: source.to_owned(), path: path.into(), of: () }
    }

    fn usage(used: u64) -> VolumeUsage {
        VolumeUsage { bytes: Amounts { used, ..Amounts::default() }, ..VolumeUsage::default() }
    }

    fn paths_of(request: &UsageRequest<()>) -> Vec<&Path> {
        request.volumes.iter().map(|(path, ())| path.as_path()).collect()
    }

    fn paths(requests: &[UsageRequest<()>]) -> Vec<Vec<&Path>> {
        requests.iter().map(paths_of).collect()
    }

    #[test]
    fn an_answer_is_requested_once_a_minute_and_kept_until_the_next_one() {
        let (cache, now) = (UsageCache::default(), Instant::now());
        let all = || vec![volume("d", "/a"), volume("e", "/b"), volume("d", "/c")];
        let first = cache.begin(all(), now);
        assert_eq!(paths(&first), [vec![Path::new("/a"), Path::new("/c")], vec![Path::new("/b")]]);
        assert!(cache.begin(all(), now).is_empty(), "both sources are busy");
        first[0].answer(Path::new("/a"), usage(1));
        first[1].answer(Path::new("/b"), usage(2));
        drop(first);
        assert_eq!(cache.get(Path::new("/a")), Some(usage(1)));
        assert_eq!(cache.get(Path::new("/c")), None, "the source has no answer about it");
        assert!(cache.begin(all(), now + Duration::from_secs(59)).is_empty());
        let second = cache.begin(all(), now + Duration::from_secs(60));
        assert_eq!(paths(&second), [vec![Path::new("/a"), Path::new("/c")], vec![Path::new("/b")]]);
        assert_eq!(cache.get(Path::new("/a")), Some(usage(1)), "the request is not finished");
        drop(second);
        assert_eq!(cache.get(Path::new("/a")), None);
        // A volume that is not used any longer is forgotten, a new one is measured at once.
        let third = cache.begin(vec![volume("d", "/n")], now + Duration::from_secs(61));
        assert_eq!(paths(&third), [vec![Path::new("/n")]]);
        assert_eq!(cache.0.lock().answers.len(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_source_without_an_answer_delays_a_request_once_and_for_a_second() {
        let (cache, tasks) = (UsageCache::default(), Tasks::new(base::Shutdown::new()));
        let update = || {
            cache.update(&tasks, vec![volume("d", "/a"), volume("e", "/b")], |request| async move {
                if request.source() == "d" {
                    std::future::pending::<()>().await;
                }
                request.answer(Path::new("/b"), usage(2));
            })
        };
        let begun = Instant::now();
        update().await;
        assert_eq!(begun.elapsed(), WAIT);
        assert_eq!(cache.get(Path::new("/b")), Some(usage(2)));
        update().await;
        assert_eq!(begun.elapsed(), WAIT);
        tasks.shutdown().request();
        assert!(tasks.drain(Duration::from_secs(1)).await.is_empty());
        assert!(cache.0.lock().busy.is_empty());
    }
}
