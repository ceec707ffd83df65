//! Requests over the wire with the answers of etcd 3.7.3.

mod external;
mod front;
mod wire;

use proto::etcdserverpb as pb;
use proto::etcdserverpb::cluster_client::ClusterClient;
use proto::etcdserverpb::compare::TargetUnion;
use proto::etcdserverpb::kv_client::KvClient;
use proto::etcdserverpb::lease_client::LeaseClient;
use proto::etcdserverpb::maintenance_client::MaintenanceClient;
use proto::etcdserverpb::request_op::Request as Step;
use proto::etcdserverpb::watch_client::WatchClient;
use proto::etcdserverpb::watch_request::RequestUnion;
use std::sync::Arc;

use base::Tasks;
use store::{Backend, Profile};
use tokio::sync::mpsc;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

use super::*;

/// A served store in memory.
struct World {
    tasks: Tasks,
    address: std::net::SocketAddr,
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
        let store = store::open_memory_with(&tasks);
        Self::of(store, tasks).await
    }

    /// Serves a store of `tasks`.
    async fn of(store: Arc<dyn Backend>, tasks: Tasks) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let url = format!("http://{address}");
        let profile = Profile { name: "n1".to_owned(), client_urls: vec![url.clone()] };
        let etcd = Etcd::new(store, profile, std::env::temp_dir(), tasks.clone());
        tasks.spawn(base::Kind::Request, "etcd", serve(etcd, listener, None));
        let channel = Endpoint::from_shared(url).unwrap().connect().await.unwrap();
        Self { tasks, address, kv: KvClient::new(channel.clone()), channel }
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

