//! The keys file and the active ring.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use api::Gvr;
use arc_swap::ArcSwap;
use base::pki;
use bytes::Bytes;
use tokio::sync::RwLock;

use crate::key_ring::{Error, Ring};
use crate::transformer::{Opened, TransformError, Transformer};

/// How long a change waits for pending writes with the former keys; a store that blocks longer has
/// other problems.
const WRITES_MAX: Duration = Duration::from_secs(20);

/// The keys file cannot be written.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// An error of the file system.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// The thread that writes the file panicked.
    #[error(transparent)]
    Panicked(#[from] tokio::task::JoinError),
}

/// A ring does not become active; nothing is changed.
#[derive(Debug, thiserror::Error)]
pub enum AdoptError {
    /// Writes with the former keys do not complete.
    #[error("writes that are under way do not end, the store may have no leader")]
    PendingWrites,
    /// The active ring is newer.
    #[error("the keys were changed meanwhile (generation {own}, not before {given})")]
    Outdated {
        /// The generation of the active ring.
        own: u64,
        /// The generation of the given ring.
        given: u64,
    },
    /// The keys file cannot be written.
    #[error(transparent)]
    Write(#[from] WriteError),
}

/// The resources that are encrypted; more require a configuration file.
fn covers(resource: &Gvr) -> bool {
    resource.group.is_empty() && resource.resource.as_ref() == "secrets"
}

/// The number of dropped keys that are kept for older snapshots: one per rotation.
const FORMER_MAX: usize = 16;

fn former_of(path: &Path) -> PathBuf {
    path.with_extension("former")
}

/// Prepends dropped keys to those dropped before.
fn keep_former(path: &Path, dropped: &str) -> std::io::Result<()> {
    if dropped.is_empty() {
        return Ok(());
    }
    let path = former_of(path);
    let before = if path.exists() { base::fs::read_to_string(&path)? } else { String::new() };
    let mut lines: Vec<&str> = Vec::new();
    for line in dropped.lines().chain(before.lines()) {
        if !lines.contains(&line) && lines.len() < FORMER_MAX {
            lines.push(line);
        }
    }
    base::fs::write_atomic(&path, (lines.join("\n") + "\n").as_bytes(), 0o600)
}

/// The keys of a server, replaceable at run time.
pub struct Keys {
    path: PathBuf,
    current: ArcSwap<Ring>,
    /// Writers hold it while a value that they encrypted is being written; a change takes it
    /// exclusively. After a change, no write follows that used the former keys.
    gate: Arc<RwLock<()>>,
    /// The file was missing and has not been written since: no value is encrypted with these keys
    /// yet.
    unsaved: AtomicBool,
}

impl Keys {
    /// Loads the keys from this file (mode 0600, see [`Ring::render`]); creates it with one random
    /// key if it is missing.
    ///
    /// # Errors
    /// If the file cannot be read, written or parsed.
    pub fn load_or_create(path: &Path) -> Result<Self, Error> {
        let make = || Ring::new().map(|ring| ring.render()).map_err(|e| e.to_string());
        let text = pki::ensure_secret(path, make)?;
        let ring = Ring::parse(&text, &path.display().to_string())?;
        Ok(Self::with(path, ring, false))
    }

    /// Loads the keys from this file. If it is missing, generates one random key that
    /// [`Keys::save`] writes: a store with encrypted values needs its former keys, and an existing
    /// file would be mistaken for them at the next start.
    ///
    /// # Errors
    /// If the file cannot be read or parsed.
    pub fn load_or_generate(path: &Path) -> Result<Self, Error> {
        if path.exists() {
            return Self::load_or_create(path);
        }
        let ring = Ring::new().map_err(|why| {
            pki::Error::Io(std::io::Error::other(format!("{}: {why}", path.display())))
        })?;
        Ok(Self::with(path, ring, true))
    }

    fn with(path: &Path, ring: Ring, unsaved: bool) -> Self {
        Self {
            path: path.to_owned(),
            current: ArcSwap::from_pointee(ring),
            gate: Arc::default(),
            unsaved: AtomicBool::new(unsaved),
        }
    }

    /// The path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the keys were generated because the file is missing, and are not saved.
    pub fn is_unsaved(&self) -> bool {
        self.unsaved.load(Ordering::Acquire)
    }

    /// Writes generated keys to the file.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub async fn save(&self) -> Result<(), WriteError> {
        if !self.is_unsaved() {
            return Ok(());
        }
        let (path, text) = (self.path.clone(), self.ring().render());
        let write = move || base::fs::write_atomic(&path, text.as_bytes(), 0o600);
        base::tasks::blocking(write).await??;
        self.unsaved.store(false, Ordering::Release);
        Ok(())
    }

    /// The active ring and the dropped keys (`encryption.former` in the same directory): for older
    /// snapshots.
    ///
    /// # Errors
    /// If that file cannot be read or parsed.
    pub fn with_former(&self) -> Result<Ring, Error> {
        let path = former_of(&self.path);
        if !path.exists() {
            return Ok(Ring::clone(&self.ring()));
        }
        let text =
            base::SecretValue::from(base::fs::read_to_string(&path).map_err(pki::Error::from)?);
        Ok(self.ring().with_keys_of(&Ring::parse(&text, &path.display().to_string())?))
    }

