//! Accounting of groups by the kernel: CPU time, memory, processes, and pressure.

use std::path::Path;

use super::Cgroups;
use crate::pods::pod::Pod;

/// Lines of `memory.stat`: inactive file pages, anonymous memory, page faults, and major page
/// faults.
const MEMORY_V1: [&str; 4] =
    ["total_inactive_file", "total_rss", "total_pgfault", "total_pgmajfault"];
const MEMORY_V2: [&str; 4] = ["inactive_file", "anon", "pgfault", "pgmajfault"];
/// A v1 limit of this value or more means no limit.
const UNLIMITED: u64 = 1 << 62;
/// Depth of the groups below a pod's own: those of its containers, and any that these create.
const DEPTH_MAX: usize = 8;
/// Limit on the processes of one pod that are listed.
const PROCESSES_MAX: usize = 1 << 16;

/// Usage of a group and of the groups below it.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct GroupUsage {
    pub(crate) cpu_ns: u64,
    /// Bytes, file pages included.
    pub(crate) usage: u64,
    /// Bytes without inactive file pages.
    pub(crate) working_set: u64,
    /// Bytes of anonymous memory.
    pub(crate) rss: u64,
    pub(crate) page_faults: u64,
    pub(crate) major_page_faults: u64,
    /// Bytes; `None` without a limit.
    pub(crate) memory_limit: Option<u64>,
    /// Bytes; `None` if the kernel does not account for swap.
    pub(crate) swap: Option<u64>,
    pub(crate) swap_limit: Option<u64>,
    pub(crate) pressure: GroupPressure,
}

/// Pressure stall information by resource; `None` on cgroup v1 and on kernels without it.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct GroupPressure {
    pub(crate) cpu: Option<Psi>,
    pub(crate) memory: Option<Psi>,
    pub(crate) io: Option<Psi>,
}

/// Pressure of one resource: at least one task waited, or all tasks waited.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Psi {
    pub(crate) some: PsiData,
    pub(crate) full: PsiData,
}

/// One line of a pressure file: averages in percent, and the total.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct PsiData {
    pub(crate) avg10: f64,
    pub(crate) avg60: f64,
    pub(crate) avg300: f64,
    pub(crate) total: u64,
}

impl Psi {
    /// Parses a file such as `cpu.pressure`. On older kernels, the file of the whole machine's CPU
    /// has no line `full`.
    fn parse(text: &str) -> Option<Self> {
        let line = |name: &str| {
            let line = text.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(' '))?;
            let of = |key: &str| {
                line.split_whitespace().find_map(|f| f.strip_prefix(key)?.strip_prefix('='))
            };
            let average = |key| of(key)?.parse::<f64>().ok().filter(|v| v.is_finite());
            Some(PsiData {
                avg10: average("avg10")?,
                avg60: average("avg60")?,
                avg300: average("avg300")?,
                total: of("total")?.parse().ok()?,
            })
        };
        Some(Self { some: line("some")?, full: line("full").unwrap_or_default() })
    }
}

impl Cgroups {
    /// CPU time of the whole machine in nanoseconds.
    pub(crate) fn machine_cpu(&self) -> Option<u64> {
        self.cpu("")
    }

    /// Pressure on the whole machine.
    pub(crate) fn machine_pressure(&self) -> GroupPressure {
        self.pressure("")
    }

    /// Usage of a pod's group.
    pub(crate) fn pod_group(&self, pod: &Pod) -> Option<GroupUsage> {
        self.group(self.pod_path(pod).trim_start_matches('/'))
    }

    /// Usage of a container's group, which the runtime names by the container's id.
    pub(crate) fn container_group(&self, pod: &Pod, id: &str) -> Option<GroupUsage> {
        if id.is_empty() || id.contains('/') {
            return None;
        }
        self.group(&format!("{}/{id}", self.pod_path(pod).trim_start_matches('/')))
    }

    /// CPU time in nanoseconds and working set in bytes of a pod's group.
    pub(crate) fn pod_resources(&self, pod: &Pod) -> Option<(u64, u64)> {
        self.resources(self.pod_path(pod).trim_start_matches('/'))
    }

    /// CPU time in nanoseconds and working set in bytes of a container's group.
    pub(crate) fn container_resources(&self, pod: &Pod, id: &str) -> Option<(u64, u64)> {
        if id.is_empty() || id.contains('/') {
            return None;
        }
        self.resources(&format!("{}/{id}", self.pod_path(pod).trim_start_matches('/')))
    }

