//! Virtual addresses: one of several machines holds each and answers for it, and another takes over
//! when that machine is lost.
//!
//! The holder has a lease of every server and renews it several times a second. It holds an address
//! while more than half of the servers grant it, so no two machines hold one. Leases are kept in
//! memory alone: they cost no write. A server that starts grants nothing for the duration of a
//! lease, because it does not know what it granted before.

mod announcement;
mod arbiter;
mod frame;
mod holder;
mod interface;
mod ledger;
mod sys;
mod tally;
mod wanted;
mod watches;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

pub use arbiter::Arbiter;
pub use holder::{Holder, HolderConfig};
pub(crate) use wanted::follow;

/// How long a server grants an address after it received a request.
const LEASE: Duration = Duration::from_millis(1400);
/// How long a machine holds an address after it sent the request that was granted. The kernel,
/// which counts whole seconds, removes the address even if the process has ended by then, 1.25 s
/// after the answer; [`ANSWER_MAX`] keeps that before the end of the lease.
const HOLD: Duration = Duration::from_millis(1000);
/// The same in the kernel, in seconds.
const HOLD_SECONDS: u32 = 1;
/// A later answer does not extend the address in the kernel.
const ANSWER_MAX: Duration = Duration::from_millis(150);
/// Interval of renewals.
const RENEWAL: Duration = Duration::from_millis(250);
/// Timeout of a request for a lease.
const TIMEOUT: Duration = Duration::from_millis(400);
/// How long the answers of the other servers are awaited once more than half have answered.
const REST: Duration = Duration::from_millis(50);
/// How long a server keeps a request that watches for free addresses.
const WATCH: Duration = Duration::from_secs(10);
/// Maximum number of addresses in one request.
const ADDRESSES_MAX: usize = 65_536;

/// A request of a machine to one server.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LeaseRequest {
    /// Name of the machine.
    pub holder: String,
    /// Addresses to renew or to take.
    pub claim: BTreeSet<IpAddr>,
    /// Those of `claim` that the machine has.
    pub held: BTreeSet<IpAddr>,
    /// Addresses that the machine no longer has.
    pub release: BTreeSet<IpAddr>,
    /// The server answers once the machine should take one of these, or after some seconds.
    pub watch: BTreeSet<IpAddr>,
}

/// The answer of a server.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LeaseResponse {
    /// Identity of the server.
    pub server: String,
    /// Number of servers, of which more than half must grant an address.
    pub servers: usize,
    /// The claimed addresses that are granted.
    pub granted: BTreeSet<IpAddr>,
    /// The claimed addresses that other machines have.
    pub others: BTreeMap<IpAddr, String>,
    /// Those of `watch` that the machine should take.
    pub free: BTreeSet<IpAddr>,
    /// How often machines that had been cut off asked for each claimed address: a holder announces
    /// an address again when the number grows.
    pub returns: BTreeMap<IpAddr, u64>,
}

/// A server does not answer.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{0}")]
pub struct LeaseError(pub String);

/// A server that grants leases.
#[async_trait]
pub trait LeaseServer: Send + Sync + std::fmt::Debug {
    /// Sends a request; the caller limits the time.
    ///
    /// # Errors
    /// The server does not answer or rejects the request.
    async fn request(&self, request: &LeaseRequest) -> Result<LeaseResponse, LeaseError>;
}

/// The servers that grant leases, as one machine reaches them.
pub trait LeaseServers: Send + Sync + std::fmt::Debug {
    /// All servers; each may occur by several addresses.
    fn list(&self) -> Vec<Arc<dyn LeaseServer>>;

    /// Whether other machines may want the same addresses: always, unless this is the only server
    /// and no other machine has asked it. Without other machines a holder renews nothing.
    fn contested(&self) -> watch::Receiver<bool>;
}

/// What the network of a node needs for the addresses of Services.
#[derive(Debug, Clone)]
pub struct VirtualAddresses {
    /// The servers that grant them.
    pub servers: Arc<dyn LeaseServers>,
    /// The addresses that this node holds; changes are sent here.
    pub held: watch::Sender<BTreeSet<IpAddr>>,
}
