//! What etcd 3.7.3 answered to the same requests, asked over the wire.

use proto::etcdserverpb as pb;
use proto::etcdserverpb::compare::TargetUnion;
use proto::etcdserverpb::kv_client::KvClient;
use proto::etcdserverpb::lease_client::LeaseClient;
use proto::etcdserverpb::maintenance_client::MaintenanceClient;
use proto::etcdserverpb::request_op::Request as Step;
use proto::etcdserverpb::watch_client::WatchClient;
use proto::etcdserverpb::watch_request::RequestUnion;
use tokio::sync::mpsc;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

use super::*;

/// A served store in memory.
struct World {
    tasks: Tasks,
    channel: Channel,
    kv: KvClient<Channel>,
}

impl Drop for World {
    fn drop(&mut self) {
        self.tasks.shutdown().request();
    }
}

impl World {
    async fn new() -> Self {
        let tasks = Tasks::default();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let identity = Identity::of("cluster", "n1", vec![url.clone()]);
        let etcd = Etcd::new(
            store::open_memory_with(&tasks),
            identity,
            std::env::temp_dir(),
            tasks.clone(),
        );
        tasks.spawn(base::Kind::Request, "etcd", serve(etcd, listener, None));
        let channel = Endpoint::from_shared(url).unwrap().connect().await.unwrap();
        Self { tasks, kv: KvClient::new(channel.clone()), channel }
    }

    async fn put(&mut self, key: &str, value: &str) -> i64 {
        let put = pb::PutRequest { value: value.to_owned().into(), ..put(key) };
        self.kv.put(put).await.unwrap().into_inner().header.unwrap().revision
    }

    async fn watch(
        &self,
        requests: Vec<RequestUnion>,
    ) -> (mpsc::Sender<pb::WatchRequest>, tonic::Streaming<pb::WatchResponse>) {
        let (sender, mut receiver) = mpsc::channel(8);
        for request in requests {
            sender.send(pb::WatchRequest { request_union: Some(request) }).await.unwrap();
        }
        let stream = futures::stream::poll_fn(move |cx| receiver.poll_recv(cx));
        let watch = WatchClient::new(self.channel.clone()).watch(stream).await.unwrap();
        (sender, watch.into_inner())
    }
}

fn put(key: &str) -> pb::PutRequest {
    pb::PutRequest { key: key.to_owned().into(), ..Default::default() }
}

fn all() -> pb::RangeRequest {
    pb::RangeRequest { key: "a".into(), range_end: "z".into(), ..Default::default() }
}

fn told(status: &Status) -> (Code, &str) {
    (status.code(), status.message())
}

fn keys(kvs: &[proto::mvccpb::KeyValue]) -> Vec<String> {
    kvs.iter().map(|kv| String::from_utf8_lossy(&kv.key).into_owned()).collect()
}

#[tokio::test]
async fn reads_are_sorted_filtered_and_cut_as_etcd_does() {
    let mut world = World::new().await;
    for (key, value) in [("a", "3"), ("b", "1"), ("c", "2"), ("b", "4")] {
        world.put(key, value).await;
    }
    let by_value = pb::RangeRequest { sort_order: 2, sort_target: 4, limit: 2, ..all() };
    let found = world.kv.range(by_value).await.unwrap().into_inner();
    assert_eq!(
        (keys(&found.kvs), found.more, found.count),
        (vec!["b".to_owned(), "a".to_owned()], true, 3)
    );
    let late = pb::RangeRequest { min_mod_revision: 4, keys_only: true, ..all() };
    let found = world.kv.range(late).await.unwrap().into_inner();
    assert_eq!((keys(&found.kvs), found.count), (vec!["b".to_owned(), "c".to_owned()], 3));
    assert!(found.kvs.iter().all(|kv| kv.value.is_empty()));
    let before = pb::RangeRequest { revision: 3, ..all() };
    let found = world.kv.range(before).await.unwrap().into_inner();
    assert_eq!(
        (keys(&found.kvs), found.header.unwrap().revision),
        (vec!["a".to_owned(), "b".to_owned()], 5)
    );
    let error = world.kv.range(pb::RangeRequest { revision: 6, ..all() }).await.unwrap_err();
    assert_eq!(
        told(&error),
        (Code::OutOfRange, "etcdserver: mvcc: required revision is a future revision")
    );
    let error = world.kv.range(pb::RangeRequest::default()).await.unwrap_err();
    assert_eq!(told(&error), (Code::InvalidArgument, "etcdserver: key is not provided"));
    let error = world.kv.range(pb::RangeRequest { sort_order: 3, ..all() }).await.unwrap_err();
    assert_eq!(told(&error), (Code::InvalidArgument, "etcdserver: invalid sort option"));
    world.kv.compact(pb::CompactionRequest { revision: 4, physical: false }).await.unwrap();
    let error = world.kv.range(pb::RangeRequest { revision: 3, ..all() }).await.unwrap_err();
    assert_eq!(
        told(&error),
        (Code::OutOfRange, "etcdserver: mvcc: required revision has been compacted")
    );
}

