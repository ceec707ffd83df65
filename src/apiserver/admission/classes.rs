//! DefaultStorageClass and DefaultIngressClass: apply the newest class that is marked as the
//! default.

use std::sync::Arc;

use api::value::{get, has, set, str_in};
use api::{Gvr, Status};
use async_trait::async_trait;
use serde_json::Value;

use super::{Operation, Plugin, Request};
use lookup::Lookup;

/// The name of the newest class with one of the annotations set; among equally old ones the first
/// by name.
async fn default_class(
    lookup: &dyn Lookup,
    gvr: &Gvr,
    annotations: &[&str],
) -> Result<Option<String>, Status> {
    let classes = lookup.list(gvr, "").await?;
    let marked = classes.iter().filter_map(|class| class.value().ok()).filter(|class| {
        annotations.iter().any(|a| str_in(class, &["metadata", "annotations", a]) == "true")
    });
    let key = |class: &Value| {
        (
            str_in(class, &["metadata", "creationTimestamp"]).to_owned(),
            std::cmp::Reverse(str_in(class, &["metadata", "name"]).to_owned()),
        )
    };
    let newest = marked.max_by_key(key);
    Ok(newest.map(|newest| str_in(&newest, &["metadata", "name"]).to_owned()))
}

/// DefaultStorageClass: sets the default class of claims without a class.
pub struct DefaultStorageClass(pub Arc<dyn Lookup>);

#[async_trait]
impl Plugin for DefaultStorageClass {
    fn name(&self) -> &'static str {
        "DefaultStorageClass"
    }

    async fn mutate(
        &self,
        request: &Request<'_>,
        object: &mut Option<Value>,
    ) -> Result<(), Status> {
        let applies = request.is("", "persistentvolumeclaims")
            && request.subresource.is_empty()
            && request.operation == Operation::Create;
        let Some(claim) = object.as_mut().filter(|_| applies) else { return Ok(()) };
        let annotated = has(
            get(get(claim, "metadata"), "annotations"),
            "volume.beta.kubernetes.io/storage-class",
        );
        if annotated || has(get(claim, "spec"), "storageClassName") {
            return Ok(());
        }
        let marks = [
            "storageclass.kubernetes.io/is-default-class",
            "storageclass.beta.kubernetes.io/is-default-class",
        ];
        if let (Some(name), Some(spec)) = (
            default_class(&*self.0, &lookup::STORAGE_CLASSES, &marks).await?,
            claim.get_mut("spec"),
        ) {
            set(spec, "storageClassName", name);
        }
        Ok(())
    }
}

/// DefaultIngressClass: sets the default class of ingresses without a class.
pub struct DefaultIngressClass(pub Arc<dyn Lookup>);

#[async_trait]
impl Plugin for DefaultIngressClass {
    fn name(&self) -> &'static str {
        "DefaultIngressClass"
    }

    async fn mutate(
        &self,
        request: &Request<'_>,
        object: &mut Option<Value>,
    ) -> Result<(), Status> {
        let applies = request.is("networking.k8s.io", "ingresses")
            && request.subresource.is_empty()
            && request.operation == Operation::Create;
        let Some(ingress) = object.as_mut().filter(|_| applies) else { return Ok(()) };
        let annotated =
            has(get(get(ingress, "metadata"), "annotations"), "kubernetes.io/ingress.class");
        if annotated || has(get(ingress, "spec"), "ingressClassName") {
            return Ok(());
        }
        let marks = ["ingressclass.kubernetes.io/is-default-class"];
        if let (Some(name), Some(spec)) = (
            default_class(&*self.0, &lookup::INGRESS_CLASSES, &marks).await?,
            ingress.get_mut("spec"),
        ) {
            set(spec, "ingressClassName", name);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{admit, creates};
    use super::*;
    use lookup::testing::Fixed;
    use serde_json::json;

    #[tokio::test]
    async fn the_newest_default_class_is_set_unless_the_class_is_empty() {
        let class = |name: &str, time: &str| json!({"metadata": {"name": name, "creationTimestamp": time, "annotations": {"storageclass.kubernetes.io/is-default-class": "true"}}});
        let plugin = DefaultStorageClass(Fixed::new(&[
            (&lookup::STORAGE_CLASSES, class("old", "2026-01-01T00:00:00Z")),
            (&lookup::STORAGE_CLASSES, class("new-b", "2026-02-01T00:00:00Z")),
            (&lookup::STORAGE_CLASSES, class("new-a", "2026-02-01T00:00:00Z")),
        ]));
        let run = |spec: Value| {
            admit(
                &plugin,
                creates(&lookup::PERSISTENT_VOLUME_CLAIMS, "PersistentVolumeClaim"),
                json!({"metadata": {"name": "c"}, "spec": spec}),
            )
        };
        assert_eq!(run(json!({})).await.unwrap().0["spec"]["storageClassName"], "new-a");
        assert_eq!(
            run(json!({"storageClassName": ""})).await.unwrap().0["spec"]["storageClassName"],
            ""
        );
    }
}
