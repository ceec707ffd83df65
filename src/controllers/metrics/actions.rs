//! What controllers do moves the values of their families: each controller runs against an API that
//! stores objects.

use serde_json::{Value, json};

use super::read;
use crate::all::Start;
use crate::fake_api::Cluster;

/// Gauges without own labels are those of all controllers of the process: one test at a time counts
/// and reads them.
static GAUGES: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

/// Runs a controller with these objects until nothing happens any more; returns its requests.
async fn run(start: Start, objects: &[Value]) -> (Cluster, Vec<String>) {
    let cluster = Cluster::new(objects);
    start(&cluster.context());
    let requests = cluster.requests().await;
    (cluster, requests)
}

fn pod(namespace: &str, name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "uid": name,
            "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"containers": []}, "status": {"phase": "Running"}})
}

/// A pod that is ready and has this controller.
fn ready(namespace: &str, name: &str, kind: &str, owner: &str) -> Value {
    let mut pod = pod(namespace, name);
    pod["metadata"]["labels"] = json!({"app": "a"});
    pod["metadata"]["ownerReferences"] = json!([{"apiVersion": "apps/v1", "kind": kind,
        "name": owner, "uid": owner, "controller": true}]);
    pod["status"]["conditions"] = json!([{"type": "Ready", "status": "True",
        "lastTransitionTime": "2026-01-01T00:00:00Z"}]);
    pod
}

/// The labels of a family without labels.
const NONE: &[&str] = &[];

