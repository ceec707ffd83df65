//! Tests of the offline transport over a scripted one: consecutive processes use the same folder.

use std::collections::VecDeque;

use api::Status;
use base::Shutdown;
use serde_json::json;

use super::*;
use crate::{Client, Informers};

/// A scripted response to a call or a watch.
enum Answer {
    /// A watch with these events; then the stream stays open (`true`) or ends.
    Events(Vec<WatchEvent>, bool),
    Fails(Error),
    /// No response ever.
    Hangs,
    /// The response to a call.
    Body(u16, serde_json::Value),
}

/// A transport that returns scripted responses in order.
#[derive(Clone, Default)]
struct Scripted {
    answers: Arc<Mutex<VecDeque<Answer>>>,
    /// `resume_from` of each watch.
    resumed_from: Arc<Mutex<Vec<Option<i64>>>>,
    /// Senders of the streams that stay open.
    open: Arc<Mutex<Vec<mpsc::Sender<WatchEvent>>>>,
}

impl fmt::Debug for Scripted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Scripted")
    }
}

fn no_server() -> Error {
    Error::Transport("connection refused".to_owned())
}

impl Scripted {
    fn new(answers: impl IntoIterator<Item = Answer>) -> Self {
        let this = Self::default();
        this.answers.lock().extend(answers);
        this
    }

    /// The next response; after the end of the script the server cannot be reached.
    fn next(&self) -> Answer {
        self.answers.lock().pop_front().unwrap_or_else(|| Answer::Fails(no_server()))
    }
}

#[async_trait]
impl Transport for Scripted {
    async fn call(&self, _: Request<Bytes>) -> Result<Response<Bytes>, Error> {
        match self.next() {
            Answer::Body(code, body) => {
                Ok(Response::builder().status(code).body(Bytes::from(body.to_string())).unwrap())
            }
            Answer::Fails(error) => Err(error),
            Answer::Hangs | Answer::Events(..) => std::future::pending().await,
        }
    }

    async fn watch(&self, _: &Scope, resume_from: Option<i64>) -> Result<WatchStream, Error> {
        self.resumed_from.lock().push(resume_from);
        match self.next() {
            Answer::Events(events, stays_open) => {
                let (sender, receiver) = mpsc::channel(64);
                for event in events {
                    sender.try_send(event).unwrap();
                }
                if stays_open {
                    self.open.lock().push(sender);
                }
                Ok(receiver)
            }
            Answer::Fails(error) => Err(error),
            Answer::Hangs | Answer::Body(..) => std::future::pending().await,
        }
    }
}

fn config_map(name: &str, version: i64, data: &str) -> Arc<Object> {
    let value = json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"k": data},
        "metadata": {"name": name, "namespace": "d", "uid": name, "resourceVersion": version.to_string()}});
    Arc::new(Object::from_value(value).unwrap())
}

/// The bookmark at the end of the initial list.
fn initial(revision: i64) -> WatchEvent {
    WatchEvent::Bookmark { revision, initial: true }
}

fn config_maps() -> Scope {
    Scope::all(Gvr::new("", "v1", "configmaps"))
}

/// Abbreviates the events of a stream that ends: `a@3=x`, `|7` for the end of the list.
async fn read(mut stream: WatchStream) -> Vec<String> {
    let mut out = Vec::new();
    while let Some(event) = stream.recv().await {
        out.push(match event {
            WatchEvent::Added(o) | WatchEvent::Modified(o) => {
                format!(
                    "{}@{}={}",
                    o.key.name,
                    o.resource_version,
                    o.value().unwrap()["data"]["k"].as_str().unwrap()
                )
            }
            WatchEvent::Deleted(o) => format!("-{}", o.key.name),
            WatchEvent::Bookmark { revision, .. } => format!("|{revision}"),
            WatchEvent::Error(status) => format!("!{}", status.code),
        });
    }
    out
}

/// One process; it ends when the tasks are drained.
struct Process {
    transport: OfflineTransport<Scripted>,
    script: Scripted,
    tasks: Tasks,
}

impl Process {
    fn start(home: &Path, answers: impl IntoIterator<Item = Answer>) -> Self {
        let tasks = Tasks::new(Shutdown::new());
        let script = Scripted::new(answers);
        let transport = OfflineTransport::open(script.clone(), home, &tasks).unwrap();
        Self { transport, script, tasks }
    }

    async fn end(self) {
        self.tasks.shutdown().request();
        assert!(self.tasks.drain(Duration::from_secs(60)).await.is_empty());
    }
}

/// A list of three objects, a modification and a deletion.
fn list_and_changes() -> Answer {
    let objects = [config_map("a", 3, "x"), config_map("b", 5, "y"), config_map("c", 6, "z")];
    let events = objects.into_iter().map(WatchEvent::Added).chain([
        initial(7),
        WatchEvent::Modified(config_map("a", 8, "x2")),
        WatchEvent::Deleted(config_map("b", 9, "y")),
    ]);
    Answer::Events(events.collect(), false)
}

