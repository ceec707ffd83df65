//! Detailed counters of one group for `/metrics/cadvisor`: CPU time by mode, throttling, memory by
//! kind, block devices, processes, and the limits.

use std::collections::BTreeMap;
use std::path::PathBuf;

use sorting::CollectOrdered as _;

use super::usage::{GroupPressure, number};
use super::{Cgroups, PIDS_MAX};
use crate::pods::pod::Pod;

/// Length of a tick of `cpuacct.stat` in nanoseconds: `USER_HZ` is 100 on all platforms.
const TICK_NS: u64 = 10_000_000;
/// A v1 limit of this value or more means no limit.
const UNLIMITED: u64 = 1 << 62;

/// Maximum number of processes of a group that are listed.
const PROCESSES_MAX: usize = 1 << 12;

/// The counters of one group. A counter that this cgroup version or kernel does not have is `None`.
#[derive(Debug, Clone, Default, PartialEq)]
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
    /// Bytes; zero without a limit. Includes the memory in version 1.
    pub(crate) swap_limit: u64,
    /// Bytes that reclaim leaves to the group; zero without a reservation.
    pub(crate) memory_reservation: u64,
    pub(crate) oom_kills: Option<u64>,
    pub(crate) threads: Option<u64>,
    /// Zero without a limit.
    pub(crate) threads_max: u64,
    pub(crate) processes: usize,
    /// The first processes of the group itself, at most 4096.
    pub(crate) pids: Vec<u32>,
    pub(crate) pressure: GroupPressure,
    /// By device number, such as `8:0`.
    pub(crate) disks: BTreeMap<String, DiskCounters>,
}

/// Enforcement of a CPU limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Throttling {
    pub(crate) periods: u64,
    pub(crate) throttled_periods: u64,
    pub(crate) throttled_ns: u64,
    pub(crate) burst_periods: u64,
    pub(crate) burst_ns: u64,
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
    pub(crate) active_file: u64,
    pub(crate) inactive_file: u64,
    /// Version 1 only, as in cAdvisor.
    pub(crate) kernel: u64,
    pub(crate) reclaim: ReclaimCounters,
}

/// Counters of reclaim, which version 2 has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct ReclaimCounters {
    pub(crate) high_events: u64,
    pub(crate) max_events: u64,
    pub(crate) dirty_file: u64,
    pub(crate) writeback_file: u64,
    pub(crate) scanned_pages: u64,
    pub(crate) stolen_pages: u64,
    pub(crate) refaulted_file: u64,
    pub(crate) refaulted_anon: u64,
}

/// Transfers from and to one device.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct DiskCounters {
    /// Bytes by the operation, such as `Read`.
    pub(crate) operations: BTreeMap<String, u64>,
    /// Microseconds of the controller io.cost, where it is on.
    pub(crate) cost: Option<IoCost>,
    pub(crate) read_bytes: u64,
    pub(crate) written_bytes: u64,
    pub(crate) reads: u64,
    pub(crate) writes: u64,
}

/// What the controller io.cost counts, in microseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct IoCost {
    pub(crate) usage: u64,
    pub(crate) wait: u64,
    pub(crate) indebt: u64,
    pub(crate) indelay: u64,
}

/// The files of one group.
struct GroupFiles<'a> {
    cgroups: &'a Cgroups,
    path: &'a str,
}

impl GroupFiles<'_> {
    /// Reads a file of a v1 controller, or of the v2 group.
    fn read(&self, controller: &str, file: &str) -> Option<String> {
        let root: PathBuf = match self.cgroups.is_v2() {
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
        let mut counters = if self.is_v2() { v2(&files) } else { v1(&files) }?;
        counters.path = path.to_owned();
        let controller = if self.is_v2() { "" } else { "memory" };
        let processes = files.read(controller, "cgroup.procs").unwrap_or_default();
        counters.processes = processes.lines().count();
        let pids = processes.lines().filter_map(|line| line.trim().parse().ok());
        counters.pids = pids.take(PROCESSES_MAX).collect();
        counters.threads_max = files.whole("pids", PIDS_MAX).unwrap_or(0);
        counters.pressure = self.pressure(path);
        Some(counters)
    }
}

