//! Probes the paths to other nodes for two faults: an MTU black hole, where small packets arrive
//! and large ones are lost without an ICMP error; and a network card that corrupts checksums, where
//! only datagrams arrive whose checksum this process computed itself.
//!
//! A probe sends UDP datagrams to a closed port of the pod gateway of the other node. They take the
//! path of packets between pods, and the kernel of the other node answers them with ICMP "port
//! unreachable". If no datagram of any kind is answered, the probe reports no fault.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use base::{Backoff, Kind, Shutdown, Tasks};
use tokio::net::UdpSocket;
use tokio::sync::{Semaphore, mpsc};

use crate::overlay::checksum;
use settings::addr::Family;

/// The port of the discard service (RFC 863), which is expected to be closed on every node.
const PORT: u16 = 9;
/// An answer that takes longer than this counts as lost.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);
/// Datagrams of one size before that size counts as lost. With 30 % random loss in each direction,
/// all of them are lost in 0.5 % of the cases.
const ATTEMPTS: usize = 8;
/// Size of a packet that every link transports (RFC 791: 576 bytes, less the headers of the
/// overlay).
const SMALL_SIZE: u32 = 500;
/// Maximum number of targets that are probed at the same time.
const CONCURRENT_MAX: usize = 8;
/// Retries for a node that answers nothing: it may be starting.
const SILENT_RETRIES_MAX: u32 = 8;

/// One path to probe.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Target {
    pub(crate) node: String,
    /// The gateway address of the node's pods.
    pub(crate) address: IpAddr,
    /// The largest packet that pods send, in bytes.
    pub(crate) size: u32,
    /// Packets to the node are encapsulated in VXLAN; only then can their checksums be corrupted.
    pub(crate) tunnel: bool,
}

/// The kind of one datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Probe {
    /// An IP packet of this many bytes, as pods send it: the kernel leaves its checksum to the
    /// network card, if the card supports that.
    Size(u32),
    /// An IP packet of [`SMALL_SIZE`] bytes with a checksum that this process computed.
    Plain,
}

/// The result of a probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Finding {
    /// Packets of the target's size arrive.
    Well,
    /// The node answers too few packets, or none, to detect a fault.
    Silent,
    /// An MTU black hole: about this many bytes is the largest packet that arrives.
    Hole(u32),
    /// Packets arrive only with checksums that this process computed.
    Spoiled,
}

/// A target with the result of its last probe.
pub(crate) type Report = (Target, Finding);

/// Probes each target when it is added, and again until it has a final result.
#[derive(Debug)]
pub(crate) struct Prober {
    tasks: Tasks,
    /// Permits for [`CONCURRENT_MAX`] probes.
    permits: Arc<Semaphore>,
    /// The current targets. A target stays here after its final result, so that it is not probed
    /// again until it changes.
    probed: BTreeMap<Target, Shutdown>,
    reports: mpsc::Sender<Report>,
}

impl Prober {
    /// Returns a prober without targets, and the receiver of its reports.
    pub(crate) fn new(tasks: &Tasks) -> (Self, mpsc::Receiver<Report>) {
        // One report per running probe; a probe waits while the queue is full.
        let (reports, receiver) = mpsc::channel(CONCURRENT_MAX);
        let permits = Arc::new(Semaphore::new(CONCURRENT_MAX));
        (Self { tasks: tasks.clone(), permits, probed: BTreeMap::new(), reports }, receiver)
    }

    /// Sets the targets: starts a probe of each new one, and stops those of removed ones.
    pub(crate) fn follow(&mut self, targets: &[Target]) {
        self.probed.retain(|target, stop| {
            let stays = targets.contains(target);
            if !stays {
                stop.request();
            }
            stays
        });
        for target in targets {
            if self.probed.contains_key(target) {
                continue;
            }
            let stop = self.tasks.shutdown().child();
            self.probed.insert(target.clone(), stop.clone());
            let probe =
                probe_until_final(target.clone(), Arc::clone(&self.permits), self.reports.clone());
            self.tasks.spawn(Kind::Request, "overlay-probe", async move {
                let until = stop.clone();
                tokio::select! {
                    () = until.requested() => {}
                    () = probe(stop) => {}
                }
                Ok::<(), std::convert::Infallible>(())
            });
        }
    }
}

