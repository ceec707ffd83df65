//! Three members: acknowledged writes survive the loss of any member, and reads are never stale.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use super::net::{Cluster, address, contents, put};
use crate::contract::{
    Compare, Durability, KeyRange, Op, OpResponse, Ordering, Revision, StoreError, Target, Txn,
};

/// Maximum time of an election, including failed attempts.
const ELECTION: Duration = Duration::from_secs(30);

#[tokio::test(start_paused = true)]
async fn writes_of_one_member_are_read_by_all() {
    let cluster = Cluster::of(3, 1).await;
    assert_eq!(cluster.leader().await, 0, "who began leads");
    for machine in 0..3 {
        let key = format!("k{machine}");
        let response = cluster.store(machine).txn(put(&key, "1")).await.unwrap();
        let response = {
            assert!(matches!(response.responses[..], [OpResponse::Put(None)]));
            assert!(contents(cluster.store(machine)).await.contains_key(&key), "read your writes");
            cluster.store(machine).txn(put(&key, "2")).await.unwrap()
        };
        let [OpResponse::Put(Some(previous))] = &response.responses[..] else {
            panic!("{response:?}")
        };
        assert_eq!(previous.value, "1");
    }
    let all = cluster.same_everywhere().await;
    assert_eq!(all.values().collect::<Vec<_>>(), ["2", "2", "2"]);
    assert_eq!((0..3).map(|m| cluster.voters(m)).collect::<Vec<_>>(), [3, 3, 3]);
    // Each member counted its traffic with the others.
    let ids: Vec<u64> = (0..3).map(|m| cluster.nodes[&m].members.id()).collect();
    let [to_1, to_2] = [1, 2].map(|m| cluster.nodes[&0].members.traffic()[&ids[m]]);
    for traffic in [to_1, to_2] {
        assert!(traffic.sent_bytes > 500 && traffic.received_bytes > 100, "{traffic:?}");
        assert_eq!((traffic.sent_failures, traffic.received_failures), (0, 0));
    }
    assert!(!cluster.nodes[&0].members.traffic().contains_key(&ids[0]));
}

