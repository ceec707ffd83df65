//! Webhooks in a complete server with an in-memory store and a real webhook server.

use std::sync::Arc;

use base::{Shutdown, Tasks};
use bytes::Bytes;
use http::{Method, Request, Response};
use http_body_util::Full;
use serde_json::{Value, json};

use crate::authn::jws::SigningKey;
use crate::registry::objects::Objects;
use crate::request::body;
use crate::request::user::User;
use crate::security::{Security, Settings};
use crate::{ApiServer, Config};
use webhook::Callout;
use webhook::testing::{self as peer, Hook, To};

struct World {
    server: ApiServer,
    tasks: Tasks,
    hook: Hook,
    user: User,
}

async fn world() -> World {
    let hook = peer::hook(answer).await;
    let tasks = Tasks::new(Shutdown::new());
    let objects =
        Objects::new(store::open_memory_with(&tasks), None, api::schema::Schema::builtin(), &tasks);
    let settings = Settings {
        issuer: "https://kubernetes.default.svc.cluster.local".into(),
        former_issuers: Vec::new(),
        token_seconds_max: None,
        service_account_key: SigningKey::generate_pem().unwrap().into(),
        address: "192.168.1.5:6443".into(),
        tokens: Vec::new(),
        authentication: crate::authn::AuthenticationConfig::default(),
        tolerations: Default::default(),
        callout: Callout { reach: Arc::new(To(hook.address)), tasks: tasks.clone() },
        authorization: Default::default(),
        hardened: false,
        admission: Default::default(),
        plugins: Vec::new(),
    };
    let security = Security::new(&objects, settings).unwrap();
    let server =
        crate::build(Config::default(), security.parts(&objects, None), tasks.clone()).unwrap();
    security.follow(&objects, &tasks).await.unwrap();
    let user = User::authenticated("admin", &["system:masters"]);
    let world = World { server, tasks, hook, user };
    for name in ["default", "skipped"] {
        let namespace = json!({"metadata": {"name": name, "labels": {"name": name}}});
        world.post("/api/v1/namespaces", namespace).await;
    }
    world
}

/// The webhook server: the path selects its behavior.
fn answer(target: &str, review: Value) -> Response<Full<Bytes>> {
    let request = &review["request"];
    let mut response = json!({"uid": request["uid"], "allowed": true});
    let mut patch = |patch: Value| {
        response["patchType"] = "JSONPatch".into();
        response["patch"] = base64(&patch.to_string()).into();
    };
    let (path, timeout) = target.split_once("?timeout=").unwrap();
    match path.split('/').collect::<Vec<_>>().as_slice() {
        ["", "deny"] => {
            response["allowed"] = false.into();
            response["status"] = json!({"message": format!("not this {}", request["kind"]["kind"].as_str().unwrap()), "reason": "Why", "code": 403});
        }
        // Returns the values of these request fields as warnings.
        ["", "tell", fields] => {
            let fields = match *fields {
                "review" => {
                    "operation+name+namespace+userInfo.username+kind.kind+object.data.a+oldObject.data.a+options.kind+dryRun"
                }
                "versions" => {
                    "kind.version+requestKind.version+object.apiVersion+object.spec.targetCPUUtilizationPercentage"
                }
                _ => {
                    "operation+kind.kind+subResource+object.spec.replicas+oldObject.spec.replicas+object.target.name"
                }
            };
            let fields =
                fields.split('+').map(|f| request.pointer(&format!("/{}", f.replace('.', "/"))));
            let fields: Vec<String> =
                fields.map(|v| v.map_or("-".to_owned(), Value::to_string)).collect();
            response["warnings"] = json!([format!("{} {timeout}", fields.join(" "))]);
        }
        // Appends its letter to the value.
        ["", "append", letter] => {
            let there = request["object"]["data"]["word"].as_str().unwrap_or_default();
            patch(
                json!([{"op": "add", "path": "/data/word", "value": format!("{there}{letter}")}]),
            );
        }
        // Adds the key if it is absent.
        ["", "add", key] if request["object"]["data"][key].is_null() => {
            patch(json!([{"op": "add", "path": format!("/data/{key}"), "value": "added"}]));
        }
        ["", "init"] => {
            let container = json!({"name": "added", "image": "i", "command": ["c"]});
            patch(json!([{"op": "add", "path": "/spec/initContainers", "value": [container]}]));
        }
        ["", "spoil"] => patch(json!([{"op": "replace", "path": "/data", "value": {"a": 1}}])),
        ["", "stray"] => response["uid"] = "other".into(),
        ["", "broken"] => return peer::body(500, "text/plain", "oops"),
        _ => {}
    }
    let review = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response});
    peer::body(200, "application/json", review.to_string())
}

