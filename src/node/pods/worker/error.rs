//! Why a pod cannot be advanced, stopped or removed.

use std::io;

use api::field::aggregate;

use crate::dynamic_resources::PrepareFailed;
use crate::pods::cri_config::{InvalidBandwidth, InvalidPodSpec};
use crate::runtime::RuntimeError;
use crate::user_namespaces::UserNamespaceError;
use crate::volumes::{TearDownError, VolumeError};

/// Why a pod cannot be advanced towards its desired state.
#[derive(Debug, thiserror::Error)]
pub(super) enum SyncError {
    #[error("error making pod data directories: {0}")]
    Directories(#[source] io::Error),
    #[error("unable to ensure pod container exists: {0}")]
    Cgroup(#[source] io::Error),
    #[error(transparent)]
    Volume(#[from] VolumeError),
    /// The pod network does not work, for the given reason.
    #[error("network is not ready: {0}")]
    NetworkNotReady(String),
    #[error("Failed to prepare dynamic resources: {0}")]
    PrepareClaims(#[source] PrepareFailed),
    #[error("the pod has to end")]
    PodEnds,
    #[error("Failed to create pod sandbox: {0}")]
    CreateSandbox(#[source] SandboxError),
    /// A container that was not started; the text is the message of its waiting state.
    #[error("{0}")]
    StartContainer(String),
    #[error(transparent)]
    Kill(#[from] KillPodError),
    #[error(transparent)]
    Resize(#[from] ResizeError),
    #[error(transparent)]
    Runtime(#[from] RuntimeError),
}

/// Why a sandbox cannot be created.
#[derive(Debug, thiserror::Error)]
pub(super) enum SandboxError {
    #[error(transparent)]
    Config(#[from] InvalidPodSpec),
    #[error(transparent)]
    Bandwidth(#[from] InvalidBandwidth),
    #[error(transparent)]
    UserNamespace(#[from] UserNamespaceError),
    /// The RuntimeClass cannot be read.
    #[error("failed to get sandbox runtime: {0}")]
    RuntimeClass(#[source] client::Error),
    #[error("{}", .0.grpc_text())]
    Run(#[source] RuntimeError),
}

/// Why a resize was not applied.
#[derive(Debug, thiserror::Error)]
pub(super) enum ResizeError {
    /// A container that needs a restart was not stopped.
    #[error(transparent)]
    Stop(#[from] RuntimeError),
    #[error("container {container}: {}", .source.message)]
    Update { container: String, source: RuntimeError },
    /// Limits of memory below what is used.
    #[error("cannot decrease memory limits: {}", aggregate(.0))]
    Memory(Vec<String>),
    /// The limits of the pod's cgroup were not lowered.
    #[error(transparent)]
    Cgroup(#[from] io::Error),
}

/// The steps that failed while a pod was stopped, as the kubelet's `SyncResult` describes them; not
/// empty.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("error killing pod: {}", aggregate(.0))]
pub(super) struct KillPodError(pub(super) Vec<String>);

/// Why the remains of a stopped pod cannot be removed.
#[derive(Debug, thiserror::Error)]
pub(super) enum RemoveError {
    #[error(transparent)]
    Kill(#[from] KillPodError),
    /// A volume cannot be unmounted, or the pod's directory cannot be removed.
    #[error(transparent)]
    TearDown(#[from] TearDownError),
}
