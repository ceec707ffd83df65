//! Choices with the cases of upstream's `manager_test.go` and `topology_hints_test.go`.

use proto::deviceplugin::ContainerAllocateResponse;

use super::*;
use crate::devices::records::tests::allocation;
use crate::devices::state::tests::{devices, healthy, set, with_devices};

const RESOURCE: &str = "domain1.com/resource1";

fn request(container: &str, count: usize) -> DeviceRequest {
    DeviceRequest {
        pod: "pod".to_owned(),
        container: container.to_owned(),
        resource: RESOURCE.to_owned(),
        count,
        reusable: BTreeSet::new(),
        affinity: None,
    }
}

/// Chooses with this preference of the plugin.
fn choose_with(
    state: &mut DeviceState,
    request: &DeviceRequest,
    preferred: &[&str],
) -> Result<BTreeSet<String>, String> {
    let choice = state.choose(request).map_err(|error| error.to_string())?;
    let preference = match choice {
        Choice::Nothing => return Ok(BTreeSet::new()),
        Choice::Devices(devices) => return Ok(devices),
        Choice::Ask(preference) => preference,
    };
    state.complete(request, preference, &set(preferred)).map_err(|error| error.to_string())
}

fn choose(state: &mut DeviceState, request: &DeviceRequest) -> Result<BTreeSet<String>, String> {
    choose_with(state, request, &[])
}

#[test]
fn devices_of_other_containers_are_not_available() {
    let mut state = with_devices(RESOURCE, healthy(&["dev1", "dev2", "dev3"]));
    let first = choose(&mut state, &request("a", 2)).unwrap();
    assert_eq!(first, set(&["dev1", "dev2"]));
    // Claimed while its call is in progress.
    assert_eq!(choose(&mut state, &request("b", 1)).unwrap(), set(&["dev3"]));
    let refused = choose(&mut state, &request("c", 1)).unwrap_err();
    assert_eq!(
        refused,
        "requested number of devices unavailable for domain1.com/resource1. Requested: 1, \
         Available: 0"
    );
    state.drop_claim(&request("a", 2));
    assert_eq!(choose(&mut state, &request("c", 2)).unwrap(), first);
    let response = ContainerAllocateResponse::default();
    state.record(&request("c", 2).key(), &first, response);
    assert_eq!(state.choose(&request("c", 2)).unwrap(), Choice::Nothing, "it has them");
}

#[test]
fn errors_name_what_is_missing() {
    let refused =
        |state: &mut DeviceState, request: &DeviceRequest| choose(state, request).unwrap_err();
    let mut none = DeviceState::default();
    let unregistered = "cannot allocate unregistered device domain1.com/resource1";
    assert_eq!(refused(&mut none, &request("a", 1)), unregistered);
    let mut unhealthy = with_devices(RESOURCE, devices(&[("dev1", false, &[])]));
    assert_eq!(
        refused(&mut unhealthy, &request("a", 1)),
        "no healthy devices present; cannot allocate unhealthy devices domain1.com/resource1"
    );
    assert_eq!(choose(&mut unhealthy, &request("a", 0)).unwrap(), set(&[]));
    let mut changed = with_devices(RESOURCE, healthy(&["dev1", "dev2"]));
    changed.records.insert("pod", "a", RESOURCE, allocation(&["dev5"]));
    assert_eq!(
        refused(&mut changed, &request("a", 1)),
        "previously allocated devices are no longer healthy; cannot allocate unhealthy devices \
         domain1.com/resource1"
    );
    assert_eq!(
        refused(&mut changed, &request("a", 2)),
        "pod \"pod\" container \"a\" changed request for resource \"domain1.com/resource1\" from \
         1 to 2"
    );
    assert!(changed.claims.is_empty());
}

