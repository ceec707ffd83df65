//! Which devices the containers of a pod get, with the cases of upstream's `manager_test.go`.

use std::collections::BTreeSet;

use serde_json::Value;

use super::*;

/// The limits of one resource in a container.
fn limits(count: u32) -> Value {
    json!({"limits": {RESOURCE: count.to_string()}})
}

/// The devices of a container of the pod `u`.
fn devices_of(manager: &Arc<DeviceManager>, container: &str) -> BTreeSet<String> {
    let guarded = manager.guarded.lock();
    guarded.state.records.devices("u", container, RESOURCE).unwrap_or_default()
}

/// A manager with one plugin of `count` devices that supports all options.
async fn with_plugin(root: &Path, count: usize) -> (Arc<DeviceManager>, Tasks, FakePlugin) {
    let (manager, tasks) = manager(root).await;
    let ids: Vec<String> = (1..=count).map(|number| format!("dev{number}")).collect();
    let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
    let plugin = FakePlugin::start(root, "foo.sock", &ids);
    plugin.prefer(&[]);
    register(root, "v1beta1", "foo.sock", RESOURCE).await.unwrap();
    until_numbers(&manager, RESOURCE, count, count).await;
    (manager, tasks, plugin)
}

#[tokio::test]
async fn containers_get_devices_of_several_resources() {
    let root = tempfile::tempdir().unwrap();
    let (manager, tasks, first) = with_plugin(root.path(), 2).await;
    let second = FakePlugin::start(root.path(), "bar.sock", &["dev3", "dev4"]);
    register(root.path(), "v1beta1", "bar.sock", "example.com/bar").await.unwrap();
    until_numbers(&manager, "example.com/bar", 2, 2).await;
    let resources = json!({"limits": {RESOURCE: "2", "example.com/bar": "1", "cpu": "1"}});
    let both = pod(json!({"containers": [{"name": "c", "resources": resources}]}));
    admit(&manager, &both).await.unwrap();
    assert_eq!(
        (first.allocations(), second.allocations()),
        (vec!["dev1,dev2".into()], vec!["dev3".into()])
    );
    assert_eq!(
        admit(&manager, &pod_with("pod2", RESOURCE, 1)).await.unwrap_err(),
        "requested number of devices unavailable for example.com/foo. Requested: 1, Available: 0"
    );
    admit(&manager, &pod_with("pod3", "example.com/bar", 1)).await.unwrap();
    assert_eq!(second.allocations(), ["dev3", "dev4"]);
    tasks.shutdown().request();
}

#[tokio::test]
async fn a_limit_of_zero_needs_no_healthy_device() {
    let root = tempfile::tempdir().unwrap();
    let (manager, tasks, plugin) = with_plugin(root.path(), 1).await;
    plugin.set_devices(&[("dev1", "Unhealthy")]);
    until_numbers(&manager, RESOURCE, 1, 0).await;
    let none = pod_with("u", RESOURCE, 0);
    admit(&manager, &none).await.unwrap();
    assert_eq!(environment(&manager, &none).await, "");
    assert_eq!((plugin.allocations().len(), plugin.prepared().len()), (0, 0));
    tasks.shutdown().request();
}

#[tokio::test]
async fn main_containers_get_the_devices_of_init_containers() {
    let root = tempfile::tempdir().unwrap();
    let (manager, tasks, _plugin) = with_plugin(root.path(), 2).await;
    let pod = pod(json!({
        "initContainers": [{"name": "i1", "resources": limits(1)},
            {"name": "i2", "resources": limits(2)}],
        "containers": [{"name": "a", "resources": limits(1)},
            {"name": "b", "resources": limits(1)}],
    }));
    admit(&manager, &pod).await.unwrap();
    let of = |container| devices_of(&manager, container);
    assert!(of("i2").len() == 2 && of("i1").is_subset(&of("i2")));
    assert!(of("a").is_subset(&of("i2")) && of("b").is_subset(&of("i2")));
    assert!(of("a").is_disjoint(&of("b")));
    tasks.shutdown().request();
}

#[tokio::test]
async fn sidecars_keep_their_devices() {
    let root = tempfile::tempdir().unwrap();
    let (manager, tasks, _plugin) = with_plugin(root.path(), 6).await;
    let pod = pod(json!({
        "initContainers": [{"name": "i", "resources": limits(3)},
            {"name": "s1", "restartPolicy": "Always", "resources": limits(1)},
            {"name": "s2", "restartPolicy": "Always", "resources": limits(2)}],
        "containers": [{"name": "a", "resources": limits(1)},
            {"name": "b", "resources": limits(2)}],
    }));
    admit(&manager, &pod).await.unwrap();
    let of = |container| devices_of(&manager, container);
    assert!(of("s1").is_subset(&of("i")) && of("s2").is_subset(&of("i")));
    let all: BTreeSet<String> = ["s1", "s2", "a", "b"].into_iter().flat_map(of).collect();
    assert_eq!(all.len(), 6, "no two of them have the same device");
    tasks.shutdown().request();
}
