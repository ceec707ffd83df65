//! Ingresses become routes.

use super::*;
use http_proxy::routes::Action;
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
        if name == "expired" {
            return Some(expired_pair());
        }
        (name != "missing").then(|| {
            serde_json::from_value(json!({"metadata": {"name": name},
                "data": {"tls.crt": "bm9uZQ==", "tls.key": "bm9uZQ=="}}))
            .unwrap()
        })
    }
}

/// A Secret whose certificate ended with the year 2019.
fn expired_pair() -> Secret {
    let key = rcgen::KeyPair::generate().unwrap();
    let mut params = rcgen::CertificateParams::new(vec!["a.example".to_owned()]).unwrap();
    params.not_after = rcgen::date_time_ymd(2020, 1, 1);
    let certificate = params.self_signed(&key).unwrap();
    let data = [("tls.crt", certificate.pem()), ("tls.key", key.serialize_pem())];
    let encoded = data.map(|(name, pem)| {
        (name, base64::Engine::encode(&base64::engine::general_purpose::STANDARD, pem))
    });
    serde_json::from_value(json!({"metadata": {"name": "expired"},
        "data": std::collections::BTreeMap::from(encoded)}))
    .unwrap()
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
        Action::Location(status, location) => format!("{status} {}", location.to_str().unwrap()),
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

#[test]
fn an_expired_certificate_is_served_and_reported() {
    let spec = json!({"tls": [{"secretName": "expired", "hosts": ["a.example"]}],
        "rules": [{"host": "a.example", "http": {"paths": [path("Prefix", "/", "web")]}}]});
    let compiled = compiled(vec![ingress("late", "2026-01-01T00:00:00Z", spec)]);
    assert_eq!(compiled.certificates.len(), 1);
    let messages: Vec<&str> = compiled.problems.iter().map(|p| p.message.as_str()).collect();
    let start = "the certificate of Secret n/expired has expired (Jan";
    assert!(matches!(messages.as_slice(), [only] if only.starts_with(start)), "{messages:?}");
}

/// An Ingress of the path `/` of `a.example` with annotations of ingress-nginx.
fn annotated(name: &str, created: &str, service: &str, annotations: &[(&str, &str)]) -> Ingress {
    let rules = json!({"rules": [{"host": "a.example",
        "http": {"paths": [path("Prefix", "/", service)]}}]});
    let mut ingress = ingress(name, created, rules);
    let list = annotations
        .iter()
        .map(|(key, value)| (format!("nginx.ingress.kubernetes.io/{key}"), (*value).to_owned()));
    ingress.metadata.annotations = Some(list.collect());
    ingress
}

fn chosen(compiled: &Compiled, headers: &[(&'static str, &'static str)]) -> String {
    let mut request = http::Request::get("/");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let (parts, ()) = request.body(()).unwrap().into_parts();
    let rule = compiled.routes.find("a.example", "/", &parts).unwrap();
    let Action::Forward(forward) = &rule.action else { panic!("{rule:?}") };
    forward.choose(&parts.headers).unwrap().backend.as_ref().unwrap().name.to_string()
}

#[test]
fn a_canary_takes_requests_of_the_other_ingress() {
    let day = "2026-01-01T00:00:00Z";
    // The canary may be older than the Ingress.
    let canary = |name: &str, more: (&str, &str)| {
        annotated(name, "2025-01-01T00:00:00Z", "new", &[("canary", "true"), more])
    };
    let list = vec![
        annotated("main", day, "old", &[]),
        canary("first", ("canary-by-header", "x-new")),
        canary("second", ("canary-weight", "100")),
    ];
    let out = compiled(list);
    assert_eq!(chosen(&out, &[]), "n/old:http");
    assert_eq!(chosen(&out, &[("x-new", "always")]), "n/new:http");
    let messages: Vec<&str> = out.problems.iter().map(|p| p.message.as_str()).collect();
    assert_eq!(messages, ["path / of a.example has an older canary; this one has no effect"]);
    let alone = compiled(vec![canary("first", ("canary-weight", "1"))]);
    assert_eq!(route(&alone, "a.example", "/"), None);
    assert!(alone.problems[0].message.contains("has no other Ingress"), "{:?}", alone.problems);
}

#[test]
fn annotations_change_rules() {
    let day = "2026-01-01T00:00:00Z";
    let with = |list: &[(&str, &str)]| compiled(vec![annotated("i", day, "web", list)]);
    for (list, expected) in [
        (
            vec![("permanent-redirect", "https://b.example/x")],
            "301 Moved Permanently https://b.example/x",
        ),
        (
            vec![("permanent-redirect", "https://b.example"), ("temporal-redirect", "/y")],
            "302 Found /y",
        ),
        (
            vec![("permanent-redirect", "/x"), ("permanent-redirect-code", "308")],
            "308 Permanent Redirect /x",
        ),
        (vec![("app-root", "/app")], "redirect"),
        (vec![("backend-protocol", "HTTPS")], "n/web:http"),
        // Without the Secret no client is served.
        (vec![("auth-type", "basic"), ("auth-secret", "missing")], "503"),
        (vec![("auth-type", "basic")], "503"),
        (vec![("auth-type", "digest"), ("auth-secret", "users")], "503"),
        (vec![("auth-type", "basic"), ("auth-secret", "other/users")], "503"),
        (vec![("default-backend", "missing")], "503"),
    ] {
        let out = with(&list);
        assert_eq!(route(&out, "a.example", "/").as_deref(), Some(expected), "{list:?}");
    }
    let out = with(&[("server-alias", "b.example, c.example")]);
    for host in ["b.example", "c.example"] {
        assert_eq!(route(&out, host, "/").as_deref(), Some("n/web:http"), "{host}");
    }
}

#[test]
#[expect(clippy::print_stdout, reason = "the time is a figure to read")]
fn expressions_of_paths_are_bounded_and_the_longest_wins() {
    let day = "2026-01-01T00:00:00Z";
    let with = |name: &str, paths: Value| {
        let mut ingress =
            ingress(name, day, json!({"rules": [{"host": "a.example", "http": {"paths": paths}}]}));
        let key = "ingress.kube-lite.io/use-regex".to_owned();
        ingress.metadata.annotations = Some([(key, "true".to_owned())].into());
        ingress
    };
    let kind = "ImplementationSpecific";
    let out = compiled(vec![with(
        "i",
        json!([
            path(kind, "/(.*)", "any"),
            path(kind, "/api/v[0-9]+", "api"),
            path(kind, "/(?=x)", "bad"),
            path("Exact", "/api/v1", "exact")
        ]),
    )]);
    for (request, expected) in
        [("/API/v22/x", "api"), ("/x", "any"), ("/api/v1", "exact"), ("/api/vx", "any")]
    {
        let expected = format!("n/{expected}:http");
        assert_eq!(route(&out, "a.example", request), Some(expected), "{request}");
    }
    assert_eq!(out.problems.len(), 1);
    assert!(out.problems[0].message.contains("cannot be used"), "{:?}", out.problems);
    let many: Vec<Value> = (0..600).map(|n| path(kind, &format!("/{n}/(a|b)"), "web")).collect();
    let start = std::time::Instant::now();
    let out = compiled(vec![with("many", many.into())]);
    println!("600 expressions: {:?}", start.elapsed());
    assert_eq!(out.problems.len(), 100);
}

/// Prints time and size for 10,000 routes; run it with `--nocapture`.
#[test]
#[expect(clippy::print_stdout, reason = "the time is a figure to read")]
fn ten_thousand_routes_are_compiled_in_little_time() {
    let day = "2026-01-01T00:00:00Z";
    let list: Vec<Ingress> = (0..1000)
        .map(|n| {
            let paths: Vec<Value> =
                (0..10).map(|p| path("Prefix", &format!("/p{p}"), &format!("s{n}"))).collect();
            ingress(
                &format!("i{n}"),
                day,
                json!({"rules": [{"host": format!("h{n}.example"), "http": {"paths": paths}}]}),
            )
        })
        .collect();
    let start = std::time::Instant::now();
    let out = compiled(list);
    println!("10,000 routes: {:?}", start.elapsed());
    assert!(out.problems.is_empty());
    assert_eq!(route(&out, "h999.example", "/p9/x").as_deref(), Some("n/s999:http"));
    assert_eq!(route(&out, "h999.example", "/p10"), None);
}