    /// The active ring.
    pub fn ring(&self) -> Arc<Ring> {
        self.current.load_full()
    }

    /// Writes the file and activates `ring`, after all writes with the former ring. Adopting the
    /// active ring is no change.
    ///
    /// # Errors
    /// If the ring is outdated or the file cannot be written.
    pub async fn adopt(&self, ring: Ring) -> Result<(), AdoptError> {
        let gate = tokio::time::timeout(WRITES_MAX, self.gate.write()).await;
        let _guard = gate.map_err(|_| AdoptError::PendingWrites)?;
        let own = self.ring();
        if own.hash() == ring.hash() {
            return Ok(());
        }
        if !self.is_unsaved() && own.generation() >= ring.generation() {
            let (own, given) = (own.generation(), ring.generation());
            return Err(AdoptError::Outdated { own, given });
        }
        // Nothing was encrypted with generated keys.
        let dropped = if self.is_unsaved() { String::new() } else { own.dropped(&ring) };
        let (path, text) = (self.path.clone(), ring.render());
        let written = base::tasks::blocking(move || {
            keep_former(&path, &dropped)?;
            base::fs::write_atomic(&path, text.as_bytes(), 0o600)
        });
        written.await.map_err(WriteError::from)?.map_err(WriteError::from)?;
        tracing::info!(
            active = ring.active().unwrap_or("identity"),
            inactive = ?ring.inactive(),
            stage = ring.stage().name(),
            "changed the keys of encryption at rest"
        );
        self.current.store(Arc::new(ring));
        self.unsaved.store(false, Ordering::Release);
        Ok(())
    }
}

impl std::fmt::Debug for Keys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Keys").field(&*self.ring()).finish()
    }
}

impl Transformer for Keys {
    fn covers(&self, resource: &Gvr) -> bool {
        covers(resource)
    }

    fn gate(&self, resource: &Gvr) -> Option<Arc<RwLock<()>>> {
        covers(resource).then(|| Arc::clone(&self.gate))
    }

    fn seal(&self, resource: &Gvr, key: &str, plain: &Bytes) -> Result<Bytes, TransformError> {
        if !covers(resource) {
            return Ok(plain.clone());
        }
        let sealed = self.ring().encrypt(key, plain).map_err(TransformError::new)?;
        Ok(sealed.unwrap_or_else(|| plain.clone()))
    }

    fn open(&self, resource: &Gvr, key: &str, stored: &Bytes) -> Result<Opened, TransformError> {
        let ring = self.ring();
        let plain = ring.decrypt(key, stored).map_err(TransformError::new)?;
        Ok(Opened { plain, stale: covers(resource) && ring.stale(stored) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key_ring::{Next, Wish};
    use std::os::unix::fs::PermissionsExt as _;

    #[tokio::test]
    async fn the_file_is_private_and_written_before_a_ring_becomes_active() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("keys");
        let keys = Keys::load_or_create(&path).unwrap();
        let mode = || std::fs::metadata(&path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(), 0o600);
        let secrets = Gvr::new("", "v1", "secrets");
        let value = Bytes::from_static(b"x");
        let stored = keys.seal(&secrets, "/k", &value).unwrap();
        let again = Keys::load_or_create(&path).unwrap();
        let opened = again.open(&secrets, "/k", &stored).unwrap();
        assert_eq!((opened.plain, opened.stale), (value.clone(), false));
        let Next::Steps { prepared: Some(prepared), active, .. } =
            keys.ring().next(Wish::Rotate).unwrap()
        else {
            panic!("no steps")
        };
        // A pending write blocks a change.
        let gate = keys.gate(&secrets).unwrap();
        let held = gate.read().await;
        let mut change = std::pin::pin!(keys.adopt(prepared.clone()));
        assert!(futures::poll!(change.as_mut()).is_pending());
        assert_eq!(keys.ring().generation(), 0);
        drop(held);
        change.await.unwrap();
        keys.adopt(active.clone()).await.unwrap();
        assert_eq!(mode(), 0o600);
        assert_eq!(Keys::load_or_create(&path).unwrap().ring().hash(), active.hash());
        let opened = keys.open(&secrets, "/k", &stored).unwrap();
        assert_eq!((opened.plain, opened.stale), (value, true));
        assert!(
            keys.seal(&secrets, "/k", &stored).unwrap().starts_with(b"k8s:enc:aesgcm:v1:key2:")
        );
        assert_eq!(
            keys.adopt(prepared).await.unwrap_err().to_string(),
            "the keys were changed meanwhile (generation 2, not before 1)"
        );
        let former = || std::fs::read_to_string(path.with_extension("former")).unwrap_or_default();
        assert_eq!(former(), "");
        let Next::Steps { finished, .. } = keys.ring().next(Wish::Rotate).unwrap() else {
            panic!("no steps")
        };
        keys.adopt(finished).await.unwrap();
        assert!(former().starts_with("key1 ") && former().lines().count() == 1);
        assert!(keys.open(&secrets, "/k", &stored).is_err());
        assert_eq!(keys.with_former().unwrap().decrypt("/k", &stored).unwrap(), "x");
        let config_maps = Gvr::new("", "v1", "configmaps");
        assert_eq!(keys.seal(&config_maps, "/k", &stored).unwrap(), stored);
    }
}
