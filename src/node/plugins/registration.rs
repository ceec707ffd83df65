//! The registration of one plugin, as `operation_generator.go` of the kubelet's plugin manager does
//! it.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use proto::pluginregistration::registration_client::RegistrationClient;
use proto::pluginregistration::{InfoRequest, PluginInfo, RegistrationStatus};
use tonic::transport::Channel;

use super::handler::{Plugin, PluginHandler, PluginRefused};
use crate::runtime::cri::channel;

/// Deadline of the call `GetInfo`.
const INFO_TIMEOUT: Duration = Duration::from_secs(1);
/// Deadline of the call `NotifyRegistrationStatus` (`notifyTimeoutDuration`).
const NOTIFY_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum size of an answer in bytes: names and versions.
const ANSWER_MAX: usize = 64 << 10;

/// Why a plugin is not registered.
#[derive(Debug, thiserror::Error)]
pub(super) enum RegistrationError {
    #[error(
        "RegisterPlugin error -- dial failed at socket {socket}, err: failed to dial socket \
         {socket}, err: {source}",
        socket = socket.display()
    )]
    Dial { socket: PathBuf, source: io::Error },
    #[error(
        "RegisterPlugin error -- failed to get plugin info using RPC GetInfo at socket {socket}, \
         err: {source}",
        socket = socket.display()
    )]
    Info { socket: PathBuf, source: CallError },
    #[error(
        "RegisterPlugin error -- no handler registered for plugin type: {type_} at socket {socket}",
        socket = socket.display()
    )]
    UnknownType { type_: String, socket: PathBuf },
    #[error("RegisterPlugin error -- plugin validation failed with err: {0}")]
    Invalid(#[source] PluginRefused),
    #[error("RegisterPlugin error -- plugin registration failed with err: {0}")]
    Refused(#[source] PluginRefused),
    #[error(
        "RegisterPlugin error -- failed to send registration status at socket {socket}, err: \
         {source}",
        socket = socket.display()
    )]
    Notify { socket: PathBuf, source: CallError },
}

/// Why a call to a plugin failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum CallError {
    #[error("rpc error: code = {:?} desc = {}", .0.code(), .0.message())]
    Status(#[from] Box<tonic::Status>),
    #[error("rpc error: code = DeadlineExceeded desc = context deadline exceeded")]
    Timeout,
}

async fn call<T>(
    timeout: Duration,
    call: impl Future<Output = Result<tonic::Response<T>, tonic::Status>>,
) -> Result<T, CallError> {
    match tokio::time::timeout(timeout, call).await {
        Ok(Ok(response)) => Ok(response.into_inner()),
        Ok(Err(status)) => Err(CallError::Status(Box::new(status))),
        Err(_) => Err(CallError::Timeout),
    }
}

async fn notify(
    client: &mut RegistrationClient<Channel>,
    error: Option<&RegistrationError>,
) -> Result<(), CallError> {
    let status = RegistrationStatus {
        plugin_registered: error.is_none(),
        error: error.map(ToString::to_string).unwrap_or_default(),
    };
    call(NOTIFY_TIMEOUT, client.notify_registration_status(status)).await.map(drop)
}

/// Finds the handler of a plugin and has it check the plugin.
pub(super) fn validate(
    info: PluginInfo,
    socket: &Path,
    handlers: &[Arc<dyn PluginHandler>],
) -> Result<(Plugin, Arc<dyn PluginHandler>), RegistrationError> {
    let Some(handler) = handlers.iter().find(|h| h.plugin_type() == info.r#type) else {
        let socket = socket.to_owned();
        return Err(RegistrationError::UnknownType { type_: info.r#type, socket });
    };
    let endpoint = if info.endpoint.is_empty() { socket.into() } else { info.endpoint.into() };
    let plugin = Plugin { name: info.name, endpoint, versions: info.supported_versions };
    handler.validate(&plugin).map_err(RegistrationError::Invalid)?;
    Ok((plugin, Arc::clone(handler)))
}

/// Registers the plugin at `socket` and reports the outcome to it.
///
/// # Errors
///
/// The plugin does not answer, or it is refused, which it is informed of.
pub(super) async fn register(
    socket: &Path,
    handlers: &[Arc<dyn PluginHandler>],
) -> Result<(Plugin, Arc<dyn PluginHandler>), RegistrationError> {
    // The channel connects late and says little about why it cannot.
    if let Err(source) = tokio::net::UnixStream::connect(socket).await {
        return Err(RegistrationError::Dial { socket: socket.to_owned(), source });
    }
    let mut client = RegistrationClient::new(channel(socket)).max_decoding_message_size(ANSWER_MAX);
    let info = call(INFO_TIMEOUT, client.get_info(InfoRequest {}))
        .await
        .map_err(|source| RegistrationError::Info { socket: socket.to_owned(), source })?;
    let accepted = async {
        let (plugin, handler) = validate(info, socket, handlers)?;
        handler.register(&plugin).await.map_err(RegistrationError::Refused)?;
        Ok((plugin, handler))
    };
    let accepted: Result<_, RegistrationError> = accepted.await;
    let notified = notify(&mut client, accepted.as_ref().err()).await;
    let (plugin, handler) = accepted?;
    if let Err(source) = notified {
        handler.deregister(&plugin).await;
        return Err(RegistrationError::Notify { socket: socket.to_owned(), source });
    }
    Ok((plugin, handler))
}
