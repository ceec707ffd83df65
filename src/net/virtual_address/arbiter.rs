//! The leases of one server.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use super::ledger::Ledger;
use super::{ADDRESSES_MAX, LeaseRequest, LeaseResponse, WATCH};

/// The leases that one server grants.
#[derive(Debug)]
pub struct Arbiter {
    server: String,
    ledger: Mutex<Ledger>,
    /// Wakes requests that wait for free addresses.
    changed: Notify,
    contested: watch::Sender<bool>,
}

/// Removes a watching machine when its request ends.
struct WatcherGuard<'a>(&'a Arbiter, u64);

impl Drop for WatcherGuard<'_> {
    fn drop(&mut self) {
        self.0.ledger.lock().unwatch(self.1);
        self.0.changed.notify_waiters();
    }
}

impl Arbiter {
    /// The leases of the server with this identity, whose own machine is `own`.
    pub fn new(server: String, own: &str) -> Self {
        Self {
            server,
            ledger: Mutex::new(Ledger::new(own, base::clock::now())),
            changed: Notify::new(),
            contested: watch::Sender::new(false),
        }
    }

    /// Whether a machine other than the server's own has asked for addresses, or there are several
    /// servers.
    pub fn contested(&self) -> watch::Receiver<bool> {
        self.contested.subscribe()
    }

    /// The machines that have an address now.
    pub fn holders(&self) -> BTreeMap<IpAddr, String> {
        self.ledger.lock().holders(base::clock::now())
    }

    /// Answers a request of a machine that may have the addresses for which `is_allowed`. `servers`
    /// is the number of servers.
    pub async fn answer(
        &self,
        mut request: LeaseRequest,
        servers: usize,
        is_allowed: impl Fn(IpAddr) -> bool,
    ) -> LeaseResponse {
        for set in [&mut request.claim, &mut request.held, &mut request.release, &mut request.watch]
        {
            set.retain(|ip| is_allowed(*ip));
            while set.len() > ADDRESSES_MAX {
                set.pop_last();
            }
        }
        let is_alone = servers < 2;
        let is_contested = {
            let mut ledger = self.ledger.lock();
            ledger.note_machine(&request.holder, is_alone, base::clock::now())
        };
        self.contested
            .send_if_modified(|known| std::mem::replace(known, is_contested) != is_contested);
        let mut response = self.ledger.lock().claim(&request, is_alone, base::clock::now());
        response.server.clone_from(&self.server);
        response.servers = servers;
        if !request.release.is_empty() {
            self.changed.notify_waiters();
        }
        if !request.watch.is_empty() {
            response.free = self.wait_for_free(&request.holder, request.watch).await;
        }
        response
    }

    async fn wait_for_free(&self, machine: &str, watched: BTreeSet<IpAddr>) -> BTreeSet<IpAddr> {
        let deadline = base::clock::now() + WATCH;
        let number = self.ledger.lock().watch(machine, watched.clone());
        let _guard = WatcherGuard(self, number);
        self.changed.notify_waiters();
        loop {
            let changed = self.changed.notified();
            let now = base::clock::now();
            let (free, next) = self.ledger.lock().free(machine, &watched, now);
            if !free.is_empty() || now >= deadline {
                return free;
            }
            let next = next.unwrap_or(deadline).min(deadline).max(now + Duration::from_millis(1));
            tokio::select! {
                () = changed => {}
                () = sleep_until(next) => {}
            }
        }
    }
}

/// Sleeps until a time.
async fn sleep_until(at: Instant) {
    base::clock::sleep(at.saturating_duration_since(base::clock::now())).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(holder: &str, fill: impl FnOnce(&mut LeaseRequest)) -> LeaseRequest {
        let mut request = LeaseRequest { holder: holder.into(), ..LeaseRequest::default() };
        fill(&mut request);
        request
    }

    fn set(texts: &[&str]) -> BTreeSet<IpAddr> {
        texts.iter().map(|ip| ip.parse().unwrap()).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn a_watching_machine_learns_of_an_address_when_its_lease_ends_or_is_released() {
        let arbiter = Arbiter::new("s".into(), "own");
        let address = set(&["192.0.2.10"]);
        base::clock::sleep(super::super::LEASE).await;
        let claim = |holder| request(holder, |r| r.claim = address.clone());
        let watch = |holder| request(holder, |r| r.watch = address.clone());
        assert_eq!(arbiter.answer(claim("a"), 3, |_| true).await.granted, address);
        let other = arbiter.answer(claim("b"), 3, |_| true).await;
        assert_eq!(other.granted, set(&[]));
        assert_eq!(other.others.values().next().map(String::as_str), Some("a"));
        let begun = base::clock::now();
        assert_eq!(arbiter.answer(watch("b"), 3, |_| true).await.free, address);
        let waited = begun.elapsed();
        assert!(waited >= super::super::LEASE && waited < super::super::LEASE * 2, "{waited:?}");
        arbiter.answer(claim("a"), 3, |_| true).await;
        let release = request("a", |r| r.release = address.clone());
        let begun = base::clock::now();
        let (free, _) = tokio::join!(arbiter.answer(watch("b"), 3, |_| true), async {
            base::clock::sleep(Duration::from_millis(5)).await;
            arbiter.answer(release, 3, |_| true).await
        });
        assert_eq!(free.free, address);
        assert!(begun.elapsed() < Duration::from_millis(100));
    }

    #[tokio::test(start_paused = true)]
    async fn addresses_that_a_machine_may_not_have_are_ignored() {
        let arbiter = Arbiter::new("s".into(), "own");
        base::clock::sleep(super::super::LEASE).await;
        let claim = request("a", |r| r.claim = set(&["192.0.2.10", "192.0.2.11"]));
        let allowed: IpAddr = "192.0.2.11".parse().unwrap();
        let response = arbiter.answer(claim, 3, |ip| ip == allowed).await;
        assert_eq!(response.granted, set(&["192.0.2.11"]));
        assert_eq!((response.server.as_str(), response.servers), ("s", 3));
        let nothing = request("a", |r| r.watch = set(&["192.0.2.10"]));
        assert_eq!(arbiter.answer(nothing, 3, |ip| ip == allowed).await.free, set(&[]));
    }

    #[tokio::test(start_paused = true)]
    async fn only_other_machines_or_servers_make_addresses_contested() {
        let arbiter = Arbiter::new("s".into(), "own");
        let contested = arbiter.contested();
        let address = set(&["192.0.2.10"]);
        let own = request("own", |r| (r.claim, r.held) = (address.clone(), address.clone()));
        // After a restart the only server's own machine keeps what it has.
        assert_eq!(arbiter.answer(own.clone(), 1, |_| true).await.granted, address);
        base::clock::sleep(Duration::from_secs(3600)).await;
        assert!(!*contested.borrow());
        assert_eq!(arbiter.holders().len(), 1, "without other machines the lease has no end");
        let other = request("b", |r| r.claim = address.clone());
        assert_eq!(arbiter.answer(other.clone(), 1, |_| true).await.granted, set(&[]));
        assert!(*contested.borrow());
        base::clock::sleep(super::super::LEASE).await;
        assert_eq!(arbiter.answer(other, 1, |_| true).await.granted, address);
    }
}
