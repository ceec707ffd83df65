//! The intents and records of image pulls: on disk, and in caches in front of that.

use std::collections::{HashMap, HashSet};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use proto::runtime::v1 as cri;

use super::cache::{Cached, FileCache};
use super::files::RecordDir;
use super::metrics;
use super::policy::trim;
use super::record::{Credentials, Intent, PulledRecord};

/// Sizes of the caches, as in the kubelet.
#[derive(Debug, Clone, Copy)]
pub(super) struct StoreSizes {
    pub(super) intents: usize,
    pub(super) records: usize,
}

impl StoreSizes {
    pub(super) fn new(max_pods: u32, pulls_max: usize) -> Self {
        let pods = usize::try_from(max_pods).unwrap_or(usize::MAX);
        let intents = pods.max(pulls_max).saturating_mul(2).clamp(1, 1024);
        Self { intents, records: pods.saturating_mul(5).clamp(1, 2000) }
    }
}

#[derive(Debug)]
struct Caches {
    intents: FileCache<()>,
    records: FileCache<Arc<PulledRecord>>,
}

/// The store. Except for [`RecordStore::find`], its functions block.
#[derive(Debug)]
pub(super) struct RecordStore {
    intents: RecordDir<Intent>,
    records: RecordDir<PulledRecord>,
    /// Pulls that run, by image. Held while files are changed, on threads that may block only.
    running: Mutex<HashMap<String, u32>>,
    /// Held for moments.
    caches: Mutex<Caches>,
}

fn rfc3339(time: Duration) -> String {
    let seconds = i64::try_from(time.as_secs()).unwrap_or(i64::MAX);
    jiff::Timestamp::from_second(seconds).unwrap_or(jiff::Timestamp::MAX).to_string()
}

fn seconds_of(record: &PulledRecord) -> Option<i64> {
    let time: jiff::Timestamp = record.last_updated_time.as_deref()?.parse().ok()?;
    Some(time.as_second())
}

impl RecordStore {
    /// Opens the directories below `root`.
    pub(super) fn open(root: &Path, sizes: StoreSizes) -> io::Result<Self> {
        base::fs::create_dir(root, 0o700)?;
        let intents = RecordDir::open(root.join("pulling"))?;
        let records = RecordDir::<PulledRecord>::open(root.join("pulled"))?;
        let found = intents.list();
        let names = found.files.into_iter().map(|intent: Intent| (intent.image, ())).collect();
        let intent_cache = FileCache::new(sizes.intents, names, found.is_complete);
        let found = records.list();
        let keyed = found.files.into_iter().map(|record| {
            let record = Arc::new(record);
            (record.image_ref.clone(), record)
        });
        let record_cache = FileCache::new(sizes.records, keyed.collect(), found.is_complete);
        let caches = Mutex::new(Caches { intents: intent_cache, records: record_cache });
        let store = Self { intents, records, running: Mutex::default(), caches };
        store.update_metrics();
        Ok(store)
    }

    fn update_metrics(&self) {
        metrics::INTENT_FILES.set(&[], self.intents.count() as f64);
        metrics::RECORD_FILES.set(&[], self.records.count() as f64);
        let caches = self.caches.lock();
        metrics::INTENT_CACHE.set(&[], caches.intents.usage_percent());
        metrics::RECORD_CACHE.set(&[], caches.records.usage_percent());
    }

    pub(super) fn has_intents(&self) -> bool {
        !self.caches.lock().intents.is_empty()
    }

    /// Returns the record of an image, and whether this node pulled it: it has a record, or there
    /// is an intent for it. Reads files only if the caches do not contain all.
    pub(super) async fn find(
        self: &Arc<Self>,
        image: &str,
        id: &str,
    ) -> io::Result<(Option<Arc<PulledRecord>>, bool)> {
        let (record, intent) = {
            let mut caches = self.caches.lock();
            (caches.records.get(id), caches.intents.get(image))
        };
        match (record, intent) {
            (Cached::Present(record), _) => Ok((Some(record), true)),
            (Cached::Missing, Cached::Present(())) => Ok((None, true)),
            (Cached::Missing, Cached::Missing) => Ok((None, false)),
            _ => {
                let (store, image, id) = (Arc::clone(self), image.to_owned(), id.to_owned());
                let found = base::tasks::blocking(move || store.read(&image, &id)).await;
                found.map_err(io::Error::other)?
            }
        }
    }