fn v1(files: &GroupFiles<'_>) -> Option<GroupCounters> {
    let stat = files.read("memory", "memory.stat")?;
    let memory = |name: &str| number(&stat, name).unwrap_or(0);
    let usage = files.whole("memory", "memory.usage_in_bytes")?;
    let modes = files.read("cpuacct", "cpuacct.stat").unwrap_or_default();
    let mode = |name: &str| Some(number(&modes, name)?.saturating_mul(TICK_NS));
    let limit =
        |file: &str| files.whole("memory", file).filter(|limit| *limit < UNLIMITED).unwrap_or(0);
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
            page_faults: memory("pgfault"),
            major_page_faults: memory("pgmajfault"),
            active_file: memory("total_active_file"),
            inactive_file: memory("total_inactive_file"),
            kernel: files.whole("memory", "memory.kmem.usage_in_bytes").unwrap_or(0),
            reclaim: ReclaimCounters::default(),
        },
        memory_limit: limit("memory.limit_in_bytes"),
        swap_limit: limit("memory.memsw.limit_in_bytes"),
        memory_reservation: limit("memory.soft_limit_in_bytes"),
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
            active_file: memory("active_file"),
            inactive_file: memory("inactive_file"),
            kernel: 0,
            reclaim: reclaim(&stat, &events),
        },
        memory_limit: files.whole("", "memory.max").unwrap_or(0),
        swap_limit: files.whole("", "memory.swap.max").unwrap_or(0),
        memory_reservation: files.whole("", "memory.min").unwrap_or(0),
        oom_kills: number(&events, "oom_kill"),
        threads: files.whole("", "pids.current"),
        disks: v2_disks(&files.read("", "io.stat").unwrap_or_default()),
        ..GroupCounters::default()
    })
}

/// The counters of reclaim in `memory.stat` and `memory.events`.
fn reclaim(stat: &str, events: &str) -> ReclaimCounters {
    let memory = |name: &str| number(stat, name).unwrap_or(0);
    let event = |name: &str| number(events, name).unwrap_or(0);
    ReclaimCounters {
        high_events: event("high"),
        max_events: event("max"),
        dirty_file: memory("file_dirty"),
        writeback_file: memory("file_writeback"),
        scanned_pages: memory("pgscan"),
        stolen_pages: memory("pgsteal"),
        refaulted_file: memory("workingset_refault_file"),
        refaulted_anon: memory("workingset_refault_anon"),
    }
}

