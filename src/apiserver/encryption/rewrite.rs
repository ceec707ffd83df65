//! Counts and rewrites values sealed with an outdated key or provider, and checks whether the keys open what is sealed.

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

use super::{Keys, is_encrypted};
use crate::registry::storage::Transformer;

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

/// Sealed values of one kind that no key opens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unopened {
    /// The first one's key in the store.
    pub key: String,
    /// The cause.
    pub why: String,
}

/// Which provider and key sealed a value: its head up to the fifth colon.
fn sealed_by(value: &[u8]) -> Vec<u8> {
    let head = value.get(..96.min(value.len())).unwrap_or_default();
    head.split_inclusive(|byte| *byte == b':').take(5).flatten().copied().collect()
}

/// What is known of the keys after some values.
#[derive(Debug, Default)]
struct KeyCheck {
    opened: BTreeSet<Vec<u8>>,
    failed: BTreeMap<Vec<u8>, Unopened>,
}

impl KeyCheck {
    /// A key is good once it opens one value: others under it are damaged by themselves.
    fn add(&mut self, key: &str, value: &Bytes, open: impl FnOnce() -> Result<(), String>) {
        // A plugin of a KMS may not answer yet.
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
            Err(why) => {
                let unopened = || Unopened { key: key.to_owned(), why };
                self.failed.entry(head).or_insert_with(unopened);
            }
        }
    }
}

/// What values sealed by a KMS begin with.
const KMS: &[u8] = b"k8s:enc:kms:";

/// Secrets whose key `transformer` does not have, for a server that starts; `None` when it has all keys.
///
/// # Errors
/// The store's.
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
        separable: false,
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
    fn a_key_is_missing_when_it_opens_none_of_its_values() {
        let (own, other) = (Ring::new().unwrap(), Ring::new().unwrap());
        let seal = |ring: &Ring, key: &str| ring.encrypt(key, b"{}").unwrap().unwrap();
        let mut damaged = seal(&own, "/registry/secrets/n/a").to_vec();
        if let Some(last) = damaged.last_mut() {
            *last ^= 1;
        }
        let unopened = |values: &[(&str, Bytes)]| {
            let mut check = KeyCheck::default();
            for (key, value) in values {
                let open = || own.decrypt(key, value).map(drop).map_err(|e| e.to_string());
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
