//! Answers of kube-apiserver 1.37.1 that `tests/differential` has compared.

use std::time::Duration;

use base::tasks::Kind;

use super::*;

const JSON: &str = "application/json";
const JSON_PATCH: &str = "application/json-patch+json";
const MERGE: &str = "application/merge-patch+json";
const STRATEGIC: &str = "application/strategic-merge-patch+json";
const APPLY: &str = "application/apply-patch+yaml";
const MAPS: &str = "/api/v1/namespaces/n/configmaps";

async fn answer_to(
    server: &ApiServer,
    method: &str,
    url: &str,
    kind: &str,
    body: &Value,
) -> String {
    let (code, answer) = ask(server, method, url, kind, &body.to_string()).await;
    format!("{code} {}", answer["message"].as_str().unwrap_or_default())
}

fn pod() -> Value {
    json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}})
}

#[tokio::test]
async fn patched_objects_are_of_the_kind() {
    let server = server();
    let object = json!({"metadata": {"name": "a"}, "data": {"k": "v"}});
    assert_eq!(post(&server, MAPS, object).await.0, 201);
    let url = format!("{MAPS}/a?fieldValidation=Strict");
    for (kind, patch, end) in [
        (MERGE, json!({"apiVersion": "a/b/c"}), "\": unexpected GroupVersion string: a/b/c"),
        (
            JSON_PATCH,
            json!([{"op": "remove", "path": "/apiVersion"}, {"op": "add", "path": "/kind", "value": "null"}]),
            "\": no kind \"null\" is registered for the internal version of group \"\" in scheme \"pkg/runtime/scheme.go:111\"",
        ),
        (
            JSON_PATCH,
            json!([{"op": "remove", "path": "/apiVersion"}, {"op": "add", "path": "/kind", "value": []}]),
            "\": couldn't get version/kind; json parse error: json: cannot unmarshal array into Go struct field .kind of type string",
        ),
        (
            JSON_PATCH,
            json!([{"op": "replace", "path": "/metadata", "value": true}, {"op": "add", "path": "/kind", "value": "Pod"}]),
            "\": json: cannot unmarshal bool into Go struct field Pod.metadata of type v1.ObjectMeta",
        ),
    ] {
        let text = answer_to(&server, "PATCH", &url, kind, &patch).await;
        assert!(text.starts_with("422 ") && text.ends_with(end), "{text}");
    }
    // Unknown fields have the order of the patch.
    let sets = "/apis/apps/v1/namespaces/n/replicasets";
    let template = json!({"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let set = json!({"metadata": {"name": "r"}, "spec": {"selector": {"matchLabels": {"a": "b"}}, "template": template}});
    assert_eq!(post(&server, sets, set).await.0, 201);
    let patch = r#"[{"op": "add", "path": "/spec", "value": {"zz": 1, "replicas": 1, "aa": 1}}]"#;
    let url = format!("{sets}/r?fieldValidation=Strict");
    let (code, refused) = ask(&server, "PATCH", &url, JSON_PATCH, patch).await;
    let text = refused["message"].as_str().unwrap();
    let end = "\": strict decoding error: unknown field \"spec.zz\", unknown field \"spec.aa\"";
    assert!(code == 422 && text.ends_with(end), "{text}");
    // A version without a name is as if it were absent.
    let object = json!({"apiVersion": "/", "metadata": {"name": "b"}});
    assert_eq!(post(&server, MAPS, object).await.0, 201);
    let object = json!({"apiVersion": "a//b", "metadata": {"name": "c"}});
    let (_, refused) = post(&server, MAPS, object).await;
    let text = refused["message"].as_str().unwrap();
    let start = "the object provided is unrecognized (must be of type ConfigMap): unexpected GroupVersion string: a//b (";
    assert!(text.starts_with(start), "{text}");
}

#[tokio::test]
async fn the_uid_of_a_patch_is_not_a_precondition() {
    let server = server();
    assert_eq!(post(&server, MAPS, json!({"metadata": {"name": "a"}})).await.0, 201);
    let config =
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "uid": "a.b"}});
    let url = format!("{MAPS}/a?fieldManager=m");
    assert_eq!(
        answer_to(&server, "PATCH", &url, APPLY, &config).await,
        "422 ConfigMap \"a\" is invalid: metadata.uid: Invalid value: \"a.b\": field is immutable"
    );
}