#[test]
fn reusable_devices_are_taken_first() {
    let mut state = with_devices(RESOURCE, healthy(&["d1", "d2", "d3", "d4", "d5", "d6"]));
    state.records.insert("pod", "init", RESOURCE, allocation(&["d2", "d4", "d6"]));
    let reuse = |container, count, ids: &[&str]| DeviceRequest {
        reusable: set(ids),
        ..request(container, count)
    };
    let one = choose(&mut state, &reuse("a", 1, &["d2", "d4", "d6"])).unwrap();
    assert_eq!(one, set(&["d2"]));
    let four = choose(&mut state, &reuse("b", 4, &["d4", "d6"])).unwrap();
    assert_eq!(four, set(&["d1", "d3", "d4", "d6"]));
    let refused = choose(&mut state, &reuse("c", 3, &[])).unwrap_err();
    assert_eq!(
        refused,
        "requested number of devices unavailable for domain1.com/resource1. Requested: 3, \
         Available: 1"
    );
}

/// Devices `Dev0` to `Dev<count - 1>`; the node of each is what `node` returns.
fn on_nodes(count: usize, node: impl Fn(usize) -> i64) -> DeviceState {
    let names: Vec<(String, [i64; 1])> =
        (0..count).map(|at| (format!("Dev{at}"), [node(at)])).collect();
    let list: Vec<(&str, bool, &[i64])> =
        names.iter().map(|(id, nodes)| (id.as_str(), true, &nodes[..])).collect();
    with_devices(RESOURCE, devices(&list))
}

fn aligned(count: usize, nodes: &[i64]) -> DeviceRequest {
    DeviceRequest { affinity: Some(nodes.iter().copied().collect()), ..request("a", count) }
}

/// Number of the chosen devices on each node.
fn chosen_on(state: &DeviceState, chosen: &BTreeSet<String>) -> Vec<(i64, usize)> {
    let mut out = std::collections::BTreeMap::new();
    for id in chosen {
        *out.entry(state.nodes(RESOURCE, id)[0]).or_insert(0) += 1;
    }
    out.into_iter().collect()
}

#[test]
fn devices_on_preferred_nodes_are_taken_before_others() {
    let halves = |at: usize| i64::try_from(at / 3).unwrap();
    for (count, nodes, expected) in [
        (2, &[0][..], vec![(0, 2)]),
        (2, &[1], vec![(1, 2)]),
        (4, &[0], vec![(0, 3), (1, 1)]),
        (4, &[1], vec![(0, 1), (1, 3)]),
        (6, &[0, 1], vec![(0, 3), (1, 3)]),
    ] {
        let mut state = on_nodes(6, halves);
        let chosen = choose(&mut state, &aligned(count, nodes)).unwrap();
        assert_eq!(chosen_on(&state, &chosen), expected, "{count} {nodes:?}");
    }
    let mut plain = with_devices(RESOURCE, healthy(&["Dev0", "Dev1"]));
    let chosen = choose(&mut plain, &aligned(1, &[1])).unwrap();
    assert_eq!(chosen, set(&["Dev0"]), "no device has topology");
}

#[test]
fn preferred_devices_are_taken_if_they_are_offered() {
    let hundred = |at: usize| i64::from(at >= 100);
    let five = ["Dev0", "Dev19", "Dev83", "Dev42", "Dev77"];
    let mut state = on_nodes(200, hundred);
    assert_eq!(choose_with(&mut state, &aligned(5, &[0]), &five).unwrap(), set(&five));
    // Preferred devices on another node are not offered while the preferred node has enough.
    let mut state = on_nodes(200, hundred);
    let mixed = ["Dev0", "Dev19", "Dev83", "Dev150", "Dev186"];
    let chosen = choose_with(&mut state, &aligned(5, &[0]), &mixed).unwrap();
    assert!(chosen.is_superset(&set(&["Dev0", "Dev19", "Dev83"])));
    assert_eq!(chosen_on(&state, &chosen), [(0, 5)]);
    let mut state = on_nodes(200, hundred);
    let bogus = ["Dev0", "bogus", "Dev19", "bogus2"];
    let chosen = choose_with(&mut state, &aligned(3, &[0]), &bogus).unwrap();
    assert!(chosen.is_superset(&set(&["Dev0", "Dev19"])) && chosen.len() == 3);
    // All three of the preferred node are taken, and the plugin chooses the others.
    let mut state = on_nodes(100, |at| i64::from(at >= 3));
    let others = ["Dev0", "Dev1", "Dev2", "Dev42", "Dev83"];
    assert_eq!(choose_with(&mut state, &aligned(5, &[0]), &others).unwrap(), set(&others));
}

