//! Detailed counters of one group for `/metrics/cadvisor`: CPU time by mode, throttling, memory by
//! kind, block devices, processes, and the limits.

use std::collections::BTreeMap;
use std::path::PathBuf;

use sorting::CollectOrdered as _;

use super::Cgroups;
use super::usage::number;
use crate::pods::pod::Pod;

/// Length of a tick of `cpuacct.stat` in nanoseconds: `USER_HZ` is 100 on all platforms.
const TICK_NS: u64 = 10_000_000;
/// A v1 limit of this value or more means no limit.
const UNLIMITED: u64 = 1 << 62;

/// The counters of one group. A counter that this cgroup version or kernel does not have is `None`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct GroupCounters {
    /// Path of the group, such as `/kubepods/burstable`.
    pub(crate) path: String,
    pub(crate) cpu_ns: u64,
    pub(crate) user_ns: Option<u64>,
    pub(crate) system_ns: Option<u64>,
    pub(crate) throttling: Option<Throttling>,
    pub(crate) cpu_limit: CpuLimit,
    pub(crate) memory: MemoryCounters,
    /// Bytes; zero without a limit, as in cAdvisor.
    pub(crate) memory_limit: u64,
    pub(crate) oom_kills: Option<u64>,
    pub(crate) threads: Option<u64>,
    pub(crate) processes: usize,
    /// By device number, such as `8:0`.
    pub(crate) disks: BTreeMap<String, DiskCounters>,
}

/// Enforcement of a CPU limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Throttling {
    pub(crate) periods: u64,
    pub(crate) throttled_periods: u64,
    pub(crate) throttled_ns: u64,
}

/// The CPU limit of a group.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct CpuLimit {
    pub(crate) shares: u64,
    pub(crate) period: u64,
    /// `None` without a limit.
    pub(crate) quota: Option<u64>,
}

/// Memory of a group in bytes, and its events.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct MemoryCounters {
    pub(crate) usage: u64,
    pub(crate) working_set: u64,
    pub(crate) max_usage: Option<u64>,
    pub(crate) rss: u64,
    pub(crate) cache: u64,
    pub(crate) mapped_file: u64,
    pub(crate) swap: Option<u64>,
    pub(crate) limit_hits: Option<u64>,
    pub(crate) page_faults: u64,
    pub(crate) major_page_faults: u64,
}

/// Transfers from and to one device.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct DiskCounters {
    pub(crate) read_bytes: u64,
    pub(crate) written_bytes: u64,
    pub(crate) reads: u64,
    pub(crate) writes: u64,
}

/// The files of one group.
struct GroupFiles<'a> {
    cgroups: &'a Cgroups,
    path: &'a str,
}

impl GroupFiles<'_> {
    /// Reads a file of a v1 controller, or of the v2 group.
    fn read(&self, controller: &str, file: &str) -> Option<String> {
        let root: PathBuf = match self.cgroups.v2 {
            true => self.cgroups.mount.clone(),
            false => self.cgroups.mount.join(controller),
        };
        std::fs::read_to_string(root.join(self.path.trim_start_matches('/')).join(file)).ok()
    }

    fn whole(&self, controller: &str, file: &str) -> Option<u64> {
        self.read(controller, file)?.trim().parse().ok()
    }
}

impl Cgroups {
    /// Counters of the group of a pod.
    pub(crate) fn pod_counters(&self, pod: &Pod) -> Option<GroupCounters> {
        self.counters(&self.pod_path(pod))
    }

    /// Counters of the group of a container or sandbox, which the runtime names by its id.
    pub(crate) fn container_counters(&self, pod: &Pod, id: &str) -> Option<GroupCounters> {
        let is_name = !id.is_empty() && !id.contains('/');
        is_name.then(|| self.counters(&format!("{}/{id}", self.pod_path(pod))))?
    }

    /// Counters of the root and of the groups above those of pods.
    pub(crate) fn upper_counters(&self) -> Vec<GroupCounters> {
        let (burstable, besteffort) =
            (format!("{}/burstable", self.top), format!("{}/besteffort", self.top));
        let paths = ["/", &self.top, &burstable, &besteffort];
        paths.into_iter().filter_map(|path| self.counters(path)).collect()
    }

