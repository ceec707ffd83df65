//! The certificates of an agent: looked after with a server at each start, and renewed before they end.

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

use super::Lives;
use super::link::Link;
use crate::agent::config::Config;
use crate::agent::first_join::machine;
use crate::certificates::renewal::{Addresses, Renew, moved};
use crate::error_catalogue::{DATA_DIR, OTHER_CA, Refusal};
use crate::join::refusal;

/// First and longest wait between attempts of the look at the start; the longest is seldom, for it may last for days.
const WAIT: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// The problem that a server refuses this node.
const REFUSED: &str = "join/refused";
/// The problem that this node runs with old settings.
const SETTINGS: &str = "join/settings";

/// What is renewed.
struct Certificates {
    directory: PathBuf,
    machine: Machine,
    server: ServerAddress,
    dial: Arc<dyn Dial>,
    token: Option<Token>,
    lives: Lives,
    addresses: Addresses,
    joined: Mutex<Joined>,
    /// The settings of the cluster that this node runs with.
    running: ClusterSettings,
    problems: Problems,
}

/// Starts the task; with `look`, asks a server in the background at once, whether the node may still join and whether
/// something has changed.
///
/// # Errors
/// When the node password cannot be read.
pub(super) fn start(
    config: &Config,
    joined: Joined,
    lives: Lives,
    addresses: Addresses,
    link: &Link,
    look: bool,
    tasks: &Tasks,
) -> Result<(), Refusal> {
    let certificates = Arc::new(Certificates {
        directory: config.machine.directory(),
        machine: machine(config).map_err(|e| DATA_DIR.refuse(e))?,
        server: link.server().clone(),
        dial: link.dial(),
        token: config.token.clone(),
        lives,
        addresses,
        running: joined.settings.clone(),
        problems: tasks.problems().clone(),
        joined: Mutex::new(joined),
    });
    let (own, shutdown) = (Arc::clone(&certificates), tasks.shutdown().clone());
    let mut settings = link.settings();
    tasks.spawn(Kind::Request, "rejoin", async move {
        let mut look = look;
        loop {
            if look && !own.look(&shutdown).await {
                break;
            }
            tokio::select! {
                changed = settings.changed() => if changed.is_err() { break },
                () = shutdown.requested() => break,
            }
            look = *settings.borrow_and_update() != own.joined.lock().digest();
        }
        Ok::<(), std::convert::Infallible>(())
    });
    crate::certificates::renewal::start(certificates, tasks);
    Ok(())
}

#[async_trait]
impl Renew for Arc<Certificates> {
    fn is_due(&self, now: u64) -> bool {
        self.joined.lock().is_due(now)
    }

    async fn asked(&self) {
        let named = self.joined.lock().addresses.clone();
        moved(&self.addresses, &named).await;
    }

    async fn renew(&self, _: u64) -> Result<(), String> {
        self.refresh().await.map_err(|e| e.to_string())
    }
}

impl Certificates {
    /// Asks until a server has answered; `false` at shutdown.
    async fn look(&self, shutdown: &Shutdown) -> bool {
        let mut backoff = Backoff::new(WAIT.0, WAIT.1);
        loop {
            let outcome = tokio::select! {
                outcome = self.refresh() => outcome,
                () = shutdown.requested() => return false,
            };
            match outcome {
                Ok(()) => self.problems.clear(REFUSED),
                // A clock is set some while after the start.
                Err(error) if error.is_transient() || matches!(error, Error::Clock(_)) => {
                    tracing::debug!(%error, "no server can be asked, this node goes on");
                    if !backoff.wait_or(shutdown, self.dial.back()).await {
                        return false;
                    }
                    continue;
                }
                // The tunnels say so, too, for as long as it is so.
                Err(error @ Error::WrongCa { .. }) => tracing::error!("{}", OTHER_CA.refuse(error)),
                Err(error) => {
                    let refusal = refusal(error);
                    tracing::error!("{refusal}");
                    self.problems.put(REFUSED, refusal.particulars, refusal.entry.fix);
                }
            }
            return true;
        }
    }

    /// Says which settings this node would take at its next start.
    fn tell_settings(&self, now: &ClusterSettings) {
        let changed = self.running.differences(now);
        if changed.is_empty() {
            return self.problems.clear(SETTINGS);
        }
        let what = format!(
            "settings of the cluster have changed ({}), and this node runs with those of its start",
            changed.join(", ")
        );
        let fix = "restart kube-lite on this machine, its pods go on: systemctl restart kube-lite";
        self.problems.put(SETTINGS, what, fix);
    }