#[test]
fn the_plugin_is_offered_available_and_reusable_devices_and_must_include_the_taken() {
    let asked = |state: &mut DeviceState, request: &DeviceRequest| match state.choose(request) {
        Ok(Choice::Ask(preference)) => preference,
        other => panic!("{other:?}"),
    };
    let all = ["Dev0", "Dev1", "Dev2", "Dev3", "Dev4", "Dev5", "Dev6", "Dev7"];
    let four = |at: usize| i64::from(at >= 4);
    let mut state = on_nodes(4, |_| 0);
    let first = asked(&mut state, &request("a", 1));
    assert_eq!((first.available(), first.must_include), (set(&all[..4]), set(&[])));
    // Two of an init container are reusable.
    let mut state = on_nodes(8, |_| 0);
    state.records.insert("pod", "i", RESOURCE, allocation(&["Dev0", "Dev5"]));
    let reuse = DeviceRequest { reusable: set(&["Dev0", "Dev5"]), ..aligned(4, &[0]) };
    let second = asked(&mut state, &reuse);
    assert_eq!((second.available(), second.must_include), (set(&all), set(&["Dev0", "Dev5"])));
    let mut state = on_nodes(8, |_| 0);
    state.records.insert("pod", "i", RESOURCE, allocation(&["Dev0", "Dev5"]));
    state.records.insert("other", "c", RESOURCE, allocation(&["Dev1", "Dev4"]));
    let third = asked(&mut state, &reuse);
    assert_eq!(third.available(), set(&["Dev0", "Dev2", "Dev3", "Dev5", "Dev6", "Dev7"]));
    assert_eq!(third.must_include, set(&["Dev0", "Dev5"]));
    // More than the preferred node has: all of it must be included.
    let mut state = on_nodes(8, four);
    state.records.insert("pod", "i", RESOURCE, allocation(&["Dev1", "Dev6"]));
    let reuse = DeviceRequest { reusable: set(&["Dev1", "Dev6"]), ..aligned(6, &[0]) };
    let fourth = asked(&mut state, &reuse);
    assert_eq!(fourth.available(), set(&all));
    assert_eq!(fourth.must_include, set(&["Dev0", "Dev1", "Dev2", "Dev3", "Dev6"]));
    assert_eq!(state.claims.len(), 1, "taken devices are claimed during the call");
}

#[test]
fn devices_that_another_container_gets_during_the_call_are_left_out() {
    let mut state = with_devices(RESOURCE, healthy(&["d1", "d2", "d3"]));
    let Ok(Choice::Ask(preference)) = state.choose(&request("a", 2)) else { panic!() };
    assert_eq!(choose(&mut state, &request("b", 1)).unwrap(), set(&["d1"]));
    let chosen = state.complete(&request("a", 2), preference, &set(&["d1", "d3"])).unwrap();
    assert_eq!(chosen, set(&["d2", "d3"]));
    state.drop_claim(&request("a", 2));
    let Ok(Choice::Ask(preference)) = state.choose(&request("a", 2)) else { panic!() };
    assert_eq!(choose(&mut state, &request("c", 1)).unwrap(), set(&["d2"]));
    let refused = state.complete(&request("a", 2), preference, &set(&[])).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "requested number of devices unavailable for domain1.com/resource1. Requested: 1, \
         Available: 0"
    );
    assert_eq!(state.claims.len(), 2, "b and c");
}
