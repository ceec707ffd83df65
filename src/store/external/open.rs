//! Opens and copies external datastores.

use std::fs::File;
use std::sync::Arc;

use base::Tasks;

use super::config::{DatastoreError, Holder};
use super::endpoint::{DatastoreKind, Endpoint};
use super::{etcd, sql};
use crate::contract::{Backend, SavedSnapshot};
use crate::mvcc::State;

/// Opens an external datastore and holds its exclusive lock until `tasks` shuts down; `tasks` must
/// shut down after all writers. Missing tables of a database, in kine's schema, are created. An
/// etcd is locked by a key that names `holder`; without a holder it is not locked, because upstream
/// API servers share theirs.
///
/// # Errors
/// [`DatastoreError`]; it names the current holder.
pub async fn open_external(
    endpoint: Endpoint,
    holder: Option<Holder>,
    tasks: &Tasks,
) -> Result<Arc<dyn Backend>, DatastoreError> {
    let name = endpoint.to_string();
    match endpoint.kind {
        DatastoreKind::Etcd(place) => {
            let opened = etcd::open(place, endpoint.tls, holder, tasks).await;
            opened.map_err(|why| datastore_error(name, why))
        }
        DatastoreKind::Sql(_) => sql::open(endpoint, tasks).await,
    }
}

/// Reads a database as of one moment without changing it; a k3s may continue to write. An etcd is
/// copied by [`copy_etcd`].
///
/// # Errors
/// [`DatastoreError`].
pub(crate) async fn read_external(endpoint: &Endpoint) -> Result<State, DatastoreError> {
    match &endpoint.kind {
        DatastoreKind::Etcd(_) => Err(DatastoreError::Unusable {
            endpoint: endpoint.to_string(),
            why: "an etcd must be copied by a snapshot".to_owned(),
        }),
        DatastoreKind::Sql(_) => sql::read(endpoint).await,
    }
}

/// Copies all data of an etcd into an empty file, as `etcdctl snapshot save` does; others may
/// continue to write.
///
/// # Errors
/// [`DatastoreError`].
pub async fn copy_etcd(endpoint: &Endpoint, file: File) -> Result<SavedSnapshot, DatastoreError> {
    let name = endpoint.to_string();
    match &endpoint.kind {
        DatastoreKind::Etcd(place) => {
            let copied = etcd::snapshot(place.clone(), endpoint.tls.clone(), file).await;
            copied.map_err(|why| datastore_error(name, why))
        }
        DatastoreKind::Sql(_) => {
            Err(DatastoreError::Unusable { endpoint: name, why: "it is not an etcd".to_owned() })
        }
    }
}

fn datastore_error(endpoint: String, why: etcd::EtcdOpenError) -> DatastoreError {
    match why {
        etcd::EtcdOpenError::Held(holder) => DatastoreError::Held(holder),
        etcd::EtcdOpenError::Failed(why) => DatastoreError::Unusable { endpoint, why },
    }
}