fn base64(text: &str) -> String {
    use base64::Engine as _;
    base64::engine::general_purpose::STANDARD.encode(text)
}

impl World {
    async fn ask(
        &self,
        method: Method,
        path: &str,
        object: Option<Value>,
    ) -> (u16, Value, Vec<String>) {
        let content = object.map(|o| o.to_string()).unwrap_or_default();
        let kind = if method == Method::PATCH {
            "application/merge-patch+json"
        } else {
            "application/json"
        };
        let request = Request::builder().method(method).uri(path).header("content-type", kind);
        let request = request.body(body::full(content)).unwrap();
        let response = self.server.call(Some(self.user.clone()), request).await;
        let code = response.status().as_u16();
        let warnings = response.headers().get_all("warning").iter();
        let warnings = warnings.map(|w| w.to_str().unwrap().to_owned()).collect();
        let bytes = body::collect(response.into_body()).await.unwrap();
        (code, serde_json::from_slice(&bytes).unwrap_or_default(), warnings)
    }

    async fn post(&self, path: &str, object: Value) -> Value {
        let (code, answer, _) = self.ask(Method::POST, path, Some(object)).await;
        assert_eq!(code, 201, "{answer}");
        answer
    }

    /// Creates a configuration of these hooks: path, operations, resource as
    /// `group/version/resource`, and other fields. Returns when it is in effect: one of its hooks
    /// denies a ConfigMap of the same name.
    async fn configure(&self, kind: &str, name: &str, hooks: &[(&str, &str, &str, Value)]) {
        let hook = |(index, (path, operations, resource, more)): (
            usize,
            &(&str, &str, &str, Value),
        )| {
            let parts: Vec<&str> = resource.splitn(3, '/').collect();
            let mut hook = json!({
                "name": format!("h{index}.{name}.example.com"), "sideEffects": "None", "admissionReviewVersions": ["v1"],
                "clientConfig": {
                    "service": {"namespace": "n", "name": "s", "path": path},
                    "caBundle": base64(self.hook.ca.cert_pem()),
                },
                "rules": [{
                    "operations": operations.split('|').collect::<Vec<_>>(),
                    "apiGroups": [parts[0]], "apiVersions": [parts[1]], "resources": [parts[2]],
                }],
            });
            hook.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            hook
        };
        let mut all: Vec<Value> = hooks.iter().enumerate().map(hook).collect();
        let marker = (
            "/deny",
            "CREATE",
            "/v1/configmaps",
            json!({
            "name": "marker.example.com", "objectSelector": {"matchLabels": {"marker": name}}}),
        );
        all.push(hook((0, &marker)));
        let path = format!("/apis/admissionregistration.k8s.io/v1/{kind}");
        self.post(&path, json!({"metadata": {"name": name}, "webhooks": all})).await;
        let marker =
            json!({"metadata": {"name": "marker", "labels": {"marker": name}}, "data": {"a": "b"}});
        let path = "/api/v1/namespaces/default/configmaps?dryRun=All";
        for _ in 0..1000 {
            if self.ask(Method::POST, path, Some(marker.clone())).await.0 == 403 {
                return;
            }
            tokio::task::yield_now().await;
        }
        panic!("{name} is not in force");
    }

    async fn config_map(&self, name: &str) -> (u16, Value, Vec<String>) {
        let object = json!({"metadata": {"name": name}, "data": {"a": "b"}});
        self.ask(Method::POST, "/api/v1/namespaces/default/configmaps", Some(object)).await
    }

