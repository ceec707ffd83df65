//! The claims of pods: prepared, given to containers, released.

use serde_json::{Value, json};

use super::super::claim::ClaimState;
use super::super::claims::ClaimCache;
use super::fake_driver::{self, Behaviour, FakeDriver};
use super::*;

/// The uids of the claims of each call, which all have this method.
fn claims_of_calls(driver: &FakeDriver, method: &str) -> Vec<Vec<String>> {
    let calls = driver.take_calls();
    assert!(calls.iter().all(|call| call.method == method), "{calls:?}");
    calls.into_iter().map(|call| call.claims.into_iter().collect()).collect()
}

const PREPARE: &str = "NodePrepareResources";
const UNPREPARE: &str = "NodeUnprepareResources";

#[tokio::test]
async fn claims_are_prepared_once_and_released_with_the_pod() {
    let bench = Bench::new();
    let driver = bench.start_default().await;
    bench.api.put("gpu", &[DRIVER], &["p"]);
    let pod = pod("p", &["gpu"]);
    assert_eq!(
        bench.cdi_devices(&pod).unwrap_err(),
        "internal error: unable to get claim info for ResourceClaim gpu in namespace d"
    );
    assert_eq!(bench.prepare(&pod).await, Ok(()));
    assert_eq!(claims_of_calls(&driver, PREPARE), [["uid-gpu"]]);
    assert_eq!(bench.cdi_devices(&pod).unwrap(), ["example.com/dev=gpu"]);
    let listed = bench.resources.claims_of_container(&pod, &pod.containers[0]);
    let [claim] = listed.as_slice() else { panic!("{listed:?}") };
    assert_eq!((&*claim.claim_name, &*claim.claim_namespace), ("gpu", "d"));
    let [device] = claim.claim_resources.as_slice() else { panic!("{claim:?}") };
    assert_eq!((&*device.driver_name, &*device.pool_name), (DRIVER, "pool"));
    assert_eq!(
        (&*device.device_name, &*device.cdi_devices[0].name),
        ("gpu", "example.com/dev=gpu")
    );
    assert_eq!(bench.recorded(), ["gpu"]);
    assert!(bench.resources.is_used_by("p"));
    // A new sandbox needs no call.
    assert_eq!(bench.prepare(&pod).await, Ok(()));
    assert!(driver.take_calls().is_empty());
    let in_use = |line: &str| bench.resources.render_metrics().contains(line);
    assert!(in_use("dra_resource_claims_in_use{driver_name=\"<any>\"} 1"));
    assert!(in_use("dra_resource_claims_in_use{driver_name=\"d.example.com\"} 1"));
    assert_eq!(bench.unprepare(&pod).await, Ok(()));
    assert_eq!(claims_of_calls(&driver, UNPREPARE), [["uid-gpu"]]);
    assert!(!bench.resources.is_used_by("p") && bench.recorded().is_empty());
    assert!(in_use("dra_resource_claims_in_use{driver_name=\"<any>\"} 0"));
    assert!(bench.resources.claims_of_container(&pod, &pod.containers[0]).is_empty());
    // There is nothing left to release.
    assert_eq!(bench.unprepare(&pod).await, Ok(()));
    assert!(driver.take_calls().is_empty());
}

#[tokio::test]
async fn a_pod_that_may_not_use_its_claim_changes_nothing() {
    let bench = Bench::new();
    let driver = bench.start_default().await;
    bench.api.put("foreign", &[DRIVER], &["other"]);
    bench.api.put("unknown", &["x.example.com"], &["p"]);
    bench
        .api
        .put_status("new", json!({"reservedFor": [{"resource": "pods", "name": "p", "uid": "p"}]}));
    let error = async |claim: &str| bench.prepare(&pod("p", &[claim])).await.unwrap_err();
    let missing = error("missing").await;
    assert!(missing.starts_with("prepare dynamic resources: fetch ResourceClaim missing: "));
    assert_eq!(
        error("foreign").await,
        "prepare dynamic resources: pod p (p) is not allowed to use ResourceClaim foreign \
         (uid-foreign)"
    );
    assert_eq!(
        error("unknown").await,
        "prepare dynamic resources: DRA driver x.example.com is not registered"
    );
    assert_eq!(error("new").await, "prepare dynamic resources: ResourceClaim new: not allocated");
    let template = json!({"containers": [{"name": "a"}],
        "resourceClaims": [{"name": "c", "resourceClaimTemplateName": "t"}]});
    let status = json!({"resourceClaimStatuses": [{"name": "c", "resourceClaimName": "made"}]});
    bench.api.put("made", &[DRIVER], &["p"]);
    bench.api.own("other");
    let generated = pod_of("p", template, status);
    assert_eq!(
        bench.prepare(&generated).await.unwrap_err(),
        "prepare dynamic resources: ResourceClaim d/made was not created for Pod d/p (Pod is not \
         owner)"
    );
    assert!(driver.take_calls().is_empty());
    assert!(!bench.resources.is_used_by("p") && bench.recorded().is_empty());
    bench.api.own("p");
    assert_eq!(bench.prepare(&generated).await, Ok(()));
}