#[tokio::test]
async fn a_streamed_read_is_the_read_in_parts_and_the_last_says_how_many() {
    let mut world = World::new().await;
    let large = "v".repeat(700_000);
    for key in ["a", "b", "c"] {
        world.put(key, &large).await;
    }
    let mut stream = world.kv.range_stream(all()).await.unwrap().into_inner();
    let mut parts = Vec::new();
    while let Some(part) = stream.message().await.unwrap() {
        let part = part.range_response.unwrap();
        parts.push((keys(&part.kvs).concat(), part.count, part.header.is_some()));
    }
    assert_eq!(
        parts,
        [("a".to_owned(), 0, false), ("b".to_owned(), 0, false), ("c".to_owned(), 3, true)]
    );
}

#[tokio::test]
async fn a_put_may_keep_the_value_or_the_lease_that_is_there() {
    let mut world = World::new().await;
    let mut leases = LeaseClient::new(world.channel.clone());
    leases.lease_grant(pb::LeaseGrantRequest { ttl: 60, id: 7 }).await.unwrap();
    world.kv.put(pb::PutRequest { value: "old".into(), lease: 7, ..put("a") }).await.unwrap();
    world
        .kv
        .put(pb::PutRequest { value: "new".into(), ignore_lease: true, ..put("a") })
        .await
        .unwrap();
    world.kv.put(pb::PutRequest { ignore_value: true, ..put("a") }).await.unwrap();
    let kv = world.kv.range(all()).await.unwrap().into_inner().kvs.remove(0);
    assert_eq!((&*kv.value, kv.lease, kv.version), (&b"new"[..], 0, 3));
    let error = world.kv.put(pb::PutRequest { ignore_value: true, ..put("b") }).await.unwrap_err();
    assert_eq!(told(&error), (Code::InvalidArgument, "etcdserver: key not found"));
    let error = world
        .kv
        .put(pb::PutRequest { ignore_value: true, value: "v".into(), ..put("a") })
        .await
        .unwrap_err();
    assert_eq!(told(&error), (Code::InvalidArgument, "etcdserver: value is provided"));
    let error = world.kv.put(pb::PutRequest { lease: 8, ..put("a") }).await.unwrap_err();
    assert_eq!(told(&error), (Code::NotFound, "etcdserver: requested lease not found"));
}

