//! etcd's interface with several members: profiles, alarms, hashes, leases from any member,
//! leadership transfer.

use std::time::Duration;

use super::net::{Cluster, put};
use crate::contract::{Alarm, Revision, StoreError, *};

fn profile(machine: usize) -> Profile {
    Profile { name: format!("m{machine}"), client_urls: vec![format!("https://m{machine}:2379")] }
}

#[tokio::test(start_paused = true)]
async fn profiles_and_alarms_are_everywhere_and_outlive_checkpoints() {
    let mut cluster = Cluster::of(3, 31).await;
    for machine in 0..3 {
        cluster.nodes[&machine].members.describe(profile(machine)).await.unwrap();
    }
    assert!(cluster.store(1).set_alarm(7, Alarm::NOSPACE, true).await.unwrap());
    for machine in 0..3 {
        let error = cluster.store(machine).txn(put("k", "v")).await.unwrap_err();
        assert!(matches!(error, StoreError::NoSpace(_)), "{error}");
    }
    cluster.store(2).defragment().await.unwrap();
    cluster.crash(2).await;
    cluster.start(2).await.unwrap();
    cluster.leader().await;
    cluster.store(2).read_barrier().await.unwrap();
    assert_eq!(cluster.store(2).alarms(), [(7, Alarm::NOSPACE)]);
    let mut names: Vec<String> =
        cluster.nodes[&2].members.profiles().into_values().map(|profile| profile.name).collect();
    names.sort();
    assert_eq!(names, ["m0", "m1", "m2"]);
    assert!(cluster.store(2).set_alarm(7, Alarm::NOSPACE, false).await.unwrap());
    assert!(!cluster.store(0).set_alarm(7, Alarm::NOSPACE, false).await.unwrap());
    cluster.store(0).txn(put("k", "v")).await.unwrap();
    // The profile of a removed member is removed.
    let gone = cluster.nodes[&2].members.id();
    cluster.nodes[&0].members.remove(gone).await.unwrap();
    assert!(!cluster.nodes[&0].members.profiles().contains_key(&gone));
}

#[tokio::test(start_paused = true)]
async fn checksums_at_one_revision_are_the_same_on_all_members() {
    let cluster = Cluster::of(3, 32).await;
    for n in 0..20 {
        cluster.store(n % 3).txn(put(&format!("k{}", n % 7), &n.to_string())).await.unwrap();
    }
    cluster.store(1).compact(Revision(9)).await.unwrap();
    cluster.same_everywhere().await;
    let mut hashes = Vec::new();
    for machine in 0..3 {
        let hash = cluster.store(machine).hash(Revision(15)).await.unwrap();
        hashes.push((hash.keys, hash.compacted, hash.revision));
    }
    assert_eq!(hashes[0].1, Revision(9));
    assert!(hashes.iter().all(|hash| *hash == hashes[0]), "{hashes:?}");
}

#[tokio::test(start_paused = true)]
async fn how_long_a_lease_lives_is_the_leaders_word_everywhere() {
    let cluster = Cluster::of(3, 33).await;
    let lease = cluster.store(1).lease_grant(0, 60).await.unwrap();
    for _ in 0..2 {
        tokio::time::sleep(Duration::from_secs(40)).await;
        cluster.store(2).lease_keep_alive(lease.id).await.unwrap();
    }
    tokio::time::sleep(Duration::from_secs(10)).await;
    for machine in 0..3 {
        let (lease, _) = cluster.store(machine).lease(lease.id).await.unwrap();
        assert_eq!(lease.granted_ttl, 60);
        assert!((45..=50).contains(&lease.remaining_ttl), "{machine}: {lease:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_lead_goes_where_it_is_asked_to() {
    let cluster = Cluster::of(3, 34).await;
    assert_eq!(cluster.leader().await, 0);
    let next = cluster.nodes[&2].members.id();
    cluster.nodes[&0].members.transfer(next).await.unwrap();
    assert_eq!(cluster.leader().await, 2);
    cluster.store(0).txn(put("k", "v")).await.unwrap();
    let stats = cluster.store(0).stats();
    assert!(stats.leader_changes >= 2, "{stats:?}");
}

#[tokio::test(start_paused = true)]
async fn a_lead_that_nobody_takes_is_no_end_of_writes() {
    let mut cluster = Cluster::of(3, 35).await;
    cluster.start(3).await.unwrap();
    cluster.add(3).await;
    let [lost, learner] = [2, 3].map(|machine| cluster.nodes[&machine].members.id());
    let error = cluster.nodes[&0].members.transfer(learner).await.unwrap_err();
    assert!(matches!(error, StoreError::Invalid(_)), "{error}");
    assert_eq!(cluster.leader().await, 0);
    cluster.crash(2).await;
    let error = cluster.nodes[&0].members.transfer(lost).await.unwrap_err();
    assert!(matches!(error, StoreError::Unavailable(_)), "{error}");
    // Two of three members elect one of them.
    cluster.store(1).txn(put("k", "v")).await.unwrap();
    cluster.start(2).await.unwrap();
    assert_eq!(cluster.same_everywhere().await.len(), 1);
}
