//! The store's client of an external etcd, over this etcd: the contract tests of all engines, and a
//! failing connection.

use std::net::SocketAddr;
use std::time::Duration;

use store::{
    Backend, DatastoreTls, Endpoint as Place, Event, KeyRange, Op, RangeRequest, Revision,
    StoreError, Txn, open_external,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tonic::{Request, Response};

use super::*;

#[path = "../../store/external/sql/tests/contract.rs"]
mod contract;
#[path = "../../store/external/etcd/tests/facts.rs"]
mod facts;

fn place(addresses: &[SocketAddr]) -> Place {
    let urls: Vec<String> = addresses.iter().map(|at| format!("http://{at}")).collect();
    Place::parse(&urls.join(","), DatastoreTls::default()).unwrap()
}

async fn opened(addresses: &[SocketAddr]) -> (Arc<dyn Backend>, Tasks) {
    let tasks = Tasks::default();
    let store = open_external(place(addresses), None, &tasks).await.unwrap();
    (store, tasks)
}

async fn end(tasks: Tasks) {
    tasks.shutdown().request();
    let left = tasks.drain(Duration::from_secs(10)).await;
    assert_eq!((left, tasks.fault()), (Vec::new(), None));
}

macro_rules! every_fact {
    ($($fact:ident),*) => {$(
        #[tokio::test]
        async fn $fact() {
            let world = World::new().await;
            let (store, tasks) = opened(&[world.address]).await;
            contract::$fact(store).await;
            end(tasks).await;
        }
    )*};
}

every_fact!(revisions, guards, crowds, history, leases, updates);

#[tokio::test]
async fn held() {
    facts::held(&place(&[World::new().await.address])).await;
}

#[tokio::test]
async fn pages() {
    facts::pages(&place(&[World::new().await.address])).await;
}

#[tokio::test]
async fn whole() {
    let (dir, tasks) = (tempfile::tempdir().unwrap(), Tasks::default());
    let store = store::open(store::Config::new(dir.path()), &tasks).await.unwrap();
    facts::whole(&place(&[World::of(store, tasks).await.address])).await;
}

/// A proxy to `to` that, while the channel is set, drops responses and closes the connection.
async fn wire(to: SocketAddr) -> (SocketAddr, watch::Sender<bool>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (cut, is_cut) = watch::channel(false);
    let tasks = Tasks::default();
    let all = tasks.clone();
    tasks.spawn(base::Kind::Request, "wires", async move {
        while let Ok((near, _)) = listener.accept().await {
            let far = TcpStream::connect(to).await.unwrap();
            all.spawn(base::Kind::Request, "wire", forward(near, far, is_cut.clone()));
        }
        Ok::<(), std::convert::Infallible>(())
    });
    (address, cut)
}

async fn forward(
    near: TcpStream,
    far: TcpStream,
    cut: watch::Receiver<bool>,
) -> Result<(), std::io::Error> {
    let ((mut near_in, mut near_out), (mut far_in, mut far_out)) =
        (near.into_split(), far.into_split());
    let there = async { tokio::io::copy(&mut near_in, &mut far_out).await.map(drop) };
    let back = async {
        let mut buffer = [0; 4096];
        loop {
            let length = far_in.read(&mut buffer).await?;
            // This is the response to an executed request.
            if length == 0 || *cut.borrow() {
                return Ok(());
            }
            near_out.write_all(&buffer[..length]).await?;
        }
    };
    tokio::select! { done = there => done, done = back => done }
}

fn one(key: &'static str) -> Txn {
    let put = Op::Put { key: key.into(), value: "v".into(), lease: 0, prev_kv: false };
    Txn { success: vec![put], ..Txn::default() }
}

#[tokio::test]
async fn a_write_whose_answer_is_lost_is_told_as_unknown_and_not_sent_again() {
    let world = World::new().await;
    let (address, cut) = wire(world.address).await;
    let (store, tasks) = opened(&[address]).await;
    let mut watcher = store.watch(KeyRange::prefix("k/"), Some(Revision(2))).await.unwrap();
    store.txn(one("k/1")).await.unwrap();
    cut.send_replace(true);
    let refused = store.txn(one("k/2")).await.unwrap_err();
    assert!(matches!(refused, StoreError::Unknown(_)), "{refused}");
    let read = store.range(RangeRequest::new(KeyRange::key("k/2")));
    let recovery = async {
        tokio::task::yield_now().await;
        cut.send_replace(false);
    };
    let (found, ()) = tokio::join!(read, recovery);
    // It happened exactly once; reads and watches continue after the reconnect.
    let found = found.unwrap().kvs;
    assert_eq!((found[0].version, found[0].mod_revision), (1, Revision(3)));
    assert_eq!(store.txn(one("k/3")).await.unwrap().revision, Revision(4));
    let mut seen: Vec<Event> = Vec::new();
    while seen.len() < 3 {
        seen.extend(watcher.batches.recv().await.unwrap().unwrap().events);
    }
    let seen: Vec<i64> = seen.iter().map(|event| event.kv.mod_revision.0).collect();
    assert_eq!(seen, [2, 3, 4]);
    end(tasks).await;
}

#[tokio::test]
async fn the_next_member_is_asked_when_one_is_gone() {
    let world = World::new().await;
    let (first, cut) = wire(world.address).await;
    let (second, _) = wire(world.address).await;
    let (store, tasks) = opened(&[first, second]).await;
    store.txn(one("a")).await.unwrap();
    cut.send_replace(true);
    // A barrier is a read: the other member answers it.
    assert_eq!(store.read_barrier().await.unwrap(), Revision(2));
    store.txn(one("b")).await.unwrap();
    end(tasks).await;
}

#[tokio::test]
async fn a_watch_whose_place_is_compacted_while_etcd_is_away_is_told_so() {
    let mut world = World::new().await;
    let (address, cut) = wire(world.address).await;
    let (store, tasks) = opened(&[address]).await;
    let mut watcher = store.watch(KeyRange::prefix(""), Some(Revision(2))).await.unwrap();
    cut.send_replace(true);
    for _ in 0..4 {
        world.put("a", "x").await;
    }
    let compaction = pb::CompactionRequest { revision: 5, physical: true };
    world.kv.compact(compaction).await.unwrap();
    cut.send_replace(false);
    let error = loop {
        match watcher.batches.recv().await.unwrap() {
            Ok(batch) => assert!(batch.events.is_empty(), "{batch:?}"),
            Err(error) => break error,
        }
    };
    assert!(matches!(error, StoreError::Compacted { requested: 2, oldest: 5 }), "{error}");
    assert_eq!(
        (store.read_barrier().await.unwrap(), store.compacted()),
        (Revision(5), Revision(5))
    );
    let mut again = store.watch(KeyRange::prefix(""), Some(Revision(5))).await.unwrap();
    world.put("a", "y").await;
    let mut seen = Vec::new();
    while seen.len() < 2 {
        seen.extend(again.batches.recv().await.unwrap().unwrap().events);
    }
    assert_eq!((seen[0].kv.mod_revision, seen[1].kv.mod_revision), (Revision(5), Revision(6)));
    end(tasks).await;
}

/// An etcd with an unsupported old version.
struct OldEtcd;

type Answer<T> = Result<Response<T>, Status>;

#[tonic::async_trait]
impl pb::maintenance_server::Maintenance for OldEtcd {
    type SnapshotStream = futures::stream::Empty<Result<pb::SnapshotResponse, Status>>;

    async fn status(&self, _: Request<pb::StatusRequest>) -> Answer<pb::StatusResponse> {
        let version = "3.3.27".to_owned();
        Ok(Response::new(pb::StatusResponse { version, ..Default::default() }))
    }

    async fn alarm(&self, _: Request<pb::AlarmRequest>) -> Answer<pb::AlarmResponse> {
        Err(Status::unimplemented("old"))
    }

    async fn defragment(
        &self,
        _: Request<pb::DefragmentRequest>,
    ) -> Answer<pb::DefragmentResponse> {
        Err(Status::unimplemented("old"))
    }

    async fn hash(&self, _: Request<pb::HashRequest>) -> Answer<pb::HashResponse> {
        Err(Status::unimplemented("old"))
    }

    async fn hash_kv(&self, _: Request<pb::HashKvRequest>) -> Answer<pb::HashKvResponse> {
        Err(Status::unimplemented("old"))
    }

    async fn snapshot(&self, _: Request<pb::SnapshotRequest>) -> Answer<Self::SnapshotStream> {
        Err(Status::unimplemented("old"))
    }

    async fn move_leader(
        &self,
        _: Request<pb::MoveLeaderRequest>,
    ) -> Answer<pb::MoveLeaderResponse> {
        Err(Status::unimplemented("old"))
    }

    async fn downgrade(&self, _: Request<pb::DowngradeRequest>) -> Answer<pb::DowngradeResponse> {
        Err(Status::unimplemented("old"))
    }
}

#[tokio::test]
async fn an_unreachable_or_too_old_etcd_is_refused_with_the_reason() {
    let tasks = Tasks::default();
    // A free port: its listener is closed.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let gone = listener.local_addr().unwrap();
    drop(listener);
    let refused = open_external(place(&[gone]), None, &tasks).await.unwrap_err().to_string();
    let begin = format!("the datastore http://{gone} cannot be used: http://{gone}: ");
    assert!(refused.starts_with(&begin) && refused.contains("Connection refused"), "{refused}");

    let service = pb::maintenance_server::MaintenanceServer::new(OldEtcd);
    let mut server = tonic::transport::Server::builder();
    let served = server.add_service(service).serve(gone);
    let shutdown = tasks.clone();
    tasks.spawn(base::Kind::Request, "old", async move {
        tokio::select! { served = served => served, () = shutdown.shutdown().requested() => Ok(()) }
    });
    let refused = loop {
        match open_external(place(&[gone]), None, &tasks).await {
            Err(error) if error.to_string().contains("Connection refused") => {
                tokio::task::yield_now().await;
            }
            other => break other.unwrap_err().to_string(),
        }
    };
    let told = "its version is 3.3.27; the oldest supported version is 3.4: upgrade etcd";
    assert!(refused.contains(told), "{refused}");
    tasks.shutdown().request();
}
