//! The rules of capacity, of plugins that come and go, and of the health of devices, with the cases
//! of upstream's `manager_test.go`.

use super::super::records::tests::allocation;
use super::*;

/// A list of devices: id, health and NUMA nodes.
pub(crate) fn devices(list: &[(&str, bool, &[i64])]) -> BTreeMap<String, Device> {
    let device = |(id, is_healthy, nodes): &(&str, bool, &[i64])| {
        let health = if *is_healthy { HEALTHY } else { "Unhealthy" };
        ((*id).to_owned(), Device { health: health.to_owned(), nodes: nodes.to_vec() })
    };
    list.iter().map(device).collect()
}

/// Devices of these ids, healthy and without topology.
pub(crate) fn healthy(ids: &[&str]) -> BTreeMap<String, Device> {
    let list: Vec<(&str, bool, &[i64])> = ids.iter().map(|id| (*id, true, &[][..])).collect();
    devices(&list)
}

pub(crate) fn set(ids: &[&str]) -> BTreeSet<String> {
    ids.iter().map(|id| (*id).to_owned()).collect()
}

fn plugin_at(id: u64, socket: &str) -> ConnectedPlugin {
    let socket = PathBuf::from(socket);
    ConnectedPlugin { id: PluginId(id), socket, options: PluginOptions::default() }
}

/// A state with one resource whose plugin has the id 1 and lists these devices.
pub(crate) fn with_devices(resource: &str, list: BTreeMap<String, Device>) -> DeviceState {
    let mut state = DeviceState::default();
    state.connect(resource, plugin_at(1, "1.sock"));
    state.list(resource, PluginId(1), list).unwrap();
    state
}

/// Capacity and allocatable of a resource.
fn numbers(state: &mut DeviceState, resource: &str, now: Instant) -> Option<(usize, usize)> {
    let numbers = state.capacity(now).0;
    Some((*numbers.capacity.get(resource)?, *numbers.allocatable.get(resource)?))
}

#[test]
fn lists_of_devices_must_be_well_formed() {
    let device = |id: &str| plugin::Device { id: id.to_owned(), ..plugin::Device::default() };
    let parsed = parse_devices(vec![device("a"), device("b")]).unwrap();
    // Only the text `Healthy` is healthy.
    assert!(parsed.len() == 2 && parsed.values().all(|device| !device.is_healthy()));
    let refused = |list| parse_devices(list).unwrap_err().to_string();
    assert_eq!(refused(vec![device("a"), device("")]), "a device has an empty ID");
    assert_eq!(refused(vec![device("a"), device("a")]), "several devices have the ID \"a\"");
    let many = (0..=DEVICES_MAX).map(|id| device(&id.to_string())).collect();
    assert_eq!(refused(many), "100001 devices are more than the limit of 100000");
}

#[test]
fn each_list_replaces_the_one_before() {
    let now = base::clock::now();
    let mut state = with_devices(
        "r1",
        devices(&[("Device1", true, &[]), ("Device2", true, &[]), ("Device3", false, &[])]),
    );
    assert_eq!(numbers(&mut state, "r1", now), Some((3, 2)));
    let mut list = |ids: &[(&str, bool, &[i64])]| {
        let outcome = state.list("r1", PluginId(1), devices(ids)).unwrap();
        (numbers(&mut state, "r1", now).unwrap(), outcome.is_capacity_changed)
    };
    let two: [(&str, bool, &[i64]); 2] = [("Device1", true, &[]), ("Device2", true, &[])];
    assert_eq!(list(&two), ((2, 2), true));
    assert_eq!(list(&two), ((2, 2), false));
    assert_eq!(list(&[("Device1", true, &[]), ("Device2", false, &[])]), ((2, 1), true));
    assert_eq!(list(&[("Device2", false, &[])]), ((1, 0), true));
}

