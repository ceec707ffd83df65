//! Reaching an etcd, and copying one.

use std::fs::File;
use std::sync::Arc;

use base::Shutdown;
use base::tasks::{Kind, Tasks};
use proto::etcdserverpb as pb;
use tokio::sync::mpsc;
use tonic::Request;

use super::backend::{Counts, Etcd, newest};
use super::calls::{ANSWER, Calls, plain};
use super::connection::Lines;
use super::endpoints::Place;
use super::error::{Refusal, WANTS_CERTIFICATE, advice};
use super::follow::Follower;
use super::health::{Facts, Keeper};
use super::lock::{Hold, NotHeld};
use super::snapshot::save;
use crate::contract::{Backend, Saved};
use crate::external::config::{DatastoreTls, Holder};

/// The oldest etcd whose watches come in parts, which large changes need.
const OLDEST: (u32, u32) = (3, 4);
/// Who may wait for the newest revision; more wait before they ask.
const ASKS_MAX: usize = 1024;
/// Why an etcd cannot be used.
#[derive(Debug)]
pub(crate) enum Unusable {
    /// Another server has it.
    Held(String),
    /// Everything else.
    Failed(String),
}

fn unusable(why: String) -> Unusable {
    Unusable::Failed(match advice(&why) {
        Some(advice) => format!("{why}: {advice}"),
        None => why,
    })
}

fn failed(refusal: &Refusal) -> Unusable {
    unusable(refusal.to_string())
}

/// Connects, and refuses what is too old.
async fn reach(place: Place, tls: DatastoreTls, shutdown: Shutdown) -> Result<Calls, Unusable> {
    let lines = Lines::connect(place, tls).await.map_err(unusable)?;
    let calls = Calls { lines: Arc::new(lines), seen: Arc::default(), shutdown };
    // Once, without a second try: what TLS refuses is met here, and told at once.
    let line = calls.lines.line().await;
    let mut client = line.maintenance();
    let asked = client.status(Request::new(pb::StatusRequest {}));
    let late = || Refusal::Untouched(format!("{} does not answer", calls.lines.place));
    let asked = tokio::time::timeout(ANSWER, asked).await.map_err(|_| failed(&late()))?;
    let version = plain(asked).map_err(|refusal| match (&refusal, calls.lines.place.is_tls()) {
        // Who refuses a certificate may have closed the connection before its word of that is read.
        (Refusal::Unknown(why) | Refusal::Untouched(why), true) if advice(why).is_none() => {
            Unusable::Failed(format!("{why}: it may be that {WANTS_CERTIFICATE}"))
        }
        _ => failed(&refusal),
    })?;
    let version = version.version;
    let mut numbers = version.split('.').map(|part| part.parse::<u32>().unwrap_or_default());
    let numbers = (numbers.next().unwrap_or_default(), numbers.next().unwrap_or_default());
    if numbers < OLDEST {
        let (major, minor) = OLDEST;
        return Err(Unusable::Failed(format!(
            "it is of version {version}, {major}.{minor} is the oldest that is supported: upgrade etcd"
        )));
    }
    Ok(calls)
}

/// Opens an etcd, held alone for `holder` where there is one.
///
/// # Errors
/// [`Unusable`].
pub(crate) async fn open(
    place: Place,
    tls: DatastoreTls,
    holder: Option<Holder>,
    tasks: &Tasks,
) -> Result<Arc<dyn Backend>, Unusable> {
    let name = place.to_string();
    let shutdown = tasks.shutdown();
    let calls = reach(place, tls, shutdown.clone()).await?;
    tasks.spawn(Kind::Critical, "etcd line", Arc::clone(&calls.lines).keep(shutdown.clone()));
    calls.newest().await.map_err(|refusal| failed(&refusal))?;
    let hold = match holder {
        Some(holder) => {
            let hold = Hold::new(calls.clone(), holder);
            hold.take_patiently().await.map_err(|why| match why {
                NotHeld::By(who) => Unusable::Held(format!(
                    "{name} is in use by {who}: one server at a time writes to it; what a server that was killed had is free after 20 s"
                )),
                NotHeld::Refused(refusal) => failed(&refusal),
            })?;
            Some(hold)
        }
        None => None,
    };
    let revision = calls.newest().await.map_err(|refusal| failed(&refusal))?;
    let follower = Arc::new(Follower::new(calls.clone(), revision));
    let keeper = Arc::new(Keeper {
        calls: calls.clone(),
        follower: Arc::clone(&follower),
        hold,
        facts: Facts::default().into(),
        silent: false.into(),
    });
    keeper.measure(true).await;
    let (asks, asked) = mpsc::channel(ASKS_MAX);
    tasks.spawn(Kind::Critical, "etcd watch", follower.run(shutdown.clone()));
    tasks.spawn(Kind::Critical, "etcd revision", newest(calls, asked));
    tasks.spawn(Kind::Critical, "datastore", Arc::clone(&keeper).run(shutdown.clone()));
    tracing::info!(etcd = name, revision, "the external etcd is open");
    Ok(Arc::new(Etcd { keeper, asks, counts: Counts::default(), tasks: tasks.clone() }))
}

/// Copies all of an etcd into an empty file, as a snapshot of its own; others may go on writing.
///
/// # Errors
/// [`Unusable`].
pub(crate) async fn snapshot(
    place: Place,
    tls: DatastoreTls,
    file: File,
) -> Result<Saved, Unusable> {
    let shutdown = Shutdown::new();
    let calls = reach(place, tls, shutdown.clone()).await?;
    let copy = async {
        // Here a refusal is told in a sentence.
        calls.newest().await.map_err(|refusal| failed(&refusal))?;
        let saved = save(&calls, file).await;
        saved.map_err(|error| Unusable::Failed(format!("its snapshot: {error}")))
    };
    let lines = Arc::clone(&calls.lines).keep(shutdown);
    tokio::select! {
        copied = copy => copied,
        // It goes on until shutdown.
        _ = lines => Err(Unusable::Failed("the connection was given up".to_owned())),
    }
}
