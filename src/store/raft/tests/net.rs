//! Members in one process: a transport with loss, delay and partitions, and machines that lose their power.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use base::tasks::{Kind, Shutdown, Tasks};
use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::backend::Store;
use crate::disk::sim::{Rng, SimDisk};
use crate::disk::{ClusterId, Disk, DiskWork, Identity, OpenError, Seat, recover};
use crate::kv::*;
use crate::raft::{CallError, Lane, Members, Options, Peer, RaftEngine, Role, Started, Transport};

const CLUSTER: ClusterId = ClusterId(*b"members in tests");

#[derive(Debug)]
struct Inner {
    members: BTreeMap<String, Arc<Members>>,
    cut: HashSet<(String, String)>,
    /// Of a hundred messages, so many are lost.
    loss: u64,
    /// Longest delay in milliseconds.
    delay: u64,
    /// Bulk messages until one is lost, again and again.
    bulk_breaks_after: Option<u64>,
    bulk: u64,
    rng: Rng,
}

/// What lies between the members.
#[derive(Debug, Clone)]
pub(super) struct Net(Arc<Mutex<Inner>>);

/// One member's way out.
#[derive(Debug)]
struct Way {
    net: Net,
    from: String,
    tasks: Tasks,
}

enum Fate {
    Refused,
    Lost,
    Arrives(Arc<Members>, Duration, bool),
}

impl Net {
    fn fate(&self, from: &str, to: &Peer, lane: Lane) -> Fate {
        let mut net = self.0.lock();
        if !net.members.contains_key(from)
            || net.cut.contains(&(from.to_owned(), to.address.clone()))
        {
            return Fate::Lost;
        }
        let Some(member) = net.members.get(&to.address).cloned() else { return Fate::Refused };
        let loss = net.loss;
        if lane == Lane::Bulk {
            net.bulk += 1;
            if net.bulk_breaks_after.is_some_and(|after| net.bulk.is_multiple_of(after)) {
                return Fate::Refused;
            }
        }
        if net.rng.chance(loss) {
            return Fate::Lost;
        }
        let delay = net.delay + 1;
        let delay = Duration::from_millis(net.rng.below(delay));
        let back =
            !net.rng.chance(loss) && !net.cut.contains(&(to.address.clone(), from.to_owned()));
        Fate::Arrives(member, delay, back)
    }
}

#[async_trait]
impl Transport for Way {
    async fn call(&self, to: &Peer, lane: Lane, request: Bytes) -> Result<Bytes, CallError> {
        match self.net.fate(&self.from, to, lane) {
            Fate::Refused => Err(CallError::NotSent(format!("nobody is at {}", to.address))),
            Fate::Lost => std::future::pending().await,
            Fate::Arrives(member, delay, back) => {
                let (done, answer) = oneshot::channel();
                self.tasks.spawn(Kind::Request, "message", async move {
                    tokio::time::sleep(delay).await;
                    let answer = member.answer(&request).await;
                    tokio::time::sleep(delay).await;
                    let _ = done.send(answer);
                    Ok::<(), StoreError>(())
                });
                match answer.await {
                    Ok(answer) if back => Ok(answer.into()),
                    Ok(_) => std::future::pending().await,
                    Err(_) => Err(CallError::Unanswered("it broke off".to_owned())),
                }
            }
        }
    }
}

/// A running member.
pub(super) struct Node {
    pub(super) store: Arc<dyn Backend>,
    pub(super) members: Arc<Members>,
    pub(super) engine: Arc<RaftEngine>,
    tasks: Tasks,
    pub(super) disk: SimDisk,
}

/// Machines `0..`, each with a disk that outlives its process.
pub(super) struct Cluster {
    pub(super) net: Net,
    pub(super) nodes: BTreeMap<usize, Node>,
    pub(super) disks: BTreeMap<usize, SimDisk>,
    pub(super) rng: Rng,
}

pub(super) fn address(machine: usize) -> String {
    format!("m{machine}:1")
}

