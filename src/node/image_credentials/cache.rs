//! The cache of one credential provider: its keys, and when its credentials expire.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::docker_config::DockerConfig;
use super::keyring::ObjectCoordinates;

/// The base key of credentials for all images. No image has such a name.
pub(super) const GLOBAL: &str = "<global>";
/// How often expired credentials are removed.
const PURGE_EVERY: Duration = Duration::from_secs(15 * 60);
/// Maximum number of credentials of one provider: more than the images of a node.
const SIZE_MAX: usize = 4096;

/// A text is longer than a key can contain.
#[derive(Debug, thiserror::Error)]
#[error("pending child length {0} exceeds 2-byte length prefix")]
pub(super) struct KeyTooLong(usize);

/// A key of several texts, each with its length, so that no two lists of texts have the same key.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct CacheKey(Vec<u8>);

impl CacheKey {
    fn add(mut self, text: &[u8]) -> Result<Self, KeyTooLong> {
        let length = u16::try_from(text.len()).map_err(|_| KeyTooLong(text.len()))?;
        self.0.extend(length.to_be_bytes());
        self.0.extend(text);
        Ok(self)
    }

    fn add_annotations(
        mut self,
        annotations: &BTreeMap<String, String>,
    ) -> Result<Self, KeyTooLong> {
        let count = u32::try_from(annotations.len()).map_err(|_| KeyTooLong(annotations.len()))?;
        self.0.extend(count.to_be_bytes());
        for (key, value) in annotations {
            self = self.add(key.as_bytes())?.add(value.as_bytes())?;
        }
        Ok(self)
    }

    /// The key of a service account with its annotations, and of its token by the hash of that.
    pub(super) fn of_account(
        account: &ObjectCoordinates,
        annotations: &BTreeMap<String, String>,
        token_hash: Option<&str>,
    ) -> Result<Self, KeyTooLong> {
        let key = Self::default()
            .add(account.namespace.as_bytes())?
            .add(account.name.as_bytes())?
            .add(account.uid.as_bytes())?
            .add_annotations(annotations)?;
        match token_hash {
            Some(hash) => key.add(b"token")?.add(hash.as_bytes()),
            None => Ok(key),
        }
    }

    /// The key of an image, a registry or [`GLOBAL`] for an account, which may be empty.
    pub(super) fn of_credentials(base: &str, account: &Self) -> Result<Self, KeyTooLong> {
        Self::default().add(base.as_bytes())?.add(&account.0)
    }

    /// The key of calls that are merged.
    pub(super) fn of_call(
        image: &str,
        token_hash: &str,
        annotations: &BTreeMap<String, String>,
    ) -> Result<Self, KeyTooLong> {
        let key = Self::default().add(image.as_bytes())?.add(token_hash.as_bytes())?;
        key.add_annotations(annotations)
    }
}

/// The first part of the name of an image: its registry.
pub(super) fn registry_of(image: &str) -> &str {
    image.split('/').next().unwrap_or_default()
}

/// The credentials of one provider until they expire.
#[derive(Debug)]
pub(super) struct CredentialCache {
    entries: HashMap<CacheKey, (Instant, Arc<DockerConfig>)>,
    purged: Instant,
}

impl CredentialCache {
    pub(super) fn new(now: Instant) -> Self {
        Self { entries: HashMap::new(), purged: now }
    }

    /// The credentials for an image: its own, those of its registry, or those for all images.
    pub(super) fn get(
        &mut self,
        image: &str,
        account: &CacheKey,
        now: Instant,
    ) -> Result<Option<Arc<DockerConfig>>, KeyTooLong> {
        if now > self.purged + PURGE_EVERY {
            self.purge(now);
        }
        for base in [image, registry_of(image), GLOBAL] {
            let key = CacheKey::of_credentials(base, account)?;
            if let Some((expires, found)) = self.entries.get(&key) {
                if now <= *expires {
                    return Ok(Some(Arc::clone(found)));
                }
                self.entries.remove(&key);
            }
        }
        Ok(None)
    }

    /// Adds credentials until `expires`; in a full cache, those that expire first make place.
    pub(super) fn insert(
        &mut self,
        key: CacheKey,
        credentials: Arc<DockerConfig>,
        expires: Instant,
        now: Instant,
    ) {
        if self.entries.len() >= SIZE_MAX {
            self.purge(now);
        }
        if self.entries.len() >= SIZE_MAX {
            let first = self.entries.iter().min_by_key(|(_, (expires, _))| *expires);
            if let Some(first) = first.map(|(key, _)| key.clone()) {
                self.entries.remove(&first);
            }
        }
        self.entries.insert(key, (expires, credentials));
    }

    fn purge(&mut self, now: Instant) {
        self.entries.retain(|_, (expires, _)| now <= *expires);
        self.purged = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn account(name: &str) -> ObjectCoordinates {
        let (uid, namespace) = ("u".to_owned(), "n".to_owned());
        ObjectCoordinates { uid, namespace, name: name.to_owned() }
    }

    #[test]
    fn different_accounts_annotations_and_tokens_have_different_keys() {
        let none = BTreeMap::new();
        let some: BTreeMap<String, String> =
            [("a", "1"), ("b", "2")].map(|(k, v)| (k.to_owned(), v.to_owned())).into();
        let keys = [
            CacheKey::default(),
            CacheKey::of_account(&account("x"), &none, None).unwrap(),
            CacheKey::of_account(&account("y"), &none, None).unwrap(),
            CacheKey::of_account(&account("x"), &some, None).unwrap(),
            CacheKey::of_account(&account("x"), &some, Some("sha256:0")).unwrap(),
        ];
        let mut all = std::collections::HashSet::new();
        for key in &keys {
            for base in ["r.io/a", "r.io", GLOBAL] {
                assert!(all.insert(CacheKey::of_credentials(base, key).unwrap()));
            }
        }
        let plain = CacheKey::of_credentials("r.io", &CacheKey::default()).unwrap();
        assert_eq!(plain.0, b"\0\x04r.io\0\0");
        let long = "x".repeat(70_000);
        assert!(CacheKey::of_credentials(&long, &CacheKey::default()).is_err());
    }

    #[test]
    fn credentials_are_found_until_they_expire() {
        let start = base::clock::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        let (mut cache, none) = (CredentialCache::new(start), CacheKey::default());
        let found = Arc::new(DockerConfig::new());
        for (base, seconds) in [("r.io/a", 10), ("r.io", 20), (GLOBAL, 3000)] {
            let key = CacheKey::of_credentials(base, &none).unwrap();
            cache.insert(key, Arc::clone(&found), after(seconds), start);
        }
        let mut has = |image: &str, at| cache.get(image, &none, at).unwrap().is_some();
        assert!(has("r.io/a", after(10)) && has("r.io/b", after(20)) && has("q.io/a", after(20)));
        assert!(has("r.io/a", after(21)) && !has("r.io/a", after(3001)));
    }

    #[test]
    fn expired_credentials_are_purged_every_quarter_of_an_hour() {
        let start = base::clock::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        let (mut cache, none) = (CredentialCache::new(start), CacheKey::default());
        let key = CacheKey::of_credentials("r.io/a", &none).unwrap();
        cache.insert(key, Arc::default(), after(1), start);
        assert!(cache.get("q.io/b", &none, after(900)).unwrap().is_none());
        assert_eq!(cache.entries.len(), 1);
        assert!(cache.get("q.io/b", &none, after(901)).unwrap().is_none());
        assert_eq!(cache.entries.len(), 0);
    }
}
