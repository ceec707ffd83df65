//! The agent's part of the cgroup tree: `kubepods`, its QoS classes, and one group per pod, in v1
//! hierarchies or v2.

mod accounting;
pub(crate) mod metrics;
mod pod_limits;
mod reserved;
mod usage;

use std::io;
use std::path::{Path, PathBuf};

#[cfg(test)]
pub(crate) use self::accounting::CpuLimit;
pub(crate) use self::accounting::{DiskCounters, GroupCounters, IoCost, Throttling};
pub(crate) use self::pod_limits::{PodGroupConfig, are_equal_shares};
pub(crate) use self::reserved::{ReservedGroupError, ReservedLimits};
pub(crate) use self::usage::{GroupPressure, GroupUsage, Psi, PsiData};
#[cfg(test)]
use crate::config::memory::MemoryConfig;
use crate::machine;
use crate::pods::pod::Pod;
use crate::pods::resources;
use crate::pods::resources::{CPU_PERIOD, ClassRequests, Hierarchy, MemoryControl, Qos, Setting};

/// The file has this name in both versions.
const PIDS_MAX: &str = "pids.max";
/// The v1 controllers that limit pods.
const CONTROLLERS: [&str; 7] = ["cpu", "cpuacct", "cpuset", "memory", "pids", "blkio", "hugetlb"];

/// Limits of a pod's group that do not follow from the pod.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct PodGroupLimits {
    /// Processes and threads.
    pub(crate) pids_max: Option<i64>,
    /// A container has CPUs of its own, so that the pod has no quota.
    pub(crate) is_cpu_unlimited: bool,
}

/// The cgroup tree under one root.
#[derive(Debug, Clone)]
pub(crate) struct Cgroups {
    mount: PathBuf,
    /// `/kubepods` under the configured root.
    top: String,
    /// Sizes of huge pages in bytes that can be limited; set by [`Cgroups::setup`].
    huge_page_sizes: Vec<i64>,
    memory: MemoryControl,
}

impl Cgroups {
    /// The tree under `root` (a path in each hierarchy, `/` for the top).
    pub(crate) fn new(root: &str, mut memory: MemoryControl) -> Self {
        let mount = PathBuf::from("/sys/fs/cgroup");
        let v2 = mount.join("cgroup.controllers").exists();
        let top = format!("{}/kubepods", root.trim_end_matches('/'));
        memory.hierarchy = if v2 { Hierarchy::V2 } else { Hierarchy::V1 };
        Self { mount, top, huge_page_sizes: Vec::new(), memory }
    }

    /// What the memory controller does for containers besides its limit.
    pub(crate) fn memory(&self) -> &MemoryControl {
        &self.memory
    }

    /// Whether the machine uses cgroup v2.
    pub(crate) fn is_v2(&self) -> bool {
        self.memory.hierarchy == Hierarchy::V2
    }

    /// Sizes of huge pages in bytes that this tree limits: all that the kernel has, or none without
    /// the `hugetlb` controller.
    pub(crate) fn huge_page_sizes(&self) -> &[i64] {
        &self.huge_page_sizes
    }

    /// Whether the tree has the `hugetlb` controller.
    fn limits_huge_pages(&self) -> bool {
        if !self.is_v2() {
            return self.mount.join("hugetlb").is_dir();
        }
        let file = self.mount.join(self.top.trim_start_matches('/')).join("cgroup.controllers");
        let controllers = std::fs::read_to_string(file).unwrap_or_default();
        controllers.split_whitespace().any(|c| c == "hugetlb")
    }

    /// A tree of version 2 in a directory, for tests.
    #[cfg(test)]
    pub(crate) fn in_folder(mount: PathBuf) -> Self {
        let machine = machine::Machine::default();
        let mut memory = MemoryControl::new(MemoryConfig::default(), &machine, 0);
        memory.hierarchy = Hierarchy::V2;
        Self { mount, top: "/kubepods".to_owned(), huge_page_sizes: Vec::new(), memory }
    }

    /// Whether the kernel accounts for swap. The root of version 2 has no file for the limit.
    fn accounts_for_swap(&self) -> bool {
        let top = self.top.trim_start_matches('/');
        match self.is_v2() {
            true => self.mount.join(top).join("memory.swap.max").exists(),
            false => self.mount.join("memory/memory.memsw.limit_in_bytes").exists(),
        }
    }