/// Runs a process that fills the cache in `home`.
async fn fill_cache(home: &Path) {
    let process = Process::start(home, [list_and_changes()]);
    let events = read(process.transport.watch(&config_maps(), None).await.unwrap()).await;
    assert_eq!(events, ["a@3=x", "b@5=y", "c@6=z", "|7", "a@8=x2", "-b"]);
    process.end().await;
}

#[tokio::test]
async fn the_cache_is_served_when_no_server_answers() {
    let home = tempfile::tempdir().unwrap();
    fill_cache(home.path()).await;
    let process = Process::start(home.path(), []);
    let events = read(process.transport.watch(&config_maps(), None).await.unwrap()).await;
    assert_eq!(events, ["a@8=x2", "c@6=z", "|9"]);
    // A watcher that retries too often no longer gets the cache: it needs the server.
    for _ in 1..GIVEN_MAX {
        assert_eq!(
            read(process.transport.watch(&config_maps(), None).await.unwrap()).await.len(),
            3
        );
    }
    assert!(process.transport.watch(&config_maps(), None).await.is_err());
    assert!(process.transport.watch(&config_maps(), Some(9)).await.is_err());
    // A scope that was never watched is not served.
    assert!(
        process.transport.watch(&Scope::all(Gvr::new("", "v1", "secrets")), None).await.is_err()
    );
    process.end().await;
}

#[tokio::test(start_paused = true)]
async fn only_the_first_request_waits_briefly_for_an_unresponsive_server() {
    let home = tempfile::tempdir().unwrap();
    fill_cache(home.path()).await;
    let process = Process::start(home.path(), [Answer::Hangs, Answer::Hangs]);
    let begun = clock::now();
    let events = read(process.transport.watch(&config_maps(), None).await.unwrap()).await;
    assert_eq!(events.last().unwrap(), "|9");
    assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
    process.end().await;
    // A server that answers is preferred to the cache.
    let process = Process::start(home.path(), [Answer::Events(vec![initial(20)], false)]);
    assert_eq!(read(process.transport.watch(&config_maps(), None).await.unwrap()).await, ["|20"]);
    process.end().await;
    let process = Process::start(home.path(), []);
    assert_eq!(read(process.transport.watch(&config_maps(), None).await.unwrap()).await, ["|20"]);
    process.end().await;
}

#[tokio::test]
async fn a_damaged_file_counts_as_missing() {
    let home = tempfile::tempdir().unwrap();
    fill_cache(home.path()).await;
    let path = home.path().join(file_name(&config_maps()));
    let mut bytes = std::fs::read(&path).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&path, bytes).unwrap();
    let process = Process::start(home.path(), []);
    assert!(process.transport.watch(&config_maps(), None).await.is_err());
    assert!(path.with_extension("bad").exists());
    process.end().await;
    fill_cache(home.path()).await;
}

#[tokio::test]
async fn the_file_of_a_forgotten_scope_is_removed() {
    let home = tempfile::tempdir().unwrap();
    fill_cache(home.path()).await;
    let process = Process::start(home.path(), []);
    let _ = read(process.transport.watch(&config_maps(), None).await.unwrap()).await;
    process.transport.forget(&config_maps());
    let path = home.path().join(file_name(&config_maps()));
    tokio::time::timeout(Duration::from_secs(60), async {
        while path.exists() {
            tokio::task::yield_now().await;
        }
    })
    .await
    .unwrap();
    process.end().await;
}

#[tokio::test]
async fn only_claims_are_cached_of_objects_that_are_read_by_name() {
    let home = tempfile::tempdir().unwrap();
    let claim = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": {"name": "c", "namespace": "d", "uid": "u", "resourceVersion": "4"}, "spec": {"volumeName": "v"}});
    let get = |path: &str| Request::get(path).body(Bytes::new()).unwrap();
    let path = "/api/v1/namespaces/d/persistentvolumeclaims/c";
    let secret = "/api/v1/namespaces/d/secrets/s";
    let process = Process::start(
        home.path(),
        [Answer::Body(200, claim.clone()), Answer::Body(200, claim.clone())],
    );
    assert_eq!(process.transport.call(get(path)).await.unwrap().status(), 200);
    assert_eq!(process.transport.call(get(secret)).await.unwrap().status(), 200);
    process.end().await;
    let process = Process::start(
        home.path(),
        [Answer::Fails(no_server()), Answer::Fails(no_server()), Answer::Fails(no_server())],
    );
    let answer = process.transport.call(get(path)).await.unwrap();
    assert_eq!(serde_json::from_slice::<serde_json::Value>(answer.body()).unwrap(), claim);
    assert!(process.transport.call(get(secret)).await.is_err());
    let delete = Request::delete(path).body(Bytes::new()).unwrap();
    assert!(process.transport.call(delete).await.is_err());
    process.end().await;
    // After the server reports its deletion, the object is gone.
    let gone = json!({"kind": "Status", "code": 404, "reason": "NotFound"});
    let process = Process::start(home.path(), [Answer::Body(404, gone)]);
    assert_eq!(process.transport.call(get(path)).await.unwrap().status(), 404);
    assert!(process.transport.call(get(path)).await.is_err());
    process.end().await;
}

