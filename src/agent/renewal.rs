//! The certificates of an agent: looked after with a server at each start, and renewed before they end.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use base::io::Dial;
use base::pki::live::LiveCert;
use base::{Backoff, Kind, Tasks};
use cluster::join::files::Joined;
use cluster::join::{self, Error, Machine, ServerAddress, reason};
use cluster::token::Token;
use parking_lot::Mutex;

use super::Lives;
use super::joining::{machine, refusal};
use super::link::Link;
use crate::agent::config::Config;
use crate::catalogue::{DATA_DIR, Refusal};
use crate::renewal::Renew;

/// First and longest wait between attempts of the look at the start; the longest is seldom, for it may last for days.
const WAIT: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// What is renewed.
struct Certificates {
    directory: PathBuf,
    machine: Machine,
    server: ServerAddress,
    dial: Arc<dyn Dial>,
    token: Option<Token>,
    lives: Lives,
    joined: Mutex<Joined>,
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
        joined: Mutex::new(joined),
    });
    if look {
        let (own, shutdown) = (Arc::clone(&certificates), tasks.shutdown().clone());
        tasks.spawn(Kind::Request, "rejoin", async move {
            let mut backoff = Backoff::new(WAIT.0, WAIT.1);
            loop {
                let outcome = tokio::select! {
                    outcome = own.refresh() => outcome,
                    () = shutdown.requested() => break,
                };
                match outcome {
                    Err(error) if error.is_transient() => {
                        tracing::debug!(%error, "the server is away, this node goes on");
                        if !backoff.wait_or(&shutdown, own.dial.back()).await {
                            break;
                        }
                    }
                    Err(error) => {
                        tracing::error!("{}", refusal(error));
                        break;
                    }
                    Ok(()) => break,
                }
            }
            Ok::<(), std::convert::Infallible>(())
        });
    }
    crate::renewal::start(certificates, tasks);
    Ok(())
}

#[async_trait]
impl Renew for Arc<Certificates> {
    fn is_due(&self, now: u64) -> bool {
        self.joined.lock().is_due(now)
    }

    async fn renew(&self, _: u64) -> Result<(), String> {
        self.refresh().await.map_err(|e| e.to_string())
    }
}

impl Certificates {
    /// Asks for certificates of the same keys; they are kept when there is something new in the answer.
    async fn refresh(&self) -> Result<(), Error> {
        let own = |e: &dyn std::fmt::Display| Error::Own(e.to_string());
        let old = self.joined.lock().clone();
        let keys = old.keys();
        let ask = self.machine.ask(&keys).map_err(|e| own(&e))?;
        let as_node = Some(Arc::clone(&self.lives.kubelet_client));
        let ask_with = |authorization, cert: Option<Arc<LiveCert>>| {
            join::ask(&*self.dial, &self.server, &old.server_ca, authorization, cert, &ask)
        };
        let answer = match (ask_with(None, as_node).await, &self.token) {
            // The certificate ended while the machine was away.
            (Err(Error::Refused { reason, .. }), Some(token)) if reason == reason::WRONG_TOKEN => {
                ask_with(Some(&token.authorization()), None).await?
            }
            (outcome, _) => outcome?,
        };
        let fresh = Joined::new(&self.machine, &self.server, &keys, answer).map_err(|e| own(&e))?;
        if fresh.server_ca != old.server_ca || fresh.client_ca != old.client_ca {
            return Err(Error::Own(
                "the server has other CAs than this node knows; delete the node and join it anew"
                    .into(),
            ));
        }
        if fresh.facts != old.facts {
            tracing::warn!(
                "the settings of the cluster have changed, this node follows at its next start"
            );
        }
        let changed = fresh.facts != old.facts
            || fresh.server != old.server
            || fresh.addresses != old.addresses;
        if !changed && !old.is_due(base::pki::now()) {
            return Ok(());
        }
        let (directory, kept) = (self.directory.clone(), fresh.clone());
        let stored = base::tasks::blocking(move || kept.store(&directory)).await;
        stored.map_err(|e| own(&e))?.map_err(|e| own(&e))?;
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
