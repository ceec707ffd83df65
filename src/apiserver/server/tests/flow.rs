//! Flow control of the whole server.

use http_body_util::BodyExt;

use super::*;

async fn metrics(server: &ApiServer) -> String {
    ask(server, "GET", "/metrics", "", "").await.1.as_str().unwrap_or_default().to_owned()
}

#[tokio::test]
async fn a_watch_has_a_seat_until_it_has_begun() {
    let server = server();
    let url = "/api/v1/namespaces/n/configmaps";
    assert_eq!(post(&server, url, json!({"metadata": {"name": "a"}})).await.0, 201);
    let request = Request::builder().uri(format!("{url}?watch=1")).body(body::empty()).unwrap();
    let response = server.call(None, request).await;
    assert!(response.headers().contains_key("x-kubernetes-pf-flowschema-uid"));
    let in_flight = || server.inner.flow.as_ref().unwrap().in_flight();
    assert_eq!(in_flight(), (1, 0));
    let mut stream = response.into_body();
    assert!(stream.frame().await.unwrap().unwrap().is_data());
    assert!(futures::poll!(Box::pin(stream.frame())).is_pending());
    assert_eq!(in_flight(), (0, 0));

    let told = |sum| {
        let labels = "flow_schema=\"catch-all\",priority_level=\"catch-all\"";
        format!("apiserver_flowcontrol_watch_count_samples_sum{{{labels}}} {sum}\n")
    };
    assert!(metrics(&server).await.contains(&told(0)));
    assert_eq!(post(&server, url, json!({"metadata": {"name": "b"}})).await.0, 201);
    assert!(metrics(&server).await.contains(&told(1)));
    drop(stream);
    assert_eq!(post(&server, url, json!({"metadata": {"name": "c"}})).await.0, 201);
    assert!(metrics(&server).await.contains(&told(1)));
}

#[tokio::test]
async fn mandatory_and_suggested_objects_are_created_and_restored() {
    let server = server();
    server.control_flow().await.unwrap();
    let gvr = Gvr::new("flowcontrol.apiserver.k8s.io", "v1", "flowschemas");
    let admin = User::authenticated("admin", &["system:masters"]);
    let stream =
        server.watch_objects(&admin, &gvr, &Select::default(), WatchStart::List).await.unwrap();
    let mut stream = std::pin::pin!(stream);
    let mut names = std::collections::BTreeSet::new();
    while names.len() < 11 {
        if let Some(WatchEvent::Added(object)) = stream.next().await {
            names.insert(object.key.name.to_string());
        }
    }
    let url = "/apis/flowcontrol.apiserver.k8s.io/v1/flowschemas/probes";
    let request = Request::builder().method("DELETE").uri(url).body(body::empty()).unwrap();
    assert_eq!(server.call(Some(admin), request).await.status(), 200);
    loop {
        match stream.next().await {
            Some(WatchEvent::Added(object)) if &*object.key.name == "probes" => break,
            Some(_) => {}
            None => panic!("the watch has ended"),
        }
    }
}

#[tokio::test]
async fn without_flow_control_the_in_flight_limits_apply() {
    let flow =
        crate::priority_and_fairness::flags::FlowFlags { reads: 1, writes: 1, enabled: false };
    let server = server_with(Config { flow, ..Config::default() });
    let request = Request::builder().uri("/api/v1/nodes").body(body::empty()).unwrap();
    let response = server.call(None, request).await;
    assert_eq!(response.status(), 200);
    assert!(!response.headers().contains_key("x-kubernetes-pf-flowschema-uid"));
    assert!(
        metrics(&server)
            .await
            .contains("apiserver_current_inflight_requests{request_kind=\"readOnly\"} 1\n")
    );
}
