//! Tests of the whole server over an in-memory store.

use super::*;
use crate::authz::{Attributes, Authorizer, Decision};
use crate::listen::in_process::{Select, WatchStart};
use crate::registry::ResourceSpec;
use crate::registry::strategy::Plain;
use crate::request::body::{self, Body};
use crate::request::user::User;
use api::schema::Schema;
use api::{Gvk, Gvr, WatchEvent};
use futures::StreamExt;
use http::Request;
use serde_json::{Value, json};

mod compared;
mod flow;
mod odd;
mod quota;
mod stored;
mod watches;

struct AllowAll;

#[async_trait::async_trait]
impl Authorizer for AllowAll {
    async fn authorize(&self, _: &User, _: &Attributes<'_>) -> Decision {
        Decision::Allow(String::new())
    }
}

/// The status code of the response to a request of this user.
pub(crate) async fn with_user(server: &ApiServer, user: User, request: Request<Body>) -> u16 {
    let response = server.call(Some(user), request).await;
    let code = response.status().as_u16();
    body::collect(response.into_body()).await.unwrap();
    code
}

pub(crate) fn server() -> ApiServer {
    server_with(Config::default())
}

fn server_with(config: Config) -> ApiServer {
    let tasks = Tasks::default();
    server_over(config, store::open_memory_with(&tasks), tasks, |_| Vec::new())
}

/// A server over a store with admission plugins.
fn server_over(
    config: Config,
    store: Arc<dyn store::Backend>,
    tasks: Tasks,
    admission: impl Fn(&Arc<Objects>) -> Vec<Arc<dyn crate::admission::Plugin>>,
) -> ApiServer {
    let objects = Objects::new(store, None, Schema::builtin(), &tasks);
    let admission = admission(&objects);
    let authenticator = Arc::new(crate::authn::Union::new(Vec::new(), true));
    let parts = Parts {
        objects,
        authenticator,
        authorizer: Arc::new(AllowAll),
        admission,
        token_issuer: None,
        reviews: None,
        connect: None,
        impersonation: None,
    };
    build(config, parts, tasks).unwrap()
}

/// Code and body of the response to a request; `kind` is the media type of the request body.
pub(crate) async fn ask(
    server: &ApiServer,
    method: &str,
    url: &str,
    kind: &str,
    body: &str,
) -> (u16, Value) {
    let mut request = Request::builder().method(method).uri(url);
    if !kind.is_empty() {
        request = request.header("content-type", kind);
    }
    let response = server.call(None, request.body(body::full(body.to_owned())).unwrap()).await;
    let code = response.status().as_u16();
    let bytes = body::collect(response.into_body()).await.unwrap();
    let text = String::from_utf8_lossy(&bytes).into_owned();
    (code, serde_json::from_str(&text).unwrap_or(Value::String(text)))
}

/// Code and body of the response to a POST of JSON.
pub(crate) async fn post(server: &ApiServer, url: &str, body: Value) -> (u16, Value) {
    ask(server, "POST", url, "application/json", &body.to_string()).await
}

/// Code and message of the response to a request, as `409 the message`.
pub(crate) async fn answer(
    server: &ApiServer,
    method: &str,
    url: &str,
    kind: &str,
    body: &str,
) -> String {
    let (code, answer) = ask(server, method, url, kind, body).await;
    format!("{code} {}", answer["message"].as_str().unwrap_or_default())
}