    /// Asks for certificates of the same keys; they are kept when there is something new in the answer.
    async fn refresh(&self) -> Result<(), Error> {
        let own = |e: &dyn std::fmt::Display| Error::Local(e.to_string());
        let old = self.joined.lock().clone();
        let keys = old.keys();
        let addresses = self.addresses.borrow().clone();
        let machine = Machine { addresses, ..self.machine.clone() };
        let ask = machine.join_request(&keys).map_err(|e| own(&e))?;
        let as_node = Some(Arc::clone(&self.lives.kubelet_client));
        let ask_with = |authorization, cert: Option<Arc<LiveCert>>| {
            let (dial, server, server_ca) = (&*self.dial, &self.server, &*old.server_ca);
            join::send_join_request(
                JoinClient { dial, server, server_ca, authorization, cert },
                &ask,
            )
        };
        let answer = match (ask_with(None, as_node).await, &self.token) {
            // The certificate ended while the machine was away.
            (Err(Error::Refused { reason, .. }), Some(token)) if reason == reason::WRONG_TOKEN => {
                ask_with(Some(&token.authorization()), None).await?
            }
            (Err(Error::WrongCa { server, .. }), _) => {
                let why = "its certificate is not one of the CA that this node joined with".into();
                return Err(Error::WrongCa { server, why });
            }
            (outcome, _) => outcome?,
        };
        let fresh = Joined::new(&machine, &self.server, &keys, answer).map_err(|e| own(&e))?;
        self.tell_settings(&fresh.settings);
        // A server of the CA that is known said so: the CA of a cluster changes by being vouched for by the one before.
        let other_ca = fresh.server_ca != old.server_ca || fresh.client_ca != old.client_ca;
        let changed = other_ca
            || fresh.settings != old.settings
            || fresh.server != old.server
            || fresh.addresses != old.addresses;
        if !changed && !old.is_due(base::pki::now()) {
            return Ok(());
        }
        let (directory, kept) = (self.directory.clone(), fresh.clone());
        let stored = base::tasks::blocking(move || kept.store(&directory)).await;
        stored.map_err(|e| own(&e))?.map_err(|e| own(&e))?;
        if other_ca {
            self.lives.servers.set(&fresh.server_ca).map_err(|e| own(&e))?;
            self.lives.clients.set(&fresh.client_ca).map_err(|e| own(&e))?;
            tracing::info!("the CAs of the cluster have changed, new connections use them");
        }
        let lives = [
            (&self.lives.kubelet_client, &fresh.kubelet_client),
            (&self.lives.kubelet_serving, &fresh.kubelet_serving),
            (&self.lives.proxy_client, &fresh.proxy_client),
        ];
        for (live, leaf) in lives {
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
    use cluster::certs::{self, Names};
    use cluster::join::Keys;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::sync::watch;

    /// Every connection is to a server that answers everything with this.
    struct Stand(Arc<rustls::ServerConfig>, String);

    #[async_trait]
    impl Dial for Stand {
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
    async fn certificates_near_their_end_are_replaced_while_they_serve() {
        let dir = tempfile::tempdir().unwrap();
        let names = Names { cluster_domain: "cluster.local".into(), ..Names::default() };
        let certs = certs::ensure(dir.path(), &names).unwrap();
        let machine = Machine {
            name: "edge2".into(),
            password: cluster::password::new(),
            addresses: vec!["192.0.2.7".parse().unwrap()],
            version: "v1.37.1".into(),
        };
        let mut settings = ClusterSettings {
            cluster_cidrs: Vec::new(),
            service_cidrs: Vec::new(),
            cluster_dns: Vec::new(),
            cluster_domain: "cluster.local".into(),
            proxy: true,
            network_policies: true,
            backend: settings::Backend::default(),
            servers: Vec::new(),
        };
        let keys = Keys::generate().unwrap();
        let ask = machine.join_request(&keys).unwrap();
        let now = pki::now();
        let sign = |settings: &ClusterSettings, at| {
            join::sign(&certs, &ask, settings.clone(), at).unwrap()
        };
        let server: ServerAddress = "https://192.0.2.2".parse().unwrap();
        // Issued 300 days ago: 65 are left, renewal starts at 90.
        let old = sign(&settings, now - 300 * 24 * 60 * 60);
        let joined = Joined::new(&machine, &server, &keys, old).unwrap();
        let running = settings.clone();
        let digest = |settings: &ClusterSettings| join::digest(settings, "", "");
        assert_eq!(digest(&running), digest(&settings));
        // Servers are followed while a node runs, the proxy is not.
        settings.servers.push("192.0.2.2:6443".into());
        assert_eq!(
            (digest(&running), running.differences(&settings)),
            (digest(&settings), Vec::new())
        );
        settings.proxy = false;
        assert_ne!(digest(&running), digest(&settings));
        let body = serde_json::to_string(&sign(&settings, now)).unwrap();
        let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len());
        let tls = tls::server(Arc::clone(&certs.serving), &[], &["http/1.1"]).unwrap();
        let (moves, addresses) = watch::channel(machine.addresses.clone());
        let certificates = Arc::new(Certificates {
            directory: dir.path().join("agent"),
            machine,
            server,
            dial: Arc::new(Stand(Arc::new(tls), answer)),
            token: None,
            lives: Lives::new(&joined).unwrap(),
            addresses,
            joined: Mutex::new(joined),
            running: running.clone(),
            problems: Problems::default(),
        });
        assert!(certificates.is_due(now));
        certificates.renew(now).await.unwrap();
        let problems = || certificates.problems.list();
        assert!(problems()[0].1.what.contains("have changed (service proxy), and this node runs"));
        certificates.tell_settings(&running);
        assert_eq!(problems(), []);
        assert!(!certificates.is_due(now));
        let kept = Joined::load(&certificates.directory).unwrap().unwrap();
        assert!(kept.kubelet_client.not_after > i64::try_from(now).unwrap() + 364 * 24 * 60 * 60);
        // The machine moves: that asks for a renewal, and the renewal answers it.
        moves.send_replace(vec!["192.0.2.8".parse().unwrap()]);
        certificates.asked().await;
        certificates.renew(now).await.unwrap();
        let kept = Joined::load(&certificates.directory).unwrap().unwrap();
        assert_eq!(kept.addresses, ["192.0.2.8".parse::<std::net::IpAddr>().unwrap()]);
    }
}