    /// Cgroup of a pod, such as `/kubepods/burstable/pod<uid>`, in the form that the runtime takes
    /// for a parent.
    pub(crate) fn pod_path(&self, pod: &Pod) -> String {
        self.path(resources::qos(pod), &pod.uid)
    }

    fn path(&self, qos: Qos, uid: &str) -> String {
        match qos {
            Qos::Guaranteed => format!("{}/pod{uid}", self.top),
            Qos::Burstable => format!("{}/burstable/pod{uid}", self.top),
            Qos::BestEffort => format!("{}/besteffort/pod{uid}", self.top),
        }
    }

    /// The directories of a cgroup: one in v2, one for each existing hierarchy in v1.
    fn folders(&self, path: &str) -> Vec<(&'static str, PathBuf)> {
        let relative = path.trim_start_matches('/');
        if self.is_v2() {
            return vec![("", self.mount.join(relative))];
        }
        CONTROLLERS
            .iter()
            .filter(|c| self.mount.join(c).is_dir())
            .map(|c| (*c, self.mount.join(c).join(relative)))
            .collect()
    }

    /// Creates `kubepods` and the QoS classes, with the memory, the CPU and the processes that all
    /// pods together may use.
    ///
    /// # Errors
    ///
    /// A hierarchy cannot be written.
    pub(crate) fn setup(
        &mut self,
        cpu_milli: i64,
        memory: i64,
        pids: Option<i64>,
    ) -> io::Result<()> {
        for path in [
            self.top.clone(),
            format!("{}/burstable", self.top),
            format!("{}/besteffort", self.top),
        ] {
            self.create(&path)?;
        }
        if self.limits_huge_pages() {
            self.huge_page_sizes =
                machine::huge_pages().into_iter().map(|(size, _)| size).collect();
        }
        self.memory.accounts_for_swap = self.accounts_for_swap();
        self.protect_memory(ClassRequests::default())?;
        self.set(&self.top, "cpu", "cpu.shares", resources::shares(cpu_milli))?;
        self.set(&self.top, "memory", "memory.limit_in_bytes", memory)?;
        if let Some(pids) = pids {
            self.set(&self.top, "pids", PIDS_MAX, pids)?;
        }
        self.set(&format!("{}/besteffort", self.top), "cpu", "cpu.shares", resources::shares(0))
    }

    /// Creates or updates the group of a pod with its own limits and those of `limits`.
    ///
    /// # Errors
    ///
    /// A hierarchy cannot be written.
    pub(crate) fn apply(&self, pod: &Pod, limits: PodGroupLimits) -> io::Result<()> {
        self.update(pod, limits, |_, _| true)
    }

    /// Like [`Cgroups::apply`], but lowers no limit. Called before a resize of the containers,
    /// whose limits must never exceed those of their pod.
    ///
    /// # Errors
    ///
    /// A hierarchy cannot be written.
    pub(crate) fn raise(&self, pod: &Pod, limits: PodGroupLimits) -> io::Result<()> {
        self.update(pod, limits, |has, wanted| has.is_none_or(|has| has < wanted))
    }

    /// Sets requests and those limits that `replaces` accepts; it is called with the current limit,
    /// if any, and the new one.
    fn update(
        &self,
        pod: &Pod,
        group: PodGroupLimits,
        replaces: impl Fn(Option<i64>, i64) -> bool,
    ) -> io::Result<()> {
        let path = self.pod_path(pod);
        let is_new = self.folders(&path).iter().any(|(_, folder)| !folder.is_dir());
        self.create(&path)?;
        let desired = PodGroupConfig::of(pod, group);
        if let Some(shares) = desired.shares {
            self.set(&path, "cpu", "cpu.shares", shares)?;
        }
        // A missing limit counts as higher than any other.
        let set = |controller, file, wanted: Option<i64>| {
            let Some(wanted) = wanted else { return Ok(()) };
            let has = self.limit(&path, controller, file).or((!is_new).then_some(i64::MAX));
            if replaces(has, wanted) { self.set(&path, controller, file, wanted) } else { Ok(()) }
        };
        set("cpu", "cpu.cfs_quota_us", desired.quota)?;
        set("memory", "memory.limit_in_bytes", desired.memory)?;
        for size in &self.huge_page_sizes {
            let request = resources::pod_request(pod, &resources::huge_page_resource(*size));
            self.limit_huge_pages(&path, *size, request.value())?;
        }
        self.write(&path, &self.memory.of_pod(pod))?;
        match group.pids_max {
            Some(max) => self.set(&path, "pids", PIDS_MAX, max),
            None => Ok(()),
        }
    }

