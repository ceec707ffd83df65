//! The status of pods and of the node, and the writer that sends it to the API server.

pub(crate) mod node;
pub(crate) mod not_ready;
pub(crate) mod pod;
pub(crate) mod writer;