#[tokio::test(start_paused = true)]
async fn a_started_job_of_a_cron_job_is_observed() {
    let name = "cronjob_controller_job_creation_skew_duration_seconds";
    let before = read(name, NONE);
    let cron = json!({"apiVersion": "batch/v1", "kind": "CronJob",
        "metadata": {"name": "c", "namespace": "n", "uid": "c",
            "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"schedule": "* * * * *", "startingDeadlineSeconds": 100,
            "jobTemplate": {"spec": {"template": {}}}}});
    let (cluster, requests) = run(crate::workloads::cronjob::start, &[cron]).await;
    assert!(requests.contains(&"POST jobs".to_owned()), "{requests:?}");
    assert!(read(name, NONE) > before);
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn the_deletion_of_a_finished_job_is_observed() {
    let name = "ttl_after_finished_controller_job_deletion_duration_seconds";
    let before = read(name, NONE);
    let job = json!({"apiVersion": "batch/v1", "kind": "Job",
        "metadata": {"name": "j", "namespace": "n", "uid": "j"},
        "spec": {"template": {}, "ttlSecondsAfterFinished": 1},
        "status": {"conditions": [{"type": "Complete", "status": "True",
            "lastTransitionTime": "2026-01-01T00:00:00Z"}]}});
    let (cluster, requests) = run(crate::workloads::ttl_after_finished::start, &[job]).await;
    assert_eq!(requests, ["GET jobs", "DELETE jobs"]);
    assert_eq!(read(name, NONE), before + 1.0);
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn collected_pods_are_counted_by_namespace_and_reason() {
    let mut deleted = pod("of-pod-gc", "p");
    deleted["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    let cluster = Cluster::new(&[deleted]);
    cluster.fail("DELETE pods", 500);
    crate::workloads::pod_gc::start(&cluster.context());
    let requests = cluster.requests().await;
    assert_eq!(requests.last().unwrap(), "DELETE pods");
    let labels = ["of-pod-gc", "unscheduled"];
    let all = read("pod_gc_collector_force_delete_pods_total", &labels);
    let errors = read("pod_gc_collector_force_delete_pod_errors_total", &labels);
    assert_eq!((all, errors), (2.0, 1.0));
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_scaled_down_replica_set_observes_the_ages_of_its_pods() {
    let name = "replicaset_controller_sorting_deletion_age_ratio";
    let set = json!({"apiVersion": "apps/v1", "kind": "ReplicaSet",
        "metadata": {"name": "r", "namespace": "n", "uid": "r"},
        "spec": {"replicas": 1, "selector": {"matchLabels": {"app": "a"}}, "template": {}}});
    let before = read(name, NONE);
    let pods = [ready("n", "p1", "ReplicaSet", "r"), ready("n", "p2", "ReplicaSet", "r")];
    let objects = [vec![set], pods.to_vec()].concat();
    let (cluster, requests) = run(crate::workloads::replicaset::start, &objects).await;
    assert!(requests.contains(&"DELETE pods".to_owned()), "{requests:?}");
    assert!(read(name, NONE) > before);
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn evicted_pods_are_counted() {
    let names = ["pod_deletions_total", "pod_deletion_duration_seconds"]
        .map(|name| format!("taint_eviction_controller_{name}"));
    let before = names.clone().map(|name| read(&name, NONE));
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n", "uid": "n"},
        "spec": {"taints": [{"key": "k", "effect": "NoExecute"}]}});
    let mut pod = pod("n", "p");
    pod["spec"]["nodeName"] = "n".into();
    let (cluster, requests) = run(crate::nodes::taint_eviction::start, &[node, pod]).await;
    assert_eq!(requests, ["PATCH pods/status", "DELETE pods"]);
    assert_eq!(names.map(|name| read(&name, NONE)), before.map(|number| number + 1.0));
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn syncs_of_the_publishers_are_counted_by_code() {
    let counts = |family: &str| {
        [
            read(&format!("{family}_sync_total"), &["200"]),
            read(&format!("{family}_sync_total"), &["403"]),
            read(&format!("{family}_sync_duration_seconds"), &["200"]),
        ]
    };
    let namespace =
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "a", "uid": "a"}});
    for (family, start, create) in [
        (
            "root_ca_cert_publisher",
            crate::auth::root_ca_publisher::start as Start,
            "POST configmaps",
        ),
        (
            "clustertrustbundle_publisher",
            crate::auth::serving_trust_bundle_publisher::start,
            "POST clustertrustbundles",
        ),
    ] {
        let before = counts(family);
        let cluster = Cluster::new(std::slice::from_ref(&namespace));
        cluster.fail(create, 403);
        start(&cluster.context());
        let requests = cluster.requests().await;
        assert_eq!(requests, [create, create], "{family}");
        let [synced, refused, observed] = counts(family);
        // The object that was created is synced again.
        assert_eq!([synced, refused], [before[0] + 2.0, before[1] + 1.0], "{family}");
        assert_eq!(observed, before[2] + 2.0, "{family}");
        cluster.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_failed_discovery_is_an_error_of_the_garbage_collector() {
    let name = "garbagecollector_controller_resources_sync_error_total";
    let before = read(name, NONE);
    let (cluster, _) = run(crate::objects::garbage_collector::start, &[]).await;
    assert_eq!(read(name, NONE), before + 1.0);
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn claims_of_ephemeral_volumes_are_counted() {
    let counts = || {
        ["create_total", "create_failures_total"]
            .map(|name| read(&format!("ephemeral_volume_controller_{name}"), NONE))
    };
    let mut pod = pod("n", "p");
    pod["spec"]["volumes"] = json!([{"name": "v", "ephemeral": {"volumeClaimTemplate": {
        "spec": {}}}}]);
    let before = counts();
    let cluster = Cluster::new(&[pod]);
    cluster.fail("POST persistentvolumeclaims", 500);
    crate::storage::ephemeral_volume::start(&cluster.context());
    assert_eq!(cluster.requests().await, ["POST persistentvolumeclaims"; 2]);
    assert_eq!(counts(), [before[0] + 2.0, before[1] + 1.0]);
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn volumes_are_counted_and_their_provisioning_is_measured() {
    let _one = GAUGES.lock().await;
    let claim = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": {"name": "c", "namespace": "of-claims", "uid": "c"},
        "spec": {"accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Gi"}}}, "status": {"phase": "Pending"}});
    let class = json!({"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass",
        "metadata": {"name": "fast", "uid": "fast",
            "annotations": {"storageclass.kubernetes.io/is-default-class": "true"}},
        "provisioner": "of-volumes.example.com"});
    let assigned = read("retroactive_storageclass_total", NONE);
    let cluster = Cluster::new(&[class, claim]);
    cluster.fail("PUT persistentvolumeclaims", 500);
    crate::storage::persistent_volume::start(&cluster.context());
    cluster.requests().await;
    // The first assignment of the class fails.
    assert_eq!(read("retroactive_storageclass_total", NONE), assigned + 2.0);
    assert!(read("retroactive_storageclass_errors_total", NONE) >= 1.0);
    drop(super::families());
    let count = |name: &str, labels: &[&str]| read(&format!("pv_collector_{name}_count"), labels);
    let claims = ["of-claims", "fast", ""];
    assert_eq!((count("unbound_pvc", &claims), count("bound_pvc", &claims)), (1.0, 0.0));
    let operation = ["provision", "of-volumes.example.com"];
    assert_eq!(read("volume_operation_total_seconds", &operation), 0.0);
    cluster.put(&json!({"apiVersion": "v1", "kind": "PersistentVolume",
        "metadata": {"name": "pv", "uid": "pv"},
        "spec": {"accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"},
            "storageClassName": "fast", "volumeMode": "Filesystem", "nfs": {},
            "persistentVolumeReclaimPolicy": "Delete",
            "claimRef": {"namespace": "of-claims", "name": "c", "uid": "c"}}}));
    cluster.requests().await;
    assert_eq!(read("volume_operation_total_seconds", &operation), 1.0);
    drop(super::families());
    assert_eq!((count("unbound_pvc", &claims), count("bound_pvc", &claims)), (0.0, 1.0));
    assert_eq!(count("bound_pv", &["fast"]), 1.0);
    assert_eq!(count("total_pv", &["kubernetes.io/nfs", "Filesystem"]), 1.0);
    // No plugin deletes the volume, whose claim is gone.
    let deletion = ["delete", "N/A"];
    let before = read("volume_operation_errors_total", &deletion);
    let measured = read("volume_operation_total_seconds", &deletion);
    cluster.remove("persistentvolumeclaims", "of-claims/c");
    cluster.requests().await;
    assert!(read("volume_operation_errors_total", &deletion) > before);
    drop(super::families());
    assert_eq!(count("unbound_pv", &["fast"]), 1.0);
    cluster.remove("persistentvolumes", "/pv");
    cluster.requests().await;
    assert_eq!(read("volume_operation_total_seconds", &deletion), measured + 1.0);
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn nodes_get_cidrs_and_updates_that_are_measured() {
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "a", "uid": "a"},
        "spec": {}, "status": {}});
    let cluster = "10.88.0.0/16";
    let (api, requests) = run(crate::nodes::node_ipam::start, std::slice::from_ref(&node)).await;
    assert_eq!(requests, ["PATCH nodes"]);
    let of = |name: &str| read(&format!("node_ipam_controller_{name}"), &[cluster]);
    assert_eq!(of("cidrset_cidrs_allocations_total"), 1.0);
    assert_eq!((of("cirdset_max_cidrs"), of("cidrset_usage_cidrs")), (256.0, 1.0 / 256.0));
    assert_eq!(of("cidrset_allocation_tries_per_request"), 1.0);
    let manager = ["kube-controller-manager", "nodeipam"];
    assert_eq!(read("running_managed_controllers", &manager), 1.0);
    api.remove("nodes", "/a");
    api.requests().await;
    assert_eq!((of("cidrset_cidrs_releases_total"), of("cidrset_usage_cidrs")), (1.0, 0.0));
    api.stop().await;
    let name = "node_collector_update_node_health_duration_seconds";
    let before = read(name, NONE);
    let (api, _) = run(crate::nodes::node_lifecycle::start, &[node]).await;
    assert!(read(name, NONE) > before);
    api.stop().await;
}