#[test]
fn devices_of_a_plugin_that_is_gone_are_unhealthy_and_removed_after_the_grace_period() {
    let now = base::clock::now();
    let mut state = with_devices("r1", healthy(&["a", "b"]));
    state.connect("r2", plugin_at(2, "2.sock"));
    state.list("r2", PluginId(2), healthy(&["a"])).unwrap();
    assert!(state.disconnect("r1", PluginId(1), now));
    assert!(!state.disconnect("r1", PluginId(1), now));
    assert!(matches!(state.endpoint("r1"), PluginEndpoint::Stopped(plugin) if plugin.id.0 == 1));
    assert_eq!(numbers(&mut state, "r1", now + GRACE), Some((2, 0)));
    let (after, expired) = state.capacity(now + GRACE + Duration::from_secs(10));
    assert!(expired);
    assert_eq!(after.removed, set(&["r1"]));
    assert!(!after.capacity.contains_key("r1") && !state.is_registered("r1"));
    assert_eq!(state.endpoint("r1"), PluginEndpoint::Missing);
    assert_eq!(after.capacity.get("r2"), Some(&1));
    assert!(!state.capacity(now + GRACE * 3).1, "expires once");
    state.connect("r1", plugin_at(3, "1.sock"));
    assert_eq!(numbers(&mut state, "r1", now + GRACE * 3), None, "before its first list");
    state.list("r1", PluginId(3), healthy(&["a"])).unwrap();
    assert_eq!(numbers(&mut state, "r1", now + GRACE * 3), Some((1, 1)));
    assert_eq!(state.capacity(now + GRACE * 3).0.removed, BTreeSet::new());
}

#[test]
fn the_newest_plugin_of_a_resource_gets_the_calls() {
    let now = base::clock::now();
    let mut state = with_devices("r", healthy(&["a", "b"]));
    assert_eq!(state.connect("r", plugin_at(2, "2.sock")), None);
    state.list("r", PluginId(2), healthy(&["c"])).unwrap();
    assert_eq!(numbers(&mut state, "r", now), Some((1, 1)));
    assert!(matches!(state.endpoint("r"), PluginEndpoint::Connected(p) if p.id == PluginId(2)));
    assert!(state.disconnect("r", PluginId(2), now));
    assert!(matches!(state.endpoint("r"), PluginEndpoint::Connected(p) if p.id == PluginId(1)));
    assert_eq!(numbers(&mut state, "r", now), Some((1, 1)), "until the other one lists");
}

#[test]
fn a_registration_at_the_same_socket_replaces_the_connection() {
    let now = base::clock::now();
    let mut state = with_devices("r", healthy(&["a"]));
    assert_eq!(state.connect("r", plugin_at(2, "1.sock")), Some(PluginId(1)));
    assert_eq!(state.plugins(), 1);
    assert_eq!(state.list("r", PluginId(1), healthy(&["b"])), None, "the old one lists late");
    assert!(!state.disconnect("r", PluginId(1), now), "the end of the old one");
    assert_eq!(numbers(&mut state, "r", now), Some((1, 1)));
}

#[test]
fn resources_of_the_checkpoint_have_no_devices_until_their_plugins_register() {
    let now = base::clock::now();
    let mut state = with_devices("r", healthy(&["a", "b"]));
    state.record(
        &("pod".to_owned(), "c".to_owned(), "r".to_owned()),
        &set(&["a"]),
        plugin::ContainerAllocateResponse::default(),
    );
    let checkpoint = state.checkpoint();
    let mut state = DeviceState::restore(checkpoint.clone(), now);
    assert_eq!(numbers(&mut state, "r", now + GRACE), Some((0, 0)));
    assert_eq!(state.allocated("r"), set(&["a"]));
    assert!(state.is_managed("r") && state.endpoint("r") == PluginEndpoint::Restored);
    let gone = AllocationError::NoHealthyDevices("r".to_owned());
    assert_eq!(state.patience("pod", &gone), Some(Patience::Until(now + GRACE)));
    assert_eq!(state.patience("new", &gone), None, "a pod without recorded devices");
    state.connect("r", plugin_at(1, "1.sock"));
    assert!(state.patience("pod", &gone).is_some(), "before the first list");
    state.list("r", PluginId(1), devices(&[("a", false, &[])])).unwrap();
    assert_eq!(state.patience("pod", &AllocationError::NoLongerHealthy("r".to_owned())), None);
    let mut state = DeviceState::restore(checkpoint, now);
    assert!(state.capacity(now + GRACE * 2).1);
    assert_eq!(state.patience("pod", &gone), None);
    assert!(state.is_managed("r") && !state.is_registered("r"), "a pod has a device");
}

