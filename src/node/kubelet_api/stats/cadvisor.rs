//! `/metrics/cadvisor`: the metrics of cAdvisor in the sets that the kubelet turns on, with its
//! names, labels and texts (`metrics/prometheus.go`), for the root, the groups of pods, sandboxes
//! and containers.

mod disks;
mod families;
mod machine_page;
mod open_files;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;

use base::metrics::float;
use sorting::CompactSort as _;

use self::disks::FileSystem;
use self::families::{FAMILIES, Family};
use self::open_files::OpenFiles;
use crate::cgroups::{DiskCounters, GroupCounters};
use crate::context::Node;
use crate::machine::{self, Interface};
use crate::pods::observed::{ObservedPod, ObservedState};
use crate::pods::pod::Pod;
use crate::pods::table::PodTable;
use crate::runtime::images::pause;

/// Where processes are listed.
const PROC: &str = "/proc";

/// A cgroup and the pod, container or sandbox that it belongs to.
#[derive(Debug, Default)]
struct Group {
    counters: GroupCounters,
    namespace: String,
    pod: String,
    /// Empty for a sandbox and for groups above containers.
    container: String,
    image: String,
    /// Id of the container or sandbox.
    name: String,
    /// Seconds since the epoch; zero if unknown.
    started: i64,
    interfaces: Vec<Interface>,
    /// Transfers by the name of the device.
    disks: BTreeMap<String, Disk>,
    open_files: OpenFiles,
    /// The soft limit of open files of the first process; -1 without a limit.
    open_files_max: Option<i64>,
    /// The file systems of the machine, for the root only.
    file_systems: Vec<FileSystem>,
}

/// Transfers from and to a device, and its number, such as `8:0`.
#[derive(Debug, Default)]
struct Disk {
    number: String,
    counters: DiskCounters,
}

/// Measures all groups and renders the page. Reads the disk: call it beside the runtime's workers.
pub(super) fn page(node: &Node, pods: &[(Arc<Pod>, Arc<ObservedPod>)]) -> String {
    let groups = groups(node, pods);
    let now = base::clock::unix_time().as_millis();
    let mut out = String::new();
    for family in FAMILIES {
        write_family(&mut out, family, &groups, now);
    }
    machine_page::write(&mut out, &node.identity.machine, machine_page::Parts::read());
    out
}

/// The pods of a table and what the runtime reported of them.
pub(super) fn observed(table: &PodTable) -> Vec<(Arc<Pod>, Arc<ObservedPod>)> {
    let observed = |(pod, handle): (Arc<Pod>, Arc<crate::pods::handle::WorkerHandle>)| {
        let observed = Arc::clone(&handle.reported.lock().observed);
        (pod, observed)
    };
    table.all().into_iter().map(observed).collect()
}

fn groups(node: &Node, pods: &[(Arc<Pod>, Arc<ObservedPod>)]) -> Vec<Group> {
    let cgroups = &node.runtime.cgroups;
    let upper = cgroups.upper_counters().into_iter();
    let mut groups: Vec<Group> =
        upper.map(|counters| Group { counters, ..Group::default() }).collect();
    if let Some(root) = groups.first_mut().filter(|group| group.counters.path == "/") {
        let text = std::fs::read_to_string("/proc/net/dev").unwrap_or_default();
        root.interfaces = machine::interfaces(&text);
        root.file_systems = disks::measure(&node.identity.config.root_dir);
        // The limits of the root are those of the machine, and its process is the first one.
        root.counters.memory_limit =
            u64::try_from(node.identity.machine.memory).unwrap_or_default();
        root.counters.swap_limit = u64::try_from(node.identity.machine.swap).unwrap_or_default();
        root.open_files_max = open_files::limit(Path::new(PROC), 1);
    }
    for (pod, observed) in pods {
        let of_pod = |counters| Group {
            counters,
            namespace: pod.namespace().to_owned(),
            pod: pod.name().to_owned(),
            ..Group::default()
        };
        groups.extend(cgroups.pod_counters(pod).map(of_pod));
        if let Some(sandbox) = observed.ready_sandbox()
            && let Some(counters) = cgroups.container_counters(pod, &sandbox.id)
        {
            let mut group = of_pod(counters);
            group.name.clone_from(&sandbox.id);
            group.read_limit();
            pause::IMAGE.clone_into(&mut group.image);
            group.started = sandbox.created_at / 1_000_000_000;
            if !sandbox.host_network {
                group.interfaces = pod_interfaces(node, pod);
            }
            groups.push(group);
        }
        for container in observed.containers.iter().filter(|c| c.state == ObservedState::Running) {
            let Some(counters) = cgroups.container_counters(pod, &container.id) else { continue };
            let mut group = of_pod(counters);
            group.container.clone_from(&container.name);
            group.name.clone_from(&container.id);
            group.read_limit();
            group.image.clone_from(&container.image);
            group.started = container.created_at / 1_000_000_000;
            groups.push(group);
        }
    }
    for group in &mut groups {
        group.open_files = open_files::count(Path::new(PROC), &group.counters.pids);
    }
    name_disks(&mut groups);
    groups
}