#[tokio::test(start_paused = true)]
async fn volumes_in_use_are_counted_by_node() {
    let _one = GAUGES.lock().await;
    let mut pod = pod("n", "p");
    pod["spec"]["nodeName"] = "of-volumes".into();
    pod["spec"]["volumes"] = json!([
        {"name": "a", "persistentVolumeClaim": {"claimName": "c"}},
        {"name": "b", "persistentVolumeClaim": {"claimName": "unbound"}},
        {"name": "c", "csi": {"driver": "inline.example.com"}},
        {"name": "d", "fc": {"wwids": ["w"]}},
        {"name": "e", "emptyDir": {}}]);
    let claim = |name: &str, phase: &str| {
        json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim",
            "metadata": {"name": name, "namespace": "n", "uid": name},
            "spec": {"volumeName": "pv"}, "status": {"phase": phase}})
    };
    let volume = json!({"apiVersion": "v1", "kind": "PersistentVolume",
        "metadata": {"name": "pv", "uid": "pv"},
        "spec": {"csi": {"driver": "csi.example.com", "volumeHandle": "h"},
            "claimRef": {"namespace": "n", "name": "c", "uid": "c"}}});
    let objects = [pod, claim("c", "Bound"), claim("unbound", "Pending"), volume];
    let (cluster, _) = run(crate::storage::attach_detach::start, &objects).await;
    drop(super::families());
    for (plugin, want) in [
        ("kubernetes.io/csi:csi.example.com", 1.0),
        ("kubernetes.io/csi:inline.example.com", 1.0),
        ("kubernetes.io/fc", 1.0),
    ] {
        let labels = ["of-volumes", plugin];
        assert_eq!(read("storage_count_attachable_volumes_in_use", &labels), want, "{plugin}");
    }
    cluster.stop().await;
}

