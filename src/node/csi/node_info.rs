//! What CSI drivers say about this node: the CSINode object, and an annotation and labels of the
//! Node object, as upstream's `nodeinfomanager` writes them.

use std::time::Duration;

use api::field::aggregate;
use api::k8s::api::core::v1::Node;
use api::k8s::api::storage::v1::CSINode;
use client::{Client, DeleteOptions, Patch};
use serde_json::{Value, json};

use super::node_objects::{
    DriverNodeInfo, WriteError, add_driver, annotate, new_csi_node, other_owner, patch_to_add,
    patch_to_remove, remove_driver,
};

/// Delays between the attempts of one update (`updateBackoff`).
const RETRIES: [Duration; 3] =
    [Duration::from_millis(10), Duration::from_millis(50), Duration::from_millis(250)];

/// Why the objects do not show what a driver says about the node.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NodeInfoError {
    #[error("error adding CSI driver node info: driverNodeID must not be empty")]
    NoNodeId,
    #[error("error updating Node object with CSI driver node info: error updating node: {0}")]
    AddToNode(#[source] Retried),
    #[error("error updating CSINode object with CSI driver node info: error updating CSINode: {0}")]
    AddToCsiNode(#[source] Retried),
    #[error("error uninstalling CSI driver from CSINode object error updating CSINode: {0}")]
    RemoveFromCsiNode(#[source] Retried),
    #[error("error removing CSI driver node info from Node object error updating node: {0}")]
    RemoveFromNode(#[source] Retried),
    #[error("error updating CSINode annotation: {0}")]
    Initialize(#[source] Retried),
}

/// All attempts to write an object failed: their errors, each once.
#[derive(Debug, thiserror::Error)]
#[error("timed out waiting for the condition; caused by: {}", aggregate(.0))]
pub(crate) struct Retried(Vec<String>);

/// Attempts an update up to four times.
async fn retried<F: Future<Output = Result<(), WriteError>>>(
    mut attempt: impl FnMut() -> F,
) -> Result<(), Retried> {
    let mut errors: Vec<String> = Vec::new();
    for delay in RETRIES.iter().map(Some).chain([None]) {
        match attempt().await {
            Ok(()) => return Ok(()),
            Err(error) => {
                let text = error.to_string();
                if !errors.contains(&text) {
                    errors.push(text);
                }
            }
        }
        if let Some(delay) = delay {
            base::clock::sleep(*delay).await;
        }
    }
    Err(Retried(errors))
}

/// Writes the objects of this node.
#[derive(Debug)]
pub(crate) struct NodeInfoWriter {
    client: Client,
    node_name: String,
    /// Serializes updates: drivers may be registered at the same time.
    writing: tokio::sync::Mutex<()>,
}

impl NodeInfoWriter {
    pub(crate) fn new(client: Client, node_name: &str) -> Self {
        Self { client, node_name: node_name.to_owned(), writing: tokio::sync::Mutex::default() }
    }

    /// Creates the CSINode of the node, or updates its annotation. The Node must exist.
    pub(crate) async fn initialize(&self) -> Result<(), NodeInfoError> {
        let _writing = self.writing.lock().await;
        let attempt = || self.change_csi_node(|_| false, Missing::Create);
        retried(attempt).await.map_err(NodeInfoError::Initialize)
    }

    /// Adds a driver to the Node and the CSINode.
    pub(crate) async fn install(
        &self,
        driver: &str,
        info: &DriverNodeInfo,
    ) -> Result<(), NodeInfoError> {
        if info.node_id.is_empty() {
            return Err(NodeInfoError::NoNodeId);
        }
        let _writing = self.writing.lock().await;
        let add = |node: &Node| patch_to_add(node, driver, info);
        retried(|| self.change_node(add)).await.map_err(NodeInfoError::AddToNode)?;
        self.write_driver(driver, info).await
    }

    /// Updates a driver in the CSINode alone.
    pub(crate) async fn update(
        &self,
        driver: &str,
        info: &DriverNodeInfo,
    ) -> Result<(), NodeInfoError> {
        let _writing = self.writing.lock().await;
        self.write_driver(driver, info).await
    }

    async fn write_driver(&self, driver: &str, info: &DriverNodeInfo) -> Result<(), NodeInfoError> {
        let add = |object: &mut CSINode| add_driver(object, driver, info);
        let attempt = || self.change_csi_node(add, Missing::Create);
        retried(attempt).await.map_err(NodeInfoError::AddToCsiNode)
    }

    /// Removes a driver from the CSINode and the Node; its labels stay.
    pub(crate) async fn uninstall(&self, driver: &str) -> Result<(), NodeInfoError> {
        let _writing = self.writing.lock().await;
        let remove = |object: &mut CSINode| remove_driver(object, driver);
        let attempt = || self.change_csi_node(remove, Missing::Ignore);
        retried(attempt).await.map_err(NodeInfoError::RemoveFromCsiNode)?;
        let remove = |node: &Node| patch_to_remove(node, driver);
        retried(|| self.change_node(remove)).await.map_err(NodeInfoError::RemoveFromNode)
    }

    async fn change_node(
        &self,
        patch: impl Fn(&Node) -> Result<Option<Value>, WriteError>,
    ) -> Result<(), WriteError> {
        let node: Node = self.client.get("", &self.node_name).await?;
        let Some(mut patch) = patch(&node)? else { return Ok(()) };
        // A value that another writer changed meanwhile is not lost.
        patch["metadata"]["resourceVersion"] = json!(node.metadata.resource_version);
        let patch = Patch::Merge(&patch);
        let _: Node = self.client.patch("", &self.node_name, "", &patch).await?;
        Ok(())
    }

    async fn change_csi_node(
        &self,
        change: impl Fn(&mut CSINode) -> bool,
        missing: Missing,
    ) -> Result<(), WriteError> {
        let found = match self.client.get::<CSINode>("", &self.node_name).await {
            Ok(found) => Some(found),
            Err(error) if error.is_not_found() => None,
            Err(error) => return Err(error.into()),
        };
        let mut object = match (found, missing) {
            (Some(found), Missing::Ignore) => found,
            (None, Missing::Ignore) => return Ok(()),
            (found, Missing::Create) => {
                let node: Node = self.client.get("", &self.node_name).await?;
                match found {
                    Some(found) => self.check_owner(found, &node).await?,
                    None => self.client.create("", &new_csi_node(&node)).await?,
                }
            }
        };
        let is_annotated = missing == Missing::Create && annotate(&mut object.metadata);
        if change(&mut object) || is_annotated {
            self.client.update(&object).await?;
        }
        Ok(())
    }

    /// Deletes a CSINode that belongs to an earlier Node of the same name.
    async fn check_owner(&self, object: CSINode, node: &Node) -> Result<CSINode, WriteError> {
        match other_owner(&object, node) {
            None => Ok(object),
            Some(old) => {
                let options = DeleteOptions::default();
                self.client.delete::<CSINode>("", &self.node_name, &options).await?;
                let new = node.metadata.uid.clone().unwrap_or_default();
                Err(WriteError::OtherOwner { name: self.node_name.clone(), old, new })
            }
        }
    }
}

/// What to do if the CSINode does not exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Missing {
    Create,
    Ignore,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_update_is_attempted_four_times_and_errors_are_listed_once() {
        let attempts = std::cell::Cell::new(0);
        let fail = || {
            attempts.set(attempts.get() + 1);
            let value = if attempts.get() < 3 { "a" } else { "b" };
            let source = serde_json::from_str::<Value>("{").unwrap_err();
            async move { Err(WriteError::Annotation { value: value.to_owned(), source }) }
        };
        let error = retried(fail).await.unwrap_err().to_string();
        assert_eq!(attempts.get(), 4);
        assert_eq!(error.matches("failed to parse").count(), 2, "{error}");
        assert!(error.starts_with("timed out waiting for the condition; caused by: ["), "{error}");
    }
}
