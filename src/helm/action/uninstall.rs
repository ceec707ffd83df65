//! The end of a release (`pkg/action/uninstall.go` of Helm).

use client::Discovery;

use super::{Action, ActionError};
use crate::manifest;
use crate::release::{Status, now};

/// Removes the objects of a release and its records. A release that does not exist is no error.
///
/// # Errors
/// A step failed; a further attempt continues.
pub async fn uninstall(action: &Action<'_>) -> Result<(), ActionError> {
    let storage = action.storage();
    let mut history = storage.history(&action.settings.name).await?;
    let Some(mut release) = history.pop() else { return Ok(()) };
    let mut discovery = Discovery::new(action.client);
    if release.info.status != Status::Uninstalled {
        release.set_status(Status::Uninstalling, "Deletion in progress (or silently failed)");
        release.info.deleted = now();
        action.run_hooks(&mut release, "pre-delete", &mut discovery, &storage).await?;
        storage.update(&release).await?;
        let (remove, keep) = manifest::to_remove(&release.manifest)?;
        for document in &keep {
            let name = api::value::str_in(&document.object, &["metadata", "name"]);
            let kind = document.kind();
            tracing::info!(release = release.name, kind, name, "helm: keep object by its policy");
        }
        let cluster = action.cluster();
        for target in action.recorded_targets(&mut discovery, &remove).await? {
            cluster.remove_owned(&target).await?;
        }
        action.run_hooks(&mut release, "post-delete", &mut discovery, &storage).await?;
    }
    history.push(release);
    Ok(storage.purge(&history).await?)
}
