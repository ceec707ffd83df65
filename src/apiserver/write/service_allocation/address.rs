//! `IPAddress` objects: creating one allocates its address.

use std::net::IpAddr;
use std::sync::Arc;

use api::{Gvr, Status};
use serde_json::{Value, json};

use crate::registry::storage::{Deletion, Written};
use crate::registry::{Resource, metadata};
use crate::request::context::Context;

fn addresses_row(context: &Context) -> Result<Arc<Resource>, Status> {
    context.server.objects.row(&Gvr::new("networking.k8s.io", "v1", "ipaddresses"))
}

/// Creates the `IPAddress` of an address; returns whether the address was free.
pub(super) async fn take(
    context: &Context,
    service: &Value,
    address: &IpAddr,
    dry_run: bool,
) -> Result<bool, Status> {
    let row = addresses_row(context)?;
    let storage = context.server.objects.storage();
    if dry_run {
        // Upstream's dry run only checks the range.
        return Ok(true);
    }
    let object = address_object(service, address);
    Ok(matches!(storage.create(&row, &object).await?, Written::Done(_)))
}

/// The `IPAddress` of a Service's address.
pub(super) fn address_object(service: &Value, address: &IpAddr) -> Value {
    let name = address.to_string();
    let family = if address.is_ipv4() { "IPv4" } else { "IPv6" };
    // Upstream's allocator writes through the API, which adds a field manager.
    let owner = json!({
        "manager": "kube-apiserver", "operation": "Update", "apiVersion": "networking.k8s.io/v1",
        "time": crate::registry::strategies::now(), "fieldsType": "FieldsV1", "fieldsV1": {
            "f:metadata": {"f:labels": {".": {}, "f:ipaddress.kubernetes.io/ip-family": {}, "f:ipaddress.kubernetes.io/managed-by": {}}},
            "f:spec": {"f:parentRef": {".": {}, "f:name": {}, "f:namespace": {}, "f:resource": {}}}},
    });
    let mut object = json!({
        "metadata": {"name": name, "managedFields": [owner], "labels": {
            "ipaddress.kubernetes.io/ip-family": family, "ipaddress.kubernetes.io/managed-by": "ipallocator.k8s.io"}},
        "spec": {"parentRef": {"resource": "services", "namespace": metadata::text(service, "namespace"), "name": metadata::text(service, "name")}},
    });
    metadata::fill_on_create(&mut object);
    object
}

/// Deletes the `IPAddress` of an address. The address controller removes objects that cannot be
/// deleted here.
pub(super) async fn release(context: &Context, address: &str) {
    let Ok(row) = addresses_row(context) else { return };
    let storage = context.server.objects.storage();
    for _ in 0..3 {
        match storage.get(&row, "", address).await {
            Ok(Some(object)) => match storage.delete(&row, &object).await {
                Ok(Deletion::Changed(_)) => {}
                Ok(Deletion::Done(_)) => return,
                Err(error) => {
                    return tracing::warn!(address, %error, "service address was not released");
                }
            },
            Ok(None) => return,
            Err(error) => {
                return tracing::warn!(address, %error, "service address was not released");
            }
        }
    }
}
