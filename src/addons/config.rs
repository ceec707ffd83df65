//! The configuration and the identity of the controller.

use std::collections::BTreeSet;
use std::path::PathBuf;

/// The user as which the controller acts: manifests may contain any object, so it is bound to
/// `cluster-admin`.
pub const USER: &str = "system:addon-controller";
/// The user agent of the controller, which is also its field manager.
pub const AGENT: &str = "addon-controller";

/// The configuration of the controller.
#[derive(Debug, Clone)]
pub struct Config {
    /// The watched folder, `server/manifests`.
    pub folder: PathBuf,
    /// Names of `--disable`: files and sub-folders whose objects are deleted.
    pub disabled: BTreeSet<String>,
    /// Whether the kinds of the vertical pod autoscaler are defined.
    pub vertical_autoscaler: bool,
    /// Whether the objects of a deleted file are deleted.
    pub prune_deleted_files: bool,
    /// Name of this server in the Addons that it applies.
    pub server: String,
    /// The default directory of local-path volumes, for the packaged manifest.
    pub local_storage_path: PathBuf,
    /// Whether the Service of the ingress has node ports, to which load balancers outside of the
    /// cluster forward; ServiceLB needs none.
    pub balancer_node_ports: bool,
}
