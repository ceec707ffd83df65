//! Answers of kube-apiserver 1.37.1 to rare requests.

use super::*;
use crate::admission::{Plugin, Request as AdmissionRequest};
use api::field::go_quote;

/// An admission plugin that adds a finalizer, and sets invalid managed fields on objects with a
/// certain name.
struct AddFinalizer;

#[async_trait::async_trait]
impl Plugin for AddFinalizer {
    fn name(&self) -> &'static str {
        "AddFinalizer"
    }

    async fn mutate(
        &self,
        _: &AdmissionRequest<'_>,
        object: &mut Option<Value>,
    ) -> Result<(), Status> {
        if let Some(object) = object {
            object["metadata"]["finalizers"] = json!(["a.b/c"]);
            if object["metadata"]["name"] == "invalid-owners" {
                object["metadata"]["managedFields"] = json!([{"manager": "x"}]);
            }
        }
        Ok(())
    }
}

fn server_with_plugin() -> ApiServer {
    let tasks = Tasks::default();
    let objects = Objects::new(store::open_memory_with(&tasks), None, Schema::builtin(), &tasks);
    let parts = Parts {
        objects,
        authenticator: Arc::new(crate::authn::Union::new(Vec::new(), true)),
        authorizer: Arc::new(AllowAll),
        admission: vec![Arc::new(AddFinalizer)],
        token_issuer: None,
        reviews: None,
        connect: None,
        impersonation: None,
    };
    build(Config::default(), parts, tasks).unwrap()
}

