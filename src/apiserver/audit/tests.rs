//! Tests of the events of requests through a whole server with an in-memory store.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use api::schema::Schema;
use base::Shutdown;
use serde_json::{Value, json};

use super::*;
use crate::authz::{Attributes, Authorizer, Decision};
use crate::listen::in_process::{Select, WatchStart};
use crate::request::body;
use crate::request::user::User;
use crate::{ApiServer, Config, Objects, Parts};

/// Allows all requests except those of the user `intruder`.
struct AllButIntruder;

#[async_trait::async_trait]
impl Authorizer for AllButIntruder {
    async fn authorize(&self, user: &User, _: &Attributes<'_>) -> Decision {
        match user.name.as_str() {
            "intruder" => Decision::NoOpinion("not you".into()),
            _ => Decision::Allow("RBAC: allowed by AllButIntruder".into()),
        }
    }
}

/// An admission plugin that panics for objects with the name `break`.
struct Fragile;

#[async_trait::async_trait]
impl crate::admission::Plugin for Fragile {
    fn name(&self) -> &'static str {
        "Fragile"
    }

    async fn validate(
        &self,
        request: &crate::admission::Request<'_>,
        _: Option<&Value>,
    ) -> Result<(), api::Status> {
        assert_ne!(request.name, "break", "it broke");
        annotate("fragile/seen", || request.name.to_owned());
        Ok(())
    }
}

/// A server that writes events to a file.
struct AuditedServer {
    server: ApiServer,
    stage: Tasks,
    path: PathBuf,
    _folder: tempfile::TempDir,
}

async fn recorded(rules: &str, arguments: &[&str]) -> AuditedServer {
    let folder = tempfile::tempdir().unwrap();
    let (policy, path) = (folder.path().join("policy.yaml"), folder.path().join("audit.log"));
    let text = format!("apiVersion: audit.k8s.io/v1\nkind: Policy\n{rules}");
    std::fs::write(&policy, text).unwrap();
    let mut all = vec![
        format!("audit-policy-file={}", policy.display()),
        format!("audit-log-path={}", path.display()),
    ];
    all.extend(arguments.iter().map(|argument| (*argument).to_owned()));
    let config = AuditConfig::read(&AuditFlags::parse(&all).unwrap()).unwrap().unwrap();
    let stage = Tasks::new(Shutdown::new());
    let audit = Audit::start(config, &stage).await.unwrap();
    let server = plain();
    server.audit(audit);
    AuditedServer { server, stage, path, _folder: folder }
}

fn plain() -> ApiServer {
    let tasks = Tasks::default();
    let objects = Objects::new(store::open_memory_with(&tasks), None, Schema::builtin(), &tasks);
    let parts = Parts {
        objects,
        authenticator: Arc::new(crate::authn::Union::new(Vec::new(), true)),
        authorizer: Arc::new(AllButIntruder),
        admission: vec![Arc::new(Fragile)],
        token_issuer: None,
        reviews: None,
        connect: None,
        impersonation: None,
    };
    crate::build(Config::default(), parts, tasks).unwrap()
}

impl AuditedServer {
    async fn ask(&self, user: &str, method: &str, url: &str, body: &str) -> Response<Body> {
        let user = User::authenticated(user, &[]);
        let request = Request::builder()
            .method(method)
            .uri(url)
            .header("content-type", "application/json")
            .header("audit-id", "id-1")
            .header("x-forwarded-for", "10.1.2.3")
            .header("user-agent", "test")
            .body(body::full(body.to_owned()))
            .unwrap();
        self.server.call(Some(user), request).await
    }

