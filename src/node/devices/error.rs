//! Why devices are not allocated, and why a device plugin is not connected. Texts that end up in
//! events, statuses and responses are upstream's.

use std::fmt;
use std::io;
use std::path::PathBuf;

/// Name of the checkpoint file, which the error of a failed write contains.
pub(crate) const CHECKPOINT: &str = "kubelet_internal_checkpoint";

/// A failed call to a device plugin.
#[derive(Debug, Clone, thiserror::Error)]
pub(crate) enum CallError {
    /// The plugin answered with an error, or its connection failed.
    #[error("{}", GoStatus(.0))]
    Status(Box<tonic::Status>),
    /// The plugin did not answer within the deadline of the call.
    #[error("rpc error: code = DeadlineExceeded desc = context deadline exceeded")]
    Deadline,
    /// No plugin of the resource is connected any longer.
    #[error("endpoint {} has been stopped", .0.display())]
    Stopped(PathBuf),
    /// A device of the built-in plugin is not on the machine.
    #[error("device {0} is not present on this node; plug it in")]
    Missing(String),
}

impl From<tonic::Status> for CallError {
    fn from(status: tonic::Status) -> Self {
        Self::Status(Box::new(status))
    }
}

/// Formats a status as a Go gRPC client formats its error.
struct GoStatus<'a>(&'a tonic::Status);

impl fmt::Display for GoStatus<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let message = self.0.message();
        match self.0.code() {
            tonic::Code::Cancelled => write!(f, "rpc error: code = Canceled desc = {message}"),
            code => write!(f, "rpc error: code = {code:?} desc = {message}"),
        }
    }
}

/// Why a pod or container gets no devices.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AllocationError {
    /// The devices that an earlier process recorded are not as many as the container requests.
    #[error(
        "pod {pod:?} container {container:?} changed request for resource {resource:?} from \
         {recorded} to {requested}"
    )]
    RequestChanged {
        pod: String,
        container: String,
        resource: String,
        recorded: usize,
        requested: usize,
    },
    /// No plugin has listed devices of the resource.
    #[error("cannot allocate unregistered device {0}")]
    Unregistered(String),
    #[error("no healthy devices present; cannot allocate unhealthy devices {0}")]
    NoHealthyDevices(String),
    #[error(
        "previously allocated devices are no longer healthy; cannot allocate unhealthy devices {0}"
    )]
    NoLongerHealthy(String),
    #[error(
        "requested number of devices unavailable for {resource}. Requested: {requested}, \
         Available: {available}"
    )]
    Unavailable { resource: String, requested: usize, available: usize },
    #[error("endpoint not found in cache for a registered resource: {0}")]
    NoEndpoint(String),
    #[error("device plugin GetPreferredAllocation rpc failed with err: {0}")]
    PreferredAllocation(#[source] CallError),
    #[error("unknown Device Plugin {0}")]
    UnknownPlugin(String),
    #[error(transparent)]
    Allocate(CallError),
    /// The plugin answered without a response for the container. Go formats the response, which
    /// is empty, as nothing.
    #[error("no containers return in allocation response ")]
    NoResponse,
    #[error("failed to write checkpoint file {CHECKPOINT:?}: {0}")]
    Checkpoint(#[source] io::Error),
    #[error("device plugin PreStartContainer rpc failed with err: {0}")]
    PreStartContainer(#[source] CallError),
}

/// Why a plugin is not connected. Its registration fails with this text.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConnectError {
    #[error(
        "requested API version {0:?} is not supported by kubelet. Supported version is [\"v1beta1\"]"
    )]
    Version(String),
    #[error("the ResourceName {0:?} is invalid")]
    ResourceName(String),
    /// The socket of the plugin did not accept a connection in time.
    #[error("failed to dial device plugin: context deadline exceeded")]
    Dial,
    #[error("failed to get device plugin options: {0}")]
    Options(#[source] CallError),
    /// Specific to kube-lite.
    #[error("the devices of {0:?} are those of --device; remove the flag or the plugin")]
    BuiltIn(String),
    /// Specific to kube-lite.
    #[error(
        "{0} device plugins are connected, which is the limit; stop plugins that are not needed"
    )]
    TooMany(usize),
}

/// Why a plugin that announces itself in the registry of plugins is refused.
#[derive(Debug, thiserror::Error)]
pub(crate) enum InvalidPlugin {
    #[error(
        "manager version, v1beta1, is not among plugin supported versions [{}]",
        .0.join(" ")
    )]
    Versions(Vec<String>),
    #[error("invalid name of device plugin socket: the ResourceName {0:?} is invalid")]
    Name(String),
}

/// Why a list of devices is refused, and with it the connection of its plugin.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum InvalidDevices {
    #[error("a device has an empty ID")]
    EmptyId,
    #[error("several devices have the ID {0:?}")]
    DuplicateId(String),
    #[error("{0} devices are more than the limit of {max}", max = super::state::DEVICES_MAX)]
    TooMany(usize),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_have_the_texts_of_the_kubelet() {
        let status = tonic::Status::unknown("no such device");
        let call = CallError::from(status);
        assert_eq!(call.to_string(), "rpc error: code = Unknown desc = no such device");
        let cancelled = CallError::from(tonic::Status::cancelled("x"));
        assert_eq!(cancelled.to_string(), "rpc error: code = Canceled desc = x");
        let text = AllocationError::RequestChanged {
            pod: "u".to_owned(),
            container: "c".to_owned(),
            resource: "example.com/r".to_owned(),
            recorded: 2,
            requested: 1,
        };
        assert_eq!(
            text.to_string(),
            "pod \"u\" container \"c\" changed request for resource \"example.com/r\" from 2 to 1"
        );
        let text = AllocationError::Checkpoint(io::Error::other("no space"));
        assert_eq!(
            text.to_string(),
            "failed to write checkpoint file \"kubelet_internal_checkpoint\": no space"
        );
        assert_eq!(
            ConnectError::Version("v1".to_owned()).to_string(),
            "requested API version \"v1\" is not supported by kubelet. Supported version is \
             [\"v1beta1\"]"
        );
    }
}
