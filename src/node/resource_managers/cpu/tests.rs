//! Cases of upstream's `policy_static_test.go` and `topology_hints_test.go`.

use serde_json::{Value, json};

use super::*;
use crate::pods::pod::tests::pod;
use crate::resource_managers::cpu_set::tests::set;
use crate::resource_managers::cpu_topology::tests::{dual_8, dual_12, multi_80, single_8};
use crate::resource_managers::topology::hints::tests::text as hints_text;

const FULL: CpuPolicyOptions = CpuPolicyOptions {
    full_cores_only: true,
    distribute_across_numa: false,
    strict_reservation: false,
    align_by_uncore: false,
};
const STRICT: CpuPolicyOptions = CpuPolicyOptions { strict_reservation: true, ..NONE };
const NONE: CpuPolicyOptions = CpuPolicyOptions { full_cores_only: false, ..FULL };

fn container(name: &str, cpu: &str) -> Value {
    json!({"name": name, "resources": {"limits": {"cpu": cpu, "memory": "1Gi"}}})
}

/// A Guaranteed pod with one container.
fn pod_of(cpu: &str) -> Pod {
    pod(json!({"containers": [container("c", cpu)]}))
}

/// A manager on which `reserved` CPUs are reserved, with these shared CPUs; all other CPUs are
/// those of another pod.
fn manager(
    topology: CpuTopology,
    options: CpuPolicyOptions,
    reserved: &str,
    default: &str,
) -> CpuManager {
    let reserved = set(reserved);
    let milli = i64::try_from(reserved.len() * 1000).unwrap();
    let mut out = CpuManager::new(topology, options, Some(milli), Some(&reserved)).unwrap();
    out.state.default = set(default);
    let taken = out.topology.details.cpus().difference(&out.state.default);
    if !taken.is_empty() {
        let other = BTreeMap::from([("other".to_owned(), taken)]);
        out.state.assignments.insert("other".to_owned(), other);
    }
    out
}

/// Allocates for the only container; returns its CPUs, or the error.
fn add(manager: &mut CpuManager, cpu: &str, affinity: Option<usize>) -> Result<String, String> {
    let pod = pod_of(cpu);
    let mask = affinity.map(|node| NumaMask::new([node]));
    manager
        .allocate(&pod, &pod.containers[0], mask)
        .map(|_| manager.exclusive("u", "c").map(ToString::to_string).unwrap_or_default())
        .map_err(|error| error.to_string())
}

#[test]
fn cpus_are_reserved_by_number_or_by_amount() {
    let new = |milli, list: Option<&str>| {
        let list = list.map(set);
        let manager = CpuManager::new(single_8(), NONE, milli, list.as_ref());
        manager.map(|m| m.reserved.to_string()).map_err(|error| error.to_string())
    };
    assert_eq!(new(Some(2000), None), Ok("0,4".to_owned()));
    assert_eq!(new(Some(1500), None), Ok("0,4".to_owned()));
    assert_eq!(new(Some(2000), Some("0-1")), Ok("0-1".to_owned()));
    let error = new(Some(1000), Some("0-1")).unwrap_err();
    assert!(error.contains("(size of 0-1 did not equal 1)"), "{error}");
    assert!(new(None, None).unwrap_err().contains("unable to determine reserved CPU resources"));
    assert!(new(Some(0), None).unwrap_err().contains("to be greater than zero"));
}

