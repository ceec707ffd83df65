//! The parts of the Summary API (`k8s.io/kubelet/pkg/apis/stats/v1alpha1`) as JSON.

use serde_json::{Value, json};

use super::samples::{ContainerSample, NodeSample};
use crate::cgroups::{GroupUsage, Psi, PsiData};
use crate::machine::{Disk, Interface};
use crate::volume_usage::VolumeUsage;

pub(super) fn time(nanoseconds: i64) -> String {
    jiff::Timestamp::from_nanosecond(i128::from(nanoseconds))
        .map(|t| t.to_string())
        .unwrap_or_default()
}

/// Adds a field if it has a value.
fn put(object: &mut Value, name: &str, value: Option<u64>) {
    if let Some(value) = value {
        object[name] = value.into();
    }
}

/// `PSIStats`, with the kernel's totals unconverted, as upstream does.
fn add_psi(object: &mut Value, psi: Option<Psi>) {
    let line = |data: PsiData| {
        json!({"total": data.total, "avg10": data.avg10, "avg60": data.avg60,
            "avg300": data.avg300})
    };
    if let Some(psi) = psi {
        object["psi"] = json!({"full": line(psi.full), "some": line(psi.some)});
    }
}

/// `CPUStats`.
fn cpu(at: i64, core_ns: u64, cores_ns: Option<u64>, psi: Option<Psi>) -> Value {
    let mut out = json!({"time": time(at), "usageCoreNanoSeconds": core_ns});
    put(&mut out, "usageNanoCores", cores_ns);
    add_psi(&mut out, psi);
    out
}

/// `MemoryStats` of a group, with what remains of its limit.
fn memory(at: i64, usage: &GroupUsage) -> Value {
    let mut out = json!({"time": time(at), "usageBytes": usage.usage,
        "workingSetBytes": usage.working_set, "rssBytes": usage.rss,
        "pageFaults": usage.page_faults, "majorPageFaults": usage.major_page_faults});
    let available = usage.memory_limit.map(|limit| limit.saturating_sub(usage.working_set));
    put(&mut out, "availableBytes", available);
    add_psi(&mut out, usage.pressure.memory);
    out
}

/// `IOStats`.
fn io(at: i64, psi: Option<Psi>) -> Value {
    let mut out = json!({"time": time(at)});
    add_psi(&mut out, psi);
    out
}

/// `SwapStats`; without swap accounting in the kernel, usage is zero.
fn swap(at: i64, used: Option<u64>, available: Option<u64>) -> Value {
    let mut out = json!({"time": time(at), "swapUsageBytes": used.unwrap_or(0)});
    put(&mut out, "swapAvailableBytes", available);
    out
}

/// Adds the measurements of a group as fields of `PodStats`, `ContainerStats` or `NodeStats`.
pub(super) fn add_group(out: &mut Value, at: i64, usage: &GroupUsage, cores_ns: Option<u64>) {
    // Upstream reports zero until there are two samples.
    out["cpu"] = cpu(at, usage.cpu_ns, Some(cores_ns.unwrap_or(0)), usage.pressure.cpu);
    out["memory"] = memory(at, usage);
    out["io"] = io(at, usage.pressure.io);
    let swap_used = usage.swap.unwrap_or(0);
    let left = usage.swap_limit.map(|limit| limit.saturating_sub(swap_used));
    out["swap"] = swap(at, usage.swap, left);
}

/// `NetworkStats`: all interfaces, and the first one in its own fields.
pub(super) fn network(at: i64, all: &[Interface]) -> Option<Value> {
    let one = |i: &Interface| {
        json!({"name": i.name, "rxBytes": i.rx_bytes, "rxErrors": i.rx_errors,
            "txBytes": i.tx_bytes, "txErrors": i.tx_errors})
    };
    let mut out = one(all.iter().find(|i| i.name == "eth0").or_else(|| all.first())?);
    out["time"] = time(at).into();
    out["interfaces"] = all.iter().map(one).collect();
    Some(out)
}

