//! C1.1: odd paths. The authorized request is the one that is served, so that no spelling of a path
//! bypasses the authorizer.

use super::*;
use crate::authz::{Attributes, Decision};

/// A value that no response may contain.
const CANARY: &str = "a2VlcC1vdXQ";

/// Allows plain paths, ConfigMaps of the namespace `a`, and namespaces except `b`; records the last
/// request of `joe`.
#[derive(Default)]
struct Guard(Mutex<String>);

#[async_trait]
impl Authorizer for Guard {
    async fn authorize(&self, user: &User, a: &Attributes<'_>) -> Decision {
        if user.name != "joe" {
            return Decision::Allow(String::new());
        }
        *self.0.lock() = format!("{}/{}/{}", a.resource, a.namespace, a.name);
        let allowed = match (a.group, a.resource, a.subresource) {
            ("", "", "") => !a.path.is_empty(),
            ("", "configmaps", "") => a.namespace == "a",
            ("", "namespaces", "") => a.name != "b" && a.namespace != "b",
            _ => false,
        };
        if allowed { Decision::Allow(String::new()) } else { Decision::Deny("not for joe".into()) }
    }
}

/// The spellings of a path.
fn spellings(path: &str) -> Vec<String> {
    const BETWEEN: [&str; 14] = [
        "//", "/./", "/../", "/x/../", "%2F", "%2f", "/%2e%2e/", "/%2E/", ";/", "/;x=1/", "%5C",
        "/%00/", "%252F", "/%20/",
    ];
    let mut all = vec![path.to_owned(), path.to_uppercase()];
    for (at, _) in path.match_indices('/') {
        let (head, tail) = (path.get(..at).unwrap(), path.get(at + 1..).unwrap());
        all.extend(BETWEEN.iter().map(|between| format!("{head}{between}{tail}")));
    }
    for end in [
        "/",
        "//",
        "/.",
        "/..",
        ";",
        "%20",
        "%00",
        "?watch=1&timeoutSeconds=1",
        "?namespace=a",
        "/status",
        ".json",
    ] {
        all.push(format!("{path}{end}"));
    }
    let tail = path.trim_start_matches("/api/v1/");
    for head in [
        "/api/v1/watch/",
        "/api/v1/proxy/",
        "/api/v1/namespaces/a/",
        "/api/v1/namespaces/a/configmaps/../../",
        "/healthz/../api/v1/",
        "/version/..//api/v1/",
        "/api/v1/namespaces/a/configmaps/x/../../../../",
        "/apis/v1/",
        "/apis//v1/",
        "/apis/core/v1/",
        "/api/v1%2f",
        "/api//v1/",
        "/API/v1/",
        "//api/v1/",
        "/./api/v1/",
        "/api/./v1/",
        "/openapi/../api/v1/",
        "/api/v1/namespaces//",
        "/api/v1/namespaces/a%2fsecrets%2f../",
    ] {
        // The allowed requests among these are watches, which end only with a timeout.
        let end = if head.contains("/watch/") { "?timeoutSeconds=1" } else { "" };
        all.push(format!("{head}{tail}{end}"));
    }
    all
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn authorizer_and_handler_agree_on_every_spelling_of_a_path() {
    let guard = Arc::new(Guard::default());
    let world =
        world_of(|parts| parts.authorizer = Arc::clone(&guard) as Arc<dyn Authorizer>).await;
    let made =
        |path: &'static str, object: Value| world.ask(Method::POST, path, "admin", &[], object);
    for name in ["a", "b"] {
        let namespace = json!({"metadata": {"name": name, "annotations": {"x": if name == "b" { CANARY } else { "" }}}});
        assert_eq!(made("/api/v1/namespaces", namespace).await.0, 201);
    }
    let secret = json!({"metadata": {"name": "s"}, "data": {"k": format!("{CANARY}=")}});
    assert_eq!(made("/api/v1/namespaces/a/secrets", secret).await.0, 201);
    let map = |name: &str, value: &str| json!({"metadata": {"name": name}, "data": {"k": value}});
    assert_eq!(made("/api/v1/namespaces/b/configmaps", map("hidden", CANARY)).await.0, 201);
    assert_eq!(made("/api/v1/namespaces/a/configmaps", map("x", "open")).await.0, 201);
    let joe = User::authenticated("joe", &[]);
    let mut tried = 0;
    for seed in [
        "/api/v1/namespaces/a/configmaps/x",
        "/api/v1/namespaces/a/secrets/s",
        "/api/v1/namespaces/a/secrets",
        "/api/v1/namespaces/b/configmaps/hidden",
        "/api/v1/namespaces/b/configmaps",
        "/api/v1/namespaces/b",
        "/api/v1/secrets",
        "/api/v1/configmaps",
    ] {
        for path in spellings(seed) {
            // An invalid URI cannot be sent.
            let Ok(request) = Request::builder().uri(&path).body(body::full("")) else { continue };
            tried += 1;
            guard.0.lock().clear();
            let response = Box::pin(world.server.call(Some(joe.clone()), request)).await;
            let code = response.status().as_u16();
            let bytes = body::read(response.into_body()).await.unwrap();
            let text = String::from_utf8_lossy(&bytes);
            let authorized = guard.0.lock().clone();
            // A list of all namespaces was allowed, and contains `b`.
            if authorized != "namespaces//" {
                assert!(!text.contains(CANARY), "{path}: {authorized}: {text}");
            }
            assert!((200..500).contains(&code), "{path}: {code} {text}");
            let answer: Value = serde_json::from_slice(&bytes).unwrap_or_default();
            let kind = answer["kind"].as_str().unwrap_or_default();
            if code == 200 && matches!(kind, "ConfigMap" | "Namespace" | "Secret") {
                let field = |name| answer["metadata"][name].as_str().unwrap_or_default();
                let plural = format!("{}s", kind.to_lowercase());
                let namespace =
                    if kind == "Namespace" { field("name") } else { field("namespace") };
                assert_eq!(authorized, format!("{plural}/{namespace}/{}", field("name")), "{path}");
            }
        }
    }
    assert!(tried > 400, "{tried}");
    // Plain requests still pass the authorizer.
    let request = Request::builder().uri("/api/v1/namespaces/a/configmaps/x");
    let request = request.body(body::full("")).unwrap();
    assert_eq!(Box::pin(world.server.call(Some(joe), request)).await.status(), 200);
    world.end().await;
}

/// C1.7: a cluster-scoped object has no URL in a namespace, and vice versa (CVE-2019-11247).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scopes_are_not_mixed() {
    let world = world().await;
    let rbac = "/apis/rbac.authorization.k8s.io/v1";
    for path in [
        "/api/v1/namespaces/default/nodes".to_owned(),
        "/api/v1/namespaces/default/persistentvolumes/x".to_owned(),
        format!("{rbac}/namespaces/default/clusterroles/cluster-admin"),
        format!("{rbac}/namespaces/default/clusterroles"),
        format!("{rbac}/roles/x"),
        "/api/v1/configmaps/x".to_owned(),
        "/apis/apiextensions.k8s.io/v1/namespaces/default/customresourcedefinitions".to_owned(),
    ] {
        for method in [Method::GET, Method::DELETE] {
            let (code, _) = world.ask(method.clone(), &path, "admin", &[], Value::Null).await;
            assert!(matches!(code, 404 | 405), "{method} {path}: {code}");
        }
    }
    let role = format!("{rbac}/clusterroles/cluster-admin");
    assert_eq!(world.ask(Method::GET, &role, "admin", &[], Value::Null).await.0, 200);
    world.end().await;
}