#[test]
fn the_recorded_state_must_fit_the_machine() {
    let restored = |options, default: &str, sets: &[(&str, &str)]| {
        let mut manager = CpuManager::new(dual_12(), options, Some(1000), None).unwrap();
        let sets = sets.iter().map(|(name, cpus)| ((*name).to_owned(), set(cpus)));
        let sets: BTreeMap<String, CpuSet> = sets.collect();
        let mut state = CpuState { default: set(default), ..CpuState::default() };
        if !sets.is_empty() {
            state.assignments.insert("p".to_owned(), sets);
        }
        let outcome = manager.restore(Some(state)).map_err(|error| error.to_string());
        outcome.map(|()| manager.state.default.to_string())
    };
    assert_eq!(restored(NONE, "", &[]), Ok("0-11".to_owned()));
    assert_eq!(restored(STRICT, "", &[]), Ok("1-11".to_owned()));
    assert_eq!(restored(NONE, "0-10", &[("c", "11")]), Ok("0-10".to_owned()));
    for (options, default, sets, want) in [
        (NONE, "", &[("c", "1")][..], "default cpuset cannot be empty"),
        (NONE, "1", &[], "not all reserved cpus: \"0\" are present in defaultCpuSet: \"1\""),
        (
            STRICT,
            "0-1",
            &[],
            "some of strictly reserved cpus: \"0\" are present in defaultCpuSet: \"0-1\"",
        ),
        (
            NONE,
            "0,2-11",
            &[("c", "0-2")],
            "pod: p, container: c cpuset: \"0-2\" overlaps with default cpuset \"0,2-11\"",
        ),
        (
            NONE,
            "0-12",
            &[],
            "current set of available CPUs \"0-11\" doesn't match with CPUs in state \"0-12\"",
        ),
        (
            NONE,
            "0-4",
            &[("c", "5-10")],
            "current set of available CPUs \"0-11\" doesn't match with CPUs in state \"0-10\"",
        ),
    ] {
        assert_eq!(restored(options, default, sets).unwrap_err(), want);
    }
}

#[test]
fn containers_of_guaranteed_pods_get_whole_cpus() {
    for (topology, options, reserved, default, cpu, want) in [
        (single_8(), NONE, "0", "0,1,4,5", "2", "1,5"),
        (single_8(), FULL, "0", "0,1,4,5", "2", "1,5"),
        (dual_12(), NONE, "0", "0-1,3-7,9-11", "6", "1,3,5,7,9,11"),
        (dual_12(), NONE, "0", "0,2-4,6-11", "6", "2-4,8-10"),
        (dual_8(), NONE, "0", "0-1,3-7", "4", "4-7"),
        (dual_8(), NONE, "0", "0-1,3,6-7", "4", "1,3,6-7"),
        (single_8(), NONE, "0", "0-7", "1", "4"),
        (single_8(), NONE, "0-1", "0-7", "1", "4"),
        (single_8(), NONE, "0-1", "0-1,4-5", "2", "4-5"),
        (single_8(), NONE, "0", "0-7", "977m", ""),
        (dual_12(), FULL, "0,6", "0-11", "10", "1-5,7-11"),
    ] {
        let mut manager = manager(topology, options, reserved, default);
        assert_eq!(add(&mut manager, cpu, None), Ok(want.to_owned()), "{cpu} of {default}");
        let rest = set(default).difference(&set(want));
        assert_eq!(manager.state.default, rest);
    }
    let burstable = pod(json!({"containers": [{"name": "c",
        "resources": {"requests": {"cpu": "2", "memory": "1Gi"}, "limits": {"cpu": "4"}}}]}));
    assert_eq!(exclusive_request(&burstable, &burstable.containers[0]), 0);
    let pod_level = pod(json!({"containers": [container("c", "2")],
        "resources": {"limits": {"cpu": "2", "memory": "1Gi"}}}));
    assert_eq!(exclusive_request(&pod_level, &pod_level.containers[0]), 0);
}

