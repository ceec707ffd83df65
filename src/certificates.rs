//! `kube-lite certificate`: lists certificates, replaces those of a server, and rotates the CAs of
//! the cluster.

pub(crate) mod check;
pub(crate) mod metrics;
pub(crate) mod peers;
pub(crate) mod renewal;
pub(crate) mod rotate;
pub(crate) mod socket;

use std::path::PathBuf;
use std::sync::Arc;

use base::pki;
use cluster::rotation::{self, Files, RotationSource};
use serde::{Deserialize, Serialize};

use crate::control_socket::Reply;
use crate::peer_servers::PeerServers;
pub(crate) use socket::serve;

/// A request to rotate the CAs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RotateCaRequest {
    /// New CAs, or the given ones.
    pub(crate) wish: RotationSource,
    /// Also accept CAs that the CAs in use did not sign.
    pub(crate) force: bool,
}

/// The names of the files that change at the next start, or all errors.
type RotateCaResponse = Reply<Vec<String>, Vec<String>>;

/// The reasons why the CAs are not rotated, each with its file.
#[derive(Debug)]
pub(crate) struct RotationErrors(Vec<String>);

impl RotationErrors {
    fn single(error: impl std::fmt::Display) -> Self {
        Self(vec![error.to_string()])
    }
}

/// Rotates the CAs of a cluster, one rotation at a time.
pub(crate) struct CaRotation {
    data_dir: PathBuf,
    servers: PeerServers,
    /// Held during a rotation.
    running: tokio::sync::Mutex<()>,
}

impl CaRotation {
    /// Creates the rotation of the server with this data directory.
    pub(crate) fn new(data_dir: PathBuf, servers: PeerServers) -> Arc<Self> {
        Arc::new(Self { data_dir, servers, running: tokio::sync::Mutex::default() })
    }

    /// Plans a rotation and stages it for the next start on all servers, on this one last. Resumes
    /// a rotation that was interrupted after some of the servers.
    async fn rotate(&self, request: RotateCaRequest) -> Result<Vec<String>, RotationErrors> {
        let _running = self.running.lock().await;
        let files = if self.servers.others().is_empty() {
            self.plan(request).await?
        } else {
            self.stage_on_others(request).await?
        };
        let names: Vec<String> = files.names().map(str::to_owned).collect();
        let data_dir = self.data_dir.clone();
        base::tasks::blocking(move || rotation::store_pending(&data_dir, &files))
            .await
            .map_err(RotationErrors::single)?
            .map_err(RotationErrors::single)?;
        tracing::info!(
            files = names.join(" "),
            "certificates: staged CAs and keys for the next start"
        );
        Ok(names)
    }

    /// Stages a rotation on all other servers; its files.
    async fn stage_on_others(&self, request: RotateCaRequest) -> Result<Files, RotationErrors> {
        check_several_servers(&request)?;
        let data_dir = self.data_dir.clone();
        let own = base::tasks::blocking(move || peers::state(&data_dir))
            .await
            .map_err(RotationErrors::single)?
            .map_err(RotationErrors::single)?;
        let staged = peers::staged(&self.servers, &own).await.map_err(RotationErrors::single)?;
        let files = match (staged, &request.wish) {
            (Some(files), RotationSource::Made) => files,
            _ => self.plan(request).await?.cas_alone(),
        };
        peers::stage_on_others(&self.servers, &own.in_use, &files).await.map_err(|e| {
            RotationErrors::single(format!("{e}; run the same command again to resume"))
        })?;
        Ok(files)
    }

    async fn plan(&self, request: RotateCaRequest) -> Result<Files, RotationErrors> {
        let data_dir = self.data_dir.clone();
        let planned = base::tasks::blocking(move || {
            let in_use =
                Files::read(&data_dir.join("server/tls")).map_err(RotationErrors::single)?;
            rotation::plan(&in_use, &request.wish, request.force, pki::now())
                .map_err(|errors| RotationErrors(errors.iter().map(ToString::to_string).collect()))
        });
        planned.await.map_err(RotationErrors::single)?
    }
}

/// Several servers restart one after the other, so the ones with the former CAs must trust those
/// with the new ones meanwhile.
fn check_several_servers(request: &RotateCaRequest) -> Result<(), RotationErrors> {
    if request.force {
        return Err(RotationErrors::single(
            "--force works only in a cluster of one server: with several servers the others would \
             reject the first one that restarts",
        ));
    }
    match &request.wish {
        RotationSource::Given(files) if files.get("service.key").is_some() => {
            Err(RotationErrors::single(
                "service.key: this key can be changed only in a cluster of one server: with several \
             servers the others would reject the tokens of the first one that restarts",
            ))
        }
        _ => Ok(()),
    }
}
