//! Finds paths on which small packets arrive and large ones are lost without a word, an MTU black
//! hole, and those on which only datagrams arrive whose checksum was not left to the network card.
//!
//! A datagram to a closed port of the peer's pod gateway takes the way that packets of pods take,
//! and is answered by the peer's kernel; nothing has to listen there. No answer to any of them says
//! nothing, so nothing is claimed.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use base::{Backoff, Kind, Shutdown, Tasks};
use tokio::net::UdpSocket;
use tokio::sync::{Semaphore, mpsc};

use crate::overlay::checksum;
use settings::addr::Family;

/// `discard` (RFC 863): closed on any machine that pods run on.
const PORT: u16 = 9;
/// An answer that takes longer than this counts as lost.
const ANSWER: Duration = Duration::from_secs(1);
/// Datagrams of one size before it counts as lost: with 30 % loss in each direction all of them are
/// lost once in 250 times.
const TRIES: usize = 8;
/// Every link carries this much (RFC 791: 576 bytes, less the header of the overlay).
const SMALL: u32 = 500;
/// Probes at one time.
const AT_ONCE: usize = 8;
/// Looks at a peer that answers nothing; it may be starting.
const SILENT_MAX: u32 = 8;

/// One way to look at.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Target {
    pub(crate) node: String,
    /// Gateway of the node's pods.
    pub(crate) address: IpAddr,
    /// The largest packet that pods send, in bytes.
    pub(crate) size: u32,
    /// Packets to it go through the tunnel.
    pub(crate) tunnel: bool,
}

/// What is sent on a look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Probe {
    /// A packet of so many bytes, as pods send it: the last sender completes its
    /// checksum.
    Size(u32),
    /// A small one with a checksum of our own.
    Plain,
}

/// What a look found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Finding {
    /// Large packets arrive.
    Well,
    /// Nothing answers.
    Silent,
    /// This is the largest that arrives.
    Hole(u32),
    /// Packets arrive only with checksums of our own.
    Spoiled,
}

/// What was found on a way that is probed.
pub(crate) type Report = (Target, Finding);

/// Probes ways as they appear and change.
#[derive(Debug)]
pub(crate) struct Prober {
    tasks: Tasks,
    turns: Arc<Semaphore>,
    running: BTreeMap<Target, Shutdown>,
    tell: mpsc::Sender<Report>,
}

impl Prober {
    pub(crate) fn new(tasks: &Tasks) -> (Self, mpsc::Receiver<Report>) {
        // One message per probe that runs; a full queue makes it wait.
        let (tell, told) = mpsc::channel(AT_ONCE);
        let turns = Arc::new(Semaphore::new(AT_ONCE));
        (Self { tasks: tasks.clone(), turns, running: BTreeMap::new(), tell }, told)
    }

    /// Looks at ways that are new, and forgets those that are gone.
    pub(crate) fn follow(&mut self, targets: &[Target]) {
        self.running.retain(|target, stop| {
            let stays = targets.contains(target);
            if !stays {
                stop.request();
            }
            stays
        });
        for target in targets {
            if self.running.contains_key(target) {
                continue;
            }
            let stop = self.tasks.shutdown().child();
            self.running.insert(target.clone(), stop.clone());
            let look = look(target.clone(), Arc::clone(&self.turns), self.tell.clone());
            self.tasks.spawn(Kind::Request, "overlay-probe", async move {
                let until = stop.clone();
                tokio::select! {
                    () = until.requested() => {}
                    () = look(stop) => {}
                }
                Ok::<(), std::convert::Infallible>(())
            });
        }
    }
}

fn look(
    target: Target,
    turns: Arc<Semaphore>,
    tell: mpsc::Sender<Report>,
) -> impl FnOnce(Shutdown) -> std::pin::Pin<Box<dyn Future<Output = ()> + Send>> {
    move |stop| {
        Box::pin(async move {
            let mut backoff = Backoff::new(Duration::from_secs(2), Duration::from_secs(300));
            loop {
                let finding = {
                    let Ok(_turn) = turns.acquire().await else { return };
                    find(target.size, target.tunnel, |ask| answered(target.address, ask)).await
                };
                let last = match finding {
                    Finding::Well => true,
                    Finding::Silent => backoff.failures() >= SILENT_MAX,
                    Finding::Hole(_) | Finding::Spoiled => false,
                };
                if tell.send((target.clone(), finding)).await.is_err() || last {
                    return;
                }
                if !backoff.wait(&stop).await {
                    return;
                }
            }
        })
    }
}

