//! A server with an aggregated one: availability, proxied requests, discovery. Reasons and messages
//! are those of upstream's `remote_available_controller.go`.

use std::sync::Arc;

use base::pki::reloadable_cert::LiveCert;
use base::pki::{Ca, Profile};
use base::{Shutdown, Tasks};
use bytes::Bytes;
use http::{Method, Request, Response};
use http_body_util::Full;
use serde_json::{Value, json};

use super::Settings;
use crate::authn::Union;
use crate::authz::chain::Chain;
use crate::registry::objects::Objects;
use crate::request::body;
use crate::request::user::User;
use crate::state::Parts;
use crate::{ApiServer, Config};
use webhook::Callout;
use webhook::testing::{self as peer, Hook, To};

/// The aggregated server.
fn answer(target: &str, sent: Value) -> Response<Full<Bytes>> {
    let list = json!({"kind": "APIResourceList", "groupVersion": "x.io/v1", "resources": [
        {"name": "flunders", "singularName": "flunder", "namespaced": true, "kind": "Flunder", "verbs": ["get"], "shortNames": ["f"]},
        {"name": "flunders/status", "singularName": "", "namespaced": true, "kind": "Flunder", "verbs": ["get"]},
    ]});
    match target {
        "/apis/x.io/v1" => peer::body(200, "application/json", list.to_string()),
        "/apis/x.io/v1/away" => {
            Response::builder().status(302).header("location", "/x").body(Full::default()).unwrap()
        }
        _ => {
            peer::body(201, "application/json", json!({"target": target, "sent": sent}).to_string())
        }
    }
}

struct World {
    server: ApiServer,
    tasks: Tasks,
    hook: Hook,
    _dir: tempfile::TempDir,
}

async fn world() -> World {
    let hook = peer::hook(answer).await;
    let tasks = Tasks::new(Shutdown::new());
    let objects =
        Objects::new(store::open_memory_with(&tasks), None, api::schema::Schema::builtin(), &tasks);
    let parts = Parts {
        objects,
        authenticator: Arc::new(Union::new(Vec::new(), true)),
        authorizer: Arc::new(Chain::new(Vec::new())),
        admission: Vec::new(),
        token_issuer: None,
        reviews: None,
        connect: None,
        impersonation: None,
    };
    let server = crate::build(Config::default(), parts, tasks.clone()).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let ca = Ca::load_or_create(&dir.path().join("c"), &dir.path().join("k"), "proxy").unwrap();
    let leaf = ca.issue(&Profile::client("system:auth-proxy", None)).unwrap();
    let callout = Callout { reach: Arc::new(To(hook.address)), tasks: tasks.clone() };
    let settings = Settings { callout, certificate: LiveCert::new(&leaf).unwrap() };
    server.aggregate(&settings).await.unwrap();
    World { server, tasks, hook, _dir: dir }
}

impl World {
    async fn ask(
        &self,
        method: Method,
        path: &str,
        object: Value,
    ) -> (u16, Value, http::HeaderMap) {
        let content = if object.is_null() { String::new() } else { object.to_string() };
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("content-type", "application/json")
            .header("authorization", "Bearer secret")
            .header("x-remote-user", "forged")
            .body(body::full(content))
            .unwrap();
        let user = User::authenticated("jane", &["system:masters"]);
        let response = self.server.call(Some(user), request).await;
        let (parts, body) = response.into_parts();
        let bytes = body::collect(body).await.unwrap();
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let value = serde_json::from_str(&text).unwrap_or(Value::String(text));
        (parts.status.as_u16(), value, parts.headers)
    }

    /// Waits until the condition of the APIService is `status reason`.
    async fn until(&self, wanted: &str) -> String {
        let path = "/apis/apiregistration.k8s.io/v1/apiservices/v1.x.io";
        for _ in 0..20_000 {
            let (_, object, _) = self.ask(Method::GET, path, Value::Null).await;
            let condition = &object["status"]["conditions"][0];
            let text = |key: &str| condition[key].as_str().unwrap_or_default().to_owned();
            if format!("{} {}", text("status"), text("reason")) == wanted {
                return text("message");
            }
            tokio::task::yield_now().await;
        }
        panic!("the APIService does not get {wanted}");
    }

