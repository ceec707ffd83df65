//! Counts and rewrites values with an outdated key or provider, and checks that the keys decrypt
//! all values.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use api::Gvr;
use bytes::Bytes;
use futures::StreamExt as _;
use serde::{Deserialize, Serialize};
use store::{
    Backend, Compare, Durability, KeyRange, KeyValue, Op, Ordering, RangeRequest, StoreError,
    Target, Txn,
};

use super::{Error, Keys, is_encrypted};
use crate::transformer::{TransformError, Transformer};

/// The prefix of Secrets in the store.
const SECRETS: &str = "/registry/secrets/";
/// The number of values per page: at most 1.5 MB each, and usually small.
const PAGE: usize = 200;
/// The number of concurrent writes, which share fsyncs of the disk.
const WRITES: usize = 16;

/// The number of Secrets.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Count {
    /// All Secrets.
    pub total: usize,
    /// Those that are not stored as they would be written now.
    pub stale: usize,
}

/// Counts all and stale Secrets.
///
/// # Errors
/// Errors of the store.
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

/// Encrypted values that no key decrypts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unopened {
    /// The storage key of the first one.
    pub key: String,
    /// The cause.
    pub why: String,
}

/// The provider and key of an encrypted value: its prefix up to the fifth colon.
fn sealed_by(value: &[u8]) -> Vec<u8> {
    let head = value.get(..96.min(value.len())).unwrap_or_default();
    head.split_inclusive(|byte| *byte == b':').take(5).flatten().copied().collect()
}

/// The result of checking keys against values.
#[derive(Debug, Default)]
struct KeyCheck {
    opened: BTreeSet<Vec<u8>>,
    failed: BTreeMap<Vec<u8>, Unopened>,
}

impl KeyCheck {
    /// A key is good once it decrypts one value: other failures under it are damaged values.
    fn add(&mut self, key: &str, value: &Bytes, open: impl FnOnce() -> Result<(), TransformError>) {
        // A KMS plugin may not be available yet.
        if !is_encrypted(value) || value.starts_with(KMS) {
            return;
        }
        let head = sealed_by(value);
        if self.opened.contains(&head) {
            return;
        }
        match open() {
            Ok(()) => {
                self.failed.remove(&head);
                self.opened.insert(head);
            }
            Err(error) => {
                let unopened = || Unopened { key: key.to_owned(), why: error.to_string() };
                self.failed.entry(head).or_insert_with(unopened);
            }
        }
    }
}

/// The prefix of values encrypted by a KMS.
const KMS: &[u8] = b"k8s:enc:kms:";

/// Finds Secrets that `transformer` has no key for, when a server starts; `None` if it has all
/// keys.
///
/// # Errors
/// Errors of the store.
pub async fn unopened(
    store: &Arc<dyn Backend>,
    transformer: &dyn Transformer,
) -> Result<Option<Unopened>, StoreError> {
    let resource = Gvr::new("", "v1", "secrets");
    let mut check = KeyCheck::default();
    let mut pages = Pages::begin(store).await?;
    while let Some(kvs) = pages.next().await? {
        for kv in kvs {
            let key = String::from_utf8_lossy(&kv.key);
            let open = || transformer.open(&resource, &key, &kv.value).map(drop);
            check.add(&key, &kv.value, open);
        }
    }
    Ok(check.failed.into_values().next())
}

/// Stale Secrets cannot be rewritten.
#[derive(Debug, thiserror::Error)]
pub enum RewriteError {
    /// An error of the store.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A value cannot be decrypted or encrypted.
    #[error(transparent)]
    Value(#[from] Error),
}

/// Rewrites every stale Secret, unless it has changed since it was read, because the writer used
/// the newest key; returns the number of rewritten Secrets.
///
/// # Errors
/// Errors of the store, or the key whose value cannot be decrypted. Rewritten values are kept.
pub async fn rewrite_stale(store: &Arc<dyn Backend>, keys: &Keys) -> Result<usize, RewriteError> {
    let ring = keys.ring();
    let mut written = 0;
    let mut pages = Pages::begin(store).await?;
    while let Some(kvs) = pages.next().await? {
        let mut writes = Vec::new();
        for kv in kvs.into_iter().filter(|kv| ring.stale(&kv.value)) {
            let key = String::from_utf8_lossy(&kv.key).into_owned();
            let plain = ring.decrypt(&key, &kv.value)?;
            let sealed = ring.encrypt(&key, &plain)?;
            writes.push(replace(kv, sealed.unwrap_or(plain)));
        }
        let mut answers =
            futures::stream::iter(writes).map(|txn| store.txn(txn)).buffer_unordered(WRITES);
        while let Some(answer) = answers.next().await {
            written += usize::from(answer?.succeeded);
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
        separable: false,
    }
}

/// All Secrets, page by page; each page is read at its own revision.
struct Pages<'a> {
    store: &'a Arc<dyn Backend>,
    /// The rest; `None` at the end.
    range: Option<KeyRange>,
}

impl<'a> Pages<'a> {
    async fn begin(store: &'a Arc<dyn Backend>) -> Result<Self, StoreError> {
        store.read_index().await?;
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

#[cfg(test)]
mod tests {
    use super::super::Ring;
    use super::*;

    #[test]
    fn a_key_is_missing_if_it_decrypts_none_of_its_values() {
        let (own, other) = (Ring::new().unwrap(), Ring::new().unwrap());
        let seal = |ring: &Ring, key: &str| ring.encrypt(key, b"{}").unwrap().unwrap();
        let mut damaged = seal(&own, "/registry/secrets/n/a").to_vec();
        if let Some(last) = damaged.last_mut() {
            *last ^= 1;
        }
        let unopened = |values: &[(&str, Bytes)]| {
            let mut check = KeyCheck::default();
            for (key, value) in values {
                let open = || own.decrypt(key, value).map(drop).map_err(TransformError::new);
                check.add(key, value, open);
            }
            check.failed.into_values().next().map(|unopened| unopened.key)
        };
        let (a, b) = ("/registry/secrets/n/a", "/registry/secrets/n/b");
        assert_eq!(unopened(&[(a, Bytes::from("{}"))]), None, "not sealed");
        assert_eq!(unopened(&[(a, Bytes::from("k8s:enc:kms:v2:x:y"))]), None, "a plugin's");
        assert_eq!(unopened(&[(a, damaged.into()), (b, seal(&own, b))]), None, "one is damaged");
        assert_eq!(unopened(&[(a, seal(&other, a)), (b, seal(&other, b))]), Some(a.to_owned()));
        let unknown = Bytes::from("k8s:enc:aesgcm:v1:gone:x");
        assert_eq!(unopened(&[(a, seal(&own, a)), (b, unknown)]), Some(b.to_owned()));
    }
}
