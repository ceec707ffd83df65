//! What all controllers share: context, queues, ownership, writes, and facts about pods and nodes.

pub(crate) mod adoption;
pub(crate) mod collectors;
pub(crate) mod context;
pub(crate) mod controller_ref;
pub(crate) mod edit;
pub(crate) mod int_or_percent;
pub(crate) mod ip_prefix;
pub(crate) mod keyed;
pub(crate) mod nodes;
pub(crate) mod pod_control;
pub(crate) mod pods;
pub(crate) mod prefix_set;
pub(crate) mod queue_names;
pub(crate) mod served_resources;
pub(crate) mod signing;
pub(crate) mod tuning;