fn refusal(status: &Status) -> (Code, &str) {
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
    // Without an order the first two keys are sorted, and one of them is returned.
    let by_value = pb::RangeRequest { sort_target: 4, limit: 1, ..all() };
    let found = world.kv.range(by_value).await.unwrap().into_inner();
    assert_eq!((keys(&found.kvs), found.more, found.count), (vec!["a".to_owned()], true, 3));
    // Equal elements keep the order of their keys.
    let by_version = pb::RangeRequest { sort_order: 2, sort_target: 1, ..all() };
    let found = world.kv.range(by_version).await.unwrap().into_inner();
    assert_eq!(keys(&found.kvs), ["b", "a", "c"]);
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
        refusal(&error),
        (Code::OutOfRange, "etcdserver: mvcc: required revision is a future revision")
    );
    let error = world.kv.range(pb::RangeRequest::default()).await.unwrap_err();
    assert_eq!(refusal(&error), (Code::InvalidArgument, "etcdserver: key is not provided"));
    let error = world.kv.range(pb::RangeRequest { sort_order: 3, ..all() }).await.unwrap_err();
    assert_eq!(refusal(&error), (Code::InvalidArgument, "etcdserver: invalid sort option"));
    world.kv.compact(pb::CompactionRequest { revision: 4, physical: false }).await.unwrap();
    let error = world.kv.range(pb::RangeRequest { revision: 3, ..all() }).await.unwrap_err();
    assert_eq!(
        refusal(&error),
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
    // Any target is accepted without an order; an unknown order is not.
    for (sort_order, sort_target, expected) in [
        (0, 4, Ok(())),
        (0, 1, Ok(())),
        (1, 0, Ok(())),
        (1, 4, Err("RangeStream does not support custom sort orders")),
        (2, 0, Err("RangeStream does not support custom sort orders")),
    ] {
        let request = pb::RangeRequest { sort_order, sort_target, ..all() };
        let answer = world.kv.range_stream(request).await;
        let refusal = answer.as_ref().map(|_| ()).map_err(|error| {
            assert_eq!(error.code(), Code::Unimplemented);
            error.message()
        });
        assert_eq!(refusal, expected, "{sort_order} {sort_target}");
    }
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
    assert_eq!(refusal(&error), (Code::InvalidArgument, "etcdserver: key not found"));
    let error = world
        .kv
        .put(pb::PutRequest { ignore_value: true, value: "v".into(), ..put("a") })
        .await
        .unwrap_err();
    assert_eq!(refusal(&error), (Code::InvalidArgument, "etcdserver: value is provided"));
    let error = world.kv.put(pb::PutRequest { lease: 8, ..put("a") }).await.unwrap_err();
    assert_eq!(refusal(&error), (Code::NotFound, "etcdserver: requested lease not found"));
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
    // A transaction without changes before the first one returns the previous revision.
    assert_eq!(revisions, [2, 3, 3]);
    let twice = vec![step(Step::RequestPut(put("b"))), step(Step::RequestPut(put("b")))];
    let error =
        world.kv.txn(pb::TxnRequest { success: twice, ..Default::default() }).await.unwrap_err();
    assert_eq!(
        refusal(&error),
        (Code::InvalidArgument, "etcdserver: duplicate key given in txn request")
    );
    let many = (0..129).map(|n| step(Step::RequestPut(put(&n.to_string())))).collect();
    let error =
        world.kv.txn(pb::TxnRequest { success: many, ..Default::default() }).await.unwrap_err();
    assert_eq!(
        refusal(&error),
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
    assert_eq!(refusal(&error), (Code::NotFound, "etcdserver: requested lease not found"));
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
    // The first watch's events and the second's creation may arrive in either order.
    let mut seen = [next().await, next().await, next().await];
    seen.sort_by_key(|response| (response.watch_id, !response.created));
    let event = &seen[0].events[0];
    assert_eq!(
        (&*event.kv.as_ref().unwrap().value, &*event.prev_kv.as_ref().unwrap().value),
        (&b"3"[..], &b"2"[..])
    );
    assert_eq!((seen[1].watch_id, seen[1].created, seen[1].canceled), (1, true, false));
    assert_eq!((seen[2].watch_id, seen[2].canceled, seen[2].compact_revision), (1, true, 3));
    assert_eq!((&*seen[2].cancel_reason, seen[2].header.unwrap().revision), ("", 0));

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

    // A watch cancelled by a compaction is cancelled again on request, and keeps its id until then.
    for watch_id in [0, 1] {
        let cancel = RequestUnion::CancelRequest(pb::WatchCancelRequest { watch_id });
        sender.send(pb::WatchRequest { request_union: Some(cancel) }).await.unwrap();
        let end = next().await;
        assert_eq!((end.watch_id, end.canceled, end.compact_revision), (watch_id, true, 0));
        assert_eq!(end.header.unwrap().revision, 6);
    }
}

/// Events of a watch: 0 for a put, 1 for a deletion, the value, and the previous value.
type WatchEvents = Vec<(i32, String, Option<String>)>;

#[tokio::test]
async fn watches_of_the_same_key_are_told_what_each_of_them_wants() {
    use pb::watch_create_request::FilterType;
    let mut world = World::new().await;
    let create = |prev_kv, filters: &[FilterType]| {
        RequestUnion::CreateRequest(pb::WatchCreateRequest {
            key: "k".into(),
            prev_kv,
            filters: filters.iter().map(|filter| *filter as i32).collect(),
            ..Default::default()
        })
    };
    let (noput, nodelete) = (FilterType::Noput, FilterType::Nodelete);
    let requests =
        [(false, &[][..]), (true, &[]), (true, &[noput]), (false, &[nodelete]), (false, &[])];
    let requests = requests.map(|(prev_kv, filters)| create(prev_kv, filters));
    let (_sender, mut watch) = world.watch(requests.into()).await;
    let mut next = async || watch.message().await.unwrap().unwrap();
    for id in 0..5 {
        assert_eq!(next().await.watch_id, id);
    }
    world.put("k", "1").await;
    world.put("k", "2").await;
    let delete = pb::DeleteRangeRequest { key: "k".into(), ..Default::default() };
    world.kv.delete_range(delete).await.unwrap();
    let mut seen: [WatchEvents; 5] = Default::default();
    while seen.iter().map(Vec::len).sum::<usize>() < 12 {
        let response = next().await;
        for event in response.events {
            let text = |kv: proto::mvccpb::KeyValue| String::from_utf8(kv.value.to_vec()).unwrap();
            let refusal = (event.r#type, event.kv.map(text).unwrap(), event.prev_kv.map(text));
            seen[usize::try_from(response.watch_id).unwrap()].push(refusal);
        }
    }
    let refusal = |events: &[(i32, &str, Option<&str>)]| -> WatchEvents {
        events
            .iter()
            .map(|(kind, now, before)| (*kind, (*now).into(), before.map(Into::into)))
            .collect()
    };
    let plain = refusal(&[(0, "1", None), (0, "2", None), (1, "", None)]);
    assert_eq!(seen[0], plain);
    assert_eq!(seen[1], refusal(&[(0, "1", None), (0, "2", Some("1")), (1, "", Some("2"))]));
    assert_eq!(seen[2], refusal(&[(1, "", Some("2"))]));
    assert_eq!(seen[3], refusal(&[(0, "1", None), (0, "2", None)]));
    assert_eq!(seen[4], plain);
}

#[tokio::test]
async fn unsupported_calls_are_refused_by_name() {
    let world = World::new().await;
    let mut maintenance = MaintenanceClient::new(world.channel.clone());
    let error = maintenance.downgrade(pb::DowngradeRequest::default()).await.unwrap_err();
    assert_eq!(
        refusal(&error),
        (
            Code::Unimplemented,
            "kube-lite: a downgrade is not supported: the version is that of kube-lite"
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

#[tokio::test]
async fn alarms_are_raised_refuse_and_end_as_etcds() {
    let mut world = World::new().await;
    world.put("a", "1").await;
    let mut maintenance = MaintenanceClient::new(world.channel.clone());
    let mut ask = async |action, alarm| {
        let request = pb::AlarmRequest { action, member_id: 9, alarm };
        let alarms = maintenance.alarm(request).await.unwrap().into_inner().alarms;
        alarms.iter().map(|alarm| (alarm.member_id, alarm.alarm)).collect::<Vec<_>>()
    };
    assert_eq!((ask(1, 0).await, ask(0, 0).await), (vec![], vec![]));
    assert_eq!((ask(1, 1).await, ask(1, 1).await), (vec![(9, 1)], vec![(9, 1)]));
    assert_eq!((ask(0, 0).await, ask(0, 2).await), (vec![(9, 1)], vec![]));
    let full = (Code::ResourceExhausted, "etcdserver: mvcc: database space exceeded");
    let error = world.kv.put(put("b")).await.unwrap_err();
    assert_eq!(refusal(&error), full);
    let mut leases = LeaseClient::new(world.channel.clone());
    let grant = pb::LeaseGrantRequest { ttl: 60, id: 7 };
    assert_eq!(refusal(&leases.lease_grant(grant).await.unwrap_err()), full);
    let delete = pb::DeleteRangeRequest { key: "a".into(), ..Default::default() };
    assert_eq!(world.kv.delete_range(delete.clone()).await.unwrap().into_inner().deleted, 1);
    assert_eq!((ask(2, 1).await, ask(2, 1).await, ask(0, 0).await), (vec![(9, 1)], vec![], vec![]));
    world.put("b", "1").await;
    ask(1, 2).await;
    let error = world.kv.delete_range(delete).await.unwrap_err();
    assert_eq!(refusal(&error), (Code::DataLoss, "etcdserver: corrupt cluster"));
    assert_eq!(world.kv.range(all()).await.unwrap().into_inner().count, 1);
    let mut maintenance = MaintenanceClient::new(world.channel.clone());
    let status = maintenance.status(pb::StatusRequest {}).await.unwrap().into_inner();
    assert_eq!(status.errors, ["memberID:9 alarm:CORRUPT"]);
}

#[tokio::test]
async fn checksums_say_what_they_depend_on() {
    let mut world = World::new().await;
    for (key, value) in [("a", "1"), ("b", "2"), ("a", "3")] {
        world.put(key, value).await;
    }
    let mut maintenance = MaintenanceClient::new(world.channel.clone());
    let at = |revision| pb::HashKvRequest { revision };
    let hash = maintenance.hash_kv(at(0)).await.unwrap().into_inner();
    // etcd 3.7.3's hash after the same three puts.
    assert_eq!(
        (hash.hash, hash.compact_revision, hash.hash_revision, hash.header.unwrap().revision),
        (2_069_675_932, -1, 4, 4)
    );
    let error = maintenance.hash_kv(at(5)).await.unwrap_err();
    assert_eq!(
        refusal(&error),
        (Code::OutOfRange, "etcdserver: mvcc: required revision is a future revision")
    );
    world.kv.compact(pb::CompactionRequest { revision: 4, physical: false }).await.unwrap();
    let error = maintenance.hash_kv(at(3)).await.unwrap_err();
    assert_eq!(
        refusal(&error),
        (Code::OutOfRange, "etcdserver: mvcc: required revision has been compacted")
    );
    // For the compacted revision itself etcd returns the hash computed during the compaction.
    let hash = maintenance.hash_kv(at(4)).await.unwrap().into_inner();
    assert_eq!((hash.hash, hash.compact_revision, hash.hash_revision), (2_069_675_932, -1, 4));
    world.put("c", "4").await;
    let hash = maintenance.hash_kv(at(5)).await.unwrap().into_inner();
    assert_eq!((hash.compact_revision, hash.hash_revision), (4, 5));
    world.kv.compact(pb::CompactionRequest { revision: 5, physical: false }).await.unwrap();
    assert_eq!(maintenance.hash_kv(at(5)).await.unwrap().into_inner().hash, hash.hash);
    let all = maintenance.hash(pb::HashRequest {}).await.unwrap().into_inner();
    assert_eq!(all.header.unwrap().revision, 5);
}

#[tokio::test]
async fn members_are_listed_and_refused_changes_have_etcds_texts() {
    let world = World::new().await;
    let mut cluster = ClusterClient::new(world.channel.clone());
    let list = cluster.member_list(pb::MemberListRequest { linearizable: true }).await.unwrap();
    let list = list.into_inner();
    assert_eq!((list.members.len(), &*list.members[0].name), (1, "n1"));
    assert_eq!((list.members[0].id, list.header.unwrap().revision), (1, 0));
    let add =
        |url: &str| pb::MemberAddRequest { peer_ur_ls: vec![url.to_owned()], is_learner: false };
    let error = cluster.member_add(add("foo")).await.unwrap_err();
    assert_eq!(
        refusal(&error),
        (Code::InvalidArgument, "etcdserver: given member URLs are invalid")
    );
    let error = cluster.member_add(add("http://a:2380")).await.unwrap_err();
    assert_eq!(
        refusal(&error),
        (
            Code::Unimplemented,
            "kube-lite: adding a member by its address is not supported: start `kube-lite server \
             --server https://HOST:6443 --token TOKEN` on the new machine, it joins by itself"
        )
    );
    let update = pb::MemberUpdateRequest { id: 5, peer_ur_ls: vec!["http://a:1".to_owned()] };
    let error = cluster.member_update(update).await.unwrap_err();
    assert_eq!(refusal(&error), (Code::NotFound, "etcdserver: member not found"));
    let mut maintenance = MaintenanceClient::new(world.channel.clone());
    let error = maintenance.move_leader(pb::MoveLeaderRequest { target_id: 5 }).await.unwrap_err();
    assert_eq!(refusal(&error), (Code::FailedPrecondition, "etcdserver: bad leader transferee"));
    maintenance.move_leader(pb::MoveLeaderRequest { target_id: 1 }).await.unwrap();
}