#[tokio::test]
async fn answers_of_drivers_are_checked() {
    let bench = Bench::new();
    let driver = bench.start_default().await;
    bench.api.put("gpu", &[DRIVER], &["p"]);
    let pod = pod("p", &["gpu"]);
    let prepare = async |behaviour| {
        driver.behave(behaviour);
        bench.prepare(&pod).await.map_err(|e| e.replace("prepare dynamic resources: ", ""))
    };
    let failed = |text: &str| Err(text.to_owned());
    assert_eq!(
        prepare(Behaviour::Fail).await,
        failed("NodePrepareResources failed for ResourceClaim gpu: no power")
    );
    assert_eq!(
        prepare(Behaviour::Skip).await,
        failed("NodePrepareResources skipped 1 ResourceClaims")
    );
    assert_eq!(
        prepare(Behaviour::Confuse).await,
        failed("NodePrepareResources returned result for unknown claim UID other")
    );
    assert_eq!(prepare(Behaviour::NoDevices).await, Ok(()));
    assert!(bench.cdi_devices(&pod).unwrap().is_empty());
    let unprepare = async |behaviour| {
        driver.behave(behaviour);
        bench.unprepare(&pod).await.map_err(|e| e.replace("unprepare dynamic resources: ", ""))
    };
    assert_eq!(
        unprepare(Behaviour::Fail).await,
        failed("NodeUnprepareResources failed for ResourceClaim gpu: no power")
    );
    assert_eq!(
        unprepare(Behaviour::Skip).await,
        failed("NodeUnprepareResources skipped 1 ResourceClaims")
    );
    assert_eq!(
        unprepare(Behaviour::Confuse).await,
        failed("NodeUnprepareResources returned result for unknown claim UID other")
    );
    // The claim stays with the pod, and no other pod can use it.
    assert!(bench.resources.is_used_by("p"));
    bench.api.put("gpu", &[DRIVER], &["p", "q"]);
    let other = super::pod("q", &["gpu"]);
    let error = "prepare dynamic resources: ResourceClaim gpu is being unprepared";
    assert_eq!(bench.prepare(&other).await, failed(error));
    assert!(!bench.resources.is_used_by("q"));
    assert_eq!(unprepare(Behaviour::Succeed).await, Ok(()));
}

#[tokio::test]
async fn a_driver_that_does_not_answer_fails_by_its_deadline() {
    let bench = Bench::with_delays(Duration::from_millis(200), NEVER);
    let driver = bench.start_default().await;
    bench.api.put("gpu", &[DRIVER], &["p"]);
    let pod = pod("p", &["gpu"]);
    driver.behave(Behaviour::Block);
    let late = "rpc error: code = DeadlineExceeded desc = context deadline exceeded";
    let expected = format!("prepare dynamic resources: NodePrepareResources: {late}");
    assert_eq!(bench.prepare(&pod).await, Err(expected));
    let [call] = &driver.take_calls()[..] else { panic!("one call") };
    assert!(call.timeout.is_some(), "the driver knows the deadline");
    let expected = format!("unprepare dynamic resources: NodeUnprepareResources: {late}");
    assert_eq!(bench.unprepare(&pod).await, Err(expected));
    let metrics = bench.resources.render_metrics();
    let series = "dra_grpc_operations_duration_seconds_count{driver_name=\"d.example.com\",\
        grpc_status_code=\"DeadlineExceeded\",method_name=\"/k8s.io.kubelet.pkg.apis.dra.v1.\
        DRAPlugin/NodePrepareResources\"}";
    assert!(metrics.contains(series), "{metrics}");
    let line = "# HELP dra_operations_duration_seconds [ALPHA] Latency histogram in seconds";
    assert!(metrics.contains(line), "{metrics}");
}