/// `FsStats`: the usage of a file system.
pub(super) fn file_system(
    at: i64,
    disk: Option<Disk>,
    used: Option<u64>,
    inodes_used: Option<u64>,
) -> Value {
    let mut out = json!({"time": time(at)});
    if let Some(disk) = disk {
        out["availableBytes"] = disk.free.into();
        out["capacityBytes"] = disk.size.into();
        if disk.inodes > 0 {
            out["inodes"] = disk.inodes.into();
            out["inodesFree"] = disk.inodes_free.into();
        }
    }
    put(&mut out, "usedBytes", used);
    put(&mut out, "inodesUsed", inodes_used);
    out
}

/// `FsStats` of a whole file system.
pub(super) fn whole_file_system(at: i64, disk: Option<Disk>) -> Value {
    let inodes_used = disk.filter(|d| d.inodes > 0);
    let inodes_used = inodes_used.map(|d| d.inodes.saturating_sub(d.inodes_free));
    file_system(at, disk, disk.map(|d| d.used), inodes_used)
}

/// `FsStats` of a volume that is not part of the pod; upstream reports zero for what is not
/// measured.
pub(super) fn volume_usage(usage: &VolumeUsage) -> Value {
    let VolumeUsage { bytes, inodes, at } = usage;
    json!({"time": time(*at), "availableBytes": bytes.available, "capacityBytes": bytes.total,
        "usedBytes": bytes.used, "inodesFree": inodes.available, "inodes": inodes.total,
        "inodesUsed": inodes.used})
}

/// `ContainerStats` without its logs.
pub(super) fn container(s: &ContainerSample, image_disk: Option<Disk>) -> Value {
    let mut memory = json!({"time": time(s.time), "workingSetBytes": s.working_set,
        "usageBytes": s.usage});
    put(&mut memory, "rssBytes", s.rss);
    put(&mut memory, "availableBytes", s.available);
    put(&mut memory, "pageFaults", s.page_faults);
    put(&mut memory, "majorPageFaults", s.major_page_faults);
    add_psi(&mut memory, s.pressure.memory);
    json!({
        "name": s.container, "startTime": time(s.started),
        "cpu": cpu(s.time, s.cpu_ns, s.cores_ns, s.pressure.cpu),
        "memory": memory,
        "io": io(s.time, s.pressure.io),
        "swap": swap(s.time, s.swap, s.swap_available),
        "rootfs": file_system(s.time, image_disk, Some(s.layer), s.layer_inodes),
    })
}

/// `ContainerStats` of a system container, without file systems.
fn system_container(
    name: &str,
    at: i64,
    started: i64,
    usage: &GroupUsage,
    cores_ns: Option<u64>,
) -> Value {
    let mut out = json!({"name": name, "startTime": time(started)});
    add_group(&mut out, at, usage, cores_ns);
    out
}

/// `NodeStats` without its file systems.
pub(super) fn node(name: &str, m: &NodeSample) -> Value {
    let mut memory = json!({"time": time(m.now), "availableBytes": m.memory_available,
        "usageBytes": m.memory.usage, "workingSetBytes": m.node_memory,
        "rssBytes": m.memory.rss, "pageFaults": m.memory.page_faults,
        "majorPageFaults": m.memory.major_page_faults});
    add_psi(&mut memory, m.pressure.memory);
    let swap_used = m.memory.swap_total.saturating_sub(m.memory.swap_free);
    let cores_ns = Some(m.node_cores_ns.unwrap_or(0));
    let mut out = json!({"nodeName": name, "startTime": time(m.limits.booted),
        "cpu": cpu(m.now, m.node_cpu, cores_ns, m.pressure.cpu),
        "memory": memory,
        "io": io(m.now, m.pressure.io),
        "swap": swap(m.now, Some(swap_used), Some(m.memory.swap_free))});
    let mut rlimit = json!({"time": time(m.now)});
    put(&mut rlimit, "maxpid", m.limits.max);
    put(&mut rlimit, "curproc", m.limits.running);
    out["rlimit"] = rlimit;
    if let Some(network) = network(m.now, &m.interfaces) {
        out["network"] = network;
    }
    let groups = m.system.iter().map(|system| {
        system_container(system.name, m.now, system.started, &system.usage, system.cores_ns)
    });
    out["systemContainers"] = groups.collect();
    out
}
