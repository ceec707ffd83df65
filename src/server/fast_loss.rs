//! `--fast-node-loss`: what tunnels tell, in the terms of the controllers.

use std::sync::Arc;

use base::{Kind, Tasks};
use cluster::tunnel::{Presences, State};
use controllers::{FastLoss, Tunnel, Tunnels};
use tokio::sync::watch;

/// Seconds that pods with the default toleration stay on a node that is lost: time for one that is not to say so.
pub(crate) const TOLERATION_SECONDS: i64 = 1;

/// The tunnels in the controllers' terms.
fn told(presences: &Presences) -> Arc<Tunnels> {
    let line = |(name, presence): (&String, &cluster::tunnel::Presence)| {
        let tunnel = match presence.state {
            State::Up => Tunnel::Up,
            State::Closed | State::Silent => Tunnel::Lost { since: presence.since },
        };
        (name.clone(), tunnel)
    };
    Arc::new(presences.iter().map(line).collect())
}

/// Follows the tunnels until shutdown.
pub(crate) fn start(
    mut presences: watch::Receiver<Presences>,
    toleration: i64,
    tasks: &Tasks,
) -> FastLoss {
    let (sender, tunnels) = watch::channel(told(&presences.borrow_and_update()));
    let shutdown = tasks.shutdown().clone();
    tasks.spawn(Kind::Critical, "node-loss", async move {
        loop {
            tokio::select! {
                () = shutdown.requested() => return Ok::<(), std::convert::Infallible>(()),
                changed = presences.changed() => if changed.is_err() {
                    shutdown.requested().await;
                },
            }
            sender.send_replace(told(&presences.borrow_and_update()));
        }
    });
    FastLoss { tunnels, toleration }
}
