//! Opens and copies an etcd.

use std::fs::File;
use std::sync::Arc;

use base::Shutdown;
use base::tasks::{Kind, Tasks};
use proto::etcdserverpb as pb;
use tokio::sync::mpsc;
use tonic::Request;

use super::backend::{Counts, Etcd, newest};
use super::connection::Connections;
use super::endpoints::Endpoints;
use super::error::{CERTIFICATE_REQUIRED, EtcdError, advice};
use super::health::{EtcdStatus, HealthMonitor};
use super::lock::{LockError, ServerLock};
use super::snapshot::save;
use crate::contract::{Backend, SavedSnapshot};
use crate::external::config::{DatastoreTls, Holder};
use crate::external::etcd::client::{ANSWER, Client, into_message};
use crate::external::etcd::follower::Follower;

/// The oldest etcd with fragmented watch responses, which large changes need.
const OLDEST: (u32, u32) = (3, 4);
/// Capacity of the queue for the newest revision.
const ASKS_MAX: usize = 1024;

/// Errors of opening an etcd.
#[derive(Debug)]
pub(crate) enum EtcdOpenError {
    /// Another server holds the lock.
    Held(String),
    /// Any other error.
    Failed(String),
}

fn unusable(reason: String) -> EtcdOpenError {
    EtcdOpenError::Failed(match advice(&reason) {
        Some(advice) => format!("{reason}: {advice}"),
        None => reason,
    })
}

fn failed(error: &EtcdError) -> EtcdOpenError {
    unusable(error.to_string())
}

/// Connects, and refuses unsupported versions.
async fn connect(
    endpoints: Endpoints,
    tls: DatastoreTls,
    shutdown: Shutdown,
) -> Result<Client, EtcdOpenError> {
    let connections = Connections::connect(endpoints, tls).await;
    let connections = connections.map_err(|error| unusable(error.to_string()))?;
    let client = Client { connections: Arc::new(connections), observed: Arc::default(), shutdown };
    // Without retries, so that TLS errors are reported at once.
    let connection = client.connections.current().await;
    let mut maintenance = connection.maintenance();
    let received = maintenance.status(Request::new(pb::StatusRequest {}));
    let late =
        || EtcdError::NotApplied(format!("{} does not answer", client.connections.endpoints));
    let received = tokio::time::timeout(ANSWER, received).await.map_err(|_| failed(&late()))?;
    let version = into_message(received).map_err(|error| {
        match (&error, client.connections.endpoints.is_tls()) {
            // A member that refuses a certificate may close the connection before its alert is
            // read.
            (EtcdError::Unknown(reason) | EtcdError::NotApplied(reason), true)
                if advice(reason).is_none() =>
            {
                EtcdOpenError::Failed(format!("{reason}: it may be that {CERTIFICATE_REQUIRED}"))
            }
            _ => failed(&error),
        }
    })?;
    let version = version.version;
    let mut numbers = version.split('.').map(|part| part.parse::<u32>().unwrap_or_default());
    let numbers = (numbers.next().unwrap_or_default(), numbers.next().unwrap_or_default());
    if numbers < OLDEST {
        let (major, minor) = OLDEST;
        return Err(EtcdOpenError::Failed(format!(
            "its version is {version}; the oldest supported version is {major}.{minor}: upgrade \
             etcd"
        )));
    }
    Ok(client)
}

/// Opens an etcd, locked for `holder` if there is one.
///
/// # Errors
/// [`EtcdOpenError`].
pub(crate) async fn open(
    endpoints: Endpoints,
    tls: DatastoreTls,
    holder: Option<Holder>,
    tasks: &Tasks,
) -> Result<Arc<dyn Backend>, EtcdOpenError> {
    let name = endpoints.to_string();
    let shutdown = tasks.shutdown();
    let client = connect(endpoints, tls, shutdown.clone()).await?;
    tasks.spawn(
        Kind::Critical,
        "etcd connection",
        Arc::clone(&client.connections).keep_connected(shutdown.clone()),
    );
    client.newest().await.map_err(|error| failed(&error))?;
    let lock = match holder {
        Some(holder) => {
            let lock = ServerLock::new(client.clone(), holder);
            lock.acquire_or_wait().await.map_err(|reason| match reason {
                LockError::By(holder) => EtcdOpenError::Held(format!(
                    "{name} is in use by {holder}: only one server may write to it; the lock of a \
                     killed server expires after 20 s"
                )),
                LockError::Refused(error) => failed(&error),
            })?;
            Some(lock)
        }
        None => None,
    };
    let revision = client.newest().await.map_err(|error| failed(&error))?;
    let follower = Arc::new(Follower::new(client.clone(), revision));
    let health = Arc::new(HealthMonitor {
        client: client.clone(),
        follower: Arc::clone(&follower),
        lock,
        etcd_status: EtcdStatus::default().into(),
        status_unavailable: false.into(),
    });
    health.refresh_status(true).await;
    let (requests, received) = mpsc::channel(ASKS_MAX);
    tasks.spawn(Kind::Critical, "etcd watch", follower.run(shutdown.clone()));
    tasks.spawn(Kind::Critical, "etcd revision", newest(client, received));
    tasks.spawn(Kind::Critical, "datastore", Arc::clone(&health).run(shutdown.clone()));
    tracing::info!(etcd = name, revision, "the external etcd is open");
    Ok(Arc::new(Etcd { health, requests, counts: Counts::default(), tasks: tasks.clone() }))
}

/// Copies all data of an etcd into an empty file, as a snapshot; others may continue to write.
///
/// # Errors
/// [`EtcdOpenError`].
pub(crate) async fn snapshot(
    endpoints: Endpoints,
    tls: DatastoreTls,
    file: File,
) -> Result<SavedSnapshot, EtcdOpenError> {
    let shutdown = Shutdown::new();
    let client = connect(endpoints, tls, shutdown.clone()).await?;
    let copy = async {
        // Reports errors such as missing permissions with advice.
        client.newest().await.map_err(|error| failed(&error))?;
        let saved = save(&client, file).await;
        saved.map_err(|error| EtcdOpenError::Failed(format!("its snapshot: {error}")))
    };
    let connections = Arc::clone(&client.connections).keep_connected(shutdown);
    tokio::select! {
        copied = copy => copied,
        // It runs until shutdown.
        _ = connections => Err(EtcdOpenError::Failed("the connection was closed".to_owned())),
    }
}
