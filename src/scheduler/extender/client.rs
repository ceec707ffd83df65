//! Sends calls to extenders: one pool of connections for each, with the limits of the
//! configuration.

use std::sync::Arc;

use base::{Shutdown, Tasks};
use bytes::Bytes;
use futures::future::join_all;
use http::StatusCode;
use webhook::post::{Poster, User};

use super::protocol::{answer_max, binding_answer, binding_args};
use super::{CallExtenders, Extender, ExtenderCall, ExtenderError, Extenders};
use crate::pod_info::PodInfo;

/// The clients of all extenders; cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct ExtenderClients {
    extenders: Extenders,
    clients: Arc<[Poster]>,
    shutdown: Shutdown,
}

impl ExtenderClients {
    /// Clients without connections.
    pub(crate) fn new(extenders: &Extenders, tasks: &Tasks) -> Self {
        let client = |e: &Arc<Extender>| Poster::new(e.endpoint.clone(), User::SCHEDULER, tasks);
        Self {
            extenders: extenders.clone(),
            clients: extenders.0.iter().map(client).collect(),
            shutdown: tasks.shutdown().clone(),
        }
    }

    /// All extenders.
    pub(crate) fn extenders(&self) -> &Extenders {
        &self.extenders
    }

    /// Has an extender bind the pod to the node.
    ///
    /// # Errors
    /// The extender fails, or answers with an error.
    pub(crate) async fn bind(
        &self,
        extender: &Extender,
        pod: &PodInfo,
        node: &str,
    ) -> Result<(), ExtenderError> {
        let body = Bytes::from(binding_args(pod, node).to_string());
        let verb = extender.bind_verb.as_str();
        let answer_max = answer_max(1, body.len());
        let answer = self.send(ExtenderCall { extender, verb, body, answer_max }).await?;
        binding_answer(extender, &answer)
    }

    async fn send(&self, call: ExtenderCall<'_>) -> Result<Bytes, ExtenderError> {
        let ExtenderCall { extender, verb, body, answer_max: max } = call;
        let url = extender.url(verb);
        let Some(client) = self.clients.get(extender.index) else {
            return Err(ExtenderError::Stopping { url });
        };
        let path = format!("{}/{verb}", extender.endpoint.path.trim_end_matches('/'));
        let response = tokio::select! {
            response = tokio::time::timeout(
                extender.timeout,
                client.post_to(&path, body, max),
            ) => response,
            () = self.shutdown.requested() => return Err(ExtenderError::Stopping { url }),
        };
        let (head, body) = match response {
            Ok(Ok(response)) => response,
            Ok(Err(source)) => return Err(ExtenderError::Transport { url, source }),
            Err(_) => return Err(ExtenderError::Timeout { url }),
        };
        if head.status != StatusCode::OK {
            let code = head.status.as_u16();
            return Err(ExtenderError::Code { verb: verb.to_owned(), url, code });
        }
        body.ok_or(ExtenderError::Body { url, max })
    }
}

/// Only for threads that may block: a cycle with extenders runs away from the workers.
impl CallExtenders for ExtenderClients {
    fn call(&self, calls: Vec<ExtenderCall<'_>>) -> Vec<Result<Bytes, ExtenderError>> {
        let all = join_all(calls.into_iter().map(|call| self.send(call)));
        tokio::runtime::Handle::current().block_on(all)
    }
}
