//! Cleans up after ServiceLB where it is disabled: Services keep neither its finalizer, which no
//! component would remove, nor its addresses, which the proxies would go on to serve.

use std::sync::Arc;
use std::time::Duration;

use api::Object;
use api::k8s::api::core::v1::Service;
use client::{Action, Change, Client, Error, Informer};

use super::records::FINALIZER;
use super::{ACCOUNT, CONTROLLER, cleanup_patch, patch_status};
use crate::framework::context::Context;
use crate::framework::keyed::Keyed;

/// When a Service is read again that changed between the read and the patch.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Whether ServiceLB wrote to a Service: the finalizer alone does not tell, because every cloud
/// controller uses the same one.
fn is_managed(service: &Service) -> bool {
    let meta = &service.metadata;
    meta.finalizers.iter().flatten().any(|name| name == FINALIZER)
        && meta
            .managed_fields
            .iter()
            .flatten()
            .any(|entry| entry.manager.as_deref() == Some(ACCOUNT))
}

/// Whether a Service may have something of ServiceLB: read from the bytes, because most have not.
fn may_be_managed(service: &Object) -> bool {
    service.raw().windows(FINALIZER.len()).any(|bytes| bytes == FINALIZER.as_bytes())
}

/// Starts the cleanup: each Service that exists at the start is released once.
pub(crate) fn start(context: &Context) {
    let client = context.client(ACCOUNT);
    let services: Informer<Service> = context.informers.of();
    let mut keyed = Keyed::new();
    keyed.watches(&services, |change| match change {
        Change::Added(object) if may_be_managed(object) => {
            vec![(object.key.namespace.to_string(), object.key.name.to_string())]
        }
        _ => Vec::new(),
    });
    let client = Arc::new(client);
    keyed.run(&context.tasks, CONTROLLER, 1, move |(namespace, name)| {
        let client = Arc::clone(&client);
        async move { release(&client, &namespace, &name).await }
    });
}

async fn release(client: &Client, namespace: &str, name: &str) -> Result<Action, Error> {
    // Caches may lack the managed fields.
    let service = match client.get::<Service>(namespace, name).await {
        Err(error) if error.is_not_found() => return Ok(Action::Done),
        other => other?,
    };
    let is_released =
        !is_managed(&service) || patch_status(client, &service, &cleanup_patch(&service)).await?;
    Ok(if is_released { Action::Done } else { Action::After(RETRY_AFTER) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn only_services_that_the_controller_wrote_to_are_released() {
        let service = |finalizers: &[&str], manager: &str| -> Service {
            serde_json::from_value(json!({"metadata": {"name": "s", "finalizers": finalizers,
                "managedFields": [{"manager": manager, "operation": "Update"}]}}))
            .unwrap()
        };
        assert!(is_managed(&service(&[FINALIZER], ACCOUNT)));
        assert!(!is_managed(&service(&[FINALIZER], "cloud-controller-manager")));
        assert!(!is_managed(&service(&["a"], ACCOUNT)));
    }
}
