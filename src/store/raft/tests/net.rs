//! Members in one process: a transport with loss, delay and partitions, and machines that lose
//! their power.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use base::tasks::{Kind, Shutdown, Tasks};
use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::simulation::trace::Trace;
use crate::contract::{Backend, ClusterId, KeyRange, Op, RangeRequest, Role, StoreError, Txn};
use crate::local::store::{LocalStore, StoreOptions};
use crate::log::sim::{Rng, SimDisk};
use crate::log::{Disk, DiskWork, Identity, OpenError, recover};
use crate::raft::wire::{Envelope, Request};
use crate::raft::{
    CallError, Lane, MemberOptions, Members, Options, Peer, RaftEngine, Started, Transport,
};

const CLUSTER: ClusterId = ClusterId(*b"members in tests");

/// Time after which members close a silent connection (`cluster::peers`).
const UNANSWERED: Duration = Duration::from_secs(4);

#[derive(Debug)]
struct Inner {
    members: BTreeMap<String, Arc<Members>>,
    cut: HashSet<(String, String)>,
    /// Percentage of lost messages.
    loss: u64,
    /// Maximum delay in milliseconds.
    delay: u64,
    /// Percentage of messages that are delivered twice, among those that may be.
    duplicates: u64,
    trace: Option<Trace>,
    /// Number of bulk messages before one is lost, repeatedly.
    bulk_breaks_after: Option<u64>,
    bulk: u64,
    rng: Rng,
}

/// The network between the members.
#[derive(Debug, Clone)]
pub(super) struct Net(Arc<Mutex<Inner>>);

/// The transport of one member.
#[derive(Debug)]
struct MemberTransport {
    net: Net,
    from: String,
    tasks: Tasks,
}

enum Fate {
    Refused,
    Lost,
    /// Delay of the delivery, of a second delivery, and of the response unless it is lost.
    Arrives(Duration, Option<Duration>, Option<Duration>),
}

/// Whether a message may be delivered twice. Commands are sent once, and transports respect that.
fn may_come_twice(message: &[u8]) -> bool {
    let request = Envelope::decode(message).map(|(_, reader)| Request::decode(reader));
    !matches!(request, Ok(Ok(Request::Propose(_) | Request::Change(_))))
}

impl Net {
    fn fate(&self, from: &str, to: &Peer, lane: Lane, message: &[u8]) -> Fate {
        let mut net = self.0.lock();
        let fate = net.fate(from, to, lane, message);
        if let Some(trace) = &net.trace {
            let what = match &fate {
                Fate::Refused => "is refused".to_owned(),
                Fate::Lost => "is lost".to_owned(),
                Fate::Arrives(there, twice, back) => {
                    format!("takes {there:?}, again {twice:?}, back {back:?}")
                }
            };
            let sum = crc32c::crc32c(message);
            trace.record(format_args!("{from} to {}: {sum:08x} {what}", to.address));
        }
        fate
    }

    /// The member at an address, if messages reach it.
    fn at(&self, from: &str, to: &str) -> Option<Arc<Members>> {
        let net = self.0.lock();
        let cut = net.cut.contains(&(from.to_owned(), to.to_owned()));
        net.members.get(to).filter(|_| !cut).cloned()
    }
}

impl Inner {
    fn fate(&mut self, from: &str, to: &Peer, lane: Lane, message: &[u8]) -> Fate {
        if !self.members.contains_key(from)
            || self.cut.contains(&(from.to_owned(), to.address.clone()))
        {
            return Fate::Lost;
        }
        if !self.members.contains_key(&to.address) {
            return Fate::Refused;
        }
        let loss = self.loss;
        if lane == Lane::Bulk {
            self.bulk += 1;
            if self.bulk_breaks_after.is_some_and(|after| self.bulk.is_multiple_of(after)) {
                return Fate::Refused;
            }
        }
        if self.rng.chance(loss) {
            return Fate::Lost;
        }
        let there = self.delay();
        let twice =
            (self.rng.chance(self.duplicates) && may_come_twice(message)).then(|| 3 * self.delay());
        let back = (!self.rng.chance(loss)).then(|| self.delay());
        Fate::Arrives(there, twice, back)
    }

