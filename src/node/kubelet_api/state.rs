//! The state that the handlers of the kubelet API share.

use std::sync::Arc;

use super::auth::Auth;
use super::stats::cache::Cache;
use crate::context::Node;
use crate::pods::table::Table;

/// The state of the kubelet API.
#[derive(Debug)]
pub(crate) struct Api {
    pub(crate) node: Arc<Node>,
    pub(crate) table: Table,
    pub(super) auth: Auth,
    pub(super) stats: Cache,
}