/// Sends a packet; the socket hears the answer.
async fn send(to: IpAddr, ask: Probe) -> std::io::Result<UdpSocket> {
    let headers = if Family::of(to) == Family::V4 { 28 } else { 48 };
    let payload =
        |size: u32| vec![0_u8; usize::try_from(size).unwrap_or(0).saturating_sub(headers)];
    match ask {
        Probe::Plain => checksum::send(SocketAddr::new(to, PORT), &payload(SMALL)).await,
        Probe::Size(size) => {
            let socket = UdpSocket::bind((Family::of(to).unspecified(), 0)).await?;
            socket.connect((to, PORT)).await?;
            socket.send(&payload(size)).await?;
            Ok(socket)
        }
    }
}

/// Whether a packet is answered.
pub(crate) async fn answered(to: IpAddr, ask: Probe) -> bool {
    let Ok(socket) = send(to, ask).await else { return false };
    let mut buffer = [0; 1];
    let refused = async {
        loop {
            match socket.recv(&mut buffer).await {
                // Other datagrams of the peer, which a raw socket receives, too.
                Ok(_) => {}
                Err(error) => return error.kind() == std::io::ErrorKind::ConnectionRefused,
            }
        }
    };
    tokio::select! {
        refused = refused => refused,
        () = base::clock::sleep(ANSWER) => false,
    }
}

/// Tries sizes until it is clear what arrives. Small and large ones take turns, so that a loss that
/// comes and goes meets both.
pub(crate) async fn find<F, A>(size: u32, tunnel: bool, answered: F) -> Finding
where
    F: Fn(Probe) -> A,
    A: Future<Output = bool>,
{
    let mut small = 0;
    for n in 0..TRIES {
        if answered(Probe::Size(size)).await {
            return Finding::Well;
        }
        small += usize::from(answered(Probe::Size(SMALL)).await);
        if small == 0 && n >= 1 {
            return if tunnel { spoiled(answered).await } else { Finding::Silent };
        }
    }
    if small < TRIES / 2 {
        return Finding::Silent;
    }
    let (mut arrives, mut lost) = (SMALL, size);
    while lost - arrives > 8 {
        let middle = arrives + (lost - arrives) / 2;
        let mut found = false;
        for _ in 0..3 {
            if answered(Probe::Size(middle)).await {
                found = true;
                break;
            }
        }
        if found {
            arrives = middle;
        } else {
            lost = middle;
        }
    }
    Finding::Hole(arrives)
}

/// Whether what does not answer would, if checksums were not left to others. Both kinds take turns.
async fn spoiled<F, A>(answered: F) -> Finding
where
    F: Fn(Probe) -> A,
    A: Future<Output = bool>,
{
    let mut plain = 0;
    for n in 0..TRIES {
        if answered(Probe::Size(SMALL)).await {
            return Finding::Silent;
        }
        plain += usize::from(answered(Probe::Plain).await);
        if plain == 0 && n >= 1 {
            return Finding::Silent;
        }
    }
    if plain < TRIES / 2 { Finding::Silent } else { Finding::Spoiled }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    fn look(tunnel: bool, answers: impl Fn(Probe) -> bool) -> Finding {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(find(1450, tunnel, |ask| std::future::ready(answers(ask))))
    }

    fn found(answers: impl Fn(u32) -> bool) -> Finding {
        look(true, |ask| match ask {
            Probe::Size(size) => answers(size),
            Probe::Plain => answers(SMALL),
        })
    }

    #[test]
    fn spoiled_checksums_are_claimed_only_where_those_of_our_own_arrive() {
        let plain = |ask| ask == Probe::Plain;
        assert_eq!(look(true, plain), Finding::Spoiled);
        assert_eq!(look(false, plain), Finding::Silent, "straight packets have no checksum inside");
        assert_eq!(look(true, |_| false), Finding::Silent);
        let turn = Cell::new(0_u32);
        let once_in = |n: u32| {
            turn.set(turn.get() + 1);
            turn.get().is_multiple_of(n)
        };
        let seldom = |ask| ask == Probe::Plain && once_in(3);
        assert_eq!(look(true, seldom), Finding::Silent, "too few to say so");
        turn.set(0);
        // The first four packets are lost, and then one of each kind arrives.
        assert_eq!(look(true, |_| once_in(5)), Finding::Silent, "loss alone spoils nothing");
    }

    #[test]
    fn a_hole_is_claimed_only_where_small_packets_arrive_and_large_ones_never() {
        assert_eq!(found(|_| true), Finding::Well);
        assert_eq!(found(|_| false), Finding::Silent);
        let Finding::Hole(largest) = found(|size| size <= 1350) else { panic!("no hole") };
        assert!((1342..=1350).contains(&largest), "{largest}");
        let turn = Cell::new(0);
        let lossy = |_| {
            turn.set(turn.get() + 1);
            turn.get() % 3 == 0
        };
        assert_eq!(found(lossy), Finding::Well, "loss alone is no hole");
    }
}
