//! What one server of a cluster does for all: the controllers and the scheduler run where the store is led from.

use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use api::k8s::api::coordination::v1::{Lease, LeaseSpec};
use api::k8s::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use api::k8s::jiff;
use base::{Kind, Tasks};
use client::Client;
use store::Members;

use super::{LOOK_INTERVAL, SILENT};
use crate::server::adapters::BootstrapWriter;
use crate::server::config::Config;
use crate::server::control_plane::ControlPlane;

/// What runs where the store is led from must end within this time when another server leads.
const GRACE: Duration = Duration::from_millis(700);

/// Calls `begin` with a set of tasks of its own whenever this member leads, and ends that set when it does not any more.
pub(crate) async fn follow(
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
        for name in own.drain(GRACE).await {
            tracing::warn!(task = name, "did not stop in time");
        }
        if tasks.shutdown().is_requested() {
            return Ok(());
        }
        tracing::info!("another server leads, controllers and scheduler run there");
    }
}

/// Where upstream's Leases of its controllers and its scheduler are.
const NAMESPACE: &str = "kube-system";
/// Seconds for which a Lease says who leads, and after which it is renewed. Longer than upstream's 15 and 2: the store decides
/// who leads, these only show it, and each renewal is a write to flash.
const SHOWN: (i32, Duration) = (60, Duration::from_secs(20));
/// The same of a server alone, which nobody else can follow.
const SHOWN_ALONE: (i32, Duration) = (3600, Duration::from_secs(1200));

/// Shows in the Lease `name` that `holder` leads, for as long as `tasks` run.
pub(crate) fn show(
    client: Client,
    name: &'static str,
    holder: String,
    members: Arc<Members>,
    tasks: &Tasks,
) {
    let shutdown = tasks.shutdown().clone();
    tasks.spawn(Kind::Request, "leader lease", async move {
        while !shutdown.is_requested() {
            let (seconds, interval) = if members.list().len() > 1 { SHOWN } else { SHOWN_ALONE };
            if let Err(error) = renew(&client, name, &holder, seconds).await {
                tracing::debug!(%error, lease = name, "cannot renew");
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

async fn renew(
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

/// Publishes the addresses of the servers that answer, as the leader hears them. For as long as `tasks` run.
pub(crate) fn publish(config: &Config, plane: &ControlPlane, tasks: &Tasks) {
    let (members, own) = (Arc::clone(&plane.members), config.advertise);
    let (shutdown, mut settings) = (tasks.shutdown().clone(), plane.published.clone());
    let writer = BootstrapWriter::new(plane.server.clone());
    tasks.spawn(Kind::Request, "servers heard", async move {
        let mut published = if members.list().len() > 1 { Vec::new() } else { vec![own] };
        while !shutdown.is_requested() {
            let now = heard(&members, own);
            if now != published {
                settings.advertised.clone_from(&now);
                match apiserver::bootstrap::publish(&writer, &settings).await {
                    Ok(()) => {
                        tracing::info!(servers = ?now, "published");
                        published.clone_from(&now);
                    }
                    Err(error) => {
                        tracing::warn!(%error, "the servers cannot be published, trying again")
                    }
                }
            }
            let wait = async {
                if members.list().len() > 1 || published != now {
                    base::clock::sleep(LOOK_INTERVAL).await;
                } else {
                    // Nobody can fall silent.
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

fn heard(members: &Members, own: IpAddr) -> Vec<IpAddr> {
    let heard = members.responsive(SILENT).unwrap_or_default();
    let host = |address: &str| address.parse::<SocketAddr>().ok().map(|address| address.ip());
    let others = members.list().into_iter().filter(|member| heard.contains(&member.id));
    let mut all: Vec<IpAddr> = others.filter_map(|member| host(&member.address)).collect();
    all.push(own);
    all.sort();
    all.dedup();
    all
}