/// Parses `cpu.stat`; `None` if the kernel does not enforce CPU limits.
fn throttling(stat: &str, v2: bool) -> Option<Throttling> {
    let duration = |microseconds: &str, nanoseconds: &str| match v2 {
        true => number(stat, microseconds).map(|us| us.saturating_mul(1000)),
        false => number(stat, nanoseconds),
    };
    Some(Throttling {
        periods: number(stat, "nr_periods")?,
        throttled_periods: number(stat, "nr_throttled")?,
        throttled_ns: duration("throttled_usec", "throttled_time")?,
        // Kernels before 5.15 count no bursts.
        burst_periods: number(stat, "nr_bursts").unwrap_or(0),
        burst_ns: duration("burst_usec", "burst_time").unwrap_or(0),
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
            if bytes {
                disk.operations.insert(kind.to_owned(), value);
            }
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
        let field = |name: &str| {
            let mut fields = fields.split_whitespace();
            let value = fields.find_map(|f| f.strip_prefix(name)?.strip_prefix('='));
            value.and_then(|v| v.parse::<u64>().ok())
        };
        let of = |name: &str| field(name).unwrap_or(0);
        let cost = field("cost.usage").map(|usage| IoCost {
            usage,
            wait: of("cost.wait"),
            indebt: of("cost.indebt"),
            indelay: of("cost.indelay"),
        });
        let (read_bytes, written_bytes) = (of("rbytes"), of("wbytes"));
        let operations = [("Read", read_bytes), ("Write", written_bytes)];
        let counters = DiskCounters {
            operations: operations.map(|(name, bytes)| (name.to_owned(), bytes)).into(),
            cost,
            read_bytes,
            written_bytes,
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

    /// The files of a group in the hierarchies of version 1.
    const V1_FILES: &[(&str, &str)] = &[
        ("cpuacct/kubepods/cpuacct.usage", "5000000000\n"),
        ("cpuacct/kubepods/cpuacct.stat", "user 300\nsystem 200\n"),
        (
            "cpu/kubepods/cpu.stat",
            "nr_periods 10\nnr_throttled 4\nthrottled_time 77\nnr_bursts 2\nburst_time 9\n",
        ),
        ("cpu/kubepods/cpu.shares", "1024\n"),
        ("cpu/kubepods/cpu.cfs_period_us", "100000\n"),
        ("cpu/kubepods/cpu.cfs_quota_us", "-1\n"),
        ("memory/kubepods/memory.usage_in_bytes", "100\n"),
        ("memory/kubepods/memory.max_usage_in_bytes", "150\n"),
        ("memory/kubepods/memory.limit_in_bytes", "9223372036854771712\n"),
        ("memory/kubepods/memory.memsw.limit_in_bytes", "400\n"),
        ("memory/kubepods/memory.soft_limit_in_bytes", "200\n"),
        ("memory/kubepods/memory.kmem.usage_in_bytes", "11\n"),
        ("memory/kubepods/memory.failcnt", "3\n"),
        ("memory/kubepods/memory.oom_control", "oom_kill_disable 0\noom_kill 2\n"),
        (
            "memory/kubepods/memory.stat",
            "total_rss 60\ntotal_cache 40\ntotal_inactive_file 30\ntotal_mapped_file 8\n\
             total_swap 9\npgfault 7\npgmajfault 1\ntotal_active_file 10\n",
        ),
        ("memory/kubepods/cgroup.procs", "1\n2\n"),
        ("pids/kubepods/pids.current", "5\n"),
        ("pids/kubepods/pids.max", "50\n"),
        (
            "blkio/kubepods/blkio.throttle.io_service_bytes_recursive",
            "8:0 Read 512\n8:0 Write 1024\n8:0 Total 1536\nTotal 1536\n",
        ),
        ("blkio/kubepods/blkio.throttle.io_serviced_recursive", "8:0 Read 1\n8:0 Write 2\n"),
    ];

    #[test]
    fn counters_of_a_v1_group_are_read_from_its_hierarchies() {
        let directory = tempfile::tempdir().unwrap();
        let mount = directory.path();
        for (file, text) in V1_FILES {
            write(mount, file, text);
        }
        let counters = tree(mount, false).counters("/kubepods").unwrap();
        let operations = [("Read", 512), ("Write", 1024), ("Total", 1536)];
        let disk = DiskCounters {
            operations: operations.map(|(name, bytes)| (name.to_owned(), bytes)).into(),
            cost: None,
            read_bytes: 512,
            written_bytes: 1024,
            reads: 1,
            writes: 2,
        };
        let expected = GroupCounters {
            path: "/kubepods".into(),
            cpu_ns: 5_000_000_000,
            user_ns: Some(3_000_000_000),
            system_ns: Some(2_000_000_000),
            throttling: Some(Throttling {
                periods: 10,
                throttled_periods: 4,
                throttled_ns: 77,
                burst_periods: 2,
                burst_ns: 9,
            }),
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
                active_file: 10,
                inactive_file: 30,
                kernel: 11,
                reclaim: ReclaimCounters::default(),
            },
            memory_limit: 0,
            swap_limit: 400,
            memory_reservation: 200,
            oom_kills: Some(2),
            threads: Some(5),
            threads_max: 50,
            processes: 2,
            pids: vec![1, 2],
            pressure: GroupPressure::default(),
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
            ("kubepods/memory.min", "4096\n"),
            ("kubepods/memory.swap.max", "0\n"),
            ("kubepods/memory.events", "low 0\nhigh 6\nmax 3\noom 1\noom_kill 2\n"),
            (
                "kubepods/memory.stat",
                "anon 60\nfile 40\ninactive_file 30\nfile_mapped 8\nfile_dirty 5\n\
                 workingset_refault_anon 4\npgscan 9\n",
            ),
            ("kubepods/pids.max", "max\n"),
            (
                "kubepods/io.stat",
                "8:0 rbytes=512 wbytes=1024 rios=1 wios=2 dbytes=0\n\
                 8:16 rbytes=1 cost.usage=7 cost.wait=2\n",
            ),
        ] {
            write(mount, file, text);
        }
        let counters = tree(mount, true).counters("/kubepods").unwrap();
        assert_eq!((counters.cpu_ns, counters.user_ns), (5000, Some(3000)));
        let throttled = Throttling {
            periods: 10,
            throttled_periods: 4,
            throttled_ns: 7000,
            ..Throttling::default()
        };
        assert_eq!(counters.throttling, Some(throttled));
        assert_eq!(counters.cpu_limit.quota, Some(20_000));
        assert_eq!((counters.cpu_limit.shares, counters.cpu_limit.period), (998, 100_000));
        assert_eq!((counters.memory.working_set, counters.memory.cache), (70, 40));
        assert_eq!((counters.memory.limit_hits, counters.oom_kills), (Some(3), Some(2)));
        assert_eq!((counters.memory_limit, counters.threads), (0, None));
        let reclaim = counters.memory.reclaim;
        assert_eq!((reclaim.high_events, reclaim.max_events, reclaim.dirty_file), (6, 3, 5));
        assert_eq!((reclaim.refaulted_anon, reclaim.scanned_pages), (4, 9));
        assert_eq!((counters.memory_reservation, counters.threads_max), (4096, 0));
        let disk = &counters.disks["8:0"];
        assert_eq!((disk.written_bytes, disk.operations["Write"]), (1024, 1024));
        assert_eq!(disk.cost, None);
        let cost = IoCost { usage: 7, wait: 2, ..IoCost::default() };
        assert_eq!(counters.disks["8:16"].cost, Some(cost));
    }
}
