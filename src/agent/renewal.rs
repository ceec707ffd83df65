//! Renews the certificates of an agent: checked with a server at each start, and renewed before
//! they expire.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use base::io::Dial;
use base::pki::reloadable_cert::LiveCert;
use base::{Backoff, Kind, Problems, Shutdown, Tasks};
use cluster::join::files::Joined;
use cluster::join::{self, Error, JoinClient, Machine, ServerAddress, reason};
use cluster::token::Token;
use parking_lot::Mutex;
use settings::ClusterSettings;

use super::ReloadableCerts;
use super::link::Link;
use crate::agent::config::Config;
use crate::agent::first_join::machine;
use crate::certificates::renewal::{Addresses, Renew, RenewalError, addresses_changed};
use crate::error_catalogue::{CommandError, DATA_DIR, OTHER_CA};
use crate::join::command_error;

/// First and longest delay between attempts to reach a server after the start, which may be
/// unreachable for days.
const BACKOFF: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// Key of the problem that a server rejects this node.
const REJECTED_PROBLEM: &str = "join/refused";
/// Key of the problem that this node runs with former settings.
const SETTINGS_PROBLEM: &str = "join/settings";

/// The certificates of this agent, and what renewing them needs.
struct AgentCertificates {
    directory: PathBuf,
    machine: Machine,
    server: ServerAddress,
    dial: Arc<dyn Dial>,
    token: Option<Token>,
    certs: ReloadableCerts,
    addresses: Addresses,
    joined: Mutex<Joined>,
    /// The settings of the cluster that this node runs with.
    running: ClusterSettings,
    problems: Problems,
}

/// Starts the renewal task. With `check_now` it asks a server at once, in the background, whether
/// the node may still join and whether anything has changed.
///
/// # Errors
/// The node password cannot be read.
pub(super) fn start(
    config: &Config,
    joined: Joined,
    certs: ReloadableCerts,
    addresses: Addresses,
    link: &Link,
    check_now: bool,
    tasks: &Tasks,
) -> Result<(), CommandError> {
    let certificates = Arc::new(AgentCertificates {
        directory: config.machine.directory(),
        machine: machine(config).map_err(|e| DATA_DIR.error(e))?,
        server: link.server().clone(),
        dial: link.dial(),
        token: config.token.clone(),
        certs,
        addresses,
        running: joined.settings.clone(),
        problems: tasks.problems().clone(),
        joined: Mutex::new(joined),
    });
    let (own, shutdown) = (Arc::clone(&certificates), tasks.shutdown().clone());
    let mut settings = link.settings();
    tasks.spawn(Kind::Request, "rejoin", async move {
        let mut is_due = check_now;
        loop {
            if is_due && !own.refresh_until_answered(&shutdown).await {
                break;
            }
            tokio::select! {
                changed = settings.changed() => if changed.is_err() { break },
                () = shutdown.requested() => break,
            }
            is_due = *settings.borrow_and_update() != own.joined.lock().digest();
        }
        Ok::<(), std::convert::Infallible>(())
    });
    crate::certificates::renewal::start(certificates, tasks);
    Ok(())
}

#[async_trait]
impl Renew for Arc<AgentCertificates> {
    fn is_due(&self, now: u64) -> bool {
        self.joined.lock().is_due(now)
    }

    async fn renewal_requested(&self) {
        let named = self.joined.lock().addresses.clone();
        addresses_changed(&self.addresses, &named).await;
    }

    async fn renew(&self, _: u64) -> Result<(), RenewalError> {
        self.refresh().await.map_err(RenewalError::new)
    }
}