/// Probes a target and reports each result. Ends when the target has no fault, answers nothing
/// after [`SILENT_RETRIES_MAX`] retries, or is removed.
fn probe_until_final(
    target: Target,
    permits: Arc<Semaphore>,
    reports: mpsc::Sender<Report>,
) -> impl FnOnce(Shutdown) -> std::pin::Pin<Box<dyn Future<Output = ()> + Send>> {
    move |stop| {
        Box::pin(async move {
            let mut backoff = Backoff::new(Duration::from_secs(2), Duration::from_secs(300));
            loop {
                let finding = {
                    let Ok(_permit) = permits.acquire().await else { return };
                    find(target.size, target.tunnel, |probe| answered(target.address, probe)).await
                };
                let is_final = match finding {
                    Finding::Well => true,
                    Finding::Silent => backoff.failures() >= SILENT_RETRIES_MAX,
                    Finding::Hole(_) | Finding::Spoiled => false,
                };
                if reports.send((target.clone(), finding)).await.is_err() || is_final {
                    return;
                }
                if !backoff.wait(&stop).await {
                    return;
                }
            }
        })
    }
}

/// Sends a datagram and returns the socket that receives the answer.
async fn send(to: IpAddr, probe: Probe) -> std::io::Result<UdpSocket> {
    // The IP header without options, and the UDP header of 8 bytes.
    let headers = if Family::of(to) == Family::V4 { 28 } else { 48 };
    let payload =
        |size: u32| vec![0_u8; usize::try_from(size).unwrap_or(0).saturating_sub(headers)];
    match probe {
        Probe::Plain => checksum::send(SocketAddr::new(to, PORT), &payload(SMALL_SIZE)).await,
        Probe::Size(size) => {
            let socket = UdpSocket::bind((Family::of(to).unspecified(), 0)).await?;
            socket.connect((to, PORT)).await?;
            socket.send(&payload(size)).await?;
            Ok(socket)
        }
    }
}

/// Sends a datagram and returns whether the other node answers that the port is closed.
pub(crate) async fn answered(to: IpAddr, probe: Probe) -> bool {
    let Ok(socket) = send(to, probe).await else { return false };
    let mut buffer = [0; 1];
    let refused = async {
        loop {
            match socket.recv(&mut buffer).await {
                // A raw socket also receives other datagrams of the node.
                Ok(_) => {}
                Err(error) => return error.kind() == std::io::ErrorKind::ConnectionRefused,
            }
        }
    };
    tokio::select! {
        refused = refused => refused,
        () = base::clock::sleep(ANSWER_TIMEOUT) => false,
    }
}

/// Probes a path once: sends packets of `size` bytes, and determines the fault if none of them is
/// answered. Small and large packets alternate, so that temporary loss affects both.
pub(crate) async fn find<F, A>(size: u32, tunnel: bool, answered: F) -> Finding
where
    F: Fn(Probe) -> A,
    A: Future<Output = bool>,
{
    let mut small_arrived = 0;
    for n in 0..ATTEMPTS {
        if answered(Probe::Size(size)).await {
            return Finding::Well;
        }
        small_arrived += usize::from(answered(Probe::Size(SMALL_SIZE)).await);
        // Two packets of each size were lost: the size is not the reason.
        if small_arrived == 0 && n >= 1 {
            return if tunnel { test_checksums(answered).await } else { Finding::Silent };
        }
    }
    if small_arrived < ATTEMPTS / 2 {
        return Finding::Silent;
    }
    // A binary search for the largest packet that arrives, to 8 bytes.
    let (mut arrives, mut lost) = (SMALL_SIZE, size);
    while lost - arrives > 8 {
        let middle = arrives + (lost - arrives) / 2;
        if arrives_once(middle, &answered).await {
            arrives = middle;
        } else {
            lost = middle;
        }
    }
    // The other node limits its ICMP messages: while the limit is reached, an answered small packet
    // uses up what the large one after it would need. Large packets in a row do not.
    if arrives_once(size, &answered).await { Finding::Well } else { Finding::Hole(arrives) }
}

