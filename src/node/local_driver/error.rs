//! Why the built-in CSI driver cannot do what it is requested to do.

use std::io;
use std::path::PathBuf;
use std::process::ExitStatus;

use api::Status;
use api::local_driver::{IN_PROGRESS, NO_ROOM};

/// Why an operation on a volume failed.
#[derive(Debug, Clone, thiserror::Error)]
pub(crate) enum LocalDriverError {
    #[error("{0:?} is not the name of a volume or snapshot of this driver")]
    Name(String),
    #[error("{0} bytes is not the size of a volume")]
    Size(u64),
    #[error("invalid request: {0}")]
    Request(String),
    #[error("this node has no {kind} {name}")]
    NotFound { kind: &'static str, name: String },
    #[error("volume {name} exists with another {what}")]
    Conflict { name: String, what: &'static str },
    #[error("the source is a {0}, the volume is not")]
    OtherKind(&'static str),
    #[error(
        "{requested} bytes do not fit on this node: {available} bytes are free below \
         {directory:?}, of which the other volumes may still take {promised}"
    )]
    NoRoom { requested: u64, available: u64, promised: u64, directory: PathBuf },
    #[error(
        "mode quota needs ext4 (made with mkfs.ext4 -O project,quota) or XFS, mounted with the \
         option prjquota; {directory:?} is on {found}"
    )]
    NoQuota { directory: PathBuf, found: String },
    #[error("all project ids of volumes are in use: delete volumes of mode quota of this node")]
    NoProject,
    #[error(
        "volume {0} has the mode quota: snapshots and copies of it are not supported, because a \
         directory cannot be copied at one moment"
    )]
    NoCopy(String),
    #[error("volume {0} is in use on this node; it is deleted once no pod uses it")]
    InUse(String),
    #[error(
        "block volume {0} is in use, and the file system of this node cannot share blocks \
         (FICLONE): a copy would not be consistent; stop the pods that use it"
    )]
    BusyBlock(String),
    #[error("cannot run {program}: {error}; install the package {package} on the node")]
    Program { program: &'static str, package: &'static str, error: String },
    #[error("{program} failed: {status}: {output}")]
    Failed { program: &'static str, status: ExitStatus, output: String },
    #[error("the node stops")]
    Stopped,
    #[error("the node works on {0} since an earlier request")]
    InProgress(String),
    #[error("cannot add the driver to the CSINode: {0}")]
    Register(String),
    #[error("cannot {action} {path:?}: {error}")]
    Io { action: &'static str, path: PathBuf, error: String },
    #[error("{0}")]
    Other(String),
}

impl LocalDriverError {
    /// Returns a function that adds to an I/O error what failed.
    pub(super) fn io(
        action: &'static str,
        path: impl Into<PathBuf>,
    ) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |error| Self::Io { action, path, error: error.to_string() }
    }

    /// The answer of the kubelet API.
    pub(crate) fn status(&self) -> Status {
        let (code, reason) = match self {
            Self::Name(_)
            | Self::Size(_)
            | Self::Request(_)
            | Self::OtherKind(_)
            | Self::NoCopy(_) => (400, "BadRequest"),
            Self::NotFound { .. } => (404, "NotFound"),
            Self::Conflict { .. } => (409, "Conflict"),
            Self::NoRoom { .. } => (507, NO_ROOM),
            Self::InUse(_) | Self::BusyBlock(_) | Self::Stopped | Self::Register(_) => {
                (503, "ServiceUnavailable")
            }
            Self::InProgress(_) => (503, IN_PROGRESS),
            Self::Program { .. }
            | Self::Failed { .. }
            | Self::NoQuota { .. }
            | Self::NoProject
            | Self::Io { .. }
            | Self::Other(_) => (500, "InternalError"),
        };
        Status::failure(code, reason, self.to_string())
    }
}

impl From<io::Error> for LocalDriverError {
    fn from(error: io::Error) -> Self {
        Self::Other(error.to_string())
    }
}