#[tokio::test]
async fn evictions_of_both_versions_check_preconditions() {
    let server = server();
    let pods = "/api/v1/namespaces/n/pods";
    assert_eq!(post(&server, pods, pod()).await.0, 201);
    let eviction = |version: &str, options: Value| json!({"apiVersion": version, "kind": "Eviction", "metadata": {"name": "p"}, "deleteOptions": options});
    let url = format!("{pods}/p/eviction");
    let dry_run = format!("{url}?dryRun=All");
    assert_eq!(post(&server, &dry_run, eviction("policy/v1beta1", json!({}))).await.0, 201);
    let old = eviction("policy/v1", json!({"preconditions": {"resourceVersion": "1"}}));
    for url in [&dry_run, &url] {
        let text = answer_to(&server, "POST", url, JSON, &old).await;
        let start = "409 Operation cannot be fulfilled on Pod \"p\": the ResourceVersion in the precondition (1) does not match the ResourceVersion in record (";
        assert!(text.starts_with(start), "{text}");
    }
    let (_, now) = ask(&server, "GET", &format!("{pods}/p"), "", "").await;
    assert_eq!(now["status"]["conditions"], Value::Null);
    let version = now["metadata"]["resourceVersion"].clone();
    let held = eviction("policy/v1", json!({"preconditions": {"resourceVersion": version}}));
    // A finalizer keeps the pod, so that its condition can be read; the condition has no manager.
    let kept = json!({"metadata": {"finalizers": ["a.b/c"]}});
    let (_, kept) = ask(&server, "PATCH", &format!("{pods}/p"), MERGE, &kept.to_string()).await;
    assert_eq!(post(&server, &url, held).await.0, 409);
    let version = &kept["metadata"]["resourceVersion"];
    let held = eviction("policy/v1", json!({"preconditions": {"resourceVersion": version}}));
    assert_eq!(post(&server, &url, held).await.0, 201);
    let (_, marked) = ask(&server, "GET", &format!("{pods}/p"), "", "").await;
    let condition = &marked["status"]["conditions"][0];
    assert_eq!(condition["reason"], "EvictionByEvictionAPI");
    assert_eq!(condition["observedGeneration"], Value::Null);
    assert_eq!(marked["metadata"]["managedFields"], kept["metadata"]["managedFields"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_pod_that_changes_meanwhile_is_evicted() {
    let server = server();
    let pods = "/api/v1/namespaces/n/pods";
    let eviction =
        json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "p"}});
    for round in 0..50 {
        assert_eq!(post(&server, pods, pod()).await.0, 201);
        let (changing, tasks) = (server.clone(), Tasks::default());
        tasks.spawn(Kind::Request, "changes", async move {
            let url = format!("{pods}/p");
            for n in 0.. {
                let change = json!({"metadata": {"annotations": {"n": format!("{round}-{n}")}}});
                if ask(&changing, "PATCH", &url, MERGE, &change.to_string()).await.0 == 404 {
                    break;
                }
                base::clock::sleep(Duration::from_micros(200)).await;
            }
            Ok::<(), std::convert::Infallible>(())
        });
        let evicted = post(&server, &format!("{pods}/p/eviction"), eviction.clone()).await;
        assert_eq!(evicted.0, 201, "{:?}", evicted.1);
        assert!(tasks.drain(Duration::from_secs(10)).await.is_empty());
    }
}

#[tokio::test]
async fn collections_are_deleted_in_a_namespace() {
    let server = server();
    let text =
        answer_to(&server, "DELETE", "/api/v1/configmaps", JSON, &json!({"kind": "X"})).await;
    assert_eq!(text, "405 the server does not allow this method on the requested resource");
}

#[tokio::test]
async fn lists_of_events_are_paged_and_watches_are_not() {
    let server = server();
    let events = "/api/v1/namespaces/n/events";
    for name in ["a", "b"] {
        let event = json!({"metadata": {"name": name}, "involvedObject": {"kind": "Pod", "namespace": "n", "name": "p"}});
        assert_eq!(post(&server, events, event).await.0, 201);
    }
    // Upstream keeps no events in memory: the limit holds at version 0, too.
    let url = format!("{events}?limit=1&resourceVersion=0");
    let (_, list) = ask(&server, "GET", &url, "", "").await;
    assert_eq!(list["items"].as_array().map(Vec::len), Some(1));
    assert!(list["metadata"]["continue"].is_string());
    for query in ["watch=1&continue=x", "watch=1&resourceVersion=0&continue=x"] {
        assert_eq!(
            answer_to(&server, "GET", &format!("{MAPS}?{query}"), "", &Value::Null).await,
            "422 ListOptions.meta.k8s.io \"\" is invalid: resourceVersionMatch: Forbidden: resourceVersionMatch is forbidden when continue is provided"
        );
    }
}