/// Whether one of three packets of this size in a row is answered.
async fn arrives_once<F, A>(size: u32, answered: &F) -> bool
where
    F: Fn(Probe) -> A,
    A: Future<Output = bool>,
{
    for _ in 0..3 {
        if answered(Probe::Size(size)).await {
            return true;
        }
    }
    false
}

/// Determines whether a node that answers no ordinary packet answers packets whose checksum this
/// process computed. Both kinds alternate.
async fn test_checksums<F, A>(answered: F) -> Finding
where
    F: Fn(Probe) -> A,
    A: Future<Output = bool>,
{
    let mut plain_arrived = 0;
    for n in 0..ATTEMPTS {
        if answered(Probe::Size(SMALL_SIZE)).await {
            return Finding::Silent;
        }
        plain_arrived += usize::from(answered(Probe::Plain).await);
        if plain_arrived == 0 && n >= 1 {
            return Finding::Silent;
        }
    }
    if plain_arrived < ATTEMPTS / 2 { Finding::Silent } else { Finding::Spoiled }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// Probes a path on which `answers` decides for each packet whether it is answered.
    fn probe(tunnel: bool, answers: impl Fn(Probe) -> bool) -> Finding {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(find(1450, tunnel, |probe| std::future::ready(answers(probe))))
    }

    /// Probes a path on which the answer depends on the size of the packet only.
    fn probe_sizes(answers: impl Fn(u32) -> bool) -> Finding {
        probe(true, |kind| match kind {
            Probe::Size(size) => answers(size),
            Probe::Plain => answers(SMALL_SIZE),
        })
    }

    #[test]
    fn corrupted_checksums_are_reported_only_if_own_checksums_arrive() {
        let plain_only = |kind| kind == Probe::Plain;
        assert_eq!(probe(true, plain_only), Finding::Spoiled);
        assert_eq!(probe(false, plain_only), Finding::Silent, "only VXLAN has inner checksums");
        assert_eq!(probe(true, |_| false), Finding::Silent);
        let packets = Cell::new(0_u32);
        let once_in = |n: u32| {
            packets.set(packets.get() + 1);
            packets.get().is_multiple_of(n)
        };
        let plain_rarely = |kind| kind == Probe::Plain && once_in(3);
        assert_eq!(probe(true, plain_rarely), Finding::Silent, "too few packets arrive");
        packets.set(0);
        // The first four packets are lost, and then one of each kind arrives.
        assert_eq!(probe(true, |_| once_in(5)), Finding::Silent, "random loss is no corruption");
    }

    #[test]
    fn a_black_hole_is_reported_only_if_small_packets_arrive_and_large_ones_never_do() {
        assert_eq!(probe_sizes(|_| true), Finding::Well);
        assert_eq!(probe_sizes(|_| false), Finding::Silent);
        let finding = probe_sizes(|size| size <= 1350);
        let Finding::Hole(largest) = finding else { panic!("{finding:?}") };
        assert!((1342..=1350).contains(&largest), "{largest}");
        let packets = Cell::new(0);
        let lossy = |_| {
            packets.set(packets.get() + 1);
            packets.get() % 3 == 0
        };
        assert_eq!(probe_sizes(lossy), Finding::Well, "random loss is no black hole");
        // A node that sends one ICMP message in the time for which an answer is awaited.
        let has_token = Cell::new(false);
        let limited = |_| !has_token.replace(!has_token.get());
        has_token.set(true);
        assert_eq!(probe_sizes(limited), Finding::Well, "limited answers are no black hole");
    }
}
