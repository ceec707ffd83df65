//! The addon controller of a server: it applies the manifests in `server/manifests`.

use apiserver::User;
use base::Tasks;

use crate::server::config::Config;
use crate::server::in_process::ClientMaker;

/// The manifests folder in the data directory.
pub(crate) const FOLDER: &str = "server/manifests";

/// Starts the controller. As in k3s every server applies its own folder, whichever leads. A server
/// without a node and without controllers is an API server alone, which deploys nothing.
pub(super) fn start(config: &Config, clients: &ClientMaker, tasks: &Tasks) {
    if !config.agent && !config.controllers {
        return;
    }
    let machine = &config.machine;
    let addons = addons::Config {
        folder: machine.data_dir.join(FOLDER),
        disabled: config.disabled.clone(),
        vertical_autoscaler: config.vertical_autoscaler,
        prune_deleted_files: config.manifests_prune,
        server: machine.node_name.clone(),
        local_storage_path: machine.local_storage_path(),
        balancer_node_ports: config.cluster.external_cloud || config.cluster.no_service_lb,
    };
    let client = clients.client(User::authenticated(addons::USER, &[]), addons::AGENT);
    addons::start(addons, client, tasks);
}
