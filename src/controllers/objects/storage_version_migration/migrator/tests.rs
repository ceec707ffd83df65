//! Whole migrations against a transport that lists objects in pages and records what is patched.

use std::collections::VecDeque;

use api::{Gvk, Status};
use async_trait::async_trait;
use base::Tasks;
use bytes::Bytes;
use client::{Informers, Scope, Transport, WatchStream};
use http::{Request, Response, StatusCode};
use parking_lot::Mutex;

use super::*;

/// Objects as name and resource version, in pages; the answers to patches, in order.
#[derive(Debug, Default)]
struct FakeServer {
    pages: Vec<Vec<(&'static str, &'static str)>>,
    answers: Mutex<VecDeque<(u16, &'static str)>>,
    patched: Mutex<Vec<String>>,
    status: Mutex<Value>,
}

fn token_of(query: &str) -> usize {
    let token = query.split('&').find_map(|pair| pair.strip_prefix("continue="));
    token.map_or(0, |token| token.parse().unwrap())
}

impl FakeServer {
    fn list(&self, query: &str) -> Value {
        let at = token_of(query);
        let next = (at + 1 < self.pages.len()).then(|| (at + 1).to_string());
        let items: Vec<Value> = self.pages[at]
            .iter()
            .map(|(name, version)| {
                json!({"metadata": {"name": name, "namespace": "n", "resourceVersion": version}})
            })
            .collect();
        json!({"metadata": {"resourceVersion": "9", "continue": next.unwrap_or_default()},
            "items": items})
    }
}

#[async_trait]
impl Transport for FakeServer {
    async fn call(&self, request: Request<Bytes>) -> Result<Response<Bytes>, Error> {
        let mut answer = Response::default();
        let mut body = json!({});
        match *request.method() {
            Method::GET => body = self.list(request.uri().query().unwrap_or_default()),
            Method::PUT => *self.status.lock() = serde_json::from_slice(request.body())?,
            _ => {
                let path = request.uri().path().rsplit('/').next().unwrap_or_default().to_owned();
                let sent: Value = serde_json::from_slice(request.body())?;
                let version = text(&sent, "/metadata/resourceVersion");
                self.patched.lock().push(format!("{path}@{version}"));
                if let Some((code, reason)) = self.answers.lock().pop_front()
                    && code != 200
                {
                    *answer.status_mut() = StatusCode::from_u16(code).unwrap();
                    body = serde_json::to_value(Status::failure(code, reason, "refused"))?;
                }
            }
        }
        *answer.body_mut() = body.to_string().into();
        Ok(answer)
    }

    async fn watch(&self, _: &Scope, _: Option<i64>) -> Result<WatchStream, Error> {
        let (sender, receiver) = tokio::sync::mpsc::channel(4);
        let object = api::Object::from_value(migration()).unwrap();
        sender.send(api::WatchEvent::Added(Arc::new(object))).await.unwrap();
        let bookmark = api::WatchEvent::Bookmark { revision: 1, initial: true };
        sender.send(bookmark).await.unwrap();
        std::mem::forget(sender);
        Ok(receiver)
    }
}

fn migration() -> Value {
    json!({"apiVersion": "storagemigration.k8s.io/v1", "kind": "StorageVersionMigration",
        "metadata": {"name": "m", "uid": "u", "resourceVersion": "1"},
        "spec": {"resource": {"group": "g", "resource": "rs"}},
        "status": {"resourceVersion": "5"}})
}

/// Runs a migration up to version 5; returns the server after it, and the error.
async fn run(server: FakeServer) -> (Arc<FakeServer>, Option<Error>) {
    let server = Arc::new(server);
    let client = Client::new(Arc::clone(&server) as Arc<dyn Transport>, "test");
    let tasks = Tasks::new(Shutdown::new());
    let informers = Informers::new(client.clone(), tasks.clone());
    let migrations = informers.scoped::<()>(Scope::all(super::super::migrations_gvr()));
    migrations.synced().await;
    let shutdown = tasks.shutdown().clone();
    let migrator = Migrator { client, migrations, pace: Pace::default(), shutdown };
    let served = Served {
        gvr: Gvr::new("g", "v1", "rs"),
        kind: Gvk::new("g", "v1", "R"),
        namespaced: true,
        verbs: Vec::new(),
    };
    let error = migrator.migrate(migration(), &served, "5").await.err();
    (server, error)
}

fn message(server: &FakeServer, kind: &str) -> Option<String> {
    let status = server.status.lock();
    let conditions = status.pointer("/status/conditions")?.as_array()?;
    let found = conditions.iter().find(|c| c["type"] == kind)?;
    Some(text(found, "/message").to_owned())
}

fn two_pages() -> FakeServer {
    FakeServer { pages: vec![vec![("a", "2"), ("b", "10")], vec![("c", "5")]], ..<_>::default() }
}

/// The cases of upstream's `TestSync` and `TestRunMigration`.
#[tokio::test]
async fn objects_up_to_the_version_are_rewritten() {
    let (server, error) = run(two_pages()).await;
    assert!(error.is_none());
    assert_eq!(*server.patched.lock(), ["a@2", "c@5"]);
    assert_eq!(message(&server, SUCCEEDED).as_deref(), Some("Migration completed"));
    let running = "The migration is running, 3 objects verified migrated";
    assert_eq!(message(&server, RUNNING).as_deref(), Some(running));
}

#[tokio::test]
async fn changed_and_deleted_objects_are_passed_over() {
    let answers = Mutex::new([(409, "Conflict"), (404, "NotFound")].into());
    let (server, error) = run(FakeServer { answers, ..two_pages() }).await;
    assert!(error.is_none());
    assert!(message(&server, SUCCEEDED).is_some());
}

#[tokio::test]
async fn a_transient_error_is_shown_and_returned() {
    let answers = Mutex::new([(200, ""), (429, "TooManyRequests")].into());
    let (server, error) = run(FakeServer { answers, ..two_pages() }).await;
    assert!(error.is_some());
    let running = "The migration is running, 1/3 objects not yet migrated; \
                   transient error: refused";
    assert_eq!(message(&server, RUNNING).as_deref(), Some(running));
    assert_eq!((message(&server, SUCCEEDED), message(&server, FAILED)), (None, None));
}

#[tokio::test]
async fn another_error_fails_the_migration() {
    let answers = Mutex::new([(200, ""), (403, "Forbidden")].into());
    let (server, error) = run(FakeServer { answers, ..two_pages() }).await;
    assert!(error.is_none());
    let failed = "1/3 not yet migrated. migration encountered unhandled error: refused";
    assert_eq!(message(&server, FAILED).as_deref(), Some(failed));
}

#[tokio::test]
async fn a_version_that_is_no_number_fails_the_migration() {
    let (server, error) = run(FakeServer { pages: vec![vec![("a", "x")]], ..<_>::default() }).await;
    assert!(error.is_none());
    let failed = "migration encountered unhandled error: resource version is not well formed: x";
    assert_eq!(message(&server, FAILED).as_deref(), Some(failed));
    assert!(server.patched.lock().is_empty());
}