    /// Counters of a group; `None` if it does not exist.
    fn counters(&self, path: &str) -> Option<GroupCounters> {
        let files = GroupFiles { cgroups: self, path };
        let mut counters = if self.v2 { v2(&files) } else { v1(&files) }?;
        counters.path = path.to_owned();
        let controller = if self.v2 { "" } else { "memory" };
        let processes = files.read(controller, "cgroup.procs").unwrap_or_default();
        counters.processes = processes.lines().count();
        Some(counters)
    }
}

fn v1(files: &GroupFiles<'_>) -> Option<GroupCounters> {
    let stat = files.read("memory", "memory.stat")?;
    let memory = |name: &str| number(&stat, name).unwrap_or(0);
    let usage = files.whole("memory", "memory.usage_in_bytes")?;
    let modes = files.read("cpuacct", "cpuacct.stat").unwrap_or_default();
    let mode = |name: &str| Some(number(&modes, name)?.saturating_mul(TICK_NS));
    let limit = files.whole("memory", "memory.limit_in_bytes");
    let oom = files.read("memory", "memory.oom_control").unwrap_or_default();
    Some(GroupCounters {
        cpu_ns: files.whole("cpuacct", "cpuacct.usage")?,
        user_ns: mode("user"),
        system_ns: mode("system"),
        throttling: throttling(&files.read("cpu", "cpu.stat").unwrap_or_default(), false),
        cpu_limit: CpuLimit {
            shares: files.whole("cpu", "cpu.shares").unwrap_or(0),
            period: files.whole("cpu", "cpu.cfs_period_us").unwrap_or(0),
            quota: files.whole("cpu", "cpu.cfs_quota_us"),
        },
        memory: MemoryCounters {
            usage,
            working_set: usage.saturating_sub(memory("total_inactive_file")),
            max_usage: files.whole("memory", "memory.max_usage_in_bytes"),
            rss: memory("total_rss"),
            cache: memory("total_cache"),
            mapped_file: memory("total_mapped_file"),
            swap: number(&stat, "total_swap"),
            limit_hits: files.whole("memory", "memory.failcnt"),
            page_faults: memory("total_pgfault"),
            major_page_faults: memory("total_pgmajfault"),
        },
        memory_limit: limit.filter(|limit| *limit < UNLIMITED).unwrap_or(0),
        oom_kills: number(&oom, "oom_kill"),
        threads: files.whole("pids", "pids.current"),
        disks: v1_disks(files),
        ..GroupCounters::default()
    })
}

fn v2(files: &GroupFiles<'_>) -> Option<GroupCounters> {
    let cpu = files.read("", "cpu.stat")?;
    let nanoseconds = |name: &str| Some(number(&cpu, name)?.saturating_mul(1000));
    let stat = files.read("", "memory.stat").unwrap_or_default();
    let memory = |name: &str| number(&stat, name).unwrap_or(0);
    // The root group has no such file; the kernel accounts for its memory in `memory.stat` only.
    let usage = files.whole("", "memory.current");
    let usage = usage.unwrap_or_else(|| memory("anon").saturating_add(memory("file")));
    let events = files.read("", "memory.events").unwrap_or_default();
    let max = files.read("", "cpu.max").unwrap_or_default();
    let mut max = max.split_whitespace().map(|field| field.parse::<u64>().ok());
    let quota = max.next().flatten();
    Some(GroupCounters {
        cpu_ns: nanoseconds("usage_usec")?,
        user_ns: nanoseconds("user_usec"),
        system_ns: nanoseconds("system_usec"),
        throttling: throttling(&cpu, true),
        cpu_limit: CpuLimit {
            shares: files.whole("", "cpu.weight").map_or(0, shares_of_weight),
            period: max.next().flatten().unwrap_or(0),
            quota,
        },
        memory: MemoryCounters {
            usage,
            working_set: usage.saturating_sub(memory("inactive_file")),
            max_usage: files.whole("", "memory.peak"),
            rss: memory("anon"),
            cache: memory("file"),
            mapped_file: memory("file_mapped"),
            swap: files.whole("", "memory.swap.current"),
            limit_hits: number(&events, "max"),
            page_faults: memory("pgfault"),
            major_page_faults: memory("pgmajfault"),
        },
        memory_limit: files.whole("", "memory.max").unwrap_or(0),
        oom_kills: number(&events, "oom_kill"),
        threads: files.whole("", "pids.current"),
        disks: v2_disks(&files.read("", "io.stat").unwrap_or_default()),
        ..GroupCounters::default()
    })
}

