//! `/metrics/cadvisor`: the most used metrics of cAdvisor, with its names, labels and texts
//! (`metrics/prometheus.go`), for the root, the groups of pods, sandboxes and containers.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;

use base::metrics::float;
use sorting::CompactSort as _;

use crate::cgroups::{DiskCounters, GroupCounters};
use crate::context::Node;
use crate::machine::{self, Interface, Machine};
use crate::pods::observed::{ObservedPod, ObservedState};
use crate::pods::pod::Pod;
use crate::pods::table::PodTable;
use crate::runtime::images::pause;

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
    disks: BTreeMap<String, DiskCounters>,
}

/// One value of a group, with a further label if the family has one.
type Values = Vec<(Option<String>, f64)>;

/// A family of metrics of groups.
struct Family {
    name: &'static str,
    kind: &'static str,
    help: &'static str,
    /// Name of a further label.
    label: Option<&'static str>,
    /// Whether its lines have the time of the measurement.
    timed: bool,
    values: fn(&Group) -> Values,
}

const fn family(
    name: &'static str,
    kind: &'static str,
    help: &'static str,
    values: fn(&Group) -> Values,
) -> Family {
    Family { name, kind, help, label: None, timed: true, values }
}

const fn labelled(
    name: &'static str,
    label: &'static str,
    help: &'static str,
    values: fn(&Group) -> Values,
) -> Family {
    Family { name, kind: "counter", help, label: Some(label), timed: true, values }
}

/// A property of a group, which has no time.
const fn property(name: &'static str, help: &'static str, values: fn(&Group) -> Values) -> Family {
    Family { name, kind: "gauge", help, label: None, timed: false, values }
}

fn one(value: impl Into<Option<u64>>) -> Values {
    value.into().into_iter().map(|value| (None, wide(value))).collect()
}

fn seconds(nanoseconds: impl Into<Option<u64>>) -> Values {
    nanoseconds.into().into_iter().map(|ns| (None, wide(ns) / 1e9)).collect()
}

#[expect(clippy::cast_precision_loss, reason = "the format has floating-point numbers only")]
fn wide(value: u64) -> f64 {
    value as f64
}

fn network(group: &Group, of: fn(&Interface) -> u64) -> Values {
    group.interfaces.iter().map(|i| (Some(i.name.clone()), wide(of(i)))).collect()
}

fn disks(group: &Group, of: fn(&DiskCounters) -> u64) -> Values {
    group.disks.iter().map(|(device, disk)| (Some(device.clone()), wide(of(disk)))).collect()
}

/// Throttling is reported for groups with a limit only.
fn throttling(group: &Group, of: fn(&crate::cgroups::Throttling) -> Values) -> Values {
    let limited = group.counters.cpu_limit.quota.is_some();
    group.counters.throttling.as_ref().filter(|_| limited).map(of).unwrap_or_default()
}

