//! Creates missing `IPAddress` objects of Services that another API server, or one before
//! Kubernetes
//! 1.33, has stored. Without them the allocator would allocate the address to another Service
//! (`pkg/registry/core/service/ipallocator/controller`).

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use api::{Gvr, Object, Status};
use base::{Backoff, Shutdown};
use serde_json::Value;

use super::{address_object, list, needs_address};
use crate::registry::Resource;
use crate::registry::objects::Objects;
use crate::registry::storage::Written;
use crate::registry::watch_cache::{Filter, Position};

/// Creates missing `IPAddress` objects at start and whenever a Service changes, until shutdown.
pub(crate) async fn run(objects: Arc<Objects>, shutdown: Shutdown) {
    tokio::select! {
        () = follow(&objects) => {}
        () = shutdown.requested() => {}
    }
}

async fn follow(objects: &Objects) {
    let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(10));
    loop {
        match load(objects).await {
            Ok(position) => {
                backoff.reset();
                follow_changes(objects, position).await;
            }
            Err(error) => {
                tracing::debug!(%error, "cannot list Services to check their addresses, retrying")
            }
        }
        base::clock::sleep(backoff.next_delay()).await;
    }
}

async fn load(objects: &Objects) -> Result<Position, Status> {
    let row = objects.row(&Gvr::new("", "v1", "services"))?;
    let (page, position) = objects.fresh_cache(&row).await?.list_and_watch(&Filter::default());
    for service in &page.items {
        repair(objects, &row, service).await?;
    }
    Ok(position)
}

async fn follow_changes(objects: &Objects, mut position: Position) {
    let row = Arc::clone(position.row());
    while let Ok((events, _)) = position.next().await {
        for event in events.iter().filter(|event| !event.deleted) {
            let service = &event.entry.object;
            if let Err(error) = repair(objects, &row, service).await {
                tracing::warn!(service = %service.key, %error, "cannot check the addresses of a Service");
            }
        }
    }
}

/// The addresses that a Service has in a range.
fn addresses(service: &Value) -> Vec<IpAddr> {
    if !needs_address(service) {
        return Vec::new();
    }
    list(service, "clusterIPs").iter().filter_map(|address| address.parse().ok()).collect()
}

async fn repair(objects: &Objects, row: &Resource, service: &Object) -> Result<(), Status> {
    let value = service.value().map_err(|e| Status::internal(&e.to_string()))?;
    for address in addresses(&value) {
        create_missing(objects, row, service, address).await?;
    }
    Ok(())
}

async fn create_missing(
    objects: &Objects,
    row: &Resource,
    service: &Object,
    address: IpAddr,
) -> Result<(), Status> {
    let addresses_row = objects.row(&Gvr::new("networking.k8s.io", "v1", "ipaddresses"))?;
    let (storage, name) = (objects.storage(), address.to_string());
    if objects.loaded_cache(&addresses_row).await?.get("", &name).is_some() {
        return Ok(());
    }
    let still_used = async || {
        let found = storage.get(row, &service.key.namespace, &service.key.name).await?;
        let value = found.map(|found| found.value()).transpose();
        let value = value.map_err(|e| Status::internal(&e.to_string()))?;
        Ok::<_, Status>(value.is_some_and(|value| addresses(&value).contains(&address)))
    };
    if !still_used().await? {
        return Ok(());
    }
    let value = service.value().map_err(|e| Status::internal(&e.to_string()))?;
    let created = storage.create(&addresses_row, &address_object(&value, &address)).await?;
    let Written::Done(created) = created else { return Ok(()) };
    tracing::info!(service = %service.key, %address, "created the missing IPAddress of a Service");
    // The deletion of the Service may have released the address before the object existed.
    if !still_used().await? {
        drop(storage.delete(&addresses_row, &created).await?);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn only_addresses_of_services_that_need_one_are_kept() {
        let of = |spec: Value| addresses(&json!({"spec": spec}));
        let address = |text: &str| text.parse::<IpAddr>().unwrap();
        assert_eq!(
            of(json!({"clusterIPs": ["10.43.0.9", "fd00::9"]})),
            [address("10.43.0.9"), address("fd00::9")]
        );
        assert!(of(json!({"clusterIPs": ["None"]})).is_empty());
        assert!(of(json!({"type": "ExternalName", "clusterIPs": ["10.43.0.9"]})).is_empty());
    }
}
