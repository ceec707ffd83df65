//! The server at which device plugins register (`/v1beta1.Registration`).

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use base::Kind;
use proto::deviceplugin::registration_server::{Registration, RegistrationServer};
use proto::deviceplugin::{Empty, RegisterRequest};
use tokio::net::UnixListener;
use tonic::service::Routes;
use tonic::{Request, Response, Status};

use super::error::ConnectError;
use super::{DeviceManager, metrics, unix_server};
use crate::pods::resources;

/// Name of the socket in the directory of plugins.
const SOCKET: &str = "kubelet.sock";
/// The supported version of the API of plugins.
pub(super) const VERSION: &str = "v1beta1";
/// Maximum size of a request, which consists of two names and a version.
const MESSAGE_MAX: usize = 16 << 10;
/// Bytes of a name that becomes the label of a metric; valid ones have at most 317.
const LABEL_MAX: usize = 512;
/// Connections served at a time; a plugin closes its one after the registration.
const CONNECTIONS_MAX: usize = 64;

/// Binds the socket and serves it until shutdown.
///
/// # Errors
///
/// The socket cannot be bound.
pub(super) fn serve(manager: &Arc<DeviceManager>) -> io::Result<()> {
    let path = manager.directory.join(SOCKET);
    let listener = UnixListener::bind(&path).map_err(|error| {
        io::Error::new(error.kind(), format!("cannot listen at {}: {error}", path.display()))
    })?;
    let server = RegistrationServer::new(RegistrationService(Arc::clone(manager)))
        .max_decoding_message_size(MESSAGE_MAX);
    let tasks = manager.tasks.clone();
    let routes = Routes::new(server);
    let serve = unix_server::serve(listener, routes, "device plugins", CONNECTIONS_MAX, tasks);
    manager.tasks.spawn(Kind::Critical, "device-plugins", serve);
    Ok(())
}

#[derive(Debug)]
struct RegistrationService(Arc<DeviceManager>);

impl RegistrationService {
    async fn connect(&self, request: RegisterRequest) -> Result<(), ConnectError> {
        let RegisterRequest { version, endpoint, resource_name, .. } = request;
        if version != VERSION {
            return Err(ConnectError::Version(version));
        }
        if !resources::is_extended(&resource_name) {
            return Err(ConnectError::ResourceName(resource_name));
        }
        // As with Go's `filepath.Join`, a leading slash does not make the name absolute.
        let socket: PathBuf = self.0.directory.join(endpoint.trim_start_matches('/'));
        self.0.connect(&resource_name, socket).await
    }
}

#[tonic::async_trait]
impl Registration for RegistrationService {
    async fn register(&self, request: Request<RegisterRequest>) -> Result<Response<Empty>, Status> {
        let request = request.into_inner();
        let label: String = request.resource_name.chars().take(LABEL_MAX).collect();
        metrics::REGISTRATIONS.inc(&[&label]);
        match self.connect(request).await {
            Ok(()) => Ok(Response::new(Empty {})),
            Err(error) => {
                tracing::warn!(resource = label, %error, "devices: a plugin is refused");
                Err(Status::unknown(error.to_string()))
            }
        }
    }
}
