//! The state that the handlers of the kubelet API share.

use std::sync::Arc;

use super::auth::Auth;
use super::stats::cache::Cache;
use crate::context::Node;
use crate::pods::table::Table;

/// What requests are answered from.
#[derive(Debug)]
pub(crate) struct Api {
    pub(crate) node: Arc<Node>,
    pub(crate) table: Table,
    pub(super) auth: Auth,
    pub(super) stats: Cache,
}
