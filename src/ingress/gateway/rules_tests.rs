//! Rules of routes become rules of the proxy.

use super::*;
use serde_json::json;

#[test]
fn durations_are_those_of_gep_2257() {
    for (text, expected) in [
        ("500ms", Some(500)),
        ("10s", Some(10_000)),
        ("1h30m", Some(5_400_000)),
        ("1m1s1ms", Some(61_001)),
        ("0s", Some(0)),
        ("10", None),
        ("s", None),
        ("1.5h", None),
        ("-1s", None),
        ("99999999999999999999h", None),
    ] {
        let got = duration(text).ok().map(|d| d.as_millis());
        assert_eq!(got, expected, "{text}");
    }
}

fn rule(value: Value) -> RouteRule {
    serde_json::from_value(value).unwrap()
}

// `HTTPRouteTimeouts`: 0 is unlimited; without a limit for one attempt that of the request counts.
#[test]
fn limits_of_time() {
    for (spec, request, backend, read) in [
        (json!({}), None, None, Some(60)),
        (json!({"timeouts": {"request": "5s"}}), Some(5), None, None),
        (json!({"timeouts": {"request": "5s", "backendRequest": "2s"}}), Some(5), Some(2), None),
        (json!({"timeouts": {"backendRequest": "0s"}}), None, None, None),
    ] {
        let timeouts = timeouts(RouteKind::Http, &rule(spec)).unwrap();
        let seconds = |d: Option<Duration>| d.map(|d| d.as_secs());
        assert_eq!((seconds(timeouts.request), seconds(timeouts.backend)), (request, backend));
        assert_eq!(seconds(timeouts.read), read);
    }
    assert_eq!(timeouts(RouteKind::Grpc, &rule(json!({}))).unwrap().read, None);
}

// `GRPCMethodMatch`.
#[test]
fn methods_of_grpc_are_paths() {
    let path = |method: Value| match grpc_path(&method).unwrap() {
        PathMatch::Exact(path) => format!("exact {path}"),
        PathMatch::Prefix(path) => format!("prefix {path}"),
        PathMatch::Regex(regex) => regex.to_string(),
    };
    for (method, expected) in [
        (json!(null), "prefix /"),
        (json!({"service": "a.B", "method": "C"}), "exact /a.B/C"),
        (json!({"service": "a.B"}), "prefix /a.B"),
        (json!({"method": "C"}), "^(?:/(?:[^/]+)/(?:C))$"),
        (
            json!({"type": "RegularExpression", "service": "a.*", "method": "C|D"}),
            "^(?:/(?:a.*)/(?:C|D))$",
        ),
    ] {
        assert_eq!(path(method), expected);
    }
}

#[test]
fn what_is_not_supported_is_refused_by_name() {
    let path = |kind: &str, value: &str| {
        let value = TypedValue { kind: Some(kind.into()), value: value.into(), ..<_>::default() };
        http_path(Some(&value)).map(drop).map_err(|problem| problem.message)
    };
    assert!(path("RegularExpression", "/a(").unwrap_err().contains("regular expression"));
    assert!(path("RegularExpression", "(a{1000}){1000}").is_err());
    assert_eq!(path("Glob", "/a").unwrap_err(), "path type Glob is not supported");
    let filter = Filter { kind: "ExtensionRef".into(), ..Filter::default() };
    let mut edits = (HeaderEdits::default(), HeaderEdits::default(), None);
    let target = (&mut edits.0, &mut edits.1, &mut edits.2);
    let refused = apply(&filter, &PathMatch::Exact("/".into()), target).unwrap_err();
    assert_eq!(refused.message, "filter ExtensionRef is not supported here");
    let replace = PathModifier { replace_prefix_match: Some("/b".into()), ..<_>::default() };
    assert!(path_edit(Some(&replace), &PathMatch::Exact("/a".into())).is_err());
}

#[test]
fn only_the_first_of_equivalent_names_counts() {
    let one: RouteMatch = serde_json::from_value(json!({
        "headers": [{"name": "X-A", "value": "1"}, {"name": "x-a", "value": "2"}],
        "queryParams": [{"name": "q", "value": "1"}, {"name": "q", "value": "2"}],
    }))
    .unwrap();
    let conditions = conditions(&one, Some("GET")).unwrap();
    assert_eq!((conditions.headers.len(), conditions.queries.len()), (1, 1));
    assert_eq!(conditions.method, Some(Method::GET));
}
