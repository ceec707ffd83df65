//! Reserves node ports among several servers: each port of a write in progress is a key in the
//! store, so that two servers do not allocate the same port.
//!
//! A key is created before the port is checked once more and deleted after the Service was stored,
//! so that a later writer of the same key finds the Service. The key has a lease, because the
//! server may exit in between. A single server keeps its ports in memory.

use std::collections::HashSet;

use api::Status;
use bytes::Bytes;
use store::{Backend, Compare, Durability, KeyRange, Op, Ordering, Target, Txn};

use super::ports;
use crate::request::context::Context;
use crate::response::status::of_store;

/// Prefix of the keys of ports, which are not visible in the API.
const PREFIX: &str = "/kube-lite/nodeports/";
/// TTL in seconds of the ports of a write whose server exits; longer than any write takes.
const LEASE_SECONDS: i64 = 60;

fn key(port: u16) -> Bytes {
    format!("{PREFIX}{port}").into()
}

/// The reservation of a write: the lease of its keys.
#[derive(Debug)]
pub(super) struct Reserved(i64);

/// Reserves the ports for this write; `None` with a single server, which has all writes in memory.
///
/// # Errors
/// When another server allocates one of the ports at the same time, or the store fails.
pub(super) async fn reserve(context: &Context, taken: &[u16]) -> Result<Option<Reserved>, Status> {
    let backend = context.server.objects.storage().backend();
    if taken.is_empty() || backend.is_alone() {
        return Ok(None);
    }
    let lease = backend.lease_grant(0, LEASE_SECONDS).await.map_err(|e| of_store(&e))?.id;
    let reserved = Reserved(lease);
    let checked = match claim(&**backend, taken, lease).await {
        // This read includes every Service stored since the ports were chosen; later writes
        // conflict with the keys.
        Ok(()) => ports::used(context).await.and_then(|used| free(taken, &used)),
        Err(error) => Err(error),
    };
    match checked {
        Ok(()) => Ok(Some(reserved)),
        Err(error) => {
            reserved.release(context).await;
            Err(error)
        }
    }
}

fn free(taken: &[u16], used: &HashSet<u16>) -> Result<(), Status> {
    taken.iter().find(|port| used.contains(port)).map_or(Ok(()), |port| Err(lost(*port)))
}

fn lost(port: u16) -> Status {
    Status::internal(&format!(
        "failed to allocate nodePort {port}: another server gives it at this moment; try again"
    ))
}

async fn claim(backend: &dyn Backend, taken: &[u16], lease: i64) -> Result<(), Status> {
    let absent = |port: &u16| Compare {
        range: KeyRange::key(key(*port)),
        target: Target::Version(0),
        ordering: Ordering::Equal,
    };
    let put = |port: &u16| Op::Put { key: key(*port), value: Bytes::new(), lease, prev_kv: false };
    let txn = Txn {
        compare: taken.iter().map(absent).collect(),
        success: taken.iter().map(put).collect(),
        failure: Vec::new(),
        durability: Durability::Synced,
        separable: false,
    };
    let answer = backend.txn(txn).await.map_err(|e| of_store(&e))?;
    match taken.first() {
        Some(port) if !answer.succeeded => Err(lost(*port)),
        _ => Ok(()),
    }
}

impl Reserved {
    /// Deletes the keys once the write is stored or has failed.
    pub(super) async fn release(self, context: &Context) {
        let backend = context.server.objects.storage().backend();
        if let Err(error) = backend.lease_revoke(self.0).await {
            tracing::debug!(%error, "cannot release node ports, they stay reserved for a minute");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn one_of_two_servers_gets_a_port_until_its_lease_expires() {
        let tasks = base::Tasks::default();
        let backend = store::open_memory_with(&tasks);
        let first = backend.lease_grant(0, LEASE_SECONDS).await.unwrap().id;
        let second = backend.lease_grant(0, LEASE_SECONDS).await.unwrap().id;
        claim(&*backend, &[30080, 30443], first).await.unwrap();
        let refused = claim(&*backend, &[31000, 30443], second).await.unwrap_err();
        assert_eq!(refused.code, 500);
        // A failed reservation leaves no keys.
        claim(&*backend, &[31000], first).await.unwrap();
        backend.lease_revoke(first).await.unwrap();
        claim(&*backend, &[31000, 30443], second).await.unwrap();
        assert!(free(&[30080], &HashSet::from([30443])).is_ok());
        assert!(free(&[30080], &HashSet::from([30080])).unwrap_err().message.contains("30080"));
    }
}
