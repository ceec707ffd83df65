//! The state that the handlers of the kubelet API share.

use std::sync::Arc;

use api::local_path::LocalPathConfig;
use arc_swap::ArcSwapOption;

use super::auth::ApiAuth;
use super::stats::cache::StatsCache;
use crate::config::ProcessFamilies;
use crate::context::Node;
use crate::pods::table::PodTable;

/// The state of the kubelet API.
#[derive(Debug)]
pub(crate) struct KubeletApi {
    pub(crate) node: Arc<Node>,
    pub(crate) table: PodTable,
    pub(super) auth: ApiAuth,
    pub(super) stats: StatsCache,
    /// The last valid configuration of local-path volumes that this process has read.
    pub(super) local_paths: ArcSwapOption<LocalPathConfig>,
    /// Families of the pod network, if it has some.
    pub(super) network: Option<Arc<dyn ProcessFamilies>>,
}
