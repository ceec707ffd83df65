//! Tests of definitions and their objects through a whole server with an in-memory store.

use std::sync::Arc;
use std::time::Duration;

use api::schema::Schema;
use api::{Gvr, WatchEvent};
use base::Tasks;
use futures::StreamExt;
use http::Request;
use serde_json::{Value, json};

use crate::authz::{Attributes, Authorizer, Decision};
use crate::listen::in_process::{Select, WatchStart};
use crate::request::body;
use crate::{ApiServer, Config, Objects, Parts, User};

struct AllowAll;

#[async_trait::async_trait]
impl Authorizer for AllowAll {
    async fn authorize(&self, _: &User, _: &Attributes<'_>) -> Decision {
        Decision::Allow(String::new())
    }
}

fn server() -> ApiServer {
    let tasks = Tasks::default();
    let objects = Objects::new(store::open_memory_with(&tasks), None, Schema::builtin(), &tasks);
    let parts = Parts {
        objects,
        authenticator: Arc::new(crate::authn::Union::new(Vec::new(), true)),
        authorizer: Arc::new(AllowAll),
        admission: Vec::new(),
        token_issuer: None,
        reviews: None,
        connect: None,
        impersonation: None,
    };
    crate::build(Config::default(), parts, tasks).unwrap()
}

async fn send(
    server: &ApiServer,
    method: &str,
    url: &str,
    kind: &str,
    body: &Value,
) -> (u16, Value) {
    let mut request = Request::builder().method(method).uri(url);
    if !kind.is_empty() {
        request = request.header("content-type", kind);
    }
    let text = if body.is_null() { String::new() } else { body.to_string() };
    let response = server.call(None, request.body(body::full(text)).unwrap()).await;
    let code = response.status().as_u16();
    let bytes = body::collect(response.into_body()).await.unwrap();
    let text = String::from_utf8_lossy(&bytes).into_owned();
    (code, serde_json::from_str(&text).unwrap_or(Value::String(text)))
}

async fn get(server: &ApiServer, url: &str) -> (u16, Value) {
    send(server, "GET", url, "", &Value::Null).await
}

async fn post(server: &ApiServer, url: &str, body: &Value) -> (u16, Value) {
    send(server, "POST", url, "application/json", body).await
}

const CRDS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const FOOS: &str = "/apis/example.com/v1/namespaces/n/foos";

fn definition() -> Value {
    let schema = json!({"type": "object", "properties": {
        "spec": {"type": "object", "properties": {
            "replicas": {"type": "integer", "default": 1},
            "size": {"type": "string", "enum": ["s", "l"]}}},
        "status": {"type": "object", "properties": {"replicas": {"type": "integer"}}}}});
    let scale = json!({"specReplicasPath": ".spec.replicas",
        "statusReplicasPath": ".status.replicas"});
    let version = json!({"name": "v1", "served": true, "storage": true,
        "schema": {"openAPIV3Schema": schema}, "subresources": {"status": {}, "scale": scale}});
    json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "foos.example.com"},
        "spec": {"group": "example.com", "scope": "Namespaced",
            "names": {"plural": "foos", "kind": "Foo"}, "versions": [version]}})
}

/// Watches definitions until `is_reached` returns true; it gets `None` for a deleted definition.
async fn wait_until(server: &ApiServer, is_reached: impl Fn(Option<&Value>) -> bool) {
    let gvr = Gvr::new("apiextensions.k8s.io", "v1", "customresourcedefinitions");
    let user = User::anonymous();
    let select = Select::default();
    let stream = server.watch_objects(&user, &gvr, &select, WatchStart::List).await.unwrap();
    let mut stream = std::pin::pin!(stream);
    let waiting = async {
        let mut was_added = false;
        while let Some(event) = stream.next().await {
            was_added |= matches!(event, WatchEvent::Added(_));
            let definition = match event {
                WatchEvent::Added(o) | WatchEvent::Modified(o) => Some(o.value().unwrap()),
                WatchEvent::Deleted(_) => None,
                // It was deleted before the watch started.
                WatchEvent::Bookmark { initial: true, .. } if !was_added => None,
                _ => continue,
            };
            if is_reached(definition.as_ref()) {
                return;
            }
        }
        panic!("the watch of definitions ended");
    };
    tokio::time::timeout(Duration::from_secs(20), waiting).await.expect("not in time");
}

