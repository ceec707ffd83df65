//! External datastores: which there are, and how they are opened and copied.

use std::fs::File;
use std::sync::Arc;

use base::Tasks;

use super::config::{DatastoreError, Holder};
use super::endpoint::{DatastoreKind, Endpoint};
use super::{etcd, sql};
use crate::contract::{Backend, SavedSnapshot};
use crate::mvcc::State;

/// Opens an external datastore, and holds it alone until `tasks` shuts down; give it a set that is shut down behind everything
/// that writes. A database, in kine's schema, gets its tables where there are none. An etcd is held by a key that names
/// `holder`; without one it is not held, as API servers of upstream share theirs.
///
/// # Errors
/// [`DatastoreError`]; who holds it is named.
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

/// Reads a database as it is at one moment, changing nothing; a k3s may go on writing. An etcd is copied by [`copy_etcd`].
///
/// # Errors
/// [`DatastoreError`].
pub(crate) async fn read_external(endpoint: &Endpoint) -> Result<State, DatastoreError> {
    match &endpoint.kind {
        DatastoreKind::Etcd(_) => Err(DatastoreError::Unusable {
            endpoint: endpoint.to_string(),
            why: "an etcd is copied by a snapshot".to_owned(),
        }),
        DatastoreKind::Sql(_) => sql::read(endpoint).await,
    }
}

/// Copies all of an etcd into an empty file, as `etcdctl snapshot save` does; others may go on writing.
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
            Err(DatastoreError::Unusable { endpoint: name, why: "it is no etcd".to_owned() })
        }
    }
}

fn datastore_error(endpoint: String, why: etcd::Unusable) -> DatastoreError {
    match why {
        etcd::Unusable::Held(who) => DatastoreError::Held(who),
        etcd::Unusable::Failed(why) => DatastoreError::Unusable { endpoint, why },
    }
}
