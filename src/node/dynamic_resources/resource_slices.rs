//! Removes the ResourceSlices of drivers that do not run on this node, so that no pod is scheduled
//! to devices that cannot be prepared.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use api::k8s::api::core::v1::Node;
use api::k8s::api::resource::v1::ResourceSlice;
use base::{Backoff, Kind, Shutdown, Tasks};
use client::{Client, DeleteOptions, Informer, ListOptions};
use parking_lot::Mutex;

/// How long a driver may be gone before its ResourceSlices are removed (`defaultWipingDelay`).
pub(super) const WIPING_DELAY: Duration = Duration::from_secs(30);
/// Delays between attempts, as upstream; but they do not end.
const RETRY_FIRST: Duration = Duration::from_secs(1);
const RETRY_MAX: Duration = Duration::from_secs(300);

/// Removes ResourceSlices of this node.
#[derive(Debug)]
pub(crate) struct SliceCleaner {
    client: Client,
    node_name: String,
    own_node: Informer<Node>,
    /// From the loss of a driver to the removal.
    delay: Duration,
    /// Removals that wait or run, by driver.
    pending: Mutex<BTreeMap<String, Shutdown>>,
    tasks: Tasks,
}

impl SliceCleaner {
    /// `own_node` is the informer of this node's Node object.
    pub(super) fn new(
        client: &Client,
        own_node: Informer<Node>,
        node_name: &str,
        delay: Duration,
        tasks: &Tasks,
    ) -> Arc<Self> {
        Arc::new(Self {
            client: client.clone(),
            node_name: node_name.to_owned(),
            own_node,
            delay,
            pending: Mutex::default(),
            tasks: tasks.clone(),
        })
    }

    /// Removes the ResourceSlices of all drivers: none is registered yet.
    pub(super) fn clean_all(self: &Arc<Self>) {
        let (cleaner, end) = (Arc::clone(self), self.tasks.shutdown().clone());
        self.tasks.spawn(Kind::Request, "resource-slices", async move {
            cleaner.delete(None, &end).await;
            Ok::<(), Infallible>(())
        });
    }

    /// Handles whether a driver can be called now: the removal of its ResourceSlices begins to wait
    /// unless it does already, or is cancelled.
    pub(super) fn set_usable(self: &Arc<Self>, driver: &str, is_usable: bool) {
        let mut pending = self.pending.lock();
        if is_usable {
            if let Some(end) = pending.remove(driver) {
                end.request();
            }
            return;
        }
        if pending.contains_key(driver) {
            return;
        }
        let end = self.tasks.shutdown().child();
        pending.insert(driver.to_owned(), end.clone());
        let (cleaner, driver) = (Arc::clone(self), driver.to_owned());
        self.tasks.spawn(Kind::Request, "resource-slices", async move {
            tokio::select! {
                () = end.requested() => return Ok(()),
                () = base::clock::sleep(cleaner.delay) => {}
            }
            cleaner.delete(Some(&driver), &end).await;
            let mut pending = cleaner.pending.lock();
            // After a cancellation, another removal may wait under this name.
            if !end.is_requested() {
                pending.remove(&driver);
            }
            Ok::<(), Infallible>(())
        });
    }

    /// Deletes the ResourceSlices of this node, of one driver or all; repeats it until it succeeds.
    async fn delete(&self, driver: Option<&str>, end: &Shutdown) {
        let mut fields = format!("spec.nodeName={}", self.node_name);
        if let Some(driver) = driver {
            fields.push_str(&format!(",spec.driver={driver}"));
        }
        tokio::select! {
            () = end.requested() => return,
            () = self.own_node.synced() => {}
        }
        let gvr = client::gvr_of::<ResourceSlice>();
        let mut backoff = Backoff::new(RETRY_FIRST, RETRY_MAX);
        loop {
            // A node that is not registered yet may not delete anything.
            if self.own_node.get("", &self.node_name).is_some() {
                let selected = ListOptions { fields: &fields, ..ListOptions::default() };
                let options = DeleteOptions::default();
                let delete = self.client.delete_selected(&gvr, "", &selected, &options);
                let outcome = tokio::select! {
                    () = end.requested() => return,
                    outcome = delete => outcome,
                };
                match outcome {
                    Ok(()) => return,
                    Err(error) if error.is_not_found() => return,
                    Err(error) => {
                        tracing::debug!(fields, %error, "cannot delete ResourceSlices, retrying");
                    }
                }
            }
            let back = self.client.transport().back();
            if !backoff.wait_or(end, back).await {
                return;
            }
        }
    }

    /// Whether the removal of the ResourceSlices of a driver waits or runs.
    #[cfg(test)]
    pub(super) fn is_pending(&self, driver: &str) -> bool {
        self.pending.lock().contains_key(driver)
    }
}