    /// Protects the requests of memory of all pods in the groups above theirs, where this is
    /// configured.
    ///
    /// # Errors
    ///
    /// A group cannot be written.
    pub(crate) fn protect_memory(&self, requests: ClassRequests) -> io::Result<()> {
        metrics::record(self.memory.protected(requests));
        let (all, burstable) = self.memory.of_classes(requests);
        self.write(&self.top, &all)?;
        self.write(&format!("{}/burstable", self.top), &burstable)
    }

    /// Writes files of a version 2 group that differ; a kernel may lack some of them.
    fn write(&self, path: &str, settings: &[Setting]) -> io::Result<()> {
        let folder = self.mount.join(path.trim_start_matches('/'));
        for (file, value) in settings {
            write_changed(&folder.join(file), value)?;
        }
        Ok(())
    }

    /// Limits the huge pages of one size that a group may use.
    fn limit_huge_pages(&self, path: &str, size: i64, bytes: i64) -> io::Result<()> {
        let suffix = if self.is_v2() { "max" } else { "limit_in_bytes" };
        let file = format!("hugetlb.{}.{suffix}", resources::huge_page_unit(size));
        for (name, folder) in self.folders(path) {
            let target = folder.join(&file);
            if self.is_v2() || name == "hugetlb" {
                write_changed(&target, &bytes.to_string())?;
            }
        }
        Ok(())
    }

    /// The current limit of a group, by the name of its v1 file; `None` without one.
    fn limit(&self, path: &str, controller: &str, file: &str) -> Option<i64> {
        let name = if self.is_v2() { translate(file, 2).0 } else { file };
        let folders = self.folders(path);
        let (_, folder) = folders.iter().find(|(c, _)| self.is_v2() || *c == controller)?;
        let text = std::fs::read_to_string(folder.join(name)).ok()?;
        let value = text.split_whitespace().next()?.parse::<i64>().ok()?;
        // v1 writes "no limit" as -1 for a quota and as a huge number of bytes for memory.
        (0..1 << 60).contains(&value).then_some(value)
    }

    /// Sets the CPU shares of the group of all burstable pods.
    pub(crate) fn set_burstable_shares(&self, cpu_milli: i64) -> io::Result<()> {
        self.set(
            &format!("{}/burstable", self.top),
            "cpu",
            "cpu.shares",
            resources::shares(cpu_milli),
        )
    }

    fn create(&self, path: &str) -> io::Result<()> {
        for (controller, folder) in self.folders(path) {
            if folder.is_dir() {
                continue;
            }
            if controller == "cpuset" {
                create_cpuset(&self.mount.join(controller), path)?;
                continue;
            }
            if self.is_v2() {
                delegate(&self.mount, path);
            }
            named(&folder, std::fs::create_dir_all(&folder))?;
        }
        Ok(())
    }

    /// Writes a v1 value or its v2 counterpart.
    fn set(&self, path: &str, controller: &str, file: &str, value: i64) -> io::Result<()> {
        let (file, value) =
            if self.is_v2() { translate(file, value) } else { (file, value.to_string()) };
        for (name, folder) in self.folders(path) {
            if self.is_v2() || name == controller {
                write_changed(&folder.join(file), &value)?;
            }
        }
        Ok(())
    }

    /// Removes the group of a pod and its children from each QoS class.
    pub(crate) fn remove(&self, uid: &str) {
        for qos in [Qos::Guaranteed, Qos::Burstable, Qos::BestEffort] {
            let path = self.path(qos, uid);
            // The runtime creates the group in every hierarchy, including those that the agent does
            // not write.
            for root in self.roots() {
                remove_tree(&root.join(path.trim_start_matches('/')));
            }
        }
    }