    /// Stops the server and returns all events in the log.
    async fn events(self) -> Vec<Value> {
        let Self { server, stage, path, _folder } = self;
        drop(server);
        stage.shutdown().request();
        assert!(stage.drain(Duration::from_secs(60)).await.is_empty());
        let text = std::fs::read_to_string(path).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

/// Checks the format of the timestamps and removes them.
fn without_times(mut event: Value) -> Value {
    for key in ["requestReceivedTimestamp", "stageTimestamp"] {
        let text = event[key].as_str().unwrap().to_owned();
        assert_eq!((text.len(), text.ends_with('Z')), (27, true), "{text}");
        event.as_object_mut().unwrap().remove(key);
    }
    event
}

const MAPS: &str = "/api/v1/namespaces/n/configmaps";

#[tokio::test]
async fn level_request_response_records_both_objects() {
    let recorded =
        recorded("rules: [{level: RequestResponse}]\nomitManagedFields: true", &[]).await;
    let body = r#"{"metadata":{"name":"a"},"data":{"k":"v"}}"#;
    let response = recorded.ask("jane", "POST", MAPS, body).await;
    assert_eq!(response.status(), 201);
    assert_eq!(response.headers()["audit-id"], "id-1");
    let mode = recorded.path.metadata().unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let events: Vec<Value> = recorded.events().await.into_iter().map(without_times).collect();
    let common = json!({
        "kind": "Event", "apiVersion": "audit.k8s.io/v1", "level": "RequestResponse", "auditID": "id-1",
        "stage": "RequestReceived", "requestURI": MAPS, "verb": "create",
        "user": {"username": "jane", "groups": ["system:authenticated"]},
        "sourceIPs": ["10.1.2.3"], "userAgent": "test",
        "objectRef": {"resource": "configmaps", "namespace": "n", "apiVersion": "v1"},
    });
    assert_eq!(events[0], common);
    let mut done = common;
    done["stage"] = "ResponseComplete".into();
    done["objectRef"]["name"] = "a".into();
    done["responseStatus"] = json!({"metadata": {}, "code": 201});
    done["requestObject"] = json!({"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": "a"}, "data": {"k": "v"}});
    done["annotations"] = json!({
        "authorization.k8s.io/decision": "allow", "authorization.k8s.io/reason": "RBAC: allowed by AllButIntruder", "fragile/seen": "a",
    });
    let mut last = events[1].clone();
    let object = last.as_object_mut().unwrap().remove("responseObject").unwrap();
    assert_eq!(last, done);
    assert_eq!(
        (object["kind"].as_str(), object["data"]["k"].as_str()),
        (Some("ConfigMap"), Some("v"))
    );
    assert!(object["metadata"]["uid"].is_string());
    assert!(object["metadata"].get("managedFields").is_none(), "{object}");
    assert_eq!(events.len(), 2);
}

#[tokio::test]
async fn level_metadata_records_no_objects() {
    let rules =
        "omitStages: [RequestReceived]\nrules: [{level: None, verbs: [list]}, {level: Metadata}]";
    let recorded = recorded(rules, &[]).await;
    recorded.ask("jane", "GET", MAPS, "").await;
    recorded.ask("jane", "POST", MAPS, r#"{"metadata":{"name":"a"}}"#).await;
    recorded
        .ask(
            "jane",
            "DELETE",
            &format!("{MAPS}/a"),
            r#"{"kind":"DeleteOptions","apiVersion":"v1"}"#,
        )
        .await;
    recorded.ask("jane", "GET", &format!("{MAPS}/a?x=%2F"), "").await;
    recorded.ask("intruder", "GET", "/version", "").await;
    let mut text = String::new();
    recorded.server.inner.audit.get().unwrap().render(&mut text);
    for line in [
        "apiserver_audit_event_total 4",
        "apiserver_audit_requests_rejected_total 0",
        "apiserver_audit_level_total{level=\"None\"} 1",
        "apiserver_audit_level_total{level=\"Metadata\"} 4",
    ] {
        assert!(text.lines().any(|l| l == line), "{line}: {text}");
    }
    let events = recorded.events().await;
    let shown: Vec<Value> = events
        .iter()
        .map(|e| {
            assert!(e.get("requestObject").or(e.get("responseObject")).is_none());
            json!([e["stage"], e["verb"], e["requestURI"], e["responseStatus"]])
        })
        .collect();
    assert_eq!(
        shown[0],
        json!(["ResponseComplete", "create", MAPS, {"metadata": {}, "code": 201}])
    );
    let deleted = &shown[1][3];
    assert_eq!(
        (deleted["status"].as_str(), deleted["code"].as_i64()),
        (Some("Success"), Some(200))
    );
    assert_eq!(deleted["details"]["name"], "a");
    assert_eq!(
        shown[2],
        json!(["ResponseComplete", "get", format!("{MAPS}/a?x=%2F"), {
            "metadata": {}, "status": "Failure", "message": "configmaps \"a\" not found", "reason": "NotFound",
            "details": {"name": "a", "kind": "configmaps"}, "code": 404,
        }])
    );
    assert_eq!(events[3]["annotations"]["authorization.k8s.io/decision"], "forbid");
    assert_eq!(events[3]["annotations"]["authorization.k8s.io/reason"], "not you");
    assert!(events[3].get("objectRef").is_none());
    assert_eq!(events[3]["responseStatus"]["code"], 403);
}

#[tokio::test]
async fn patches_are_recorded_unchanged_and_deletions_with_their_options() {
    let recorded = recorded("omitStages: [RequestReceived]\nrules: [{level: Request}]", &[]).await;
    recorded.ask("jane", "POST", MAPS, r#"{"metadata":{"name":"a"}}"#).await;
    let url = format!("{MAPS}/a");
    let request = Request::patch(&url)
        .header("content-type", "application/merge-patch+json")
        .body(body::full(r#"{"data":{"a":"b"}}"#))
        .unwrap();
    recorded.server.call(Some(User::anonymous()), request).await;
    let request = Request::patch(format!("{url}?fieldManager=m&force=true"))
        .header("content-type", "application/apply-patch+yaml")
        .body(body::full("apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: a\n"))
        .unwrap();
    recorded.server.call(Some(User::anonymous()), request).await;
    recorded.ask("jane", "DELETE", &url, r#"{"propagationPolicy":"Background"}"#).await;
    let events = recorded.events().await;
    assert_eq!(events[1]["requestObject"], json!({"data": {"a": "b"}}));
    assert_eq!(events[1]["objectRef"]["name"], "a");
    assert_eq!(
        events[2]["requestObject"],
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}})
    );
    assert_eq!(
        events[3]["requestObject"],
        json!({"kind": "DeleteOptions", "apiVersion": "meta.k8s.io/__internal", "propagationPolicy": "Background"})
    );
    assert!(events.iter().all(|event| event.get("responseObject").is_none()));
}

#[tokio::test]
async fn the_last_event_of_a_watch_follows_when_its_stream_is_dropped() {
    let recorded = recorded("rules: [{level: Metadata}]", &[]).await;
    let response = recorded.ask("jane", "GET", &format!("{MAPS}?watch=1"), "").await;
    assert_eq!(response.status(), 200);
    drop(response);
    let gvr = api::Gvr::new("", "v1", "configmaps");
    let user = User::authenticated("controller", &[]);
    let all = Select::default();
    let watch = recorded.server.watch_objects(&user, &gvr, &all, WatchStart::List).await;
    drop(watch.unwrap());
    let missing = recorded.server.get_object(&user, &gvr, "n", "a").await.unwrap_err();
    assert_eq!(missing.code, 404);
    let events = recorded.events().await;
    let of = |name: &str| -> Vec<Value> {
        let mine = events.iter().filter(|e| e["user"]["username"] == name);
        mine.map(|e| json!([e["stage"], e["verb"], e["requestURI"], e["responseStatus"]["code"]]))
            .collect()
    };
    let url = format!("{MAPS}?watch=1");
    assert_eq!(
        of("jane"),
        [
            json!(["RequestReceived", "watch", url, null]),
            json!(["ResponseStarted", "watch", url, 200]),
            json!(["ResponseComplete", "watch", url, 200]),
        ]
    );
    let watch = "/api/v1/configmaps?watch=true";
    let got = format!("{MAPS}/a");
    let mut all = of("controller");
    all.sort_by_key(|e| (e[1].to_string(), e[3].as_i64(), e[0] == "ResponseComplete"));
    assert_eq!(
        all,
        [
            json!(["RequestReceived", "get", got, null]),
            json!(["ResponseComplete", "get", got, 404]),
            json!(["RequestReceived", "watch", watch, null]),
            json!(["ResponseStarted", "watch", watch, 200]),
            json!(["ResponseComplete", "watch", watch, 200]),
        ]
    );
}

#[tokio::test]
async fn panics_and_disconnected_clients_are_recorded() {
    let recorded = recorded("omitStages: [RequestReceived]\nrules: [{level: Metadata}]", &[]).await;
    let response = recorded.ask("jane", "POST", MAPS, r#"{"metadata":{"name":"break"}}"#).await;
    assert_eq!(response.status(), 500);
    let events = {
        let asked = recorded.ask("joe", "GET", MAPS, "");
        // The first poll starts the request; dropping the future disconnects the client.
        assert!(futures::FutureExt::now_or_never(asked).is_none());
        recorded.events().await
    };
    assert_eq!(events[0]["stage"], "Panic");
    let status = &events[0]["responseStatus"];
    assert_eq!(
        (status["code"].as_i64(), status["reason"].as_str()),
        (Some(500), Some("InternalError"))
    );
    let message = status["message"].as_str().unwrap();
    assert!(
        message.starts_with("APIServer panic'd: ") && message.contains("it broke"),
        "{message}"
    );
    let last = events.last().unwrap();
    assert_eq!(
        (last["stage"].as_str(), last["user"]["username"].as_str()),
        (Some("ResponseComplete"), Some("joe"))
    );
    assert_eq!(
        last["responseStatus"],
        json!({"metadata": {}, "status": "Success", "message": "Connection closed early", "code": 200})
    );
}

#[tokio::test]
async fn a_request_that_is_rejected_before_authentication_has_one_event() {
    let recorded = recorded("rules: [{level: Metadata}]", &[]).await;
    let request = Request::get(format!("{MAPS}?timeout=x")).body(body::empty()).unwrap();
    assert_eq!(recorded.server.call(None, request).await.status(), 400);
    let events = recorded.events().await;
    assert_eq!(events.len(), 1);
    assert_eq!(
        (events[0]["stage"].as_str(), &events[0]["user"]),
        (Some("ResponseStarted"), &json!({}))
    );
    assert_eq!(events[0]["responseStatus"]["reason"], "BadRequest");
}

#[tokio::test]
async fn events_that_are_too_large_are_truncated_or_dropped() {
    let arguments = ["audit-log-truncate-enabled=true", "audit-log-truncate-max-event-size=2000"];
    let rules = "omitStages: [RequestReceived]\nrules: [{level: Request}]";
    let recorded = recorded(rules, &arguments).await;
    let body = json!({"metadata": {"name": "a"}, "data": {"k": "x".repeat(3000)}}).to_string();
    recorded.ask("jane", "POST", MAPS, &body).await;
    recorded.ask("jane", "GET", &format!("{MAPS}?labelSelector={}", "x".repeat(3000)), "").await;
    let mut text = String::new();
    recorded.server.inner.audit.get().unwrap().render(&mut text);
    assert!(text.contains("apiserver_audit_error_total{plugin=\"truncate\"} 1"), "{text}");
    let events = recorded.events().await;
    assert_eq!(events.len(), 1);
    assert!(events[0].get("requestObject").is_none());
    assert_eq!(events[0]["annotations"]["audit.k8s.io/truncated"], "true");
}

#[tokio::test]
async fn blocking_strict_rejects_requests_that_cannot_be_recorded() {
    for (mode, code) in [("blocking-strict", 500), ("blocking", 200), ("batch", 200)] {
        // Writes to this file fail as on a full disk.
        let full = ["audit-log-path=/dev/full", &format!("audit-log-mode={mode}")];
        let recorded = recorded("rules: [{level: Metadata}]", &full).await;
        let response = recorded.ask("jane", "GET", MAPS, "").await;
        assert_eq!(response.status().as_u16(), code, "{mode}");
        if code == 500 {
            let bytes = body::collect(response.into_body()).await.unwrap();
            let want = format!("Internal Server Error: \"{MAPS}\": failed to store audit event\n");
            assert_eq!(String::from_utf8_lossy(&bytes), want);
        }
        let audit = Arc::clone(recorded.server.inner.audit.get().unwrap());
        recorded.stage.shutdown().request();
        assert!(recorded.stage.drain(Duration::from_secs(60)).await.is_empty());
        let mut text = String::new();
        audit.render(&mut text);
        let rejected = u8::from(code == 500);
        assert!(
            text.contains(&format!("apiserver_audit_requests_rejected_total {rejected}\n")),
            "{text}"
        );
        let lost = if code == 500 { 1 } else { 2 };
        assert!(
            text.contains(&format!("apiserver_audit_error_total{{plugin=\"log\"}} {lost}\n")),
            "{mode}: {text}"
        );
    }
}

#[tokio::test]
async fn without_a_policy_requests_have_no_trail() {
    let server = plain();
    let request = Request::get(MAPS).body(body::empty()).unwrap();
    let response = server.call(Some(User::anonymous()), request).await;
    assert_eq!(response.status(), 200);
    // The response has an audit id nevertheless; that of a client is kept.
    let id = response.headers()["audit-id"].to_str().unwrap().to_owned();
    let parts: Vec<usize> = id.split('-').map(str::len).collect();
    assert_eq!(parts, [8, 4, 4, 4, 12], "{id}");
    let long = "x".repeat(200);
    let request = Request::get("/api/v1/none").header("audit-id", &long);
    let response = server.call(Some(User::anonymous()), request.body(body::empty()).unwrap()).await;
    assert_eq!(response.headers()["audit-id"], long);
    assert!(current().is_none());
    annotate("never", || unreachable!("the request is not recorded"));
    let flags = AuditFlags::parse(&["audit-log-path=/nonexistent/x".to_owned()]).unwrap();
    assert!(AuditConfig::read(&flags).unwrap().is_none());
}

#[test]
fn errors_name_the_flag_and_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let (policy, hook) = (folder.path().join("p.yaml"), folder.path().join("hook.yaml"));
    let read = |arguments: &[String]| {
        let flags = AuditFlags::parse(arguments).unwrap();
        AuditConfig::read(&flags).unwrap_err().to_string()
    };
    let flag = format!("audit-policy-file={}", policy.display());
    let flags = [flag.clone(), "audit-log-path=-".to_owned()];
    assert_eq!(
        read(&flags),
        format!(
            "audit-policy-file: cannot read {}: No such file or directory (os error 2)",
            policy.display()
        )
    );
    std::fs::write(&policy, "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: All}]")
        .unwrap();
    assert_eq!(
        read(&flags),
        format!(
            "{flag}: rules[0].level: Unsupported value: \"All\": supported values: \"None\", \"Metadata\", \"Request\", \
             \"RequestResponse\"; correct the file and start again"
        )
    );
    std::fs::write(&policy, "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: None}]")
        .unwrap();
    std::fs::write(&hook, "kind: Config").unwrap();
    let place = format!("audit-webhook-config-file={}", hook.display());
    assert_eq!(
        read(&[flag, place.clone()]),
        format!(
            "{place}: current-context: Required value: must name one of the contexts; correct the file and start again"
        )
    );
}
