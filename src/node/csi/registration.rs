//! Registers CSI drivers: asks them how they name this node, and writes that to the API.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use api::local_driver::DRIVER;
use async_trait::async_trait;
use base::{Kind, Shutdown, Tasks};
use tokio::time::Instant;

use super::Csi;
use super::drivers::DriverRefused;
use super::node_info::NodeInfoError;
use super::node_objects::DriverNodeInfo;
use crate::plugins::{Plugin, PluginHandler, PluginRefused};

/// Why a driver is not registered.
#[derive(Debug, thiserror::Error)]
enum RegistrationError {
    #[error("validation failed for CSI Driver {name} at endpoint {endpoint}: {source}")]
    Validation { name: String, endpoint: String, source: DriverRefused },
    #[error(transparent)]
    Driver(#[from] DriverRefused),
    /// The driver does not say how it names this node.
    #[error(transparent)]
    Info(#[from] super::CsiError),
    #[error(transparent)]
    NodeInfo(#[from] NodeInfoError),
}

/// Handles plugins of the type `CSIPlugin`.
#[derive(Debug)]
pub(crate) struct CsiPluginHandler {
    csi: Arc<Csi>,
    tasks: Tasks,
}

impl CsiPluginHandler {
    /// `tasks` runs what a driver needs while it is registered.
    pub(crate) fn new(csi: &Arc<Csi>, tasks: &Tasks) -> Self {
        Self { csi: Arc::clone(csi), tasks: tasks.clone() }
    }
}

/// Asks a driver regularly how many volumes the node can use, if its CSIDriver object says so
/// (`csi_node_updater.go`). Ends with the registration of the driver.
async fn follow_volumes_max(
    csi: Arc<Csi>,
    driver: String,
    end: Shutdown,
) -> Result<(), std::convert::Infallible> {
    let mut changed = csi.driver_objects_changed.subscribe();
    let mut due: Option<(Duration, Instant)> = None;
    loop {
        let object = csi.driver_objects().get("", &driver);
        let seconds = object.and_then(|o| o.spec.node_allocatable_update_period_seconds);
        let period = seconds.and_then(|s| u64::try_from(s).ok()).filter(|s| *s > 0);
        let period = period.map(Duration::from_secs);
        if due.map(|(period, _)| period) != period {
            due = period.map(|period| (period, base::clock::now() + period));
        }
        let update = async {
            match due {
                Some((_, at)) => tokio::time::sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = end.requested() => return Ok(()),
            changed = changed.changed() => if changed.is_err() { return Ok(()) },
            () = update => {
                due = None;
                if let Err(error) = csi.update_node_info(&driver).await {
                    tracing::warn!(driver, %error, "cannot update the limit of a CSI driver");
                }
            }
        }
    }
}

impl Csi {
    async fn node_info_of(&self, driver: &str) -> Result<DriverNodeInfo, super::CsiError> {
        let answer = self.drivers.client(driver)?.info().await?;
        let topology = answer.accessible_topology.map(|t| t.segments).unwrap_or_default();
        Ok(DriverNodeInfo {
            node_id: answer.node_id,
            volumes_max: answer.max_volumes_per_node,
            topology: topology.into_iter().collect(),
        })
    }

    async fn update_node_info(&self, driver: &str) -> Result<(), RegistrationError> {
        let info = self.node_info_of(driver).await?;
        Ok(self.node_info.update(driver, &info).await?)
    }

    /// Adds the driver of this process to the CSINode; idempotent.
    ///
    /// # Errors
    ///
    /// The objects of this node cannot be written.
    pub(crate) async fn install_built_in(&self) -> Result<(), NodeInfoError> {
        let node_id = self.node_name.clone();
        let info = DriverNodeInfo { node_id, volumes_max: 0, topology: BTreeMap::new() };
        self.node_info.install(DRIVER, &info).await
    }

    async fn register(&self, plugin: &Plugin, end: Shutdown) -> Result<(), RegistrationError> {
        let version = self.drivers.check("RegisterPlugin", &plugin.name, &plugin.versions)?;
        self.drivers.insert(&plugin.name, &plugin.endpoint, version, end);
        let installed = async {
            let info = self.node_info_of(&plugin.name).await?;
            Ok(self.node_info.install(&plugin.name, &info).await?)
        };
        let installed: Result<(), RegistrationError> = installed.await;
        if installed.is_err() {
            self.deregister(plugin).await;
        } else {
            self.waiting.wake();
        }
        installed
    }

    async fn deregister(&self, plugin: &Plugin) {
        // Another plugin may have taken over the name.
        if self.drivers.remove(&plugin.name, &plugin.endpoint)
            && let Err(error) = self.node_info.uninstall(&plugin.name).await
        {
            tracing::warn!(driver = plugin.name, %error, "cannot uninstall CSI driver");
        }
    }
}

#[async_trait]
impl PluginHandler for CsiPluginHandler {
    fn plugin_type(&self) -> &'static str {
        "CSIPlugin"
    }

    fn validate(&self, plugin: &Plugin) -> Result<(), PluginRefused> {
        let checked = self.csi.drivers.check("ValidatePlugin", &plugin.name, &plugin.versions);
        checked.map(drop).map_err(|source| {
            PluginRefused::new(RegistrationError::Validation {
                name: plugin.name.clone(),
                endpoint: plugin.endpoint.display().to_string(),
                source,
            })
        })
    }

    async fn register(&self, plugin: &Plugin) -> Result<(), PluginRefused> {
        let end = self.tasks.shutdown().child();
        self.csi.register(plugin, end.clone()).await.map_err(PluginRefused::new)?;
        let follow = follow_volumes_max(Arc::clone(&self.csi), plugin.name.clone(), end);
        self.tasks.spawn(Kind::Request, "csi-volumes-max", follow);
        Ok(())
    }

    async fn deregister(&self, plugin: &Plugin) {
        self.csi.deregister(plugin).await;
    }
}
