//! A further revision of a release (`pkg/action/upgrade.go` of Helm).

use client::Discovery;

use super::{Action, ActionError, prepare, record, recorded_documents};
use crate::chart::Chart;
use crate::cluster::Target;
use crate::release::{Release, Status, Storage};
use crate::values::Values;

/// The most revisions that are kept (Helm's `--history-max`).
const HISTORY_MAX: usize = 10;

/// Upgrades a release to a chart and values. `history` has its revisions, oldest first.
///
/// # Errors
/// A step failed. If objects were to be applied, the revision is recorded as failed.
pub async fn upgrade(
    action: &Action<'_>,
    chart: Chart,
    values: &Values,
    history: &[Release],
) -> Result<Release, ActionError> {
    let deployed = history.iter().rev().find(|r| r.info.status == Status::Deployed);
    let Some(current) = deployed.or(history.last()) else {
        return super::install(action, chart, values).await;
    };
    let revision = history.last().map_or(1, |last| last.version + 1);
    let chart = prepare(chart, values)?;
    let mut discovery = Discovery::new(action.client);
    let rendered = action.render(chart, values, &mut discovery, revision, false).await?;
    let earlier = recorded_documents(&current.manifest)?;
    let earlier = action.recorded_targets(&mut discovery, &earlier).await?;
    let targets = action.targets(&mut discovery, &rendered.documents).await?;
    let known: std::collections::BTreeSet<_> = earlier.iter().map(Target::key).collect();
    let new: Vec<&Target> = targets.iter().filter(|t| !known.contains(&t.key())).collect();
    let take_ownership = action.settings.take_ownership;
    action.cluster().check_adoption(&new, "update", take_ownership).await?;
    let storage = action.storage();
    let mut release = record(action.settings, rendered, values, revision);
    release.info.first_deployed.clone_from(&current.info.first_deployed);
    release.set_status(Status::PendingUpgrade, "Preparing upgrade");
    storage.create(&release).await?;
    let is_converted = current.apply_method != "ssa";
    let mut work = Work { targets: &targets, earlier: &earlier, is_converted };
    let outcome = action.apply_next(&mut release, &mut work, &mut discovery, &storage).await;
    match &outcome {
        Ok(()) => {
            for old in history.iter().filter(|r| r.info.status == Status::Deployed) {
                let mut old = old.clone();
                old.info.status = Status::Superseded;
                storage.update(&old).await?;
            }
            release.set_status(Status::Deployed, "Upgrade complete");
        }
        Err(error) => {
            let text = format!("Upgrade {:?} failed: {error}", release.name);
            release.set_status(Status::Failed, text);
        }
    }
    storage.update(&release).await?;
    let surplus = (history.len() + 1).saturating_sub(HISTORY_MAX);
    let oldest = history.iter().filter(|r| r.version != current.version).take(surplus);
    storage.purge(&oldest.cloned().collect::<Vec<_>>()).await?;
    outcome.map(|()| release)
}

/// What an upgrade applies and what it replaces.
struct Work<'a> {
    targets: &'a [Target],
    earlier: &'a [Target],
    /// Whether the earlier revision was written by client-side apply.
    is_converted: bool,
}

impl Action<'_> {
    async fn apply_next(
        &self,
        release: &mut Release,
        work: &mut Work<'_>,
        discovery: &mut Discovery<'_>,
        storage: &Storage,
    ) -> Result<(), ActionError> {
        self.run_hooks(release, "pre-upgrade", discovery, storage).await?;
        let (cluster, force) = (self.cluster(), self.settings.force_conflicts);
        for target in work.targets {
            cluster.apply(target, force, work.is_converted).await?;
        }
        cluster.prune(work.earlier, work.targets).await?;
        self.run_hooks(release, "post-upgrade", discovery, storage).await
    }
}
