//! Requests to nodes about their stored volumes, through the kubelet API.

use std::time::Duration;

use api::k8s::api::core::v1::Node;
use api::local_driver::{IN_PROGRESS, NO_ROOM};
use client::{Action, Client, Error, Informer, gvr_of};
use http::Method;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::framework::nodes;

/// How long the controller waits before it repeats a request that a node is working on.
const IN_PROGRESS_INTERVAL: Duration = Duration::from_secs(2);

/// Why a node did not do what was requested.
#[derive(Debug, thiserror::Error)]
pub(super) enum NodeRequestError {
    #[error(
        "node {0:?} does not exist; if it does not come back, remove the finalizer {1} by hand"
    )]
    NoNode(String, &'static str),
    #[error("node {0:?} is not ready; this is tried again once it is")]
    NotReady(String),
    #[error("{0}")]
    Request(#[from] Error),
}

impl NodeRequestError {
    fn reason(&self) -> &str {
        match self {
            Self::Request(error) => error.status().map_or("", |status| &status.reason),
            _ => "",
        }
    }

    /// Whether the node works on the request.
    pub(super) fn is_in_progress(&self) -> bool {
        self.reason() == IN_PROGRESS
    }

    /// Whether the node has no room for a volume.
    pub(super) fn is_no_room(&self) -> bool {
        self.reason() == NO_ROOM
    }

    /// What becomes of the key. All but errors of the connection end with a change of an object,
    /// which wakes the key.
    pub(super) fn outcome(self) -> Result<Action, Error> {
        match self {
            error if error.is_in_progress() => Ok(Action::After(IN_PROGRESS_INTERVAL)),
            Self::Request(error) if error.is_retryable() => Err(error),
            _ => Ok(Action::Done),
        }
    }
}

/// The kubelet APIs of nodes.
#[derive(Debug)]
pub(super) struct NodeRequests {
    /// Kubelets accept the API server alone.
    pub(super) apiserver: Client,
    pub(super) nodes: Informer<Node>,
}

impl NodeRequests {
    /// Sends a request about `path`, such as `volumes/pvc-1`, to a node that is ready.
    pub(super) async fn send<T: DeserializeOwned>(
        &self,
        node: &str,
        method: Method,
        path: &str,
        body: &impl Serialize,
    ) -> Result<T, NodeRequestError> {
        let object = self.nodes.get("", node);
        let object = object
            .ok_or_else(|| NodeRequestError::NoNode(node.to_owned(), super::plan::FINALIZER))?;
        if nodes::ready(&object) != Some("True") {
            return Err(NodeRequestError::NotReady(node.to_owned()));
        }
        let body = serde_json::to_vec(body).map_err(Error::from)?;
        let url = url(node, path);
        let answer = self.apiserver.request(method, &url, "application/json", body.into()).await?;
        Ok(serde_json::from_slice(&answer).map_err(Error::from)?)
    }
}

fn url(node: &str, path: &str) -> String {
    Client::path(&gvr_of::<Node>(), "", node, &format!("proxy/localDriver/{path}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_reach_the_kubelet_through_the_api_server() {
        assert_eq!(url("n1", "volumes/pvc-u"), "/api/v1/nodes/n1/proxy/localDriver/volumes/pvc-u");
    }

    #[test]
    fn a_request_that_a_node_is_working_on_is_repeated() {
        let refused = |code, reason: &str| {
            NodeRequestError::from(Error::from(api::Status::failure(code, reason, "")))
        };
        let outcome = refused(503, IN_PROGRESS).outcome().unwrap();
        assert!(matches!(outcome, Action::After(IN_PROGRESS_INTERVAL)));
        assert!(refused(503, "ServiceUnavailable").outcome().is_err());
        assert!(refused(507, NO_ROOM).is_no_room());
        for error in [refused(507, NO_ROOM), refused(409, "Conflict")] {
            assert!(matches!(error.outcome(), Ok(Action::Done)));
        }
    }
}
