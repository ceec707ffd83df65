//! NamespaceLifecycle: rejects creates in absent or terminating namespaces, and the deletion of
//! system namespaces.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use api::status::Cause;
use api::{Object, Status};
use async_trait::async_trait;
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::Value;
use tokio::time::Instant;

use super::{Operation, Plugin, Request};
use lookup::Lookup;

const IMMORTAL: [&str; 3] = ["default", "kube-system", "kube-public"];

/// How long after a deletion the plugin reads the store instead of the cache.
const FORCE_LIVE: Duration = Duration::from_secs(30);

/// The maximum number of deletions that are remembered.
const MAX_DELETIONS: usize = 100;

/// The NamespaceLifecycle plugin.
pub struct NamespaceLifecycle {
    lookup: Arc<dyn Lookup>,
    deleted: Mutex<HashMap<String, Instant>>,
}

impl NamespaceLifecycle {
    /// Creates the plugin; `lookup` finds the namespaces.
    pub fn new(lookup: Arc<dyn Lookup>) -> Self {
        Self { lookup, deleted: Mutex::default() }
    }

    fn remember(&self, name: &str) {
        let now = base::clock::now();
        let mut deleted = self.deleted.lock();
        deleted.retain(|_, at| now.duration_since(*at) < FORCE_LIVE);
        if deleted.len() < MAX_DELETIONS {
            deleted.insert(name.to_owned(), now);
        }
    }

    fn deleted_lately(&self, name: &str) -> bool {
        self.deleted
            .lock()
            .get(name)
            .is_some_and(|at| base::clock::now().duration_since(*at) < FORCE_LIVE)
    }
}

fn terminating(namespace: &Object) -> bool {
    #[derive(Deserialize, Default)]
    #[serde(default)]
    struct Only {
        status: Status,
    }
    #[derive(Deserialize, Default)]
    #[serde(default)]
    struct Status {
        phase: String,
    }
    serde_json::from_slice::<Only>(namespace.raw())
        .is_ok_and(|only| only.status.phase == "Terminating")
}

#[async_trait]
impl Plugin for NamespaceLifecycle {
    fn name(&self) -> &'static str {
        "NamespaceLifecycle"
    }

    async fn mutate(
        &self,
        request: &Request<'_>,
        object: &mut Option<Value>,
    ) -> Result<(), Status> {
        let is_namespace = request.gvk.group.is_empty() && &*request.gvk.kind == "Namespace";
        if is_namespace {
            if request.operation == Operation::Delete {
                if IMMORTAL.contains(&request.name) {
                    return Err(Status::forbidden(
                        "",
                        "namespaces",
                        request.name,
                        "this namespace may not be deleted",
                    ));
                }
                self.remember(request.name);
            }
            return Ok(());
        }
        if request.namespace.is_empty()
            || matches!(request.operation, Operation::Delete | Operation::Update)
            || request.is("authorization.k8s.io", "localsubjectaccessreviews")
        {
            return Ok(());
        }
        let found = if self.deleted_lately(request.namespace) {
            self.lookup.get_live(&lookup::NAMESPACES, "", request.namespace).await
        } else {
            self.lookup.find(&lookup::NAMESPACES, "", request.namespace).await
        };
        let Some(namespace) = found.map_err(|error| Status::internal(&error.message))? else {
            return Err(Status::not_found("", "namespaces", request.namespace));
        };
        if request.operation == Operation::Create && terminating(&namespace) {
            let name = request.namespace;
            let why = format!(
                "unable to create new content in namespace {name} because it is being terminated"
            );
            let mut status = request.forbidden(object.as_ref(), &why);
            status.details.get_or_insert_default().causes.push(Cause {
                reason: "NamespaceTerminating".into(),
                message: format!("namespace {name} is being terminated"),
                field: "metadata.namespace".into(),
            });
            return Err(status);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Ask, admit, creates};
    use super::*;
    use lookup::testing::Fixed;
    use serde_json::json;

    fn plugin() -> NamespaceLifecycle {
        let namespace = |name: &str, phase: &str| json!({"metadata": {"name": name}, "status": {"phase": phase}});
        NamespaceLifecycle::new(Fixed::new(&[
            (&lookup::NAMESPACES, namespace("a", "Active")),
            (&lookup::NAMESPACES, namespace("going", "Terminating")),
        ]))
    }

    #[tokio::test]
    async fn creates_in_absent_and_terminating_namespaces_are_rejected() {
        let pod = json!({"metadata": {"name": "p"}});
        let ask = |namespace| Ask { namespace, ..creates(&lookup::PODS, "Pod") };
        assert!(admit(&plugin(), ask("a"), pod.clone()).await.is_ok());
        let absent = admit(&plugin(), ask("none"), pod.clone()).await.unwrap_err();
        assert_eq!((absent.code, absent.message.as_str()), (404, "namespaces \"none\" not found"));
        let going = admit(&plugin(), ask("going"), pod.clone()).await.unwrap_err();
        assert_eq!(
            going.message,
            "pods \"p\" is forbidden: unable to create new content in namespace going because it is being terminated"
        );
        assert_eq!(going.details.unwrap().causes[0].reason, "NamespaceTerminating");
        let update = Ask { operation: Operation::Update, ..ask("going") };
        assert!(admit(&plugin(), update, pod).await.is_ok());
    }

    #[tokio::test]
    async fn default_namespaces_cannot_be_deleted() {
        let delete = |name: &'static str| async move {
            let warnings = Mutex::default();
            let user = crate::User::anonymous();
            let request = Request {
                operation: Operation::Delete,
                gvr: &lookup::NAMESPACES,
                gvk: &api::Gvk::new("", "v1", "Namespace"),
                subresource: "",
                namespace: "",
                name,
                user: &user,
                dry_run: false,
                old: None,
                options: Default::default(),
                reinvocation: &Default::default(),
                reservation: &Default::default(),
                warnings: &warnings,
            };
            plugin().mutate(&request, &mut None).await
        };
        assert_eq!(
            delete("default").await.unwrap_err().message,
            "namespaces \"default\" is forbidden: this namespace may not be deleted"
        );
        assert!(delete("kube-node-lease").await.is_ok());
    }
}
