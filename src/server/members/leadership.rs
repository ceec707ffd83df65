//! Leadership: controllers and scheduler run on the server whose store member leads.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use api::k8s::api::coordination::v1::{Lease, LeaseSpec};
use api::k8s::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use api::k8s::jiff;
use base::{Kind, Tasks};
use client::Client;
use store::Members;

use super::CHECK_INTERVAL;
use super::advertised::AdvertisedAddresses;
use crate::server::bootstrap_writer::BootstrapWriter;
use crate::server::config::Config;
use crate::server::control_plane::ControlPlane;

/// How long the tasks of the leader may take to end when another server becomes the leader.
const STEP_DOWN_GRACE: Duration = Duration::from_millis(700);

/// Calls `begin` with a new set of tasks whenever this member becomes the leader, and ends the set
/// when it no longer is.
pub(crate) async fn run_while_leading(
    members: Arc<Members>,
    tasks: Tasks,
    begin: impl Fn(&Tasks),
) -> Result<(), Infallible> {
    let mut leadership = members.leadership();
    loop {
        tokio::select! {
            leads = leadership.wait_for(|now| now.leads) => if leads.is_err() { return Ok(()) },
            () = tasks.shutdown().requested() => return Ok(()),
        }
        let own = tasks.child();
        begin(&own);
        tokio::select! {
            other = leadership.wait_for(|now| !now.leads) => drop(other),
            () = own.shutdown().requested() => {}
        }
        own.shutdown().request();
        for name in own.drain(STEP_DOWN_GRACE).await {
            tracing::warn!(task = name, "leadership: task did not stop in time");
        }
        if tasks.shutdown().is_requested() {
            return Ok(());
        }
        tracing::info!("leadership: another server leads and runs controllers and scheduler");
    }
}

/// Namespace of upstream's Leases of the controllers and the scheduler.
const NAMESPACE: &str = "kube-system";
/// Duration of a Lease in seconds, and interval of its renewal. Longer than upstream's 15 s and 2
/// s: the store elects the leader, the Lease only displays it, and each renewal is a write to
/// flash.
const LEASE: (i32, Duration) = (60, Duration::from_secs(20));
/// The same for a single server, which no other server can replace.
const LEASE_OF_SINGLE_SERVER: (i32, Duration) = (3600, Duration::from_secs(1200));

/// Names `holder` as the leader in the Lease `name` until `tasks` end.
pub(crate) fn hold_lease(
    client: Client,
    name: &'static str,
    holder: String,
    members: Arc<Members>,
    tasks: &Tasks,
) {
    let shutdown = tasks.shutdown().clone();
    tasks.spawn(Kind::Request, "leader lease", async move {
        while !shutdown.is_requested() {
            let (seconds, interval) =
                if members.list().len() > 1 { LEASE } else { LEASE_OF_SINGLE_SERVER };
            if let Err(error) = renew_lease(&client, name, &holder, seconds).await {
                tracing::debug!(%error, lease = name, "leadership: cannot renew the Lease");
            }
            tokio::select! {
                () = base::clock::sleep(interval) => {}
                () = members.changed() => {}
                () = shutdown.requested() => {}
            }
        }
        Ok::<(), Infallible>(())
    });
}

async fn renew_lease(
    client: &Client,
    name: &str,
    holder: &str,
    seconds: i32,
) -> Result<(), client::Error> {
    let micros = i64::try_from(base::clock::unix_time().as_micros()).unwrap_or_default();
    let now = jiff::Timestamp::from_microsecond(micros).ok().map(MicroTime);
    match client.get::<Lease>(NAMESPACE, name).await {
        Ok(mut lease) => {
            let spec = lease.spec.get_or_insert_default();
            if spec.holder_identity.as_deref() != Some(holder) {
                spec.acquire_time = now.clone();
                spec.lease_transitions = Some(spec.lease_transitions.unwrap_or_default() + 1);
            }
            spec.holder_identity = Some(holder.to_owned());
            spec.lease_duration_seconds = Some(seconds);
            spec.renew_time = now;
            client.update(&lease).await.map(drop)
        }
        Err(error) if error.is_not_found() => {
            let lease = Lease {
                metadata: ObjectMeta {
                    name: Some(name.to_owned()),
                    namespace: Some(NAMESPACE.to_owned()),
                    ..ObjectMeta::default()
                },
                spec: Some(LeaseSpec {
                    holder_identity: Some(holder.to_owned()),
                    lease_duration_seconds: Some(seconds),
                    acquire_time: now.clone(),
                    renew_time: now,
                    lease_transitions: Some(0),
                    ..LeaseSpec::default()
                }),
            };
            client.create(NAMESPACE, &lease).await.map(drop)
        }
        Err(error) => Err(error),
    }
}

/// Publishes the addresses of the servers that respond to the leader, until `tasks` end.
pub(crate) fn publish(config: &Config, plane: &ControlPlane, tasks: &Tasks) {
    let (members, own) = (Arc::clone(&plane.members), config.advertise);
    let servers = plane.peer_servers.clone();
    let (shutdown, mut settings) = (tasks.shutdown().clone(), plane.published.clone());
    let writer = BootstrapWriter::new(plane.server.clone());
    tasks.spawn(Kind::Request, "server addresses", async move {
        let mut addresses = AdvertisedAddresses::new(servers, own);
        let mut published = if members.list().len() > 1 { Vec::new() } else { vec![own] };
        while !shutdown.is_requested() {
            // A server that no longer leads publishes nothing.
            let now = addresses.responsive().await.unwrap_or_else(|| published.clone());
            if now != published {
                settings.advertised.clone_from(&now);
                match apiserver::bootstrap::publish(&writer, &settings).await {
                    Ok(()) => {
                        tracing::info!(servers = ?now, "leadership: published the addresses of the servers");
                        published.clone_from(&now);
                    }
                    Err(error) => {
                        tracing::warn!(%error, "leadership: cannot publish the addresses of the servers, retrying")
                    }
                }
            }
            let wait = async {
                if members.list().len() > 1 || published != now {
                    base::clock::sleep(CHECK_INTERVAL).await;
                } else {
                    // A single server cannot become unresponsive.
                    members.changed().await;
                }
            };
            tokio::select! {
                () = wait => {}
                () = shutdown.requested() => break,
            }
        }
        Ok::<(), Infallible>(())
    });
}
