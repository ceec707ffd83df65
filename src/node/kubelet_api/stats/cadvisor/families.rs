//! The families of groups: names, kinds, texts and values.

use super::{Disk, FileSystem, Group};
use crate::cgroups::{DiskCounters, IoCost, Psi, Throttling};
use crate::machine::Interface;

/// The values of a group, each with the further labels that the family has.
pub(super) type Values = Vec<(Vec<(&'static str, String)>, f64)>;

/// A family of metrics of groups.
pub(super) struct Family {
    pub(super) name: &'static str,
    pub(super) kind: &'static str,
    pub(super) help: &'static str,
    /// Whether its lines have the time of the measurement.
    pub(super) timed: bool,
    pub(super) values: fn(&Group) -> Values,
}

const fn counter(name: &'static str, help: &'static str, values: fn(&Group) -> Values) -> Family {
    Family { name, kind: "counter", help, timed: true, values }
}

const fn gauge(name: &'static str, help: &'static str, values: fn(&Group) -> Values) -> Family {
    Family { name, kind: "gauge", help, timed: true, values }
}

/// A property of a group, which has no time.
const fn property(name: &'static str, help: &'static str, values: fn(&Group) -> Values) -> Family {
    Family { name, kind: "gauge", help, timed: false, values }
}

fn one(value: impl Into<Option<u64>>) -> Values {
    value.into().into_iter().map(|value| (Vec::new(), wide(value))).collect()
}

/// A counter that is zero where the kernel does not have it, as in cAdvisor.
fn or_zero(value: Option<u64>) -> Values {
    one(value.unwrap_or(0))
}

fn seconds(nanoseconds: u64) -> Values {
    vec![(Vec::new(), wide(nanoseconds) / 1e9)]
}

#[expect(clippy::cast_precision_loss, reason = "the format has floating-point numbers only")]
fn wide(value: u64) -> f64 {
    value as f64
}

fn network(group: &Group, of: fn(&Interface) -> u64) -> Values {
    let value = |i: &Interface| (vec![("interface", i.name.clone())], wide(of(i)));
    group.interfaces.iter().map(value).collect()
}

fn device(name: &str) -> Vec<(&'static str, String)> {
    vec![("device", name.to_owned())]
}

/// Transfers by device.
fn disks(group: &Group, of: fn(&DiskCounters) -> u64) -> Values {
    let value = |(name, disk): (&String, &Disk)| (device(name), wide(of(&disk.counters)));
    group.disks.iter().map(value).collect()
}

/// Values of file systems by device.
fn file_systems(group: &Group, of: fn(&FileSystem) -> f64) -> Values {
    group.file_systems.iter().map(|fs| (device(&fs.device), of(fs))).collect()
}

/// Transfers by device: of the group where the kernel counts them, else of the file system.
fn transfers(
    group: &Group,
    of_group: fn(&DiskCounters) -> u64,
    of_disk: fn(&FileSystem) -> f64,
) -> Values {
    let mut values = disks(group, of_group);
    let others = group.file_systems.iter().filter(|fs| !group.disks.contains_key(&fs.device));
    values.extend(others.map(|fs| (device(&fs.device), of_disk(fs))));
    values
}

/// Costs of transfers in seconds, where the controller is on.
fn cost(group: &Group, of: fn(&IoCost) -> u64) -> Values {
    let with_cost = |(name, disk): (&String, &Disk)| {
        Some((device(name), wide(of(disk.counters.cost.as_ref()?)) / 1e6))
    };
    group.disks.iter().filter_map(with_cost).collect()
}

/// Bytes by device and operation.
fn operations(group: &Group) -> Values {
    let of = |(name, disk): (&String, &Disk)| {
        let (major, minor) = disk.number.split_once(':').unwrap_or_default();
        let labels = [("major", major), ("minor", minor)].map(|(k, v)| (k, v.to_owned()));
        let mut labels = labels.to_vec();
        labels.extend(device(name));
        let value = |(operation, bytes): (&String, &u64)| {
            let mut labels = labels.clone();
            labels.push(("operation", operation.clone()));
            (labels, wide(*bytes))
        };
        disk.counters.operations.iter().map(value).collect::<Vec<_>>()
    };
    group.disks.iter().flat_map(of).collect()
}

/// Page faults by type. The kernel counts them for the group with those below it.
fn failures(group: &Group) -> Values {
    let memory = &group.counters.memory;
    let mut values = Values::new();
    for scope in ["container", "hierarchy"] {
        for (kind, count) in
            [("pgfault", memory.page_faults), ("pgmajfault", memory.major_page_faults)]
        {
            let labels = [("failure_type", kind), ("scope", scope)];
            values.push((labels.map(|(k, v)| (k, v.to_owned())).to_vec(), wide(count)));
        }
    }
    values
}

/// Throttling is reported for groups with a limit only.
fn throttling(group: &Group, of: fn(&Throttling) -> Values) -> Values {
    let limited = group.counters.cpu_limit.quota.is_some();
    group.counters.throttling.as_ref().filter(|_| limited).map(of).unwrap_or_default()
}

/// Seconds of pressure: the file counts microseconds.
fn pressure(psi: Option<Psi>, of: fn(&Psi) -> u64) -> Values {
    psi.iter().map(|psi| (Vec::new(), wide(of(psi)) / 1e6)).collect()
}

/// Seconds of milliseconds.
fn of_milliseconds(milliseconds: u64) -> f64 {
    wide(milliseconds) / 1e3
}

/// The soft limit of open files.
fn ulimits(group: &Group) -> Values {
    let max = group.open_files_max;
    let value = |max: i64| match u64::try_from(max) {
        Ok(max) => wide(max),
        Err(_) => -1.0,
    };
    let label = || vec![("ulimit", "max_open_files".to_owned())];
    max.into_iter().map(|max| (label(), value(max))).collect()
}

fn started(group: &Group) -> Values {
    one(u64::try_from(group.started).ok().filter(|s| *s > 0))
}

/// The families in the order of their names, as Prometheus' library writes them.
pub(super) const FAMILIES: &[Family] = &[
    counter("container_blkio_device_usage_total", "Blkio Device bytes usage", operations),
    counter("container_cpu_cfs_burst_periods_total", "Number of periods when burst occurs.", |g| {
        throttling(g, |t| one(t.burst_periods))
    }),
    counter(
        "container_cpu_cfs_burst_seconds_total",
        "Total time duration the container has been bursted.",
        |g| throttling(g, |t| seconds(t.burst_ns)),
    ),
    counter(
        "container_cpu_cfs_periods_total",
        "Number of elapsed enforcement period intervals.",
        |g| throttling(g, |t| one(t.periods)),
    ),
    counter(
        "container_cpu_cfs_throttled_periods_total",
        "Number of throttled period intervals.",
        |g| throttling(g, |t| one(t.throttled_periods)),
    ),
    counter(
        "container_cpu_cfs_throttled_seconds_total",
        "Total time duration the container has been throttled.",
        |g| throttling(g, |t| seconds(t.throttled_ns)),
    ),
    counter(
        "container_cpu_system_seconds_total",
        "Cumulative system cpu time consumed in seconds.",
        |g| seconds(g.counters.system_ns.unwrap_or(0)),
    ),
    counter("container_cpu_usage_seconds_total", "Cumulative cpu time consumed in seconds.", |g| {
        vec![(vec![("cpu", "total".to_owned())], wide(g.counters.cpu_ns) / 1e9)]
    }),
    counter(
        "container_cpu_user_seconds_total",
        "Cumulative user cpu time consumed in seconds.",
        |g| seconds(g.counters.user_ns.unwrap_or(0)),
    ),
    property(
        "container_creation_time_seconds",
        "Container creation time since unix epoch in seconds.",
        started,
    ),
    gauge(
        "container_file_descriptors",
        "Number of open file descriptors for the container.",
        |g| one(g.open_files.descriptors),
    ),
    gauge("container_fs_inodes_free", "Number of available Inodes", |g| {
        file_systems(g, |fs| wide(fs.inodes_free))
    }),
    gauge("container_fs_inodes_total", "Number of Inodes", |g| {
        file_systems(g, |fs| wide(fs.inodes))
    }),
    counter(
        "container_fs_io_cost_indebt_seconds_total",
        "Cumulative IOCost debt in seconds",
        |g| cost(g, |c| c.indebt),
    ),
    counter(
        "container_fs_io_cost_indelay_seconds_total",
        "Cumulative IOCost delay in seconds",
        |g| cost(g, |c| c.indelay),
    ),
    counter(
        "container_fs_io_cost_usage_seconds_total",
        "Cumulative IOCost usage in seconds",
        |g| cost(g, |c| c.usage),
    ),
    counter("container_fs_io_cost_wait_seconds_total", "Cumulative IOCost wait in seconds", |g| {
        cost(g, |c| c.wait)
    }),
    gauge("container_fs_io_current", "Number of I/Os currently in progress", |g| {
        file_systems(g, |fs| wide(fs.transfers.in_progress))
    }),
    counter(
        "container_fs_io_time_seconds_total",
        "Cumulative count of seconds spent doing I/Os",
        |g| file_systems(g, |fs| of_milliseconds(fs.transfers.io_ms)),
    ),
    counter(
        "container_fs_io_time_weighted_seconds_total",
        "Cumulative weighted I/O time in seconds",
        |g| file_systems(g, |fs| of_milliseconds(fs.transfers.weighted_io_ms)),
    ),
    gauge(
        "container_fs_limit_bytes",
        "Number of bytes that can be consumed by the container on this filesystem.",
        |g| file_systems(g, |fs| wide(fs.size)),
    ),
    counter("container_fs_read_seconds_total", "Cumulative count of seconds spent reading", |g| {
        file_systems(g, |fs| of_milliseconds(fs.transfers.read_ms))
    }),
    counter("container_fs_reads_bytes_total", "Cumulative count of bytes read", |g| {
        disks(g, |d| d.read_bytes)
    }),
    counter("container_fs_reads_merged_total", "Cumulative count of reads merged", |g| {
        file_systems(g, |fs| wide(fs.transfers.reads_merged))
    }),
    counter("container_fs_reads_total", "Cumulative count of reads completed", |g| {
        transfers(g, |d| d.reads, |fs| wide(fs.transfers.reads))
    }),
    counter("container_fs_sector_reads_total", "Cumulative count of sector reads completed", |g| {
        file_systems(g, |fs| wide(fs.transfers.sectors_read))
    }),
    counter(
        "container_fs_sector_writes_total",
        "Cumulative count of sector writes completed",
        |g| file_systems(g, |fs| wide(fs.transfers.sectors_written)),
    ),
    gauge(
        "container_fs_usage_bytes",
        "Number of bytes that are consumed by the container on this filesystem.",
        |g| file_systems(g, |fs| wide(fs.used)),
    ),
    counter("container_fs_write_seconds_total", "Cumulative count of seconds spent writing", |g| {
        file_systems(g, |fs| of_milliseconds(fs.transfers.write_ms))
    }),
    counter("container_fs_writes_bytes_total", "Cumulative count of bytes written", |g| {
        disks(g, |d| d.written_bytes)
    }),
    counter("container_fs_writes_merged_total", "Cumulative count of writes merged", |g| {
        file_systems(g, |fs| wide(fs.transfers.writes_merged))
    }),
    counter("container_fs_writes_total", "Cumulative count of writes completed", |g| {
        transfers(g, |d| d.writes, |fs| wide(fs.transfers.writes))
    }),
    gauge("container_health_state", "The result of the container's health check", |_| {
        vec![(Vec::new(), -1.0)]
    }),
    gauge("container_last_seen", "Last time a container was seen by the exporter", |_| {
        one(base::clock::unix_time().as_secs())
    }),
    gauge("container_memory_cache", "Number of bytes of page cache memory.", |g| {
        one(g.counters.memory.cache)
    }),
    counter(
        "container_memory_events_high_total",
        "Cumulative count of memory.high throttle events for the container",
        |g| one(g.counters.memory.reclaim.high_events),
    ),
    counter(
        "container_memory_events_max_total",
        "Cumulative count of memory.max limit hit events for the container",
        |g| one(g.counters.memory.reclaim.max_events),
    ),
    counter("container_memory_failcnt", "Number of memory usage hits limits", |g| {
        or_zero(g.counters.memory.limit_hits)
    }),
    counter(
        "container_memory_failures_total",
        "Cumulative count of memory allocation failures.",
        failures,
    ),
    gauge(
        "container_memory_file_dirty_bytes",
        "Number of bytes of file cache that has been modified but not yet written back to disk.",
        |g| one(g.counters.memory.reclaim.dirty_file),
    ),
    gauge(
        "container_memory_file_writeback_bytes",
        "Number of bytes of file cache that is currently being written back to disk.",
        |g| one(g.counters.memory.reclaim.writeback_file),
    ),
    gauge("container_memory_kernel_usage", "Size of kernel memory allocated in bytes.", |g| {
        one(g.counters.memory.kernel)
    }),
    gauge("container_memory_mapped_file", "Size of memory mapped files in bytes.", |g| {
        one(g.counters.memory.mapped_file)
    }),
    gauge("container_memory_max_usage_bytes", "Maximum memory usage recorded in bytes", |g| {
        or_zero(g.counters.memory.max_usage)
    }),
    counter(
        "container_memory_pgscan_total",
        "Cumulative number of pages scanned by the page reclaim algorithm.",
        |g| one(g.counters.memory.reclaim.scanned_pages),
    ),
    counter(
        "container_memory_pgsteal_total",
        "Cumulative number of pages reclaimed by the page reclaim algorithm.",
        |g| one(g.counters.memory.reclaim.stolen_pages),
    ),
    gauge("container_memory_rss", "Size of RSS in bytes.", |g| one(g.counters.memory.rss)),
    gauge("container_memory_swap", "Container swap usage in bytes.", |g| {
        or_zero(g.counters.memory.swap)
    }),
    gauge("container_memory_total_active_file_bytes", "Current total active file in bytes.", |g| {
        one(g.counters.memory.active_file)
    }),
    gauge(
        "container_memory_total_inactive_file_bytes",
        "Current total inactive file in bytes.",
        |g| one(g.counters.memory.inactive_file),
    ),
    gauge(
        "container_memory_usage_bytes",
        "Current memory usage in bytes, including all memory regardless of when it was accessed",
        |g| one(g.counters.memory.usage),
    ),
    gauge("container_memory_working_set_bytes", "Current working set in bytes.", |g| {
        one(g.counters.memory.working_set)
    }),
    counter(
        "container_memory_workingset_refault_anon_total",
        "Cumulative number of refaults of previously evicted anonymous pages.",
        |g| one(g.counters.memory.reclaim.refaulted_anon),
    ),
    counter(
        "container_memory_workingset_refault_file_total",
        "Cumulative number of refaults of previously evicted file pages.",
        |g| one(g.counters.memory.reclaim.refaulted_file),
    ),
    counter("container_network_receive_bytes_total", "Cumulative count of bytes received", |g| {
        network(g, |i| i.rx_bytes)
    }),
    counter(
        "container_network_receive_errors_total",
        "Cumulative count of errors encountered while receiving",
        |g| network(g, |i| i.rx_errors),
    ),
    counter(
        "container_network_receive_packets_dropped_total",
        "Cumulative count of packets dropped while receiving",
        |g| network(g, |i| i.rx_dropped),
    ),
    counter(
        "container_network_receive_packets_total",
        "Cumulative count of packets received",
        |g| network(g, |i| i.rx_packets),
    ),
    counter(
        "container_network_transmit_bytes_total",
        "Cumulative count of bytes transmitted",
        |g| network(g, |i| i.tx_bytes),
    ),
    counter(
        "container_network_transmit_errors_total",
        "Cumulative count of errors encountered while transmitting",
        |g| network(g, |i| i.tx_errors),
    ),
    counter(
        "container_network_transmit_packets_dropped_total",
        "Cumulative count of packets dropped while transmitting",
        |g| network(g, |i| i.tx_dropped),
    ),
    counter(
        "container_network_transmit_packets_total",
        "Cumulative count of packets transmitted",
        |g| network(g, |i| i.tx_packets),
    ),
    counter(
        "container_oom_events_total",
        "Count of out of memory events observed for the container",
        |g| or_zero(g.counters.oom_kills),
    ),
    counter(
        "container_pressure_cpu_stalled_seconds_total",
        "Total time duration no tasks in the container could make progress due to CPU congestion.",
        |g| pressure(g.counters.pressure.cpu, |psi| psi.full.total),
    ),
    counter(
        "container_pressure_cpu_waiting_seconds_total",
        "Total time duration tasks in the container have waited due to CPU congestion.",
        |g| pressure(g.counters.pressure.cpu, |psi| psi.some.total),
    ),
    counter(
        "container_pressure_io_stalled_seconds_total",
        "Total time duration no tasks in the container could make progress due to IO congestion.",
        |g| pressure(g.counters.pressure.io, |psi| psi.full.total),
    ),
    counter(
        "container_pressure_io_waiting_seconds_total",
        "Total time duration tasks in the container have waited due to IO congestion.",
        |g| pressure(g.counters.pressure.io, |psi| psi.some.total),
    ),
    counter(
        "container_pressure_memory_stalled_seconds_total",
        "Total time duration no tasks in the container could make progress due to memory \
         congestion.",
        |g| pressure(g.counters.pressure.memory, |psi| psi.full.total),
    ),
    counter(
        "container_pressure_memory_waiting_seconds_total",
        "Total time duration tasks in the container have waited due to memory congestion.",
        |g| pressure(g.counters.pressure.memory, |psi| psi.some.total),
    ),
    gauge("container_processes", "Number of processes running inside the container.", |g| {
        one(u64::try_from(g.counters.processes).ok())
    }),
    gauge("container_sockets", "Number of open sockets for the container.", |g| {
        one(g.open_files.sockets)
    }),
    property("container_spec_cpu_period", "CPU period of the container.", |g| {
        one(g.counters.cpu_limit.period)
    }),
    property("container_spec_cpu_quota", "CPU quota of the container.", |g| {
        one(g.counters.cpu_limit.quota)
    }),
    property("container_spec_cpu_shares", "CPU share of the container.", |g| {
        one(g.counters.cpu_limit.shares)
    }),
    property("container_spec_memory_limit_bytes", "Memory limit for the container.", |g| {
        one(g.counters.memory_limit)
    }),
    property(
        "container_spec_memory_reservation_limit_bytes",
        "Memory reservation limit for the container.",
        |g| one(g.counters.memory_reservation),
    ),
    property(
        "container_spec_memory_swap_limit_bytes",
        "Memory swap limit for the container.",
        |g| one(g.counters.swap_limit),
    ),
    property(
        "container_start_time_seconds",
        "Start time of the container since unix epoch in seconds.",
        started,
    ),
    gauge("container_threads", "Number of threads running inside the container", |g| {
        or_zero(g.counters.threads)
    }),
    gauge(
        "container_threads_max",
        "Maximum number of threads allowed inside the container, infinity if value is zero",
        |g| one(g.counters.threads_max),
    ),
    gauge(
        "container_ulimits_soft",
        "Soft ulimit values for the container root process. Unlimited if -1, except priority and \
         nice",
        ulimits,
    ),
];
