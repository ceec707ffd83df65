//! DynamicResources: no node allocates devices, so a pod with resource claims stays pending
//! instead of failing on the node that it is bound to.

use crate::framework::{Plugin, Snapshot};
use crate::node_info::NodeInfo;
use crate::rejection::Rejection;

#[derive(Debug, Clone)]
pub(super) struct DynamicResources;

impl Plugin for DynamicResources {
    const NAME: &'static str = "DynamicResources";

    fn pre_filter(snapshot: &Snapshot<'_>) -> Option<Self> {
        snapshot.pod.has_resource_claims.then_some(Self)
    }

    fn filter(&self, _: &Snapshot<'_>, _: &NodeInfo) -> Result<(), Rejection> {
        Err(Rejection::unresolvable("node(s) do not support resource claims"))
    }
}
