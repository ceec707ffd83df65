//! The addresses at which the other servers advertise their API. A server may be a member of the
//! store by one address and advertise another (`--node-external-ip`), so the leader asks each over
//! the connections of peers.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use base::clock::now;
use serde::{Deserialize, Serialize};
use sorting::CompactSort as _;
use store::{Member, Responses};
use tokio::time::Instant;

use super::UNRESPONSIVE_AFTER;
use crate::control_socket::Reply;
use crate::peer_servers::{CallError, PeerServers};

/// Timeout of a request to another server.
const TIMEOUT: Duration = Duration::from_secs(2);
/// Timeout of a request to a server that has not responded since this one began to lead.
const FIRST_ANSWER: Duration = Duration::from_secs(1);
/// An answer is valid for so long: a server may restart with other flags.
const VALIDITY: Duration = Duration::from_secs(60);

/// Distinguishes this request from those about keys and CAs.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Envelope {
    advertised_address: (),
}

/// The answer to another server; `None` if the message is another one.
pub(super) fn handle_message(own: IpAddr, message: &[u8]) -> Option<Vec<u8>> {
    let Envelope { advertised_address: () } = serde_json::from_slice(message).ok()?;
    serde_json::to_vec(&Reply::<IpAddr>::Ok(own)).ok()
}

/// The address of a member of the store, which it advertises unless it says otherwise.
fn member_address(member: &Member) -> Option<IpAddr> {
    member.address.parse::<SocketAddr>().ok().map(|address| address.ip())
}

/// The advertised addresses, as this server knows them.
pub(super) struct AdvertisedAddresses {
    servers: PeerServers,
    own: IpAddr,
    known: BTreeMap<u64, (Instant, IpAddr)>,
}

impl AdvertisedAddresses {
    pub(super) fn new(servers: PeerServers, own: IpAddr) -> Self {
        Self { servers, own, known: BTreeMap::new() }
    }

    /// The addresses of this server and of those that respond to it, sorted and without duplicates;
    /// `None` if it does not lead. Right after an election a server that runs may not have
    /// responded yet: it counts if it answers now, so that no address is withdrawn for a moment.
    pub(super) async fn responsive(&mut self) -> Option<Vec<IpAddr>> {
        let Responses { responsive, unknown } =
            self.servers.members.responses(UNRESPONSIVE_AFTER)?;
        self.known.retain(|id, _| responsive.contains(id));
        let others = self.servers.others();
        let mut all = vec![self.own];
        for member in others.iter().filter(|member| responsive.contains(&member.id)) {
            all.extend(self.address_of(member).await);
        }
        let asked = others.iter().filter(|member| unknown.contains(&member.id));
        let answers = asked.map(|member| self.ask(member, FIRST_ANSWER));
        all.extend(futures::future::join_all(answers).await.into_iter().flatten());
        all.compact_sort();
        all.dedup();
        Some(all)
    }

    async fn address_of(&mut self, member: &Member) -> Option<IpAddr> {
        let known = self.known.get(&member.id).copied();
        if let Some((_, address)) =
            known.filter(|(since, _)| now().duration_since(*since) < VALIDITY)
        {
            return Some(address);
        }
        let Some(address) = self.ask(member, TIMEOUT).await else {
            return known.map(|(_, address)| address).or_else(|| member_address(member));
        };
        self.known.insert(member.id, (now(), address));
        Some(address)
    }

    /// What a server says that it advertises; `None` if it does not answer in time.
    async fn ask(&self, member: &Member, timeout: Duration) -> Option<IpAddr> {
        let request = Envelope { advertised_address: () };
        match self.servers.call::<IpAddr>(member, &request, Some(timeout)).await {
            Ok(address) => Some(address),
            // A server of an earlier version advertises the address of the member.
            Err(CallError::Rejected(_) | CallError::Malformed(_)) => member_address(member),
            Err(error) => {
                tracing::debug!(%error, member = member.address,
                    "leadership: cannot ask a server for its advertised address");
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_says_what_it_advertises_and_leaves_other_messages_alone() {
        let own = "203.0.113.1".parse().unwrap();
        let request = serde_json::to_vec(&Envelope { advertised_address: () }).unwrap();
        let answer = handle_message(own, &request).unwrap();
        assert_eq!(answer, br#"{"Ok":"203.0.113.1"}"#);
        assert_eq!(handle_message(own, br#""hash""#), None);
        assert_eq!(handle_message(own, br#"{"cas":"state"}"#), None);
    }
}
