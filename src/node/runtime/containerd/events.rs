//! Receives container events: from containerd's own event service, or from the CRI's with another
//! runtime.

use std::path::Path;
use std::time::Duration;

use base::{Backoff, Shutdown};
use prost::Message;
use proto::containerd::events::{TaskDelete, TaskExit, TaskOom, TaskStart};
use proto::containerd::services::events::v1::SubscribeRequest;
use proto::containerd::services::events::v1::events_client::EventsClient;
use proto::containerd::types::Envelope;
use proto::runtime::v1 as cri;
use proto::runtime::v1::runtime_service_client::RuntimeServiceClient;
use tokio::sync::mpsc;
use tonic::transport::Channel;

use super::NAMESPACE;
use crate::runtime::cri::channel;
use crate::runtime::{ContainerEvent, ContainerEventKind};

/// Maximum number of events that await the pod manager; beyond it the stream is not read, and the
/// runtime buffers.
pub(crate) const EVENTS_MAX: usize = 1024;

/// A message of the listener.
#[derive(Debug)]
pub(crate) enum RuntimeSignal {
    /// A change of one container.
    Event(ContainerEvent),
    /// The stream (re)started: earlier events may be lost, so observe everything.
    Restarted,
    /// The runtime closed the connection.
    Lost,
}

/// Runs until shutdown; each (re)connection sends [`RuntimeSignal::Restarted`].
pub(crate) async fn listen(
    socket: std::path::PathBuf,
    sender: mpsc::Sender<RuntimeSignal>,
    shutdown: Shutdown,
) -> Result<(), std::convert::Infallible> {
    let mut backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(5));
    loop {
        tokio::select! {
            () = shutdown.requested() => return Ok(()),
            outcome = session(&socket, &sender) => match outcome {
                Ok(()) => backoff.reset(),
                Err(error) => tracing::debug!(%error, "cannot read events of the runtime"),
            }
        }
        if sender.send(RuntimeSignal::Lost).await.is_err() || !backoff.wait(&shutdown).await {
            return Ok(());
        }
    }
}

/// Reads one stream to its end.
async fn session(socket: &Path, sender: &mpsc::Sender<RuntimeSignal>) -> Result<(), tonic::Status> {
    let channel = channel(socket);
    let filters = ["exit", "start", "oom", "delete"]
        .map(|t| format!("namespace==\"{NAMESPACE}\",topic==\"/tasks/{t}\""))
        .to_vec();
    let mut client = EventsClient::new(channel.clone());
    let begin = client.subscribe(SubscribeRequest { filters });
    let mut stream = match begun(channel.clone(), sender, begin).await {
        Ok(answer) => answer.into_inner(),
        Err(status) if status.code() == tonic::Code::Unimplemented => {
            return cri_session(channel, sender).await;
        }
        Err(status) => return Err(status),
    };
    while let Some(envelope) = stream.message().await? {
        if let Some(event) = translate(&envelope)
            && sender.send(RuntimeSignal::Event(event)).await.is_err()
        {
            break;
        }
    }
    Ok(())
}

/// Opens a stream of events and sends [`RuntimeSignal::Restarted`] once the runtime is up: runtimes
/// written in Go only respond to the request for a stream with its first event, which may take
/// long.
async fn begun<T>(
    channel: Channel,
    sender: &mpsc::Sender<RuntimeSignal>,
    begin: impl Future<Output = Result<T, tonic::Status>>,
) -> Result<T, tonic::Status> {
    let mut begin = std::pin::pin!(begin);
    let mut runtime = RuntimeServiceClient::new(channel);
    // The version is not sufficient: the runtime returns it before it has restored its containers.
    let up = runtime.status(cri::StatusRequest { verbose: false });
    let mut up = std::pin::pin!(up);
    let mut announced = false;
    loop {
        tokio::select! {
            // Poll the stream request first, so that no event is lost between the two.
            biased;
            stream = &mut begin => return stream,
            status = &mut up, if !announced => {
                status?;
                announced = true;
                let _ = sender.send(RuntimeSignal::Restarted).await;
            }
        }
    }
}

async fn cri_session(
    channel: Channel,
    sender: &mpsc::Sender<RuntimeSignal>,
) -> Result<(), tonic::Status> {
    let mut client = RuntimeServiceClient::new(channel.clone());
    let begin = client.get_container_events(cri::GetEventsRequest {});
    let mut stream = begun(channel, sender, begin).await?.into_inner();
    while let Some(event) = stream.message().await? {
        let kind = match event.container_event_type() {
            cri::ContainerEventType::ContainerStartedEvent => ContainerEventKind::Started,
            cri::ContainerEventType::ContainerStoppedEvent => ContainerEventKind::Exited,
            cri::ContainerEventType::ContainerDeletedEvent => ContainerEventKind::Deleted,
            cri::ContainerEventType::ContainerCreatedEvent => continue,
        };
        let event = ContainerEvent { id: event.container_id, kind };
        if sender.send(RuntimeSignal::Event(event)).await.is_err() {
            break;
        }
    }
    Ok(())
}

/// Translates events of a container's first process; an exec has its own id.
fn translate(envelope: &Envelope) -> Option<ContainerEvent> {
    let bytes = envelope.event.as_ref()?.value.as_slice();
    let (id, kind) = match envelope.topic.as_str() {
        "/tasks/exit" => {
            let exit = TaskExit::decode(bytes).ok()?;
            if exit.id != exit.container_id {
                return None;
            }
            (exit.container_id, ContainerEventKind::Exited)
        }
        "/tasks/start" => {
            (TaskStart::decode(bytes).ok()?.container_id, ContainerEventKind::Started)
        }
        "/tasks/oom" => {
            (TaskOom::decode(bytes).ok()?.container_id, ContainerEventKind::OutOfMemory)
        }
        "/tasks/delete" => {
            let delete = TaskDelete::decode(bytes).ok()?;
            if !delete.id.is_empty() && delete.id != delete.container_id {
                return None;
            }
            (delete.container_id, ContainerEventKind::Deleted)
        }
        _ => return None,
    };
    Some(ContainerEvent { id, kind })
}