#[test]
fn devices_are_recorded_under_each_of_their_nodes() {
    let list = devices(&[("a", true, &[0, 1]), ("b", true, &[1]), ("c", true, &[])]);
    let mut state = with_devices("r", list);
    let key = ("p".to_owned(), "c".to_owned(), "r".to_owned());
    state.claims.insert(key.clone(), set(&["a", "b", "c"]));
    state.record(&key, &set(&["a", "b", "c"]), plugin::ContainerAllocateResponse::default());
    assert!(state.claims.is_empty());
    let (.., allocation) = state.records.all().next().unwrap();
    let ids = |ids: &[&str]| ids.iter().map(|id| (*id).to_owned()).collect::<Vec<_>>();
    let expected = [(WITHOUT_TOPOLOGY, ids(&["c"])), (0, ids(&["a"])), (1, ids(&["a", "b"]))];
    assert_eq!(allocation.ids_by_node, BTreeMap::from(expected));
}

#[test]
fn pods_with_devices_whose_health_changes_are_woken() {
    let list = healthy(&["dev1", "dev2", "dev3"]);
    let mut state = with_devices("r1", list.clone());
    state.connect("r2", plugin_at(2, "2.sock"));
    state.list("r2", PluginId(2), list).unwrap();
    state.records.insert("pod1", "c", "r1", allocation(&["dev1"]));
    state.records.insert("pod2", "c", "r2", allocation(&["dev1"]));
    let mut woken =
        |list: &[(&str, bool, &[i64])]| state.list("r1", PluginId(1), devices(list)).unwrap().pods;
    assert_eq!(woken(&[("dev1", true, &[]), ("dev2", false, &[])]), set(&[]));
    // The same id in another resource is another device.
    assert_eq!(woken(&[("dev1", false, &[]), ("dev2", true, &[])]), set(&["pod1"]));
    assert_eq!(woken(&[("dev1", false, &[])]), set(&[]));
    assert_eq!(woken(&[]), set(&[]), "a device that vanishes");
    assert!(state.is_healthy("r1", "dev1"), "one that is not listed counts as healthy");
}

#[test]
fn a_new_device_that_a_pod_has_wakes_the_pod() {
    let mut state = with_devices("r", healthy(&["dev2"]));
    state.records.insert("pod", "c", "r", allocation(&["dev1"]));
    let outcome = state.list("r", PluginId(1), healthy(&["dev1"])).unwrap();
    assert_eq!(outcome, ListOutcome { is_capacity_changed: false, pods: set(&["pod"]) });
    assert!(state.is_healthy("r", "dev1"));
    state.list("r", PluginId(1), devices(&[("dev1", false, &[])])).unwrap();
    assert!(!state.is_healthy("r", "dev1"));
}

#[test]
fn only_healthy_devices_are_allocatable() {
    let mut state =
        with_devices("r1", devices(&[("a", true, &[]), ("b", true, &[0, 1]), ("c", false, &[])]));
    state.connect("r2", plugin_at(2, "2.sock"));
    state.list("r2", PluginId(2), healthy(&["a"])).unwrap();
    let list = |state: &DeviceState| {
        let all = state.allocatable();
        let text = all.map(|(resource, id, nodes)| format!("{resource}:{id}:{nodes:?}"));
        text.collect::<Vec<_>>().join(" ")
    };
    assert_eq!(list(&state), "r1:a:[] r1:b:[0, 1] r2:a:[]");
    state.list("r1", PluginId(1), healthy(&["a", "b", "c"])).unwrap();
    assert_eq!(list(&state), "r1:a:[] r1:b:[] r1:c:[] r2:a:[]");
    state.disconnect("r1", PluginId(1), base::clock::now());
    assert_eq!(list(&state), "r2:a:[]");
}

#[test]
fn an_allocation_waits_for_a_pod_that_is_ending() {
    let mut state = with_devices("r", healthy(&["a"]));
    state.records.insert("old", "c", "r", allocation(&["a"]));
    let error =
        AllocationError::Unavailable { resource: "r".to_owned(), requested: 1, available: 0 };
    assert_eq!(state.patience("new", &error), None);
    state.begin_release("new");
    state.begin_release("old");
    assert_eq!(state.patience("new", &error), Some(Patience::UntilRelease));
    assert!(state.release("old") && !state.release("old"));
    assert_eq!(state.patience("new", &error), None);
    assert_eq!(state.allocated("r"), BTreeSet::new());
}

#[test]
fn a_resource_whose_plugin_ended_before_its_first_list_has_no_devices() {
    let now = base::clock::now();
    let mut state = DeviceState::default();
    state.connect("r", plugin_at(1, "1.sock"));
    assert_eq!(numbers(&mut state, "r", now), None);
    assert!(state.disconnect("r", PluginId(1), now));
    assert_eq!(numbers(&mut state, "r", now), Some((0, 0)));
}