/// Parses `cpu.stat`; `None` if the kernel does not enforce CPU limits.
fn throttling(stat: &str, v2: bool) -> Option<Throttling> {
    let throttled = if v2 {
        number(stat, "throttled_usec").map(|us| us.saturating_mul(1000))
    } else {
        number(stat, "throttled_time")
    };
    Some(Throttling {
        periods: number(stat, "nr_periods")?,
        throttled_periods: number(stat, "nr_throttled")?,
        throttled_ns: throttled?,
    })
}

/// The CPU shares of a v2 weight (cAdvisor's `convertCPUWeightToCPULimit`).
fn shares_of_weight(weight: u64) -> u64 {
    2 + weight.saturating_sub(1).saturating_mul(262_142) / 9999
}

/// The devices of a v1 group: lines `8:0 Read 512`.
fn v1_disks(files: &GroupFiles<'_>) -> BTreeMap<String, DiskCounters> {
    let mut disks: BTreeMap<String, DiskCounters> = BTreeMap::new();
    for (file, bytes) in [
        ("blkio.throttle.io_service_bytes_recursive", true),
        ("blkio.throttle.io_serviced_recursive", false),
    ] {
        for line in files.read("blkio", file).unwrap_or_default().lines() {
            let mut fields = line.split_whitespace();
            let (Some(device), Some(kind), Some(Ok(value))) =
                (fields.next(), fields.next(), fields.next().map(str::parse))
            else {
                continue;
            };
            let disk = disks.entry(device.to_owned()).or_default();
            match (kind, bytes) {
                ("Read", true) => disk.read_bytes = value,
                ("Write", true) => disk.written_bytes = value,
                ("Read", false) => disk.reads = value,
                ("Write", false) => disk.writes = value,
                _ => {}
            }
        }
    }
    disks
}

/// The devices of a v2 group: lines `8:0 rbytes=1 wbytes=2 rios=3 wios=4 …`.
fn v2_disks(stat: &str) -> BTreeMap<String, DiskCounters> {
    let disk = |line: &str| {
        let (device, fields) = line.split_once(' ')?;
        let of = |name: &str| {
            let mut fields = fields.split_whitespace();
            let value = fields.find_map(|f| f.strip_prefix(name)?.strip_prefix('='));
            value.and_then(|v| v.parse().ok()).unwrap_or(0)
        };
        let counters = DiskCounters {
            read_bytes: of("rbytes"),
            written_bytes: of("wbytes"),
            reads: of("rios"),
            writes: of("wios"),
        };
        Some((device.to_owned(), counters))
    };
    stat.lines().filter_map(disk).collect_map()
}

#[cfg(test)]
mod tests {
    use super::super::usage::tests::{tree, write};
    use super::*;

