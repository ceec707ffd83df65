//! Cases of upstream's `policy_static_test.go` of the memory manager.

use serde_json::{Value, json};

use super::machine_state::{MemoryAssignments, MemoryTable, NodeState};
use super::*;
use crate::pods::pod::tests::pod;
use crate::resource_managers::topology::hints::tests::{hints as parse_hints, text as hints_text};

const GI: u64 = 1 << 30;
const ANY: TopologyHint = TopologyHint { mask: None, preferred: false };

fn container(name: &str, memory: u64, huge: u64) -> Value {
    let mut limits = json!({"cpu": "1", "memory": format!("{memory}Gi")});
    if huge > 0 {
        limits["hugepages-1Gi"] = format!("{huge}Gi").into();
    }
    json!({"name": name, "resources": {"limits": limits}})
}

fn sidecar(name: &str, memory: u64) -> Value {
    let mut out = container(name, memory, 0);
    out["restartPolicy"] = "Always".into();
    out
}

/// Nodes with this much free memory in Gi of `total`, and no containers.
fn machine(total: u64, free: &[u64]) -> MachineState {
    let node = |(number, free): (usize, &u64)| {
        let table = MemoryTable {
            total: (total + 1) * GI,
            system_reserved: GI,
            allocatable: total * GI,
            reserved: (total - free) * GI,
            free: free * GI,
        };
        let memory = BTreeMap::from([
            (MEMORY.to_owned(), table.clone()),
            ("hugepages-1Gi".to_owned(), table),
        ]);
        (number, NodeState { assignments: 0, memory, cells: vec![number] })
    };
    MachineState(free.iter().enumerate().map(node).collect())
}

fn manager(machine: MachineState) -> MemoryManager {
    MemoryManager::new(machine, None).unwrap()
}

/// Marks nodes as used together.
fn group(manager: &mut MemoryManager, nodes: &[usize]) {
    for node in nodes {
        let state = manager.state.machine.0.get_mut(node).unwrap();
        (state.assignments, state.cells) = (1, nodes.to_vec());
    }
}

fn free(manager: &MemoryManager) -> Vec<u64> {
    manager.state.machine.0.values().map(|node| node.memory[MEMORY].free / GI).collect()
}

fn add(manager: &mut MemoryManager, memory: u64, hint: &str) -> Result<String, String> {
    let pod = pod(json!({"containers": [container("c", memory, 0)]}));
    let hint = parse_hints(hint).first().copied().unwrap_or(ANY);
    let outcome = manager.allocate(&pod, &pod.containers[0], hint);
    outcome.map(|_| manager.nodes("u", "c")).map_err(|error| error.to_string())
}

#[test]
fn memory_comes_from_as_few_nodes_as_possible() {
    for (nodes, memory, hint, want) in [
        (&[4, 4][..], 2, "", Ok(("0", vec![2, 4]))),
        (&[1, 4], 2, "", Ok(("1", vec![1, 2]))),
        (&[1, 4], 2, "{0}", Ok(("0,1", vec![0, 3]))),
        (&[4, 4], 6, "{01}p", Ok(("0,1", vec![0, 2]))),
        (&[4, 4], 2, "{1}p", Ok(("1", vec![4, 2]))),
        (&[1, 1], 3, "", Err("failed to get the default NUMA affinity")),
        (&[1, 2], 3, "{}p", Err("failed to find the default preferred hint")),
        (&[1, 1], 3, "{0}p", Err("failed to find NUMA nodes to extend")),
        (&[1, 4], 2, "{0}p", Err("failed to find the extended preferred hint")),
    ] {
        let mut manager = manager(machine(4, nodes));
        let outcome = add(&mut manager, memory, hint);
        match want {
            Ok((nodes, left)) => {
                assert_eq!(outcome.as_deref(), Ok(nodes), "{memory} {hint}");
                assert_eq!(free(&manager), left);
                assert!(!manager.retain_pods(|_| true) && manager.retain_pods(|_| false));
                let total: u64 = free(&manager).iter().sum();
                assert_eq!(total, left.iter().sum::<u64>() + memory);
                assert!(manager.state.assignments.is_empty());
                let nodes = manager.state.machine.0.iter();
                assert!(nodes.clone().all(|(n, s)| s.assignments == 0 && s.cells == [*n]));
            }
            Err(text) => {
                let error = outcome.unwrap_err();
                assert!(error.contains(text), "{error}");
            }
        }
    }
}

