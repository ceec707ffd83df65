//! Drivers and their plugins: registration, connections, versions, ResourceSlices.

use super::fake_driver::{FakeDriver, HEALTH_V1, V1, V1BETA1};
use super::*;

#[tokio::test]
async fn plugins_without_a_known_service_are_refused() {
    let bench = Bench::new();
    let refused = |versions: &[&str]| {
        let plugin = plugin(DRIVER, "/x.sock".into(), versions);
        bench.handler.validate(&plugin).map_err(|error| error.to_string())
    };
    let head = "invalid supported gRPC versions of DRA driver plugin d.example.com at endpoint \
        /x.sock: ";
    let empty = format!("{head}empty list of supported gRPC services (aka supported versions)");
    assert_eq!(refused(&[]), Err(empty));
    assert!(refused(&["1.0.0"]).unwrap_err().starts_with(&format!("{head}none of services")));
    assert_eq!(refused(&["v1beta1.DRAPlugin"]), Ok(()));
}

#[tokio::test]
async fn the_newest_connected_plugin_is_called() {
    let bench = Bench::new();
    let drivers = &bench.resources.drivers;
    let text = |name: &str| drivers.plugin(name).unwrap_err().to_string();
    assert_eq!(text(""), "DRA driver name is empty");
    assert_eq!(text("x"), "DRA driver x is not registered");
    let (old, new) = (FakeDriver::new(&[V1]), FakeDriver::new(&[V1]));
    bench.start(DRIVER, &old, &["v1.DRAPlugin"]).await;
    let first = bench.socket("d.example.com.sock");
    let again = bench.handler.register(&plugin(DRIVER, first.clone(), &["v1.DRAPlugin"])).await;
    assert_eq!(
        again.unwrap_err().to_string(),
        format!(
            "endpoint {} already registered for DRA driver plugin d.example.com",
            first.display()
        )
    );
    let second = bench.socket("second.sock");
    let newer = plugin(DRIVER, second.clone(), &["v1.DRAPlugin"]);
    bench.handler.register(&newer).await.unwrap();
    let endpoint = || drivers.plugin(DRIVER).unwrap().endpoint.clone();
    assert_eq!(endpoint(), first, "the second one does not run yet");
    // The first attempt to connect failed; a call would try again at once.
    new.serve(&bench.tasks, &second);
    until("the second one is connected", || endpoint() == second).await;
    bench.handler.deregister(&newer).await;
    assert_eq!(endpoint(), first);
    bench.handler.deregister(&newer).await;
    bench.handler.deregister(&plugin(DRIVER, first, &[])).await;
    assert_eq!(text(DRIVER), "DRA driver d.example.com is not registered");
}

#[tokio::test]
async fn the_chosen_version_is_called() {
    let bench = Bench::new();
    bench.api.put("old", &["old.example.com"], &["p"]);
    bench.api.put("wrong", &["wrong.example.com"], &["p"]);
    let (old, wrong) = (FakeDriver::new(&[V1BETA1]), FakeDriver::new(&[V1]));
    let versions = ["v1beta1.DRAPlugin", "v1.DRAPlugin"];
    bench.start("old.example.com", &old, &versions).await;
    bench.start("wrong.example.com", &wrong, &versions).await;
    assert_eq!(bench.prepare(&pod("p", &["old"])).await, Ok(()));
    assert_eq!(
        bench.prepare(&pod("p", &["wrong"])).await.unwrap_err(),
        "prepare dynamic resources: NodePrepareResources: rpc error: code = Unimplemented desc = \
         unknown service k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin"
    );
}

#[tokio::test]
async fn all_calls_share_one_connection() {
    let bench = Bench::new();
    let driver = FakeDriver::new(&[V1, HEALTH_V1]);
    bench.start(DRIVER, &driver, &["v1.DRAPlugin", "v1.DRAResourceHealth"]).await;
    for (claim, uid) in [("a", "p"), ("b", "q")] {
        bench.api.put(claim, &[DRIVER], &[uid]);
    }
    let (first, second) = (pod("p", &["a"]), pod("q", &["b"]));
    let (one, two) = tokio::join!(bench.prepare(&first), bench.prepare(&second));
    assert_eq!((one, two), (Ok(()), Ok(())));
    until("the health stream is open", || driver.opened() == 1).await;
    assert_eq!(driver.connections(), 1);
}

