//! Why a CSI volume cannot be set up or torn down; the texts are upstream's.

use std::io;
use std::path::PathBuf;

use tokio::task::JoinError;

use super::driver_client::RpcError;
use super::drivers::DriverNotRegistered;
use crate::volumes::device::DeviceError;
use crate::volumes::selinux::SelinuxError;

/// Why a CSI volume of a pod cannot be set up (yet).
#[derive(Debug, thiserror::Error)]
pub(crate) enum CsiVolumeError {
    /// Another component has to act first; as in upstream, no event reports it.
    #[error("{what} for volume {spec_name:?} ")]
    Waiting { what: &'static str, spec_name: String },
    /// A volume that is set up cannot be enlarged.
    #[error("{step} for volume {spec_name:?} : {source}")]
    Expansion { step: &'static str, spec_name: String, source: CsiError },
    #[error("{step} failed for volume {spec_name:?} : {source}")]
    Failed { step: &'static str, spec_name: String, source: CsiError },
    #[error(transparent)]
    Selinux(#[from] SelinuxError),
}

impl CsiVolumeError {
    /// Whether the volume waits for another component.
    pub(crate) fn is_waiting(&self) -> bool {
        matches!(self, Self::Waiting { .. })
    }
}

/// Why a step of a CSI volume failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CsiError {
    #[error(transparent)]
    NotRegistered(#[from] DriverNotRegistered),
    #[error(transparent)]
    Rpc(#[from] RpcError),
    /// `doing` says what failed, in upstream's words.
    #[error("kubernetes.io/csi: {doing}: {source}")]
    Step { doing: &'static str, source: Box<CsiError> },
    #[error(
        "kubernetes.io/csi: failed to find the secret {name} in the namespace {namespace} with \
         error: {source}"
    )]
    Secret { namespace: String, name: String, source: client::Error },
    /// `doing` names the field of the volume with the reference.
    #[error("{doing} {namespace}/{name}{failed}: {source}", failed = failed(doing))]
    SecretReference { doing: &'static str, namespace: String, name: String, source: Box<CsiError> },
    #[error("volume mode {mode:?} not supported by driver {driver} (no CSIDriver object)")]
    ModeWithoutObject { mode: &'static str, driver: String },
    #[error(
        "volume mode {mode:?} not supported by driver {driver} (only supports {})",
        go_list(supported)
    )]
    Mode { mode: &'static str, driver: String, supported: Vec<String> },
    #[error("CSIDriver informer has not yet synced")]
    NotSynced,
    #[error("volume {handle} has GET error for volume attachment {name}: {source}")]
    GetAttachment { handle: String, name: String, source: client::Error },
    #[error("volume attachment is being deleted")]
    AttachmentDeleted,
    /// The error of the driver's attacher.
    #[error("{0}")]
    AttachFailed(String),
    #[error("volume {handle} is not attached for volume attachment {name}")]
    NotAttached { handle: String, name: String },
    #[error("failed to fetch token: {0}")]
    Token(#[source] client::Error),
    #[error("NodeExpand is not supported by the CSI driver {0}")]
    CannotExpand(String),
    #[error("Expander.NodeExpand failed to expand the volume : {0}")]
    Expand(#[source] RpcError),
    #[error("patchPVCStatus failed to patch PVC {name:?}: {source}")]
    PatchClaim { name: String, source: client::Error },
    #[error("applyFSGroup failed for vol {handle}: {source}")]
    FsGroup { handle: String, source: io::Error },
    #[error("{what} {name:?} is not a valid name of a directory")]
    InvalidName { what: &'static str, name: String },
    #[error("{0:?} is still mounted after the driver unpublished it; unmount it")]
    StillMounted(PathBuf),
    #[error("{0:?} is not a block device; the driver did not publish one")]
    NotBlockDevice(PathBuf),
    #[error(transparent)]
    Device(#[from] DeviceError),
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Panicked(#[from] JoinError),
}

/// Upstream's texts about references to Secrets have two forms.
fn failed(doing: &str) -> &'static str {
    if doing.starts_with("fetching") { " failed" } else { "" }
}

/// Formats texts as Go does with `%q`.
fn go_list(texts: &[String]) -> String {
    let quoted: Vec<String> = texts.iter().map(|t| format!("{t:?}")).collect();
    format!("[{}]", quoted.join(" "))
}

impl CsiError {
    /// Whether the driver certainly does not work on the operation any longer: traces of it may be
    /// removed.
    pub(crate) fn is_final(&self) -> bool {
        match self {
            Self::Rpc(error) => error.is_final(),
            _ => false,
        }
    }

    /// Whether the driver is not registered on this node.
    pub(crate) fn is_not_registered(&self) -> bool {
        match self {
            Self::NotRegistered(_) => true,
            Self::Step { source, .. } => source.is_not_registered(),
            _ => false,
        }
    }
}

/// Adds what failed to an error, in upstream's words.
pub(crate) trait Doing<T> {
    /// `doing` is the text before the error.
    fn doing(self, doing: &'static str) -> Result<T, CsiError>;
}

impl<T, E: Into<CsiError>> Doing<T> for Result<T, E> {
    fn doing(self, doing: &'static str) -> Result<T, CsiError> {
        self.map_err(|error| CsiError::Step { doing, source: Box::new(error.into()) })
    }
}

/// Why the CSI volumes of a pod cannot be torn down: the first volume that failed.
#[derive(Debug, thiserror::Error)]
#[error("{step} failed for volume {spec_name:?} : {source}")]
pub(crate) struct CsiTearDownError {
    pub(crate) step: &'static str,
    pub(crate) spec_name: String,
    pub(crate) source: CsiError,
}