    fn read(&self, image: &str, id: &str) -> io::Result<(Option<Arc<PulledRecord>>, bool)> {
        let _changes = self.running.lock();
        if let Some(record) = self.records.get(id)? {
            let record = Arc::new(record);
            self.caches.lock().records.insert(id.to_owned(), Arc::clone(&record));
            return Ok((Some(record), true));
        }
        let exists = self.intents.get(image)?.is_some();
        if exists {
            self.caches.lock().intents.insert(image.to_owned(), ());
        }
        Ok((None, exists))
    }

    /// Writes the intent of a pull.
    pub(super) fn begin_pull(&self, image: &str) -> io::Result<()> {
        let mut running = self.running.lock();
        let count = running.entry(image.to_owned()).or_default();
        if *count == 0 {
            if let Err(error) = self.intents.write(&Intent::new(image)) {
                running.remove(image);
                return Err(error);
            }
            self.caches.lock().intents.insert(image.to_owned(), ());
            *count = 1;
            self.update_metrics();
        } else {
            *count = count.saturating_add(1);
        }
        Ok(())
    }

    /// Removes the intent once no pull of the image runs.
    pub(super) fn end_pull(&self, image: &str) -> io::Result<()> {
        let mut running = self.running.lock();
        match running.get_mut(image) {
            Some(count) if *count > 1 => *count -= 1,
            _ => {
                self.intents.remove(image)?;
                self.caches.lock().intents.remove(image);
                running.remove(image);
                self.update_metrics();
            }
        }
        Ok(())
    }

    /// Writes the record of an image unless it contains the credentials; without credentials, the
    /// record tells only that this node pulled the image.
    pub(super) fn record_pulled(
        &self,
        image: &str,
        id: &str,
        credentials: Option<&Credentials>,
    ) -> io::Result<()> {
        let _changes = self.running.lock();
        let invalid = || io::Error::other(format!("invalid image name {image:?}"));
        let name = trim(image).ok_or_else(invalid)?;
        let known = self.records.get(id).unwrap_or_else(|error| {
            tracing::info!(image, %error, "replacing an invalid record of an image pull");
            None
        });
        let now = rfc3339(base::clock::unix_time());
        let changed = match known {
            None => Some(PulledRecord::new(id, name, credentials, &now)),
            Some(known) => known.merged(name, credentials, &now),
        };
        if let Some(record) = changed {
            self.records.write(&record)?;
            self.caches.lock().records.insert(id.to_owned(), Arc::new(record));
            self.update_metrics();
        }
        Ok(())
    }

    /// Makes records of the intents of an earlier process whose image is in the runtime under the
    /// same name.
    pub(super) fn finish_intents(&self, images: &[cri::Image]) {
        let intents: HashSet<String> =
            self.intents.list().files.into_iter().map(|intent| intent.image).collect();
        for image in images {
            let names = image.repo_digests.iter().chain(&image.repo_tags);
            for name in names.filter(|name| intents.contains(*name)) {
                let outcome =
                    self.record_pulled(name, &image.id, None).and_then(|()| self.end_pull(name));
                if let Err(error) = outcome {
                    tracing::error!(image = name, %error, "cannot write an image pulled record");
                }
            }
        }
    }

    /// Removes records of images that are not in `ids` and that were last changed before `until`.
    pub(super) fn prune(&self, ids: &[String], until: Duration) {
        let _changes = self.running.lock();
        let until = i64::try_from(until.as_secs()).unwrap_or(i64::MAX);
        let known: HashSet<&str> = ids.iter().map(String::as_str).collect();
        let mut records = self.records.list().files;
        records.retain(|record| {
            let is_old = seconds_of(record).is_none_or(|seconds| seconds < until);
            is_old && !known.contains(record.image_ref.as_str())
        });
        for record in records {
            if let Err(error) = self.records.remove(&record.image_ref) {
                tracing::error!(image = record.image_ref, %error, "cannot remove a pulled record");
                continue;
            }
            self.caches.lock().records.remove(&record.image_ref);
        }
        self.update_metrics();
    }
}