#[tokio::test]
async fn a_driver_that_does_not_run_is_unavailable() {
    let bench = Bench::new();
    bench.api.put("gpu", &[DRIVER], &["p"]);
    let socket = bench.socket("missing.sock");
    bench.handler.register(&plugin(DRIVER, socket, &["v1.DRAPlugin"])).await.unwrap();
    assert_eq!(
        bench.prepare(&pod("p", &["gpu"])).await.unwrap_err(),
        "prepare dynamic resources: NodePrepareResources: rpc error: code = Unavailable desc = \
         connection error: desc = \"transport: No such file or directory (os error 2)\""
    );
}

#[tokio::test]
async fn a_restarted_driver_is_called_at_once() {
    let bench = Bench::new();
    let driver = FakeDriver::new(&[V1]);
    let end = bench.start(DRIVER, &driver, &["v1.DRAPlugin"]).await;
    let plugin = bench.resources.drivers.plugin(DRIVER).unwrap();
    end.request();
    until("the connection is lost", || !plugin.connection.is_connected()).await;
    let socket = bench.socket("d.example.com.sock");
    std::fs::remove_file(&socket).unwrap();
    driver.serve(&bench.tasks, &socket);
    bench.api.put("gpu", &[DRIVER], &["p"]);
    // The call ends the delay before the next attempt to connect.
    assert_eq!(bench.prepare(&pod("p", &["gpu"])).await, Ok(()));
}

#[tokio::test]
async fn a_call_to_a_plugin_that_is_gone_fails_at_once() {
    let bench = Bench::new();
    let driver = FakeDriver::new(&[V1]);
    bench.start(DRIVER, &driver, &["v1.DRAPlugin"]).await;
    let old = bench.resources.drivers.plugin(DRIVER).unwrap();
    let endpoint = bench.socket("d.example.com.sock");
    bench.handler.deregister(&plugin(DRIVER, endpoint, &[])).await;
    until("the connection is closed", || !old.connection.is_connected()).await;
    assert_eq!(
        old.prepare(Vec::new()).await.unwrap_err().to_string(),
        "rpc error: code = Canceled desc = grpc: the client connection is closing"
    );
}

const SLICES: &str = "/apis/resource.k8s.io/v1/resourceslices?fieldSelector=";

#[tokio::test]
async fn resource_slices_are_removed_at_the_start_and_after_the_end_of_a_driver() {
    let bench = Bench::with_delays(SOON, Duration::from_millis(100));
    bench.cleaner.clean_all();
    let deletions = || bench.api.deletions.lock().clone();
    until("all are removed", || deletions().len() == 1).await;
    assert_eq!(deletions(), [format!("{SLICES}spec.nodeName%3Dn")]);
    let driver = FakeDriver::new(&[V1]);
    let end = bench.start(DRIVER, &driver, &["v1.DRAPlugin"]).await;
    until("nothing is pending", || !bench.cleaner.is_pending(DRIVER)).await;
    let of_driver = format!("{SLICES}spec.nodeName%3Dn%2Cspec.driver%3Dd.example.com");
    let before = deletions().len();
    end.request();
    until("those of a stopped driver are removed", || deletions().len() == before + 1).await;
    until("the removal ended", || !bench.cleaner.is_pending(DRIVER)).await;
    let endpoint = bench.socket("d.example.com.sock");
    bench.handler.deregister(&plugin(DRIVER, endpoint, &[])).await;
    until("those of a deregistered driver are removed", || deletions().len() == before + 2).await;
    assert!(deletions()[1..].iter().all(|target| *target == of_driver), "{:?}", deletions());
}

#[tokio::test]
async fn resource_slices_of_a_driver_that_returns_are_kept() {
    let bench = Bench::new();
    let driver = FakeDriver::new(&[V1]);
    let end = bench.start(DRIVER, &driver, &["v1.DRAPlugin"]).await;
    until("nothing is pending", || !bench.cleaner.is_pending(DRIVER)).await;
    end.request();
    until("the removal waits", || bench.cleaner.is_pending(DRIVER)).await;
    let socket = bench.socket("d.example.com.sock");
    std::fs::remove_file(&socket).unwrap();
    driver.serve(&bench.tasks, &socket);
    until("the removal is cancelled", || !bench.cleaner.is_pending(DRIVER)).await;
    assert!(bench.api.deletions.lock().is_empty());
}
