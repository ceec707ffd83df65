//! Follows flow schemas and priority levels, and maintains the bootstrap ones.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use api::value::{str_at, str_in};
use api::{Gvr, Object, ObjectKey, Status};
use base::{Backoff, Kind};
use http::{Method, Request};
use parking_lot::Mutex;
use serde_json::Value;

use super::control::Control;
use super::{GROUP, LEVELS, SCHEMAS, ensure};
use crate::registry::follower;
use crate::registry::follower::Follower;
use crate::request::user::User;
use crate::state::ApiServer;

/// The field manager (upstream's `ensurer`).
const MANAGER: &str = "api-priority-and-fairness-config-producer-v1";

type Table = BTreeMap<ObjectKey, Arc<Object>>;

/// The stored objects of one resource.
struct Stored {
    control: Arc<Control>,
    table: Arc<Mutex<Table>>,
}

impl Follower for Stored {
    fn replace(&mut self, all: &[Arc<Object>]) {
        let table = all.iter().map(|object| (object.key.clone(), Arc::clone(object)));
        *self.table.lock() = table.collect();
    }

    fn put(&mut self, object: &Arc<Object>) {
        self.table.lock().insert(object.key.clone(), Arc::clone(object));
    }

    fn remove(&mut self, key: &ObjectKey) {
        self.table.lock().remove(key);
    }

    fn synced(&mut self) {
        self.control.changed.notify_one();
    }
}

/// Starts to follow both resources. When this returns, the stored objects are in effect.
///
/// # Errors
/// If a cache cannot be loaded.
pub(crate) async fn follow(server: &ApiServer, control: &Arc<Control>) -> Result<(), Status> {
    let (objects, tasks) = (&server.inner.objects, &server.inner.tasks);
    let mut tables = Vec::new();
    for (resource, name) in [(LEVELS, "priority levels"), (SCHEMAS, "flow schemas")] {
        let gvr = Gvr::new(GROUP, "v1", resource);
        let table = Arc::new(Mutex::new(Table::new()));
        let mut stored = Stored { control: Arc::clone(control), table: Arc::clone(&table) };
        let position = follower::load(objects, &gvr, &mut stored).await?;
        let (of, shutdown) = (Arc::clone(objects), tasks.shutdown().clone());
        tasks.spawn(Kind::Critical, name, async move {
            tokio::select! {
                () = follower::follow(&of, &gvr, &mut stored, position) => {}
                () = shutdown.requested() => {}
            }
            Ok::<(), std::convert::Infallible>(())
        });
        tables.push(table);
    }
    let reconciler = Reconciler { server: server.clone(), control: Arc::clone(control), tables };
    reconciler.digest();
    let shutdown = tasks.shutdown().clone();
    tasks.spawn(Kind::Critical, "flow-control", async move {
        tokio::select! {
            () = reconciler.run() => {}
            () = shutdown.requested() => {}
        }
        Ok::<(), std::convert::Infallible>(())
    });
    Ok(())
}

/// Applies changes, and repairs the bootstrap objects.
struct Reconciler {
    server: ApiServer,
    control: Arc<Control>,
    /// Levels, then schemas.
    tables: Vec<Arc<Mutex<Table>>>,
}

const NOT_RESTORED: &str = "flow control: cannot restore a bootstrap object, retrying";

/// A write that repairs an object.
struct Repair {
    method: Method,
    path: String,
    object: Option<Value>,
}

