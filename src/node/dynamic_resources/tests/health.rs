//! The health of devices: reports of drivers, and what pods show.

use api::k8s::api::core::v1 as core;
use proto::dra_health::HealthStatus;
use serde_json::{Value, json};
use tokio::sync::Notify;

use super::super::health::Health;
use super::fake_driver::{FakeDriver, HEALTH_V1, HEALTH_V1ALPHA1, V1};
use super::*;

/// The entries of the first container: names, resources, health and messages.
fn entries(bench: &Bench, pod: &Pod) -> Vec<(String, String, String, Option<String>)> {
    let container = json!({"name": "a", "ready": true, "restartCount": 0, "image": "",
        "imageID": ""});
    let mut status: core::PodStatus =
        serde_json::from_value(json!({"containerStatuses": [container]})).unwrap();
    bench.resources.add_resource_health(pod, &mut status);
    let container = status.container_statuses.unwrap().remove(0);
    let all = container.allocated_resources_status.into_iter().flatten();
    all.flat_map(|entry| {
        let name = entry.name;
        entry.resources.unwrap().into_iter().map(move |resource| {
            (name.clone(), resource.resource_id, resource.health.unwrap(), resource.message)
        })
    })
    .collect()
}

fn entry(
    name: &str,
    resource: &str,
    health: &str,
    message: Option<&str>,
) -> (String, String, String, Option<String>) {
    (name.to_owned(), resource.to_owned(), health.to_owned(), message.map(str::to_owned))
}

/// Starts a driver with a health service and returns when its stream is open.
async fn start(bench: &Bench, service: &'static str) -> FakeDriver {
    let services: &'static [&'static str] =
        if service == HEALTH_V1 { &[V1, HEALTH_V1] } else { &[V1, HEALTH_V1ALPHA1] };
    let driver = FakeDriver::new(services);
    bench.start(DRIVER, &driver, &["v1.DRAPlugin", service]).await;
    until("the health stream is open", || driver.opened() == 1).await;
    driver
}

async fn is_woken(wake: &Notify) -> bool {
    tokio::time::timeout(Duration::from_millis(300), wake.notified()).await.is_ok()
}

#[tokio::test]
async fn a_change_of_health_wakes_the_pods_that_use_the_device() {
    let bench = Bench::new();
    let driver = start(&bench, HEALTH_V1).await;
    bench.api.put("gpu", &[DRIVER], &["p", "q"]);
    bench.api.put("nic", &[DRIVER], &["r"]);
    let pods = [pod("p", &["gpu"]), pod("q", &["gpu"]), pod("r", &["nic"])];
    let wakes: [Arc<Notify>; 3] = Default::default();
    for (pod, wake) in pods.iter().zip(&wakes) {
        bench.resources.follow(pod, wake);
        bench.prepare(pod).await.unwrap();
    }
    let unknown = entry("claim:gpu", "example.com/dev=gpu", "Unknown", None);
    assert_eq!(entries(&bench, &pods[0]), std::slice::from_ref(&unknown));
    driver.report("gpu", HealthStatus::Unhealthy, "too hot").await;
    assert!(is_woken(&wakes[0]).await && is_woken(&wakes[1]).await);
    let hot = entry("claim:gpu", "example.com/dev=gpu", "Unhealthy", Some("too hot"));
    assert_eq!(entries(&bench, &pods[0]), [hot]);
    // Neither the same report again nor one about another device concerns them.
    driver.report("gpu", HealthStatus::Unhealthy, "too hot").await;
    driver.report("unused", HealthStatus::Unhealthy, "").await;
    assert!(!is_woken(&wakes[0]).await && !is_woken(&wakes[2]).await);
    until("the report is known", || {
        bench.resources.health.of_device(DRIVER, "pool", "unused").0 == Health::Unhealthy
    })
    .await;
    // Without a stream, nothing is known.
    driver.end_streams();
    until("the reports are dropped", || entries(&bench, &pods[0]) == [unknown.clone()]).await;
}

#[tokio::test]
async fn the_older_health_service_is_followed() {
    let bench = Bench::new();
    let driver = start(&bench, HEALTH_V1ALPHA1).await;
    driver.report("gpu", HealthStatus::Healthy, "").await;
    until("the report is known", || {
        bench.resources.health.of_device(DRIVER, "pool", "gpu").0 == Health::Healthy
    })
    .await;
}

#[tokio::test]
async fn reports_end_with_the_plugin() {
    let bench = Bench::new();
    let driver = start(&bench, HEALTH_V1).await;
    driver.report("gpu", HealthStatus::Healthy, "").await;
    let health = || bench.resources.health.of_device(DRIVER, "pool", "gpu").0;
    until("the report is known", || health() == Health::Healthy).await;
    let endpoint = bench.socket("d.example.com.sock");
    bench.handler.deregister(&plugin(DRIVER, endpoint, &[])).await;
    until("the report is dropped", || health() == Health::Unknown).await;
}

/// A pod whose only container refers to a claim with the object `gpu`, prepared.
async fn with_reference(bench: &Bench, claim: Value, status: Value, request: &str) -> Pod {
    let reference = json!({"name": "c", "request": request});
    let spec = json!({"containers": [{"name": "a", "resources": {"claims": [reference]}}],
        "resourceClaims": [claim]});
    let pod = pod_of("p", spec, status);
    bench.prepare(&pod).await.unwrap();
    pod
}

#[tokio::test]
async fn pods_show_the_devices_of_their_requests() {
    let bench = Bench::new();
    start(&bench, HEALTH_V1).await;
    bench.api.put("gpu", &[DRIVER], &["p"]);
    bench.api.own("p");
    let direct = json!({"name": "c", "resourceClaimName": "gpu"});
    let template = json!({"name": "c", "resourceClaimTemplateName": "t"});
    let made = json!({"resourceClaimStatuses": [{"name": "c", "resourceClaimName": "gpu"}]});
    let of = async |claim: &Value, status: Value, request: &str| {
        entries(&bench, &with_reference(&bench, claim.clone(), status, request).await)
    };
    let shown = |name: &str| [entry(name, "example.com/dev=gpu", "Unknown", None)];
    assert_eq!(of(&direct, json!({}), "").await, shown("claim:c"));
    assert_eq!(of(&template, made, "").await, shown("claim:c"));
    assert_eq!(of(&direct, json!({}), "r").await, shown("claim:c/r"));
    // The driver reports the request without the subrequest.
    assert_eq!(of(&direct, json!({}), "r/sub").await, shown("claim:c/r/sub"));
    assert!(of(&direct, json!({}), "other/sub").await.is_empty());
}