#[test]
fn too_few_cpus_and_parts_of_cores_are_refused() {
    let few = "not enough cpus available to satisfy request: requested=";
    for (topology, options, reserved, default, cpu, want) in [
        (single_8(), NONE, "0", "0-7", "8", format!("{few}8, available=7")),
        (single_8(), NONE, "0", "0,7", "2", format!("{few}2, available=1")),
        (
            single_8(),
            FULL,
            "0",
            "0-7",
            "1",
            "SMT Alignment Error: requested 1 cpus not multiple cpus per core = 2".to_owned(),
        ),
        (
            dual_12(),
            FULL,
            "1,6",
            "0-11",
            "10",
            "SMT Alignment Error: not enough free physical CPUs: available physical CPUs = 8, \
             requested CPUs = 10, CPUs per core = 2"
                .to_owned(),
        ),
    ] {
        let mut manager = manager(topology, options, reserved, default);
        assert_eq!(add(&mut manager, cpu, None), Err(want));
        assert_eq!(manager.state.default, set(default), "a failure changes nothing");
    }
}

#[test]
fn cpus_on_the_preferred_node_are_taken_first() {
    for (cpu, node, want) in [
        ("2", None, "0,6"),
        ("2", Some(0), "0,6"),
        ("2", Some(1), "1,7"),
        ("8", Some(0), "0-2,4,6-8,10"),
        ("8", Some(1), "0-1,3,5-7,9,11"),
    ] {
        let mut manager = manager(dual_12(), NONE, "0", "0-11");
        manager.reserved = CpuSet::default();
        assert_eq!(add(&mut manager, cpu, node), Ok(want.to_owned()));
    }
}

#[test]
fn containers_keep_what_they_have_until_their_pod_is_gone() {
    let mut manager = manager(single_8(), FULL, "0", "0,1,4,5");
    let sets = BTreeMap::from([("c".to_owned(), set("2,3,6"))]);
    manager.state.assignments.clear();
    manager.state.assignments.insert("u".to_owned(), sets);
    // Neither the number nor the cores fit the options.
    assert_eq!(add(&mut manager, "4", None), Ok("2-3,6".to_owned()));
    assert!(!manager.retain_pods(|_| true));
    assert!(manager.retain_pods(|uid| uid != "u"));
    assert_eq!(manager.state.default.to_string(), "0-6");
    assert_eq!(manager.cpus("u", "c").to_string(), "0-6");
}

/// Allocates for all containers of a pod; returns their CPUs.
fn add_all(manager: &mut CpuManager, pod: &Pod) -> Vec<String> {
    for member in &pod.containers {
        manager.allocate(pod, member, None).unwrap();
    }
    let of = |m: &PodContainer| manager.exclusive("u", m.name()).map(ToString::to_string);
    pod.containers.iter().map(|member| of(member).unwrap_or_default()).collect()
}

#[test]
fn cpus_of_ended_init_containers_are_used_again() {
    let pod_with = |init: &[&str], main: &[&str]| {
        let all = |kind: &str, list: &[&str]| -> Vec<Value> {
            list.iter()
                .enumerate()
                .map(|(at, cpu)| container(&format!("{kind}{at}"), cpu))
                .collect()
        };
        pod(json!({"initContainers": all("i", init), "containers": all("c", main)}))
    };
    for (init, main, want) in [
        (&["4"][..], &["4"][..], &["0,1,4,5", "0,1,4,5"][..]),
        (&["6"], &["4"], &["0-2,4-6", "0-1,4-5"]),
        (&["2"], &["4"], &["0,4", "0-1,4-5"]),
        (&["2", "2"], &["2"], &["0,4", "0,4", "0,4"]),
        (&["4", "4"], &["2"], &["0-1,4-5", "0-1,4-5", "0,4"]),
        (&["2", "4"], &["6"], &["0,4", "0-1,4-5", "0-2,4-6"]),
        (&["2", "4"], &["2", "2"], &["0,4", "0-1,4-5", "0,4", "1,5"]),
    ] {
        let mut manager = manager(single_8(), NONE, "0", "0-7");
        manager.reserved = CpuSet::default();
        let want: Vec<String> = want.iter().map(|list| set(list).to_string()).collect();
        assert_eq!(add_all(&mut manager, &pod_with(init, main)), want, "{init:?} {main:?}");
    }
    let mut sidecar = container("s", "4");
    sidecar["restartPolicy"] = "Always".into();
    let pod = pod(json!({"initContainers": [sidecar], "containers": [container("c", "2")]}));
    let mut manager = manager(single_8(), NONE, "0", "0-7");
    manager.reserved = CpuSet::default();
    assert_eq!(add_all(&mut manager, &pod), ["0-1,4-5", "2,6"]);
    assert_eq!(manager.state.default.to_string(), "3,7");
    assert_eq!(hints::pod_request(&pod), 6);
}