impl AgentCertificates {
    /// Repeats [`Self::refresh`] until a server answers; `false` at shutdown.
    async fn refresh_until_answered(&self, shutdown: &Shutdown) -> bool {
        let mut backoff = Backoff::new(BACKOFF.0, BACKOFF.1);
        loop {
            let outcome = tokio::select! {
                outcome = self.refresh() => outcome,
                () = shutdown.requested() => return false,
            };
            match outcome {
                Ok(()) => self.problems.clear(REJECTED_PROBLEM),
                // The clock may be set some while after the start.
                Err(error) if error.is_transient() || matches!(error, Error::Clock(_)) => {
                    tracing::debug!(%error, "certificates: no server answers, retrying");
                    if !backoff.wait_or(shutdown, self.dial.back()).await {
                        return false;
                    }
                    continue;
                }
                // The tunnels report this problem as long as it lasts.
                Err(error @ Error::WrongCa { .. }) => tracing::error!("{}", OTHER_CA.error(error)),
                Err(error) => {
                    let command_error = command_error(error);
                    tracing::error!("{command_error}");
                    self.problems.put(
                        REJECTED_PROBLEM,
                        command_error.details,
                        command_error.entry.fix,
                    );
                }
            }
            return true;
        }
    }

    /// Reports settings that take effect at the next start of this node.
    fn report_changed_settings(&self, now: &ClusterSettings) {
        let changed = self.running.differences(now);
        if changed.is_empty() {
            return self.problems.clear(SETTINGS_PROBLEM);
        }
        let what = format!(
            "settings of the cluster have changed ({}), and this node still runs with the former ones",
            changed.join(", ")
        );
        let fix = "restart kube-lite on this machine (`systemctl restart kube-lite`); its pods keep running";
        self.problems.put(SETTINGS_PROBLEM, what, fix);
    }

