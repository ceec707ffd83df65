//! The rules of the leases of one server, without I/O.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use sorting::CollectOrdered as _;
use tokio::time::Instant;

use super::{LEASE, LeaseRequest, LeaseResponse};

/// How long the first request for an address waits for other machines, so that addresses spread.
const SETTLE: Duration = Duration::from_millis(100);
/// How much later each next machine learns of a free address.
const STEP: Duration = Duration::from_millis(150);
/// How long after the end of a lease machines learn of it: other servers received the last renewal
/// a little later.
const SLACK: Duration = Duration::from_millis(60);
/// Machines beyond this rank learn of it together.
const RANK_MAX: u32 = 8;
/// The end of a lease that does not end.
const FOREVER: Duration = Duration::from_secs(10 * 365 * 86_400);

#[derive(Debug)]
struct Lease {
    holder: String,
    until: Instant,
}

#[derive(Debug)]
struct Watcher {
    machine: String,
    addresses: BTreeSet<IpAddr>,
}

/// The leases of one server, and the machines that wait for addresses.
#[derive(Debug)]
pub(super) struct Ledger {
    own: String,
    /// Before this time nothing is granted.
    opens: Instant,
    leases: BTreeMap<IpAddr, Lease>,
    /// When an address without lease was first asked for.
    first_asked: BTreeMap<IpAddr, Instant>,
    returns: BTreeMap<IpAddr, u64>,
    watchers: BTreeMap<u64, Watcher>,
    last_watcher: u64,
    is_contested: bool,
}

