//! The record of a volume or snapshot.

use std::io;
use std::path::{Path, PathBuf};

use api::local_driver::{ContentSource, FsType, Stored, VolumeMode, VolumeRequest};
use serde::{Deserialize, Serialize};

use crate::local_driver::error::LocalDriverError;

/// The record of a volume or snapshot, in the file `volume.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(in crate::local_driver) struct LocalVolume {
    /// Size of the file, or limit of the directory, in bytes.
    pub(in crate::local_driver) size: u64,
    pub(in crate::local_driver) mode: VolumeMode,
    /// The file system; `None` for a block volume and for a directory.
    pub(in crate::local_driver) fs_type: Option<FsType>,
    /// In nanoseconds since the epoch.
    pub(in crate::local_driver) created_at: i64,
    pub(in crate::local_driver) source: Option<ContentSource>,
    /// The root directory does not yet let every user write.
    pub(in crate::local_driver) is_new: bool,
    /// The file system is smaller than the file.
    pub(in crate::local_driver) must_grow: bool,
    /// The project of the directory; `None` for a file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(in crate::local_driver) project_id: Option<u32>,
}

impl LocalVolume {
    /// What the controller receives.
    pub(in crate::local_driver) fn stored(&self) -> Stored {
        Stored { size: self.size, created_at: self.created_at }
    }

    /// Whether containers get a device instead of files.
    pub(in crate::local_driver) fn is_block(&self) -> bool {
        self.mode == VolumeMode::Loop && self.fs_type.is_none()
    }
}

/// The time for [`LocalVolume::created_at`].
pub(super) fn now() -> i64 {
    i64::try_from(base::clock::unix_time().as_nanos()).unwrap_or_default()
}

/// Compares a request with the volume of the same name.
pub(super) fn check_same(
    name: &str,
    found: LocalVolume,
    request: &VolumeRequest,
) -> Result<LocalVolume, LocalDriverError> {
    let what = if found.fs_type != request.fs_type {
        "file system"
    } else if found.mode != request.mode {
        "mode"
    } else if found.source != request.source {
        "source"
    } else {
        return Ok(found);
    };
    Err(LocalDriverError::Conflict { name: name.to_owned(), what })
}

fn record_path(directory: &Path) -> PathBuf {
    directory.join("volume.json")
}

/// Reads the record of a directory; `None` if it has none.
pub(super) fn read_record(directory: &Path) -> Result<Option<LocalVolume>, LocalDriverError> {
    let path = record_path(directory);
    let text = match std::fs::read(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(LocalDriverError::io("read", &path)(error)),
    };
    let record = serde_json::from_slice(&text).map_err(io::Error::from);
    record.map(Some).map_err(LocalDriverError::io("read", &path))
}

/// Replaces the record of a directory; synced.
pub(super) fn write_record(directory: &Path, record: &LocalVolume) -> Result<(), LocalDriverError> {
    let path = record_path(directory);
    let text = serde_json::to_vec(record).map_err(io::Error::from);
    let written = text.and_then(|text| base::fs::write_atomic(&path, &text, 0o600));
    written.map_err(LocalDriverError::io("write", &path))
}