fn has_condition(crd: &Value, name: &str) -> bool {
    let list = crd["status"]["conditions"].as_array().cloned().unwrap_or_default();
    list.iter().any(|c| c["type"] == name && c["status"] == "True")
}

async fn established() -> ApiServer {
    let server = server();
    let (code, made) = post(&server, CRDS, &definition()).await;
    assert_eq!(code, 201, "{made}");
    wait_until(&server, |crd| crd.is_some_and(|crd| has_condition(crd, "Established"))).await;
    server
}

#[tokio::test]
async fn a_definition_is_served_with_its_schema() {
    let server = established().await;
    let foo = json!({"apiVersion": "example.com/v1", "kind": "Foo", "metadata": {"name": "a"},
        "spec": {"size": "s", "extra": 1}, "status": {"replicas": 4}});
    let (code, made) = post(&server, FOOS, &foo).await;
    assert_eq!(code, 201, "{made}");
    assert_eq!(made["spec"], json!({"replicas": 1, "size": "s"}));
    assert_eq!((made.get("status"), &made["metadata"]["generation"]), (None, &json!(1)));
    let strict = format!("{FOOS}?fieldValidation=Strict");
    let (code, refused) = post(&server, &strict, &foo).await;
    assert_eq!(
        (code, refused["message"].as_str()),
        (
            400,
            Some(
                "Foo in version \"v1\" cannot be handled as a Foo: strict decoding error: unknown field \"spec.extra\""
            )
        )
    );
    let bad = json!({"apiVersion": "example.com/v1", "kind": "Foo", "metadata": {"name": "b"},
        "spec": {"size": "m"}});
    let (code, refused) = post(&server, FOOS, &bad).await;
    assert_eq!(
        (code, refused["message"].as_str()),
        (
            422,
            Some(
                "Foo.example.com \"b\" is invalid: spec.size: Unsupported value: \"m\": supported values: \"s\", \"l\""
            )
        )
    );
    let (_, listed) = get(&server, "/apis/example.com/v1/foos").await;
    assert_eq!((&listed["kind"], &listed["items"][0]["kind"]), (&json!("FooList"), &json!("Foo")));
    let (code, _) = get(&server, "/apis/example.com/v2/foos").await;
    assert_eq!(code, 404);
}

#[tokio::test]
async fn writes_of_status_and_scale_change_only_their_fields() {
    let server = established().await;
    let foo = json!({"apiVersion": "example.com/v1", "kind": "Foo", "metadata": {"name": "a"},
        "spec": {}});
    assert_eq!(post(&server, FOOS, &foo).await.0, 201);
    let merge = "application/merge-patch+json";
    let patch = json!({"spec": {"replicas": 9}, "status": {"replicas": 2}});
    let url = format!("{FOOS}/a/status");
    let (code, patched) = send(&server, "PATCH", &url, merge, &patch).await;
    assert_eq!(
        (code, &patched["spec"], &patched["status"]),
        (200, &json!({"replicas": 1}), &json!({"replicas": 2}))
    );
    assert_eq!(patched["metadata"]["generation"], 1);
    let url = format!("{FOOS}/a/scale");
    let (_, scale) = get(&server, &url).await;
    assert_eq!(
        (&scale["spec"], &scale["status"]),
        (&json!({"replicas": 1}), &json!({"replicas": 2}))
    );
    let (code, scale) =
        send(&server, "PATCH", &url, merge, &json!({"spec": {"replicas": 7}})).await;
    assert_eq!((code, &scale["spec"]), (200, &json!({"replicas": 7})), "{scale}");
    let (_, now) = get(&server, &format!("{FOOS}/a")).await;
    assert_eq!(
        (&now["spec"], &now["metadata"]["generation"]),
        (&json!({"replicas": 7}), &json!(2))
    );
    let kind = "application/strategic-merge-patch+json";
    let (code, refused) = send(&server, "PATCH", &format!("{FOOS}/a"), kind, &json!({})).await;
    assert_eq!((code, refused["reason"].as_str()), (415, Some("UnsupportedMediaType")));
}

