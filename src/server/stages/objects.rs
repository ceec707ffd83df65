//! Stage `objects`: the API objects in the store, and how the server reaches nodes and pods.

use std::sync::Arc;

use api::schema::Schema;
use apiserver::Objects;
use apiserver::registry::storage::Transformer;
use base::Tasks;
use cluster::join;
use cluster::tunnel::{HeartbeatConfig, Tunnels};
use encryption::{Configured, Keys};
use settings::ClusterSettings;
use store::Backend;

use super::Certificates;
use crate::error_catalogue::{CommandError, DATA_DIR, MISSING_ENCRYPTION_KEY, SERVER_STOPPED};
use crate::server::config::{Config, apiserver_arg_error};
use crate::server::reach::NodeDialer;

/// Objects and connections to nodes.
pub(crate) struct ObjectLayer {
    /// Objects of the API, decrypted.
    pub(crate) objects: Arc<Objects>,
    /// Tunnels of agents.
    pub(crate) tunnels: Tunnels,
    /// Connects to nodes and pods, through tunnels where there are some.
    pub(crate) dialer: Arc<NodeDialer>,
}

/// Opens the objects of `store`. Agents compare the digest of `settings` with their own one.
///
/// # Errors
/// The encryption configuration cannot be used, or a stored value cannot be decrypted.
pub(crate) async fn serve_objects(
    config: &Config,
    certificates: &Certificates,
    settings: &ClusterSettings,
    store: &Arc<dyn Backend>,
    tasks: &Tasks,
) -> Result<ObjectLayer, CommandError> {
    let (certs, keys) = (&certificates.certs, &certificates.keys.keys);
    let transformer: Arc<dyn Transformer> = match config.encryption.clone() {
        Some(plan) => Configured::start(plan, Arc::clone(keys), tasks)
            .await
            .map_err(|why| apiserver_arg_error(&why))?,
        None => Arc::clone(keys) as Arc<dyn Transformer>,
    };
    check_keys(config, keys, store, &*transformer).await?;
    let objects = Objects::new(Arc::clone(store), Some(transformer), Schema::builtin(), tasks);
    let pace = if config.fast_node_loss { HeartbeatConfig::FAST } else { HeartbeatConfig::CALM };
    let digest = join::digest(settings, certs.server_ca().cert_pem(), certs.client_ca().cert_pem());
    let tunnels = Tunnels::new(pace, digest, tasks.clone());
    let dialer = NodeDialer::new(tunnels.clone());
    Ok(ObjectLayer { objects, tunnels, dialer })
}

/// Saves keys that were generated for a store without encrypted values.
///
/// # Errors
/// The store has values that no key decrypts.
async fn check_keys(
    config: &Config,
    keys: &Keys,
    store: &Arc<dyn Backend>,
    transformer: &dyn Transformer,
) -> Result<(), CommandError> {
    let unopened = encryption::rewrite::unopened(store, transformer).await;
    let unopened = unopened.map_err(|e| SERVER_STOPPED.error(format!("the store: {e}")))?;
    if let Some(unopened) = unopened {
        let file = keys.path().display();
        let state = if keys.is_unsaved() { "is missing" } else { "lacks a key" };
        let provider = match &config.encryption {
            Some(plan) => format!(", and {} has no provider for it", plan.file.display()),
            None => String::new(),
        };
        return Err(MISSING_ENCRYPTION_KEY.error(format!(
            "{file} {state}{provider}: {} cannot be decrypted: {}",
            unopened.key, unopened.why
        )));
    }
    keys.save().await.map_err(|e| DATA_DIR.error(e))
}
