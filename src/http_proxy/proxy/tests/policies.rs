//! Annotations at work: passwords, sessions, redirects, rewritten paths, encrypted endpoints.

use super::*;
use crate::routes::affinity::Affinity;
use crate::routes::auth::BasicAuth;
use crate::routes::edits::{PathEdit, Rewrite};
use crate::routes::pattern::{Pattern, Template};

#[tokio::test]
async fn requests_without_a_password_do_not_reach_the_endpoint() {
    let tasks = Tasks::new(Shutdown::new());
    let echo = Echo::start(&tasks).await;
    let (auth, _) = BasicAuth::from_file("Members", "user:{PLAIN}secret");
    let rule = rule(&[echo.address], |forward| forward.auth = Some(Arc::new(auth)));
    let proxy = proxy(rule, &tasks, None).await;
    let answer = exchange(proxy, &get("/", "")).await;
    assert_eq!(status(&answer), StatusCode::UNAUTHORIZED);
    assert!(answer.contains("www-authenticate: Basic realm=\"Members\"\r\n"), "{answer}");
    let wrong = exchange(proxy, &get("/", "Authorization: Basic dXNlcjp3cm9uZw==\r\n")).await;
    assert_eq!(status(&wrong), StatusCode::UNAUTHORIZED);
    assert_eq!(echo.connections.load(Ordering::SeqCst), 0);
    let right = exchange(proxy, &get("/", "Authorization: Basic dXNlcjpzZWNyZXQ=\r\n")).await;
    assert_eq!(status(&right), StatusCode::OK);
}

fn affinity(change_on_failure: bool) -> Affinity {
    Affinity {
        name: "route".into(),
        path: "/".into(),
        domain: None,
        max_age: None,
        same_site: None,
        secure: None,
        change_on_failure,
    }
}

fn cookie(answer: &str) -> Option<String> {
    let line = answer.lines().find_map(|line| line.strip_prefix("set-cookie: "))?;
    Some(line.split(';').next().unwrap().to_owned())
}

#[tokio::test]
async fn a_session_stays_with_its_endpoint() {
    let tasks = Tasks::new(Shutdown::new());
    let (first, second) = (Echo::start(&tasks).await, Echo::start(&tasks).await);
    let endpoints = [first.address, second.address];
    let rule = rule(&endpoints, |forward| forward.affinity = Some(affinity(false)));
    let proxy = proxy(rule, &tasks, None).await;
    let begun = cookie(&exchange(proxy, &get("/", "")).await).expect("a cookie");
    let before = [&first, &second].map(|echo| echo.connections.load(Ordering::SeqCst));
    for _ in 0..6 {
        // A new connection for each request shows the endpoint.
        let again = exchange(proxy, &get("/close", &format!("Cookie: {begun}\r\n"))).await;
        assert_eq!((status(&again), cookie(&again)), (StatusCode::OK, None));
    }
    let after = [&first, &second].map(|echo| echo.connections.load(Ordering::SeqCst));
    let other = usize::from(before[0] == 1);
    assert_eq!(after[other], before[other], "the other endpoint got no request");
    let unknown = exchange(proxy, &get("/", "Cookie: route=0000000000000001\r\n")).await;
    assert!(cookie(&unknown).is_some(), "{unknown}");
}

#[tokio::test]
async fn a_session_moves_on_failure_if_the_rule_says_so() {
    let tasks = Tasks::new(Shutdown::new());
    let echo = Echo::start(&tasks).await;
    let gone = {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        listener.local_addr().unwrap()
    };
    let id = crate::routes::affinity::EndpointId::new("n/echo:80", gone);
    let old = affinity(true).set_cookie(id, false).unwrap();
    let old = old.to_str().unwrap().split(';').next().unwrap().to_owned();
    for change in [true, false] {
        let rule = rule(&[gone, echo.address], |f| f.affinity = Some(affinity(change)));
        let proxy = proxy(rule, &tasks, None).await;
        let answer = exchange(proxy, &get("/", &format!("Cookie: {old}\r\n"))).await;
        assert_eq!(status(&answer), StatusCode::OK);
        assert_eq!(cookie(&answer).is_some(), change);
    }
}

#[tokio::test]
async fn challenges_of_authorities_are_served_without_tls() {
    let tasks = Tasks::new(Shutdown::new());
    let echo = Echo::start(&tasks).await;
    let proxy = proxy(rule(&[echo.address], |f| f.https_only = true), &tasks, None).await;
    for (path, expected) in [
        ("/", StatusCode::PERMANENT_REDIRECT),
        ("/.well-known/acme-challenge/token", StatusCode::OK),
        ("/.well-known/acme-challenge/../../admin", StatusCode::PERMANENT_REDIRECT),
        ("/.well-known/acme-challenge/%2e%2e/x", StatusCode::PERMANENT_REDIRECT),
    ] {
        assert_eq!(status(&exchange(proxy, &get(path, "")).await), expected, "{path}");
    }
}

#[tokio::test]
async fn endpoints_see_rewritten_paths() {
    let tasks = Tasks::new(Shutdown::new());
    let echo = Echo::start(&tasks).await;
    let pattern = Pattern::of_path("/app(/|$)(.*)").unwrap();
    let template = Template::new("/v1/$2");
    let path = Some(PathEdit::Groups { pattern, template });
    let change = |f: &mut Forward| f.rewrite = Some(Rewrite { host: None, path });
    let proxy = proxy(rule(&[echo.address], change), &tasks, None).await;
    let answer = exchange(proxy, &get("/app/x%0d%0aInjected:1/y?q=1", "")).await;
    assert!(answer.contains("GET /v1/x%0D%0AInjected:1/y?q=1 HTTP/1.1\r\n"), "{answer}");
}