#[tokio::test]
async fn an_informer_starts_from_the_cache_and_relists_when_its_revision_is_gone() {
    let home = tempfile::tempdir().unwrap();
    fill_cache(home.path()).await;
    let too_new =
        Status::failure(504, "Timeout", "Timeout: Too large resource version: 9, current: 2");
    let answers = [
        Answer::Fails(no_server()),
        // A server restored from a backup.
        Answer::Fails(too_new.into()),
        Answer::Events(vec![WatchEvent::Added(config_map("a", 2, "old")), initial(2)], true),
    ];
    let process = Process::start(home.path(), answers);
    let client = Client::new(Arc::new(process.transport.clone()), "test");
    let informers = Informers::new(client, process.tasks.clone());
    let events = Arc::new(Mutex::new(Vec::new()));
    let informer: crate::Informer<()> = informers.scoped(config_maps());
    let (done, mut is_done) = mpsc::channel(8);
    let note = Arc::clone(&events);
    informer.on_change(move |change| {
        let kind = match change {
            crate::Change::Added(_) => "+",
            crate::Change::Updated { .. } => "=",
            crate::Change::Deleted(_) => "-",
        };
        note.lock().push(format!("{kind}{}", change.object().key.name));
        if kind == "-" {
            let _ = done.try_send(());
        }
    });
    informer.synced().await;
    tokio::time::timeout(Duration::from_secs(60), is_done.recv()).await.unwrap();
    assert_eq!(*events.lock(), ["+a", "+c", "=a", "-c"]);
    assert_eq!(*process.script.resumed_from.lock(), [None, Some(9), None]);
    process.end().await;
}

#[tokio::test]
async fn waiters_are_woken_when_a_server_is_reached_again() {
    let home = tempfile::tempdir().unwrap();
    let process =
        Process::start(home.path(), [Answer::Fails(no_server()), Answer::Events(vec![], true)]);
    assert!(process.transport.watch(&config_maps(), Some(1)).await.is_err());
    let transport = process.transport.clone();
    let mut back = std::pin::pin!(transport.back());
    assert!(futures::poll!(&mut back).is_pending());
    let _open = process.transport.watch(&config_maps(), Some(1)).await.unwrap();
    tokio::time::timeout(Duration::from_secs(60), back).await.unwrap();
    process.end().await;
}

#[test]
fn status_updates_of_pods_are_not_written_unless_the_phase_changes() {
    let pods = Gvr::new("", "v1", "pods");
    let pod = |version: i64, change: serde_json::Value| {
        let mut value = json!({"apiVersion": "v1", "kind": "Pod", "spec": {"nodeName": "n"},
            "metadata": {"name": "p", "namespace": "d", "uid": "u", "resourceVersion": version.to_string()},
            "status": {"phase": "Running", "startTime": "t", "conditions": [{"type": "Ready", "status": "False"}]}});
        for (pointer, new) in change.as_object().unwrap() {
            let (parent, field) = pointer.rsplit_once('/').unwrap();
            value.pointer_mut(parent).unwrap()[field] = new.clone();
        }
        Arc::new(Object::from_value(value).unwrap())
    };
    let mut memory = Memory::default();
    let mut list = Some(BTreeMap::new());
    assert!(!memory.apply(&pods, &mut list, &WatchEvent::Added(pod(1, json!({})))));
    assert!(memory.apply(&pods, &mut list, &initial(1)), "the first list");
    let mut version = 1;
    let mut is_written = |change: serde_json::Value| {
        version += 1;
        memory.apply(&pods, &mut None, &WatchEvent::Modified(pod(version, change)))
    };
    assert!(!is_written(json!({"/status/conditions": [], "/status/podIP": "10.42.0.2"})));
    assert!(!is_written(json!({"/metadata/managedFields": [{"manager": "x"}]})));
    assert!(is_written(json!({"/metadata/deletionTimestamp": "t"})));
    assert!(is_written(json!({"/status/phase": "Succeeded"})));
    assert!(is_written(json!({"/spec/nodeName": "other"})));
    // An identical list changes nothing.
    let mut list = Some(BTreeMap::new());
    let last = pod(version, json!({"/spec/nodeName": "other"}));
    memory.apply(&pods, &mut list, &WatchEvent::Added(Arc::clone(&last)));
    assert!(!memory.apply(&pods, &mut list, &initial(99)));
    // Older events of a lagging stream of the same scope are ignored.
    assert!(!memory.apply(&pods, &mut None, &WatchEvent::Modified(pod(2, json!({"/spec": {}})))));
    assert!(!memory.apply(&pods, &mut None, &WatchEvent::Deleted(pod(3, json!({})))));
    let listed = memory.as_list().unwrap();
    assert!(matches!(
        listed.as_slice(),
        [WatchEvent::Added(_), WatchEvent::Bookmark { revision: 99, initial: true }]
    ));
}