    /// Requests certificates for the same keys, and stores the answer if anything in it is new.
    async fn refresh(&self) -> Result<(), Error> {
        let own = |e: &dyn std::fmt::Display| Error::Local(e.to_string());
        let old = self.joined.lock().clone();
        let keys = old.keys();
        let addresses = self.addresses.borrow().clone();
        let machine = Machine { addresses, ..self.machine.clone() };
        let ask = machine.join_request(&keys).map_err(|e| own(&e))?;
        let as_node = Some(Arc::clone(&self.certs.kubelet_client));
        let ask_with = |authorization, cert: Option<Arc<LiveCert>>| {
            let (dial, server, server_ca) = (&*self.dial, &self.server, &*old.server_ca);
            join::send_join_request(
                JoinClient { dial, server, server_ca, authorization, cert },
                &ask,
            )
        };
        let answer = match (ask_with(None, as_node).await, &self.token) {
            // The certificate expired while the machine was offline.
            (Err(Error::Refused { reason, .. }), Some(token)) if reason == reason::WRONG_TOKEN => {
                ask_with(Some(&token.authorization()), None).await?
            }
            (Err(Error::WrongCa { server, .. }), _) => {
                let why = "its certificate is not from the CA that this node joined with".into();
                return Err(Error::WrongCa { server, why });
            }
            (outcome, _) => outcome?,
        };
        let fresh = Joined::new(&machine, &self.server, &keys, answer).map_err(|e| own(&e))?;
        self.report_changed_settings(&fresh.settings);
        // A server with the trusted CA sent them: the former CA of a cluster signs the new one.
        let other_ca = fresh.server_ca != old.server_ca || fresh.client_ca != old.client_ca;
        let changed = other_ca
            || fresh.settings != old.settings
            || fresh.server != old.server
            || fresh.addresses != old.addresses
            || fresh.additional != old.additional;
        if !changed && !old.is_due(base::pki::now()) {
            return Ok(());
        }
        let (directory, kept) = (self.directory.clone(), fresh.clone());
        let stored = base::tasks::blocking(move || kept.store(&directory)).await;
        stored.map_err(|e| own(&e))?.map_err(|e| own(&e))?;
        if other_ca {
            self.certs.servers.set(&fresh.server_ca).map_err(|e| own(&e))?;
            self.certs.clients.set(&fresh.client_ca).map_err(|e| own(&e))?;
            tracing::info!(
                "certificates: the CAs of the cluster have changed, new connections use them"
            );
        }
        let pairs = [
            (&self.certs.kubelet_client, &fresh.kubelet_client),
            (&self.certs.kubelet_serving, &fresh.kubelet_serving),
            (&self.certs.proxy_client, &fresh.proxy_client),
        ];
        for (live, leaf) in pairs {
            live.set(leaf).map_err(|e| own(&e))?;
        }
        *self.joined.lock() = fresh;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::io::BoxIo;
    use base::pki::{self, tls};
    use cluster::certs::{self, AdditionalNames, Names};
    use cluster::join::Keys;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::sync::watch;

    /// A server that answers every request with the same text.
    struct FakeServer(Arc<rustls::ServerConfig>, String);

    #[async_trait]
    impl Dial for FakeServer {
        async fn dial(&self, _: &str, _: u16) -> std::io::Result<BoxIo> {
            let (ours, theirs) = tokio::io::duplex(64 * 1024);
            let (tls, answer) = (Arc::clone(&self.0), self.1.clone());
            let tasks = Tasks::new(base::Shutdown::new());
            tasks.spawn(Kind::Request, "stand", async move {
                let mut stream = tokio_rustls::TlsAcceptor::from(tls).accept(theirs).await?;
                if stream.read(&mut [0; 16 * 1024]).await? == 0 {
                    return Ok(());
                }
                stream.write_all(answer.as_bytes()).await?;
                stream.shutdown().await
            });
            Ok(Box::new(ours))
        }
    }

    #[tokio::test]
    async fn certificates_near_expiry_are_replaced_while_in_use() {
        let dir = tempfile::tempdir().unwrap();
        let names = Names { cluster_domain: "cluster.local".into(), ..Names::default() };
        let issuer = certs::ensure(dir.path(), &names).unwrap();
        let machine = Machine {
            name: "edge2".into(),
            password: cluster::password::new(),
            addresses: vec!["192.0.2.7".parse().unwrap()],
            additional: AdditionalNames::default(),
            version: "v1.37.1".into(),
        };
        let mut settings = ClusterSettings::default();
        let keys = Keys::generate().unwrap();
        let ask = machine.join_request(&keys).unwrap();
        let now = pki::now();
        let sign = |settings: &ClusterSettings, at| {
            join::sign(&issuer, &ask, settings.clone(), at).unwrap()
        };
        let server: ServerAddress = "https://192.0.2.2".parse().unwrap();
        // Issued 300 days ago: 65 are left, renewal starts at 90.
        let old = sign(&settings, now - 300 * 24 * 60 * 60);
        let joined = Joined::new(&machine, &server, &keys, old).unwrap();
        let running = settings.clone();
        let digest = |settings: &ClusterSettings| join::digest(settings, "", "");
        assert_eq!(digest(&running), digest(&settings));
        // A node follows the list of servers while it runs, but not the other settings.
        settings.servers.push("192.0.2.2:6443".into());
        assert_eq!(
            (digest(&running), running.differences(&settings)),
            (digest(&settings), Vec::new())
        );
        settings.proxy = false;
        assert_ne!(digest(&running), digest(&settings));
        let body = serde_json::to_string(&sign(&settings, now)).unwrap();
        let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len());
        let tls = tls::server(Arc::clone(&issuer.serving), &[], &["http/1.1"]).unwrap();
        let (sender, addresses) = watch::channel(machine.addresses.clone());
        let certificates = Arc::new(AgentCertificates {
            directory: dir.path().join("agent"),
            machine,
            server,
            dial: Arc::new(FakeServer(Arc::new(tls), answer)),
            token: None,
            certs: ReloadableCerts::new(&joined).unwrap(),
            addresses,
            joined: Mutex::new(joined),
            running: running.clone(),
            problems: Problems::default(),
        });
        assert!(certificates.is_due(now));
        certificates.renew(now).await.unwrap();
        let problems = || certificates.problems.list();
        assert!(
            problems()[0].1.what.contains("have changed (service proxy), and this node still runs")
        );
        certificates.report_changed_settings(&running);
        assert_eq!(problems(), []);
        assert!(!certificates.is_due(now));
        let kept = Joined::load(&certificates.directory).unwrap().unwrap();
        assert!(kept.kubelet_client.not_after > i64::try_from(now).unwrap() + 364 * 24 * 60 * 60);
        // A new address of the machine requests a renewal.
        sender.send_replace(vec!["192.0.2.8".parse().unwrap()]);
        certificates.renewal_requested().await;
        certificates.renew(now).await.unwrap();
        let kept = Joined::load(&certificates.directory).unwrap().unwrap();
        assert_eq!(kept.addresses, ["192.0.2.8".parse::<std::net::IpAddr>().unwrap()]);
    }
}