    #[test]
    fn counters_of_a_v1_group_are_read_from_its_hierarchies() {
        let directory = tempfile::tempdir().unwrap();
        let mount = directory.path();
        for (file, text) in [
            ("cpuacct/kubepods/cpuacct.usage", "5000000000\n"),
            ("cpuacct/kubepods/cpuacct.stat", "user 300\nsystem 200\n"),
            ("cpu/kubepods/cpu.stat", "nr_periods 10\nnr_throttled 4\nthrottled_time 77\n"),
            ("cpu/kubepods/cpu.shares", "1024\n"),
            ("cpu/kubepods/cpu.cfs_period_us", "100000\n"),
            ("cpu/kubepods/cpu.cfs_quota_us", "-1\n"),
            ("memory/kubepods/memory.usage_in_bytes", "100\n"),
            ("memory/kubepods/memory.max_usage_in_bytes", "150\n"),
            ("memory/kubepods/memory.limit_in_bytes", "9223372036854771712\n"),
            ("memory/kubepods/memory.failcnt", "3\n"),
            ("memory/kubepods/memory.oom_control", "oom_kill_disable 0\noom_kill 2\n"),
            (
                "memory/kubepods/memory.stat",
                "total_rss 60\ntotal_cache 40\ntotal_inactive_file 30\ntotal_mapped_file 8\n\
                 total_swap 9\ntotal_pgfault 7\ntotal_pgmajfault 1\n",
            ),
            ("memory/kubepods/cgroup.procs", "1\n2\n"),
            ("pids/kubepods/pids.current", "5\n"),
            (
                "blkio/kubepods/blkio.throttle.io_service_bytes_recursive",
                "8:0 Read 512\n8:0 Write 1024\n8:0 Total 1536\nTotal 1536\n",
            ),
            ("blkio/kubepods/blkio.throttle.io_serviced_recursive", "8:0 Read 1\n8:0 Write 2\n"),
        ] {
            write(mount, file, text);
        }
        let counters = tree(mount, false).counters("/kubepods").unwrap();
        let disk = DiskCounters { read_bytes: 512, written_bytes: 1024, reads: 1, writes: 2 };
        let expected = GroupCounters {
            path: "/kubepods".into(),
            cpu_ns: 5_000_000_000,
            user_ns: Some(3_000_000_000),
            system_ns: Some(2_000_000_000),
            throttling: Some(Throttling { periods: 10, throttled_periods: 4, throttled_ns: 77 }),
            cpu_limit: CpuLimit { shares: 1024, period: 100_000, quota: None },
            memory: MemoryCounters {
                usage: 100,
                working_set: 70,
                max_usage: Some(150),
                rss: 60,
                cache: 40,
                mapped_file: 8,
                swap: Some(9),
                limit_hits: Some(3),
                page_faults: 7,
                major_page_faults: 1,
            },
            memory_limit: 0,
            oom_kills: Some(2),
            threads: Some(5),
            processes: 2,
            disks: [("8:0".to_owned(), disk)].into(),
        };
        assert_eq!(counters, expected);
        assert_eq!(tree(mount, false).counters("/other"), None);
    }

    #[test]
    fn counters_of_a_v2_group_have_the_same_units() {
        let directory = tempfile::tempdir().unwrap();
        let mount = directory.path();
        for (file, text) in [
            (
                "kubepods/cpu.stat",
                "usage_usec 5\nuser_usec 3\nsystem_usec 2\nnr_periods 10\nnr_throttled 4\n\
                 throttled_usec 7\n",
            ),
            ("kubepods/cpu.max", "20000 100000\n"),
            ("kubepods/cpu.weight", "39\n"),
            ("kubepods/memory.current", "100\n"),
            ("kubepods/memory.max", "max\n"),
            ("kubepods/memory.events", "low 0\nmax 3\noom 1\noom_kill 2\n"),
            ("kubepods/memory.stat", "anon 60\nfile 40\ninactive_file 30\nfile_mapped 8\n"),
            ("kubepods/io.stat", "8:0 rbytes=512 wbytes=1024 rios=1 wios=2 dbytes=0\n"),
        ] {
            write(mount, file, text);
        }
        let counters = tree(mount, true).counters("/kubepods").unwrap();
        assert_eq!((counters.cpu_ns, counters.user_ns), (5000, Some(3000)));
        let throttled = Throttling { periods: 10, throttled_periods: 4, throttled_ns: 7000 };
        assert_eq!(counters.throttling, Some(throttled));
        assert_eq!(counters.cpu_limit.quota, Some(20_000));
        assert_eq!((counters.cpu_limit.shares, counters.cpu_limit.period), (998, 100_000));
        assert_eq!((counters.memory.working_set, counters.memory.cache), (70, 40));
        assert_eq!((counters.memory.limit_hits, counters.oom_kills), (Some(3), Some(2)));
        assert_eq!((counters.memory_limit, counters.threads), (0, None));
        assert_eq!(counters.disks["8:0"].written_bytes, 1024);
    }
}