/// Waits in the paused time until something holds.
pub(super) async fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    for _ in 0..12_000 {
        if let Some(found) = look() {
            return found;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("not within two minutes: {what}")
}

pub(super) fn put(key: &str, value: &str) -> Txn {
    let op = Op::Put {
        key: key.to_owned().into(),
        value: value.to_owned().into(),
        lease: 0,
        prev_kv: true,
    };
    Txn { success: vec![op], ..Txn::default() }
}

pub(super) async fn contents(store: &Arc<dyn Backend>) -> BTreeMap<String, String> {
    let all = KeyRange { start: [0][..].into(), end: [0][..].into() };
    let found = store.range(RangeRequest::new(all)).await.unwrap();
    let text = |bytes: &Bytes| String::from_utf8(bytes.to_vec()).unwrap();
    found.kvs.iter().map(|kv| (text(&kv.key), text(&kv.value))).collect()
}

impl Cluster {
    /// No machine runs.
    pub(super) fn empty(seed: u64) -> Self {
        let inner = Inner {
            members: BTreeMap::new(),
            cut: HashSet::new(),
            loss: 0,
            delay: 2,
            bulk_breaks_after: None,
            bulk: 0,
            rng: Rng(seed),
        };
        let net = Net(Arc::new(Mutex::new(inner)));
        Self { net, nodes: BTreeMap::new(), disks: BTreeMap::new(), rng: Rng(!seed) }
    }

    /// `count` voters.
    pub(super) async fn of(count: usize, seed: u64) -> Self {
        let mut cluster = Self::empty(seed);
        cluster.start(0).await.unwrap();
        for machine in 1..count {
            cluster.start(machine).await.unwrap();
            cluster.add(machine).await;
        }
        if count > 1 {
            cluster.promote(1..count).await;
        }
        cluster
    }

    /// Starts a machine on its disk; all but the first join.
    pub(super) async fn start(&mut self, machine: usize) -> Result<(), OpenError> {
        let sim = self.disks.entry(machine).or_insert_with(SimDisk::new).clone();
        let disk: Arc<dyn Disk> = Arc::new(sim.clone());
        let identity = if machine == 0 { Identity::First } else { Identity::Joining };
        let recovered = recover(&disk, Some(CLUSTER), identity)?;
        let tasks = Tasks::new(Shutdown::new());
        let way = Way { net: self.net.clone(), from: address(machine), tasks: tasks.clone() };
        let seat = Seat { address: address(machine), transport: Arc::new(way), join: machine != 0 };
        let options = Options { lazy: true, work: DiskWork::Here, seat: Some(seat) };
        let started = crate::raft::start(recovered, options, None, &tasks).await?;
        let Started { shared, engine, members } = started;
        let store = Store::start(shared, Arc::clone(&engine), &tasks);
        self.net.0.lock().members.insert(address(machine), Arc::clone(&members));
        self.nodes.insert(machine, Node { store, members, engine, tasks, disk: sim });
        Ok(())
    }

    pub(super) async fn add(&self, machine: usize) {
        let leader = self.leader().await;
        let id = self.nodes[&machine].members.id();
        self.nodes[&leader].members.add(id, &address(machine)).await.unwrap();
    }

    pub(super) async fn promote(&self, machines: impl IntoIterator<Item = usize>) {
        let leader = self.leader().await;
        let ids: Vec<u64> = machines.into_iter().map(|m| self.nodes[&m].members.id()).collect();
        let ready = || {
            let ready: BTreeSet<u64> = self.nodes[&leader].members.ready().into_iter().collect();
            ids.iter().all(|id| ready.contains(id)).then_some(())
        };
        until("the learners have caught up", ready).await;
        self.nodes[&leader].members.promote(ids).await.unwrap();
    }

    /// The machine that leads, once there is one that all voters who run and are reached agree on.
    pub(super) async fn leader(&self) -> usize {
        self.leader_among(&self.nodes.keys().copied().collect::<Vec<_>>()).await
    }

    pub(super) async fn leader_among(&self, machines: &[usize]) -> usize {
        until("one leads", || {
            let led = |m: &&usize| self.nodes[m].members.leadership().borrow().leads;
            let newest = machines
                .iter()
                .filter(led)
                .max_by_key(|m| self.nodes[m].members.leadership().borrow().term);
            newest.copied()
        })
        .await
    }

    /// Cuts the machines `group` off from the others.
    pub(super) fn partition(&self, group: &[usize]) {
        let mut net = self.net.0.lock();
        net.cut.clear();
        for machine in self.nodes.keys().filter(|m| !group.contains(m)) {
            for other in group {
                net.cut.insert((address(*machine), address(*other)));
                net.cut.insert((address(*other), address(*machine)));
            }
        }
    }

    pub(super) fn heal(&self) {
        self.net.0.lock().cut.clear();
    }

    pub(super) fn set_loss(&self, loss: u64, delay: u64) {
        let mut net = self.net.0.lock();
        (net.loss, net.delay) = (loss, delay);
    }

    pub(super) fn break_bulk_after(&self, messages: Option<u64>) {
        self.net.0.lock().bulk_breaks_after = messages;
    }

    pub(super) fn bulk_messages(&self) -> u64 {
        self.net.0.lock().bulk
    }

    /// The power of a machine goes: nothing is sent or written any more, and what was not synced may be lost.
    pub(super) async fn crash(&mut self, machine: usize) {
        self.net.0.lock().members.remove(&address(machine));
        let Some(node) = self.nodes.remove(&machine) else { return };
        let kept = node.disk.after_power_cut(&mut self.rng);
        node.disk.cut_power_at(node.disk.operations());
        self.disks.insert(machine, kept);
        node.tasks.shutdown().request();
        node.tasks.drain(Duration::from_secs(60)).await;
    }

    /// Stops a machine in order.
    pub(super) async fn stop(&mut self, machine: usize) {
        let node = self.nodes.remove(&machine).unwrap();
        node.tasks.shutdown().request();
        let left = node.tasks.drain(Duration::from_secs(60)).await;
        assert!(left.is_empty(), "{left:?}");
        assert_eq!(node.tasks.fault(), None);
        self.net.0.lock().members.remove(&address(machine));
    }

    pub(super) fn store(&self, machine: usize) -> &Arc<dyn Backend> {
        &self.nodes[&machine].store
    }

    /// Every running machine, after a consistent read, has the same keys.
    pub(super) async fn same_everywhere(&self) -> BTreeMap<String, String> {
        let mut all = Vec::new();
        for node in self.nodes.values() {
            let mut tries = 0;
            while let Err(error) = node.store.read_barrier().await {
                tries += 1;
                assert!(tries < 10, "{error}");
            }
            all.push(contents(&node.store).await);
        }
        assert!(all.windows(2).all(|pair| pair[0] == pair[1]));
        all.pop().unwrap_or_default()
    }

    pub(super) fn voters(&self, machine: usize) -> usize {
        let members = self.nodes[&machine].members.list();
        members.iter().filter(|member| member.role == Role::Voter).count()
    }
}
