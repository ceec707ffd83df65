//! Takes, holds and gives up virtual addresses on one machine.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use base::{Kind, Tasks};
use futures::stream::{FuturesUnordered, StreamExt as _};
use sorting::CollectOrdered as _;
use tokio::sync::watch;
use tokio::time::Instant;

use super::announcement::{announce, find_owner};
use super::interface::{self, Interface};
use super::tally::{Fate, Tally};
use super::watches::Watches;
use super::{ANSWER_MAX, HOLD, HOLD_SECONDS, LeaseRequest, LeaseServers, RENEWAL, REST, TIMEOUT};
use crate::netlink::link::mac_text;
use settings::addr::Family;

/// When an address is announced again after it was taken: frames may be lost.
const ANNOUNCEMENTS: [Duration; 4] = [
    Duration::ZERO,
    Duration::from_millis(100),
    Duration::from_millis(400),
    Duration::from_millis(1500),
];
/// How long an address is left alone that another machine answers for, or that could not be added.
const COOLING: Duration = Duration::from_secs(3);
/// Longest delay before addresses are watched again that another machine took at the same time.
const CONTENTION_MILLIS: u64 = 100;
/// Prefix of the keys of problems.
const PROBLEM: &str = "virtual-address/";

/// Tells whether an address is a virtual address.
type IsVirtual = Arc<dyn Fn(IpAddr) -> bool + Send + Sync>;

/// What a holder needs.
#[derive(Clone)]
pub struct HolderConfig {
    /// Name of the machine.
    pub name: String,
    /// The servers that grant leases.
    pub servers: Arc<dyn LeaseServers>,
    /// The addresses to hold; `None` while they are not known.
    pub wanted: watch::Receiver<Option<BTreeSet<IpAddr>>>,
    /// The machine's own addresses, whose links get the virtual ones.
    pub addresses: watch::Receiver<Vec<IpAddr>>,
    /// Which addresses of the machine are virtual: those that it does not hold are removed.
    pub is_virtual: IsVirtual,
    /// The addresses that it holds; changes are sent here.
    pub held: watch::Sender<BTreeSet<IpAddr>>,
}

/// An address that the machine has.
#[derive(Debug, Clone, Copy)]
struct Hold {
    /// Until when it is granted.
    until: Instant,
    /// The number in [`super::LeaseResponse::returns`] when it was announced last.
    returns: u64,
}

/// The virtual addresses of one machine.
pub struct Holder {
    config: HolderConfig,
    tasks: Tasks,
    contested: watch::Receiver<bool>,
    held: BTreeMap<IpAddr, Hold>,
    cooling: BTreeMap<IpAddr, Instant>,
    interfaces: BTreeMap<Family, Interface>,
    /// Number of servers by the last answer; 0 before the first one.
    servers: usize,
    renew_at: Instant,
}

/// What the holder does next.
enum Step {
    Look,
    Renew,
    Take(BTreeSet<IpAddr>),
    Stop,
}

impl Holder {
    /// A holder that owns no address yet.
    pub fn new(config: HolderConfig, tasks: &Tasks) -> Self {
        let contested = config.servers.contested();
        Self {
            config,
            tasks: tasks.clone(),
            contested,
            held: BTreeMap::new(),
            cooling: BTreeMap::new(),
            interfaces: BTreeMap::new(),
            servers: 0,
            renew_at: base::clock::now(),
        }
    }

    /// Runs until shutdown.
    ///
    /// # Errors
    /// Never: what fails is logged and tried again.
    pub async fn run(mut self) -> Result<(), std::convert::Infallible> {
        let shutdown = self.tasks.shutdown().clone();
        tokio::select! {
            known = self.config.wanted.wait_for(Option::is_some) => if known.is_err() {
                return Ok(());
            },
            () = shutdown.requested() => return Ok(()),
        }
        self.adopt().await;
        let mut watches = Watches::default();
        loop {
            match self.next_step(&mut watches).await {
                Step::Look => self.give_up_unwanted().await,
                Step::Renew => self.renew().await,
                Step::Take(free) => self.take(free).await,
                Step::Stop => break,
            }
        }
        if self.is_renewing() {
            let all: BTreeSet<IpAddr> = self.held.keys().copied().collect_set();
            self.give_up(&all, "the process stops").await;
        }
        Ok(())
    }