    fn delay(&mut self) -> Duration {
        let delay = self.delay + 1;
        Duration::from_millis(self.rng.below(delay))
    }
}

/// The result of a lost message or response: real connections time out after some seconds.
async fn unanswered() -> Result<Bytes, CallError> {
    tokio::time::sleep(UNANSWERED).await;
    Err(CallError::Unanswered("the connection is dead".to_owned()))
}

impl MemberTransport {
    /// Delivers a message; returns the response unless it is lost.
    fn deliver(
        &self,
        to: &Peer,
        request: Bytes,
        there: Duration,
        back: Option<Duration>,
    ) -> oneshot::Receiver<Vec<u8>> {
        let (done, answer) = oneshot::channel();
        let (net, from, to) = (self.net.clone(), self.from.clone(), to.address.clone());
        self.tasks.spawn(Kind::Request, "message", async move {
            tokio::time::sleep(there).await;
            if let Some(member) = net.at(&from, &to) {
                let answer = member.answer(&request).await;
                tokio::time::sleep(back.unwrap_or_default()).await;
                if back.is_some() && net.at(&to, &from).is_some() {
                    // A caller that no longer waits needs no response.
                    let _ = done.send(answer);
                }
            }
            Ok::<(), StoreError>(())
        });
        answer
    }
}