#[test]
fn the_request_of_a_pod_is_the_maximum_of_its_phases() {
    let request = |init: &[(&str, bool)], main: &[&str]| {
        let init: Vec<Value> = init
            .iter()
            .enumerate()
            .map(|(at, (cpu, is_sidecar))| {
                let mut one = container(&format!("i{at}"), cpu);
                if *is_sidecar {
                    one["restartPolicy"] = "Always".into();
                }
                one
            })
            .collect();
        let main: Vec<Value> =
            main.iter().enumerate().map(|(at, cpu)| container(&format!("c{at}"), cpu)).collect();
        hints::pod_request(&pod(json!({"initContainers": init, "containers": main})))
    };
    assert_eq!(request(&[], &["500m"]), 0);
    assert_eq!(request(&[], &["2"]), 2);
    assert_eq!(request(&[("5", false)], &["2"]), 5);
    assert_eq!(request(&[("5", false)], &["2", "4"]), 6);
    assert_eq!(request(&[("1", true)], &["1"]), 2);
    let all = [("5", false), ("1", true), ("2", true), ("3", true)];
    assert_eq!(request(&all, &["1"]), 7);
    let all = [("5", false), ("1", true), ("2", true), ("5", false), ("3", true)];
    assert_eq!(request(&all, &["1"]), 8);
    assert_eq!(request(&[("10", true), ("200", false)], &["100"]), 210);
}

#[test]
fn hints_name_the_nodes_with_enough_cpus() {
    // Node 0 has the CPUs 0-2 and 6-8, node 1 the others.
    let topology = || {
        crate::resource_managers::cpu_topology::tests::topology(12, |cpu| {
            let node = cpu % 6 / 3;
            (node, node, cpu % 6, node)
        })
    };
    for (default, cpu, has, want) in [
        ("2-11", "2", None, Some("{0}p {1}p {01}")),
        ("2-11", "5", None, Some("{1}p {01}")),
        ("2-11", "7", None, Some("{01}p")),
        ("2-11", "11", None, Some("")),
        ("0,3", "2", None, Some("{01}")),
        ("2-11", "500m", None, None),
        ("1-5,7-11", "2", Some("0,6"), Some("{0}p {01}")),
        ("0-2,4-8,10-11", "2", Some("3,9"), Some("{1}p {01}")),
        ("0", "11", Some("1-11"), Some("{01}p")),
        ("0-8", "2", Some("9-11"), Some("")),
    ] {
        let mut manager = manager(topology(), NONE, "0", default);
        manager.reserved = CpuSet::default();
        manager.state.assignments.clear();
        if let Some(cpus) = has {
            let sets = BTreeMap::from([("c".to_owned(), set(cpus))]);
            manager.state.assignments.insert("u".to_owned(), sets);
        }
        let pod = pod_of(cpu);
        for hints in [manager.hints(&pod, &pod.containers[0]), manager.pod_hints(&pod)] {
            let text = hints.get("cpu").and_then(Option::as_ref).map(|list| hints_text(list));
            assert_eq!(text.as_deref(), want, "{cpu} of {default}");
        }
    }
}

#[test]
fn options_choose_the_algorithm() {
    let distribute = CpuPolicyOptions { distribute_across_numa: true, ..NONE };
    let mut manager = manager(multi_80(), distribute, "0", "0-79");
    manager.reserved = CpuSet::default();
    assert_eq!(add(&mut manager, "26", None), Ok("0-6,10-16,40-45,50-55".to_owned()));
}