    async fn end(self) {
        self.tasks.shutdown().request();
        self.tasks.drain(std::time::Duration::from_secs(5)).await;
    }
}

const MUTATING: &str = "mutatingwebhookconfigurations";
const VALIDATING: &str = "validatingwebhookconfigurations";
const MAPS: &str = "/v1/configmaps";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_denial_of_a_validating_webhook_contains_its_message() {
    let world = world().await;
    let skip = json!({"namespaceSelector": {"matchExpressions": [{"key": "name", "operator": "NotIn", "values": ["skipped"]}]}});
    world.configure(VALIDATING, "a", &[("/deny", "CREATE|DELETE", MAPS, skip)]).await;
    let (code, answer, _) = world.config_map("x").await;
    assert_eq!(code, 403);
    assert_eq!(
        answer["message"],
        "admission webhook \"h0.a.example.com\" denied the request: not this ConfigMap"
    );
    assert_eq!(answer["reason"], "Why");
    world.post("/api/v1/namespaces/skipped/configmaps", json!({"metadata": {"name": "x"}})).await;
    world.post("/api/v1/namespaces/default/secrets", json!({"metadata": {"name": "x"}})).await;
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_review_contains_user_operation_and_object() {
    let world = world().await;
    let slow = json!({"timeoutSeconds": 3});
    world.configure(VALIDATING, "a", &[("/tell/review", "*", MAPS, slow)]).await;
    let summary = |warnings: &[String]| {
        let text =
            |w: &String| w.strip_prefix("299 - ").map(|w| w.trim_matches('"').replace("\\\"", ""));
        warnings.iter().filter_map(text).collect::<Vec<String>>()
    };
    let (_, _, warnings) = world.config_map("x").await;
    assert_eq!(summary(&warnings), ["CREATE x default admin ConfigMap b - CreateOptions false 3s"]);
    let path = "/api/v1/namespaces/default/configmaps/x";
    let patch = json!({"data": {"a": "c"}});
    let (_, _, warnings) =
        world.ask(Method::PATCH, &format!("{path}?dryRun=All"), Some(patch)).await;
    assert_eq!(summary(&warnings), ["UPDATE x default admin ConfigMap c b UpdateOptions true 3s"]);
    let (_, _, warnings) = world.ask(Method::DELETE, path, None).await;
    assert_eq!(summary(&warnings), ["DELETE x default admin ConfigMap - b DeleteOptions false 3s"]);
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mutating_webhooks_run_by_name_and_are_reinvoked() {
    let world = world().await;
    let again = || json!({"reinvocationPolicy": "IfNeeded"});
    world
        .configure(
            MUTATING,
            "b",
            &[("/append/2", "CREATE", MAPS, json!({})), ("/append/3", "CREATE", MAPS, again())],
        )
        .await;
    world.configure(MUTATING, "a", &[("/append/1", "CREATE", MAPS, again())]).await;
    let (code, map, _) = world.config_map("x").await;
    // The first webhook is reinvoked because of later changes; the last one is not, because no
    // change followed it.
    assert_eq!((code, &map["data"]["word"]), (201, &json!("12313")), "{map}");
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_patched_object_is_defaulted_and_validated() {
    let world = world().await;
    world
        .configure(
            MUTATING,
            "a",
            &[
                ("/init", "CREATE", "/v1/pods", json!({})),
                (
                    "/spoil",
                    "CREATE",
                    MAPS,
                    json!({"objectSelector": {"matchLabels": {"spoil": "it"}}}),
                ),
            ],
        )
        .await;
    world
        .post(
            "/api/v1/namespaces/default/serviceaccounts",
            json!({"metadata": {"name": "default"}}),
        )
        .await;
    let pod =
        json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let pod = world.post("/api/v1/namespaces/default/pods", pod).await;
    let added = &pod["spec"]["initContainers"][0];
    assert_eq!(added["name"], "added");
    assert_eq!(added["terminationMessagePolicy"], "File");
    assert_eq!(added["imagePullPolicy"], "Always");
    let map = json!({"metadata": {"name": "x", "labels": {"spoil": "it"}}, "data": {}});
    let (code, answer, _) =
        world.ask(Method::POST, "/api/v1/namespaces/default/configmaps", Some(map)).await;
    assert_eq!((code, &answer["reason"]), (500, &json!("InternalError")), "{answer}");
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_failure_policy_applies_to_failed_calls_only() {
    let world = world().await;
    let open = |more: Value| {
        let mut open = json!({"failurePolicy": "Ignore"});
        open.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        open
    };
    let secrets = "/v1/secrets";
    world.configure(VALIDATING, "a", &[
        ("/broken", "CREATE", MAPS, open(json!({}))),
        ("/broken", "CREATE", secrets, json!({"objectSelector": {"matchLabels": {"by": "broken"}}})),
        ("/stray", "CREATE", secrets, json!({"objectSelector": {"matchLabels": {"by": "stray"}}})),
        ("/", "CREATE", secrets, json!({"sideEffects": "NoneOnDryRun", "objectSelector": {"matchLabels": {"by": "old"}}, "admissionReviewVersions": ["v1beta1", "v2"]})),
        ("/deny", "CREATE", secrets, open(json!({"objectSelector": {"matchLabels": {"by": "denial"}}}))),
    ]).await;
    assert_eq!(world.config_map("x").await.0, 201);
    let secret = async |by: &str| {
        let object = json!({"metadata": {"name": by, "labels": {"by": by}}});
        let (code, answer, _) =
            world.ask(Method::POST, "/api/v1/namespaces/default/secrets", Some(object)).await;
        (code, answer["message"].as_str().unwrap_or_default().to_owned())
    };
    assert_eq!(
        secret("broken").await,
        (500, "Internal error occurred: failed calling webhook \"h1.a.example.com\": failed to call webhook: an error on the server (\"oops\") has prevented the request from succeeding".to_owned())
    );
    let (code, text) = secret("stray").await;
    assert_eq!(code, 500);
    assert!(text.starts_with("Internal error occurred: failed calling webhook \"h2.a.example.com\": received invalid webhook response: expected response.uid=\""), "{text}");
    assert_eq!(secret("denial").await.0, 403);
    assert_eq!(secret("old").await.0, 201);
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn equivalent_versions_are_converted_and_exact_ones_are_not() {
    let world = world().await;
    let v1 = "autoscaling/v1/horizontalpodautoscalers";
    world
        .configure(
            VALIDATING,
            "a",
            &[
                ("/tell/versions", "CREATE", v1, json!({})),
                ("/deny", "CREATE", v1, json!({"matchPolicy": "Exact"})),
            ],
        )
        .await;
    let scaler = json!({"metadata": {"name": "x"}, "spec": {"maxReplicas": 3, "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "d"},
        "metrics": [{"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 70}}}]}});
    let path = "/apis/autoscaling/v2/namespaces/default/horizontalpodautoscalers";
    let (code, answer, warnings) = world.ask(Method::POST, path, Some(scaler)).await;
    assert_eq!(code, 201, "{answer}");
    assert!(
        warnings.iter().any(|w| w.contains("v1\\\" \\\"v2\\\" \\\"autoscaling/v1\\\" 70 10s")),
        "{warnings:?}"
    );
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn webhook_configurations_and_reviews_are_exempt() {
    let world = world().await;
    let all = json!({"rules": [{"operations": ["*"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*/*"]}]});
    world.configure(VALIDATING, "a", &[("/deny", "*", MAPS, all)]).await;
    let path = format!("/apis/admissionregistration.k8s.io/v1/{MUTATING}");
    world.post(&path, json!({"metadata": {"name": "b"}})).await;
    let review = json!({"spec": {"resourceAttributes": {"verb": "get", "resource": "pods"}}});
    world.post("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", review).await;
    let (code, _, _) = world.ask(Method::DELETE, &format!("{path}/b"), None).await;
    assert_eq!(code, 200);
    assert_eq!(world.config_map("x").await.0, 403);
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn match_conditions_select_webhooks() {
    let world = world().await;
    let with = |policy: &str, expression: &str| json!({"failurePolicy": policy, "matchConditions": [{"name": "c", "expression": expression}]});
    let secrets = "/v1/secrets";
    world
        .configure(
            VALIDATING,
            "a",
            &[
                ("/deny", "CREATE", secrets, with("Fail", "request.name == 'denied'")),
                ("/deny", "CREATE", secrets, with("Ignore", "object.data.missing == 'x'")),
                (
                    "/deny",
                    "CREATE",
                    secrets,
                    with("Fail", "request.name == 'failing' && object.data.missing == 'x'"),
                ),
                (
                    "/deny",
                    "CREATE",
                    secrets,
                    with("Fail", "!authorizer.requestResource.check('any').allowed()"),
                ),
            ],
        )
        .await;
    let create = async |name: &str| {
        let secret = json!({"metadata": {"name": name}, "data": {"a": "YQ=="}});
        world.ask(Method::POST, "/api/v1/namespaces/default/secrets", Some(secret)).await
    };
    let (code, answer, _) = create("denied").await;
    assert_eq!(code, 403);
    let denied = "admission webhook \"h0.a.example.com\" denied the request: not this Secret";
    assert_eq!(answer["message"], denied);
    let (code, answer, _) = create("failing").await;
    assert_eq!(code, 403);
    assert_eq!(
        answer["message"],
        "secrets \"failing\" is forbidden: expression 'request.name == 'failing' && object.data.missing == 'x'' resulted in error: no such key: missing"
    );
    assert_eq!(create("free").await.0, 201);
    let mutating = with("Fail", "object.metadata.name != 'skip-me'");
    world.configure(MUTATING, "b", &[("/add/b", "CREATE", MAPS, mutating)]).await;
    assert_eq!(world.config_map("skip-me").await.1["data"], json!({"a": "b"}));
    assert_eq!(world.config_map("other").await.1["data"], json!({"a": "b", "b": "added"}));
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn subresources_have_their_own_kind_in_reviews() {
    let world = world().await;
    let tell = "/tell/subresource";
    let some = json!({});
    world
        .configure(
            VALIDATING,
            "a",
            &[
                (tell, "*", "apps/v1/deployments/scale", some.clone()),
                (tell, "*", "/v1/pods/binding", some.clone()),
                (tell, "*", "/v1/pods/eviction", some.clone()),
                (tell, "*", "/v1/serviceaccounts/token", some),
            ],
        )
        .await;
    let summary = async |method, path: &str, object: Value| {
        let (code, answer, warnings) = world.ask(method, path, Some(object)).await;
        assert!(code < 300, "{answer}");
        warnings.iter().map(|w| w.replace("\\\"", "").replace("299 - ", "")).collect::<Vec<_>>()
    };
    let base = "/api/v1/namespaces/default";
    world.post(&format!("{base}/serviceaccounts"), json!({"metadata": {"name": "default"}})).await;
    let template = json!({"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let deployment = json!({"metadata": {"name": "d"}, "spec": {"replicas": 1, "selector": {"matchLabels": {"a": "b"}}, "template": template}});
    let deployments = "/apis/apps/v1/namespaces/default/deployments";
    world.post(deployments, deployment).await;
    let scale = json!({"spec": {"replicas": 2}});
    assert_eq!(
        summary(Method::PATCH, &format!("{deployments}/d/scale"), scale).await,
        ["\"UPDATE Scale scale 2 1 - 10s\""]
    );
    let pod =
        json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    world.post(&format!("{base}/pods"), pod).await;
    let binding = json!({"metadata": {"name": "p"}, "target": {"kind": "Node", "name": "n"}});
    assert_eq!(
        summary(Method::POST, &format!("{base}/pods/p/binding"), binding).await,
        ["\"CREATE Binding binding - - n 10s\""]
    );
    assert_eq!(
        summary(Method::POST, &format!("{base}/serviceaccounts/default/token"), json!({})).await,
        ["\"CREATE TokenRequest token - - - 10s\""]
    );
    let eviction = json!({"metadata": {"name": "p"}});
    assert_eq!(
        summary(Method::POST, &format!("{base}/pods/p/eviction"), eviction).await,
        ["\"CREATE Eviction eviction - - - 10s\""]
    );
    world.end().await;
}