#[async_trait]
impl Transport for MemberTransport {
    async fn call(&self, to: &Peer, lane: Lane, request: Bytes) -> Result<Bytes, CallError> {
        match self.net.fate(&self.from, to, lane, &request) {
            Fate::Refused => Err(CallError::NotSent(format!("no member at {}", to.address))),
            Fate::Lost => unanswered().await,
            Fate::Arrives(there, twice, back) => {
                if let Some(later) = twice {
                    drop(self.deliver(to, request.clone(), later, None));
                }
                match self.deliver(to, request, there, back).await {
                    Ok(answer) => Ok(answer.into()),
                    Err(_) => unanswered().await,
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

impl Node {
    /// Why it stopped by itself.
    pub(super) fn fault(&self) -> Option<String> {
        self.tasks.fault()
    }
}

/// Machines `0..`, each with a disk that survives its process.
pub(super) struct Cluster {
    pub(super) net: Net,
    pub(super) nodes: BTreeMap<usize, Node>,
    pub(super) disks: BTreeMap<usize, SimDisk>,
    pub(super) rng: Rng,
    /// Tasks of killed processes that have not noticed it.
    ghosts: Vec<Tasks>,
    /// How often machines have moved to another address.
    moves: BTreeMap<usize, usize>,
}

pub(super) fn address(machine: usize) -> String {
    format!("m{machine}:1")
}

/// Waits in paused time until a condition holds.
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
    /// Creates a cluster without running machines.
    pub(super) fn empty(seed: u64) -> Self {
        let inner = Inner {
            members: BTreeMap::new(),
            cut: HashSet::new(),
            loss: 0,
            delay: 2,
            duplicates: 0,
            trace: None,
            bulk_breaks_after: None,
            bulk: 0,
            rng: Rng(seed),
        };
        let net = Net(Arc::new(Mutex::new(inner)));
        let (nodes, disks) = (BTreeMap::new(), BTreeMap::new());
        let (ghosts, moves) = (Vec::new(), BTreeMap::new());
        Self { net, nodes, disks, rng: Rng(!seed), ghosts, moves }
    }

    /// Records all messages from now on.
    pub(super) fn trace(&self, trace: &Trace) {
        self.net.0.lock().trace = Some(trace.clone());
    }

    /// The address of a machine.
    pub(super) fn at(&self, machine: usize) -> String {
        match self.moves.get(&machine) {
            Some(moves) => format!("m{machine}:{}", moves + 1),
            None => address(machine),
        }
    }

    /// Changes the address of a machine at its next start.
    pub(super) fn renumber(&mut self, machine: usize) {
        *self.moves.entry(machine).or_default() += 1;
    }

    /// Starts a cluster with `count` voters.
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
        let at = self.at(machine);
        let way = MemberTransport { net: self.net.clone(), from: at.clone(), tasks: tasks.clone() };
        let member_options =
            MemberOptions { address: at.clone(), transport: Arc::new(way), join: machine != 0 };
        let options =
            Options { lazy: true, work: DiskWork::Here, member_options: Some(member_options) };
        let started = crate::raft::start(recovered, options, None, &tasks).await?;
        let Started { shared, engine, members } = started;
        let limits = StoreOptions {
            members: Some(Arc::<Members>::clone(&members)),
            ..StoreOptions::default()
        };
        let store = LocalStore::start(shared, Arc::clone(&engine), limits, &tasks);
        self.net.0.lock().members.insert(at, Arc::clone(&members));
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

    /// The leader that all running and reachable voters agree on.
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

    /// Isolates the machines in `group` from the others.
    pub(super) fn partition(&self, group: &[usize]) {
        self.net.0.lock().cut.clear();
        for machine in self.nodes.keys().filter(|m| !group.contains(m)) {
            for other in group {
                self.cut_one_way(*machine, *other);
                self.cut_one_way(*other, *machine);
            }
        }
    }

    /// Drops messages from one machine to another.
    pub(super) fn cut_one_way(&self, from: usize, to: usize) {
        self.net.0.lock().cut.insert((self.at(from), self.at(to)));
    }

    pub(super) fn heal(&self) {
        self.net.0.lock().cut.clear();
    }

    pub(super) fn set_loss(&self, loss: u64, delay: u64) {
        let mut net = self.net.0.lock();
        (net.loss, net.delay) = (loss, delay);
    }

    pub(super) fn set_duplicates(&self, duplicates: u64) {
        self.net.0.lock().duplicates = duplicates;
    }

    pub(super) fn break_bulk_after(&self, messages: Option<u64>) {
        self.net.0.lock().bulk_breaks_after = messages;
    }

    pub(super) fn bulk_messages(&self) -> u64 {
        self.net.0.lock().bulk
    }

    /// A machine loses its power: nothing is sent or written any more, and unsynced data may be
    /// lost.
    pub(super) async fn crash(&mut self, machine: usize) {
        self.lose(machine, true);
        self.drain().await;
    }

    /// A process ends at once, by power loss or kill.
    pub(super) fn lose(&mut self, machine: usize, power: bool) {
        self.net.0.lock().members.remove(&self.at(machine));
        let Some(node) = self.nodes.remove(&machine) else { return };
        let disk = &node.disk;
        let kept = if power { disk.after_power_cut(&mut self.rng) } else { disk.after_kill() };
        disk.cut_power_at(disk.operations());
        self.disks.insert(machine, kept);
        node.tasks.shutdown().request();
        self.ghosts.push(node.tasks);
    }

    /// Waits until killed processes have ended.
    pub(super) async fn drain(&mut self) {
        for tasks in self.ghosts.drain(..) {
            tasks.drain(Duration::from_secs(60)).await;
        }
    }

    /// Stops a machine cleanly.
    pub(super) async fn stop(&mut self, machine: usize) {
        assert_eq!(self.halt(machine).await, Ok(None));
    }

    /// Stops a machine; returns its fault if it did not stop cleanly.
    ///
    /// # Errors
    /// Names of the tasks that did not end.
    pub(super) async fn halt(&mut self, machine: usize) -> Result<Option<String>, String> {
        let node = self.nodes.remove(&machine).unwrap();
        node.tasks.shutdown().request();
        let left = node.tasks.drain(Duration::from_secs(60)).await;
        self.net.0.lock().members.remove(&self.at(machine));
        if !left.is_empty() {
            return Err(format!("machine {machine} does not stop: {left:?}"));
        }
        let disk = &node.disk;
        if disk.has_power() {
            disk.repair();
        } else {
            self.disks.insert(machine, disk.after_power_cut(&mut self.rng));
        }
        Ok(node.fault())
    }

    pub(super) fn store(&self, machine: usize) -> &Arc<dyn Backend> {
        &self.nodes[&machine].store
    }

    /// After a consistent read, all running machines have the same keys.
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
