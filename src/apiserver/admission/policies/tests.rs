//! Policies in a complete server with an in-memory store, with the messages of upstream's
//! dispatchers.

use std::sync::Arc;

use base::{Shutdown, Tasks};
use http::{Method, Request};
use serde_json::{Value, json};
use store::{Op, Txn};

use crate::authn::jws::SigningKey;
use crate::registry::objects::Objects;
use crate::request::body;
use crate::request::user::User;
use crate::security::{Security, Settings};
use crate::{ApiServer, Config};
use webhook::Callout;
use webhook::testing::To;

struct World {
    server: ApiServer,
    tasks: Tasks,
    user: User,
}

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/default/deployments";

async fn world() -> World {
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
        callout: Callout {
            reach: Arc::new(To("127.0.0.1:1".parse().unwrap())),
            tasks: tasks.clone(),
        },
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
    let world = World { server, tasks, user };
    for name in ["default", "other"] {
        let namespace = json!({"metadata": {"name": name, "labels": {"name": name}}});
        world.post("/api/v1/namespaces", namespace).await;
    }
    world
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

    /// Creates a policy for this resource and a binding of the same name.
    async fn bind(&self, kind: &str, name: &str, resource: &str, spec: Value, binding: Value) {
        let (group, resource) = resource.split_once('/').unwrap();
        let mut policy = json!({"metadata": {"name": name}, "spec": {"matchConstraints": {"resourceRules": [
            {"apiGroups": [group], "apiVersions": ["v1"], "operations": ["CREATE", "UPDATE"], "resources": [resource]}]}}});
        policy["spec"].as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
        let base = "/apis/admissionregistration.k8s.io/v1";
        self.post(&format!("{base}/{kind}admissionpolicies"), policy).await;
        let mut bound =
            json!({"metadata": {"name": format!("{name}-binding")}, "spec": {"policyName": name}});
        bound["spec"].as_object_mut().unwrap().extend(binding.as_object().unwrap().clone());
        self.post(&format!("{base}/{kind}admissionpolicybindings"), bound).await;
    }

    /// Repeats the request until the response has this code: a policy takes effect when the server
    /// receives its event.
    async fn until(
        &self,
        path: &str,
        object: &Value,
        is_expected: impl Fn(u16, &Value, &[String]) -> bool,
    ) -> (u16, Value, Vec<String>) {
        let path = format!("{path}?dryRun=All");
        for _ in 0..2000 {
            let (code, answer, warnings) =
                self.ask(Method::POST, &path, Some(object.clone())).await;
            if is_expected(code, &answer, &warnings) {
                return (code, answer, warnings);
            }
            tokio::task::yield_now().await;
        }
        panic!("{object} is never answered so");
    }

    async fn refused(&self, path: &str, object: &Value) -> Value {
        self.until(path, object, |code, _, _| code >= 400).await.1
    }

    async fn end(self) {
        self.tasks.shutdown().request();
        self.tasks.drain(std::time::Duration::from_secs(5)).await;
    }
}

fn map(name: &str, data: Value) -> Value {
    json!({"metadata": {"name": name}, "data": data})
}

