//! Registers the plugins of drivers.

use std::convert::Infallible;
use std::sync::Arc;

use async_trait::async_trait;
use base::{Kind, Tasks};

use super::DynamicResources;
use super::connection::PluginConnection;
use super::drivers::EndpointInUse;
use super::plugin::{DraPlugin, HealthApi, PluginApi, UnsupportedServices};
use crate::plugins::{Plugin, PluginHandler, PluginRefused};

/// Why a plugin is not registered.
#[derive(Debug, thiserror::Error)]
enum RegistrationError {
    #[error(
        "invalid supported gRPC versions of DRA driver plugin {driver} at endpoint {endpoint}: \
         {source}"
    )]
    Services { driver: String, endpoint: String, source: UnsupportedServices },
    #[error(transparent)]
    InUse(#[from] EndpointInUse),
}

/// Handles plugins of the type `DRAPlugin`.
#[derive(Debug)]
pub(crate) struct DraPluginHandler {
    resources: Arc<DynamicResources>,
    tasks: Tasks,
}

impl DraPluginHandler {
    /// `tasks` runs what a plugin needs while it is registered.
    pub(crate) fn new(resources: &Arc<DynamicResources>, tasks: &Tasks) -> Self {
        Self { resources: Arc::clone(resources), tasks: tasks.clone() }
    }

    /// Adds a plugin, connects to it, and follows the health of its devices.
    fn add(&self, plugin: &Plugin) -> Result<(), RegistrationError> {
        let plugin = Arc::new(DraPlugin {
            driver: plugin.name.clone(),
            endpoint: plugin.endpoint.clone(),
            api: choose(plugin)?,
            health: HealthApi::choose(&plugin.versions),
            connection: PluginConnection::new(),
            call_timeout: self.resources.call_timeout,
            end: self.tasks.shutdown().child(),
        });
        self.resources.drivers.add(Arc::clone(&plugin))?;
        let (resources, driver) = (Arc::clone(&self.resources), plugin.driver.clone());
        let on_change = move || {
            resources.drivers.on_connection_change(&driver);
            resources.wake_waiting();
        };
        let connection = plugin.connection.clone();
        let connect = connection.run(plugin.endpoint.clone(), on_change, plugin.end.clone());
        self.tasks.spawn(Kind::Request, "dra-connection", connect);
        if let Some(api) = plugin.health {
            let resources = Arc::clone(&self.resources);
            self.tasks.spawn(Kind::Request, "dra-health", async move {
                resources.follow_health(&plugin, api).await;
                Ok::<(), Infallible>(())
            });
        }
        self.resources.wake_waiting();
        Ok(())
    }
}

fn choose(plugin: &Plugin) -> Result<PluginApi, RegistrationError> {
    PluginApi::choose(&plugin.versions).map_err(|source| RegistrationError::Services {
        driver: plugin.name.clone(),
        endpoint: plugin.endpoint.display().to_string(),
        source,
    })
}

#[async_trait]
impl PluginHandler for DraPluginHandler {
    fn plugin_type(&self) -> &'static str {
        "DRAPlugin"
    }

    fn validate(&self, plugin: &Plugin) -> Result<(), PluginRefused> {
        choose(plugin).map(drop).map_err(PluginRefused::new)
    }

    async fn register(&self, plugin: &Plugin) -> Result<(), PluginRefused> {
        self.add(plugin).map_err(PluginRefused::new)
    }

    async fn deregister(&self, plugin: &Plugin) {
        self.resources.drivers.remove(&plugin.name, &plugin.endpoint);
    }
}
