//! Requests of the controller to create, enlarge, copy and delete volumes. A request that takes
//! long goes on when its caller no longer waits; the next one of the same content joins it.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use api::local_driver::{ContentSource, Stored, VolumeRequest};
use base::{Kind, Shutdown};
use parking_lot::Mutex;
use sorting::CompactSort as _;
use tokio::sync::watch;

use super::LocalDriver;
use super::error::LocalDriverError;
use super::store::{Store, StoredKind};

/// How long a request waits for its end; less than the timeouts of proxies and clients.
const WAIT: Duration = Duration::from_secs(20);
/// How long a request to delete a volume waits for the kubelet, which unmounts volumes after their
/// pods have ended.
const RELEASE_WAIT: Duration = Duration::from_secs(15);
/// Requests that run at a time: each takes a thread.
const RUNNING_MAX: usize = 16;

/// What is requested.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Action {
    Create(VolumeRequest),
    /// The size in bytes.
    Grow(u64),
    /// Makes a snapshot of the volume with this name.
    Snapshot(String),
    Delete(StoredKind),
}

type Outcome = Option<Result<Option<Stored>, LocalDriverError>>;

#[derive(Debug)]
struct RunningRequest {
    action: Action,
    outcome: watch::Receiver<Outcome>,
}

/// The requests that run, by the names of what they act on.
#[derive(Debug, Default)]
pub(super) struct RunningRequests(Mutex<HashMap<String, RunningRequest>>);

impl Action {
    /// The names of the volumes that nothing else may use meanwhile, in order.
    fn volumes(&self, name: &str) -> Vec<String> {
        let mut names = vec![name.to_owned()];
        match self {
            Self::Create(VolumeRequest { source: Some(ContentSource::Volume(of)), .. })
            | Self::Snapshot(of) => names.push(of.clone()),
            _ => {}
        }
        names.compact_sort();
        names.dedup();
        names
    }

    fn run(
        &self,
        name: &str,
        store: &Store,
        stop: &Shutdown,
    ) -> Result<Option<Stored>, LocalDriverError> {
        let record = match self {
            Self::Create(request) => store.create(name, request, stop)?,
            Self::Grow(size) => store.grow(name, *size)?,
            Self::Snapshot(volume) => store.snapshot(name, volume, stop)?,
            Self::Delete(kind) => return store.delete(*kind, name).map(|()| None),
        };
        Ok(Some(record.stored()))
    }
}

impl LocalDriver {
    /// Runs a request about the volume or snapshot `name`; idempotent.
    ///
    /// # Errors
    ///
    /// The node cannot do it, or has not done it yet.
    pub(crate) async fn request(
        self: &Arc<Self>,
        name: &str,
        action: Action,
    ) -> Result<Option<Stored>, LocalDriverError> {
        let mut outcome = self.begin(name, action)?;
        let ended = tokio::time::timeout(WAIT, outcome.wait_for(Option::is_some)).await;
        match ended {
            Ok(Ok(outcome)) => (*outcome).clone().unwrap_or(Err(LocalDriverError::Stopped)),
            Ok(Err(_)) => Err(LocalDriverError::Stopped),
            Err(_) => Err(LocalDriverError::InProgress(name.to_owned())),
        }
    }

    /// Starts a request, or joins the same one.
    fn begin(
        self: &Arc<Self>,
        name: &str,
        action: Action,
    ) -> Result<watch::Receiver<Outcome>, LocalDriverError> {
        let mut running = self.requests.0.lock();
        if let Some(known) = running.get(name) {
            return match known.action == action {
                true => Ok(known.outcome.clone()),
                false => Err(LocalDriverError::InProgress(name.to_owned())),
            };
        }
        if running.len() >= RUNNING_MAX {
            return Err(LocalDriverError::InProgress("other volumes".to_owned()));
        }
        let (sender, outcome) = watch::channel(None);
        let request = RunningRequest { action: action.clone(), outcome: outcome.clone() };
        running.insert(name.to_owned(), request);
        let (driver, name) = (Arc::clone(self), name.to_owned());
        self.tasks.spawn(Kind::Request, "local-driver", async move {
            let result = driver.run(&name, action).await;
            driver.requests.0.lock().remove(&name);
            let _ = sender.send(Some(result));
            Ok::<(), Infallible>(())
        });
        Ok(outcome)
    }

    /// Runs a request; one to delete a volume waits until the kubelet has released it.
    async fn run(&self, name: &str, action: Action) -> Result<Option<Stored>, LocalDriverError> {
        let end = base::clock::now() + RELEASE_WAIT;
        loop {
            let unstaged = self.unstaged.notified();
            let done = self.attempt(name, action.clone()).await;
            if !matches!(done, Err(LocalDriverError::InUse(_)))
                || tokio::time::timeout_at(end, unstaged).await.is_err()
            {
                return done;
            }
        }
    }

    async fn attempt(
        &self,
        name: &str,
        action: Action,
    ) -> Result<Option<Stored>, LocalDriverError> {
        // In the same order everywhere, so that two requests never wait for each other.
        let mut locks = Vec::new();
        for volume in action.volumes(name) {
            locks.push(self.locks.lock(volume).await);
        }
        let (store, stop) = (Arc::clone(&self.store), self.tasks.shutdown().clone());
        let name = name.to_owned();
        super::blocking(move || action.run(&name, &store, &stop)).await
    }
}

#[cfg(test)]
mod tests {
    use api::local_driver::VolumeMode;
    use base::Tasks;

    use super::*;

    fn request(source: Option<ContentSource>) -> VolumeRequest {
        VolumeRequest { size: 1, mode: VolumeMode::Loop, fs_type: None, source }
    }

    #[test]
    fn a_copy_holds_its_source_in_one_order() {
        let of = |name: &str| Some(ContentSource::Volume(name.to_owned()));
        assert_eq!(Action::Create(request(None)).volumes("pvc-b"), ["pvc-b"]);
        let copy = Action::Create(request(of("pvc-a")));
        assert_eq!(copy.volumes("pvc-b"), ["pvc-a", "pvc-b"]);
        assert_eq!(copy.volumes("pvc-a"), ["pvc-a"]);
        let snapshot = Action::Snapshot("pvc-a".to_owned());
        assert_eq!(snapshot.volumes("snapshot-s"), ["pvc-a", "snapshot-s"]);
    }

    #[tokio::test]
    async fn requests_about_one_volume_run_one_after_the_other() {
        let home = tempfile::tempdir().unwrap();
        let driver = LocalDriver::new("n", home.path(), &Tasks::new(Shutdown::new()));
        let create = Action::Create(request(None));
        let held = driver.locks.lock("pvc-a".to_owned()).await;
        let mut first = driver.begin("pvc-a", create.clone()).unwrap();
        assert!(driver.begin("pvc-a", create.clone()).is_ok(), "joins the first one");
        let other = driver.begin("pvc-a", Action::Grow(1));
        assert!(matches!(other, Err(LocalDriverError::InProgress(_))));
        drop(held);
        let made = first.wait_for(Option::is_some).await.unwrap().clone().unwrap().unwrap();
        assert_eq!(driver.request("pvc-a", create).await.unwrap(), made);
        let deleted = driver.request("pvc-a", Action::Delete(StoredKind::Volume)).await;
        assert_eq!(deleted.unwrap(), None);
        assert!(driver.requests.0.lock().is_empty());
    }
}
