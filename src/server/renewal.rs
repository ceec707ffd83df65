//! Renews the certificates of a server and of its node, issued by the CAs in this process.

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

use crate::certificates::renewal::{Addresses, Renew, RenewalError, addresses_changed};
use crate::server::config::Config;
use crate::server::control_plane::ControlPlane;
use crate::server::kubeconfig::KubeconfigLock;

/// The serving certificate of this machine's kubelet API, and where it is kept.
pub(crate) struct NodeCert {
    /// The certificate that the listener presents.
    pub(crate) live: Arc<LiveCert>,
    /// The addresses in the certificate.
    pub(crate) addresses: Mutex<Vec<IpAddr>>,
    /// Folder of the files.
    pub(crate) directory: PathBuf,
    /// End of validity, in seconds since the epoch.
    pub(crate) not_after: AtomicI64,
}

/// All certificates of this machine that expire.
struct ServerCertificates {
    config: Config,
    certs: Arc<ServerCerts>,
    port: u16,
    kubeconfig: KubeconfigLock,
    node: Option<(NodeCert, Addresses)>,
}

/// Starts the renewal task. `node` is the certificate of the node and the node's current addresses.
pub(crate) fn start(
    config: &Config,
    plane: &ControlPlane,
    node: Option<(NodeCert, Addresses)>,
    tasks: &Tasks,
) {
    let certificates = ServerCertificates {
        config: config.clone(),
        certs: Arc::clone(&plane.certs),
        port: plane.address.port(),
        kubeconfig: plane.kubeconfig.clone(),
        node,
    };
    crate::certificates::renewal::start(Arc::new(certificates), tasks);
}

#[async_trait]
impl Renew for Arc<ServerCertificates> {
    fn is_due(&self, now: u64) -> bool {
        self.certs.is_due(now)
            || self
                .node
                .as_ref()
                .is_some_and(|(n, _)| pki::due_at(n.not_after.load(Ordering::Relaxed), now))
    }

    async fn renewal_requested(&self) {
        let Some((node, addresses)) = &self.node else { return std::future::pending().await };
        let certified = node.addresses.lock().clone();
        addresses_changed(addresses, &certified).await;
    }

    async fn renew(&self, now: u64) -> Result<(), RenewalError> {
        let own = Self::clone(self);
        let renewed = base::tasks::blocking(move || own.renew_now(now)).await;
        renewed.map_err(RenewalError::new)?
    }
}

impl ServerCertificates {
    fn renew_now(&self, now: u64) -> Result<(), RenewalError> {
        if self.certs.renew(now).map_err(RenewalError::new)? {
            let written = self.kubeconfig.write(&self.config, &self.certs, self.port);
            written.map_err(RenewalError::new)?;
        }
        if let Some((node, addresses)) = &self.node {
            let (name, ips) = (&self.config.machine.node_name, addresses.borrow().clone());
            let additional = self.config.machine.additional_names();
            let certs = self.certs.ensure_node(&node.directory, name, &ips, &additional, now);
            let serving = certs.map_err(RenewalError::new)?.serving;
            node.live.set(&serving).map_err(RenewalError::new)?;
            node.not_after.store(serving.not_after, Ordering::Relaxed);
            *node.addresses.lock() = ips;
        }
        Ok(())
    }
}