/// The order of machines for an address: each address has another one.
fn order(ip: IpAddr, machine: &str) -> u64 {
    let ip = ip.to_string();
    let bytes = ip.bytes().chain([0]).chain(machine.bytes());
    let hash = bytes
        .fold(0xcbf2_9ce4_8422_2325_u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3));
    // FNV's high bits hardly depend on the last bytes.
    (hash ^ (hash >> 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

impl Ledger {
    pub(super) fn new(own: &str, now: Instant) -> Self {
        Self {
            own: own.to_owned(),
            opens: now + LEASE,
            leases: BTreeMap::new(),
            first_asked: BTreeMap::new(),
            returns: BTreeMap::new(),
            watchers: BTreeMap::new(),
            last_watcher: 0,
            is_contested: false,
        }
    }

    /// Records which machine asks; returns whether addresses are contested. Leases without end get
    /// one as soon as they are.
    pub(super) fn note_machine(&mut self, machine: &str, is_alone: bool, now: Instant) -> bool {
        if !self.is_contested && (!is_alone || machine != self.own) {
            self.is_contested = true;
            for lease in self.leases.values_mut() {
                lease.until = lease.until.min(now + LEASE);
            }
        }
        self.is_contested
    }

    /// The machines that have an address.
    pub(super) fn holders(&self, now: Instant) -> BTreeMap<IpAddr, String> {
        let valid = self.leases.iter().filter(|(_, lease)| lease.until > now);
        valid.map(|(ip, lease)| (*ip, lease.holder.clone())).collect_map()
    }

    /// Releases and grants addresses.
    pub(super) fn claim(
        &mut self,
        request: &LeaseRequest,
        is_alone: bool,
        now: Instant,
    ) -> LeaseResponse {
        for ip in &request.release {
            if self.leases.get(ip).is_some_and(|lease| lease.holder == request.holder) {
                self.leases.insert(*ip, Lease { holder: String::new(), until: now });
            }
        }
        // The only server's own machine keeps what it has over a restart: no other one can have got
        // it meanwhile.
        let is_own = is_alone && request.holder == self.own;
        let until = if self.is_contested { now + LEASE } else { now + FOREVER };
        let mut response = LeaseResponse::default();
        for ip in &request.claim {
            let other = self.leases.get(ip).filter(|lease| lease.until > now);
            let other = other.filter(|lease| lease.holder != request.holder);
            if let Some(lease) = other {
                response.others.insert(*ip, lease.holder.clone());
                if request.held.contains(ip) {
                    *self.returns.entry(*ip).or_default() += 1;
                }
                continue;
            }
            if now >= self.opens || (is_own && request.held.contains(ip)) {
                self.leases.insert(*ip, Lease { holder: request.holder.clone(), until });
                self.first_asked.remove(ip);
                response.granted.insert(*ip);
                response.returns.extend(self.returns.get(ip).map(|count| (*ip, *count)));
            }
        }
        response
    }

    /// Adds a machine that waits for addresses; returns its number.
    pub(super) fn watch(&mut self, machine: &str, addresses: BTreeSet<IpAddr>) -> u64 {
        self.last_watcher += 1;
        let watcher = Watcher { machine: machine.to_owned(), addresses };
        self.watchers.insert(self.last_watcher, watcher);
        self.last_watcher
    }

    /// Removes a machine that waited.
    pub(super) fn unwatch(&mut self, number: u64) {
        self.watchers.remove(&number);
    }

    /// The addresses that a machine should take now, and when to ask again.
    pub(super) fn free(
        &mut self,
        machine: &str,
        addresses: &BTreeSet<IpAddr>,
        now: Instant,
    ) -> (BTreeSet<IpAddr>, Option<Instant>) {
        let (mut free, mut next) = (BTreeSet::new(), None::<Instant>);
        for ip in addresses {
            let from = match self.leases.get(ip) {
                Some(lease) if lease.holder.is_empty() => lease.until,
                Some(lease) => lease.until + SLACK,
                None => *self.first_asked.entry(*ip).or_insert(now) + SETTLE,
            };
            let own = order(*ip, machine);
            let before: BTreeSet<&str> = self
                .watchers
                .values()
                .filter(|other| other.machine != machine && other.addresses.contains(ip))
                .filter(|other| order(*ip, &other.machine) < own)
                .map(|other| other.machine.as_str())
                .collect_set();
            let rank = u32::try_from(before.len()).unwrap_or(RANK_MAX).min(RANK_MAX);
            let at = from.max(self.opens) + STEP * rank;
            if at <= now {
                free.insert(*ip);
            } else {
                next = Some(next.map_or(at, |next| next.min(at)));
            }
        }
        (free, next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(texts: &[&str]) -> BTreeSet<IpAddr> {
        texts.iter().map(|ip| ip.parse().unwrap()).collect()
    }

    fn claim(holder: &str, held: bool) -> LeaseRequest {
        let claim = set(&["192.0.2.10"]);
        let held = if held { claim.clone() } else { BTreeSet::new() };
        LeaseRequest { holder: holder.into(), claim, held, ..LeaseRequest::default() }
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_starts_grants_nothing_for_the_duration_of_a_lease() {
        let now = base::clock::now();
        for (holder, held, is_alone, granted) in [
            ("a", true, true, 0),
            ("a", true, false, 0),
            ("own", true, false, 0),
            ("own", false, true, 0),
            ("own", true, true, 1),
        ] {
            let mut ledger = Ledger::new("own", now);
            ledger.note_machine(holder, is_alone, now);
            let response = ledger.claim(&claim(holder, held), is_alone, now);
            assert_eq!(response.granted.len(), granted, "{holder} {held} {is_alone}");
            let later = ledger.claim(&claim(holder, held), is_alone, now + LEASE);
            assert_eq!(later.granted.len(), 1);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_machine_that_was_cut_off_makes_the_holder_announce_again() {
        let now = base::clock::now() + LEASE;
        let mut ledger = Ledger::new("own", base::clock::now());
        ledger.note_machine("a", true, now);
        let first = ledger.claim(&claim("a", false), true, now);
        assert_eq!((first.granted.len(), first.returns.len()), (1, 0));
        ledger.claim(&claim("b", false), true, now);
        assert_eq!(ledger.claim(&claim("a", true), true, now).returns.len(), 0);
        ledger.claim(&claim("b", true), true, now);
        assert_eq!(ledger.claim(&claim("a", true), true, now).returns.values().sum::<u64>(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn free_addresses_are_offered_to_one_machine_after_the_other_and_spread() {
        let now = base::clock::now();
        let mut ledger = Ledger::new("own", now);
        let all: BTreeSet<IpAddr> = (0..60).map(|n| IpAddr::from([192, 0, 2, n])).collect();
        let machines = ["a", "b", "c"];
        for machine in machines {
            ledger.watch(machine, all.clone());
            ledger.free(machine, &all, now);
        }
        let at = now + LEASE;
        let first: Vec<usize> =
            machines.iter().map(|machine| ledger.free(machine, &all, at).0.len()).collect();
        assert_eq!(first.iter().sum::<usize>(), 60, "each address to exactly one machine");
        assert!(first.iter().all(|count| (10..35).contains(count)), "{first:?}");
        let (_, next) = ledger.free("a", &all, at);
        assert_eq!(next, Some(at + STEP));
        for machine in machines {
            assert_eq!(ledger.free(machine, &all, at + STEP * 2).0.len(), 60);
        }
    }
}
