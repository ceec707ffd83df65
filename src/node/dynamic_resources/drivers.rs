//! The drivers that are registered on this node, each with one or more plugins: while a driver is
//! updated, the old and the new one run at the same time.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;

use super::error::UnknownDriver;
use super::plugin::DraPlugin;
use super::resource_slices::SliceCleaner;

/// Why a plugin is not added.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("endpoint {endpoint} already registered for DRA driver plugin {driver}")]
pub(crate) struct EndpointInUse {
    driver: String,
    endpoint: String,
}

/// The plugins by driver, oldest first.
type PluginsByDriver = BTreeMap<String, Vec<Arc<DraPlugin>>>;

/// The registered drivers.
#[derive(Debug)]
pub(crate) struct DraDrivers {
    plugins: Mutex<PluginsByDriver>,
    cleaner: Arc<SliceCleaner>,
}

impl DraDrivers {
    /// `cleaner` removes the ResourceSlices of drivers that are gone.
    pub(super) fn new(cleaner: Arc<SliceCleaner>) -> Self {
        Self { plugins: Mutex::default(), cleaner }
    }

    /// Adds a plugin as the newest of its driver.
    ///
    /// # Errors
    ///
    /// Another plugin of the driver has its endpoint.
    pub(super) fn add(&self, plugin: Arc<DraPlugin>) -> Result<(), EndpointInUse> {
        let mut plugins = self.plugins.lock();
        let of_driver = plugins.entry(plugin.driver.clone()).or_default();
        if of_driver.iter().any(|known| known.endpoint == plugin.endpoint) {
            let (driver, endpoint) = (plugin.driver.clone(), plugin.endpoint.display().to_string());
            return Err(EndpointInUse { driver, endpoint });
        }
        let driver = plugin.driver.clone();
        of_driver.push(plugin);
        self.update_cleaner(&plugins, &driver);
        Ok(())
    }

    /// Removes a plugin, if it is registered, and ends what belongs to it.
    pub(super) fn remove(&self, driver: &str, endpoint: &Path) {
        let mut plugins = self.plugins.lock();
        let Some(of_driver) = plugins.get_mut(driver) else { return };
        let Some(position) = of_driver.iter().position(|known| known.endpoint == endpoint) else {
            return;
        };
        of_driver.remove(position).end.request();
        if of_driver.is_empty() {
            plugins.remove(driver);
        }
        self.update_cleaner(&plugins, driver);
    }

    /// Handles that a plugin of the driver was connected or disconnected.
    pub(super) fn on_connection_change(&self, driver: &str) {
        let plugins = self.plugins.lock();
        self.update_cleaner(&plugins, driver);
    }

    fn update_cleaner(&self, plugins: &PluginsByDriver, driver: &str) {
        let mut of_driver = plugins.get(driver).into_iter().flatten();
        let is_usable = of_driver.any(|plugin| plugin.connection.is_connected());
        self.cleaner.set_usable(driver, is_usable);
    }

    /// Returns the plugin to call: the newest one that is connected, else the newest one.
    ///
    /// # Errors
    ///
    /// The driver has no plugin.
    pub(super) fn plugin(&self, driver: &str) -> Result<Arc<DraPlugin>, UnknownDriver> {
        if driver.is_empty() {
            return Err(UnknownDriver::Unnamed);
        }
        let plugins = self.plugins.lock();
        let of_driver = plugins.get(driver).map(Vec::as_slice).unwrap_or_default();
        let connected = of_driver.iter().rev().find(|plugin| plugin.connection.is_connected());
        let plugin = connected.or(of_driver.last());
        plugin.cloned().ok_or_else(|| UnknownDriver::NotRegistered(driver.to_owned()))
    }
}
