//! `kube-lite certificate`: what certificates there are, new ones for a server, and other CAs for the cluster.

mod check;
mod command;
mod renew;
mod socket;

use std::path::PathBuf;
use std::sync::Arc;

use base::pki;
use cluster::rotation::{self, Files, Wish};
use serde::{Deserialize, Serialize};
use store::Members;

pub use command::run;
pub(crate) use socket::serve;

/// A change of CAs as it is asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Question {
    wish: Wish,
    force: bool,
}

/// The names of the files that change at the next start, or everything that is wrong.
type Answer = Result<Vec<String>, Vec<String>>;

/// Changes the CAs of a cluster, one change at a time.
pub(crate) struct Rotation {
    data_dir: PathBuf,
    members: Arc<Members>,
    one: tokio::sync::Mutex<()>,
}

impl Rotation {
    /// Of the server whose data are here.
    pub(crate) fn new(data_dir: PathBuf, members: &Arc<Members>) -> Arc<Self> {
        Arc::new(Self {
            data_dir,
            members: Arc::clone(members),
            one: tokio::sync::Mutex::default(),
        })
    }

    /// Judges a change and puts it by for the next start.
    async fn answer(&self, question: Question) -> Answer {
        let _one = self.one.lock().await;
        let servers = self.members.list().len();
        if servers > 1 {
            return Err(vec![format!(
                "the cluster has {servers} servers, and CAs are changed in a cluster of one server only: all would have to change as one"
            )]);
        }
        let data_dir = self.data_dir.clone();
        let judged = base::tasks::blocking(move || put_by(&data_dir, &question)).await;
        let names = judged.map_err(|e| vec![e.to_string()])??;
        tracing::info!(files = names.join(" "), "CAs and keys wait for the next start");
        Ok(names)
    }
}

fn put_by(data_dir: &std::path::Path, question: &Question) -> Answer {
    let in_use = Files::read(&data_dir.join("server/tls")).map_err(|e| vec![e.to_string()])?;
    let files = rotation::plan(&in_use, &question.wish, question.force, pki::now())?;
    rotation::put_by(data_dir, &files).map_err(|e| vec![e.to_string()])?;
    Ok(files.names().map(str::to_owned).collect())
}