fn deployment(name: &str, replicas: i64) -> Value {
    let template = json!({"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    json!({"metadata": {"name": name}, "spec": {"replicas": replicas, "selector": {"matchLabels": {"a": "b"}}, "template": template}})
}

fn deny() -> Value {
    json!({"validationActions": ["Deny"]})
}

/// The policy of the conformance suite: the message expression fails, so the message names the
/// expression.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn validating_policies_deny_with_their_message() {
    let world = world().await;
    let spec = json!({"validations": [
        {"expression": "object.spec.replicas > 1", "messageExpression": "'wants replicas > 1, got ' + object.spec.replicas"},
        {"expression": "namespaceObject.metadata.name == 'default'", "message": "other namespace"}]});
    world.bind("validating", "p", "apps/deployments", spec, deny()).await;
    let answer = world.refused(DEPLOYMENTS, &deployment("d", 1)).await;
    let denied = "ValidatingAdmissionPolicy 'p' with binding 'p-binding' denied request: failed expression: object.spec.replicas > 1";
    assert_eq!(answer["message"], format!("deployments.apps \"d\" is forbidden: {denied}"));
    assert_eq!((&answer["reason"], &answer["code"]), (&json!("Invalid"), &json!(422)));
    assert_eq!(answer["details"]["causes"], json!([{"message": denied}]));
    world.post(DEPLOYMENTS, deployment("two", 2)).await;
    let elsewhere = DEPLOYMENTS.replace("default", "other");
    let answer = world.refused(&elsewhere, &deployment("d", 2)).await;
    assert!(answer["message"].as_str().unwrap().ends_with("denied request: other namespace"));
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn variables_messages_reasons_and_conditions_are_evaluated() {
    let world = world().await;
    let spec = json!({
        "matchConditions": [{"name": "c", "expression": "request.userInfo.username == 'admin' && object.metadata.name != 'skip'"}],
        "variables": [{"name": "count", "expression": "has(object.data) ? object.data.size() : 0"}, {"name": "few", "expression": "variables.count < 2"}],
        "validations": [{"expression": "variables.few", "messageExpression": "'has ' + string(variables.count)", "reason": "Forbidden"}]});
    world.bind("validating", "p", "/configmaps", spec, deny()).await;
    let full = json!({"a": "1", "b": "2"});
    let answer = world.refused(MAPS, &map("x", full.clone())).await;
    assert_eq!(answer["code"], 403);
    assert_eq!(
        answer["message"],
        "configmaps \"x\" is forbidden: ValidatingAdmissionPolicy 'p' with binding 'p-binding' denied request: has 2"
    );
    world.post(MAPS, map("skip", full)).await;
    world.post(MAPS, map("few", json!({"a": "1"}))).await;
    // An error of an expression is returned, unless `failurePolicy` is `Ignore`.
    let failing = json!({"validations": [{"expression": "object.data.missing == 'x'"}]});
    world.bind("validating", "q", "/configmaps", failing.clone(), deny()).await;
    let answer = world.refused(MAPS, &map("y", json!({"a": "1"}))).await;
    assert_eq!(
        answer["message"],
        "configmaps \"y\" is forbidden: ValidatingAdmissionPolicy 'q' with binding 'q-binding' denied request: expression 'object.data.missing == 'x'' resulted in error: no such key: missing"
    );
    let base = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies/q";
    world.ask(Method::PATCH, base, Some(json!({"spec": {"failurePolicy": "Ignore"}}))).await;
    world.until(MAPS, &map("y", json!({"a": "1"})), |code, _, _| code == 201).await;
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bindings_select_requests_and_actions() {
    let world = world().await;
    let spec =
        json!({"validations": [{"expression": "!has(object.data)", "message": "no data, please"}]});
    let warn = json!({"validationActions": ["Warn", "Audit"],
        "matchResources": {"namespaceSelector": {"matchLabels": {"name": "default"}}, "excludeResourceRules": [
            {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["*"], "resources": ["configmaps"], "resourceNames": ["excluded"]}]}});
    world.bind("validating", "p", "/configmaps", spec, warn).await;
    let data = json!({"a": "b"});
    let (code, _, warnings) =
        world.until(MAPS, &map("x", data.clone()), |_, _, warnings| !warnings.is_empty()).await;
    assert_eq!(code, 201);
    assert_eq!(
        warnings,
        [
            "299 - \"Validation failed for ValidatingAdmissionPolicy 'p' with binding 'p-binding': no data, please\""
        ]
    );
    let quiet = async |path: &str, name: &str| {
        let (code, _, warnings) =
            world.ask(Method::POST, path, Some(map(name, data.clone()))).await;
        assert_eq!((code, warnings.len()), (201, 0), "{name}");
    };
    quiet(MAPS, "excluded").await;
    quiet(&MAPS.replace("default", "other"), "x").await;
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn parameters_are_found_by_name_and_selector() {
    let world = world().await;
    let spec = json!({"paramKind": {"apiVersion": "v1", "kind": "ConfigMap"},
        "validations": [{"expression": "object.data.size() <= int(params.data.most)", "messageExpression": "'at most ' + params.data.most"}]});
    let with = |name: &str, reference: Value| {
        let mut reference = reference;
        reference["namespace"] = "other".into();
        let resources = json!({"objectSelector": {"matchLabels": {"for": name}}});
        json!({"validationActions": ["Deny"], "paramRef": reference, "matchResources": resources})
    };
    let mut refused = std::collections::BTreeMap::new();
    for (name, reference) in [
        ("named", json!({"name": "limit", "parameterNotFoundAction": "Deny"})),
        (
            "chosen",
            json!({"selector": {"matchLabels": {"limit": "yes"}}, "parameterNotFoundAction": "Deny"}),
        ),
    ] {
        world.bind("validating", name, "/secrets", spec.clone(), with(name, reference)).await;
        let secret = json!({"metadata": {"name": "s", "labels": {"for": name}}, "data": {"a": "YQ==", "b": "YQ=="}});
        let answer = world.refused("/api/v1/namespaces/default/secrets", &secret).await;
        assert_eq!(
            answer["message"],
            format!(
                "secrets \"s\" is forbidden: ValidatingAdmissionPolicy '{name}' with binding '{name}-binding' denied request: failed to configure binding: no params found for policy binding with `Deny` parameterNotFoundAction"
            )
        );
        refused.insert(name, secret);
    }
    let limit =
        json!({"metadata": {"name": "limit", "labels": {"limit": "yes"}}, "data": {"most": "1"}});
    world.post("/api/v1/namespaces/other/configmaps", limit).await;
    for (name, secret) in &refused {
        let is_denied = |_: u16, answer: &Value, _: &[String]| {
            answer["message"].as_str().is_some_and(|m| m.ends_with("denied request: at most 1"))
        };
        world.until("/api/v1/namespaces/default/secrets", secret, is_denied).await;
        assert!(!name.is_empty());
    }
    // Missing parameters can be allowed.
    let allow = with("absent", json!({"name": "none", "parameterNotFoundAction": "Allow"}));
    world.bind("validating", "absent", "/secrets", spec.clone(), allow).await;
    let secret = json!({"metadata": {"name": "s", "labels": {"for": "absent"}}});
    world.post("/api/v1/namespaces/default/secrets", secret).await;
    // A kind that is not served is a configuration error of the policy.
    let mut unknown = spec;
    unknown["paramKind"] = json!({"apiVersion": "example.com/v1", "kind": "Limit"});
    world.bind("validating", "unknown", "/services", unknown, deny()).await;
    let service = json!({"metadata": {"name": "s"}, "spec": {"ports": [{"port": 80}]}});
    let answer = world.refused("/api/v1/namespaces/default/services", &service).await;
    assert_eq!(
        answer["message"],
        "services \"s\" is forbidden: ValidatingAdmissionPolicy 'unknown' denied request: failed to configure policy: failed to find resource referenced by paramKind: 'example.com/v1, Kind=Limit'"
    );
    world.end().await;
}

/// Parameters that cannot be read are not missing: `Allow` admits nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unreadable_parameters_deny() {
    let world = world().await;
    let put = Op::Put {
        key: "/registry/configmaps/other/limit".into(),
        value: "k8s:enc:aescbc:v1:lost:damaged".into(),
        lease: 0,
        prev_kv: false,
    };
    let backend = Arc::clone(world.server.objects().storage().backend());
    backend.txn(Txn { success: vec![put], ..Txn::default() }).await.unwrap();
    let spec = json!({"paramKind": {"apiVersion": "v1", "kind": "ConfigMap"}, "validations": [{"expression": "true"}]});
    let allow = |name: &str| {
        json!({"validationActions": ["Deny"],
            "paramRef": {"namespace": "other", "name": name, "parameterNotFoundAction": "Allow"}})
    };
    world.bind("validating", "limited", "/secrets", spec.clone(), allow("limit")).await;
    let secret = json!({"metadata": {"name": "s"}});
    let answer = world.refused("/api/v1/namespaces/default/secrets", &secret).await;
    let message = answer["message"].as_str().unwrap();
    let denied = "secrets \"s\" is forbidden: ValidatingAdmissionPolicy 'limited' with binding 'limited-binding' denied request: failed to configure binding: ";
    assert!(message.starts_with(denied), "{message}");
    assert!(message.contains("corrupt object, Code: 6, Key: /configmaps/other/limit"), "{message}");
    // In contrast, a missing parameter is allowed.
    world.bind("validating", "free", "/services", spec, allow("none")).await;
    let service = json!({"metadata": {"name": "s"}, "spec": {"ports": [{"port": 80}]}});
    world.post("/api/v1/namespaces/default/services", service).await;
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn expressions_can_check_authorization() {
    let mut world = world().await;
    let spec = json!({"validations": [{"expression": "authorizer.group('').resource('configmaps').namespace('default').check('delete').allowed()", "message": "not without delete"}]});
    world.bind("validating", "p", "/configmaps", spec, deny()).await;
    world
        .bind(
            "validating",
            "marker",
            "/secrets",
            json!({"validations": [{"expression": "false"}]}),
            deny(),
        )
        .await;
    world.refused("/api/v1/namespaces/default/secrets", &json!({"metadata": {"name": "m"}})).await;
    world.post(MAPS, map("x", json!({}))).await;
    let role = json!({"metadata": {"name": "creator"}, "rules": [{"verbs": ["create"], "apiGroups": [""], "resources": ["configmaps"]}]});
    world.post("/apis/rbac.authorization.k8s.io/v1/clusterroles", role).await;
    let binding = json!({"metadata": {"name": "creator"}, "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "creator"},
        "subjects": [{"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": "jane"}]});
    world.post("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", binding).await;
    world.user = User::authenticated("jane", &[]);
    let is_denied = |_: u16, answer: &Value, _: &[String]| {
        answer["message"]
            .as_str()
            .is_some_and(|m| m.ends_with("denied request: not without delete"))
    };
    world.until(MAPS, &map("y", json!({})), is_denied).await;
    world.end().await;
}

fn apply(expression: &str) -> Value {
    json!({"reinvocationPolicy": "Never", "mutations": [{"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": expression}}]})
}

fn patch(expression: &str) -> Value {
    json!({"reinvocationPolicy": "Never", "mutations": [{"patchType": "JSONPatch", "jsonPatch": {"expression": expression}}]})
}

/// The policies of the conformance suite.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mutating_policies_change_the_object() {
    let world = world().await;
    let spec = apply(
        "Object{metadata: Object.metadata{annotations: {\"mutated-by\": \"admission-policy\"}}, spec: Object.spec{replicas: 1337}}",
    );
    world.bind("mutating", "p", "apps/deployments", spec, json!({})).await;
    let is_mutated = |_: u16, answer: &Value, _: &[String]| answer["spec"]["replicas"] == 1337;
    let (code, answer, _) = world.until(DEPLOYMENTS, &deployment("d", 1), is_mutated).await;
    assert_eq!(code, 201);
    assert_eq!(answer["metadata"]["annotations"]["mutated-by"], "admission-policy");
    assert_eq!(answer["spec"]["template"]["spec"]["containers"][0]["name"], "c");
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn json_patches_are_applied_and_their_errors_denied() {
    let world = world().await;
    let only = |expression: &str, name: &str| {
        let mut spec = patch(expression);
        spec["matchConditions"] =
            json!([{"name": "c", "expression": format!("object.metadata.name == '{name}'")}]);
        spec
    };
    let add = "[JSONPatch{op: 'test', path: '/data/a', value: object.data.a}, JSONPatch{op: 'add', path: '/metadata/annotations', value: {'first': 'x'}}, JSONPatch{op: 'add', path: '/metadata/annotations/' + jsonpatch.escapeKey('example.com/op'), value: request.operation}]";
    world.bind("mutating", "adds", "/configmaps", only(add, "good"), json!({})).await;
    let is_mutated = |_: u16, answer: &Value, _: &[String]| {
        answer["metadata"]["annotations"] == json!({"first": "x", "example.com/op": "CREATE"})
    };
    world.until(MAPS, &map("good", json!({"a": "b"})), is_mutated).await;
    let missing = "[JSONPatch{op: 'remove', path: '/data/none'}]";
    world.bind("mutating", "fails", "/configmaps", only(missing, "bad"), json!({})).await;
    let answer = world.refused(MAPS, &map("bad", json!({"a": "b"}))).await;
    let denied = "policy 'fails' with binding 'fails-binding' denied request: JSON Patch: error in remove for path: '/data/none': Unable to remove nonexistent key: none: missing value";
    assert_eq!((&answer["message"], &answer["code"]), (&json!(denied), &json!(403)));
    assert_eq!(answer["reason"], "Invalid");
    assert_eq!(answer["details"]["causes"], json!([{"message": denied}]));
    let unequal = "[JSONPatch{op: 'test', path: '/data/a', value: 'z'}, JSONPatch{op: 'remove', path: '/data/a'}]";
    world.bind("mutating", "tests", "/configmaps", only(unequal, "same"), json!({})).await;
    let unknown = "[JSONPatch{op: 'add', path: '/spec', value: {'a': 'b'}}]";
    world.bind("mutating", "unknown", "/configmaps", only(unknown, "strict"), json!({})).await;
    let answer = world.refused(MAPS, &map("strict", json!({"a": "b"}))).await;
    assert_eq!(
        (&answer["code"], &answer["message"]),
        (
            &json!(500),
            &json!("Internal error occurred: strict decoding error: unknown field \"spec\"")
        )
    );
    let (code, answer, _) =
        world.ask(Method::POST, MAPS, Some(map("same", json!({"a": "b"})))).await;
    assert_eq!((code, &answer["data"]), (201, &json!({"a": "b"})));
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn invalid_apply_configurations_are_denied() {
    let world = world().await;
    let spec =
        apply("Object{spec: Object.spec{selector: Object.spec.selector{matchLabels: {'l': 'v'}}}}");
    world.bind("mutating", "atomic", "apps/deployments", spec, json!({})).await;
    let answer = world.refused(DEPLOYMENTS, &deployment("d", 1)).await;
    assert_eq!(
        answer["message"],
        "policy 'atomic' with binding 'atomic-binding' denied request: error applying patch: invalid ApplyConfiguration: may not mutate atomic arrays, maps or structs: .spec.selector"
    );
    let spec = apply("Object{data: Object.wrong{a: 'b'}}");
    world.bind("mutating", "named", "/configmaps", spec, json!({})).await;
    let answer = world.refused(MAPS, &map("x", json!({}))).await;
    assert_eq!(
        answer["message"],
        "policy 'named' with binding 'named-binding' denied request: type mismatch: unexpected type name \"Object.wrong\", expected \"Object.data\", which matches field name path from root Object type"
    );
    world.end().await;
}

/// The second policy changes the input of the first: the first is reinvoked according to its
/// `reinvocationPolicy`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn policies_are_reinvoked() {
    let world = world().await;
    let append = |letter: &str, again: &str| {
        let text = format!("Object{{data: Object.data{{word: object.data.word + '{letter}'}}}}");
        let mut spec = apply(&text);
        spec["reinvocationPolicy"] = again.into();
        spec
    };
    world.bind("mutating", "a", "/configmaps", append("a", "IfNeeded"), json!({})).await;
    world.bind("mutating", "b", "/configmaps", append("b", "Never"), json!({})).await;
    let is_mutated = |_: u16, answer: &Value, _: &[String]| {
        answer["data"]["word"].as_str().is_some_and(|word| word.contains('b'))
    };
    let (_, answer, _) = world.until(MAPS, &map("x", json!({"word": ""})), is_mutated).await;
    assert_eq!(answer["data"]["word"], "aba");
    world.end().await;
}