#[tokio::test]
async fn fields_of_admission_and_of_the_server_have_no_manager() {
    let server = server_with_plugin();
    let url = "/api/v1/namespaces/n/configmaps";
    let object = json!({"metadata": {"name": "a", "deletionGracePeriodSeconds": 10, "selfLink": "/x", "labels": {"l": "v"}}});
    let (code, made) = post(&server, url, object).await;
    assert_eq!((code, &made["metadata"]["finalizers"]), (201, &json!(["a.b/c"])));
    let owned = |object: &Value| object["metadata"]["managedFields"][0]["fieldsV1"].clone();
    assert_eq!(owned(&made), json!({"f:metadata": {"f:labels": {".": {}, "f:l": {}}}}));
    let body = r#"{"metadata": {"labels": {"l": "w"}}}"#;
    let (_, patched) = ask(
        &server,
        "PATCH",
        &format!("{url}/a?fieldManager=p"),
        "application/merge-patch+json",
        body,
    )
    .await;
    assert_eq!(owned(&patched), json!({"f:metadata": {"f:labels": {"f:l": {}}}}));

    let set = json!({"metadata": {"name": "d"}, "spec": {"selector": {"matchLabels": {"a": "b"}},
        "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}}});
    let (code, made) = post(&server, "/apis/apps/v1/namespaces/n/daemonsets", set).await;
    assert_eq!(code, 201, "{made}");
    let annotation = json!({"deprecated.daemonset.template.generation": "1"});
    assert_eq!(made["metadata"]["annotations"], annotation);
    assert_eq!(
        owned(&made)["f:metadata"],
        json!({"f:annotations": {".": {}, "f:deprecated.daemonset.template.generation": {}}})
    );

    let event = json!({"metadata": {"name": "e"}, "involvedObject": {"kind": "Pod", "name": "p", "namespace": "n"}, "reason": "R", "message": "m"});
    let (code, made) = post(&server, "/api/v1/namespaces/n/events", event).await;
    assert_eq!(code, 201, "{made}");
    assert_eq!(owned(&made), json!({"f:involvedObject": {}, "f:message": {}, "f:reason": {}}));

    let revision = json!({"metadata": {"name": "r"}, "revision": 3, "data": {"a": "b"}});
    let (_, made) = post(&server, "/apis/apps/v1/namespaces/n/controllerrevisions", revision).await;
    assert_eq!(owned(&made), json!({"f:data": {}, "f:revision": {}}));
}

#[tokio::test]
async fn invalid_managed_fields_of_admission_are_restored() {
    let server = server_with_plugin();
    let request = Request::builder().method("POST").uri("/api/v1/namespaces/n/configmaps");
    let body = json!({"metadata": {"name": "invalid-owners"}, "data": {"k": "v"}}).to_string();
    let request = request.header("content-type", "application/json").body(body::full(body));
    let answer = server.call(None, request.unwrap()).await;
    let warning = answer.headers()["warning"].to_str().unwrap().to_owned();
    assert_eq!(
        warning,
        "299 - \".metadata.managedFields was in an invalid state after admission; this could be caused by an outdated mutating admission controller; please fix your requests: operation must be `Apply` or `Update`\""
    );
    let bytes = body::collect(answer.into_body()).await.unwrap();
    let made: Value = serde_json::from_slice(&bytes).unwrap();
    assert_eq!(
        made["metadata"]["managedFields"][0]["fieldsV1"],
        json!({"f:data": {".": {}, "f:k": {}}})
    );
}

#[tokio::test]
async fn delete_options_have_a_separate_decoder() {
    let server = server();
    let delete = |body: &'static str| {
        let server = &server;
        async move {
            answer(server, "DELETE", "/api/v1/namespaces/n/configmaps/x", "application/json", body)
                .await
        }
    };
    assert_eq!(
        delete(r#"{"kind": "Pod", "apiVersion": "v1"}"#).await,
        "400 no kind \"Pod\" is registered for version \"v1\" in scheme \"pkg/runtime/scheme.go:111\""
    );
    assert_eq!(
        delete("[]").await,
        "400 couldn't get version/kind; json parse error: json: cannot unmarshal array into Go value of type struct { APIVersion string \"json:\\\"apiVersion,omitempty\\\"\"; Kind string \"json:\\\"kind,omitempty\\\"\" }"
    );
    assert_eq!(
        delete(r#"{"gracePeriodSeconds": 9223372036854775808}"#).await,
        "400 json: cannot unmarshal number 9223372036854775808 into Go struct field DeleteOptions.gracePeriodSeconds of type int64"
    );
}

#[tokio::test]
async fn accept_headers_are_checked_first() {
    let server = server();
    let get = |accept: &'static str, url: &'static str| {
        let server = &server;
        async move {
            let request = Request::builder().uri(url).header("accept", accept);
            let answer = server.call(None, request.body(body::empty()).unwrap()).await;
            let code = answer.status().as_u16();
            let bytes = body::collect(answer.into_body()).await.unwrap();
            let answer: Value = serde_json::from_slice(&bytes).unwrap_or_default();
            format!("{code} {}", answer["message"].as_str().unwrap_or_default())
        }
    };
    let routes = "406 406: Not Acceptable\n\nAvailable representations: application/json, application/yaml, application/vnd.kubernetes.protobuf";
    let absent = "/api/v1/namespaces/n/configmaps/absent?resourceVersion=x";
    assert_eq!(get("application/cbor", absent).await, routes);
    assert_eq!(
        get("nonsense", "/api/v1/namespaces?continue=x").await,
        format!(
            "{routes}, application/json;stream=watch, application/vnd.kubernetes.protobuf;stream=watch"
        )
    );
    assert_eq!(
        get("application/json;as=Nope;v=v1;g=meta.k8s.io", absent).await,
        "406 only the following media types are accepted: application/json, application/yaml, application/vnd.kubernetes.protobuf"
    );
    assert_eq!(
        get("application/json", absent).await,
        format!(
            "500 resourceVersion: Invalid value: {0}: strconv.ParseUint: parsing {0}: invalid syntax",
            go_quote("x")
        )
    );
    let list = "/apis/batch/v1/namespaces/n/cronjobs";
    assert_eq!(
        get("application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io", list).await,
        "406 you requested PartialObjectMetadata, but the requested object is a list (*batch.CronJobList)"
    );
}

#[tokio::test]
async fn put_and_apply_create_as_upstream() {
    let server = server();
    let url = "/api/v1/namespaces/n/configmaps/a?fieldManager=m";
    let apply = "application/apply-patch+yaml";
    let object = |metadata: &str| {
        format!(r#"{{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {metadata}}}"#)
    };
    assert_eq!(
        answer(&server, "PATCH", url, apply, &object("{}")).await,
        "400 the name of the object (a based on URL) was undeterminable: name must be provided"
    );
    assert_eq!(
        answer(&server, "PATCH", url, apply, &object(r#"{"name": "a", "resourceVersion": "::1"}"#))
            .await,
        "500 strconv.ParseUint: parsing \"::1\": invalid syntax"
    );
    assert_eq!(
        answer(
            &server,
            "PATCH",
            url,
            apply,
            &object(r#"{"name": "a", "deletionTimestamp": "a:b"}"#)
        )
        .await,
        "500 failed to convert new object (/a; /v1, Kind=ConfigMap) to proper version: unable to convert unstructured object to /v1, Kind=ConfigMap: parsing time \"a:b\" as \"2006-01-02T15:04:05Z07:00\": cannot parse \"a:b\" as \"2006\""
    );
    assert_eq!(
        answer(
            &server,
            "PATCH",
            "/apis/authorization.k8s.io/v1/subjectaccessreviews/x",
            apply,
            "{}"
        )
        .await,
        "404 the server could not find the requested resource"
    );
    // A dry run does not reach the store, which checks the resource version of a new object.
    let versioned = json!({"metadata": {"name": "v", "resourceVersion": "x"}});
    let maps = "/api/v1/namespaces/n/configmaps";
    assert_eq!(post(&server, &format!("{maps}?dryRun=All"), versioned.clone()).await.0, 201);
    let (_, tried) = post(&server, &format!("{maps}?dryRun=All"), versioned.clone()).await;
    assert_eq!(tried["metadata"]["resourceVersion"], "x");
    // The store ignores a resource version that is not a number (`Create` of `storage/etcd3`).
    assert_eq!(post(&server, maps, versioned).await.0, 201);
    let versioned = json!({"metadata": {"name": "w", "resourceVersion": "7"}});
    let (code, refused) = post(&server, maps, versioned).await;
    assert_eq!(
        (code, refused["message"].as_str()),
        (500, Some("resourceVersion should not be set on objects to be created"))
    );
    // Without its API version the object has no name.
    assert_eq!(post(&server, maps, json!({"metadata": {"name": "a"}, "data": {}})).await.0, 201);
    let patch = |validation: &'static str| {
        let server = &server;
        async move {
            let url = format!("{maps}/a?fieldValidation={validation}");
            let body = r#"{"apiVersion": ""}"#;
            answer(server, "PATCH", &url, "application/merge-patch+json", body).await
        }
    };
    assert_eq!(
        patch("Ignore").await,
        "400 the name of the object (a based on URL) was undeterminable: name must be provided"
    );
    let strict = patch("Strict").await;
    assert!(strict.ends_with("\": strict decoding error: unknown field \"metadata\""), "{strict}");
    assert_eq!(
        ask(&server, "GET", "/version/x", "", "").await.1["message"],
        "the server could not find the requested resource"
    );
    assert_eq!(ask(&server, "HEAD", maps, "", "").await.0, 405);
    assert_eq!(ask(&server, "POST", "/apis/apps", "", "").await.0, 200);
}

/// Upstream's filter `WithCacheControl`; only discovery with a known hash may be cached.
#[tokio::test]
async fn responses_are_not_for_shared_caches() {
    let server = server();
    for url in [
        "/healthz",
        "/metrics",
        "/nowhere",
        "/api/v1/pods?limit=x",
        "/api/v1/pods?watch=1",
        "/version",
    ] {
        let request = Request::builder().uri(url).body(body::empty()).unwrap();
        let response = server.call(None, request).await;
        let kept = response.headers().get("cache-control").map(|value| value.to_str().unwrap());
        assert_eq!(kept, Some("no-cache, private"), "{url}");
    }
}
