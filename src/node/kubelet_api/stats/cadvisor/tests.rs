//! The lines of the page.

use super::disks::Transfers;
use super::*;
use crate::cgroups::{CpuLimit, IoCost, Psi, PsiData, Throttling};

fn disk() -> Disk {
    let operations = [("Read".to_owned(), 512)].into();
    let counters = DiskCounters { operations, reads: 7, ..DiskCounters::default() };
    Disk { number: "8:0".into(), counters }
}

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
        disks: [("/dev/sda".to_owned(), disk())].into(),
        ..Group::default()
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

/// The families of the specification "ContainerMetrics … should report container metrics"
/// (`test/e2e_node/container_metrics_test.go`) that each container must have, whatever the kernel
/// counts.
#[test]
fn a_container_has_the_families_of_the_specification() {
    let container = Group { open_files_max: Some(1024), disks: BTreeMap::new(), ..group() };
    for name in [
        "container_cpu_system_seconds_total",
        "container_cpu_usage_seconds_total",
        "container_cpu_user_seconds_total",
        "container_file_descriptors",
        "container_last_seen",
        "container_memory_cache",
        "container_memory_events_high_total",
        "container_memory_events_max_total",
        "container_memory_failcnt",
        "container_memory_failures_total",
        "container_memory_mapped_file",
        "container_memory_max_usage_bytes",
        "container_memory_rss",
        "container_memory_swap",
        "container_memory_usage_bytes",
        "container_memory_working_set_bytes",
        "container_oom_events_total",
        "container_processes",
        "container_sockets",
        "container_spec_cpu_period",
        "container_spec_cpu_shares",
        "container_spec_memory_limit_bytes",
        "container_spec_memory_reservation_limit_bytes",
        "container_spec_memory_swap_limit_bytes",
        "container_start_time_seconds",
        "container_threads",
        "container_threads_max",
        "container_ulimits_soft",
    ] {
        assert!(lines(name, &container).contains("container=\"c\""), "{name}");
    }
    let with_disk = group();
    for name in [
        "container_blkio_device_usage_total",
        "container_fs_reads_bytes_total",
        "container_fs_reads_total",
        "container_fs_writes_bytes_total",
        "container_fs_writes_total",
    ] {
        assert!(lines(name, &with_disk).contains("device=\"/dev/sda\""), "{name}");
    }
}

#[test]
fn operations_failures_and_limits_have_labels_of_their_own() {
    let mut group = group();
    let text = lines("container_blkio_device_usage_total", &group);
    let labels = r#"container="c",device="/dev/sda",id="/kubepods/podu/i",image="busybox:1","#;
    let rest = r#"major="8",minor="0",name="i",namespace="d",operation="Read",pod="p"} 512 1000"#;
    assert!(text.ends_with(&format!("{{{labels}{rest}\n")), "{text}");
    group.counters.memory.page_faults = 9;
    let text = lines("container_memory_failures_total", &group);
    let fault = r#"failure_type="pgfault",id="/kubepods/podu/i""#;
    assert_eq!(text.matches(fault).count(), 2, "{text}");
    assert_eq!(text.matches("} 9 1000\n").count(), 2, "{text}");
    group.open_files_max = Some(-1);
    let text = lines("container_ulimits_soft", &group);
    assert!(text.ends_with("ulimit=\"max_open_files\"} -1 1000\n"), "{text}");
}

#[test]
fn the_root_has_the_file_systems_of_the_machine() {
    let transfers = Transfers { reads: 3, read_ms: 1500, ..Transfers::default() };
    let file_system = |device: &str| FileSystem {
        device: device.to_owned(),
        size: 100,
        used: 40,
        transfers,
        ..FileSystem::default()
    };
    let root =
        Group { file_systems: vec![file_system("/dev/sda"), file_system("/dev/sda1")], ..group() };
    let usage = lines("container_fs_usage_bytes", &root);
    assert_eq!(usage.matches("} 40 1000\n").count(), 2, "{usage}");
    assert!(lines("container_fs_read_seconds_total", &root).contains("} 1.5 1000\n"));
    // The group counts the transfers of one of the devices.
    let reads = lines("container_fs_reads_total", &root);
    assert!(reads.contains("} 7 1000\n") && reads.contains("} 3 1000\n"), "{reads}");
    assert_eq!(reads.lines().count(), 4, "{reads}");
    assert_eq!(lines("container_fs_usage_bytes", &group()), "");
}

#[test]
fn pressure_and_costs_are_reported_where_the_kernel_counts_them() {
    let mut group = group();
    assert_eq!(lines("container_pressure_io_stalled_seconds_total", &group), "");
    assert_eq!(lines("container_fs_io_cost_usage_seconds_total", &group), "");
    let full = PsiData { total: 2_500_000, ..PsiData::default() };
    group.counters.pressure.io = Some(Psi { full, ..Psi::default() });
    let text = lines("container_pressure_io_stalled_seconds_total", &group);
    assert!(text.ends_with("} 2.5 1000\n"), "{text}");
    let cost = IoCost { usage: 500_000, ..IoCost::default() };
    group.disks.get_mut("/dev/sda").unwrap().counters.cost = Some(cost);
    let text = lines("container_fs_io_cost_usage_seconds_total", &group);
    assert!(text.ends_with("} 0.5 1000\n"), "{text}");
}
