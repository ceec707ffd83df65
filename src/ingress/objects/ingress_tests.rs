//! Ingresses become routes.

use super::*;
use serde_json::{Value, json};

struct Cluster;

impl References for Cluster {
    fn service(&self, _: &str, name: &str) -> Option<Service> {
        (name != "missing").then(|| {
            serde_json::from_value(json!({"metadata": {"name": name},
                "spec": {"ports": [{"name": "http", "port": 80}]}}))
            .unwrap()
        })
    }

    fn secret(&self, _: &str, name: &str) -> Option<Secret> {
        (name != "missing").then(|| {
            serde_json::from_value(json!({"metadata": {"name": name},
                "data": {"tls.crt": "bm9uZQ==", "tls.key": "bm9uZQ=="}}))
            .unwrap()
        })
    }
}

fn classes(list: Value) -> Classes {
    let list: Vec<IngressClass> = serde_json::from_value(list).unwrap();
    Classes::new(&list)
}

fn own() -> Classes {
    classes(json!([{"metadata": {"name": "kube-lite"}, "spec": {"controller": CONTROLLER}}]))
}

fn ingress(name: &str, created: &str, spec: Value) -> Ingress {
    let mut spec = spec;
    spec["ingressClassName"] = "kube-lite".into();
    serde_json::from_value(json!({"metadata": {"namespace": "n", "name": name,
        "creationTimestamp": created}, "spec": spec}))
    .unwrap()
}

fn path(kind: &str, path: &str, service: &str) -> Value {
    json!({"pathType": kind, "path": path,
        "backend": {"service": {"name": service, "port": {"number": 80}}}})
}

fn compiled(ingresses: Vec<Ingress>) -> Compiled {
    compile(ingresses, &own(), &Cluster, &mut BackendRegistry::default())
}

fn route(compiled: &Compiled, host: &str, path: &str) -> Option<String> {
    let (parts, ()) = http::Request::get(path).body(()).unwrap().into_parts();
    let rule = compiled.routes.find(host, path, &parts)?;
    Some(match &rule.action {
        Action::Forward(forward) => {
            forward.split.choose().unwrap().backend.as_ref().unwrap().name.to_string()
        }
        Action::Status(status) => status.as_u16().to_string(),
        Action::Redirect(_) => "redirect".into(),
    })
}

#[test]
fn an_ingress_is_served_by_its_class_or_the_default_class() {
    let all = classes(json!([
        {"metadata": {"name": "own", "annotations": {DEFAULT_ANNOTATION: "true"}},
         "spec": {"controller": CONTROLLER}},
        {"metadata": {"name": "nginx"}, "spec": {"controller": "k8s.io/ingress-nginx"}}]));
    let with = |spec: Value, annotations: Value| -> Ingress {
        serde_json::from_value(json!({"metadata": {"annotations": annotations}, "spec": spec}))
            .unwrap()
    };
    for (spec, annotations, served) in [
        (json!({"ingressClassName": "own"}), json!({}), true),
        (json!({"ingressClassName": "nginx"}), json!({}), false),
        (json!({}), json!({CLASS_ANNOTATION: "own"}), true),
        (json!({}), json!({CLASS_ANNOTATION: "nginx"}), false),
        (json!({}), json!({}), true),
    ] {
        assert_eq!(all.contain(&with(spec.clone(), annotations)), served, "{spec}");
    }
    assert!(!own().contain(&with(json!({}), json!({}))), "no class is the default");
}

#[test]
fn hosts_paths_and_default_backends_choose_the_service() {
    let shop = ingress(
        "shop",
        "2026-01-01T00:00:00Z",
        json!({
        "defaultBackend": {"service": {"name": "fallback", "port": {"name": "http"}}},
        "rules": [
            {"host": "shop.example", "http": {"paths": [
                path("Prefix", "/", "web"), path("Exact", "/cart", "cart")]}},
            {"host": "*.shop.example", "http": {"paths": [
                path("ImplementationSpecific", "/api", "api")]}}]}),
    );
    let compiled = compiled(vec![shop]);
    for (host, path, backend) in [
        ("shop.example", "/a", "n/web:http"),
        ("shop.example", "/cart", "n/cart:http"),
        ("shop.example", "/cart/", "n/web:http"),
        ("a.shop.example", "/api/v1", "n/api:http"),
        ("a.shop.example", "/", "n/fallback:http"),
        ("b.a.shop.example", "/api", "n/fallback:http"),
        ("other.example", "/", "n/fallback:http"),
    ] {
        assert_eq!(route(&compiled, host, path).as_deref(), Some(backend), "{host}{path}");
    }
    assert_eq!(compiled.problems, []);
}

#[test]
fn the_older_of_two_equal_rules_wins_and_the_younger_reports_it() {
    let rules = |service: &str| json!({"rules": [{"host": "A.example", "http": {"paths": [path("Prefix", "/x/", service)]}}]});
    let young = ingress("a-young", "2026-02-01T00:00:00Z", rules("young"));
    let old = ingress("b-old", "2026-01-01T00:00:00Z", rules("old"));
    let compiled = compiled(vec![young, old]);
    assert_eq!(route(&compiled, "a.example", "/x").as_deref(), Some("n/old:http"));
    let problem = Problem {
        namespace: "n".into(),
        name: "a-young".into(),
        message: "path /x/ of A.example is served by an older Ingress; this rule has no effect"
            .into(),
    };
    assert_eq!(compiled.problems, [problem]);
}

#[test]
fn what_cannot_be_served_answers_503_and_is_reported() {
    let bad = ingress(
        "bad",
        "2026-01-01T00:00:00Z",
        json!({
        "tls": [{"secretName": "missing"}, {"secretName": "broken"}],
        "rules": [{"http": {"paths": [
            path("Prefix", "/missing", "missing"),
            {"pathType": "Prefix", "path": "/bucket", "backend": {"resource": {
                "apiGroup": "k8s.example.com", "kind": "StorageBucket", "name": "b"}}}]}}]}),
    );
    let compiled = compiled(vec![bad]);
    for path in ["/missing", "/bucket"] {
        assert_eq!(route(&compiled, "a.example", path).as_deref(), Some("503"));
    }
    assert_eq!(route(&compiled, "a.example", "/"), None);
    let messages: Vec<&str> = compiled.problems.iter().map(|p| p.message.as_str()).collect();
    assert_eq!(
        messages,
        [
            "Service n/missing does not exist",
            "a backend refers to a resource (StorageBucket), which is not supported; use a Service",
            "the default certificate is used: Secret n/missing of type kubernetes.io/tls does not exist",
            "the default certificate is used: Secret n/broken: tls.crt: no certificate in PEM",
        ]
    );
}
