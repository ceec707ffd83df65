//! The etcd-compatible API of the store (`--etcd-listen`).

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use base::pki::tls;
use base::{Kind, Tasks};
use cluster::certs::ServerCerts;
use etcd::Etcd;
use store::{Backend, Members, Profile, StoreError};
use tokio::net::TcpListener;

use crate::error_catalogue::{BAD_VALUE, CommandError, DATA_DIR, PORT_IN_USE};
use crate::server::config::Config;

/// Bound listeners that do not accept connections yet.
#[derive(Debug)]
pub(crate) struct Listeners {
    tls: Vec<TcpListener>,
    plain: Option<TcpListener>,
    metrics: Vec<TcpListener>,
}

impl Listeners {
    /// Binds the addresses of `--etcd-listen`, `--etcd-listen-plain` and `--etcd-expose-metrics`.
    ///
    /// # Errors
    /// An address cannot be bound, or one without TLS is not a loopback address.
    pub(crate) async fn bind(config: &Config) -> Result<Self, CommandError> {
        if let Some(plain) = config.etcd_listen_plain.filter(|address| !address.ip().is_loopback())
        {
            return Err(BAD_VALUE.usage_error(format!(
                "--etcd-listen-plain={plain}: must be a loopback address, since every client that reaches it can read and change the store; use --etcd-listen"
            )));
        }
        let mut tls = Vec::new();
        for address in &config.etcd_listen {
            tls.push(listen(*address).await?);
        }
        let plain = match config.etcd_listen_plain {
            Some(address) => Some(listen(address).await?),
            None => None,
        };
        let mut metrics = Vec::new();
        for address in &config.etcd_metrics_listen {
            metrics.push(listen(*address).await?);
        }
        Ok(Self { tls, plain, metrics })
    }

    /// Serves the listeners until `tasks` shut down, and publishes their URLs to the other members.
    ///
    /// # Errors
    /// Certificates that cannot be used.
    pub(crate) fn serve(
        self,
        config: &Config,
        certs: &ServerCerts,
        store: &Arc<dyn Backend>,
        members: &Arc<Members>,
        tasks: &Tasks,
    ) -> Result<(), CommandError> {
        let urls = |scheme: &str, listeners: &[TcpListener]| -> Vec<String> {
            let bound = listeners.iter().filter_map(|listener| listener.local_addr().ok());
            bound.map(|at| format!("{scheme}://{}", advertised(at, config.advertise))).collect()
        };
        let mut client_urls = urls("https", &self.tls);
        client_urls.extend(urls("http", self.plain.as_slice()));
        let profile = Profile { name: config.machine.node_name.clone(), client_urls };
        let publish = publish(Arc::clone(members), profile.clone(), tasks.clone());
        tasks.spawn(Kind::Request, "etcd profile", publish);
        if self.tls.is_empty() && self.plain.is_none() && self.metrics.is_empty() {
            return Ok(());
        }
        let scratch = config.machine.data_dir.join("server/db");
        let etcd = Etcd::new(Arc::clone(store), profile, scratch, tasks.clone());
        let ca = certs.etcd_ca().bundle();
        let config =
            tls::demanding_server(Arc::clone(&certs.etcd_serving), &ca, &["h2", "http/1.1"])
                .map_err(|e| DATA_DIR.error(e))?;
        let config = Arc::new(config);
        let all = self.tls.into_iter().map(|listener| (listener, Some(Arc::clone(&config))));
        for (listener, tls) in all.chain(self.plain.map(|listener| (listener, None))) {
            tasks.spawn(Kind::Critical, "etcd", etcd::serve(etcd.clone(), listener, tls));
        }
        for listener in self.metrics {
            let serve = etcd::serve_metrics(etcd.clone(), listener);
            tasks.spawn(Kind::Critical, "etcd metrics", serve);
        }
        Ok(())
    }
}

/// The address at which clients reach a listener; for a listener on all addresses the one that the
/// API advertises.
fn advertised(bound: SocketAddr, advertise: IpAddr) -> SocketAddr {
    let ip = if bound.ip().is_unspecified() { advertise } else { bound.ip() };
    SocketAddr::new(ip, bound.port())
}

/// Publishes the name of this member and its client URLs, as soon as the store has a leader.
async fn publish(members: Arc<Members>, profile: Profile, tasks: Tasks) -> Result<(), StoreError> {
    let mut backoff = base::Backoff::new(Duration::from_millis(100), Duration::from_secs(30));
    loop {
        match members.describe(profile.clone()).await {
            Err(StoreError::Unavailable(_) | StoreError::NoSpace(_)) => {
                if !backoff.wait(tasks.shutdown()).await {
                    return Ok(());
                }
            }
            Err(StoreError::Stopped(_)) if tasks.shutdown().is_requested() => return Ok(()),
            done => return done,
        }
    }
}

async fn listen(address: SocketAddr) -> Result<TcpListener, CommandError> {
    TcpListener::bind(address).await.map_err(|e| {
        PORT_IN_USE.error(format!("cannot listen on {address} for the etcd-compatible API: {e}"))
    })
}