#[test]
fn nodes_of_other_groups_are_not_used_together() {
    let mut used = manager(machine(4, &[4, 4, 4]));
    group(&mut used, &[0]);
    let error = add(&mut used, 6, "{01}p").unwrap_err();
    assert_eq!(error, "[memorymanager] preferred hint violates NUMA node allocation");
    let mask = |nodes: &[usize]| NumaMask::new(nodes.iter().copied());
    group(&mut used, &[1, 2]);
    assert!(used.state.machine.is_violated_by(mask(&[0, 1])));
    assert!(!used.state.machine.is_violated_by(mask(&[1, 2])));
    assert!(!used.state.machine.is_violated_by(mask(&[0])));
    let unused = manager(machine(4, &[4, 4, 4]));
    assert!(!unused.state.machine.is_violated_by(mask(&[0, 1])));
}

#[test]
fn memory_of_ended_init_containers_is_used_again() {
    let sizes = |manager: &MemoryManager, pod: &Pod| -> Vec<u64> {
        let of = |m: &PodContainer| {
            let blocks = manager.blocks("u", m.name()).into_iter().flatten();
            blocks.map(|block| block.size / GI).sum()
        };
        pod.containers.iter().map(of).collect()
    };
    // Init containers and main containers, what is recorded, and what is reserved in the end.
    for (init, main, want, reserved) in [
        (&[1, 2][..], &[3, 4][..], &[0, 0, 3, 4][..], 7),
        (&[4, 3], &[2, 1], &[0, 1, 2, 1], 4),
        (&[7, 4], &[4, 3], &[0, 0, 4, 3], 7),
        (&[7, 4], &[5, 2], &[0, 0, 5, 2], 7),
    ] {
        let all = |kind: &str, list: &[u64]| -> Vec<Value> {
            let one = |(at, size): (usize, &u64)| container(&format!("{kind}{at}"), *size, 0);
            list.iter().enumerate().map(one).collect()
        };
        let pod = pod(json!({"initContainers": all("i", init), "containers": all("c", main)}));
        let mut manager = manager(machine(8, &[8]));
        for member in &pod.containers {
            manager.allocate(&pod, member, ANY).unwrap();
        }
        assert_eq!(sizes(&manager, &pod), want, "{init:?} {main:?}");
        assert_eq!(free(&manager), [8 - reserved]);
        let main = pod.with_role(ContainerRole::Main).next().unwrap();
        assert!(manager.begin_container(&pod, main.name()));
        assert!(manager.blocks("u", "i0").is_none() && !manager.begin_container(&pod, "c0"));
    }
    let init =
        json!([container("i1", 1, 0), sidecar("s2", 2), container("i3", 3, 0), sidecar("s4", 4)]);
    let pod = pod(json!({"initContainers": init, "containers": [container("c", 1, 0)]}));
    let mut manager = manager(machine(8, &[8]));
    for member in &pod.containers {
        manager.allocate(&pod, member, ANY).unwrap();
    }
    assert_eq!(sizes(&manager, &pod), [0, 2, 0, 4, 1]);
    assert_eq!(free(&manager), [1]);
}

#[test]
fn pods_without_exclusive_memory_share_it() {
    let burstable = json!({"name": "c", "resources": {"requests": {"memory": "1Gi"}}});
    let level = json!({"limits": {"cpu": "1", "memory": "1Gi"}});
    for spec in [
        json!({"containers": [burstable]}),
        json!({"containers": [container("c", 1, 0)], "resources": level}),
    ] {
        let pod = pod(spec);
        let mut manager = manager(machine(4, &[4]));
        assert_eq!(manager.allocate(&pod, &pod.containers[0], ANY), Ok(false));
        assert!(manager.hints(&pod, &pod.containers[0]).is_empty());
        assert!(manager.pod_hints(&pod).is_empty());
    }
}

#[test]
fn hints_name_the_nodes_with_enough_memory() {
    let text = |hints: super::super::topology::hints::ProviderHints| {
        let list = hints.get(MEMORY).and_then(Option::as_ref).map(|list| hints_text(list));
        list.unwrap_or_default()
    };
    let one = pod(json!({"containers": [container("c", 2, 2)]}));
    let member = &one.containers[0];
    let mut four = manager(machine(4, &[4, 4, 4, 4]));
    group(&mut four, &[0, 1]);
    let mut hints = four.hints(&one, member);
    assert_eq!(hints.len(), 2, "one list for each resource");
    assert_eq!(text(hints.clone()), "{2}p {3}p {01} {23}");
    hints = four.pod_hints(&one);
    assert_eq!(text(hints), "{2}p {3}p {01} {23}");
    let block = |resource: &str, size: u64| MemoryBlock {
        nodes: vec![0],
        resource: resource.to_owned(),
        size: size * GI,
    };
    for (blocks, want) in [
        (vec![block(MEMORY, 2), block("hugepages-1Gi", 2)], "{0}p"),
        (vec![block(MEMORY, 2)], ""),
        (vec![block(MEMORY, 2), block("hugepages-2Mi", 2)], ""),
        (vec![block(MEMORY, 1), block("hugepages-1Gi", 2)], ""),
    ] {
        let containers = BTreeMap::from([("c".to_owned(), blocks)]);
        four.state.assignments = MemoryAssignments::from([("u".to_owned(), containers)]);
        assert_eq!(text(four.hints(&one, member)), want);
        assert_eq!(text(four.pod_hints(&one)), want);
    }
    let small = manager(machine(1, &[1, 1]));
    assert!(small.hints(&one, member).len() == 2, "both nodes together");
    assert!(manager(machine(1, &[1])).hints(&one, member).is_empty(), "no preference");
}