    async fn add(&self, path: &str, object: Value) {
        let (code, answer, _) = self.ask(Method::POST, path, object).await;
        assert_eq!(code, 201, "{answer}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_are_proxied_while_the_remote_is_available() {
    use base64::Engine as _;
    let world = world().await;
    let bundle = base64::engine::general_purpose::STANDARD.encode(world.hook.ca.cert_pem());
    world.add("/api/v1/namespaces", json!({"metadata": {"name": "n"}})).await;
    let object = json!({"metadata": {"name": "v1.x.io"}, "spec": {"group": "x.io", "version": "v1", "groupPriorityMinimum": 10, "versionPriority": 10,
        "caBundle": bundle, "service": {"namespace": "n", "name": "s", "port": 443}}});
    world.add("/apis/apiregistration.k8s.io/v1/apiservices", object).await;
    assert_eq!(world.until("False ServiceNotFound").await, "service/s in \"n\" is not present");
    let (code, text, _) = world.ask(Method::GET, "/apis/x.io/v1/flunders", Value::Null).await;
    assert_eq!((code, text), (503, json!("service unavailable\n")));
    let service =
        json!({"metadata": {"name": "s"}, "spec": {"ports": [{"name": "https", "port": 443}]}});
    world.add("/api/v1/namespaces/n/services", service).await;
    assert_eq!(
        world.until("False EndpointsNotFound").await,
        "cannot find endpointslices for service/s in \"n\""
    );
    let slice = json!({"metadata": {"name": "s", "labels": {"kubernetes.io/service-name": "s"}}, "addressType": "IPv4",
        "ports": [{"name": "https", "port": 8443}], "endpoints": [{"addresses": ["10.0.0.1"]}]});
    world.add("/apis/discovery.k8s.io/v1/namespaces/n/endpointslices", slice).await;
    assert_eq!(world.until("True Passed").await, "all checks passed");

    let (code, answer, headers) =
        world.ask(Method::POST, "/apis/x.io/v1/flunders?a=b%20c", json!({"x": 1})).await;
    assert_eq!(
        (code, answer),
        (201, json!({"target": "/apis/x.io/v1/flunders?a=b%20c", "sent": {"x": 1}}))
    );
    assert_eq!(headers["x-saw"], "jane [system:masters,system:authenticated] -");
    let (code, text, _) = world.ask(Method::GET, "/apis/x.io/v1/away", Value::Null).await;
    assert_eq!(
        (code, text),
        (502, json!("the backend attempted to redirect this request, which is not permitted"))
    );

    let (_, list, _) = world.ask(Method::GET, "/apis", Value::Null).await;
    let groups = list["groups"].as_array().unwrap();
    assert_eq!(
        groups.last().unwrap(),
        &json!({"name": "x.io", "versions": [{"groupVersion": "x.io/v1", "version": "v1"}], "preferredVersion": {"groupVersion": "x.io/v1", "version": "v1"}})
    );
    let (_, group, _) = world.ask(Method::GET, "/apis/x.io", Value::Null).await;
    assert_eq!((&group["kind"], &group["name"]), (&json!("APIGroup"), &json!("x.io")));

    world.ask(Method::DELETE, "/api/v1/namespaces/n/services/s", Value::Null).await;
    world.until("False ServiceNotFound").await;
    world.tasks.shutdown().request();
    world.tasks.drain(std::time::Duration::from_secs(5)).await;
}

#[test]
fn resource_lists_become_aggregated_discovery() {
    let object = json!({"metadata": {"name": "v1.x.io"}, "spec": {"group": "x.io", "version": "v1", "service": {"namespace": "n", "name": "s"}}});
    let dir = tempfile::tempdir().unwrap();
    let ca = Ca::load_or_create(&dir.path().join("c"), &dir.path().join("k"), "proxy").unwrap();
    let leaf = ca.issue(&Profile::client("system:auth-proxy", None)).unwrap();
    let callout = Callout {
        reach: Arc::new(To("127.0.0.1:1".parse().unwrap())),
        tasks: Tasks::new(Shutdown::new()),
    };
    let settings = Settings { callout, certificate: LiveCert::new(&leaf).unwrap() };
    let remote = super::Remote::of(&object, &settings).unwrap();
    let list = json!({"kind": "APIResourceList", "resources": [
        {"name": "fs", "singularName": "f", "namespaced": true, "kind": "F", "verbs": ["get"], "shortNames": ["x"]},
        {"name": "fs/scale", "namespaced": true, "kind": "Scale", "group": "autoscaling", "version": "v1", "verbs": ["get"]},
    ]});
    remote.resources.store(Some(Arc::new(list)));
    let table = super::Table::from([(("x.io".to_owned(), "v1".to_owned()), Arc::new(remote))]);
    let (_, discovered) = super::merge(&table).remove(0);
    assert_eq!(
        discovered,
        json!({"metadata": {"name": "x.io"}, "versions": [{"version": "v1", "freshness": "Stale", "resources": [
            {"resource": "fs", "responseKind": {"group": "x.io", "version": "v1", "kind": "F"}, "scope": "Namespaced", "singularResource": "f", "verbs": ["get"], "shortNames": ["x"],
             "subresources": [{"subresource": "scale", "responseKind": {"group": "autoscaling", "version": "v1", "kind": "Scale"}, "verbs": ["get"]}]}]}]})
    );
}
