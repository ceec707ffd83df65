//! The limits of a group that others create: that of the system, or of Kubernetes itself (upstream:
//! `pkg/kubelet/cm/node_container_manager_linux.go`).

use std::collections::BTreeMap;
use std::io;

use api::Quantity;

use super::{Cgroups, PIDS_MAX};
use crate::pods::resources;

/// Why the limits of a group are not set. The texts are upstream's.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReservedGroupError {
    #[error("{0} cgroup is not configured properly")]
    NothingReserved(String),
    #[error("cgroup {group} has some missing paths: {paths}")]
    MissingPaths { group: String, paths: String },
    #[error("could not read controllers for cgroup {group}: {source}")]
    Controllers { group: String, source: io::Error },
    #[error("cgroup {group} has some missing controllers: {controllers}")]
    MissingControllers { group: String, controllers: String },
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Limits in units of the kernel; what is `None` is not changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ReservedLimits {
    /// CPU shares, as of v1.
    shares: Option<i64>,
    /// Bytes.
    memory: Option<i64>,
    /// Processes and threads.
    pids: Option<i64>,
}

impl ReservedLimits {
    /// The limits of reserved amounts (`getCgroupConfigInternal`), or of CPU only; `None` if
    /// nothing is reserved. The CPUs of the group are not changed: upstream sets them for systemd's
    /// driver.
    pub(crate) fn of(amounts: &BTreeMap<String, String>, only_compressible: bool) -> Option<Self> {
        if amounts.is_empty() {
            return None;
        }
        let amount = |name: &str| amounts.get(name).and_then(|text| Quantity::parse(text).ok());
        let incompressible =
            |name: &str| amount(name).filter(|_| !only_compressible).map(|amount| amount.value());
        Some(Self {
            shares: amount("cpu").map(|amount| resources::shares(amount.milli_value())),
            memory: incompressible("memory"),
            pids: incompressible("pid"),
        })
    }
}

/// The name of a group as upstream writes it: its parts in brackets.
fn quoted(path: &str) -> String {
    let parts = path.split('/').filter(|part| !part.is_empty());
    let parts: Vec<String> = parts.map(|part| format!("{part:?}")).collect();
    format!("[{}]", parts.join(" "))
}

impl Cgroups {
    /// Sets the limits of an existing group (`enforceExistingCgroup`). `path` begins at the root of
    /// each hierarchy. Blocks.
    ///
    /// # Errors
    /// Nothing is reserved, the group does not exist with all controllers, or the kernel rejects a
    /// limit.
    pub(crate) fn limit_reserved(
        &self,
        path: &str,
        limits: Option<ReservedLimits>,
    ) -> Result<(), ReservedGroupError> {
        let limits = limits.ok_or_else(|| ReservedGroupError::NothingReserved(quoted(path)))?;
        if self.is_v2() {
            self.check_controllers(path)?
        } else {
            self.check_paths(path)?
        }
        for (controller, file, value) in [
            ("cpu", "cpu.shares", limits.shares),
            ("memory", "memory.limit_in_bytes", limits.memory),
            ("pids", PIDS_MAX, limits.pids),
        ] {
            if let Some(value) = value {
                self.set(path, controller, file, value)?;
            }
        }
        // MemoryQoS protects what is reserved whatever `memoryReservationPolicy` is.
        let protected = limits.memory.filter(|_| self.is_v2());
        let protected = protected.map(|bytes| ("memory.min", bytes.to_string()));
        self.write(path, protected.as_slice())?;
        Ok(())
    }

    /// Checks that a group exists in each hierarchy of v1.
    fn check_paths(&self, path: &str) -> Result<(), ReservedGroupError> {
        const CONTROLLERS: [&str; 7] =
            ["cpu", "cpuacct", "cpuset", "memory", "systemd", "pids", "hugetlb"];
        let hierarchies = CONTROLLERS.iter().map(|controller| self.mount.join(controller));
        let folders = hierarchies.filter(|hierarchy| hierarchy.is_dir());
        let folders = folders.map(|hierarchy| hierarchy.join(path.trim_start_matches('/')));
        let missing: Vec<String> = folders
            .filter(|folder| !folder.is_dir())
            .map(|folder| folder.display().to_string())
            .collect();
        if missing.is_empty() {
            return Ok(());
        }
        let paths = missing.join(", ");
        Err(ReservedGroupError::MissingPaths { group: quoted(path), paths })
    }