#[tokio::test]
async fn a_retry_does_not_add_devices_twice() {
    let bench = Bench::new();
    let driver = bench.start_default().await;
    let other = FakeDriver::new(&[fake_driver::V1]);
    bench.start("e.example.com", &other, &["v1.DRAPlugin"]).await;
    bench.api.put("gpu", &[DRIVER, "e.example.com"], &["p"]);
    let pod = pod("p", &["gpu"]);
    other.behave(Behaviour::Fail);
    assert!(bench.prepare(&pod).await.is_err());
    other.behave(Behaviour::Succeed);
    assert_eq!(bench.prepare(&pod).await, Ok(()));
    assert_eq!(claims_of_calls(&driver, PREPARE).len(), 2);
    // One of each driver.
    let device = "example.com/dev=gpu";
    assert_eq!(bench.cdi_devices(&pod).unwrap(), [device, device]);
}

#[tokio::test]
async fn a_second_pod_prepares_its_new_claims_only() {
    let bench = Bench::new();
    let driver = bench.start_default().await;
    bench.api.put("old", &[DRIVER], &["p", "q"]);
    bench.api.put("new", &[DRIVER], &["q"]);
    let (first, second) = (pod("p", &["old"]), pod("q", &["old", "new"]));
    bench.prepare(&first).await.unwrap();
    driver.take_calls();
    bench.prepare(&second).await.unwrap();
    assert_eq!(claims_of_calls(&driver, PREPARE), [["uid-new"]]);
    bench.unprepare(&second).await.unwrap();
    assert_eq!(claims_of_calls(&driver, UNPREPARE), [["uid-new"]]);
    assert_eq!(bench.recorded(), ["old"]);
    bench.unprepare(&first).await.unwrap();
    assert_eq!(claims_of_calls(&driver, UNPREPARE), [["uid-old"]]);
}

/// The request `r` of the extended claim, for a resource of the container `a`.
fn mapping(resource: &str) -> Value {
    json!({"containerName": "a", "resourceName": resource, "requestName": "r"})
}

#[tokio::test]
async fn a_claim_for_extended_resources_serves_the_containers_that_request_them() {
    let bench = Bench::new();
    bench.start_default().await;
    bench.api.put("ext", &[DRIVER], &["p"]);
    let requests = json!({"requests": {"example.com/gpu": "1", "example.com/nic": "0"}});
    let spec = json!({"containers": [{"name": "a", "resources": requests}, {"name": "b"}]});
    let status = json!({"extendedResourceClaimStatus": {"resourceClaimName": "ext",
        "requestMappings": [mapping("example.com/gpu"), mapping("example.com/nic")]}});
    let pod = pod_of("p", spec, status);
    bench.prepare(&pod).await.unwrap();
    assert_eq!(bench.cdi_devices(&pod).unwrap(), ["example.com/dev=ext"]);
    let of_second = bench.resources.cdi_devices(&pod, &pod.containers[1]).unwrap();
    assert!(of_second.is_empty());
    let listed = |at: usize| bench.resources.claims_of_container(&pod, &pod.containers[at]).len();
    assert_eq!((listed(0), listed(1)), (1, 0));
}

#[tokio::test]
async fn two_requests_that_name_one_device_list_it_twice() {
    let bench = Bench::new();
    bench.start_default().await;
    bench.api.put("gpu", &[DRIVER], &["p"]);
    let with = |claims: Value| {
        let spec = json!({"containers": [{"name": "a", "resources": {"claims": claims}}],
            "resourceClaims": [{"name": "c", "resourceClaimName": "gpu"}]});
        pod_of("p", spec, json!({}))
    };
    let pod = with(json!([{"name": "c", "request": "r"}, {"name": "c"}]));
    bench.prepare(&pod).await.unwrap();
    let device = "example.com/dev=gpu";
    assert_eq!(bench.cdi_devices(&pod).unwrap(), [device, device]);
    let other = with(json!([{"name": "c", "request": "s"}]));
    assert!(bench.cdi_devices(&other).unwrap().is_empty());
}