#[tokio::test]
async fn a_transaction_runs_one_branch_and_answers_each_step() {
    let mut world = World::new().await;
    world.put("a", "1").await;
    let step = |step| pb::RequestOp { request: Some(step) };
    let compare = pb::Compare {
        key: "a".into(),
        target: 3,
        target_union: Some(TargetUnion::Value("1".into())),
        ..Default::default()
    };
    let txn = pb::TxnRequest {
        compare: vec![compare],
        success: vec![
            step(Step::RequestDeleteRange(pb::DeleteRangeRequest {
                key: "x".into(),
                ..Default::default()
            })),
            step(Step::RequestPut(pb::PutRequest { prev_kv: true, ..put("a") })),
            step(Step::RequestRange(all())),
        ],
        failure: Vec::new(),
    };
    let done = world.kv.txn(txn).await.unwrap().into_inner();
    assert!(done.succeeded);
    let revisions: Vec<i64> = done
        .responses
        .into_iter()
        .map(|response| match response.response.unwrap() {
            pb::response_op::Response::ResponseDeleteRange(done) => done.header.unwrap().revision,
            pb::response_op::Response::ResponsePut(done) => {
                assert_eq!(&*done.prev_kv.unwrap().value, b"1");
                done.header.unwrap().revision
            }
            pb::response_op::Response::ResponseRange(found) => {
                assert_eq!(found.kvs[0].version, 2);
                found.header.unwrap().revision
            }
            pb::response_op::Response::ResponseTxn(_) => 0,
        })
        .collect();
    // What changed nothing before the first change says the revision before.
    assert_eq!(revisions, [2, 3, 3]);
    let twice = vec![step(Step::RequestPut(put("b"))), step(Step::RequestPut(put("b")))];
    let error =
        world.kv.txn(pb::TxnRequest { success: twice, ..Default::default() }).await.unwrap_err();
    assert_eq!(
        told(&error),
        (Code::InvalidArgument, "etcdserver: duplicate key given in txn request")
    );
    let many = (0..129).map(|n| step(Step::RequestPut(put(&n.to_string())))).collect();
    let error =
        world.kv.txn(pb::TxnRequest { success: many, ..Default::default() }).await.unwrap_err();
    assert_eq!(
        told(&error),
        (Code::InvalidArgument, "etcdserver: too many operations in txn request")
    );
}

#[tokio::test]
async fn leases_take_their_keys_along_and_say_how_long_they_live() {
    let mut world = World::new().await;
    let mut leases = LeaseClient::new(world.channel.clone());
    leases.lease_grant(pb::LeaseGrantRequest { ttl: 600, id: 7 }).await.unwrap();
    world.kv.put(pb::PutRequest { lease: 7, ..put("a") }).await.unwrap();
    let live = pb::LeaseTimeToLiveRequest { id: 7, keys: true };
    let told_of = leases.lease_time_to_live(live).await.unwrap().into_inner();
    assert_eq!((told_of.granted_ttl, told_of.keys), (600, vec!["a".into()]));
    assert!((590..=600).contains(&told_of.ttl), "{}", told_of.ttl);
    leases.lease_revoke(pb::LeaseRevokeRequest { id: 7 }).await.unwrap();
    assert_eq!(world.kv.range(all()).await.unwrap().into_inner().count, 0);
    let told_of = leases.lease_time_to_live(live).await.unwrap().into_inner();
    assert_eq!((told_of.ttl, told_of.granted_ttl), (-1, 0));
    let error = leases.lease_revoke(pb::LeaseRevokeRequest { id: 7 }).await.unwrap_err();
    assert_eq!(told(&error), (Code::NotFound, "etcdserver: requested lease not found"));
    let (sender, mut receiver) = mpsc::channel(1);
    sender.send(pb::LeaseKeepAliveRequest { id: 7 }).await.unwrap();
    let stream = futures::stream::poll_fn(move |cx| receiver.poll_recv(cx));
    let mut answers = leases.lease_keep_alive(stream).await.unwrap().into_inner();
    assert_eq!(answers.message().await.unwrap().unwrap().ttl, 0);
}