    /// Whether addresses have to be renewed: other machines may take them.
    fn is_renewing(&self) -> bool {
        *self.contested.borrow() || self.servers > 1
    }

    /// The only server of a cluster may be away for a while. Then no server exists that could grant
    /// its addresses to other machines.
    fn has_only_one_server(&self) -> bool {
        self.servers == 1
    }

    fn wanted(&self) -> BTreeSet<IpAddr> {
        let own = self.config.addresses.borrow().clone();
        let has_family = |ip: &IpAddr| own.iter().any(|own| Family::of(*own) == Family::of(*ip));
        let wanted = self.config.wanted.borrow().clone().unwrap_or_default();
        wanted.into_iter().filter(has_family).collect_set()
    }

    async fn next_step(&mut self, watches: &mut Watches) -> Step {
        let now = base::clock::now();
        self.cooling.retain(|_, until| *until > now);
        let mut standby = self.wanted();
        standby.retain(|ip| !self.held.contains_key(ip) && !self.cooling.contains_key(ip));
        watches.follow(&self.config, standby);
        let is_renewing = self.is_renewing() && !self.held.is_empty();
        let cooled = self.cooling.values().min().copied();
        let shutdown = self.tasks.shutdown().clone();
        tokio::select! {
            () = shutdown.requested() => Step::Stop,
            changed = self.config.wanted.changed() => changed.map_or(Step::Stop, |()| Step::Look),
            changed = self.config.addresses.changed() => {
                self.interfaces.clear();
                if changed.is_ok() { Step::Look } else { Step::Stop }
            },
            changed = self.contested.changed() => changed.map_or(Step::Stop, |()| Step::Renew),
            () = until(self.renew_at), if is_renewing => Step::Renew,
            () = until(cooled.unwrap_or(now)), if cooled.is_some() => Step::Look,
            Some((server, answer)) = watches.pending.next() => {
                match watches.answered(&self.config, server, answer) {
                    Some(free) => Step::Take(free),
                    None => Step::Look,
                }
            }
        }
    }

    /// Removes virtual addresses that an earlier process left and that this machine is not to have,
    /// and keeps the others if the servers grant them.
    async fn adopt(&mut self) {
        let is_virtual = Arc::clone(&self.config.is_virtual);
        let found = blocking(move || interface::present(|ip| is_virtual(ip))).await;
        let wanted = self.wanted();
        let (kept, gone): (BTreeSet<IpAddr>, BTreeSet<IpAddr>) =
            found.unwrap_or_default().into_iter().partition(|ip| wanted.contains(ip));
        self.remove(gone).await;
        let now = base::clock::now();
        self.held = kept.iter().map(|ip| (*ip, Hold { until: now, returns: 0 })).collect();
        if !self.held.is_empty() {
            self.renew().await;
            tracing::info!(addresses = ?self.held.keys(), "virtual addresses: kept those of the last run");
        }
    }

    async fn give_up_unwanted(&mut self) {
        let wanted = self.wanted();
        let gone = self.held.keys().copied().filter(|ip| !wanted.contains(ip)).collect();
        self.give_up(&gone, "no Service of this node needs it").await;
    }

    /// Removes addresses, then tells the servers that other machines may take them.
    async fn give_up(&mut self, addresses: &BTreeSet<IpAddr>, why: &str) {
        if addresses.is_empty() {
            return;
        }
        self.lose(addresses, why).await;
        let release = addresses.clone();
        let request =
            LeaseRequest { holder: self.config.name.clone(), release, ..LeaseRequest::default() };
        self.ask(&request).await;
    }

    /// Removes addresses that other machines may have.
    async fn lose(&mut self, addresses: &BTreeSet<IpAddr>, why: &str) {
        if addresses.is_empty() {
            return;
        }
        tracing::info!(?addresses, why, "virtual addresses: given up");
        self.held.retain(|ip, _| !addresses.contains(ip));
        self.remove(addresses.clone()).await;
        self.publish();
    }

    async fn remove(&self, addresses: BTreeSet<IpAddr>) {
        if addresses.is_empty() {
            return;
        }
        if let Err(error) = blocking(move || interface::remove(&addresses)).await {
            tracing::warn!(%error, "virtual addresses: cannot remove addresses");
        }
    }

    fn publish(&self) {
        let now: BTreeSet<IpAddr> = self.held.keys().copied().collect_set();
        self.config.held.send_if_modified(|known| {
            let changed = *known != now;
            *known = now;
            changed
        });
    }

