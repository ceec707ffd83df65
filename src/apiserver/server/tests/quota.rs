//! Quotas with failing writes, deletions, recounts and several servers over one store.

use std::collections::{BTreeMap, BTreeSet};

use super::*;
use crate::admission::quota::{ResourceQuota, total_usage};
use store::{Backend, KeyRange};

const SECRETS: &str = "/api/v1/namespaces/n/secrets";
const QUOTA: &str = "/api/v1/namespaces/n/resourcequotas/q";
const LIMIT: usize = 3;

fn over(store: &Arc<dyn Backend>, tasks: &Tasks) -> Arc<ApiServer> {
    Arc::new(server_over(Config::default(), Arc::clone(store), tasks.clone(), |objects| {
        vec![Arc::new(ResourceQuota::new(Arc::clone(objects) as Arc<dyn lookup::Lookup>))]
    }))
}

async fn create(server: &ApiServer, name: &str) -> u16 {
    post(server, SECRETS, json!({"metadata": {"name": name}})).await.0
}

async fn delete(server: &ApiServer, name: &str) -> u16 {
    ask(server, "DELETE", &format!("{SECRETS}/{name}"), "", "").await.0
}

async fn used(server: &ApiServer) -> String {
    let (_, quota) = ask(server, "GET", QUOTA, "", "").await;
    quota.pointer("/status/used/secrets").and_then(Value::as_str).unwrap_or("none").to_owned()
}

/// Creates a quota with its first status.
async fn limit(server: &ApiServer) {
    let hard = json!({"secrets": LIMIT.to_string()});
    let quota = json!({"metadata": {"name": "q"}, "spec": {"hard": hard}});
    let (code, mut made) = post(server, "/api/v1/namespaces/n/resourcequotas", quota).await;
    assert_eq!(code, 201, "{made}");
    made["status"] = json!({"hard": hard, "used": {"secrets": "0"}});
    let url = format!("{QUOTA}/status");
    assert_eq!(ask(server, "PUT", &url, "application/json", &made.to_string()).await.0, 200);
}

/// Recounts as the quota controller does: reads the quota and the objects, then writes the status
/// at the resource version of the quota.
async fn count(server: &ApiServer) -> u16 {
    let (_, mut quota) = ask(server, "GET", QUOTA, "", "").await;
    let (_, list) = ask(server, "GET", SECRETS, "", "").await;
    let objects = list["items"].as_array().unwrap();
    let amounts = total_usage(&lookup::SECRETS, &quota, objects, &BTreeMap::new());
    let amount = amounts.get("secrets").map_or_else(|| "0".to_owned(), ToString::to_string);
    quota["status"]["used"] = json!({"secrets": amount});
    let url = format!("{QUOTA}/status");
    ask(server, "PUT", &url, "application/json", &quota.to_string()).await.0
}

#[tokio::test]
async fn a_create_that_fails_uses_nothing() {
    let tasks = Tasks::default();
    let server = over(&store::open_memory_with(&tasks), &tasks);
    limit(&server).await;
    assert_eq!(create(&server, "a").await, 201);
    assert_eq!(used(&server).await, "1");
    for _ in 0..5 {
        assert_eq!(create(&server, "a").await, 409);
    }
    let dry = format!("{SECRETS}?dryRun=All");
    assert_eq!(post(&server, &dry, json!({"metadata": {"name": "d"}})).await.0, 201);
    assert_eq!(used(&server).await, "1");
    assert_eq!([create(&server, "b").await, create(&server, "c").await], [201, 201]);
    let (code, refusal) = post(&server, SECRETS, json!({"metadata": {"name": "d"}})).await;
    assert_eq!(code, 403);
    assert_eq!(
        refusal["message"],
        "secrets \"d\" is forbidden: exceeded quota: q, requested: secrets=1, used: secrets=3, limited: secrets=3"
    );
    assert_eq!(used(&server).await, "3");
}

#[tokio::test]
async fn an_object_and_its_usage_are_stored_at_one_revision() {
    let tasks = Tasks::default();
    let server = over(&store::open_memory_with(&tasks), &tasks);
    limit(&server).await;
    let (code, secret) = post(&server, SECRETS, json!({"metadata": {"generateName": "a-"}})).await;
    assert_eq!(code, 201);
    let (_, quota) = ask(&server, "GET", QUOTA, "", "").await;
    let version = |object: &Value| object["metadata"]["resourceVersion"].clone();
    assert_eq!(version(&secret), version(&quota));
    let url = format!("{SECRETS}/{}", secret["metadata"]["name"].as_str().unwrap());
    assert_eq!(ask(&server, "DELETE", &url, "", "").await.0, 200);
    assert_eq!((count(&server).await, used(&server).await.as_str()), (200, "0"));
}

/// Two servers over one store; writers create taken names, delete and recount concurrently. In any
/// order, no revision of the store has more objects than the limit, and the usage is never less
/// than the number of objects.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_limit_holds_at_every_revision() {
    let tasks = Tasks::default();
    let store: Arc<dyn Backend> = store::open_memory_with(&tasks);
    let servers = [over(&store, &tasks), over(&store, &tasks)];
    limit(&servers[0]).await;
    let first = store.revision();
    let mut writers = tokio::task::JoinSet::new();
    for writer in 0..8_usize {
        let server = Arc::clone(&servers[writer % 2]);
        writers.spawn(async move {
            let mut codes = Vec::new();
            for round in 0..60_usize {
                let name = format!("s{}", (round * 7 + writer * 3) % 5);
                match (round + writer) % 4 {
                    0 | 1 => codes.push(create(&server, &name).await),
                    2 => drop(delete(&server, &name).await),
                    _ => drop(count(&server).await),
                }
            }
            codes
        });
    }
    let codes = writers.join_all().await.concat();
    for code in [201, 403, 409] {
        assert!(codes.contains(&code), "no create was answered with {code}");
    }
    assert!(codes.iter().all(|code| [201, 403, 409].contains(code)), "{codes:?}");

    let last = store.revision();
    let range = KeyRange::prefix("/registry/");
    let mut history = store.watch(range, Some(store::Revision(first.0 + 1))).await.unwrap();
    let (mut there, mut used, mut seen) = (BTreeSet::new(), 0, first);
    while seen < last {
        let batch = history.batches.recv().await.unwrap().unwrap();
        for revision in batch.events.chunk_by(|a, b| a.kv.mod_revision == b.kv.mod_revision) {
            for event in revision {
                let key = String::from_utf8_lossy(&event.kv.key).into_owned();
                if key.contains("/resourcequotas/") {
                    let quota: Value = serde_json::from_slice(&event.kv.value).unwrap();
                    let amount = quota.pointer("/status/used/secrets").unwrap();
                    used = amount.as_str().unwrap().parse().unwrap();
                } else if event.deleted {
                    there.remove(&key);
                } else {
                    there.insert(key);
                }
            }
            assert!(there.len() <= LIMIT, "{there:?} at {:?}", revision[0].kv.mod_revision);
            assert!(there.len() <= used, "{there:?}, used: {used}");
        }
        seen = batch.revision;
    }
    while count(&servers[1]).await != 200 {}
    assert_eq!(self::used(&servers[0]).await, there.len().to_string());
}
