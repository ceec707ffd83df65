//! Connections that become something else than HTTP, such as WebSocket.

use std::convert::Infallible;

use base::{Kind, Tasks};
use http::header::{CONNECTION, UPGRADE};
use http::{HeaderMap, HeaderValue};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::io::AsyncWriteExt as _;

use super::headers::has_option;
use super::http1::Http1;

/// The protocol that a message wants to upgrade to.
pub(super) fn wanted(headers: &HeaderMap) -> Option<HeaderValue> {
    headers.get(UPGRADE).filter(|_| has_option(headers, &CONNECTION, "upgrade")).cloned()
}

/// Asks for an upgrade.
pub(super) fn set(headers: &mut HeaderMap, protocol: HeaderValue) {
    headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(UPGRADE, protocol);
}

/// Copies bytes both ways once the client's side has upgraded, until one closes or the process
/// stops.
pub(super) fn join(client: OnUpgrade, endpoint: Http1, tasks: &Tasks) {
    let shutdown = tasks.shutdown().clone();
    tasks.spawn(Kind::Request, "ingress-upgrade", async move {
        let Ok(client) = client.await else { return Ok::<(), Infallible>(()) };
        let (mut client, (mut endpoint, first)) = (TokioIo::new(client), endpoint.into_parts());
        let copying = async {
            client.write_all(&first).await?;
            tokio::io::copy_bidirectional(&mut client, &mut endpoint).await
        };
        tokio::select! {
            // The end of either side ends both; there is no peer to report an error to.
            _ = copying => {}
            () = shutdown.requested() => {}
        }
        Ok(())
    });
}
