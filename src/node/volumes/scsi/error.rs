//! Why an iSCSI or Fibre Channel volume cannot be set up or torn down.

use std::io;
use std::path::PathBuf;

use tokio::task::JoinError;

use super::programs::ProgramError;
use crate::volumes::device::DeviceError;
use crate::volumes::selinux::SelinuxError;

/// Why a volume of a pod cannot be set up (yet).
#[derive(Debug, thiserror::Error)]
pub(crate) enum ScsiVolumeError {
    /// Another component has to act first; as in upstream, no event reports it.
    #[error("{what} for volume {spec_name:?} ")]
    Waiting { what: &'static str, spec_name: String },
    #[error("{step} failed for volume {spec_name:?} : {source}")]
    Failed { step: &'static str, spec_name: String, source: ScsiError },
    #[error(transparent)]
    Selinux(#[from] SelinuxError),
}

impl ScsiVolumeError {
    /// Whether the volume waits for another component.
    pub(crate) fn is_waiting(&self) -> bool {
        matches!(self, Self::Waiting { .. })
    }
}

/// Why the volumes of a pod cannot be torn down: the first volume that failed.
#[derive(Debug, thiserror::Error)]
#[error("{step} failed for volume {spec_name:?} : {source}")]
pub(crate) struct ScsiTearDownError {
    pub(crate) step: &'static str,
    pub(crate) spec_name: String,
    pub(crate) source: ScsiError,
}

/// The text about the last portal that failed.
fn last_error(last: Option<&ScsiError>) -> String {
    last.map(ToString::to_string).unwrap_or_default()
}

/// Why a step failed; the texts are upstream's where it has one.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ScsiError {
    #[error("{what} {name:?} is not a valid name of a file")]
    InvalidName { what: &'static str, name: String },
    #[error("AttachDisk: lun is not a number: {lun}\nError: {source}")]
    Lun { lun: String, source: std::num::ParseIntError },
    #[error("couldn't get secret {namespace}/{name} error: {source}")]
    Secret { namespace: String, name: String, source: client::Error },
    #[error("{status}: iscsi: could not read iface {iface} error: {output}")]
    ReadIface { iface: String, status: String, output: String },
    #[error("iscsi: cannot clone iface with same name: {0}")]
    SameIface(String),
    /// `doing` is the step of the copy of an interface.
    #[error("iscsi: failed to {doing}: {output} ({status})")]
    Iface { doing: &'static str, output: String, status: String },
    #[error("error: invalid iface setting: {0}")]
    IfaceSetting(String),
    #[error("could not parse iface file for {0}")]
    NoTransport(String),
    #[error("Could not get SCSI host number for portal {0} after logging in")]
    NoHost(String),
    #[error("cannot scan SCSI host {host}: {source}")]
    Scan { host: u32, source: io::Error },
    /// The value of a setting is not shown.
    #[error("iscsi: failed to update {record} of portal {portal} with CHAP, key {key:?}")]
    Chap { record: &'static str, portal: String, key: &'static str },
    #[error("iscsi: failed to sendtargets to portal {portal} output: {output}, err {status}")]
    Discover { portal: String, output: String, status: String },
    #[error("iscsi: failed to attach disk: Error: {output} ({status})")]
    LogIn { output: String, status: String },
    #[error("Timed out waiting for device at path {path} after {seconds}s")]
    NoDevice { path: PathBuf, seconds: u64 },
    #[error(
        "failed to get any path for iscsi disk, last err seen:\n{}",
        last_error(.0.as_deref())
    )]
    NoPath(Option<Box<ScsiError>>),
    #[error("iscsi: failed to {doing}: {output} ({status})")]
    Detach { doing: &'static str, output: String, status: String },
    #[error("{0:?} is not the global path of a volume")]
    GlobalPath(PathBuf),
    #[error("fc: no fc disk information found. failed to make a new mounter")]
    NoFcDisk,
    #[error("no fc disk found")]
    FcDiskNotFound,
    #[error("failed to flush multipath device {device:?}: {status}\n{output}")]
    FlushMultipath { device: PathBuf, status: String, output: String },
    /// The text is upstream's (`mount-utils`), in which a space precedes the arguments.
    #[error(
        "mount failed: {status}\nMounting command: mount\nMounting arguments:  {arguments}\n\
         Output: {output}"
    )]
    Mount { arguments: String, status: String, output: String },
    #[error("{0:?} is not a block device")]
    NotBlockDevice(PathBuf),
    #[error("{path:?} is still mounted at {other:?}; unmount it")]
    StillMounted { path: PathBuf, other: PathBuf },
    /// `path` is the global path.
    #[error("{plugin}: failed to detach disk: {path:?}\nError: {source}")]
    DetachDisk { plugin: &'static str, path: PathBuf, source: Box<ScsiError> },
    #[error(transparent)]
    Program(#[from] ProgramError),
    #[error(transparent)]
    Device(#[from] DeviceError),
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Panicked(#[from] JoinError),
}

impl ScsiError {
    /// Whether another portal of an iSCSI volume cannot do better.
    pub(crate) fn ends_attach(&self) -> bool {
        matches!(
            self,
            Self::Program(ProgramError::Missing { .. })
                | Self::Scan { .. }
                | Self::NoTransport(_)
                | Self::Io(_)
                | Self::Panicked(_)
        )
    }
}
