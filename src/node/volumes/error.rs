//! Why the volumes of a pod cannot be set up.

use std::fmt;
use std::io;
use std::sync::Arc;

use tokio::task::JoinError;

use super::device::DeviceError;
use super::huge_pages::HugePagesError;
use super::nfs::NfsError;
use super::scsi::{ScsiError, ScsiVolumeError};
use super::selinux::SelinuxError;
use crate::credentials::pod_certificates::CertificateError;
use crate::credentials::trust_bundles::TrustBundleError;
use crate::csi::error::CsiVolumeError;
use crate::events;
use crate::pods::cri_config::InvalidPodSpec;
use crate::pods::cri_config::env_file::EnvFileError;

/// A volume cannot be set up (yet); the text is shown in an event.
#[derive(Debug)]
pub(crate) struct VolumeError {
    /// Name of the volume.
    pub(crate) volume: String,
    /// Whether the containers use the volume as a device.
    pub(crate) as_device: bool,
    pub(crate) source: SetUpError,
}

impl VolumeError {
    fn step(&self) -> &'static str {
        if self.as_device { "MapVolume.SetUpDevice" } else { "MountVolume.SetUp" }
    }

    /// Returns the reason of the event; `None` if the volume only waits for another component.
    pub(crate) fn reason(&self) -> Option<&'static str> {
        match &self.source {
            SetUpError::Csi(error) if error.is_waiting() => None,
            SetUpError::Scsi(error) if error.is_waiting() => None,
            source if source.selinux().is_some() => Some(events::FAILED_MOUNT),
            _ if self.as_device => Some(events::FAILED_MAP_VOLUME),
            _ => Some(events::FAILED_MOUNT),
        }
    }
}

impl fmt::Display for VolumeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(error) = self.source.selinux() {
            let Self { volume, .. } = self;
            let unprocessed = if error.is_unprocessed() { volume.as_str() } else { "" };
            // The words of `WaitForAttachAndMount`, about the volume that is missing.
            return write!(
                f,
                "Unable to attach or mount volumes: unmounted volumes=[{volume}], unattached \
                 volumes=[], failed to process volumes=[{unprocessed}]: {error}"
            );
        }
        match &self.source {
            // It names the step and the PersistentVolume, as in upstream.
            SetUpError::Csi(error) => error.fmt(f),
            SetUpError::Scsi(error) => error.fmt(f),
            error => write!(f, "{} failed for volume {:?} : {error}", self.step(), self.volume),
        }
    }
}

impl std::error::Error for VolumeError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.source)
    }
}

/// Why a volume cannot be set up.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SetUpError {
    #[error("this kind of volume is not supported by this node")]
    KindNotSupported,
    /// A volume of an in-tree plugin that its CSI driver does not know.
    #[error("failed to translate in-tree pv to CSI: {0}")]
    Translation(#[from] api::csi_translation::TranslationError),
    #[error("a projected source of this kind is not supported by this node")]
    ProjectedKindNotSupported,
    #[error("emptyDir medium {0:?} is not supported by this node")]
    MediumNotSupported(String),
    #[error("path {0:?} must not contain '..'")]
    ParentInPath(String),
    #[error("hostPath type {0:?} is not supported")]
    HostPathTypeNotSupported(String),
    /// `expected` is the kind of file.
    #[error("hostPath type check failed: {path} is not a {expected}")]
    HostPathType { path: String, expected: &'static str },
    /// `kind` is `configmap` or `secret`.
    #[error("{kind} {name:?} not found")]
    NotFound { kind: &'static str, name: String },
    #[error("{kind} {namespace}/{name} was not read yet")]
    NotRead { kind: &'static str, namespace: String, name: String },
    /// A ConfigMap or Secret cannot be read; the text of the last error.
    #[error("{0}")]
    Read(String),
    #[error("{kind} references non-existent key: {key}")]
    NoKey { kind: &'static str, key: String },
    /// A field of the downward API.
    #[error(transparent)]
    Field(#[from] InvalidPodSpec),
    #[error("failed to fetch token: {0}")]
    Token(#[source] client::Error),
    #[error(transparent)]
    TrustBundle(#[from] TrustBundleError),
    #[error("no credentials yet")]
    NoCredentials,
    #[error(transparent)]
    Certificate(Arc<CertificateError>),
    #[error("PVC {namespace}/{name} is not bound yet")]
    NotBound { namespace: String, name: String },
    #[error("volume uses the ReadWriteOncePod access mode and is already in use by another pod")]
    UsedByOther,
    /// The mode of a volume does not fit its use: `list` is `volumeMounts` or `volumeDevices`.
    #[error("volume {volume} has volumeMode {mode}, but is specified in {list}")]
    Mode { volume: String, mode: String, list: &'static str },
    #[error("volumeMode Block is possible for local, iscsi, fc and csi volumes only")]
    BlockNotSupported,
    #[error("{0:?} is not a block device")]
    NotBlockDevice(std::path::PathBuf),
    #[error("only directory and block device are supported: {0:?}")]
    NotDirectoryOrDevice(std::path::PathBuf),
    #[error(transparent)]
    HugePages(#[from] HugePagesError),
    #[error(transparent)]
    Nfs(#[from] NfsError),
    #[error(transparent)]
    Device(#[from] DeviceError),
    #[error("path {0:?} does not exist")]
    NoPath(String),
    #[error(
        "PersistentVolume {0:?} is neither local, hostPath, nfs, iscsi, fc nor csi: its kind is \
         not supported by this node"
    )]
    DriverNotSupported(String),
    #[error(transparent)]
    Csi(#[from] CsiVolumeError),
    #[error(transparent)]
    Scsi(#[from] ScsiVolumeError),
    /// Labels of a volume that is never mounted with one.
    #[error(transparent)]
    Selinux(#[from] SelinuxError),
    /// The source of a volume names no disk.
    #[error(transparent)]
    ScsiSource(#[from] ScsiError),
    #[error("cannot change {path:?} to fsGroup: {source}")]
    FsGroup { path: std::path::PathBuf, source: io::Error },
    /// A claim or volume cannot be read.
    #[error(transparent)]
    Client(#[from] client::Error),
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Panicked(#[from] JoinError),
}

impl SetUpError {
    /// The conflict of SELinux labels, if it is one.
    fn selinux(&self) -> Option<&SelinuxError> {
        match self {
            Self::Selinux(error)
            | Self::Csi(CsiVolumeError::Selinux(error))
            | Self::Scsi(ScsiVolumeError::Selinux(error)) => Some(error),
            _ => None,
        }
    }
}

/// Why a sub-path of a volume cannot be mounted, or a file of it not be opened.
#[derive(Debug, thiserror::Error)]
pub(super) enum SubPathError {
    #[error("error SubPath `{0}` must not be an absolute path")]
    Absolute(String),
    #[error("unable to provision SubPath `{0}`: must not contain '..'")]
    Parent(String),
    #[error("the sub-path is empty")]
    Empty,
    #[error("{0:?} is not a regular file")]
    NotRegularFile(String),
    /// A path below the volume cannot be opened or created.
    #[error(transparent)]
    Open(#[from] nix::Error),
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Why an env file of a volume cannot be read.
#[derive(Debug, thiserror::Error)]
pub(super) enum EnvFileReadError {
    #[error(transparent)]
    Open(#[from] SubPathError),
    #[error(transparent)]
    Read(#[from] io::Error),
    #[error(transparent)]
    Invalid(#[from] EnvFileError),
    #[error("the file has more than {0} bytes")]
    FileTooLarge(u64),
    #[error("the values from files have more than {0} bytes together")]
    ValuesTooLarge(usize),
}