impl Reconciler {
    async fn run(self) {
        // Servers of different versions overwrite each other at most once a minute, as in upstream.
        let mut backoff = Backoff::new(Duration::from_millis(20), Duration::from_secs(60));
        let mut retry_at: Option<tokio::time::Instant> = None;
        loop {
            let due = async {
                match retry_at {
                    Some(at) => tokio::time::sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = self.control.changed.notified() => self.digest(),
                () = due => {}
            }
            if retry_at.is_some_and(|at| base::clock::now() < at) {
                continue;
            }
            retry_at = None;
            if self.repair().await {
                backoff.reset();
            } else {
                retry_at = Some(base::clock::now() + backoff.next_delay());
            }
        }
    }

    /// The objects of both resources: levels, then schemas.
    fn stored(&self) -> Vec<Vec<Value>> {
        let values = |table: &Arc<Mutex<Table>>| -> Vec<Value> {
            let objects: Vec<Arc<Object>> = table.lock().values().cloned().collect();
            objects.iter().filter_map(|object| object.value().ok()).collect()
        };
        self.tables.iter().map(values).collect()
    }

    fn digest(&self) {
        let stored = self.stored();
        if let [levels, schemas] = stored.as_slice() {
            self.control.digest(levels, schemas);
        }
    }

    /// Repairs the bootstrap objects; returns `false` if a repair was necessary.
    async fn repair(&self) -> bool {
        let repairs = repairs(&self.stored());
        let is_up_to_date = repairs.is_empty();
        for repair in repairs {
            let path = repair.path.clone();
            match self.write(repair).await {
                // After a conflict the watch delivers the change of the other client.
                Ok(200..=299 | 404 | 409) => {}
                Ok(code) => tracing::warn!(path, code, "{NOT_RESTORED}"),
                Err(error) => tracing::warn!(path, %error, "{NOT_RESTORED}"),
            }
        }
        is_up_to_date
    }

    async fn write(&self, repair: Repair) -> Result<u16, http::Error> {
        let body = repair.object.map(|object| object.to_string()).unwrap_or_default();
        let request = Request::builder()
            .method(repair.method)
            .uri(repair.path)
            .header(http::header::CONTENT_TYPE, "application/json")
            .body(crate::request::body::full(body))?;
        let user = User::apiserver();
        // Boxed because the future of a request is large.
        Ok(Box::pin(self.server.call(Some(user), request)).await.status().as_u16())
    }
}

/// The writes that restore the bootstrap objects: levels before the schemas that refer to them.
fn repairs(stored: &[Vec<Value>]) -> Vec<Repair> {
    let wanted: Vec<Value> = crate::bootstrap::flow_objects().collect();
    let mut out = Vec::new();
    for (objects, (resource, kind)) in
        stored.iter().zip([(LEVELS, "PriorityLevelConfiguration"), (SCHEMAS, "FlowSchema")])
    {
        let name = |object: &Value| str_in(object, &["metadata", "name"]).to_owned();
        let path = |name: &str| format!("/apis/{GROUP}/v1/{resource}{name}?fieldManager={MANAGER}");
        let of_kind = || wanted.iter().filter(|object| str_at(object, "kind") == kind);
        for wanted in of_kind() {
            let own = name(wanted);
            match objects.iter().find(|object| name(object) == own) {
                None => out.push(Repair {
                    method: Method::POST,
                    path: path(""),
                    object: Some(wanted.clone()),
                }),
                Some(existing) => {
                    out.extend(ensure::revised(existing, wanted).map(|revised| Repair {
                        method: Method::PUT,
                        path: path(&format!("/{own}")),
                        object: Some(revised),
                    }))
                }
            }
        }
        for object in objects.iter().filter(|object| ensure::is_unwanted(object)) {
            let own = name(object);
            if !of_kind().any(|wanted| name(wanted) == own) {
                let path = format!("/apis/{GROUP}/v1/{resource}/{own}");
                out.push(Repair { method: Method::DELETE, path, object: None });
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn methods(stored: &[Vec<Value>]) -> Vec<(Method, String)> {
        repairs(stored).into_iter().map(|m| (m.method, m.path)).collect()
    }

    #[test]
    fn missing_changed_and_obsolete_objects_are_repaired() {
        let (mut schemas, mut levels): (Vec<Value>, Vec<Value>) =
            crate::bootstrap::flow_objects().partition(|o| str_at(o, "kind") == "FlowSchema");
        assert_eq!((levels.len(), schemas.len()), (8, 11));
        assert!(methods(&[levels.clone(), schemas.clone()]).is_empty());
        let base = "/apis/flowcontrol.apiserver.k8s.io/v1";
        schemas.retain(|schema| schema["metadata"]["name"] != "probes");
        levels[2]["spec"]["limited"]["nominalConcurrencyShares"] = json!(7);
        let own = json!({"metadata": {"name": "own"}});
        let made = json!({"metadata": {"name": "gone", "annotations": {"apf.kubernetes.io/autoupdate-spec": "true"}}});
        levels.extend([own, made]);
        assert_eq!(
            methods(&[levels, schemas]),
            [
                (
                    Method::PUT,
                    format!(
                        "{base}/prioritylevelconfigurations/global-default?fieldManager=api-priority-and-fairness-config-producer-v1"
                    )
                ),
                (Method::DELETE, format!("{base}/prioritylevelconfigurations/gone")),
                (
                    Method::POST,
                    format!(
                        "{base}/flowschemas?fieldManager=api-priority-and-fairness-config-producer-v1"
                    )
                ),
            ]
        );
    }
}
