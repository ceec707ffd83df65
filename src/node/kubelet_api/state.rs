//! The state that the handlers of the kubelet API share.

use std::sync::Arc;

use super::auth::ApiAuth;
use super::stats::cache::StatsCache;
use crate::context::Node;
use crate::pods::table::PodTable;

/// The state of the kubelet API.
#[derive(Debug)]
pub(crate) struct KubeletApi {
    pub(crate) node: Arc<Node>,
    pub(crate) table: PodTable,
    pub(super) auth: ApiAuth,
    pub(super) stats: StatsCache,
}
