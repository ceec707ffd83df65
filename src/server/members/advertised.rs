//! The addresses at which the other servers advertise their API. A server may be a member of the
//! store by one address and advertise another (`--node-external-ip`), so the leader asks each over
//! the connections of peers.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use base::clock::now;
use serde::{Deserialize, Serialize};
use store::Member;
use tokio::time::Instant;

use super::UNRESPONSIVE_AFTER;
use crate::control_socket::Reply;
use crate::peer_servers::{CallError, PeerServers};

/// Timeout of a request to another server.
const TIMEOUT: Duration = Duration::from_secs(2);
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

    /// The addresses of this server and of those that respond to it, sorted and without duplicates.
    pub(super) async fn responsive(&mut self) -> Vec<IpAddr> {
        let responsive = self.servers.members.responsive(UNRESPONSIVE_AFTER).unwrap_or_default();
        self.known.retain(|id, _| responsive.contains(id));
        let mut all = vec![self.own];
        for member in self.servers.others() {
            if responsive.contains(&member.id) {
                all.extend(self.address_of(&member).await);
            }
        }
        all.sort();
        all.dedup();
        all
    }

    async fn address_of(&mut self, member: &Member) -> Option<IpAddr> {
        let known = self.known.get(&member.id).copied();
        if let Some((_, address)) =
            known.filter(|(since, _)| now().duration_since(*since) < VALIDITY)
        {
            return Some(address);
        }
        let request = Envelope { advertised_address: () };
        let address = match self.servers.call::<IpAddr>(member, &request, Some(TIMEOUT)).await {
            Ok(address) => address,
            // A server of an earlier version advertises the address of the member.
            Err(CallError::Rejected(_) | CallError::Malformed(_)) => member_address(member)?,
            Err(error) => {
                tracing::debug!(%error, member = member.address,
                    "leadership: cannot ask a server for its advertised address");
                return known.map(|(_, address)| address).or_else(|| member_address(member));
            }
        };
        self.known.insert(member.id, (now(), address));
        Some(address)
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