/// The families in the order of their names, as Prometheus' library writes them.
const FAMILIES: &[Family] = &[
    family(
        "container_cpu_cfs_periods_total",
        "counter",
        "Number of elapsed enforcement period intervals.",
        |g| throttling(g, |t| one(t.periods)),
    ),
    family(
        "container_cpu_cfs_throttled_periods_total",
        "counter",
        "Number of throttled period intervals.",
        |g| throttling(g, |t| one(t.throttled_periods)),
    ),
    family(
        "container_cpu_cfs_throttled_seconds_total",
        "counter",
        "Total time duration the container has been throttled.",
        |g| throttling(g, |t| seconds(t.throttled_ns)),
    ),
    family(
        "container_cpu_system_seconds_total",
        "counter",
        "Cumulative system cpu time consumed in seconds.",
        |g| seconds(g.counters.system_ns),
    ),
    labelled(
        "container_cpu_usage_seconds_total",
        "cpu",
        "Cumulative cpu time consumed in seconds.",
        |g| vec![(Some("total".to_owned()), wide(g.counters.cpu_ns) / 1e9)],
    ),
    family(
        "container_cpu_user_seconds_total",
        "counter",
        "Cumulative user cpu time consumed in seconds.",
        |g| seconds(g.counters.user_ns),
    ),
    labelled("container_fs_reads_bytes_total", "device", "Cumulative count of bytes read", |g| {
        disks(g, |d| d.read_bytes)
    }),
    labelled("container_fs_reads_total", "device", "Cumulative count of reads completed", |g| {
        disks(g, |d| d.reads)
    }),
    labelled(
        "container_fs_writes_bytes_total",
        "device",
        "Cumulative count of bytes written",
        |g| disks(g, |d| d.written_bytes),
    ),
    labelled("container_fs_writes_total", "device", "Cumulative count of writes completed", |g| {
        disks(g, |d| d.writes)
    }),
    family(
        "container_last_seen",
        "gauge",
        "Last time a container was seen by the exporter",
        |_| one(base::clock::unix_time().as_secs()),
    ),
    family("container_memory_cache", "gauge", "Number of bytes of page cache memory.", |g| {
        one(g.counters.memory.cache)
    }),
    family("container_memory_failcnt", "counter", "Number of memory usage hits limits", |g| {
        one(g.counters.memory.limit_hits)
    }),
    family("container_memory_mapped_file", "gauge", "Size of memory mapped files in bytes.", |g| {
        one(g.counters.memory.mapped_file)
    }),
    family(
        "container_memory_max_usage_bytes",
        "gauge",
        "Maximum memory usage recorded in bytes",
        |g| one(g.counters.memory.max_usage),
    ),
    family("container_memory_rss", "gauge", "Size of RSS in bytes.", |g| {
        one(g.counters.memory.rss)
    }),
    family("container_memory_swap", "gauge", "Container swap usage in bytes.", |g| {
        one(g.counters.memory.swap)
    }),
    family(
        "container_memory_usage_bytes",
        "gauge",
        "Current memory usage in bytes, including all memory regardless of when it was accessed",
        |g| one(g.counters.memory.usage),
    ),
    family("container_memory_working_set_bytes", "gauge", "Current working set in bytes.", |g| {
        one(g.counters.memory.working_set)
    }),
    labelled(
        "container_network_receive_bytes_total",
        "interface",
        "Cumulative count of bytes received",
        |g| network(g, |i| i.rx_bytes),
    ),
    labelled(
        "container_network_receive_errors_total",
        "interface",
        "Cumulative count of errors encountered while receiving",
        |g| network(g, |i| i.rx_errors),
    ),
    labelled(
        "container_network_receive_packets_dropped_total",
        "interface",
        "Cumulative count of packets dropped while receiving",
        |g| network(g, |i| i.rx_dropped),
    ),
    labelled(
        "container_network_receive_packets_total",
        "interface",
        "Cumulative count of packets received",
        |g| network(g, |i| i.rx_packets),
    ),
    labelled(
        "container_network_transmit_bytes_total",
        "interface",
        "Cumulative count of bytes transmitted",
        |g| network(g, |i| i.tx_bytes),
    ),
    labelled(
        "container_network_transmit_errors_total",
        "interface",
        "Cumulative count of errors encountered while transmitting",
        |g| network(g, |i| i.tx_errors),
    ),
    labelled(
        "container_network_transmit_packets_dropped_total",
        "interface",
        "Cumulative count of packets dropped while transmitting",
        |g| network(g, |i| i.tx_dropped),
    ),
    labelled(
        "container_network_transmit_packets_total",
        "interface",
        "Cumulative count of packets transmitted",
        |g| network(g, |i| i.tx_packets),
    ),
    family(
        "container_oom_events_total",
        "counter",
        "Count of out of memory events observed for the container",
        |g| one(g.counters.oom_kills),
    ),
    family(
        "container_processes",
        "gauge",
        "Number of processes running inside the container.",
        |g| one(u64::try_from(g.counters.processes).ok()),
    ),
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
        "container_start_time_seconds",
        "Start time of the container since unix epoch in seconds.",
        |g| one(u64::try_from(g.started).ok().filter(|s| *s > 0)),
    ),
    family("container_threads", "gauge", "Number of threads running inside the container", |g| {
        one(g.counters.threads)
    }),
];

/// Measures all groups and renders the page. Reads the disk: call it beside the runtime's workers.
pub(super) fn page(node: &Node, pods: &[(Arc<Pod>, Arc<ObservedPod>)]) -> String {
    let groups = groups(node, pods);
    let now = base::clock::unix_time().as_millis();
    let mut out = String::new();
    for family in FAMILIES {
        write_family(&mut out, family, &groups, now);
    }
    write_machine(&mut out, &node.identity.machine);
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
            group.image.clone_from(&container.image);
            group.started = container.created_at / 1_000_000_000;
            groups.push(group);
        }
    }
    name_disks(&mut groups);
    groups
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
        for (number, disk) in std::mem::take(&mut group.counters.disks) {
            let name = names.entry(number).or_insert_with_key(|number| device_name(number));
            group.disks.insert(name.clone(), disk);
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
        for (value_of_label, value) in (family.values)(group) {
            let _ = write!(lines, "{name}{{{}}}", labels(family.label, value_of_label, group));
            let _ = write!(lines, " {}", float(value));
            let _ = if family.timed { writeln!(lines, " {now}") } else { writeln!(lines) };
        }
    }
    if !lines.is_empty() {
        let _ = write!(out, "# HELP {name} {help}\n# TYPE {name} {kind}\n{lines}");
    }
}