#[test]
fn the_request_of_a_pod_is_the_maximum_of_its_phases() {
    let request = |init: Value, main: Value| {
        let requests =
            hints::pod_requests(&pod(json!({"initContainers": init, "containers": main})));
        let of = |name: &str| requests.get(name).copied().unwrap_or_default() / GI;
        (of(MEMORY), of("hugepages-1Gi"))
    };
    let c = |name: &str, memory: u64| container(name, memory, memory);
    assert_eq!(request(json!([c("i", 1), c("j", 4)]), json!([c("a", 1), c("b", 2)])), (4, 4));
    assert_eq!(request(json!([c("i", 1), c("j", 3)]), json!([c("a", 2), c("b", 3)])), (5, 5));
    let init = json!([sidecar("s", 2), container("i", 4, 0)]);
    assert_eq!(request(init.clone(), json!([container("a", 1, 0), container("b", 2, 0)])), (6, 0));
    assert_eq!(request(init, json!([container("a", 2, 0), container("b", 3, 0)])), (7, 0));
}

#[test]
fn the_recorded_state_must_fit_the_machine() {
    let start = |state: MemoryState| {
        let manager = MemoryManager::new(machine(4, &[4, 4]), Some(state));
        manager.map(|m| free(&m)).map_err(|error| error.to_string())
    };
    let with = |nodes: &[usize], resource: &str, charge: bool| {
        let block =
            MemoryBlock { nodes: nodes.to_vec(), resource: resource.to_owned(), size: 5 * GI };
        let mut machine = machine(4, &[4, 4]);
        if charge {
            machine.charge(block.mask(), resource, block.size);
        }
        let containers = BTreeMap::from([("c".to_owned(), vec![block])]);
        let assignments = MemoryAssignments::from([("p".to_owned(), containers)]);
        MemoryState { machine, assignments }
    };
    assert_eq!(start(MemoryState::default()), Ok(vec![4, 4]));
    assert_eq!(start(with(&[0, 1], MEMORY, true)), Ok(vec![0, 3]));
    let different = "[memorymanager] the expected machine state is different from the real one";
    assert_eq!(start(with(&[0, 1], MEMORY, false)), Err(different.to_owned()));
    assert!(start(with(&[2], MEMORY, false)).unwrap_err().contains("the NUMA that does not exist"));
    assert!(start(with(&[0], "x", false)).unwrap_err().contains("memory resource that does not"));
    let mut empty = with(&[0], MEMORY, false);
    empty.machine = MachineState::default();
    assert!(start(empty).unwrap_err().contains("can not be empty when it has memory assignments"));
    let changes: [fn(&mut NodeState); 6] = [
        |node| node.memory.get_mut(MEMORY).unwrap().total += 1,
        |node| node.memory.get_mut(MEMORY).unwrap().system_reserved += 1,
        |node| node.memory.get_mut(MEMORY).unwrap().allocatable += 1,
        |node| node.memory.get_mut(MEMORY).unwrap().free += 1,
        |node| node.assignments += 1,
        |node| node.memory.retain(|resource, _| resource == MEMORY),
    ];
    for change in changes {
        let mut state = with(&[0, 1], MEMORY, true);
        change(state.machine.0.get_mut(&0).unwrap());
        assert_eq!(start(state), Err(different.to_owned()));
    }
    // Charges depend on the order; only the sum of a group is compared.
    let mut state = with(&[0, 1], MEMORY, true);
    for (node, free) in [(0, GI), (1, 2 * GI)] {
        let table = state.machine.0.get_mut(&node).unwrap().memory.get_mut(MEMORY).unwrap();
        (table.free, table.reserved) = (free, 4 * GI - free);
    }
    assert!(start(state).is_ok());
}
