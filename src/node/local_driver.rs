//! The built-in CSI driver `local.kube-lite.io`: volumes with an enforced size on this node's disk.
//!
//! The kubelet's CSI client calls [`node_service`] in the process; the controller requests changes
//! of the stored volumes through the kubelet API ([`requests`]).

mod copy;
pub(crate) mod error;
mod file_system;
mod loop_device;
mod node_service;
mod quota;
pub(crate) mod requests;
pub(crate) mod store;
mod sys;

use std::path::Path;
use std::sync::Arc;

use api::local_driver::DRIVER;
use base::Tasks;
use tokio::sync::Notify;

use crate::csi::locks::OperationLocks;
use error::LocalDriverError;
use quota::KernelQuotas;
use requests::RunningRequests;
use store::Store;

/// The driver of this node.
#[derive(Debug)]
pub(crate) struct LocalDriver {
    node_name: String,
    store: Arc<Store>,
    /// Held by name while a volume or snapshot is used or changed.
    locks: OperationLocks,
    requests: RunningRequests,
    /// A volume is no longer staged.
    unstaged: Notify,
    tasks: Tasks,
}

impl LocalDriver {
    /// `storage` is the directory of local volumes of this node.
    pub(crate) fn new(node_name: &str, storage: &Path, tasks: &Tasks) -> Arc<Self> {
        Arc::new(Self {
            node_name: node_name.to_owned(),
            store: Arc::new(Store::new(storage.join(DRIVER), Box::new(KernelQuotas))),
            locks: OperationLocks::default(),
            requests: RunningRequests::default(),
            unstaged: Notify::new(),
            tasks: tasks.clone(),
        })
    }

    /// Completes what an earlier process began; before volumes are used. Returns whether this node
    /// has volumes. A failure is a problem in the status, as volumes may be frozen.
    pub(crate) async fn recover(&self) -> bool {
        let store = Arc::clone(&self.store);
        let recovered = blocking(move || {
            store.recover()?;
            Ok(store.has_volumes())
        });
        recovered.await.unwrap_or_else(|error| {
            let fix = "fix the cause and restart this node";
            self.tasks.problems().put("local-driver/recover", error.to_string(), fix);
            true
        })
    }
}

/// Runs `act` on a thread that may block.
async fn blocking<T: Send + 'static>(
    act: impl FnOnce() -> Result<T, LocalDriverError> + Send + 'static,
) -> Result<T, LocalDriverError> {
    let done = base::tasks::blocking(act).await;
    done.unwrap_or_else(|error| Err(LocalDriverError::Other(error.to_string())))
}
