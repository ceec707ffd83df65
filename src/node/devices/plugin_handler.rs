//! Device plugins that announce themselves in the registry of plugins (type `DevicePlugin`) instead
//! of calling `Register`.

use std::sync::Arc;

use async_trait::async_trait;

use super::DeviceManager;
use super::error::InvalidPlugin;
use super::registration::VERSION;
use crate::plugins::{Plugin, PluginHandler, PluginRefused};
use crate::pods::resources;

/// Handles plugins of the type `DevicePlugin`; their name is that of their resource.
#[derive(Debug)]
pub(crate) struct DevicePluginHandler(Arc<DeviceManager>);

impl DevicePluginHandler {
    pub(crate) fn new(devices: &Arc<DeviceManager>) -> Self {
        Self(Arc::clone(devices))
    }
}

/// Checks the versions and the name of a plugin.
fn check(plugin: &Plugin) -> Result<(), InvalidPlugin> {
    if !plugin.versions.iter().any(|version| version == VERSION) {
        return Err(InvalidPlugin::Versions(plugin.versions.clone()));
    }
    if !resources::is_extended(&plugin.name) {
        return Err(InvalidPlugin::Name(plugin.name.clone()));
    }
    Ok(())
}

#[async_trait]
impl PluginHandler for DevicePluginHandler {
    fn plugin_type(&self) -> &'static str {
        "DevicePlugin"
    }

    fn validate(&self, plugin: &Plugin) -> Result<(), PluginRefused> {
        check(plugin).map_err(PluginRefused::new)
    }

    async fn register(&self, plugin: &Plugin) -> Result<(), PluginRefused> {
        let connected = self.0.connect(&plugin.name, plugin.endpoint.clone()).await;
        connected.map_err(PluginRefused::new)
    }

    async fn deregister(&self, plugin: &Plugin) {
        self.0.disconnect_socket(&plugin.name, &plugin.endpoint);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plugins_of_another_version_or_with_an_invalid_name_get_upstreams_text() {
        let refused = |name: &str, versions: &[&str]| {
            let versions = versions.iter().map(|version| (*version).to_owned()).collect();
            let plugin = Plugin { name: name.to_owned(), endpoint: "/p.sock".into(), versions };
            check(&plugin).map_err(|error| error.to_string())
        };
        assert_eq!(refused("example.com/foo", &["v1alpha", "v1beta1"]), Ok(()));
        assert_eq!(
            refused("example.com/foo", &["v1alpha", "v1"]).unwrap_err(),
            "manager version, v1beta1, is not among plugin supported versions [v1alpha v1]"
        );
        assert_eq!(
            refused("kubernetes.io/foo", &["v1beta1"]).unwrap_err(),
            "invalid name of device plugin socket: the ResourceName \"kubernetes.io/foo\" is \
             invalid"
        );
    }
}
