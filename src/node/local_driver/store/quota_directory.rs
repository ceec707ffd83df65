//! The directory `data` of a volume with `mode: quota`: a project of the node's file system, whose
//! hard limit is the size of the volume.
//!
//! From before the directory exists until after it is gone, the limit is set, and the record names
//! the project. So a crash leaves no directory without a limit, and no project that is not found.

use std::path::{Path, PathBuf};

use super::record::{LocalVolume, read_record};
use super::{DIR_MODE, Store, StoredKind, sync};
use crate::local_driver::error::LocalDriverError;
use crate::local_driver::quota::ProjectUsage;
use crate::volumes::mounts;

/// The lowest id of the projects of volumes. Other programs count from lower ones: the kubelet of
/// upstream from 1048577, container runtimes and administrators from 1.
pub(super) const FIRST_PROJECT: u32 = 1_800_000_000;
/// Number of the ids: a limit for the search of a free one.
pub(super) const PROJECTS: u32 = 65_536;

fn project(record: &LocalVolume) -> Result<u32, LocalDriverError> {
    record.project_id.ok_or_else(|| LocalDriverError::Other("its record has no projectId".into()))
}

impl Store {
    /// The directory with the files of a volume.
    pub(in crate::local_driver) fn data(&self, name: &str) -> PathBuf {
        self.dir(StoredKind::Volume, name).join("data")
    }

    /// Bytes that the files of a project take. Without quotas, nothing counts as taken.
    pub(super) fn taken_by_project(&self, project: u32) -> u64 {
        self.quotas.usage(&self.root, project).map_or(0, |usage| usage.used)
    }

    /// The lowest id that neither a record nor the file system uses.
    pub(super) fn free_project(&self) -> Result<u32, LocalDriverError> {
        self.quotas.check(&self.root)?;
        let failed = || LocalDriverError::io("read the quotas of", &self.root);
        let volumes = self.volumes().map_err(failed())?;
        let used: Vec<u32> = volumes.iter().filter_map(|(_, record)| record.project_id).collect();
        for id in FIRST_PROJECT..FIRST_PROJECT + PROJECTS {
            if used.contains(&id) {
                continue;
            }
            // What another program limited, or an administrator restored, is in no record.
            let usage = self.quotas.usage(&self.root, id).map_err(failed())?;
            if usage == ProjectUsage::default() {
                return Ok(id);
            }
        }
        Err(LocalDriverError::NoProject)
    }

    /// Makes the directory of a volume in its unfinished one.
    pub(super) fn make_directory(
        &self,
        unfinished: &Path,
        record: &LocalVolume,
    ) -> Result<(), LocalDriverError> {
        let project = project(record)?;
        let limited = self.quotas.set_limit(&self.root, project, record.size);
        limited.map_err(LocalDriverError::io("set a quota of", &self.root))?;
        let data = unfinished.join("data");
        base::fs::create_dir(&data, DIR_MODE)?;
        let set = self.quotas.set_project(&data, project);
        set.map_err(LocalDriverError::io("set the project of", &data))?;
        // The limit was written before the project, so that this writes both to the disk.
        sync(&data)?;
        sync(unfinished)
    }

    /// Gives the directory of a volume its project and the limit of its record. Fails if the file
    /// system does not enforce limits, as after a mount without the option.
    pub(super) fn limit_directory(
        &self,
        name: &str,
        record: &LocalVolume,
    ) -> Result<(), LocalDriverError> {
        let (project, data) = (project(record)?, self.data(name));
        self.quotas.check(&self.root)?;
        let limited = self.quotas.set_limit(&self.root, project, record.size);
        limited.map_err(LocalDriverError::io("set a quota of", &self.root))?;
        // A container that owns the directory may have changed it.
        let set = self.quotas.set_project(&data, project);
        set.map_err(LocalDriverError::io("set the project of", &data))?;
        sync(&data)
    }

    /// Fails if the directory of a volume is mounted.
    pub(super) fn check_unused(&self, name: &str) -> Result<(), LocalDriverError> {
        let data = self.data(name);
        let is_bound = mounts::is_bound(&data);
        match is_bound.map_err(LocalDriverError::io("find the mounts of", &data))? {
            true => Err(LocalDriverError::InUse(name.to_owned())),
            false => Ok(()),
        }
    }

    /// Removes an unfinished directory with its content. A limit is removed after the files, and
    /// the record after the limit, so that a restart finds the project.
    pub(super) fn discard(&self, directory: &Path) -> Result<(), LocalDriverError> {
        if let Ok(Some(LocalVolume { project_id: Some(project), .. })) = read_record(directory) {
            base::fs::remove_dir(&directory.join("data"))?;
            if let Err(error) = self.quotas.set_limit(&self.root, project, 0) {
                // Where quotas are off now, the limit remains, and its id is not used again.
                if self.quotas.check(&self.root).is_ok() {
                    return Err(LocalDriverError::io("remove a quota of", &self.root)(error));
                }
                tracing::warn!(project, %error, "local driver: a limit of a project remains");
            }
        }
        Ok(base::fs::remove_dir(directory)?)
    }
}

#[cfg(test)]
mod tests;