    /// As [`Cgroups::group`], but only CPU time and working set, which take three files.
    fn resources(&self, path: &str) -> Option<(u64, u64)> {
        let (folder, current) = if self.is_v2() {
            (self.mount.join(path), "memory.current")
        } else {
            (self.mount.join("memory").join(path), "memory.usage_in_bytes")
        };
        let read = |file: &str| std::fs::read_to_string(folder.join(file)).ok();
        let usage: u64 = read(current)?.trim().parse().ok()?;
        let [idle, ..] = if self.is_v2() { MEMORY_V2 } else { MEMORY_V1 };
        let idle = number(&read("memory.stat")?, idle).unwrap_or(0);
        Some((self.cpu(path)?, usage.saturating_sub(idle)))
    }

    /// Usage of the group of all pods.
    pub(crate) fn all_pods(&self) -> Option<GroupUsage> {
        self.group(self.top.trim_start_matches('/'))
    }

    fn group(&self, path: &str) -> Option<GroupUsage> {
        let read = |file: &str| {
            let controller = file.split('.').next().unwrap_or_default();
            let folder =
                if self.is_v2() { self.mount.clone() } else { self.mount.join(controller) };
            std::fs::read_to_string(folder.join(path).join(file)).ok()
        };
        let whole = |file: &str| read(file)?.trim().parse::<u64>().ok();
        let limit = |file: &str| whole(file).filter(|limit| *limit < UNLIMITED);
        let (usage, stat) = if self.is_v2() {
            (whole("memory.current")?, read("memory.stat")?)
        } else {
            (whole("memory.usage_in_bytes")?, read("memory.stat")?)
        };
        let names = if self.is_v2() { MEMORY_V2 } else { MEMORY_V1 };
        let [idle, rss, faults, major] = names.map(|name| number(&stat, name));
        let (swap, swap_limit, memory_limit) = if self.is_v2() {
            (whole("memory.swap.current"), limit("memory.swap.max"), limit("memory.max"))
        } else {
            let limit = limit("memory.limit_in_bytes");
            (number(&stat, "total_swap"), None, limit)
        };
        Some(GroupUsage {
            cpu_ns: self.cpu(path)?,
            usage,
            working_set: usage.saturating_sub(idle.unwrap_or(0)),
            rss: rss.unwrap_or(0),
            page_faults: faults.unwrap_or(0),
            major_page_faults: major.unwrap_or(0),
            memory_limit,
            swap,
            swap_limit,
            pressure: self.pressure(path),
        })
    }

    /// Pressure in a v2 group.
    pub(crate) fn pressure(&self, path: &str) -> GroupPressure {
        if !self.is_v2() {
            return GroupPressure::default();
        }
        let folder = self.mount.join(path.trim_start_matches('/'));
        let read = |name: &str| {
            let file = std::fs::read_to_string(folder.join(format!("{name}.pressure"))).ok();
            Psi::parse(&file?)
        };
        GroupPressure { cpu: read("cpu"), memory: read("memory"), io: read("io") }
    }

    fn cpu(&self, path: &str) -> Option<u64> {
        if self.is_v2() {
            let stat = std::fs::read_to_string(self.mount.join(path).join("cpu.stat")).ok()?;
            return Some(number(&stat, "usage_usec")?.saturating_mul(1000));
        }
        let usage = self.mount.join("cpuacct").join(path).join("cpuacct.usage");
        std::fs::read_to_string(usage).ok()?.trim().parse().ok()
    }

    /// Processes in the group of a pod and in the groups below it.
    pub(crate) fn pod_processes(&self, pod: &Pod) -> Vec<u32> {
        let mount = if self.is_v2() { self.mount.clone() } else { self.mount.join("memory") };
        let mut out = Vec::new();
        let folder = mount.join(self.pod_path(pod).trim_start_matches('/'));
        collect_processes(&folder, DEPTH_MAX, &mut out);
        out
    }
}

fn collect_processes(folder: &Path, depth: usize, out: &mut Vec<u32>) {
    let own = std::fs::read_to_string(folder.join("cgroup.procs")).unwrap_or_default();
    let room = PROCESSES_MAX.saturating_sub(out.len());
    out.extend(own.lines().filter_map(|l| l.trim().parse::<u32>().ok()).take(room));
    if depth == 0 || out.len() >= PROCESSES_MAX {
        return;
    }
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|t| t.is_dir()) {
            collect_processes(&entry.path(), depth - 1, out);
        }
    }
}

/// The value of a line `name value`.
pub(super) fn number(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok())
}

#[cfg(test)]
pub(super) mod tests {
    use std::path::PathBuf;

    use super::*;

    pub(in crate::cgroups) fn tree(mount: &Path, v2: bool) -> Cgroups {
        crate::cgroups::tests::tree(mount, "/kubepods", v2)
    }

