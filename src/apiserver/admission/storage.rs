//! StorageObjectInUseProtection and PersistentVolumeClaimResize.

use std::sync::Arc;

use api::Status;
use api::quantity::Quantity;
use api::value::{at, bool_at, ensure_object, items, str_in};
use async_trait::async_trait;
use serde_json::{Value, json};

use super::service_account::push;
use super::{Operation, Plugin, Request};
use lookup::Lookup;

/// StorageObjectInUseProtection: adds the protection finalizers to volumes and claims.
pub struct StorageObjectInUseProtection;

#[async_trait]
impl Plugin for StorageObjectInUseProtection {
    fn name(&self) -> &'static str {
        "StorageObjectInUseProtection"
    }

    async fn mutate(
        &self,
        request: &Request<'_>,
        object: &mut Option<Value>,
    ) -> Result<(), Status> {
        if request.operation != Operation::Create || !request.subresource.is_empty() {
            return Ok(());
        }
        let finalizer = match (&*request.gvr.group, &*request.gvr.resource) {
            ("", "persistentvolumes") => "kubernetes.io/pv-protection",
            ("", "persistentvolumeclaims") => "kubernetes.io/pvc-protection",
            ("storage.k8s.io", "volumeattributesclasses") => "kubernetes.io/vac-protection",
            _ => return Ok(()),
        };
        if let Some(meta) = object.as_mut().and_then(|object| ensure_object(object, "metadata"))
            && !items(meta, "finalizers").iter().any(|f| f == finalizer)
        {
            push(meta, "finalizers", json!(finalizer));
        }
        Ok(())
    }
}

/// PersistentVolumeClaimResize: a claim can grow only if it is bound and its class allows it.
pub struct PersistentVolumeClaimResize(pub Arc<dyn Lookup>);

fn requested(claim: &Value) -> Quantity {
    Quantity::from_value(at(claim, &["spec", "resources", "requests", "storage"]))
        .unwrap_or(Quantity::ZERO)
}

fn class(claim: &Value) -> &str {
    let annotated =
        str_in(claim, &["metadata", "annotations", "volume.beta.kubernetes.io/storage-class"]);
    if annotated.is_empty() { str_in(claim, &["spec", "storageClassName"]) } else { annotated }
}

#[async_trait]
impl Plugin for PersistentVolumeClaimResize {
    fn name(&self) -> &'static str {
        "PersistentVolumeClaimResize"
    }

    async fn validate(&self, request: &Request<'_>, object: Option<&Value>) -> Result<(), Status> {
        let applies = request.is("", "persistentvolumeclaims")
            && request.subresource.is_empty()
            && request.operation == Operation::Update;
        let (Some(new), Some(old), true) = (object, request.old, applies) else { return Ok(()) };
        if requested(new) <= requested(old) {
            return Ok(());
        }
        if str_in(old, &["status", "phase"]) != "Bound" {
            return Err(
                request.forbidden(object, "Only bound persistent volume claims can be expanded")
            );
        }
        let name = class(new);
        let expands = if name.is_empty() || name != class(old) {
            false
        } else {
            let found = self.0.get(&lookup::STORAGE_CLASSES, "", name).await;
            let class = found.and_then(lookup::value).map_err(|error| {
                let why = format!("cannot read StorageClass {name}: {}", error.message);
                Status::internal(&why)
            })?;
            class.is_some_and(|class| bool_at(&class, "allowVolumeExpansion"))
        };
        if expands {
            return Ok(());
        }
        let why = "only dynamically provisioned pvc can be resized and the storageclass that provisions the pvc must support resize";
        Err(request.forbidden(object, why))
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Ask, admit, creates};
    use super::*;
    use lookup::testing::Fixed;

    fn claim(size: &str, class: &str, phase: &str) -> Value {
        json!({"metadata": {"name": "c"}, "spec": {"storageClassName": class, "resources": {"requests": {"storage": size}}}, "status": {"phase": phase}})
    }

    #[tokio::test]
    async fn expansion_requires_a_bound_claim_and_a_class_that_allows_it() {
        let class = |name: &str, allow: bool| json!({"metadata": {"name": name}, "allowVolumeExpansion": allow});
        let plugin = PersistentVolumeClaimResize(Fixed::new(&[
            (&lookup::STORAGE_CLASSES, class("yes", true)),
            (&lookup::STORAGE_CLASSES, class("no", false)),
        ]));
        let grow = |from: Value, to: Value| {
            let base = creates(&lookup::PERSISTENT_VOLUME_CLAIMS, "PersistentVolumeClaim");
            admit(&plugin, Ask { operation: Operation::Update, old: Some(from), ..base }, to)
        };
        assert!(grow(claim("1Gi", "yes", "Bound"), claim("2Gi", "yes", "Bound")).await.is_ok());
        assert!(grow(claim("1Gi", "no", "Bound"), claim("1024Mi", "no", "Bound")).await.is_ok());
        let pending =
            grow(claim("1Gi", "yes", "Pending"), claim("2Gi", "yes", "Pending")).await.unwrap_err();
        assert_eq!(
            pending.message,
            "persistentvolumeclaims \"c\" is forbidden: Only bound persistent volume claims can be expanded"
        );
        assert_eq!(
            grow(claim("1Gi", "no", "Bound"), claim("2Gi", "no", "Bound")).await.unwrap_err().code,
            403
        );
    }

    #[tokio::test]
    async fn protection_finalizers_are_added_once() {
        let claim = json!({"metadata": {"name": "c", "finalizers": ["x"]}});
        let ask = || creates(&lookup::PERSISTENT_VOLUME_CLAIMS, "PersistentVolumeClaim");
        let (once, _) = admit(&StorageObjectInUseProtection, ask(), claim).await.unwrap();
        assert_eq!(once["metadata"]["finalizers"], json!(["x", "kubernetes.io/pvc-protection"]));
        let (twice, _) = admit(&StorageObjectInUseProtection, ask(), once.clone()).await.unwrap();
        assert_eq!(twice, once);
    }
}
