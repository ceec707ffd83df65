//! What a kind of plugin has to implement to be registered.

use std::path::PathBuf;

use async_trait::async_trait;

/// A plugin as it introduces itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Plugin {
    /// The name of a CSI driver, for example.
    pub(crate) name: String,
    /// The socket at which the plugin serves.
    pub(crate) endpoint: PathBuf,
    /// The versions of its interface.
    pub(crate) versions: Vec<String>,
}

/// Why a handler does not accept a plugin; the plugin gets the text.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub(crate) struct PluginRefused(Box<dyn std::error::Error + Send + Sync>);

impl PluginRefused {
    /// Refuses a plugin because of `error`.
    pub(crate) fn new(error: impl std::error::Error + Send + Sync + 'static) -> Self {
        Self(Box::new(error))
    }
}

/// Handles the plugins of one type (`cache.PluginHandler` of the kubelet's plugin manager).
#[async_trait]
pub(crate) trait PluginHandler: Send + Sync + std::fmt::Debug {
    /// The type in the answer of the plugin, such as `CSIPlugin`.
    fn plugin_type(&self) -> &'static str;

    /// Checks what the plugin says about itself.
    ///
    /// # Errors
    ///
    /// The plugin is not supported.
    fn validate(&self, plugin: &Plugin) -> Result<(), PluginRefused>;

    /// Makes the plugin usable.
    ///
    /// # Errors
    ///
    /// The plugin cannot be used; nothing of it is kept.
    async fn register(&self, plugin: &Plugin) -> Result<(), PluginRefused>;

    /// Removes a plugin that is gone.
    async fn deregister(&self, plugin: &Plugin);
}