    /// Sends a request to all servers and gathers their answers, until those in hand decide.
    async fn ask(&mut self, request: &LeaseRequest) -> Tally {
        let mut tally = Tally::new(self.servers);
        let servers = self.config.servers.list();
        let mut answers: FuturesUnordered<_> =
            servers.iter().map(|server| server.request(request)).collect();
        let all = async {
            loop {
                // A lost server must not delay what the others answer.
                let rest = if tally.has_majority() { REST } else { TIMEOUT };
                let next = tokio::time::timeout(rest, answers.next());
                let Ok(Some(answer)) = next.await else { return };
                match answer {
                    Ok(answer) => tally.add(answer),
                    Err(error) => {
                        tracing::debug!(%error, "virtual addresses: a server does not answer")
                    }
                }
                if tally.decides(&request.claim) {
                    return;
                }
            }
        };
        // Without an answer in time the tally has those of the other servers.
        let _ = tokio::time::timeout(TIMEOUT, all).await;
        drop(answers);
        self.servers = tally.servers();
        tally
    }

    /// Renews the leases of all held addresses, and removes the addresses that are lost.
    async fn renew(&mut self) {
        let sent = base::clock::now();
        self.renew_at = sent + RENEWAL;
        if self.held.is_empty() {
            return;
        }
        let claim: BTreeSet<IpAddr> = self.held.keys().copied().collect_set();
        let request = LeaseRequest {
            holder: self.config.name.clone(),
            held: claim.clone(),
            claim,
            ..LeaseRequest::default()
        };
        let tally = self.ask(&request).await;
        let now = base::clock::now();
        let is_prompt = now.duration_since(sent) <= ANSWER_MAX;
        let (mut extended, mut again, mut lost) = (Vec::new(), Vec::new(), BTreeSet::new());
        let keeps_alone = self.has_only_one_server();
        for (ip, hold) in &mut self.held {
            match tally.fate(*ip) {
                Fate::Granted => {
                    hold.until = sent + HOLD;
                    if is_prompt {
                        extended.push(*ip);
                    }
                    let returns = tally.returns(*ip);
                    if std::mem::replace(&mut hold.returns, returns) < returns {
                        again.push(*ip);
                    }
                }
                Fate::Taken => drop(lost.insert(*ip)),
                Fate::Open if keeps_alone => {
                    hold.until = now + HOLD;
                    extended.push(*ip);
                }
                Fate::Open if now >= hold.until => drop(lost.insert(*ip)),
                Fate::Open => {}
            }
        }
        self.lose(&lost, "its lease has ended").await;
        if let Err(error) = self.hold(&extended).await {
            tracing::warn!(%error, "virtual addresses: cannot extend addresses");
            self.interfaces.clear();
        }
        self.publish();
        self.announce(again);
    }

    /// Takes free addresses: asks all servers, then whether another machine of the link answers,
    /// and adds those that are granted and unused.
    async fn take(&mut self, free: BTreeSet<IpAddr>) {
        let sent = base::clock::now();
        let request = LeaseRequest {
            holder: self.config.name.clone(),
            claim: free.clone(),
            ..LeaseRequest::default()
        };
        let tally = self.ask(&request).await;
        let granted: BTreeSet<IpAddr> =
            free.iter().copied().filter(|ip| tally.fate(*ip) == Fate::Granted).collect_set();
        let unused = self.unused(granted).await;
        let until = sent + HOLD;
        let mut taken: Vec<IpAddr> = unused.iter().copied().collect();
        if base::clock::now() >= until && self.is_renewing() {
            taken.clear();
        }
        if let Err(error) = self.hold(&taken).await {
            tracing::warn!(%error, addresses = ?taken, "virtual addresses: cannot add addresses");
            let cooled = base::clock::now() + COOLING;
            self.cooling.extend(taken.drain(..).map(|ip| (ip, cooled)));
            self.interfaces.clear();
        }
        for ip in &taken {
            self.tasks.problems().clear(&format!("{PROBLEM}{ip}"));
            self.held.insert(*ip, Hold { until, returns: tally.returns(*ip) });
        }
        if !taken.is_empty() {
            tracing::info!(addresses = ?taken, "virtual addresses: taken");
            self.renew_at = base::clock::now();
        }
        self.publish();
        let refused: BTreeSet<IpAddr> =
            free.into_iter().filter(|ip| !taken.contains(ip)).collect_set();
        self.announce(taken);
        if !refused.is_empty() {
            let release = refused.clone();
            let holder = self.config.name.clone();
            self.ask(&LeaseRequest { holder, release, ..LeaseRequest::default() }).await;
            let millis = base::clock::random_u64() % CONTENTION_MILLIS;
            let cooled = base::clock::now() + Duration::from_millis(millis);
            for ip in refused {
                self.cooling.entry(ip).or_insert(cooled);
            }
        }
    }

