//! `--fast-node-loss`: translates the state of the tunnels for the node lifecycle controller.

use std::net::IpAddr;
use std::sync::Arc;

use base::{Kind, Tasks};
use cluster::tunnel::{Presences, State};
use controllers::{FastLoss, Tunnel, Tunnels};
use tokio::sync::watch;

/// Default toleration seconds for unreachable nodes: gives a node that is not lost the time to
/// reconnect.
pub(crate) const TOLERATION_SECONDS: i64 = 1;

/// The tunnels as the controllers read them. A lost tunnel keeps the state of its first report.
/// `link_up` is whether this server's own link has a carrier.
fn classify(presences: &Presences, before: &Tunnels, link_up: bool) -> Arc<Tunnels> {
    let line = |(name, presence): (&String, &cluster::tunnel::Presence)| {
        let since = presence.since;
        let tunnel = match (presence.state, before.get(name)) {
            (State::Up, _) => Tunnel::Up,
            (_, Some(lost @ Tunnel::Lost { since: known, .. })) if *known == since => *lost,
            // The machine closed the connection itself, so the network works.
            (State::Closed, _) => Tunnel::Lost { since, proved: true },
            (State::Silent, _) => Tunnel::Lost { since, proved: link_up },
        };
        (name.clone(), tunnel)
    };
    Arc::new(presences.iter().map(line).collect())
}

/// Whether the interface with this address has a carrier; `false` when that is unknown.
fn link_up(address: IpAddr) -> bool {
    let has = |entry: &nix::ifaddrs::InterfaceAddress| {
        let socket = entry.address.as_ref();
        let four = socket.and_then(|s| s.as_sockaddr_in()).map(|s| IpAddr::V4(s.ip()));
        let six = socket.and_then(|s| s.as_sockaddr_in6()).map(|s| IpAddr::V6(s.ip()));
        four.or(six) == Some(address)
    };
    let Some(link) = nix::ifaddrs::getifaddrs().into_iter().flatten().find(has) else {
        return false;
    };
    let carrier = format!("/sys/class/net/{}/carrier", link.interface_name);
    base::fs::read_to_string(carrier.as_ref()).is_ok_and(|text| text.trim() == "1")
}

/// Follows the tunnels until shutdown. `address` is the one at which agents reach this server.
pub(crate) fn start(
    mut presences: watch::Receiver<Presences>,
    address: IpAddr,
    toleration: i64,
    tasks: &Tasks,
) -> FastLoss {
    let first = classify(&presences.borrow_and_update(), &Tunnels::new(), false);
    let (sender, tunnels) = watch::channel(first);
    let shutdown = tasks.shutdown().clone();
    tasks.spawn(Kind::Critical, "node-loss", async move {
        loop {
            tokio::select! {
                () = shutdown.requested() => return Ok::<(), std::convert::Infallible>(()),
                changed = presences.changed() => if changed.is_err() {
                    shutdown.requested().await;
                },
            }
            let up = base::tasks::blocking(move || link_up(address)).await.unwrap_or(false);
            let before = Arc::clone(&sender.borrow());
            sender.send_replace(classify(&presences.borrow_and_update(), &before, up));
        }
    });
    FastLoss { tunnels, toleration }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cluster::tunnel::Presence;

    #[test]
    fn a_loss_is_proved_by_a_closed_connection_or_an_own_link_that_is_up() {
        let since = base::clock::now();
        let all = |state| Presences::from([("a".to_owned(), Presence { state, since })]);
        let first = |state, link_up| classify(&all(state), &Tunnels::new(), link_up)["a"];
        assert_eq!(first(State::Up, false), Tunnel::Up);
        assert_eq!(first(State::Closed, false), Tunnel::Lost { since, proved: true });
        assert_eq!(first(State::Silent, true), Tunnel::Lost { since, proved: true });
        let unproved = Tunnel::Lost { since, proved: false };
        assert_eq!(first(State::Silent, false), unproved);
        // A carrier that is back does not prove an earlier loss.
        let before = Tunnels::from([("a".to_owned(), unproved)]);
        assert_eq!(classify(&all(State::Silent), &before, true)["a"], unproved);
        assert!(link_up(std::net::Ipv4Addr::LOCALHOST.into()));
        assert!(!link_up("203.0.113.77".parse().unwrap()));
    }
}