#[tokio::test]
async fn a_kind_registered_at_run_time_is_served_like_any_other() {
    let server = server();
    let gvr = Gvr::new("x.io", "v1", "things");
    assert_eq!(ask(&server, "GET", "/apis/x.io/v1/namespaces/n/things", "", "").await.0, 404);
    let mut schema = Schema::clone(&server.objects().registry().schema);
    let metadata = schema.by_name("io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta").unwrap();
    let field = |name: &str, shape| api::schema::Field::new(name, shape);
    let spec = schema.add_type(api::schema::Type::new(
        "io.x.v1.ThingSpec".into(),
        vec![field("size", api::schema::Shape::Int64)],
    ));
    let fields = vec![
        field("apiVersion", api::schema::Shape::String),
        field("kind", api::schema::Shape::String),
        field("metadata", api::schema::Shape::Struct(metadata)),
        field("spec", api::schema::Shape::Struct(spec)),
    ];
    let ty = schema.add_type(api::schema::Type::new("io.x.v1.Thing".into(), fields));
    schema.add_kind(Gvk::new("x.io", "v1", "Thing"), ty);
    let schema = Arc::new(schema);
    server.objects().update_registry(|registry| {
        registry.schema = Arc::clone(&schema);
        registry.add(ResourceSpec::custom(gvr.clone(), "Thing", true, Arc::new(Plain)));
    });

    let things = "/apis/x.io/v1/namespaces/n/things";
    let (code, made) =
        post(&server, things, json!({"metadata": {"name": "a"}, "spec": {"size": 1}})).await;
    assert_eq!((code, made["kind"].as_str()), (201, Some("Thing")), "{made}");
    let user = User::anonymous();
    let stream =
        server.watch_objects(&user, &gvr, &Select::default(), WatchStart::List).await.unwrap();
    let mut stream = std::pin::pin!(stream);
    assert!(matches!(stream.next().await, Some(WatchEvent::Added(o)) if &*o.key.name == "a"));
    assert!(matches!(stream.next().await, Some(WatchEvent::Bookmark { initial: true, .. })));

    let body = r#"{"apiVersion": "x.io/v1", "kind": "Thing", "metadata": {"name": "a"}, "spec": {"size": 5}}"#;
    let url = format!("{things}/a?fieldManager=me&force=true");
    let (code, applied) = ask(&server, "PATCH", &url, "application/apply-patch+yaml", body).await;
    assert_eq!((code, applied["spec"]["size"].as_i64()), (200, Some(5)), "{applied}");
    assert!(
        matches!(stream.next().await, Some(WatchEvent::Modified(o)) if o.value().unwrap()["spec"]["size"] == 5)
    );

    let (_, discovered) = ask(&server, "GET", "/apis/x.io/v1", "", "").await;
    assert_eq!(discovered["resources"][0]["name"], "things");
    let (code, document) = ask(&server, "GET", "/openapi/v3/apis/x.io/v1", "", "").await;
    assert_eq!(code, 200);
    assert!(
        document["paths"].get("/apis/x.io/v1/namespaces/{namespace}/things").is_some(),
        "{document}"
    );
}

#[tokio::test]
async fn pages_hold_their_revision_and_expire_with_a_fresh_token() {
    let server = server();
    let url = "/api/v1/namespaces/n/configmaps";
    for name in ["a", "b", "c"] {
        assert_eq!(post(&server, url, json!({"metadata": {"name": name}})).await.0, 201);
    }
    let (_, first) = ask(&server, "GET", &format!("{url}?limit=1"), "", "").await;
    assert_eq!(first["metadata"]["remainingItemCount"], 2);
    let token = first["metadata"]["continue"].as_str().unwrap().to_owned();
    ask(&server, "DELETE", &format!("{url}/b"), "", "").await;
    let (_, second) = ask(&server, "GET", &format!("{url}?limit=1&continue={token}"), "", "").await;
    assert_eq!(second["items"][0]["metadata"]["name"], "b", "{second}");
    assert_eq!(second["metadata"]["resourceVersion"], first["metadata"]["resourceVersion"]);
    let storage = server.objects().storage();
    storage.compact(storage.backend().revision().0).await.unwrap();
    let (code, expired) =
        ask(&server, "GET", &format!("{url}?limit=1&continue={token}"), "", "").await;
    assert_eq!((code, expired["reason"].as_str()), (410, Some("Expired")));
    let fresh = expired["metadata"]["continue"].as_str().unwrap();
    let (_, rest) = ask(&server, "GET", &format!("{url}?continue={fresh}"), "", "").await;
    let names: Vec<_> =
        rest["items"].as_array().unwrap().iter().map(|i| i["metadata"]["name"].clone()).collect();
    assert_eq!(names, ["c"]);
}