#[tokio::test]
async fn watches_share_a_stream_and_tell_of_history_compaction_and_progress() {
    let mut world = World::new().await;
    for value in ["1", "2", "3"] {
        world.put("a", value).await;
    }
    world.kv.compact(pb::CompactionRequest { revision: 3, physical: false }).await.unwrap();
    let create = |start_revision| {
        RequestUnion::CreateRequest(pb::WatchCreateRequest {
            key: "a".into(),
            start_revision,
            prev_kv: true,
            ..Default::default()
        })
    };
    let (sender, mut watch) = world.watch(vec![create(4), create(2)]).await;
    let mut next = async || watch.message().await.unwrap().unwrap();
    let first = next().await;
    assert_eq!((first.watch_id, first.created, first.header.unwrap().revision), (0, true, 4));
    // The first watch's events and the second's creation come in either order.
    let mut seen = [next().await, next().await, next().await];
    seen.sort_by_key(|response| (response.watch_id, !response.created));
    let event = &seen[0].events[0];
    assert_eq!(
        (&*event.kv.as_ref().unwrap().value, &*event.prev_kv.as_ref().unwrap().value),
        (&b"3"[..], &b"2"[..])
    );
    assert_eq!((seen[1].watch_id, seen[1].created, seen[1].canceled), (1, true, false));
    assert_eq!((seen[2].watch_id, seen[2].canceled, seen[2].compact_revision), (1, true, 3));
    assert_eq!(seen[2].cancel_reason, "");

    world
        .kv
        .delete_range(pb::DeleteRangeRequest { key: "a".into(), ..Default::default() })
        .await
        .unwrap();
    let deletion = next().await;
    let kv = deletion.events[0].kv.clone().unwrap();
    assert_eq!(
        (deletion.events[0].r#type, kv.mod_revision, kv.create_revision, kv.version),
        (1, 5, 0, 0)
    );

    world.put("elsewhere", "").await;
    let progress = RequestUnion::ProgressRequest(pb::WatchProgressRequest {});
    sender.send(pb::WatchRequest { request_union: Some(progress) }).await.unwrap();
    let told_of = next().await;
    assert_eq!(
        (told_of.watch_id, told_of.events.len(), told_of.header.unwrap().revision),
        (-1, 0, 6)
    );

    let cancel = RequestUnion::CancelRequest(pb::WatchCancelRequest { watch_id: 0 });
    sender.send(pb::WatchRequest { request_union: Some(cancel) }).await.unwrap();
    let end = next().await;
    assert_eq!((end.watch_id, end.canceled, end.compact_revision), (0, true, 0));
}

#[tokio::test]
async fn what_is_not_there_is_refused_by_name() {
    let world = World::new().await;
    let mut maintenance = MaintenanceClient::new(world.channel.clone());
    let error = maintenance.defragment(pb::DefragmentRequest {}).await.unwrap_err();
    assert_eq!(
        told(&error),
        (
            Code::Unimplemented,
            "kube-lite: defragmentation is not supported: the log is written anew with each checkpoint and has no holes"
        )
    );
    let status = maintenance.status(pb::StatusRequest {}).await.unwrap().into_inner();
    assert_eq!(status.version, "3.7.3");
    assert_eq!(status.leader, status.header.unwrap().member_id);
}

#[tokio::test]
async fn a_snapshot_comes_in_etcds_pieces_with_its_sum_at_the_end() {
    let world = World::new().await;
    let mut maintenance = MaintenanceClient::new(world.channel.clone());
    let mut pieces = maintenance.snapshot(pb::SnapshotRequest {}).await.unwrap().into_inner();
    let mut all = Vec::new();
    while let Some(piece) = pieces.message().await.unwrap() {
        all.push(piece);
    }
    let sum = all.pop().unwrap();
    assert_eq!((sum.remaining_bytes, sum.blob.len(), sum.version.as_str()), (0, 32, "3.6.0"));
    let mut database = Vec::new();
    for piece in &all {
        database.extend_from_slice(&piece.blob);
    }
    assert_eq!(database.len() % 4096, 0);
    assert_eq!(all[0].remaining_bytes, (database.len() - all[0].blob.len()) as u64);
    assert_eq!(ring::digest::digest(&ring::digest::SHA256, &database).as_ref(), &sum.blob[..]);
}
