//! Finds paths on which small packets arrive and large ones are lost without a word: an MTU black hole.
//!
//! A datagram to a closed port of the peer's pod gateway takes the way that packets of pods take, and is answered by the
//! peer's kernel; nothing has to listen there. No answer to either size says nothing, so nothing is claimed.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use base::{Backoff, Kind, Shutdown, Tasks};
use tokio::net::UdpSocket;
use tokio::sync::{Semaphore, mpsc};

use crate::addr::Family;

/// `discard` (RFC 863): closed on any machine that pods run on.
const PORT: u16 = 9;
/// An answer that takes longer than this counts as lost.
const ANSWER: Duration = Duration::from_secs(1);
/// Datagrams of one size before it counts as lost: with 30 % loss in each direction all of them are lost once in 250 times.
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
}

/// What was found on a way that is probed.
pub(crate) type Told = (Target, Finding);

/// Probes ways as they appear and change.
#[derive(Debug)]
pub(crate) struct Prober {
    tasks: Tasks,
    turns: Arc<Semaphore>,
    running: BTreeMap<Target, Shutdown>,
    tell: mpsc::Sender<Told>,
}

impl Prober {
    pub(crate) fn new(tasks: &Tasks) -> (Self, mpsc::Receiver<Told>) {
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
    tell: mpsc::Sender<Told>,
) -> impl FnOnce(Shutdown) -> std::pin::Pin<Box<dyn Future<Output = ()> + Send>> {
    move |stop| {
        Box::pin(async move {
            let mut backoff = Backoff::new(Duration::from_secs(2), Duration::from_secs(300));
            loop {
                let finding = {
                    let Ok(_turn) = turns.acquire().await else { return };
                    find(target.size, |size| answered(target.address, size)).await
                };
                let last = match finding {
                    Finding::Well => true,
                    Finding::Silent => backoff.failures() >= SILENT_MAX,
                    Finding::Hole(_) => false,
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

/// Whether a packet of this size is answered.
pub(crate) async fn answered(to: IpAddr, size: u32) -> bool {
    let headers = if Family::of(to) == Family::V4 { 28 } else { 48 };
    let payload = vec![0_u8; usize::try_from(size).unwrap_or_default().saturating_sub(headers)];
    let any = Family::of(to).unspecified();
    let Ok(socket) = UdpSocket::bind((any, 0)).await else { return false };
    if socket.connect((to, PORT)).await.is_err() || socket.send(&payload).await.is_err() {
        return false;
    }
    let mut buffer = [0; 1];
    tokio::select! {
        answer = socket.recv(&mut buffer) => match answer {
            Ok(_) => true,
            Err(error) => error.kind() == std::io::ErrorKind::ConnectionRefused,
        },
        () = base::clock::sleep(ANSWER) => false,
    }
}

/// Tries sizes until it is clear what arrives. Small and large ones take turns, so that a loss that comes and goes meets
/// both.
pub(crate) async fn find<F, A>(size: u32, answered: F) -> Finding
where
    F: Fn(u32) -> A,
    A: Future<Output = bool>,
{
    let mut small = 0;
    for n in 0..TRIES {
        if answered(size).await {
            return Finding::Well;
        }
        small += usize::from(answered(SMALL).await);
        if small == 0 && n >= 1 {
            return Finding::Silent;
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
            if answered(middle).await {
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

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    fn found(answers: impl Fn(u32) -> bool) -> Finding {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(find(1450, |size| std::future::ready(answers(size))))
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