#[tokio::test]
async fn typed_clients_name_their_group_in_delete_options() {
    let server = server();
    let leases = "/apis/coordination.k8s.io/v1/namespaces/n/leases";
    let (code, made) = post(&server, leases, json!({"metadata": {"name": "a"}})).await;
    assert_eq!(code, 201, "{made}");
    let options = |uid: &Value| {
        let version = "coordination.k8s.io/v1";
        json!({"kind": "DeleteOptions", "apiVersion": version, "preconditions": {"uid": uid}})
            .to_string()
    };
    let url = format!("{leases}/a");
    let other = options(&json!("another"));
    assert_eq!(ask(&server, "DELETE", &url, "application/json", &other).await.0, 409);
    let own = options(&made["metadata"]["uid"]);
    assert_eq!(ask(&server, "DELETE", &url, "application/json", &own).await.0, 200);
}

#[tokio::test]
async fn no_two_services_get_the_same_address_or_port() {
    let server = server();
    let url = "/api/v1/namespaces/n/services";
    let made = futures::future::join_all((0..40).map(|n| {
        let body = json!({"metadata": {"name": format!("s{n}")}, "spec": {"type": "NodePort", "ports": [{"port": 80}]}});
        let server = server.clone();
        async move { post(&server, url, body).await }
    }))
    .await;
    let mut addresses = std::collections::HashSet::new();
    let mut ports = std::collections::HashSet::new();
    for (code, service) in made {
        assert_eq!(code, 201, "{service}");
        assert!(addresses.insert(service["spec"]["clusterIP"].to_string()), "{service}");
        assert!(ports.insert(service["spec"]["ports"][0]["nodePort"].to_string()), "{service}");
    }
    let (_, list) = ask(&server, "GET", "/apis/networking.k8s.io/v1/ipaddresses", "", "").await;
    assert_eq!(list["items"].as_array().unwrap().len(), 40);
    ask(&server, "DELETE", &format!("{url}/s0"), "", "").await;
    let (_, list) = ask(&server, "GET", "/apis/networking.k8s.io/v1/ipaddresses", "", "").await;
    assert_eq!(list["items"].as_array().unwrap().len(), 39);
}

#[tokio::test]
async fn a_requested_port_is_not_allocated_to_other_ports_of_the_service() {
    let server = server_with(Config { node_ports: (30000, 30001), ..Config::default() });
    let body = json!({"metadata": {"name": "s"}, "spec": {"type": "LoadBalancer", "externalTrafficPolicy": "Local",
        "healthCheckNodePort": 30001, "ports": [{"port": 80}]}});
    let url = "/api/v1/namespaces/n/services";
    // A dry run does not reserve ports against concurrent writes.
    let dry = format!("{url}?dryRun=All");
    let made = futures::future::join_all((0..8).map(|_| post(&server, &dry, body.clone()))).await;
    for (code, service) in made.into_iter().chain([post(&server, url, body).await]) {
        assert_eq!(code, 201, "{service}");
        assert_eq!(service["spec"]["ports"][0]["nodePort"], 30000);
    }
}

#[tokio::test]
async fn every_listed_resource_answers_list_and_watch() {
    let server = server();
    let registry = server.objects().registry();
    for row in registry.rows().filter(|row| row.has_verb("watch")) {
        let gvr = &row.spec.gvr;
        let base =
            if gvr.group.is_empty() { "/api".to_owned() } else { format!("/apis/{}", gvr.group) };
        let url = format!("{base}/{}/{}", gvr.version, gvr.resource);
        let (code, list) = ask(&server, "GET", &url, "", "").await;
        assert_eq!(code, 200, "{url}: {list}");
        assert_eq!(list["kind"], format!("{}List", row.spec.gvk.kind));
        let request =
            Request::get(format!("{url}?watch=1&timeoutSeconds=1")).body(body::empty()).unwrap();
        assert_eq!(server.call(None, request).await.status(), 200, "{url}");
    }
}

