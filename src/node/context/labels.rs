//! The labels of the Node object, kept on disk so that pods are admitted by them while no server
//! can be reached.

use std::collections::BTreeMap;
use std::sync::Arc;

use arc_swap::ArcSwap;
use base::{EncryptedDir, Kind, Tasks};
use client::Client;

/// The file with the node's labels.
const LABELS: &str = "labels";

/// The labels of the Node object as last read, also by an earlier process.
#[derive(Debug)]
pub(crate) struct Labels {
    current: ArcSwap<BTreeMap<String, String>>,
    file: Option<Arc<EncryptedDir>>,
    tasks: Tasks,
}

impl Labels {
    /// Reads the labels of an earlier process; empty without any.
    pub(crate) async fn open(client: &Client, tasks: &Tasks) -> Self {
        let file = client.transport().kept();
        let reader = file.clone();
        let read = base::tasks::blocking(move || reader?.read(LABELS));
        let content = read.await.ok().flatten().unwrap_or_default();
        let current = ArcSwap::from_pointee(serde_json::from_slice(&content).unwrap_or_default());
        Self { current, file, tasks: tasks.clone() }
    }

    pub(crate) fn load(&self) -> Arc<BTreeMap<String, String>> {
        self.current.load_full()
    }

    /// Replaces the labels and writes them to disk when they changed.
    pub(crate) fn store(&self, labels: Arc<BTreeMap<String, String>>) {
        if self.current.swap(Arc::clone(&labels)) == labels {
            return;
        }
        let Some(file) = self.file.clone() else { return };
        self.tasks.spawn(Kind::Request, "node-labels", async move {
            let content = serde_json::to_vec(&*labels).map_err(std::io::Error::other)?;
            let written = base::tasks::blocking(move || file.write(LABELS, &content)).await;
            written.map_err(std::io::Error::other)?
        });
    }
}
