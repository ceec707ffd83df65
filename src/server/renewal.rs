//! The certificates of a server and of its node, made anew by the CAs in the same process.

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use async_trait::async_trait;
use base::Tasks;
use base::pki;
use base::pki::reloadable_cert::LiveCert;
use cluster::certs::ServerCerts;
use parking_lot::Mutex;

use crate::certificates::renewal::{Addresses, Renew, moved};
use crate::server::config::Config;
use crate::server::control_plane::ControlPlane;
use crate::server::kubeconfig::KubeconfigLock;

/// The serving certificate of this machine's kubelet API, and where it is kept.
pub(crate) struct NodeCert {
    /// What the listener shows.
    pub(crate) live: Arc<LiveCert>,
    /// The addresses that it names.
    pub(crate) named: Mutex<Vec<IpAddr>>,
    /// Folder of the files.
    pub(crate) directory: PathBuf,
    /// End of validity, in seconds since the epoch.
    pub(crate) not_after: AtomicI64,
}

/// Everything that ends some day.
struct Certificates {
    config: Config,
    certs: Arc<ServerCerts>,
    port: u16,
    kubeconfig: KubeconfigLock,
    node: Option<(NodeCert, Addresses)>,
}

/// Starts the task. The node's certificate names its addresses as they are.
pub(crate) fn start(
    config: &Config,
    plane: &ControlPlane,
    node: Option<(NodeCert, Addresses)>,
    tasks: &Tasks,
) {
    let certificates = Certificates {
        config: config.clone(),
        certs: Arc::clone(&plane.certs),
        port: plane.address.port(),
        kubeconfig: plane.kubeconfig.clone(),
        node,
    };
    crate::certificates::renewal::start(Arc::new(certificates), tasks);
}

#[async_trait]
impl Renew for Arc<Certificates> {
    fn is_due(&self, now: u64) -> bool {
        self.certs.is_due(now)
            || self
                .node
                .as_ref()
                .is_some_and(|(n, _)| pki::due_at(n.not_after.load(Ordering::Relaxed), now))
    }

    async fn asked(&self) {
        let Some((node, addresses)) = &self.node else { return std::future::pending().await };
        let named = node.named.lock().clone();
        moved(addresses, &named).await;
    }

    async fn renew(&self, now: u64) -> Result<(), String> {
        let own = Self::clone(self);
        let renewed = base::tasks::blocking(move || own.renew_now(now)).await;
        renewed.map_err(|e| e.to_string())?
    }
}

impl Certificates {
    fn renew_now(&self, now: u64) -> Result<(), String> {
        if self.certs.renew(now).map_err(|e| e.to_string())? {
            let written = self.kubeconfig.write(&self.config, &self.certs, self.port);
            written.map_err(|e| e.to_string())?;
        }
        if let Some((node, addresses)) = &self.node {
            let (name, ips) = (&self.config.machine.node_name, addresses.borrow().clone());
            let made = self.certs.ensure_node(&node.directory, name, &ips, now);
            let serving = made.map_err(|e| e.to_string())?.serving;
            node.live.set(&serving).map_err(|e| e.to_string())?;
            node.not_after.store(serving.not_after, Ordering::Relaxed);
            *node.named.lock() = ips;
        }
        Ok(())
    }
}
