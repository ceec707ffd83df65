//! Writes this node's annotations under the node's own identity, only when they differ.

use std::collections::BTreeMap;
use std::time::Duration;

use api::k8s::api::core::v1::Node;
use base::{Backoff, Shutdown};
use client::{Client, Patch};
use serde_json::json;
use tokio::sync::watch;

use crate::config::Error;
use crate::overlay::peer::missing;

/// The desired annotations; `None` removes one.
pub(crate) type DesiredAnnotations = BTreeMap<String, Option<String>>;
pub(crate) type DesiredSender = watch::Sender<DesiredAnnotations>;
/// The annotations of the Node; `None` while it does not exist.
pub(crate) type Own = Option<BTreeMap<String, String>>;
pub(crate) type OwnSender = watch::Sender<Own>;

/// Runs until shutdown; without a server it waits for one.
pub(crate) async fn run(
    client: Client,
    node: String,
    mut wanted: watch::Receiver<DesiredAnnotations>,
    mut own: watch::Receiver<Own>,
    shutdown: Shutdown,
) -> Result<(), Error> {
    let mut backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(30));
    loop {
        let differs = {
            let (wanted, own) = (wanted.borrow_and_update(), own.borrow_and_update());
            own.as_ref().map(|own| missing(&wanted, own)).unwrap_or_default()
        };
        let mut failed = false;
        if !differs.is_empty() {
            let patch = json!({"metadata": {"annotations": differs}});
            let patched = client.patch::<Node>("", &node, "", &Patch::Merge(&patch)).await;
            match patched {
                Ok(_) => backoff.reset(),
                Err(error) => {
                    tracing::debug!(%error, "cannot write the node's annotations");
                    failed = true;
                }
            }
        }
        let delay = if failed { backoff.next_delay() } else { Duration::MAX };
        let changed = async {
            tokio::select! {
                done = wanted.changed() => done.is_ok(),
                done = own.changed() => done.is_ok(),
            }
        };
        tokio::pin!(changed);
        tokio::select! {
            () = shutdown.requested() => return Ok(()),
            alive = &mut changed => if !alive {
                return Ok(());
            },
            () = base::clock::sleep(delay), if failed => {}
        }
    }
}