/// C2.6: names that a client invents create no metric series (CVE-2020-8552) and do not break
/// lines, for any response.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unknown_names_are_not_metric_labels() {
    let world = world().await;
    let ask = async |path: String, token: &str| {
        world.ask(Method::GET, &path, token, &[], Value::Null).await.0
    };
    for i in 0..50 {
        // First rejected before authentication, then not found, with a name that would forge a
        // line.
        assert_eq!(ask(format!("/api/v1/invented{i}?timeout=never"), "").await, 400);
        assert_eq!(ask(format!("/apis/invented{i}/v1/x%22%7D%201%0Aforged"), "admin").await, 404);
        assert_eq!(ask(format!("/api/v1/pods/invented{i}/invented"), "admin").await, 404);
        assert_eq!(
            ask(format!("/api/v1/namespaces/a/pods/p/invented{i}?timeout=never"), "").await,
            400
        );
    }
    assert_eq!(ask("/api/v1/pods".to_owned(), "admin").await, 200);
    let request = Request::builder().uri("/metrics").header("authorization", "Bearer admin");
    let response = Box::pin(world.server.call(None, request.body(body::full("")).unwrap())).await;
    let text = body::read(response.into_body()).await.unwrap();
    let text = String::from_utf8_lossy(&text);
    assert!(!text.contains("invented") && !text.contains("forged"), "{text}");
    assert!(text.contains("resource=\"pods\""));
    world.end().await;
}