    /// The root of every hierarchy.
    fn roots(&self) -> Vec<PathBuf> {
        if self.is_v2() {
            return vec![self.mount.clone()];
        }
        let entries = std::fs::read_dir(&self.mount).into_iter().flatten().flatten();
        entries.map(|e| e.path()).filter(|p| p.is_dir() && !p.is_symlink()).collect()
    }

    /// Uids of the pods that have a group.
    pub(crate) fn pods(&self) -> Vec<String> {
        let mut out = std::collections::BTreeSet::new();
        for path in [
            self.top.clone(),
            format!("{}/burstable", self.top),
            format!("{}/besteffort", self.top),
        ] {
            for folder in self.roots().iter().map(|r| r.join(path.trim_start_matches('/'))) {
                for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
                    if let Some(uid) =
                        entry.file_name().to_str().and_then(|n| n.strip_prefix("pod"))
                    {
                        out.insert(uid.to_owned());
                    }
                }
            }
        }
        out.into_iter().collect()
    }
}

fn named<T>(path: &Path, result: io::Result<T>) -> io::Result<T> {
    result.map_err(|e| io::Error::new(e.kind(), format!("cgroup {}: {e}", path.display())))
}

/// Writes a file of a group if it exists and has another value.
fn write_changed(file: &Path, value: &str) -> io::Result<()> {
    if file.exists() && std::fs::read_to_string(file).unwrap_or_default().trim() != value {
        named(file, std::fs::write(file, value))?;
    }
    Ok(())
}

/// A new v1 cpuset is empty and accepts no process until CPUs and memory nodes are set.
fn create_cpuset(hierarchy: &Path, path: &str) -> io::Result<()> {
    let mut folder = hierarchy.to_owned();
    for part in path.split('/').filter(|p| !p.is_empty()) {
        let parent = folder.clone();
        folder.push(part);
        if !folder.is_dir() {
            named(&folder, std::fs::create_dir(&folder))?;
        }
        for file in ["cpuset.cpus", "cpuset.mems"] {
            let own = std::fs::read_to_string(folder.join(file)).unwrap_or_default();
            if own.trim().is_empty() {
                let value = std::fs::read_to_string(parent.join(file)).unwrap_or_default();
                named(&folder, std::fs::write(folder.join(file), value.trim()))?;
            }
        }
    }
    Ok(())
}

/// Enables the controllers in every ancestor of a v2 group; a missing controller stays disabled.
fn delegate(mount: &Path, path: &str) {
    let mut folder = mount.to_owned();
    let parts: Vec<&str> = path.split('/').filter(|p| !p.is_empty()).collect();
    for part in std::iter::once("").chain(parts.iter().take(parts.len().saturating_sub(1)).copied())
    {
        folder.push(part);
        let _ = std::fs::create_dir_all(&folder);
        for controller in ["cpu", "memory", "pids", "cpuset", "io", "hugetlb"] {
            let _ = std::fs::write(folder.join("cgroup.subtree_control"), format!("+{controller}"));
        }
    }
}

/// The v2 file and value for a v1 setting.
fn translate(file: &str, value: i64) -> (&'static str, String) {
    match file {
        "cpu.shares" => ("cpu.weight", pod_limits::weight(value).to_string()),
        "cpu.cfs_quota_us" => ("cpu.max", format!("{value} {CPU_PERIOD}")),
        PIDS_MAX => (PIDS_MAX, value.to_string()),
        _ => ("memory.max", value.to_string()),
    }
}

