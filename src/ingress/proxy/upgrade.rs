//! Connections that become something else than HTTP, such as WebSocket.

use std::convert::Infallible;

use base::{Kind, Tasks};
use http::header::{CONNECTION, UPGRADE};
use http::{HeaderMap, HeaderValue};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;

/// The protocol that a message wants to upgrade to.
pub(super) fn wanted(headers: &HeaderMap) -> Option<HeaderValue> {
    let mut options = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','));
    let upgrades = options.any(|option| option.trim().eq_ignore_ascii_case("upgrade"));
    headers.get(UPGRADE).filter(|_| upgrades).cloned()
}

/// Asks for an upgrade.
pub(super) fn set(headers: &mut HeaderMap, protocol: HeaderValue) {
    headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(UPGRADE, protocol);
}

/// Copies bytes both ways once both sides have upgraded, until one closes or the process stops.
pub(super) fn join(client: OnUpgrade, endpoint: OnUpgrade, tasks: &Tasks) {
    let shutdown = tasks.shutdown().clone();
    tasks.spawn(Kind::Request, "ingress-upgrade", async move {
        let (Ok(client), Ok(endpoint)) = tokio::join!(client, endpoint) else {
            return Ok::<(), Infallible>(());
        };
        let (mut client, mut endpoint) = (TokioIo::new(client), TokioIo::new(endpoint));
        let copying = tokio::io::copy_bidirectional(&mut client, &mut endpoint);
        tokio::select! {
            // The end of either side ends both; there is no one to report an error to.
            _ = copying => {}
            () = shutdown.requested() => {}
        }
        Ok(())
    });
}