fn service(name: &str, selector: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Service",
        "metadata": {"name": name, "namespace": "n", "uid": name},
        "spec": {"ipFamilies": ["IPv4"], "selector": selector,
            "trafficDistribution": "PreferSameNode", "ports": [{"port": 80}]}})
}

#[tokio::test(start_paused = true)]
async fn endpoint_slices_of_services_are_counted() {
    let _one = GAUGES.lock().await;
    let of =
        |name: &str, labels: &[&str]| read(&format!("endpoint_slice_controller_{name}"), labels);
    let mut pod = ready("n", "p", "ReplicaSet", "r");
    pod["status"]["podIPs"] = json!([{"ip": "10.1.0.1"}]);
    let before = of("changes", &["create"]);
    let (added, removed) =
        (of("endpoints_added_per_sync", NONE), of("endpoints_removed_per_sync", NONE));
    let syncs = of("syncs", &["success"]);
    let objects = [pod, service("s", json!({"app": "a"})), service("none", Value::Null)];
    let (cluster, requests) = run(crate::network::endpointslice::start, &objects).await;
    assert_eq!(requests, ["POST endpointslices"]);
    assert_eq!(of("changes", &["create"]), before + 1.0);
    assert!(of("syncs", &["success"]) >= syncs + 2.0);
    assert!(of("endpoints_added_per_sync", NONE) > added);
    assert!(of("endpoints_removed_per_sync", NONE) > removed);
    assert!(of("endpointslices_changed_per_sync", &["Disabled", "PreferSameNode"]) > 0.0);
    drop(super::families());
    let gauges = ["endpoints_desired", "num_endpoint_slices", "desired_endpoint_slices"];
    assert_eq!(gauges.map(|name| of(name, NONE)), [1.0, 1.0, 1.0]);
    let distribution = "services_count_by_traffic_distribution";
    assert_eq!(of(distribution, &["PreferSameNode"]), 1.0);
    let failed = of("syncs", &["error"]);
    cluster.fail("PUT endpointslices", 500);
    cluster.edit("pods", "n/p", |pod| pod["status"]["conditions"] = json!([]));
    assert_eq!(cluster.requests().await, ["PUT endpointslices"; 2]);
    assert_eq!(of("syncs", &["error"]), failed + 1.0);
    assert_eq!(of("changes", &["update"]), 1.0);
    cluster.remove("services", "n/s");
    cluster.requests().await;
    drop(super::families());
    assert_eq!(of(distribution, &["PreferSameNode"]), 0.0);
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn mirrored_endpoints_are_counted() {
    let _one = GAUGES.lock().await;
    let of = |name: &str, labels: &[&str]| {
        read(&format!("endpoint_slice_mirroring_controller_{name}"), labels)
    };
    let endpoints = |subsets: Value| {
        json!({"apiVersion": "v1", "kind": "Endpoints",
            "metadata": {"name": "s", "namespace": "n", "uid": "e"}, "subsets": subsets})
    };
    let two = json!([{"addresses": [{"ip": "10.1.2.3"}, {"ip": "10.1.2.4"}, {"ip": "x"}],
        "ports": [{"port": 80}]}]);
    let objects = [endpoints(two), service("s", Value::Null)];
    let (cluster, requests) = run(crate::network::endpointslice_mirroring::start, &objects).await;
    assert_eq!(requests, ["POST endpointslices"]);
    let histograms = [
        "addresses_skipped_per_sync",
        "endpoints_added_per_sync",
        "endpoints_updated_per_sync",
        "endpoints_removed_per_sync",
        "endpoints_sync_duration",
    ];
    let observed = histograms.map(|name| of(name, NONE));
    assert!(observed.iter().all(|count| *count >= 1.0), "{observed:?}");
    drop(super::families());
    let gauges = || {
        ["endpoints_desired", "num_endpoint_slices", "desired_endpoint_slices"]
            .map(|name| of(name, NONE))
    };
    let changes = || ["create", "update", "delete"].map(|kind| of("changes", &[kind]));
    assert_eq!((gauges(), changes()), ([2.0, 1.0, 1.0], [1.0, 0.0, 0.0]));
    cluster.put(&endpoints(json!([{"addresses": [{"ip": "10.1.2.3"}], "ports": [{"port": 80}]}])));
    assert_eq!(cluster.requests().await, ["PUT endpointslices"]);
    cluster.put(&endpoints(json!([])));
    assert_eq!(cluster.requests().await, ["DELETE endpointslices"]);
    drop(super::families());
    assert_eq!((gauges(), changes()), ([0.0; 3], [1.0; 3]));
    cluster.stop().await;
}