/// Removes nested groups, leaves first; a group that still has processes remains.
fn remove_tree(folder: &Path) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|t| t.is_dir()) {
            remove_tree(&entry.path());
        }
    }
    let _ = std::fs::remove_dir(folder);
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(super) fn tree(mount: &Path, top: &str, v2: bool) -> Cgroups {
        let mut cgroups = Cgroups::in_folder(mount.to_owned());
        cgroups.top = top.to_owned();
        cgroups.memory.hierarchy = if v2 { Hierarchy::V2 } else { Hierarchy::V1 };
        cgroups
    }

    #[test]
    fn huge_pages_of_a_pod_are_limited_to_its_requests() {
        let directory = tempfile::tempdir().unwrap();
        let mount = directory.path();
        let pod = crate::pods::pod::tests::pod(serde_json::json!({"containers": [{"name": "a",
            "resources": {"limits": {"hugepages-2Mi": "4Mi"},
            "requests": {"hugepages-2Mi": "4Mi"}}}]}));
        for (v2, base, suffix) in [(true, "", "max"), (false, "hugetlb/", "limit_in_bytes")] {
            let mut cgroups = tree(mount, "/kubepods", v2);
            let folder = mount.join(base).join(cgroups.pod_path(&pod).trim_start_matches('/'));
            std::fs::create_dir_all(&folder).unwrap();
            let file = |unit: &str| folder.join(format!("hugetlb.{unit}.{suffix}"));
            for unit in ["2MB", "1GB"] {
                std::fs::write(file(unit), "max").unwrap();
            }
            std::fs::create_dir_all(mount.join("kubepods")).unwrap();
            std::fs::write(mount.join("kubepods/cgroup.controllers"), "cpu hugetlb\n").unwrap();
            assert!(cgroups.limits_huge_pages());
            cgroups.huge_page_sizes = vec![2 << 20, 1 << 30];
            cgroups.apply(&pod, PodGroupLimits::default()).unwrap();
            let read = |unit: &str| std::fs::read_to_string(file(unit)).unwrap();
            assert_eq!((read("2MB"), read("1GB")), ("4194304".to_owned(), "0".to_owned()));
        }
        std::fs::write(mount.join("kubepods/cgroup.controllers"), "cpu memory\n").unwrap();
        assert!(!tree(mount, "/kubepods", true).limits_huge_pages());
        assert!(!tree(&mount.join("none"), "/kubepods", false).limits_huge_pages());
    }

    #[test]
    fn a_kernel_may_account_for_swap() {
        let directory = tempfile::tempdir().unwrap();
        let mount = directory.path().to_owned();
        let of = |v2| tree(&mount, "/x/kubepods", v2);
        assert!(!of(true).accounts_for_swap() && !of(false).accounts_for_swap());
        std::fs::create_dir_all(mount.join("x/kubepods")).unwrap();
        std::fs::write(mount.join("x/kubepods/memory.swap.max"), "max\n").unwrap();
        assert!(of(true).accounts_for_swap() && !of(false).accounts_for_swap());
        std::fs::create_dir_all(mount.join("memory")).unwrap();
        std::fs::write(mount.join("memory/memory.memsw.limit_in_bytes"), "1\n").unwrap();
        assert!(of(false).accounts_for_swap());
    }

    #[test]
    fn pod_limits_are_raised_before_and_lowered_after_those_of_containers() {
        let directory = tempfile::tempdir().unwrap();
        let cgroups = Cgroups::in_folder(directory.path().to_owned());
        let with = |memory: &str| {
            let resources = serde_json::json!({"limits": {"cpu": "1", "memory": memory}});
            let container = serde_json::json!({"name": "a", "resources": resources});
            crate::pods::pod::tests::pod(serde_json::json!({"containers": [container]}))
        };
        let folder = directory.path().join("kubepods/podu");
        let memory = || std::fs::read_to_string(folder.join("memory.max")).unwrap();
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("memory.max"), "max").unwrap();
        cgroups.apply(&with("2Mi"), PodGroupLimits::default()).unwrap();
        assert_eq!(memory(), "2097152");
        cgroups.raise(&with("1Mi"), PodGroupLimits::default()).unwrap();
        assert_eq!(memory(), "2097152", "no limit is lowered");
        cgroups.raise(&with("3Mi"), PodGroupLimits::default()).unwrap();
        assert_eq!(memory(), "3145728");
        cgroups.apply(&with("1Mi"), PodGroupLimits::default()).unwrap();
        assert_eq!(memory(), "1048576");
    }

    #[test]
    fn shares_are_converted_to_weights_as_by_the_kernel() {
        assert_eq!(translate("cpu.shares", 2).1, "1");
        assert_eq!(translate("cpu.shares", 1024).1, "39");
        assert_eq!(translate("cpu.shares", 262_144).1, "10000");
    }
}
