//! `kube-lite certificate`: what certificates there are, new ones for a server, and other CAs for the cluster.

pub(crate) mod check;
pub(crate) mod peers;
pub(crate) mod renew;
pub(crate) mod renewal;
pub(crate) mod socket;

use std::path::PathBuf;
use std::sync::Arc;

use base::pki;
use cluster::peers::PeerClient;
use cluster::rotation::{self, Files, RotationSource};
use serde::{Deserialize, Serialize};
use store::Members;

use peers::Others;
pub(crate) use socket::serve;

/// A change of CAs as it is asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Question {
    pub(crate) wish: RotationSource,
    pub(crate) force: bool,
}

/// The names of the files that change at the next start, or everything that is wrong.
type Answer = Result<Vec<String>, Vec<String>>;

/// Changes the CAs of a cluster, one change at a time.
pub(crate) struct Rotation {
    data_dir: PathBuf,
    members: Arc<Members>,
    calls: Arc<PeerClient>,
    one: tokio::sync::Mutex<()>,
}

impl Rotation {
    /// Of the server whose data are here, among its members.
    pub(crate) fn new(
        data_dir: PathBuf,
        members: &Arc<Members>,
        calls: &Arc<PeerClient>,
    ) -> Arc<Self> {
        Arc::new(Self {
            data_dir,
            members: Arc::clone(members),
            calls: Arc::clone(calls),
            one: tokio::sync::Mutex::default(),
        })
    }

    /// Judges a change and puts it by for the next start of all servers, of this one last: what waits on one of the others alone
    /// is gone on with.
    async fn answer(&self, question: Question) -> Answer {
        let _one = self.one.lock().await;
        let others = Others { members: &self.members, calls: &self.calls };
        let files = if others.list().is_empty() {
            self.judge(question).await?
        } else {
            may_be_several(&question)?;
            let data_dir = self.data_dir.clone();
            let own = base::tasks::blocking(move || peers::state(&data_dir)).await;
            let own = own.map_err(|e| vec![e.to_string()])?.map_err(|why| vec![why])?;
            let waiting = others.waiting(&own).await.map_err(|why| vec![why])?;
            let files = match (waiting, &question.wish) {
                (Some(files), RotationSource::Made) => files,
                _ => self.judge(question).await?.cas_alone(),
            };
            let put = others.put_by(&own.in_use, &files).await;
            put.map_err(|why| vec![format!("{why}; run the same command again, it goes on")])?;
            files
        };
        let (data_dir, names) = (self.data_dir.clone(), files.names().map(str::to_owned).collect());
        let put = base::tasks::blocking(move || rotation::store_pending(&data_dir, &files)).await;
        put.map_err(|e| vec![e.to_string()])?.map_err(|e| vec![e.to_string()])?;
        let names: Vec<String> = names;
        tracing::info!(files = names.join(" "), "CAs and keys wait for the next start");
        Ok(names)
    }

    async fn judge(&self, question: Question) -> Result<Files, Vec<String>> {
        let data_dir = self.data_dir.clone();
        let judged = base::tasks::blocking(move || {
            let in_use = Files::read(&data_dir.join("server/tls"));
            let in_use = in_use.map_err(|e| vec![e.to_string()])?;
            rotation::plan(&in_use, &question.wish, question.force, pki::now())
                .map_err(|errors| errors.iter().map(ToString::to_string).collect())
        });
        judged.await.map_err(|e| vec![e.to_string()])?
    }
}

/// Servers start anew one after the other: those that have not must believe those that have.
fn may_be_several(question: &Question) -> Result<(), Vec<String>> {
    if question.force {
        return Err(vec![
            "by --force CAs are changed in a cluster of one server alone: of several the others would believe no more the first one that starts anew".to_owned(),
        ]);
    }
    match &question.wish {
        RotationSource::Given(files) if files.get("service.key").is_some() => Err(vec![
            "service.key: this key is changed in a cluster of one server alone: of several the others would refuse the tokens of the first one that starts anew".to_owned(),
        ]),
        _ => Ok(()),
    }
}
