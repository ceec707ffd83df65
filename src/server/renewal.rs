//! Certificates are renewed while the server runs: nothing has to be restarted, once a year or after a jump of the clock.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use base::pki;
use base::pki::live::LiveCert;
use base::{Kind, Tasks};
use cluster::certs::ServerCerts;

use crate::server::config::Config;
use crate::server::control_plane::write_kubeconfig;

/// Time between two looks at the clock; a machine without a clock of its own gets the time some while after its start.
const LOOK_INTERVAL: Duration = Duration::from_secs(60);
/// Time until a renewal that failed (a full disk) is tried again.
const RETRY_INTERVAL: Duration = Duration::from_secs(60 * 60);

/// The serving certificate of this machine's kubelet API, and where it is kept.
pub(crate) struct NodeCert {
    /// What the listener shows.
    pub(crate) live: Arc<LiveCert>,
    /// Folder of the files.
    pub(crate) directory: PathBuf,
    /// End of validity, in seconds since the epoch.
    pub(crate) not_after: AtomicI64,
}

/// Everything that ends some day.
struct Renewal {
    config: Config,
    certs: Arc<ServerCerts>,
    port: u16,
    node: Option<NodeCert>,
}

/// Starts the task.
pub(crate) fn start(
    config: &Config,
    certs: &Arc<ServerCerts>,
    port: u16,
    node: Option<NodeCert>,
    tasks: &Tasks,
) {
    let renewal =
        Arc::new(Renewal { config: config.clone(), certs: Arc::clone(certs), port, node });
    let shutdown = tasks.shutdown().clone();
    tasks.spawn(Kind::Critical, "certificates", async move {
        let mut wait = LOOK_INTERVAL;
        loop {
            tokio::select! {
                () = base::clock::sleep(wait) => {}
                () = shutdown.requested() => return Ok::<(), std::convert::Infallible>(()),
            }
            wait = LOOK_INTERVAL;
            let now = pki::now();
            if !renewal.is_due(now) {
                continue;
            }
            let own = Arc::clone(&renewal);
            let renewed = base::tasks::blocking(move || own.renew(now)).await;
            match renewed.map_err(|e| e.to_string()).and_then(|done| done) {
                Ok(()) => tracing::info!("certificates renewed, new connections use them"),
                Err(error) => {
                    tracing::error!(error, "certificates are not renewed, tried again in an hour");
                    wait = RETRY_INTERVAL;
                }
            }
        }
    });
}

impl Renewal {
    fn is_due(&self, now: u64) -> bool {
        self.certs.is_due(now)
            || self
                .node
                .as_ref()
                .is_some_and(|n| pki::due_at(n.not_after.load(Ordering::Relaxed), now))
    }

    fn renew(&self, now: u64) -> Result<(), String> {
        if self.certs.renew(now).map_err(|e| e.to_string())? {
            write_kubeconfig(&self.config, &self.certs, self.port).map_err(|e| e.to_string())?;
        }
        if let Some(node) = &self.node {
            let (name, ips) = (&self.config.machine.node_name, &self.config.machine.node_ips);
            let made = self.certs.ensure_node(&node.directory, name, ips, now);
            let serving = made.map_err(|e| e.to_string())?.serving;
            node.live.set(&serving).map_err(|e| e.to_string())?;
            node.not_after.store(serving.not_after, Ordering::Relaxed);
        }
        Ok(())
    }
}
