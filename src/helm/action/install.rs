//! The first revision of a release (`pkg/action/install.go` of Helm).

use std::time::Duration;

use client::{Discovery, Error};
use serde_json::json;

use super::{Action, ActionError, prepare, record};
use crate::chart::Chart;
use crate::cluster::{ClusterError, Target, wait};
use crate::release::{Release, Status, Storage};
use crate::values::Values;
use crate::yaml;

/// How long a definition may take to be served.
const ESTABLISHED_TIMEOUT: Duration = Duration::from_secs(60);

/// Installs a chart.
///
/// # Errors
/// A step failed. If objects were to be applied, the release is recorded as failed.
pub async fn install(
    action: &Action<'_>,
    chart: Chart,
    values: &Values,
) -> Result<Release, ActionError> {
    let settings = action.settings;
    let chart = prepare(chart, values)?;
    let mut discovery = Discovery::new(action.client);
    action.install_crds(&chart, &mut discovery).await?;
    let rendered = action.render(chart, values, &mut discovery, 1, true).await?;
    let targets = action.targets(&mut discovery, &rendered.documents).await?;
    let all: Vec<&Target> = targets.iter().collect();
    action.cluster().check_adoption(&all, "install", settings.take_ownership).await?;
    if settings.create_namespace {
        action.create_namespace().await?;
    }
    let storage = action.storage();
    let mut release = record(settings, rendered, values, 1);
    release.set_status(Status::PendingInstall, "Initial install underway");
    storage.create(&release).await?;
    let outcome = action.apply_first(&mut release, &targets, &mut discovery, &storage).await;
    match &outcome {
        Ok(()) => release.set_status(Status::Deployed, "Install complete"),
        Err(error) => {
            let text = format!("Release {:?} failed: {error}", settings.name);
            release.set_status(Status::Failed, text);
        }
    }
    storage.update(&release).await?;
    outcome.map(|()| release)
}

impl Action<'_> {
    async fn apply_first(
        &self,
        release: &mut Release,
        targets: &[Target],
        discovery: &mut Discovery<'_>,
        storage: &Storage,
    ) -> Result<(), ActionError> {
        self.run_hooks(release, "pre-install", discovery, storage).await?;
        let (cluster, force) = (self.cluster(), self.settings.force_conflicts);
        for target in targets {
            cluster.apply(target, force, false).await?;
        }
        self.run_hooks(release, "post-install", discovery, storage).await
    }

    async fn create_namespace(&self) -> Result<(), ActionError> {
        let namespace = &self.settings.namespace;
        let object = json!({
            "apiVersion": "v1", "kind": "Namespace",
            "metadata": {"name": namespace, "labels": {"name": namespace}},
        });
        let gvr = api::Gvr::new("", "v1", "namespaces");
        match self.client.post_value(&gvr, "", "", "", &object).await {
            Ok(_) => Ok(()),
            Err(error) if Error::is_already_exists(&error) => Ok(()),
            Err(cause) => Err(ActionError::Namespace { namespace: namespace.clone(), cause }),
        }
    }

    /// Creates the definitions of crds/ that do not exist, and waits until they are served.
    pub(super) async fn install_crds(
        &self,
        chart: &Chart,
        discovery: &mut Discovery<'_>,
    ) -> Result<(), ActionError> {
        let mut created = Vec::new();
        for file in chart.crds() {
            let installed = self.install_crd(&file.name, &file.data, discovery).await;
            created.extend(installed.map_err(|cause| ActionError::Crd {
                file: file.name.clone(),
                cause: Box::new(cause),
            })?);
        }
        for target in created.iter().filter(|t| t.kind_name() == "CustomResourceDefinition") {
            let waited = wait::established(self.client, target, ESTABLISHED_TIMEOUT).await;
            waited.map_err(ClusterError::from)?;
        }
        discovery.reset();
        Ok(())
    }

    async fn install_crd(
        &self,
        file: &str,
        data: &[u8],
        discovery: &mut Discovery<'_>,
    ) -> Result<Vec<Target>, ActionError> {
        let cluster = self.cluster();
        let documents = yaml::documents(data)?;
        let objects: Vec<_> = documents.iter().map(|document| (file, document)).collect();
        let mut created = Vec::new();
        for target in cluster.targets(discovery, &objects).await? {
            if cluster.get(&target).await?.is_none() {
                cluster.apply(&target, self.settings.force_conflicts, false).await?;
                created.push(target);
            }
        }
        Ok(created)
    }
}
