//! Installs, upgrades and removes releases (`pkg/action` of Helm).

mod hooks;
mod install;
mod uninstall;
mod upgrade;

pub use install::install;
pub use uninstall::uninstall;
pub use upgrade::upgrade;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use client::{Client, Discovery};
use serde_json::Value;

use crate::chart::Chart;
use crate::cluster::discovery::{api_versions, kube_version};
use crate::cluster::{Cluster, ClusterError, Target};
use crate::manifest::{self, Document, ManifestError};
use crate::release::{Hook, Release, Storage, StorageError};
use crate::render::{self, ReleaseFacts, RenderError};
use crate::values::Values;
use crate::values::coalesce::{self, NotATable};
use crate::values::dependencies::{self, DependencyError};
use crate::values::schema::{self, SchemaError};
use crate::version::is_compatible;

/// The version of Helm whose behaviour the engine has.
const HELM_VERSION: &str = "v4.3.1";

/// An operation on a release failed.
#[derive(Debug, thiserror::Error)]
pub enum ActionError {
    /// A subchart's values are not a table.
    #[error(transparent)]
    Values(#[from] NotATable),
    /// The subcharts cannot be chosen.
    #[error(transparent)]
    Dependencies(#[from] DependencyError),
    /// The values do not satisfy the schema.
    #[error(transparent)]
    Schema(#[from] SchemaError),
    /// The chart needs another Kubernetes.
    #[error("chart requires kubeVersion: {wanted} which is incompatible with Kubernetes {version}")]
    KubeVersion {
        /// Range of the chart.
        wanted: String,
        /// Version of the API server.
        version: String,
    },
    /// A template fails.
    #[error(transparent)]
    Render(#[from] RenderError),
    /// A rendered document is not YAML.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    /// An object cannot be applied, read or removed.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    /// A record cannot be read or written.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// The API server's kinds or version cannot be read.
    #[error("cannot read the kinds of the API server: {0}")]
    Discovery(#[source] client::Error),
    /// The namespace cannot be created.
    #[error("cannot create namespace {namespace}: {cause}")]
    Namespace {
        /// Its name.
        namespace: String,
        /// Cause.
        cause: client::Error,
    },
    /// A file of crds/ cannot be installed.
    #[error("failed to install CRD {file}: {cause}")]
    Crd {
        /// The file.
        file: String,
        /// Cause.
        cause: Box<ActionError>,
    },
    /// A file of crds/ is not YAML.
    #[error(transparent)]
    Yaml(#[from] crate::yaml::YamlError),
    /// A hook failed.
    #[error("{event} hook {path} failed: {cause}")]
    Hook {
        /// Event.
        event: &'static str,
        /// Template.
        path: String,
        /// Cause.
        cause: ClusterError,
    },
}

/// Settings of an operation.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Name of the release.
    pub name: String,
    /// Its namespace.
    pub namespace: String,
    /// Whether the namespace is created.
    pub create_namespace: bool,
    /// How long a hook may run.
    pub timeout: Duration,
    /// Whether existing objects of others become part of the release.
    pub take_ownership: bool,
    /// Whether fields of other managers are taken over.
    pub force_conflicts: bool,
}

/// An operation: where it acts and how.
#[derive(Debug)]
pub struct Action<'a> {
    /// Client of the API server.
    pub client: &'a Client,
    /// Settings.
    pub settings: &'a Settings,
}

/// A rendered chart.
struct Rendered {
    chart: Value,
    manifest: String,
    documents: Vec<Document>,
    hooks: Vec<Hook>,
    notes: String,
}

impl Action<'_> {
    fn storage(&self) -> Storage {
        Storage::new(self.client.clone(), &self.settings.namespace)
    }

    fn cluster(&self) -> Cluster<'_> {
        Cluster {
            client: self.client,
            release: &self.settings.name,
            namespace: &self.settings.namespace,
        }
    }

    /// Renders the chart for one revision.
    async fn render(
        &self,
        chart: Arc<Chart>,
        values: &Values,
        discovery: &mut Discovery<'_>,
        revision: i64,
        is_install: bool,
    ) -> Result<Rendered, ActionError> {
        let kube = kube_version(discovery).await.map_err(ActionError::Discovery)?;
        let wanted = &chart.metadata.kube_version;
        if !wanted.is_empty() && !is_compatible(wanted, &kube.version) {
            let (wanted, version) = (wanted.clone(), kube.version);
            return Err(ActionError::KubeVersion { wanted, version });
        }
        let all = coalesce::coalesce_values(&chart, values)?;
        schema::check(&chart, &all)?;
        let capabilities = go_template::Capabilities {
            kube_version: kube.version,
            kube_major: kube.major,
            kube_minor: kube.minor,
            api_versions: api_versions(discovery).await.map_err(ActionError::Discovery)?,
            helm_version: HELM_VERSION.to_owned(),
        };
        let facts = ReleaseFacts {
            name: self.settings.name.clone(),
            namespace: self.settings.namespace.clone(),
            revision,
            is_install,
        };
        let record = chart.to_record();
        let (files, notes) = render::render(self.client, chart, all, facts, capabilities).await?;
        let (hooks, documents) = manifest::sort(&files)?;
        let mut text = String::new();
        for document in &documents {
            let _ = write!(text, "---\n# Source: {}\n{}\n", document.file, document.text);
        }
        Ok(Rendered { chart: record, manifest: text, documents, hooks, notes })
    }

    async fn targets(
        &self,
        discovery: &mut Discovery<'_>,
        documents: &[Document],
    ) -> Result<Vec<Target>, ActionError> {
        let cluster = self.cluster();
        let objects: Vec<_> = documents.iter().map(|d| (d.file.as_str(), &d.object)).collect();
        let mut targets = cluster.targets(discovery, &objects).await?;
        for target in &mut targets {
            cluster.own(target);
        }
        Ok(targets)
    }

    /// The objects of a recorded revision; kinds that are no longer served are left out, which is
    /// logged.
    async fn recorded_targets(
        &self,
        discovery: &mut Discovery<'_>,
        documents: &[Document],
    ) -> Result<Vec<Target>, ActionError> {
        let cluster = self.cluster();
        let mut targets = Vec::new();
        for document in documents {
            let one = [(document.file.as_str(), &document.object)];
            match cluster.targets(discovery, &one).await {
                Ok(found) => targets.extend(found),
                Err(error @ ClusterError::NoKind { .. }) => tracing::warn!(
                    release = self.settings.name,
                    %error,
                    "helm: skip object whose kind is not served"
                ),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(targets)
    }
}

/// The documents of a recorded manifest.
fn recorded_documents(manifest: &str) -> Result<Vec<Document>, ManifestError> {
    let files = BTreeMap::from([("manifest".to_owned(), manifest.to_owned())]);
    Ok(manifest::sort(&files)?.1)
}

/// Chooses subcharts and imports values.
fn prepare(mut chart: Chart, values: &Values) -> Result<Arc<Chart>, ActionError> {
    dependencies::process(&mut chart, values)?;
    Ok(Arc::new(chart))
}

/// The record of a new revision.
fn record(settings: &Settings, rendered: Rendered, values: &Values, revision: i64) -> Release {
    let now = crate::release::now();
    let mut release = Release {
        name: settings.name.clone(),
        namespace: settings.namespace.clone(),
        chart: rendered.chart,
        config: Some(values.clone()),
        manifest: rendered.manifest,
        hooks: Some(rendered.hooks),
        version: revision,
        apply_method: "ssa".into(),
        ..Release::default()
    };
    release.info.first_deployed.clone_from(&now);
    release.info.last_deployed = now;
    release.info.notes = rendered.notes;
    release
}
