//! What iSCSI and Fibre Channel volumes have in common: the machine's devices and programs, the
//! global mount or map path of a volume that all pods of the node share, the records of its users,
//! and how it is set up and detached (`pkg/volume/iscsi`, `pkg/volume/fc`, `pkg/volume/util`).
//!
//! What has to be torn down is on disk: a record for each volume of a pod, written before the
//! volume is attached and removed after the pod no longer has it, and the global path, which exists
//! until the device is detached.

mod controller;
mod detach;
mod device_files;
mod error;
#[cfg(test)]
pub(super) mod fake;
mod global;
mod label;
mod programs;
mod record;
mod set_up;
mod state;
#[cfg(test)]
mod tests;
mod volume;

pub(crate) use controller::take_over;
pub(super) use detach::tear_down;
pub(super) use device_files::DeviceFiles;
pub(crate) use error::{ScsiError, ScsiTearDownError, ScsiVolumeError};
pub(super) use programs::{ProgramError, ProgramOutput, Programs};
pub(super) use record::labels_of_volumes;
pub(super) use set_up::set_up;
pub(crate) use state::Scsi;
pub(super) use volume::ScsiVolume;