#[tokio::test]
async fn a_new_version_serves_objects_that_are_stored_in_the_old_one() {
    let server = established().await;
    let foo = json!({"apiVersion": "example.com/v1", "kind": "Foo", "metadata": {"name": "a"},
        "spec": {}});
    assert_eq!(post(&server, FOOS, &foo).await.0, 201);
    let (_, mut crd) = get(&server, &format!("{CRDS}/foos.example.com")).await;
    let mut second = crd["spec"]["versions"][0].clone();
    second["name"] = "v2".into();
    second["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["later"] =
        json!({"type": "boolean", "default": true});
    crd["spec"]["versions"][0]["storage"] = false.into();
    if let Some(list) = crd["spec"]["versions"].as_array_mut() {
        list.push(second);
    }
    let url = format!("{CRDS}/foos.example.com");
    let (code, changed) = send(&server, "PUT", &url, "application/json", &crd).await;
    assert_eq!(
        (code, &changed["status"]["storedVersions"]),
        (200, &json!(["v1", "v2"])),
        "{changed}"
    );
    // The follower handles changes in order: once it has established a later definition, it has
    // handled the change above.
    let version = json!({"name": "v1", "served": true, "storage": true,
        "schema": {"openAPIV3Schema": {"type": "object"}}});
    let other = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "bars.example.com"},
        "spec": {"group": "example.com", "scope": "Cluster",
            "names": {"plural": "bars", "kind": "Bar"}, "versions": [version]}});
    assert_eq!(post(&server, CRDS, &other).await.0, 201);
    wait_until(&server, |crd| {
        crd.is_some_and(|crd| {
            crd["metadata"]["name"] == "bars.example.com" && has_condition(crd, "Established")
        })
    })
    .await;
    let (code, shown) = get(&server, "/apis/example.com/v2/namespaces/n/foos/a").await;
    assert_eq!((code, &shown["apiVersion"]), (200, &json!("example.com/v2")), "{shown}");
    // An unchanged write converts the object to the storage version.
    let url = "/apis/example.com/v2/namespaces/n/foos/a";
    let (code, written) = send(&server, "PUT", url, "application/json", &shown).await;
    assert_eq!(code, 200);
    assert_ne!(written["metadata"]["resourceVersion"], shown["metadata"]["resourceVersion"]);
    let (_, listed) = get(&server, "/apis/example.com/v1/foos").await;
    assert_eq!(listed["items"][0]["apiVersion"], "example.com/v1");
    let (_, group) = get(&server, "/apis/example.com").await;
    assert_eq!(group["preferredVersion"]["version"], "v2");
}

#[tokio::test]
async fn deleting_a_definition_deletes_its_objects() {
    let server = established().await;
    let foo = json!({"apiVersion": "example.com/v1", "kind": "Foo",
        "metadata": {"name": "a", "finalizers": ["example.com/x"]}});
    assert_eq!(post(&server, FOOS, &foo).await.0, 201);
    let url = format!("{CRDS}/foos.example.com");
    let (code, marked) = send(&server, "DELETE", &url, "", &Value::Null).await;
    assert_eq!(
        (code, &marked["metadata"]["finalizers"]),
        (200, &json!(["customresourcecleanup.apiextensions.k8s.io"])),
        "{marked}"
    );
    wait_until(&server, |crd| {
        crd.is_some_and(|crd| {
            let list = crd["status"]["conditions"].as_array().cloned().unwrap_or_default();
            list.iter()
                .any(|c| c["type"] == "Terminating" && c["reason"] == "InstanceDeletionInProgress")
        })
    })
    .await;
    let late = json!({"apiVersion": "example.com/v1", "kind": "Foo", "metadata": {"name": "b"}});
    let (code, refused) = post(&server, FOOS, &late).await;
    assert_eq!((code, refused["reason"].as_str()), (403, Some("Forbidden")), "{refused}");
    let patch = json!([{"op": "remove", "path": "/metadata/finalizers"}]);
    let json = "application/json-patch+json";
    let (code, freed) = send(&server, "PATCH", &format!("{FOOS}/a"), json, &patch).await;
    assert_eq!(code, 200, "{freed}");
    wait_until(&server, |crd| crd.is_none()).await;
    assert_eq!(get(&server, &url).await.0, 404);
}