impl Group {
    /// Reads the limit of open files of the first process of a container or sandbox.
    fn read_limit(&mut self) {
        let first = self.counters.pids.first();
        self.open_files_max = first.and_then(|pid| open_files::limit(Path::new(PROC), *pid));
    }
}

/// The interfaces of a pod with its own network; its first processes may be exiting.
fn pod_interfaces(node: &Node, pod: &Pod) -> Vec<Interface> {
    let processes = node.runtime.cgroups.pod_processes(pod);
    let read = |pid: &u32| std::fs::read_to_string(format!("/proc/{pid}/net/dev")).ok();
    machine::interfaces(&processes.iter().take(8).find_map(read).unwrap_or_default())
}

/// Replaces device numbers by names such as `/dev/sda`.
fn name_disks(groups: &mut [Group]) {
    let mut names: BTreeMap<String, String> = BTreeMap::new();
    for group in groups {
        for (number, counters) in std::mem::take(&mut group.counters.disks) {
            let name = names.entry(number.clone()).or_insert_with_key(|n| device_name(n)).clone();
            group.disks.insert(name, Disk { number, counters });
        }
    }
}

/// The name of a device number such as `8:0`; empty if there is no such device, as in cAdvisor.
fn device_name(number: &str) -> String {
    let is_number = number.bytes().all(|b| b.is_ascii_digit() || b == b':');
    let path = format!("/sys/dev/block/{number}/uevent");
    let uevent = is_number.then(|| std::fs::read_to_string(path).ok()).flatten();
    let name = uevent.as_deref().unwrap_or_default().lines();
    let name = name.filter_map(|line| line.strip_prefix("DEVNAME=")).next();
    name.map(|name| format!("/dev/{name}")).unwrap_or_default()
}

/// Writes one family; nothing without values.
fn write_family(out: &mut String, family: &Family, groups: &[Group], now: u128) {
    let Family { name, kind, help, .. } = family;
    let mut lines = String::new();
    for group in groups {
        for (further, value) in (family.values)(group) {
            let _ = write!(lines, "{name}{{{}}}", labels(&further, group));
            let _ = write!(lines, " {}", float(value));
            let _ = if family.timed { writeln!(lines, " {now}") } else { writeln!(lines) };
        }
    }
    if !lines.is_empty() {
        let _ = write!(out, "# HELP {name} {help}\n# TYPE {name} {kind}\n{lines}");
    }
}

/// The labels in the order of their names.
fn labels(further: &[(&str, String)], group: &Group) -> String {
    let mut labels = vec![
        ("container", group.container.as_str()),
        ("id", &group.counters.path),
        ("image", &group.image),
        ("name", &group.name),
        ("namespace", &group.namespace),
        ("pod", &group.pod),
    ];
    labels.extend(further.iter().map(|(name, value)| (*name, value.as_str())));
    labels.compact_sort();
    let pair = |(name, value): &(&str, &str)| format!("{name}=\"{}\"", escaped(value));
    labels.iter().map(pair).collect::<Vec<_>>().join(",")
}

/// Escapes the value of a label.
fn escaped(value: &str) -> String {
    value.replace('\\', r"\\").replace('"', "\\\"").replace('\n', r"\n")
}

#[cfg(test)]
mod tests;