#[tokio::test]
async fn events_of_both_groups_are_one_object() {
    let server = server();
    let event = json!({"metadata": {"name": "e"}, "regarding": {"kind": "Pod", "namespace": "n", "name": "p"}, "note": "hello",
        "reason": "R", "action": "A", "type": "Normal", "eventTime": "2026-01-01T00:00:00.000000Z",
        "reportingController": "c", "reportingInstance": "i"});
    let (code, made) = post(&server, "/apis/events.k8s.io/v1/namespaces/n/events", event).await;
    assert_eq!((code, made["note"].as_str()), (201, Some("hello")), "{made}");
    let (_, core) = ask(&server, "GET", "/api/v1/namespaces/n/events/e", "", "").await;
    assert_eq!(
        (core["message"].as_str(), core["involvedObject"]["name"].as_str()),
        (Some("hello"), Some("p"))
    );
    let group = "/apis/events.k8s.io/v1";
    let both = [
        (group, "reportingController"),
        ("/api/v1", "reportingComponent"),
        (group, "regarding.name"),
    ];
    for (root, own) in both {
        let known = if own == "regarding.name" { "p" } else { "c" };
        for (value, found) in [(known, 1), ("x", 0)] {
            let url = format!("{root}/namespaces/n/events?fieldSelector={own}%3D{value}");
            let (_, list) = ask(&server, "GET", &url, "", "").await;
            assert_eq!(list["items"].as_array().map(Vec::len), Some(found), "{url}: {list}");
        }
    }
    let other = "/apis/events.k8s.io/v1/events?fieldSelector=involvedObject.name%3Dp";
    let (code, refused) = ask(&server, "GET", other, "", "").await;
    let text = "field label not supported: involvedObject.name";
    assert_eq!((code, refused["message"].as_str()), (400, Some(text)));
}

#[tokio::test(start_paused = true)]
async fn events_expire_after_an_hour_and_config_maps_do_not() {
    let server = server();
    let event = json!({"metadata": {"name": "e"}, "involvedObject": {"namespace": "n"}});
    assert_eq!(post(&server, "/api/v1/namespaces/n/events", event).await.0, 201);
    let map = json!({"metadata": {"name": "c"}});
    assert_eq!(post(&server, "/api/v1/namespaces/n/configmaps", map).await.0, 201);
    tokio::time::sleep(std::time::Duration::from_secs(3590)).await;
    assert_eq!(ask(&server, "GET", "/api/v1/namespaces/n/events/e", "", "").await.0, 200);
    tokio::time::sleep(std::time::Duration::from_secs(100)).await;
    assert_eq!(ask(&server, "GET", "/api/v1/namespaces/n/events/e", "", "").await.0, 404);
    assert_eq!(ask(&server, "GET", "/api/v1/namespaces/n/configmaps/c", "", "").await.0, 200);
}

#[tokio::test]
async fn objects_without_effect_cause_warnings_and_are_listed() {
    let server = server();
    let backend = json!({"service": {"name": "s", "port": {"number": 80}}});
    let ingress = |name: &str, class: Value| {
        let spec = json!({"defaultBackend": backend, "ingressClassName": class});
        json!({"metadata": {"name": name}, "spec": spec})
    };
    let url = "/apis/networking.k8s.io/v1/namespaces/n/ingresses";
    let create = async |query: &str, object: Value| {
        let request = Request::post(format!("{url}{query}"))
            .header("content-type", "application/json")
            .body(body::full(object.to_string()))
            .unwrap();
        let response = server.call(None, request).await;
        assert_eq!(response.status(), 201);
        response.headers().get_all("warning").iter().count()
    };
    assert_eq!(create("?dryRun=All", ingress("p", Value::Null)).await, 0);
    assert_eq!(server.unused().await, []);
    assert_eq!(create("", ingress("p", Value::Null)).await, 1);
    let unused = async || {
        let unused = server.unused().await;
        unused.into_iter().map(|unused| (unused.what, unused.count)).collect::<Vec<_>>()
    };
    let ingresses = |count| vec![("ingresses.networking.k8s.io".to_owned(), count)];
    assert_eq!(unused().await, ingresses(1));
    assert_eq!(create("", ingress("named", "mine".into())).await, 1);
    assert_eq!(unused().await, ingresses(2));
    // The class of a controller that the user runs.
    let class = json!({"metadata": {"name": "mine"}, "spec": {"controller": "example.com/c"}});
    let classes = "/apis/networking.k8s.io/v1/ingressclasses";
    assert_eq!(post(&server, classes, class).await.0, 201);
    assert_eq!(create("", ingress("after", "mine".into())).await, 0);
    assert_eq!(create("", ingress("other", "none".into())).await, 1);
    assert_eq!(unused().await, ingresses(2));
}