#[tokio::test]
async fn fields_that_are_off_by_default_are_dropped() {
    let server = server();
    let node = json!({"metadata": {"name": "n"}, "spec": {"podPreemptionPolicy": {"disableResizePreemption": ["x"]}}});
    let (code, made) = post(&server, "/api/v1/nodes", node).await;
    assert_eq!((code, &made["spec"]), (201, &json!({})));
    let claims = "/api/v1/namespaces/n/persistentvolumeclaims";
    let claim = json!({"metadata": {"name": "c"}, "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}});
    assert_eq!(post(&server, claims, claim).await.0, 201);
    let status = json!({"status": {"phase": "Lost", "healthStatus": {"healthConditions": [{"reason": "r", "status": "s"}]}}});
    let (code, made) =
        ask(&server, "PATCH", &format!("{claims}/c/status"), MERGE, &status.to_string()).await;
    assert_eq!((code, &made["status"]), (200, &json!({"phase": "Lost"})));
    let renamed = json!({"metadata": {"generateName": "generateNameValue"}});
    let text = answer_to(&server, "PATCH", &format!("{claims}/c"), MERGE, &renamed).await;
    let start = "422 PersistentVolumeClaim \"c\" is invalid: metadata.generateName: Invalid value: \"generateNameValue\": a lowercase RFC 1123 subdomain must consist of";
    assert!(text.starts_with(start), "{text}");
}

#[tokio::test]
async fn values_are_normalized_as_go_does() {
    let server = server();
    let secret = json!({"metadata": {"name": "s"}, "data": {"a": null}});
    let (_, made) = post(&server, "/api/v1/namespaces/n/secrets", secret).await;
    assert_eq!(made["data"], json!({"a": ""}));
    // A job has the labels of its template, which gets them after validation.
    let job = json!({"metadata": {"name": "Bad_Name!"}, "spec": {"template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}}}});
    let (code, refused) = post(&server, "/apis/batch/v1/namespaces/n/jobs", job).await;
    let causes = refused["details"]["causes"].as_array().unwrap();
    let mut fields: Vec<&str> = causes.iter().filter_map(|c| c["field"].as_str()).collect();
    fields.dedup();
    assert_eq!(code, 422);
    assert!(!fields.contains(&"metadata.labels"), "{fields:?}");
    // A strategic patch is not decoded, so its errors are not bad requests.
    let set = json!({"metadata": {"name": "d"}, "spec": {"selector": {"matchLabels": {"a": "b"}}, "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}}});
    let sets = "/apis/apps/v1/namespaces/n/daemonsets";
    assert_eq!(post(&server, sets, set).await.0, 201);
    let patch =
        json!({"metadata": {"annotations": {"deprecated.daemonset.template.generation": "a/b"}}});
    assert_eq!(
        answer_to(&server, "PATCH", &format!("{sets}/d"), STRATEGIC, &patch).await,
        "500 strconv.ParseInt: parsing \"a/b\": invalid syntax"
    );
    let scaled = json!({"apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": {"name": "r", "namespace": "other"}, "spec": {"replicas": 1}});
    let replicas = json!({"metadata": {"name": "r"}, "spec": {"selector": {"matchLabels": {"a": "b"}}, "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}}});
    let sets = "/apis/apps/v1/namespaces/n/replicasets";
    assert_eq!(post(&server, sets, replicas).await.0, 201);
    assert_eq!(
        answer_to(&server, "PUT", &format!("{sets}/r/scale"), JSON, &scaled).await,
        "400 the namespace of the provided object does not match the namespace sent on the request"
    );
    let scaled = json!({"apiVersion": "autoscaling/v1", "kind": "Scale", "spec": {"replicas": 1}});
    assert_eq!(
        answer_to(&server, "PUT", &format!("{sets}/r/scale"), JSON, &scaled).await,
        "400 the name of the object (r based on URL) was undeterminable: name must be provided"
    );
    // A dry run returns the resource version that was sent, in the API version of the request.
    let autoscaler = json!({"metadata": {"name": "h", "resourceVersion": "A"}, "spec": {"maxReplicas": 2, "targetCPUUtilizationPercentage": 80, "minReplicas": 1, "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "d"}}});
    let url = "/apis/autoscaling/v1/namespaces/n/horizontalpodautoscalers?dryRun=All";
    let (code, made) = post(&server, url, autoscaler).await;
    assert_eq!((code, made["apiVersion"].as_str()), (201, Some("autoscaling/v1")));
    assert_eq!(made["spec"]["targetCPUUtilizationPercentage"], 80);
    assert_eq!(made["metadata"]["resourceVersion"], "A");
    assert_eq!(
        answer_to(
            &server,
            "GET",
            &format!("{MAPS}?limit=99999999999999999999&timeoutSeconds=x"),
            "",
            &Value::Null
        )
        .await,
        "400 strconv.ParseInt: parsing \"x\": invalid syntax"
    );
}

#[tokio::test]
async fn subresources_manage_the_fields_that_are_sent() {
    let server = server();
    let pods = "/api/v1/namespaces/n/pods";
    assert_eq!(post(&server, pods, pod()).await.0, 201);
    let (_, mut sent) = ask(&server, "GET", &format!("{pods}/p"), "", "").await;
    sent["status"]["message"] = json!("m");
    let url = format!("{pods}/p/ephemeralcontainers?fieldManager=m");
    let (code, made) = ask(&server, "PUT", &url, JSON, &sent.to_string()).await;
    assert_eq!((code, &made["status"]["message"]), (200, &Value::Null));
    let entries = made["metadata"]["managedFields"].as_array().unwrap();
    let mine = entries.iter().find(|entry| entry["manager"] == "m").unwrap();
    assert_eq!(mine["fieldsV1"], json!({"f:status": {"f:message": {}}}));
    assert_eq!(mine["subresource"], "ephemeralcontainers");
}

#[tokio::test]
async fn errors_have_texts_of_go() {
    let server = server();
    let class = json!({"metadata": {"name": "rt"}, "handler": "h", "overhead": {"podFixed": {"cpu": "100m", "a/b": "100m"}}});
    assert_eq!(
        answer_to(&server, "POST", "/apis/node.k8s.io/v1/runtimeclasses", JSON, &class).await,
        "422 RuntimeClass.node.k8s.io \"rt\" is invalid: overhead.limits[a/b]: Invalid value: \"100m\": must be an integer"
    );
    let service = json!({"metadata": {"name": "e"}, "spec": {"type": "ExternalName", "externalName": "a.b", "internalTrafficPolicy": "x"}});
    assert_eq!(
        answer_to(&server, "POST", "/api/v1/namespaces/n/services", JSON, &service).await,
        "422 Service \"e\" is invalid: spec.internalTrafficPolicy: Unsupported value: \"x\": supported values: \"Cluster\", \"Local\""
    );
    assert_eq!(
        answer_to(
            &server,
            "GET",
            "/api/v1/namespaces/n/events/e?resourceVersion=x",
            "",
            &Value::Null
        )
        .await,
        "400 invalid resource version: resourceVersion: Invalid value: \"x\": strconv.ParseUint: parsing \"x\": invalid syntax"
    );
    let secrets = "/api/v1/namespaces/n/secrets";
    let secret = json!({"kind": "a\nb", "apiVersion": "v1", "metadata": {"name": "s"}});
    assert_eq!(
        answer_to(&server, "POST", secrets, JSON, &secret).await,
        "400 a\nb in version \"v1\" cannot be handled as a Secret: no kind \"a\\nb\" is registered for version \"v1\" in scheme \"pkg/runtime/scheme.go:111\""
    );
    assert_eq!(post(&server, secrets, json!({"metadata": {"name": "s"}})).await.0, 201);
    let patch = json!({"data": {"a": [{}]}});
    let text = answer_to(&server, "PATCH", &format!("{secrets}/s"), STRATEGIC, &patch).await;
    assert!(text.ends_with("\": unrecognized type: uint8"), "{text}");
    // Go decodes a list of null to one null byte.
    let secret = json!({"metadata": {"name": "d"}, "type": "kubernetes.io/dockerconfigjson", "data": {".dockerconfigjson": [null]}});
    let text = answer_to(&server, "POST", secrets, JSON, &secret).await;
    assert!(text.ends_with("\"<secret contents redacted>\": invalid character '\\x00' looking for beginning of value"), "{text}");
}