/// The labels in the order of their names.
fn labels(further: Option<&str>, value: Option<String>, group: &Group) -> String {
    let mut labels = vec![
        ("container", group.container.as_str()),
        ("id", &group.counters.path),
        ("image", &group.image),
        ("name", &group.name),
        ("namespace", &group.namespace),
        ("pod", &group.pod),
    ];
    let value = value.unwrap_or_default();
    labels.extend(further.map(|name| (name, value.as_str())));
    labels.compact_sort();
    let pair = |(name, value): &(&str, &str)| format!("{name}=\"{}\"", escaped(value));
    labels.iter().map(pair).collect::<Vec<_>>().join(",")
}

/// Escapes the value of a label.
fn escaped(value: &str) -> String {
    value.replace('\\', r"\\").replace('"', "\\\"").replace('\n', r"\n")
}

/// Writes the metrics of the machine and the result of the measurement.
fn write_machine(out: &mut String, machine: &Machine) {
    let labels = format!(
        "{{boot_id=\"{}\",machine_id=\"{}\",system_uuid=\"{}\"}}",
        escaped(&machine.boot_id),
        escaped(&machine.machine_id),
        escaped(&machine.system_uuid)
    );
    let error = "1 if there was an error while getting container metrics, 0 otherwise";
    for (name, help, labels, value) in [
        ("container_scrape_error", error, "", 0),
        ("machine_cpu_cores", "Number of logical CPU cores.", labels.as_str(), machine.cpus),
        (
            "machine_memory_bytes",
            "Amount of memory installed on the machine.",
            &labels,
            machine.memory,
        ),
    ] {
        let _ = write!(out, "# HELP {name} {help}\n# TYPE {name} gauge\n{name}{labels} {value}\n");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cgroups::{CpuLimit, Throttling};

    fn group() -> Group {
        Group {
            counters: GroupCounters {
                path: "/kubepods/podu/i".into(),
                cpu_ns: 1_500_000_000,
                throttling: Some(Throttling { throttled_ns: 250_000_000, ..Default::default() }),
                ..GroupCounters::default()
            },
            namespace: "d".into(),
            pod: "p".into(),
            container: "c".into(),
            image: "busybox:1".into(),
            name: "i".into(),
            started: 5,
            interfaces: machine::interfaces("eth0: 10 2 3 0 0 0 0 0 20 4 5 6 0 0 0 0"),
            disks: [("/dev/sda".to_owned(), DiskCounters { reads: 7, ..Default::default() })]
                .into(),
        }
    }

    fn lines(name: &str, group: &Group) -> String {
        let mut out = String::new();
        let family = FAMILIES.iter().find(|family| family.name == name).unwrap();
        write_family(&mut out, family, std::slice::from_ref(group), 1000);
        out
    }

    #[test]
    fn lines_have_the_labels_of_cadvisor() {
        let own = r#"id="/kubepods/podu/i",image="busybox:1""#;
        let rest = r#"name="i",namespace="d",pod="p""#;
        assert_eq!(
            lines("container_cpu_usage_seconds_total", &group()),
            format!(
                "# HELP container_cpu_usage_seconds_total Cumulative cpu time consumed in seconds.\n\
                 # TYPE container_cpu_usage_seconds_total counter\n\
                 container_cpu_usage_seconds_total{{container=\"c\",cpu=\"total\",{own},{rest}}} 1.5 \
                 1000\n"
            )
        );
        let dropped = lines("container_network_transmit_packets_dropped_total", &group());
        let labels = r#"image="busybox:1",interface="eth0",name="i""#;
        assert!(dropped.contains(labels) && dropped.ends_with("} 6 1000\n"), "{dropped}");
        assert!(lines("container_fs_reads_total", &group()).contains(r#",device="/dev/sda","#));
        let started = lines("container_start_time_seconds", &group());
        assert!(started.ends_with("} 5\n"), "a property has no time: {started}");
    }

    #[test]
    fn throttling_is_reported_with_a_limit_only() {
        let mut group = group();
        assert_eq!(lines("container_cpu_cfs_throttled_seconds_total", &group), "");
        group.counters.cpu_limit = CpuLimit { quota: Some(1), ..CpuLimit::default() };
        let text = lines("container_cpu_cfs_throttled_seconds_total", &group);
        assert!(text.ends_with("} 0.25 1000\n"), "{text}");
    }

    #[test]
    fn families_are_in_order() {
        assert!(FAMILIES.windows(2).all(|pair| pair[0].name < pair[1].name));
    }

    #[test]
    fn values_of_labels_are_escaped() {
        assert_eq!(escaped("a\"b\\c\nd"), "a\\\"b\\\\c\\nd");
        assert_eq!(device_name("../x"), "");
    }
}