    pub(in crate::cgroups) fn write(mount: &Path, file: &str, text: &str) {
        let path: PathBuf = mount.join(file);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    #[test]
    fn values_are_found_by_their_full_name() {
        let text = "inactive_file 5\ntotal_inactive_file 7\n";
        assert_eq!(number(text, "total_inactive_file"), Some(7));
        assert_eq!((number(text, "inactive_file"), number(text, "file")), (Some(5), None));
    }

    #[test]
    fn group_usage_is_read_from_both_cgroup_versions() {
        let directory = tempfile::tempdir().unwrap();
        let mount = directory.path();
        let write = |file: &str, text: &str| write(mount, file, text);
        write("kubepods/cpu.stat", "usage_usec 5\n");
        write("kubepods/memory.current", "100\n");
        write("kubepods/memory.max", "1000\n");
        write("kubepods/memory.stat", "anon 60\ninactive_file 30\npgfault 7\npgmajfault 2\n");
        write("kubepods/memory.swap.current", "9\n");
        write("kubepods/memory.swap.max", "max\n");
        write("cpuacct/kubepods/cpuacct.usage", "5000\n");
        write("memory/kubepods/memory.usage_in_bytes", "100\n");
        write("memory/kubepods/memory.limit_in_bytes", "1000\n");
        let stat =
            "rss 1\ntotal_rss 60\ntotal_inactive_file 30\ntotal_pgfault 7\ntotal_pgmajfault 2\n";
        write("memory/kubepods/memory.stat", &format!("{stat}total_swap 9\n"));
        let expected = GroupUsage {
            cpu_ns: 5000,
            usage: 100,
            working_set: 70,
            rss: 60,
            page_faults: 7,
            major_page_faults: 2,
            memory_limit: Some(1000),
            swap: Some(9),
            swap_limit: None,
            pressure: GroupPressure::default(),
        };
        for v2 in [true, false] {
            assert_eq!(tree(mount, v2).all_pods(), Some(expected), "v2: {v2}");
            assert_eq!(tree(mount, v2).resources("kubepods"), Some((5000, 70)), "v2: {v2}");
        }
        // v1's value for "no limit".
        write("memory/kubepods/memory.limit_in_bytes", "9223372036854771712\n");
        assert_eq!(tree(mount, false).all_pods().unwrap().memory_limit, None);
    }

    #[test]
    fn pressure_is_read_if_the_kernel_has_it() {
        let directory = tempfile::tempdir().unwrap();
        let mount = directory.path();
        let text = "some avg10=1.50 avg60=2.00 avg300=0.25 total=123\n\
                    full avg10=0.00 avg60=0.00 avg300=0.00 total=4\n";
        write(mount, "kubepods/memory.pressure", text);
        write(mount, "kubepods/cpu.pressure", "some avg10=0.00 avg60=0.00 avg300=0.00 total=7\n");
        let pressure = tree(mount, true).pressure("/kubepods");
        let some = PsiData { avg10: 1.5, avg60: 2.0, avg300: 0.25, total: 123 };
        let full = PsiData { total: 4, ..PsiData::default() };
        assert_eq!(pressure.memory, Some(Psi { some, full }));
        assert_eq!(pressure.cpu.map(|psi| psi.some.total), Some(7));
        assert_eq!(pressure.io, None);
        assert_eq!(tree(mount, false).pressure("/kubepods"), GroupPressure::default());
    }

    #[test]
    fn processes_of_a_pod_are_those_of_its_containers() {
        let directory = tempfile::tempdir().unwrap();
        let pod = crate::pods::pod::tests::pod(serde_json::json!({"containers": []}));
        for (v2, base) in [(true, ""), (false, "memory/")] {
            let cgroups = tree(directory.path(), v2);
            let own = format!("{base}{}", cgroups.pod_path(&pod).trim_start_matches('/'));
            write(directory.path(), &format!("{own}/cgroup.procs"), "");
            write(directory.path(), &format!("{own}/a/cgroup.procs"), "7\n8\n");
            write(directory.path(), &format!("{own}/b/nested/cgroup.procs"), "9\n");
            let mut found = cgroups.pod_processes(&pod);
            found.sort_unstable();
            assert_eq!(found, [7, 8, 9], "v2: {v2}");
        }
    }

    #[test]
    fn machine_cpu_time_is_read_at_the_root_of_both_cgroup_versions() {
        let directory = tempfile::tempdir().unwrap();
        let mount = directory.path();
        write(mount, "cpu.stat", "usage_usec 5\nuser_usec 3\n");
        write(mount, "cpuacct/cpuacct.usage", "7000\n");
        let of = |v2| tree(mount, v2).machine_cpu();
        assert_eq!((of(true), of(false)), (Some(5000), Some(7000)));
    }
}
