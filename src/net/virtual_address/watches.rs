//! Requests of a machine that watch for free addresses.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use sorting::CollectOrdered as _;

use super::holder::HolderConfig;
use super::{LeaseError, LeaseRequest, LeaseResponse, LeaseServer, TIMEOUT, WATCH};

/// Delay before a server is asked again that did not answer.
const AGAIN: Duration = Duration::from_millis(500);

pub(super) type Watched = (Arc<dyn LeaseServer>, Result<LeaseResponse, LeaseError>);

/// Requests that watch for free addresses, one per server.
#[derive(Default)]
pub(super) struct Watches {
    addresses: BTreeSet<IpAddr>,
    servers: Vec<Arc<dyn LeaseServer>>,
    /// Their answers.
    pub(super) pending: FuturesUnordered<BoxFuture<'static, Watched>>,
}

impl Watches {
    /// Watches these addresses at all servers, unless that is the case already.
    pub(super) fn follow(&mut self, config: &HolderConfig, addresses: BTreeSet<IpAddr>) {
        let servers = config.servers.list();
        let is_same = self.servers.len() == servers.len()
            && self.servers.iter().zip(&servers).all(|(a, b)| Arc::ptr_eq(a, b));
        if is_same && self.addresses == addresses {
            return;
        }
        (self.addresses, self.servers) = (addresses, servers);
        self.pending.clear();
        if self.addresses.is_empty() {
            return;
        }
        for server in self.servers.clone() {
            self.ask(config, server, Duration::ZERO);
        }
    }

    fn ask(&self, config: &HolderConfig, server: Arc<dyn LeaseServer>, delay: Duration) {
        let request = LeaseRequest {
            holder: config.name.clone(),
            watch: self.addresses.clone(),
            ..LeaseRequest::default()
        };
        self.pending.push(Box::pin(async move {
            base::clock::sleep(delay).await;
            // The server answers after `WATCH` at the latest.
            let answer = tokio::time::timeout(WATCH + TIMEOUT, server.request(&request)).await;
            let answer = answer.unwrap_or_else(|_| Err(LeaseError("no answer in time".into())));
            (server, answer)
        }));
    }

    /// Reads the answer of a server and asks it again; returns the free addresses.
    pub(super) fn answered(
        &mut self,
        config: &HolderConfig,
        server: Arc<dyn LeaseServer>,
        answer: Result<LeaseResponse, LeaseError>,
    ) -> Option<BTreeSet<IpAddr>> {
        match answer {
            Ok(answer) => {
                let free: BTreeSet<IpAddr> =
                    answer.free.intersection(&self.addresses).copied().collect_set();
                if free.is_empty() {
                    self.ask(config, server, Duration::ZERO);
                    return None;
                }
                // What is taken is no longer watched; the next step watches the rest.
                self.pending.clear();
                self.addresses.clear();
                Some(free)
            }
            Err(error) => {
                tracing::debug!(%error, "virtual addresses: cannot watch for free addresses");
                self.ask(config, server, AGAIN);
                None
            }
        }
    }
}