    /// Checks that a group exists in v2 with the controllers that the machine has.
    fn check_controllers(&self, path: &str) -> Result<(), ReservedGroupError> {
        const CONTROLLERS: [&str; 5] = ["cpu", "cpuset", "hugetlb", "memory", "pids"];
        let read = |path: &str| {
            let folder = self.mount.join(path.trim_start_matches('/'));
            std::fs::read_to_string(folder.join("cgroup.controllers"))
        };
        let failed = |source| ReservedGroupError::Controllers { group: quoted(path), source };
        let (own, all) = (read(path).map_err(failed)?, read("").map_err(failed)?);
        let has = |list: &str, name: &str| list.split_whitespace().any(|one| one == name);
        let missing = CONTROLLERS.into_iter().filter(|name| has(&all, name) && !has(&own, name));
        let controllers = missing.collect::<Vec<_>>().join(", ");
        if controllers.is_empty() {
            return Ok(());
        }
        Err(ReservedGroupError::MissingControllers { group: quoted(path), controllers })
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn amounts(list: &[(&str, &str)]) -> BTreeMap<String, String> {
        list.iter().map(|(name, amount)| ((*name).to_owned(), (*amount).to_owned())).collect()
    }

    /// The cases of upstream's `TestGetCgroupConfig`, and processes.
    #[test]
    fn limits_are_those_of_the_reserved_amounts() {
        let both = amounts(&[("cpu", "100m"), ("memory", "200Mi")]);
        let limits = |shares, memory, pids| Some(ReservedLimits { shares, memory, pids });
        assert_eq!(ReservedLimits::of(&amounts(&[]), false), None);
        assert_eq!(ReservedLimits::of(&both, true), limits(Some(102), None, None));
        let memory = amounts(&[("memory", "200Mi")]);
        assert_eq!(ReservedLimits::of(&memory, false), limits(None, Some(200 << 20), None));
        assert_eq!(ReservedLimits::of(&both, false), limits(Some(102), Some(200 << 20), None));
        let pids = amounts(&[("pid", "500"), ("ephemeral-storage", "1Gi")]);
        assert_eq!(ReservedLimits::of(&pids, false), limits(None, None, Some(500)));
    }

    fn write(mount: &Path, file: &str, text: &str) {
        let path = mount.join(file);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    fn read(mount: &Path, file: &str) -> String {
        std::fs::read_to_string(mount.join(file)).unwrap()
    }

    fn limits() -> Option<ReservedLimits> {
        ReservedLimits::of(&amounts(&[("cpu", "1"), ("memory", "1Mi"), ("pid", "9")]), false)
    }

    #[test]
    fn a_group_of_v1_exists_in_each_hierarchy() {
        let directory = tempfile::tempdir().unwrap();
        let mount = directory.path();
        let cgroups = super::super::tests::tree(mount, "/kubepods", false);
        write(mount, "cpu/a/b/cpu.shares", "1024");
        write(mount, "memory/a/b/memory.limit_in_bytes", "7");
        write(mount, "pids/other", "");
        write(mount, "blkio/other", "");
        let error = cgroups.limit_reserved("/a/b", limits()).unwrap_err().to_string();
        let missing = mount.join("pids/a/b");
        let want = format!("cgroup [\"a\" \"b\"] has some missing paths: {}", missing.display());
        assert_eq!(error, want);
        assert_eq!(read(mount, "memory/a/b/memory.limit_in_bytes"), "7", "nothing is changed");
        write(mount, "pids/a/b/pids.max", "max");
        cgroups.limit_reserved("a/b", limits()).unwrap();
        assert_eq!(read(mount, "cpu/a/b/cpu.shares"), "1024");
        assert_eq!(read(mount, "memory/a/b/memory.limit_in_bytes"), "1048576");
        assert_eq!(read(mount, "pids/a/b/pids.max"), "9");
        let error = cgroups.limit_reserved("/a/b", None).unwrap_err().to_string();
        assert_eq!(error, "[\"a\" \"b\"] cgroup is not configured properly");
    }

    #[test]
    fn a_group_of_v2_has_the_controllers_of_the_machine() {
        let directory = tempfile::tempdir().unwrap();
        let mount = directory.path();
        let cgroups = super::super::tests::tree(mount, "/kubepods", true);
        write(mount, "cgroup.controllers", "cpuset cpu io memory pids\n");
        let error = cgroups.limit_reserved("/a", limits()).unwrap_err().to_string();
        assert!(error.starts_with("could not read controllers for cgroup [\"a\"]: "), "{error}");
        write(mount, "a/cgroup.controllers", "cpu memory\n");
        let error = cgroups.limit_reserved("/a", limits()).unwrap_err().to_string();
        assert_eq!(error, "cgroup [\"a\"] has some missing controllers: cpuset, pids");
        write(mount, "a/cgroup.controllers", "cpuset cpu memory pids\n");
        for file in ["cpu.weight", "memory.max", "memory.min", "pids.max"] {
            write(mount, &format!("a/{file}"), "1");
        }
        cgroups.limit_reserved("/a", limits()).unwrap();
        assert_eq!(read(mount, "a/cpu.weight"), "39");
        assert_eq!(read(mount, "a/memory.max"), "1048576");
        assert_eq!(read(mount, "a/memory.min"), "1048576");
        assert_eq!(read(mount, "a/pids.max"), "9");
    }
}
