//! What is sealed otherwise than it would be now, counted and written anew.

use std::sync::Arc;

use bytes::Bytes;
use futures::StreamExt as _;
use serde::{Deserialize, Serialize};
use store::kv::{
    Backend, Compare, Durability, KeyRange, KeyValue, Op, Ordering, RangeRequest, StoreError,
    Target, Txn,
};

use super::Keys;

/// Where Secrets are.
const SECRETS: &str = "/registry/secrets/";
/// Values read at a time: at most 1.5 MB each, and small nearly always.
const PAGE: usize = 200;
/// Writes under way: the disk is paid once for all that queued.
const WRITES: usize = 16;

/// How many there are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Count {
    /// Secrets.
    pub total: usize,
    /// Those that are not sealed as they would be now.
    pub stale: usize,
}

/// Counts.
///
/// # Errors
/// The store's.
pub async fn count(store: &Arc<dyn Backend>, keys: &Keys) -> Result<Count, StoreError> {
    let ring = keys.ring();
    let mut count = Count::default();
    let mut pages = Pages::begin(store).await?;
    while let Some(kvs) = pages.next().await? {
        count.total += kvs.len();
        count.stale += kvs.iter().filter(|kv| ring.stale(&kv.value)).count();
    }
    Ok(count)
}

/// Writes every Secret anew that is stale, in place of the version that was read; how many. Whoever changes one meanwhile
/// has sealed it with the newest key.
///
/// # Errors
/// The store's; the key whose value cannot be read. What was written until then stays so.
pub async fn write_anew(store: &Arc<dyn Backend>, keys: &Keys) -> Result<usize, String> {
    let ring = keys.ring();
    let mut written = 0;
    let told = |error: StoreError| error.to_string();
    let mut pages = Pages::begin(store).await.map_err(told)?;
    while let Some(kvs) = pages.next().await.map_err(told)? {
        let mut writes = Vec::new();
        for kv in kvs.into_iter().filter(|kv| ring.stale(&kv.value)) {
            let key = String::from_utf8_lossy(&kv.key).into_owned();
            let plain = ring.decrypt(&key, &kv.value).map_err(|e| e.to_string())?;
            let sealed = ring.encrypt(&key, &plain).map_err(|e| e.to_string())?;
            writes.push(replace(kv, sealed.unwrap_or(plain)));
        }
        let mut answers =
            futures::stream::iter(writes).map(|txn| store.txn(txn)).buffer_unordered(WRITES);
        while let Some(answer) = answers.next().await {
            written += usize::from(answer.map_err(told)?.succeeded);
        }
    }
    Ok(written)
}

fn replace(kv: KeyValue, value: Bytes) -> Txn {
    let compare = Compare {
        range: KeyRange::key(kv.key.clone()),
        target: Target::ModRevision(kv.mod_revision.0),
        ordering: Ordering::Equal,
    };
    let put = Op::Put { key: kv.key, value, lease: kv.lease, prev_kv: false };
    Txn {
        compare: vec![compare],
        success: vec![put],
        failure: Vec::new(),
        durability: Durability::Synced,
    }
}

/// All Secrets, some at a time, each page as new as the moment it is read.
struct Pages<'a> {
    store: &'a Arc<dyn Backend>,
    /// What is left; `None` at the end.
    range: Option<KeyRange>,
}

impl<'a> Pages<'a> {
    async fn begin(store: &'a Arc<dyn Backend>) -> Result<Self, StoreError> {
        store.quiet_barrier().await?;
        let range = KeyRange::prefix(Bytes::from_static(SECRETS.as_bytes()));
        Ok(Self { store, range: Some(range) })
    }

    async fn next(&mut self) -> Result<Option<Vec<KeyValue>>, StoreError> {
        let Some(mut range) = self.range.take() else { return Ok(None) };
        let request = RangeRequest {
            range: range.clone(),
            revision: None,
            limit: PAGE,
            keys_only: false,
            count_only: false,
        };
        let kvs = self.store.range(request).await?.kvs;
        if let Some(last) = kvs.last().filter(|_| kvs.len() >= PAGE) {
            let mut after = last.key.to_vec();
            after.push(0);
            range.start = after.into();
            self.range = Some(range);
        }
        Ok(Some(kvs))
    }
}
