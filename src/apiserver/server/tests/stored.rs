//! Objects that another program has stored: incomplete and unreadable ones.

use super::*;
use store::{Op, Txn};

async fn put(server: &ApiServer, key: &str, value: impl Into<bytes::Bytes>) {
    let put = Op::Put {
        key: format!("/registry/{key}").into(),
        value: value.into(),
        lease: 0,
        prev_kv: false,
    };
    let backend = Arc::clone(server.objects().storage().backend());
    backend.txn(Txn { success: vec![put], ..Txn::default() }).await.unwrap();
}

async fn get(server: &ApiServer, url: &str) -> (u16, Value) {
    ask(server, "GET", url, "", "").await
}

const OLD: [(&str, &str); 2] = [("json", "10.0.0.77"), ("protobuf", "10.0.0.78")];

#[tokio::test]
async fn a_service_from_before_dual_stack_keeps_its_address() {
    let config = Config { service_cidrs: vec!["10.0.0.0/24".into()], ..Config::default() };
    let server = server_with(config);
    for (form, address) in OLD {
        let service = json!({"kind": "Service", "apiVersion": "v1",
            "metadata": {"name": form, "namespace": "n", "uid": form,
                "creationTimestamp": "2019-01-01T00:00:00Z"},
            "spec": {"clusterIP": address, "type": "ClusterIP", "sessionAffinity": "None",
                "ports": [{"port": 80, "protocol": "TCP", "targetPort": 80}]},
            "status": {"loadBalancer": {}}});
        let bytes = match form {
            "json" => serde_json::to_vec(&service).unwrap(),
            _ => {
                api::codec::protobuf::encode_object(&Schema::builtin(), &service).unwrap().to_vec()
            }
        };
        put(&server, &format!("services/specs/n/{form}"), bytes).await;
    }
    for (form, address) in OLD {
        let url = format!("/api/v1/namespaces/n/services/{form}");
        let (code, read) = get(&server, &url).await;
        assert_eq!(code, 200, "{read}");
        let spec = &read["spec"];
        assert_eq!(spec["clusterIPs"], json!([address]), "{form}");
        assert_eq!(spec["ipFamilies"], json!(["IPv4"]));
        assert_eq!(spec["ipFamilyPolicy"], "SingleStack");
        assert_eq!(spec["internalTrafficPolicy"], "Cluster");
        let (_, listed) = get(&server, "/api/v1/services").await;
        let items = listed["items"].as_array().unwrap();
        assert!(items.iter().any(|item| item["spec"] == *spec), "{listed}");
        let patch = r#"{"metadata":{"labels":{"a":"b"}}}"#;
        let kind = "application/merge-patch+json";
        let (code, patched) = ask(&server, "PATCH", &url, kind, patch).await;
        assert_eq!(code, 200, "{patched}");
        // The repair runs in the background.
        let name = format!("/apis/networking.k8s.io/v1/ipaddresses/{address}");
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(10);
        while get(&server, &name).await.0 != 200 {
            assert!(std::time::Instant::now() < deadline, "{address} has no IPAddress");
            tokio::task::yield_now().await;
        }
        let (_, made) = get(&server, &name).await;
        assert_eq!(
            made["spec"]["parentRef"],
            json!({"resource": "services", "namespace": "n", "name": form})
        );
        let other = json!({"metadata": {"name": format!("other-{form}")},
            "spec": {"clusterIP": address, "ports": [{"port": 80}]}});
        let (code, refused) = post(&server, "/api/v1/namespaces/n/services", other).await;
        assert_eq!(code, 422, "{refused}");
    }
}

#[tokio::test]
async fn only_lists_that_contain_an_unreadable_object_fail() {
    let server = server();
    let made = json!({"metadata": {"name": "good"}, "data": {"a": "b"}});
    for namespace in ["good", "bad"] {
        let url = format!("/api/v1/namespaces/{namespace}/configmaps");
        assert_eq!(post(&server, &url, made.clone()).await.0, 201);
    }
    let (all, bad) = ("/api/v1/configmaps", "/api/v1/namespaces/bad/configmaps");
    assert_eq!(get(&server, all).await.1["items"].as_array().unwrap().len(), 2);
    // A running watch ends, because it could not send the change.
    let gvr = Gvr::new("", "v1", "configmaps");
    let (user, select) = (User::anonymous(), Select::default());
    let stream = server.watch_objects(&user, &gvr, &select, WatchStart::List).await.unwrap();
    put(&server, "configmaps/bad/damaged", "\u{1}garbage").await;
    let events = tokio::time::timeout(std::time::Duration::from_secs(10), stream.count()).await;
    assert!(events.is_ok(), "the watch does not end");
    let (code, single) = get(&server, &format!("{bad}/damaged")).await;
    assert_eq!((code, &single["reason"]), (500, &json!("InternalError")), "{single}");
    for url in [all, bad] {
        for query in ["", "?limit=1", "?resourceVersion=0", "?watch=true"] {
            let (code, refused) = get(&server, &format!("{url}{query}")).await;
            let fault = (code, &refused["reason"]);
            assert_eq!(fault, (500, &json!("StoreReadError")), "{url}{query}: {refused}");
            let causes = &refused["details"]["causes"];
            assert_eq!(causes[0]["field"], "/registry/configmaps/bad/damaged");
        }
    }
    let unselective = get(&server, &format!("{all}?labelSelector=a%3Db")).await;
    assert_eq!(unselective.0, 500, "a selector does not hide it");
    let named = format!("{bad}?fieldSelector=metadata.name%3Dgood");
    for url in ["/api/v1/namespaces/good/configmaps", &named] {
        let (code, list) = get(&server, url).await;
        assert_eq!(code, 200, "{url}: {list}");
        assert_eq!(list["items"].as_array().unwrap().len(), 1, "{url}");
    }
    assert!(server.watch_objects(&user, &gvr, &select, WatchStart::List).await.is_err());
    let unsafely = "ignoreStoreReadErrorWithClusterBreakingPotential=true";
    let remove = async |url: String| ask(&server, "DELETE", &url, "", "").await;
    assert_eq!(remove(format!("{bad}/damaged")).await.0, 500);
    let (code, refused) = remove(format!("{bad}/good?{unsafely}")).await;
    assert_eq!(code, 409, "{refused}");
    assert!(
        refused["message"].as_str().unwrap().ends_with(
            "unsafe deletion is not allowed because the object is decodable from storage"
        )
    );
    assert_eq!(remove(format!("{bad}/absent?{unsafely}")).await.0, 404);
    let combined = format!("{bad}/damaged?{unsafely}&gracePeriodSeconds=1");
    assert_eq!(remove(combined).await.0, 422);
    assert_eq!(remove(format!("{bad}?{unsafely}")).await.0, 422, "not of a collection");
    assert_eq!(remove(format!("{bad}/damaged?{unsafely}&dryRun=All")).await.0, 200);
    assert_eq!(get(&server, bad).await.0, 500);
    let (code, done) = remove(format!("{bad}/damaged?{unsafely}")).await;
    assert_eq!((code, &done["status"]), (200, &json!("Success")), "{done}");
    assert_eq!(get(&server, all).await.1["items"].as_array().unwrap().len(), 2);
}