#[tokio::test(start_paused = true)]
async fn refusals_come_back_from_the_leader_as_they_are() {
    let cluster = Cluster::of(3, 2).await;
    let mut txn = put("k", "v");
    let Some(Op::Put { lease, .. }) = txn.success.first_mut() else { unreachable!() };
    *lease = 77;
    let error = cluster.store(1).txn(txn).await.unwrap_err();
    assert!(matches!(error, StoreError::LeaseNotFound), "{error}");
    let error = cluster.store(2).compact(Revision(99)).await.unwrap_err();
    assert!(matches!(error, StoreError::Future { requested: 99, newest: 1 }), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_lost_leader_is_replaced_and_no_acknowledged_write_is_lost() {
    let mut cluster = Cluster::of(3, 3).await;
    let mut written = 0;
    for _ in 0..4 {
        for _ in 0..10 {
            let machine = *cluster.nodes.keys().next().unwrap();
            cluster.store(machine).txn(put(&format!("k{written}"), "v")).await.unwrap();
            written += 1;
        }
        let leader = cluster.leader().await;
        cluster.crash(leader).await;
        let begun = tokio::time::Instant::now();
        let machine = *cluster.nodes.keys().next().unwrap();
        cluster.store(machine).txn(put(&format!("k{written}"), "v")).await.unwrap();
        written += 1;
        assert!(begun.elapsed() < ELECTION, "{:?}", begun.elapsed());
        assert_ne!(cluster.leader().await, leader);
        cluster.start(leader).await.unwrap();
        assert_eq!(cluster.same_everywhere().await.len(), written);
    }
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_is_stopped_hands_over_and_its_clients_go_on() {
    let mut cluster = Cluster::of(3, 4).await;
    cluster.store(1).txn(put("before", "v")).await.unwrap();
    let begun = tokio::time::Instant::now();
    cluster.stop(0).await;
    assert!(begun.elapsed() < Duration::from_millis(500), "{:?}", begun.elapsed());
    let leader = cluster.leader().await;
    assert_ne!(leader, 0);
    cluster.store(3 - leader).txn(put("after", "v")).await.unwrap();
    assert!(begun.elapsed() < Duration::from_secs(1), "no election is needed");
    cluster.start(0).await.unwrap();
    assert_eq!(cluster.same_everywhere().await.len(), 2);
}

#[tokio::test(start_paused = true)]
async fn the_smaller_side_refuses_and_tells_nothing_old() {
    let cluster = Cluster::of(3, 5).await;
    cluster.store(0).txn(put("k", "1")).await.unwrap();
    cluster.same_everywhere().await;
    cluster.partition(&[0]);
    let leader = cluster.leader_among(&[1, 2]).await;
    let begun = tokio::time::Instant::now();
    cluster.store(3 - leader).txn(put("k", "2")).await.unwrap();
    assert!(begun.elapsed() < ELECTION);
    let refused = |error: StoreError| {
        assert!(matches!(error, StoreError::Unavailable(_)), "{error}");
    };
    refused(cluster.store(0).read_barrier().await.unwrap_err());
    refused(cluster.store(0).txn(put("k", "3")).await.unwrap_err());
    assert_eq!(contents(cluster.store(0)).await["k"], "1", "what it has can be read as such");
    // A comparison that no longer holds must not be answered from stale state.
    let compare = Compare {
        range: KeyRange::key("k"),
        target: Target::Value("2".into()),
        ordering: Ordering::Equal,
    };
    let ask = Txn { compare: vec![compare], ..put("other", "v") };
    refused(cluster.store(0).txn(ask.clone()).await.unwrap_err());
    cluster.heal();
    let answer = cluster.store(0).txn(ask).await.unwrap();
    assert!(answer.succeeded, "{answer:?} {:?}", cluster.same_everywhere().await);
    let all = cluster.same_everywhere().await;
    assert!(all["k"] == "2" || all["k"] == "3", "the refused write may have come through: {all:?}");
}

#[tokio::test(start_paused = true)]
async fn a_member_behind_the_log_is_caught_up_by_a_checkpoint() {
    let mut cluster = Cluster::of(3, 6).await;
    cluster.store(2).txn(put("k0", "old")).await.unwrap();
    let mut watcher = cluster.store(2).watch(KeyRange::prefix("k"), None).await.unwrap();
    assert!(watcher.batches.recv().await.unwrap().is_ok());
    cluster.partition(&[2]);
    let value = "x".repeat(1000);
    for n in 0..200 {
        cluster.store(0).txn(put(&format!("k{n}"), &value)).await.unwrap();
    }
    for machine in 0..2 {
        cluster.store(machine).read_barrier().await.unwrap();
        cluster.nodes[&machine].engine.write_checkpoint().await.unwrap();
    }
    // A leader keeps entries that it is sending; the next one has only the checkpoint.
    cluster.stop(0).await;
    cluster.start(0).await.unwrap();
    cluster.leader_among(&[0, 1]).await;
    cluster.store(0).txn(put("behind", "v")).await.unwrap();
    // Each eighth message fails, but the transfer needs more than seven: it resumes where it
    // stopped.
    cluster.break_bulk_after(Some(8));
    let before = cluster.bulk_messages();
    cluster.heal();
    cluster.store(2).read_barrier().await.unwrap();
    let pieces = cluster.bulk_messages() - before;
    assert!(pieces > 15, "200 KB in pieces of 16 KB: {pieces}");
    assert!(pieces < 40, "what had come was not sent again: {pieces}");
    assert_eq!(cluster.same_everywhere().await.len(), 201);
    // The watch is cancelled, and one from its position delivers everything once.
    let mut next = 3;
    let ended = loop {
        match watcher.batches.recv().await.unwrap() {
            Ok(batch) => next = batch.revision.0 + 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(ended, StoreError::Overrun), "{ended}");
    let watch = cluster.store(2).watch(KeyRange::prefix("k"), Some(Revision(next))).await;
    let mut watcher = watch.unwrap();
    let mut revisions = Vec::new();
    while revisions.len() < 200 {
        let batch = watcher.batches.recv().await.unwrap().unwrap();
        revisions.extend(batch.events.iter().map(|event| event.kv.mod_revision.0));
    }
    assert_eq!(revisions, (next..next + 200).collect::<Vec<_>>());
    // The data is on its own disk now.
    cluster.crash(2).await;
    cluster.start(2).await.unwrap();
    assert_eq!(cluster.same_everywhere().await.len(), 201);
}

#[tokio::test(start_paused = true)]
async fn the_log_that_an_absent_member_lacks_is_let_go_behind_a_checkpoint() {
    for crashed in [true, false] {
        let mut cluster = Cluster::of(3, 22).await;
        cluster.store(2).txn(put("k0", "old")).await.unwrap();
        let leader = cluster.leader().await;
        let away = (leader + 1) % 3;
        if crashed {
            cluster.crash(away).await;
        } else {
            cluster.partition(&[away]);
        }
        let value = "x".repeat(10_000);
        let engine = std::sync::Arc::clone(&cluster.nodes[&leader].engine);
        let mut most = 0;
        for n in 0..200 {
            cluster.store(leader).txn(put(&format!("k{}", n % 7), &value)).await.unwrap();
            if n % 20 == 0 {
                engine.write_checkpoint().await.unwrap();
                tokio::time::sleep(Duration::from_secs(5)).await;
            }
            most = most.max(engine.status.disk_bytes.load(Relaxed));
        }
        // 2 MB were written, in segments of 256 KiB.
        assert!(most <= 4 * 256 * 1024, "{most} bytes of log are kept for who is away");
        if crashed {
            cluster.start(away).await.unwrap();
        } else {
            cluster.heal();
        }
        assert_eq!(cluster.same_everywhere().await.len(), 7);
    }
}

#[tokio::test(start_paused = true)]
async fn a_member_that_joins_late_gets_a_checkpoint_and_one_that_is_removed_is_told_nothing() {
    let mut cluster = Cluster::of(1, 7).await;
    for n in 0..100 {
        cluster.store(0).txn(put(&format!("k{n}"), "v")).await.unwrap();
    }
    cluster.nodes[&0].engine.write_checkpoint().await.unwrap();
    for machine in [1, 2] {
        cluster.start(machine).await.unwrap();
        cluster.add(machine).await;
    }
    assert_eq!((cluster.voters(0), cluster.nodes[&0].members.list().len()), (1, 3));
    cluster.same_everywhere().await;
    cluster.promote([1, 2]).await;
    assert_eq!(cluster.voters(0), 3);

    // One member is lost permanently, another one joins.
    let gone = cluster.nodes[&2].members.id();
    cluster.crash(2).await;
    cluster.nodes[&1].members.remove(gone).await.unwrap();
    cluster.store(1).txn(put("two of two", "v")).await.unwrap();
    cluster.start(3).await.unwrap();
    cluster.add(3).await;
    cluster.promote([3]).await;
    cluster.crash(0).await;
    cluster.store(3).txn(put("two of three", "v")).await.unwrap();
    assert_eq!(cluster.same_everywhere().await.len(), 102);
    // A removed member restarts with its old disk and does not disturb the others.
    let term = cluster.store(1).term();
    cluster.start(2).await.unwrap();
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert_eq!(cluster.store(1).term(), term);
    let error = cluster.store(2).txn(put("from outside", "v")).await.unwrap_err();
    assert!(matches!(error, StoreError::Unavailable(_)), "{error}");
    assert!(error.to_string().contains("was removed from the members"), "it knows why: {error}");
    cluster.store(1).txn(put("inside", "v")).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_member_that_knows_who_leads_before_it_has_anything_is_caught_up() {
    let mut cluster = Cluster::of(1, 24).await;
    for n in 0..100 {
        cluster.store(0).txn(put(&format!("k{n}"), "v")).await.unwrap();
    }
    cluster.nodes[&0].engine.write_checkpoint().await.unwrap();
    cluster.start(1).await.unwrap();
    cluster.break_bulk_after(Some(1));
    cluster.add(1).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert!(cluster.nodes[&1].members.leadership().borrow().leader.is_some());
    assert!(cluster.nodes[&1].members.list().is_empty());
    cluster.break_bulk_after(None);
    tokio::time::sleep(Duration::from_secs(5)).await;
    let id = cluster.nodes[&1].members.id();
    assert_eq!(cluster.nodes[&0].members.ready(), [id]);
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_removed_itself_changes_nothing_more() {
    let mut cluster = Cluster::of(3, 22).await;
    cluster.start(3).await.unwrap();
    let (id, at) = (cluster.nodes[&3].members.id(), address(3));
    let leader = cluster.leader().await;
    let [gone, other] =
        [leader, (leader + 1) % 3].map(|machine| Arc::clone(&cluster.nodes[&machine].members));
    gone.remove(gone.id()).await.unwrap();
    assert!(gone.leadership().borrow().leads, "until another one does");
    let error = gone.add(id, &at).await.unwrap_err();
    assert!(matches!(error, StoreError::Unavailable(_)), "{error}");
    // Requests to another member are answered by the next leader.
    other.add(id, &at).await.unwrap();
    let listed: Vec<u64> = other.list().iter().map(|member| member.id).collect();
    assert!(listed.contains(&id) && !listed.contains(&gone.id()), "{listed:?}");
    assert!(!gone.leadership().borrow().leads);
}

#[tokio::test(start_paused = true)]
async fn a_leader_cut_off_goes_on_after_another_one_tried_to_give_it_the_lead() {
    let cluster = Cluster::of(3, 25).await;
    assert_eq!(cluster.leader().await, 0);
    cluster.partition(&[0]);
    let leader = cluster.leader_among(&[1, 2]).await;
    let lost = cluster.nodes[&0].members.id();
    let error = cluster.nodes[&leader].members.transfer(lost).await.unwrap_err();
    let expected = "the other member did not become leader in time";
    assert!(matches!(&error, StoreError::Unavailable(text) if text == expected), "{error}");
    // The isolated member learns of the term in which the leadership was resigned before another
    // member leads the next one.
    cluster.heal();
    for machine in 0..3 {
        cluster.store(machine).txn(put(&format!("k{machine}"), "v")).await.unwrap();
    }
    assert_eq!(cluster.same_everywhere().await.len(), 3);
    assert!(cluster.nodes.values().all(|node| node.fault().is_none()));
}

#[tokio::test(start_paused = true)]
async fn from_three_back_to_one() {
    let mut cluster = Cluster::of(3, 8).await;
    cluster.store(0).txn(put("k", "v")).await.unwrap();
    for machine in [1, 2] {
        let id = cluster.nodes[&machine].members.id();
        cluster.nodes[&0].members.remove(id).await.unwrap();
        cluster.stop(machine).await;
    }
    cluster.store(0).txn(put("alone", "v")).await.unwrap();
    cluster.stop(0).await;
    cluster.start(0).await.unwrap();
    assert_eq!(cluster.same_everywhere().await.len(), 2);
    assert_eq!(cluster.leader().await, 0);
}

#[tokio::test(start_paused = true)]
async fn a_follower_with_a_full_disk_waits_for_room_and_the_others_go_on() {
    let cluster = Cluster::of(3, 15).await;
    let disk = &cluster.nodes[&2].disk;
    disk.set_capacity(disk.used() + 1000);
    let value = "x".repeat(10_000);
    for n in 0..100 {
        cluster.store(0).txn(put(&format!("k{n}"), &value)).await.unwrap();
    }
    assert_eq!(cluster.nodes[&2].fault(), None);
    assert!(contents(cluster.store(2)).await.len() < 100, "a megabyte does not fit");
    cluster.nodes[&2].disk.set_capacity(u64::MAX);
    assert_eq!(cluster.same_everywhere().await.len(), 100);
}

#[tokio::test(start_paused = true)]
async fn all_stopped_at_once_start_again_with_everything() {
    let mut cluster = Cluster::of(3, 9).await;
    for n in 0..50 {
        cluster.store(n % 3).txn(put(&format!("k{n}"), "v")).await.unwrap();
    }
    let before = cluster.same_everywhere().await;
    for machine in 0..3 {
        cluster.crash(machine).await;
    }
    // Two members suffice; the third follows.
    for machine in [2, 1] {
        cluster.start(machine).await.unwrap();
    }
    cluster.leader().await;
    assert_eq!(cluster.same_everywhere().await, before);
    cluster.start(0).await.unwrap();
    assert_eq!(cluster.same_everywhere().await, before);
}

#[tokio::test(start_paused = true)]
async fn a_member_is_reached_at_its_new_address_and_a_copy_of_one_is_refused() {
    let mut cluster = Cluster::of(3, 10).await;
    let id = cluster.nodes[&2].members.id();
    // Machine 2 gets the address of a machine 5: the same disk, another name.
    cluster.stop(2).await;
    let disk = cluster.disks[&2].clone();
    cluster.disks.insert(5, disk.clone());
    cluster.start(5).await.unwrap();
    assert_eq!(cluster.nodes[&5].members.id(), id, "the identity is in the directory");
    cluster.add(5).await;
    cluster.store(0).txn(put("k", "v")).await.unwrap();
    cluster.crash(1).await;
    cluster.store(0).txn(put("l", "v")).await.unwrap();
    assert_eq!(cluster.same_everywhere().await.len(), 2);
    let list = cluster.nodes[&0].members.list();
    assert!(list.iter().any(|member| member.id == id && member.address == address(5)), "{list:?}");
    // The address belongs to another member.
    let error = cluster.nodes[&0].members.add(99, &address(5)).await.unwrap_err();
    assert!(error.to_string().contains("remove that member first"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_member_at_another_address_is_found_by_the_leader_that_needs_it_to_agree() {
    let mut cluster = Cluster::of(3, 21).await;
    cluster.store(0).txn(put("before", "1")).await.unwrap();
    let leader = cluster.leader().await;
    let [moved, lost] = [1, 2].map(|n| (leader + n) % 3);
    cluster.stop(moved).await;
    cluster.crash(lost).await;
    cluster.renumber(moved);
    cluster.start(moved).await.unwrap();
    // The new address is not committed: only the moved member completes the quorum for it.
    let begun = tokio::time::Instant::now();
    while cluster.store(moved).txn(put("with it", "2")).await.is_err() {
        assert!(begun.elapsed() < ELECTION, "the moved member was not found");
    }
    let (id, at) = (cluster.nodes[&moved].members.id(), cluster.at(moved));
    cluster.nodes[&moved].members.add(id, &at).await.unwrap();
    let known = cluster.nodes[&moved].members.list();
    assert!(known.iter().any(|member| member.id == id && member.address == at), "{known:?}");
    // Also for a returning member that knows only the old address.
    cluster.start(lost).await.unwrap();
    let all = cluster.same_everywhere().await;
    assert_eq!(all.values().collect::<Vec<_>>(), ["1", "2"]);
}

#[tokio::test(start_paused = true)]
async fn leases_end_at_the_leader_and_are_renewed_from_anywhere() {
    let mut cluster = Cluster::of(3, 11).await;
    let lease = cluster.store(1).lease_grant(0, 10).await.unwrap();
    let op = Op::Put { key: "k".into(), value: "v".into(), lease: lease.id, prev_kv: false };
    cluster.store(2).txn(Txn { success: vec![op], ..Txn::default() }).await.unwrap();
    for _ in 0..5 {
        tokio::time::sleep(Duration::from_secs(6)).await;
        assert_eq!(cluster.store(2).lease_keep_alive(lease.id).await.unwrap().remaining_ttl, 10);
    }
    // A new leader does not know the last renewals: all leases get their full time again.
    tokio::time::sleep(Duration::from_secs(6)).await;
    cluster.crash(0).await;
    cluster.leader().await;
    tokio::time::sleep(Duration::from_secs(6)).await;
    assert_eq!(cluster.same_everywhere().await.len(), 1);
    tokio::time::sleep(Duration::from_secs(6)).await;
    assert_eq!(cluster.same_everywhere().await.len(), 0);
    let error = cluster.store(1).lease_keep_alive(lease.id).await.unwrap_err();
    assert!(matches!(error, StoreError::LeaseNotFound), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_lease_whose_end_is_under_way_is_not_renewed() {
    let mut cluster = Cluster::of(3, 23).await;
    let store = Arc::clone(cluster.store(0));
    let lease = store.lease_grant(0, 2).await.unwrap();
    tokio::time::sleep(Duration::from_millis(1500)).await;
    cluster.crash(1).await;
    cluster.crash(2).await;
    // Its expiry is in the leader's log, but not committed.
    tokio::time::sleep(Duration::from_millis(800)).await;
    let others = async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        cluster.start(1).await.unwrap();
        cluster.start(2).await.unwrap();
    };
    let (renewed, ()) = tokio::join!(store.lease_keep_alive(lease.id), others);
    let error = renewed.unwrap_err();
    assert!(matches!(error, StoreError::LeaseNotFound), "{error}");
    cluster.same_everywhere().await;
    assert!(cluster.store(1).leases().await.unwrap().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_leader_without_a_quorum_renews_no_lease() {
    let cluster = Cluster::of(3, 16).await;
    let lease = cluster.store(0).lease_grant(0, 60).await.unwrap();
    cluster.partition(&[0]);
    // The others may have expired it by now.
    let error = cluster.store(0).lease_keep_alive(lease.id).await.unwrap_err();
    assert!(matches!(error, StoreError::Unavailable(_)), "{error}");
    cluster.heal();
    cluster.same_everywhere().await;
    assert_eq!(cluster.store(0).lease_keep_alive(lease.id).await.unwrap().remaining_ttl, 60);
}

#[tokio::test(start_paused = true)]
async fn lazy_writes_end_before_another_member_comes() {
    let mut cluster = Cluster::of(1, 12).await;
    let lazy = |key: &str| Txn { durability: Durability::Lazy, ..put(key, "v") };
    for n in 0..5 {
        cluster.store(0).txn(lazy(&format!("alone{n}"))).await.unwrap();
    }
    assert!(cluster.nodes[&0].engine.has_lazy());
    cluster.start(1).await.unwrap();
    cluster.add(1).await;
    assert!(
        !cluster.nodes[&0].engine.has_lazy(),
        "all entries are on disk before another member receives them"
    );
    cluster.store(0).txn(lazy("with another")).await.unwrap();
    assert!(!cluster.nodes[&0].engine.has_lazy());
    let id = cluster.nodes[&1].members.id();
    cluster.nodes[&0].members.remove(id).await.unwrap();
    cluster.store(0).txn(lazy("alone again")).await.unwrap();
    cluster.store(0).txn(lazy("and again")).await.unwrap();
    assert!(cluster.nodes[&0].engine.has_lazy());
}

#[tokio::test(start_paused = true)]
async fn a_watch_at_a_follower_brings_every_change_once_and_in_order() {
    let mut cluster = Cluster::of(3, 13).await;
    let mut watcher =
        cluster.store(2).watch(KeyRange::prefix("k"), Some(Revision(2))).await.unwrap();
    for n in 0..30 {
        if n == 15 {
            cluster.crash(0).await;
        }
        cluster.store(1).txn(put(&format!("k{n}"), "v")).await.unwrap();
    }
    let mut keys = Vec::new();
    while keys.len() < 30 {
        let batch = watcher.batches.recv().await.unwrap().unwrap();
        keys.extend(batch.events.iter().map(|e| String::from_utf8(e.kv.key.to_vec()).unwrap()));
    }
    assert_eq!(keys, (0..30).map(|n| format!("k{n}")).collect::<Vec<_>>());
}

/// Writers, crashes with and without power loss, partitions and message loss; acknowledged writes
/// must exist at the end.
async fn storm(seed: u64) {
    let mut cluster = Cluster::of(3, seed).await;
    let mut acknowledged = Vec::new();
    let mut number = 0;
    for _ in 0..4 {
        let (victim, fault) = (cluster.rng.below(3) as usize, cluster.rng.below(4));
        match fault {
            0 => cluster.partition(&[victim]),
            1 => cluster.set_loss(cluster.rng.clone().below(30), 40),
            2 => cluster.crash(victim).await,
            _ => {
                // The power is lost during one of the next operations.
                let disk = &cluster.nodes[&victim].disk;
                let at = disk.operations() + 1 + cluster.rng.below(12);
                disk.cut_power_at(at);
            }
        }
        let mut writes = Vec::new();
        for _ in 0..8 {
            let machines: Vec<usize> = cluster.nodes.keys().copied().collect();
            let machine = machines[cluster.rng.below(machines.len() as u64) as usize];
            let (store, key) = (cluster.store(machine).clone(), format!("k{number}"));
            number += 1;
            writes.push(async move { (store.txn(put(&key, "v")).await.is_ok(), key) });
        }
        for (done, key) in futures::future::join_all(writes).await {
            if done {
                acknowledged.push(key);
            }
        }
        cluster.heal();
        cluster.set_loss(0, 2);
        if fault >= 2 {
            cluster.crash(victim).await;
            cluster.start(victim).await.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        }
        let all = cluster.same_everywhere().await;
        for key in &acknowledged {
            assert!(all.contains_key(key), "seed {seed}: {key} was acknowledged and is lost");
        }
    }
    assert!(!acknowledged.is_empty(), "seed {seed}: hardly anything was written");
}

#[tokio::test(start_paused = true)]
async fn storms_lose_nothing_that_was_acknowledged() {
    for seed in 0..2 {
        storm(seed).await;
    }
}

#[tokio::test(start_paused = true)]
async fn nothing_wakes_the_only_member() {
    let cluster = Cluster::of(1, 14).await;
    cluster.store(0).txn(put("k", "v")).await.unwrap();
    let before = cluster.nodes[&0].disk.operations();
    tokio::time::sleep(Duration::from_secs(86_400)).await;
    assert_eq!(cluster.nodes[&0].disk.operations(), before);
    assert_eq!(cluster.store(0).term(), 1);
}