    /// Those of the addresses that no other machine of the link answers for.
    async fn unused(&mut self, addresses: BTreeSet<IpAddr>) -> BTreeSet<IpAddr> {
        let mut probes = Vec::new();
        for ip in addresses {
            match self.interface(Family::of(ip)).await {
                Some(interface) => probes
                    .push(async move { (ip, blocking(move || find_owner(&interface, ip)).await) }),
                None => drop(self.cooling.insert(ip, base::clock::now() + COOLING)),
            }
        }
        let mut unused = BTreeSet::new();
        for (ip, found) in futures::future::join_all(probes).await {
            let mac = match found {
                Ok(None) => {
                    unused.insert(ip);
                    continue;
                }
                Ok(Some(mac)) => mac_text(&mac),
                Err(error) => {
                    tracing::warn!(%error, %ip, "virtual addresses: cannot ask for an owner");
                    unused.insert(ip);
                    continue;
                }
            };
            self.cooling.insert(ip, base::clock::now() + COOLING);
            self.tasks.problems().put(
                &format!("{PROBLEM}{ip}"),
                format!("the machine {mac} answers for the virtual address {ip}, so this node does not take it"),
                "if that is no node of this cluster, give one of the two another address; a node that is cut off from the servers gives the address up once it reaches one",
            );
        }
        unused
    }

    async fn interface(&mut self, family: Family) -> Option<Interface> {
        if let Some(known) = self.interfaces.get(&family) {
            return Some(known.clone());
        }
        let own = self.config.addresses.borrow().clone();
        match blocking(move || interface::find(&own, family)).await {
            Ok(found) => {
                self.interfaces.extend(found.clone().map(|found| (family, found)));
                found
            }
            Err(error) => {
                tracing::warn!(%error, "virtual addresses: cannot read the machine's links");
                None
            }
        }
    }

    /// Adds addresses to the machine or extends them.
    async fn hold(&mut self, addresses: &[IpAddr]) -> std::io::Result<()> {
        let seconds = self.is_renewing().then_some(HOLD_SECONDS);
        for family in Family::ALL {
            let of_family = addresses.iter().copied().filter(|ip| Family::of(*ip) == family);
            let ips: Vec<IpAddr> = of_family.collect();
            if ips.is_empty() {
                continue;
            }
            let Some(interface) = self.interface(family).await else {
                return Err(std::io::Error::other("no link has an address of this node"));
            };
            blocking(move || interface::hold(&interface, &ips, seconds)).await?;
        }
        Ok(())
    }

    /// Announces addresses several times in the background, as long as they are held.
    fn announce(&self, addresses: Vec<IpAddr>) {
        if addresses.is_empty() {
            return;
        }
        let (interfaces, held) = (self.interfaces.clone(), self.config.held.subscribe());
        let shutdown = self.tasks.shutdown().clone();
        self.tasks.spawn(Kind::Request, "address announcement", async move {
            for delay in ANNOUNCEMENTS {
                tokio::select! {
                    () = base::clock::sleep(delay) => {}
                    () = shutdown.requested() => break,
                }
                for (family, interface) in interfaces.clone() {
                    let is_current =
                        |ip: &IpAddr| Family::of(*ip) == family && held.borrow().contains(ip);
                    let ips: Vec<IpAddr> = addresses.iter().copied().filter(is_current).collect();
                    blocking(move || announce(&interface, &ips)).await?;
                }
            }
            Ok::<(), std::io::Error>(())
        });
    }
}

/// Runs blocking work; a panic in it is an error.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> std::io::Result<T> + Send + 'static,
) -> std::io::Result<T> {
    base::tasks::blocking(work).await.map_err(std::io::Error::other)?
}

async fn until(at: Instant) {
    base::clock::sleep(at.saturating_duration_since(base::clock::now())).await;
}

#[cfg(test)]
mod tests;
