//! Cases of upstream's `cpu_assignment_test.go`.

use super::*;
use crate::resource_managers::cpu_set::tests::set;
use crate::resource_managers::cpu_topology::tests::{
    dual_8, dual_12, four_sockets_80, multi_80, single_8, topology,
};

fn without(topology: &CpuTopology, cpus: &str) -> CpuSet {
    topology.details.cpus().difference(&set(cpus))
}

#[test]
fn free_sockets_and_nodes_are_those_without_taken_cpus() {
    let (s8, d12, m80, f80) = (single_8(), dual_12(), multi_80(), four_sockets_80());
    for (level, topology, taken, want) in [
        (Level::Socket, &s8, "", &[0][..]),
        (Level::Socket, &s8, "0", &[]),
        (Level::Socket, &d12, "", &[0, 1]),
        (Level::Socket, &d12, "10", &[1]),
        (Level::Socket, &d12, "1,10", &[]),
        (Level::Socket, &m80, "", &[0, 1]),
        (Level::Socket, &m80, "0", &[1]),
        (Level::Socket, &m80, "0,79", &[]),
        (Level::Socket, &f80, "", &[0, 1, 2, 3]),
        (Level::Socket, &f80, "20", &[0, 1, 3]),
        (Level::Numa, &m80, "", &[0, 1, 2, 3]),
        (Level::Numa, &m80, "0", &[1, 2, 3]),
        (Level::Numa, &m80, "0,10", &[2, 3]),
        (Level::Numa, &m80, "0,10,60", &[3]),
        (Level::Numa, &m80, "0,10,60,79", &[]),
        (Level::Numa, &f80, "10", &[1]),
        (Level::Numa, &f80, "10,60", &[]),
        (Level::Socket, &m80, "0,60", &[]),
        (Level::Numa, &m80, "0,60", &[1, 3]),
    ] {
        let acc = Accumulator::new(topology, &without(topology, taken), 0);
        let mut free = acc.free_parts(level);
        free.sort_unstable();
        assert_eq!(free, want, "{level:?} without {taken:?}");
    }
}

#[test]
fn free_cores_and_cpus_follow_the_fullest_sockets() {
    let (s8, d12) = (single_8(), dual_12());
    for (topology, available, want) in [
        (&s8, "0-7", &[0, 1, 2, 3][..]),
        (&s8, "0-2,4-6", &[0, 1, 2]),
        (&s8, "0-6", &[0, 1, 2]),
        (&s8, "0-3", &[]),
        (&d12, "0-11", &[0, 2, 4, 1, 3, 5]),
        (&d12, "1-5,7-11", &[2, 4, 1, 3, 5]),
        (&d12, "2-5,8-11", &[2, 4, 3, 5]),
    ] {
        let acc = Accumulator::new(topology, &set(available), 0);
        assert_eq!(acc.free_parts(Level::Core), want, "{available}");
    }
    for (topology, available, want) in [
        (&s8, "0-7", &[0, 4, 1, 5, 2, 6, 3, 7][..]),
        (&s8, "3-7", &[4, 5, 6, 3, 7]),
        (&d12, "0-11", &[0, 6, 2, 8, 4, 10, 1, 7, 3, 9, 5, 11]),
        (&d12, "1-11", &[6, 2, 8, 4, 10, 1, 7, 3, 9, 5, 11]),
    ] {
        let acc = Accumulator::new(topology, &set(available), 0);
        assert_eq!(acc.free_cpus(), want, "{available}");
    }
}

#[test]
fn whole_parts_are_taken_before_single_cpus() {
    let (s8, d12, m80) = (single_8(), dual_12(), multi_80());
    for (topology, available, count, want) in [
        (&s8, "0-7", 0, ""),
        (&s8, "0-7", 1, "0"),
        (&s8, "1,3,5-7", 1, "6"),
        (&s8, "0-7", 2, "0,4"),
        (&s8, "0-7", 8, "0-7"),
        (&s8, "0-3,6", 2, "2,6"),
        (&d12, "0-11", 6, "0,2,4,6,8,10"),
        (&d12, "1-5,7-11", 1, "2"),
        (&d12, "0-11", 8, "0-2,4,6-8,10"),
        (&m80, "0-79", 40, "0-19,40-59"),
        (&m80, "0-79", 20, "0-9,40-49"),
        (&m80, "10-39,50-79", 20, "10-19,50-59"),
        (&m80, "0-79", 60, "0-29,40-69"),
        (&m80, "1-39,41-79", 60, "10-39,50-79"),
        (&m80, "0-79", 64, "0-31,40-71"),
        (&dual_8(), "0-7", 4, "0-3"),
    ] {
        let taken = take_packed(topology, &set(available), count, false).unwrap();
        assert_eq!(taken, set(want), "{count} of {available}");
    }
    let error = take_packed(&s8, &set("0,2,4,6"), 5, false).unwrap_err().to_string();
    let want = "not enough cpus available to satisfy request: requested=5, available=4";
    assert_eq!(error, want);
}

#[test]
fn cpus_of_few_caches_are_taken_with_the_option() {
    let one_cache = topology(12, |cpu| (cpu % 2, cpu % 2, cpu % 6, 0));
    let no_smt = topology(16, |cpu| (0, 0, cpu, cpu / 4));
    let dual = topology(16, |cpu| (0, cpu / 8, cpu, cpu / 4));
    let nodes = topology(16, |cpu| (cpu / 8, 0, cpu, cpu / 4));
    let smt = topology(16, |cpu| (0, 0, cpu % 8, cpu % 8 / 4));
    for (topology, available, count, want) in [
        (&no_smt, "1-15", 10, "1-2,4-11"),
        (&one_cache, "1-5,7-11", 1, "1"),
        (&dual, "0-15", 4, "0-3"),
        (&dual, "2-15", 6, "2-7"),
        (&dual, "8-15", 4, "8-11"),
        (&nodes, "3-8,12", 2, "4-5"),
        (&smt, "2-7,10-15", 6, "4-6,12-14"),
        (&smt, "1-7,9-15", 10, "1,4-7,9,12-15"),
    ] {
        let taken = take_packed(topology, &set(available), count, true).unwrap();
        assert_eq!(taken, set(want), "{count} of {available}");
    }
}
