//! C1.5, C1.8, C1.9: a permission does not include others: no shells, no other subresources, no
//! further permissions, no hidden changes.

use super::*;

const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";
const MERGE: (&str, &str) = ("content-type", "application/merge-patch+json");
const JSON_PATCH: (&str, &str) = ("content-type", "application/json-patch+json");

impl World {
    async fn admin(&self, path: &str, object: Value) -> Value {
        let (code, answer) = self.ask(Method::POST, path, "admin", &[], object).await;
        assert!((200..300).contains(&code), "{path}: {code} {answer}");
        answer
    }

    /// Sends a request as another user.
    async fn of(
        &self,
        user: &str,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        object: Value,
    ) -> u16 {
        let mut all = vec![("impersonate-user", user)];
        all.extend(headers);
        let method = method.parse().unwrap();
        self.raw(method, path, &all, object).await
    }

    /// Like [`World::ask`], with a content type other than JSON.
    async fn raw(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        object: Value,
    ) -> u16 {
        let mut request =
            Request::builder().method(method).uri(path).header("authorization", "Bearer admin");
        if !headers.iter().any(|(name, _)| *name == "content-type") {
            request = request.header("content-type", "application/json");
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let content = if object.is_null() { String::new() } else { object.to_string() };
        let request = request.body(body::full(content)).unwrap();
        Box::pin(self.server.call(None, request)).await.status().as_u16()
    }

    /// Creates a pod, and the service account that it needs.
    async fn pod(&self) {
        let account = json!({"metadata": {"name": "default"}});
        self.admin("/api/v1/namespaces/default/serviceaccounts", account).await;
        self.admin("/api/v1/namespaces/default/pods", pod()).await;
    }

    /// Creates a cluster role for one user.
    async fn grant(&self, user: &str, rules: Value) {
        let role = json!({"metadata": {"name": user}, "rules": rules});
        self.admin(&format!("{RBAC}/clusterroles"), role).await;
        let binding = json!({"metadata": {"name": user}, "subjects": [{"kind": "User", "name": user, "apiGroup": "rbac.authorization.k8s.io"}],
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": user}});
        self.admin(&format!("{RBAC}/clusterrolebindings"), binding).await;
    }

    /// Waits until a request is no longer forbidden: the authorizer follows the bindings.
    async fn until_allowed(&self, user: &str, method: &str, path: &str, object: Value) -> u16 {
        let allowed = async {
            loop {
                let code = self.of(user, method, path, &[], object.clone()).await;
                if code != 403 {
                    return code;
                }
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(std::time::Duration::from_secs(60), allowed).await.unwrap()
    }
}

fn rule(group: &str, resources: &[&str], verbs: &[&str]) -> Value {
    json!({"apiGroups": [group], "resources": resources, "verbs": verbs})
}

fn pod() -> Value {
    json!({"metadata": {"name": "p"}, "spec": {"serviceAccountName": "default", "containers": [{"name": "c", "image": "i"}]}})
}

/// C1.5: read permissions give no shell, by WebSocket either: neither through the pod nor through
/// the node.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn read_permissions_do_not_allow_exec() {
    let world = world().await;
    world.pod().await;
    world.admin("/api/v1/nodes", json!({"metadata": {"name": "n"}})).await;
    let shells = ["pods", "pods/exec", "pods/attach", "pods/portforward", "nodes/proxy"];
    world.grant("reader", json!([rule("", &shells, &["get", "list", "watch"])])).await;
    world.grant("opener", json!([rule("", &shells, &["get", "create"])])).await;
    let upgrade = [("connection", "Upgrade"), ("upgrade", "websocket")];
    let pods = "/api/v1/namespaces/default/pods/p";
    assert_eq!(world.until_allowed("reader", "GET", pods, Value::Null).await, 200);
    assert_eq!(world.until_allowed("opener", "GET", pods, Value::Null).await, 200);
    for way in ["exec?command=id&stdout=1", "attach?stdout=1", "portforward?ports=80"] {
        let path = format!("{pods}/{way}");
        assert_eq!(world.of("reader", "GET", &path, &upgrade, Value::Null).await, 403, "{way}");
        assert_eq!(world.of("reader", "GET", &path, &[], Value::Null).await, 403, "{way}");
        assert_eq!(world.of("reader", "POST", &path, &upgrade, Value::Null).await, 403, "{way}");
        assert_ne!(world.of("opener", "GET", &path, &upgrade, Value::Null).await, 403, "{way}");
    }
    let path = "/api/v1/nodes/n/proxy/exec/default/p/c?command=id&output=1";
    assert_eq!(world.of("reader", "GET", path, &upgrade, Value::Null).await, 403);
    assert_ne!(world.of("opener", "GET", path, &upgrade, Value::Null).await, 403);
    // A request without upgrade only reads.
    assert_ne!(
        world.of("reader", "GET", "/api/v1/nodes/n/proxy/metrics", &[], Value::Null).await,
        403
    );
    world.end().await;
}

/// C1.8: no permission for an object extends to its subresources.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn subresources_need_their_own_permissions() {
    let world = world().await;
    world.pod().await;
    let all = ["create", "update", "patch", "get", "delete"];
    let core = rule(
        "",
        &["pods", "serviceaccounts", "namespaces", "nodes", "persistentvolumeclaims"],
        &all,
    );
    world
        .grant(
            "owner",
            json!([
                core,
                rule("apps", &["deployments"], &all),
                rule("certificates.k8s.io", &["certificatesigningrequests"], &all)
            ]),
        )
        .await;
    let pods = "/api/v1/namespaces/default/pods/p";
    assert_eq!(world.until_allowed("owner", "GET", pods, Value::Null).await, 200);
    let deployment = "/apis/apps/v1/namespaces/default/deployments/d";
    let request = "/apis/certificates.k8s.io/v1/certificatesigningrequests/c";
    for (method, path) in [
        ("PUT", format!("{pods}/status")),
        ("PATCH", format!("{pods}/status")),
        ("PATCH", format!("{pods}/ephemeralcontainers")),
        ("PATCH", format!("{pods}/resize")),
        ("POST", format!("{pods}/binding")),
        ("POST", format!("{pods}/eviction")),
        ("POST", format!("{pods}/exec")),
        ("GET", format!("{pods}/log")),
        ("GET", format!("{pods}/proxy/")),
        ("PATCH", format!("{deployment}/scale")),
        ("PATCH", format!("{deployment}/status")),
        ("POST", "/api/v1/namespaces/default/serviceaccounts/default/token".into()),
        ("PUT", "/api/v1/namespaces/default/finalize".into()),
        ("PATCH", "/api/v1/namespaces/default/status".into()),
        ("PATCH", "/api/v1/nodes/n/status".into()),
        ("GET", "/api/v1/nodes/n/proxy/".into()),
        ("PUT", format!("{request}/approval")),
        ("PUT", format!("{request}/status")),
    ] {
        let object = if method == "GET" { Value::Null } else { json!({}) };
        assert_eq!(world.of("owner", method, &path, &[], object).await, 403, "{method} {path}");
    }
    assert_eq!(
        world
            .of("owner", "PATCH", pods, &[MERGE], json!({"metadata": {"labels": {"a": "b"}}}))
            .await,
        200
    );
    world.end().await;
}

/// A request: method, path, headers and object.
type RoleWrite = (&'static str, String, Vec<(&'static str, &'static str)>, Value);

fn role(name: &str, rules: Value) -> Value {
    json!({"metadata": {"name": name}, "rules": rules})
}

/// A binding of `rita` to a cluster role of the same name.
fn binding(role: &str) -> Value {
    json!({
        "metadata": {"name": role},
        "subjects": [{"kind": "User", "name": "rita", "apiGroup": "rbac.authorization.k8s.io"}],
        "roleRef": {
            "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
    })
}

/// Writes of roles and bindings, by every verb, that grant more than the permission `own`.
fn role_escalations(own: &Value, secrets: &Value) -> Vec<RoleWrite> {
    let roles = format!("{RBAC}/namespaces/default/roles");
    let here = format!("{RBAC}/namespaces/default/rolebindings");
    let one = format!("{roles}/r");
    let grown = role("r", json!([own, secrets]));
    let apply = ("content-type", "application/apply-patch+yaml");
    let mut applied = grown.clone();
    applied["apiVersion"] = "rbac.authorization.k8s.io/v1".into();
    applied["kind"] = "Role".into();
    let (clusterroles, everywhere) =
        (format!("{RBAC}/clusterroles"), format!("{RBAC}/clusterrolebindings"));
    let mut aggregated = role("agg", json!([]));
    aggregated["aggregationRule"] = json!({"clusterRoleSelectors": [{"matchLabels": {"x": "y"}}]});
    let (forced, own_role) =
        (format!("{one}?fieldManager=x&force=true"), format!("{clusterroles}/rita"));
    vec![
        ("POST", roles.clone(), vec![], role("s", json!([secrets]))),
        ("POST", roles.clone(), vec![], role("s", json!([rule("*", &["*"], &["*"])]))),
        (
            "POST",
            roles.clone(),
            vec![],
            role("s", json!([rule("", &["configmaps"], &["get", "list"])])),
        ),
        (
            "POST",
            roles.clone(),
            vec![],
            role("s", json!([rule("", &["configmaps/status"], &["get"])])),
        ),
        ("PUT", one.clone(), vec![], grown),
        ("PATCH", one.clone(), vec![MERGE], json!({"rules": [own, secrets]})),
        (
            "PATCH",
            one.clone(),
            vec![JSON_PATCH],
            json!([{"op": "add", "path": "/rules/-", "value": secrets}]),
        ),
        ("PATCH", forced, vec![apply], applied),
        (
            "POST",
            clusterroles.clone(),
            vec![],
            role("u", json!([{"nonResourceURLs": ["/metrics"], "verbs": ["get"]}])),
        ),
        ("POST", clusterroles.clone(), vec![], aggregated),
        ("PATCH", own_role, vec![MERGE], json!({"rules": [rule("*", &["*"], &["*"])]})),
        ("POST", here.clone(), vec![], binding("cluster-admin")),
        ("POST", everywhere.clone(), vec![], binding("cluster-admin")),
        ("POST", everywhere.clone(), vec![], binding("system:kube-scheduler")),
    ]
}

/// C1.8: a user cannot grant permissions beyond the user's own, by any verb; only `escalate` and
/// `bind` allow it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn permissions_cannot_be_escalated() {
    let world = world().await;
    let all = ["create", "update", "patch", "get", "delete"];
    let writes = rule(
        "rbac.authorization.k8s.io",
        &["roles", "rolebindings", "clusterroles", "clusterrolebindings"],
        &all,
    );
    let own = rule("", &["configmaps"], &["get"]);
    world.grant("rita", json!([writes, own])).await;
    let mut bind = rule("rbac.authorization.k8s.io", &["clusterroles"], &["bind"]);
    bind["resourceNames"] = json!(["system:kube-scheduler"]);
    world.grant("bine", json!([writes, bind])).await;
    world
        .grant(
            "esther",
            json!([
                writes,
                rule("rbac.authorization.k8s.io", &["roles", "clusterroles"], &["escalate"])
            ]),
        )
        .await;
    let roles = format!("{RBAC}/namespaces/default/roles");
    let secrets = rule("", &["secrets"], &["get"]);
    assert_eq!(world.until_allowed("rita", "POST", &roles, role("r", json!([own]))).await, 201);
    assert_eq!(
        world.until_allowed("esther", "POST", &roles, role("e", json!([secrets]))).await,
        201
    );
    for (method, path, headers, object) in role_escalations(&own, &secrets) {
        let code = world.of("rita", method, &path, &headers, object.clone()).await;
        assert_eq!(code, 403, "{method} {path} {object}");
    }
    let here = format!("{RBAC}/namespaces/default/rolebindings");
    assert_eq!(
        world.until_allowed("bine", "POST", &here, binding("system:kube-scheduler")).await,
        201
    );
    assert_eq!(
        world.of("bine", "POST", &here, &[], binding("system:kube-controller-manager")).await,
        403
    );
    assert_eq!(world.of("bine", "POST", &roles, &[], role("b", json!([secrets]))).await, 403);
    world.end().await;
}

/// C1.9: the old object that a policy sees is the stored one, for every verb that writes
/// (CVE-2021-25735).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn policies_see_the_stored_object() {
    let world = world().await;
    let maps = "/api/v1/namespaces/default/configmaps";
    let map = |value: &str| json!({"metadata": {"name": "m"}, "data": {"k": value}});
    world.admin(maps, map("kept")).await;
    let group = "/apis/admissionregistration.k8s.io/v1";
    world.admin(&format!("{group}/validatingadmissionpolicies"), json!({"metadata": {"name": "kept"}, "spec": {
        "matchConstraints": {"resourceRules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["UPDATE"], "resources": ["configmaps"]}]},
        "validations": [{"expression": "object.data == oldObject.data"}]}})).await;
    world
        .admin(
            &format!("{group}/validatingadmissionpolicybindings"),
            json!({"metadata": {"name": "kept"}, "spec": {
        "policyName": "kept", "validationActions": ["Deny"]}}),
        )
        .await;
    let one = format!("{maps}/m");
    // The policy is in effect from here on; the dry run changes nothing before.
    let dry = format!("{one}?dryRun=All");
    let in_force = async {
        while world.raw(Method::PUT, &dry, &[], map("other")).await != 422 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(60), in_force).await.unwrap();
    let patch = json!({"data": {"k": "other"}});
    assert_eq!(world.raw(Method::PUT, &one, &[], map("other")).await, 422);
    assert_eq!(world.raw(Method::PATCH, &one, &[MERGE], patch).await, 422);
    let replace = json!([{"op": "replace", "path": "/data/k", "value": "other"}]);
    assert_eq!(world.raw(Method::PATCH, &one, &[JSON_PATCH], replace).await, 422);
    let label = json!({"metadata": {"labels": {"a": "b"}}});
    assert_eq!(world.raw(Method::PATCH, &one, &[MERGE], label).await, 200);
    world.end().await;
}