/// A claim of an earlier process, as the file has it.
fn recorded_claim(name: &str, driver: &str, pods: &[&str]) -> ClaimState {
    let pods: serde_json::Map<String, Value> =
        pods.iter().map(|pod| ((*pod).to_owned(), json!({}))).collect();
    let state = json!({"ClaimUID": format!("uid-{name}"), "ClaimName": name, "Namespace": "d",
        "PodUIDs": pods, "DriverState": {driver: {"Devices": null}}});
    serde_json::from_value(state).unwrap()
}

#[tokio::test]
async fn a_claim_whose_driver_is_gone_stays_recorded() {
    let bench = Bench::new();
    let state = recorded_claim("gpu", "gone.example.com", &["p"]);
    *bench.resources.claims.lock() = ClaimCache::of_states(vec![state]);
    assert_eq!(
        bench.unprepare(&pod("p", &["gpu"])).await.unwrap_err(),
        "unprepare dynamic resources: DRA driver gone.example.com is not registered"
    );
    assert!(bench.resources.is_used_by("p"));
}

#[tokio::test]
async fn claims_of_pods_that_do_not_exist_are_released_when_their_driver_registers() {
    let bench = Bench::new();
    let states = vec![
        recorded_claim("gpu", DRIVER, &["gone", "here"]),
        recorded_claim("nic", DRIVER, &["gone"]),
    ];
    *bench.resources.claims.lock() = ClaimCache::of_states(states);
    bench.resources.release_orphans(|pod| pod == "here");
    // The references are removed without the driver, the devices are not.
    until("the reference is removed", || bench.resources.claims.lock().of_pod("gone").len() == 1)
        .await;
    let driver = bench.start_default().await;
    until("the claim is released", || !bench.resources.is_used_by("gone")).await;
    assert_eq!(claims_of_calls(&driver, UNPREPARE), [["uid-nic"]]);
    assert!(bench.resources.is_used_by("here"));
    until("the record is written", || bench.recorded() == ["gpu"]).await;
}

#[tokio::test]
async fn a_pod_that_waits_for_a_driver_is_woken_when_it_registers() {
    let bench = Bench::new();
    bench.api.put("gpu", &[DRIVER], &["p"]);
    let (pod, wake) = (pod("p", &["gpu"]), Arc::default());
    bench.resources.follow(&pod, &wake);
    assert!(bench.prepare(&pod).await.is_err());
    bench.start_default().await;
    tokio::time::timeout(SOON, wake.notified()).await.unwrap();
    assert_eq!(bench.prepare(&pod).await, Ok(()));
}

#[tokio::test]
async fn pods_come_and_go_at_the_same_time() {
    let bench = Arc::new(Bench::new());
    bench.start_default().await;
    let uids: Vec<String> = (0..30).map(|i| format!("p{i}")).collect();
    let all: Vec<&str> = uids.iter().map(String::as_str).collect();
    for uid in &uids {
        bench.api.put(&format!("of-{uid}"), &[DRIVER], &all);
    }
    let pods = uids.iter().map(|uid| {
        let (bench, own) = (Arc::clone(&bench), format!("of-{uid}"));
        async move {
            let pod = pod(uid, &[&own]);
            bench.prepare(&pod).await.unwrap();
            bench.unprepare(&pod).await.unwrap();
        }
    });
    futures::future::join_all(pods).await;
    assert!(bench.recorded().is_empty());
}

#[tokio::test]
async fn a_pod_does_not_end_before_its_claims_are_released() {
    let bench = Bench::new();
    let state = recorded_claim("gpu", DRIVER, &["p"]);
    *bench.resources.claims.lock() = ClaimCache::of_states(vec![state]);
    let status = |phase: &str| {
        let status = json!({"phase": phase, "reason": phase});
        serde_json::from_value::<api::k8s::api::core::v1::PodStatus>(status).unwrap()
    };
    let held = |uid: &str, before: &str| {
        let mut new = status("Failed");
        bench.resources.hold_end_back(&pod(uid, &["gpu"]), &mut new, &status(before));
        (new.phase.unwrap(), new.reason.unwrap())
    };
    let both = |text: &str| (text.to_owned(), text.to_owned());
    assert_eq!(held("p", "Running"), both("Running"));
    assert_eq!(held("q", "Running"), both("Failed"));
    assert_eq!(held("p", "Failed"), both("Failed"), "it ended before");
}
